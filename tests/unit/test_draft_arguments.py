"""What the draft check takes from a server's further arguments, and what it leaves to SGLang."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.aerie.draft.arguments import graphs_switched_off, with_arguments
from ansible.module_utils.aerie.draft.case import Settings


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"context_length": 1024}, {"context_length": 1024}),
        ({"--Context-Length": "1024"}, {"context_length": 1024}),
        ({"context_length": "long"}, {}),
        ({"context_length": None}, {}),
        ({"context_length": True}, {}),
        ({"quantization": "fp8"}, {"quantization": "fp8"}),
        ({"speculative-draft-model-quantization": "unquant"}, {"draft_quantization": "unquant"}),
        ({"speculative_accept_threshold_single": "0.9"}, {"speculative_accept_threshold_single": 0.9}),
        ({"speculative_accept_threshold_acc": 0.8}, {"speculative_accept_threshold_acc": 0.8}),
        ({"tp_size": 8}, {}),
    ],
)
def test_options_from_arguments(arguments: dict[str, Any], expected: dict[str, Any]) -> None:
    given = {"arguments": arguments, "context_length": None}
    found = with_arguments(given)
    assert {k: v for k, v in found.items() if k != "arguments" and v is not None} == expected


def test_an_option_of_its_own_wins() -> None:
    assert with_arguments({"context_length": 5, "arguments": {"context_length": 7}})["context_length"] == 5


@pytest.mark.parametrize(
    ("arguments", "off"),
    [
        ({}, False),
        ({"disable_cuda_graph": True}, True),
        ({"disable_cuda_graph": False}, False),
        ({"disable_cuda_graph": None}, False),
        ({"disable_decode_cuda_graph": True}, True),
        ({"disable_prefill_cuda_graph": True}, False),
        ({"cuda_graph_backend_decode": "disabled"}, True),
        ({"cuda_graph_backend_decode": "full"}, False),
        ({"cuda_graph_backend_prefill": "disabled"}, False),
        ({"cuda_graph_config": {"decode": {"backend": "disabled"}}}, True),
        ({"cuda_graph_config": '{"decode": {"backend": "disabled"}}'}, True),
        ({"cuda_graph_config": {"prefill": {"backend": "disabled"}}}, False),
        ({"cuda_graph_config": "no json"}, False),
    ],
)
def test_graphs(arguments: dict[str, Any], off: bool) -> None:
    assert graphs_switched_off(arguments) is off


def test_the_settings_of_the_check_hold_them() -> None:
    base = {"target": "/t", "draft": "/d", "release": "0.5.23", "algorithm": "eagle3", "cuda_graphs": True}
    arguments = {"disable-cuda-graph": True, "context-length": 1024}
    read = Settings.from_params({**base, "serve_ids": "config", "arguments": arguments})
    assert (read.cuda_graphs, read.context_length) == (False, 1024)
    assert Settings.from_params({**base, "serve_ids": "config"}).cuda_graphs is True
