"""Servers that somebody started by hand: what is said of them, and that no secret is kept."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.gpu.holders import Identity
from ansible.module_utils.aerie.processes import Listener
from ansible.module_utils.aerie.strangers import holders
from ansible.module_utils.aerie.strangers.process_tree import Member
from ansible.module_utils.aerie.strangers.stranger import (
    Stranger,
    kept_environment,
    note_line,
    parse_token,
    plan_line,
    said,
)

WORDS = ("/root/ml-env/bin/python", "-m", "sglang.launch_server", "--port", "30000", "--api-key", "***")
HAND = Stranger(
    main=Member(4711, 812345, 1, 4711),
    who=Identity(4711, "root", "python -m sglang.launch_server", "S", "2026-11-26T18:00:00Z"),
    tree=(Member(4711, 812345, 1, 4711), Member(4712, 812399, 4711, 4711)),
    words=WORDS,
    environment={"NCCL_ALGO": "Ring", "HF_TOKEN": None, "HOME": None},
    cwd="/root/my work",
    nohup=True,
    log="/root/server.log",
    up_s=3 * 86400 + 5,
    holds=("port 30000 (0.0.0.0:30000)",),
)


def test_the_plan_says_who_goes() -> None:
    assert plan_line(HAND) == (
        "takes over pid 4711 (root, nohup /root/ml-env/bin/python -m sglang.launch_server --port …, up 3 d)"
    )


def test_the_note_is_what_a_person_would_type() -> None:
    note = HAND.note()
    assert note_line(note) == (
        "cd '/root/my work' && NCCL_ALGO=Ring nohup /root/ml-env/bin/python -m sglang.launch_server --port 30000 "
        "--api-key '***' >> /root/server.log 2>&1 &"
    )
    assert note["environment_names"] == ["HF_TOKEN", "HOME"]
    assert json.loads(json.dumps(note)) == note


def test_values_of_unknown_and_secret_variables_are_not_kept() -> None:
    given = {
        "NCCL_ALGO": "Ring",
        "SGLANG_API_KEY": "s3",
        "HF_TOKEN": "s3",
        "DATABASE_URL": "s3",
        "PYTHONPATH": "/x",
    }
    assert kept_environment(given) == {
        "NCCL_ALGO": "Ring", "SGLANG_API_KEY": None, "HF_TOKEN": None, "DATABASE_URL": None, "PYTHONPATH": "/x",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["4711", "sglang", "1:5", "0:5", "4711:", "4711:x", "-4711:5", "4711:5:6"])
def test_a_takeover_names_a_process_by_pid_and_start(text: str) -> None:
    with pytest.raises(AerieError) as refused:
        parse_token(text)
    assert refused.value.kind.code == "takeover-token"
    assert parse_token(" 4711:5") == (4711, 5)


def refusal(one: Stranger, monkeypatch: pytest.MonkeyPatch, allowed: list[str]) -> AerieError | None:
    monkeypatch.setattr(holders, "gather", lambda found: [one])
    try:
        holders.approve_ports([(one.main.pid, "port 30000")], allowed)
    except AerieError as error:
        return error
    return None


def test_unasked_it_is_refused_with_the_words_that_allow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refusal(HAND, monkeypatch, [])
    assert error is not None
    assert "-e sglang_server_takeover=4711:812345" in error.next
    text = error.message()
    for expected in (
        "pid 4711 (user root)",
        "2026-11-26T18:00:00Z",
        "nohup",
        "sglang.launch_server",
        "1 process below",
    ):
        assert expected in text
    assert refusal(HAND, monkeypatch, ["4711:812345"]) is None
    assert refusal(HAND, monkeypatch, ["4711:812346"]) is not None


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"managed": "vllm.service"}, "systemctl disable --now vllm.service"),
        (
            {"who": replace(HAND.who, container="ab" * 32, runtime="docker")},
            "docker stop abababababab",
        ),
    ],
)
def test_what_another_manager_minds_is_stopped_there(
    changes: dict[str, Any], advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = refusal(replace(HAND, **changes), monkeypatch, [HAND.token])
    assert error is not None
    assert advice in error.next
    assert f"sglang_server_takeover={HAND.token}" not in error.next


def test_the_script_around_it_can_be_named_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    one = replace(HAND, starter=Member(4700, 812300, 1, 4711))
    error = refusal(one, monkeypatch, [])
    assert error is not None
    assert "may start it again; to take over both: 4700:812300" in error.message()
    assert refusal(one, monkeypatch, ["4700:812300"]) is None
    (told,) = holders.tokens_of([one], ["4700:812300"])
    assert told["token"] == "4700:812300"


def test_a_holder_that_nobody_sees_is_never_taken_over() -> None:
    with pytest.raises(AerieError) as refused:
        holders.approve_ports([(0, "port 30000")], ["4711:812345"])
    assert refused.value.evidence == ["port 30000: holder not visible"]


def test_holders_of_a_port_that_are_not_the_units_own() -> None:
    ours, theirs = Listener("127.0.0.1", 30000, (100,)), Listener("0.0.0.0", 30000, (7, 8))
    hidden = Listener("::", 30000, ())
    assert holders.on_ports([ours], [100]) == []
    assert [pid for pid, _ in holders.on_ports([ours, theirs, hidden], [100])] == [7, 8, 0]


@pytest.mark.parametrize(("seconds", "text"), [(5, "5 s"), (600, "10 min"), (7300, "2 h"), (260000, "3 d")])
def test_an_age(seconds: float, text: str) -> None:
    assert said(seconds) == text
