"""Bad inventories: refused by name, with the fix."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.variables import check_choices, check_names, check_server, check_types

KNOWN = ["sglang_server_port", "sglang_server_speculative", "sglang_install_release"]
GOOD: dict[str, Any] = {
    "sglang_server_model_path": "/m",
    "sglang_server_draft_model_path": "/d",
    "sglang_server_port": 30000,
    "sglang_server_host": "127.0.0.1",
    "sglang_server_speculative": {
        "algorithm": "EAGLE3",
        "num_steps": 2,
        "eagle_topk": 1,
        "num_draft_tokens": 3,
    },
    "sglang_server_min_accept_length": 1.8,
}


def refused(values: dict[str, Any]) -> AerieError:
    with pytest.raises(AerieError) as caught:
        check_server({**GOOD, **values})
    return caught.value


def test_a_misspelled_name_is_found_with_the_near_one() -> None:
    with pytest.raises(AerieError) as caught:
        check_names(["sglang_server_prot", "other"], KNOWN, ("sglang_",))
    assert caught.value.evidence == ["sglang_server_prot   (did you mean sglang_server_port?)"]
    check_names(["sglang_server_port", "ansible_host"], KNOWN, ("sglang_",))


@pytest.mark.parametrize(
    ("type_", "value", "fine"),
    [
        ("bool", True, True),
        ("bool", "false", False),
        ("bool", "yes", False),
        ("bool", 0, False),
        ("int", 8, True),
        ("int", "8", False),
        ("int", True, False),
        ("float", 1, True),
        ("float", 1.5, True),
        ("float", "1.5", False),
        ("dict", {}, True),
        ("dict", [], False),
        ("list", ["a"], True),
        ("list", "a", False),
        ("str", "a", True),
        ("str", 5, False),
        ("path", "/x", True),
    ],
)
def test_types(type_: str, value: object, fine: bool) -> None:
    options = {"sglang_x": {"type": type_}}
    if fine:
        check_types({"sglang_x": value}, options)
    else:
        with pytest.raises(AerieError) as caught:
            check_types({"sglang_x": value}, options)
        assert caught.value.kind.code == "wrong-type"
        assert f"{type_} is needed" in caught.value.evidence[0]


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [
        ({"choices": ["production", "baseline"]}, "production", ""),
        ({"choices": ["production", "baseline"]}, "prodution", "bad-value"),
        ({"type": "list", "choices": ["a"]}, ["a", "b"], "bad-value"),
        ({"type": "list", "elements": "int"}, [1, 3], ""),
        ({"type": "list", "elements": "int"}, [1, "3"], "wrong-type"),
        ({"type": "list", "elements": "int"}, [True], "wrong-type"),
        ({"type": "list", "elements": "str"}, ["0", 1], ""),
        ({"type": "list", "elements": "str"}, [{"a": 1}], "wrong-type"),
        ({"type": "list", "elements": "dict"}, [{"a": 1}], ""),
        ({"type": "list"}, [1, "a"], ""),
        ({"type": "raw"}, "a", ""),
    ],
)
def test_choices_and_elements(option: dict[str, Any], value: object, code: str) -> None:
    if not code:
        check_choices({"sglang_x": value, "sglang_unset": None}, {"sglang_x": option, "sglang_unset": option})
        return
    with pytest.raises(AerieError) as caught:
        check_choices({"sglang_x": value}, {"sglang_x": option})
    assert caught.value.kind.code == code
    assert "sglang_x" in caught.value.what


def test_a_secret_of_the_wrong_type_is_not_shown() -> None:
    with pytest.raises(AerieError) as caught:
        check_types({"sglang_x": 4711}, {"sglang_x": {"type": "str", "no_log": True}})
    assert "4711" not in caught.value.message()


def test_a_good_inventory_passes_without_warnings() -> None:
    assert check_server(GOOD) == []


@pytest.mark.parametrize(
    ("values", "code", "text"),
    [
        ({"sglang_server_model_path": ""}, "missing-value", "sglang_server_model_path is not set"),
        ({"sglang_server_draft_model_path": ""}, "missing-value", "sglang_server_draft_model_path"),
        ({"sglang_server_model_path": "org/model"}, "bad-value", "not an absolute path"),
        ({"sglang_server_port": 70000}, "bad-value", "70000"),
        ({"sglang_server_min_accept_length": 3.0}, "bad-accept-floor", "cannot be reached with 2 steps"),
        ({"sglang_server_min_accept_length": 0.9}, "bad-accept-floor", "gates nothing"),
        (
            {"sglang_server_speculative": {"algorithm": "EAGLE3", "num_steps": 1}},
            "bad-speculation",
            "only some",
        ),
        ({"sglang_server_arguments": {"port": 1}}, "bad-server-argument", "sglang_server_port"),
        ({"sglang_server_environment": {"PYTHONPATH": "/x"}}, "bad-environment", "PYTHONPATH"),
        ({"sglang_server_api_key": "-secret"}, "bad-api-key", "sglang_server_api_key begins with -"),
        ({"sglang_server_admin_api_key": "secret\n"}, "bad-api-key", "sglang_server_admin_api_key holds"),
    ],
)
def test_settings_that_contradict_each_other(values: dict[str, Any], code: str, text: str) -> None:
    error = refused(values)
    assert error.kind.code == code
    assert text in error.what
    assert error.next
    assert "secret" not in str(error.as_result())


def test_baseline_needs_no_draft() -> None:
    values = {**GOOD, "sglang_server_speculative": {}, "sglang_server_draft_model_path": ""}
    assert check_server(values) == []


def test_warnings() -> None:
    open_host = check_server({**GOOD, "sglang_server_host": "0.0.0.0"})
    with_key = check_server({**GOOD, "sglang_server_host": "0.0.0.0", "sglang_server_api_key": "k"})
    remote = check_server({**GOOD, "sglang_server_arguments": {"trust-remote-code": True}})
    assert ["sglang_server_host 0.0.0.0" in line for line in open_host] == [True]
    assert with_key == []
    assert ["trust_remote_code runs Python code" in line for line in remote] == [True]
