"""Quoting for systemd. That real systemd reads it back unchanged is proven in the molecule scenario sglang_server."""

from __future__ import annotations

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance.unit import (
    RESERVED_ENVIRONMENT,
    check_user_environment,
    environment_lines,
    exec_line,
    exec_word,
    render,
)

TEMPLATE = "[Service]\nExecStart=@COMMAND@\n@ENVIRONMENT@\n@EXIT_STATUS@\nUser=x\n"


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("--port", "--port"),
        ("/a/b", "/a/b"),
        ("50%", "50%%"),
        ("a b", '"a b"'),
        ("$HOME", '"$$HOME"'),
        ('say "hi"', '"say \\"hi\\""'),
        ("back\\slash", '"back\\\\slash"'),
        ("l1\nl2\t3", '"l1\\nl2\\t3"'),
        ("\x07", '"\\x07"'),
        ("grüße", '"grüße"'),
        ("", '""'),
        ("a;b", '"a;b"'),
    ],
)
def test_exec_word(word: str, written: str) -> None:
    assert exec_word(word) == written


def test_one_flag_a_line() -> None:
    assert exec_line(["/py", "-m", "x", "--a", "1", "2", "--b"]) == "/py -m x \\\n    --a 1 2 \\\n    --b"


def test_dollar_is_left_alone_in_environment() -> None:
    assert environment_lines({"B": "$x %y", "A": "1"}) == 'Environment="A=1"\nEnvironment="B=$x %%y"'


def test_render_leaves_the_exit_status_line_out_when_there_is_none() -> None:
    with_signal = render(TEMPLATE, command=["/py"], environment={"A": "1"}, success_signals=["SIGKILL"])
    without = render(TEMPLATE, command=["/py"], environment={"A": "1"}, success_signals=[])
    assert with_signal == '[Service]\nExecStart=/py\nEnvironment="A=1"\nSuccessExitStatus=SIGKILL\nUser=x\n'
    assert without == '[Service]\nExecStart=/py\nEnvironment="A=1"\nUser=x\n'


def test_a_value_that_looks_like_a_placeholder_stays_a_value() -> None:
    text = render(TEMPLATE, command=["/py", "@COMMAND@"], environment={}, success_signals=[])
    assert "ExecStart=/py @COMMAND@\n" in text


@pytest.mark.parametrize("template", ["ExecStart=@COMMAND@", TEMPLATE + "@OTHER@"])
def test_wrong_placeholders_are_refused(template: str) -> None:
    with pytest.raises(AerieError) as refused:
        render(template, command=[], environment={}, success_signals=[])
    assert refused.value.kind.code == "bad-unit-template"


@pytest.mark.parametrize("name", [*RESERVED_ENVIRONMENT, "9A", "A B", ""])
def test_reserved_and_impossible_names_are_refused(name: str) -> None:
    with pytest.raises(AerieError) as refused:
        check_user_environment({name: "x"})
    assert refused.value.kind.code == "bad-environment"


def test_a_nul_is_refused() -> None:
    with pytest.raises(AerieError, match="NUL"):
        exec_word("a\0b")
