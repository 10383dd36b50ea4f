"""Server arguments: what is refused before anything is touched, and the command line that results."""

from __future__ import annotations

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance.arguments import Speculation, check_free_arguments, command_line

STEPS_2 = {"algorithm": "EAGLE3", "num_steps": 2, "eagle_topk": 1, "num_draft_tokens": 3}


def test_command_line_is_sorted_and_keeps_every_form_of_value() -> None:
    arguments = {
        "tp_size": 8,
        "trust_remote_code": True,
        "enable_metrics": False,
        "chunked_prefill_size": None,
        "cuda_graph_bs": [1, 2, 4],
        "mem_fraction_static": 0.88,
        "json_model_override_args": {"b": 1, "a": "ü"},
    }
    assert command_line(arguments) == [
        "--cuda-graph-bs", "1", "2", "4",
        "--json-model-override-args", '{"a":"ü","b":1}',
        "--mem-fraction-static", "0.88",
        "--tp-size", "8",
        "--trust-remote-code",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "hint"),
    [
        ({"api-key": "s"}, "bad-server-argument", "sglang_server_api_key"),
        ({"--admin-api-key": "s"}, "bad-server-argument", "sglang_server_admin_api_key"),
        ({"model_path": "/m"}, "bad-server-argument", "sglang_server_model_path"),
        ({"--speculative-num-steps": 3}, "bad-server-argument", "sglang_server_speculative.num_steps"),
        ({"config": "/x.yaml"}, "bad-server-argument", "sglang_server_arguments"),
        ({"num-continuous-decode-steps": 4}, "bad-server-argument", "remove"),
        ({"tp_size": 1, "tp-size": 2}, "bad-server-argument", "one of the two"),
    ],
)
def test_refused_arguments(arguments: dict[str, object], code: str, hint: str) -> None:
    with pytest.raises(AerieError) as refused:
        check_free_arguments(arguments)
    assert refused.value.kind.code == code
    assert hint in refused.value.next


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"algorithm": "EAGLE3", "num_steps": 2}, "only some of steps"),
        ({"algorithm": "EAGLE3", "num_steps": 2, "eagle_topk": 1}, "missing: num_draft_tokens"),
        ({**STEPS_2, "num_draft_tokens": 24}, "SGLang would silently use 3"),
        ({**STEPS_2, "num_steps": "2"}, "whole number"),
        ({**STEPS_2, "num_steps": True}, "whole number"),
        ({**STEPS_2, "steps": 2}, "unknown keys: steps"),
        ({"num_steps": 2, "eagle_topk": 1, "num_draft_tokens": 3}, "no algorithm"),
    ],
)
def test_contradicting_speculation_is_refused(given: dict[str, object], text: str) -> None:
    with pytest.raises(AerieError, match=text) as refused:
        Speculation.from_mapping(given)
    assert refused.value.kind.code == "bad-speculation"


def test_speculation_becomes_arguments() -> None:
    speculation = Speculation.from_mapping(STEPS_2)
    assert speculation is not None
    assert command_line(speculation.as_arguments("/d")) == [
        "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", "/d",
        "--speculative-eagle-topk", "1",
        "--speculative-num-draft-tokens", "3",
        "--speculative-num-steps", "2",
    ]  # fmt: skip


def test_no_numbers_are_fine_and_leave_the_choice_to_sglang() -> None:
    speculation = Speculation.from_mapping({"algorithm": "EAGLE3"})
    assert speculation is not None
    assert command_line(speculation.as_arguments(None)) == ["--speculative-algorithm", "EAGLE3"]


def test_empty_means_no_speculation() -> None:
    assert Speculation.from_mapping({}) is None
