"""What is asked of a sweep is refused by the inventory alone, before a host is touched."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie_reports.asked import check, resolved

PCIE = [{"nvlinks": 0, "p2p": False}]
DETERMINISTIC = {"enable-deterministic-inference": True}


def values(**changes: Any) -> dict[str, Any]:
    """An inventory that can be tuned, and what differs."""
    found: dict[str, Any] = {
        "sglang_server_speculative": {
            "algorithm": "EAGLE3",
            "num_steps": 3,
            "eagle_topk": 1,
            "num_draft_tokens": 4,
        },
        "sglang_server_arguments": {"page-size": 1},
        "sglang_server_environment": {},
        "sglang_server_max_running_requests": 48,
        "sglang_tune_batch_sizes": [1, 8],
        "sglang_tune_prompts": 24,
        "sglang_tune_lengths": [],
        "sglang_tune_max_steps": 10,
        "sglang_tune_candidates": [{"name": "page 64", "arguments": {"page_size": 64}}],
        "sglang_tune_nccl_presets": ["auto"],
        "gpu_host_nccl_env": {},
    }
    return found | {
        ("sglang_tune_" + name if name in TUNE else name): value for name, value in changes.items()
    }


TUNE = ("batch_sizes", "prompts", "lengths", "max_steps", "candidates", "nccl_presets")


def test_what_can_be_swept_passes() -> None:
    check("tune", values())
    check("tune", values(nccl_presets=["LL"], lengths=[0, 2]))
    check("benchmark", values(sglang_server_speculative={}, candidates=[{}]))
    check("profile", values())


def test_a_profile_needs_speculation() -> None:
    with pytest.raises(AerieError) as caught:
        check("profile", values(sglang_server_speculative={}))
    assert caught.value.kind.code == "profile-no-speculation"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"sglang_server_speculative": {}}, "tune-no-chain"),
        ({"batch_sizes": [1, 64]}, "tune-batch-above-limit"),
        ({"batch_sizes": []}, "bench-batches-invalid"),
        ({"prompts": 3}, "report-too-few-requests"),
        ({"lengths": [2, -1]}, "tune-lengths-invalid"),
        ({"lengths": [0]}, "tune-lengths-invalid"),
        ({"max_steps": 0}, "tune-lengths-invalid"),
        ({"nccl_presets": ["LL129"]}, "tune-preset-unknown"),
        ({"nccl_presets": ["LL"], "gpu_host_nccl_env": {"NCCL_ALGO": "Ring"}}, "tune-preset-hidden"),
        ({"nccl_presets": ["LL"], "sglang_server_arguments": DETERMINISTIC}, "tune-preset-hidden"),
        ({"candidates": [{"arguments": {"page_size": 64}}]}, "tune-candidate-invalid"),
        ({"candidates": [{"name": "a"}]}, "tune-candidate-invalid"),
        ({"candidates": [{"name": "a", "argument": {"page_size": 64}}]}, "tune-candidate-invalid"),
        ({"candidates": [{"name": "a", "arguments": {"port": 1}}]}, "tune-candidate-invalid"),
        ({"candidates": [{"name": "a", "environment": {"PYTHONPATH": "/"}}]}, "tune-candidate-invalid"),
        ({"candidates": [{"name": "a", "environment": {"A": "1"}}] * 2}, "tune-candidate-invalid"),
    ],
)
def test_what_cannot_be_swept_is_refused(changes: dict[str, Any], code: str) -> None:
    with pytest.raises(AerieError) as caught:
        check("tune", values(**changes))
    assert caught.value.kind.code == code
    assert caught.value.next


@pytest.mark.parametrize(
    ("host", "topology", "presets", "notes"),
    [
        ({}, PCIE, 4, 0),
        ({"NCCL_PROTO": "LL"}, PCIE, 0, 1),
        ({"NCCL_PROTO": "LL"}, [], 0, 0),
        ({"NCCL_DEBUG": "INFO"}, PCIE, 4, 0),
    ],
)
def test_presets_are_left_out_where_the_host_would_hide_them(
    host: dict[str, str], topology: list[dict[str, Any]], presets: int, notes: int
) -> None:
    asked = {"presets": None, "custom_all_reduce": None, "topology": topology, "host_environment": host}
    found = resolved(asked)
    assert (len(found["presets"]), len(found["notes"])) == (presets, notes)
    assert "topology" not in found


def test_deterministic_inference_leaves_nothing_of_nccl_to_try() -> None:
    asked = {
        "presets": None,
        "custom_all_reduce": None,
        "topology": [{"nvlinks": 18, "p2p": True}],
        "base": {"arguments": DETERMINISTIC},
    }
    found = resolved(asked)
    assert (found["presets"], found["custom_all_reduce"]) == ([], False)
    assert "allreduce:tree" in found["notes"][0]
    plain = resolved({**asked, "base": {"arguments": {"enable-deterministic-inference": False}}})
    assert plain["presets"]
    assert plain["custom_all_reduce"]
    assert not plain["notes"]
