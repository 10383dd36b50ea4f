"""Which all-reduce runs: the lines are those of SGLang 0.5.17's source, and one of 0.5.23's."""

from __future__ import annotations

import pytest
from ansible.module_utils.aerie.instance import allreduce
from ansible.module_utils.aerie.instance.allreduce import judge, tensor_parallel

TWO = ["python", "-m", "sglang.launch_server", "--tp-size", "2"]
SILENCE = " To silence this warning, specify --disable-custom-all-reduce explicitly."
V2_OFF = (
    "[2026-11-29 16:00:00 TP0] CustomAllReduceV2 is disabled because your platform lacks GPU P2P capability or P2P test"
    " failed. To silence this warning, specify disable_custom_all_reduce=True explicitly."
)
V1_OFF = V2_OFF.replace("CustomAllReduceV2", "CustomAllreduce")
CONFIG = (
    "[2026-11-29 TP0] All Reduce config: symmetric_memory = 80.00 MB, local_buffer = 0.13 MB, multicast = {}"
)

CASES = [
    ("one GPU", ["python"], [CONFIG.format("True")], "none", "one GPU", None),
    (
        "version 2",
        TWO,
        ["x", CONFIG.format("False")],
        "custom-v2",
        "80.00 MB of symmetric memory, multicast off",
        False,
    ),
    ("multicast is shouted", TWO, [CONFIG.format("True")], "custom-v2", "multicast ON", True),
    ("0.5.23's line", TWO, [CONFIG.format("False") + ", pull = True"], "custom-v2", "multicast off", False),
    (
        "set-up failed",
        TWO,
        [f"[TP0] Setup Custom allreduce failed with CUDA driver error: invalid device ordinal.{SILENCE}"],
        "nccl",
        "failed with CUDA driver error: invalid device ordinal",
        None,
    ),
    ("both disabled", TWO, [V2_OFF, V1_OFF], "nccl", "disabled because your platform lacks GPU P2P", None),
    ("only 2 disabled", TWO, [V2_OFF], "custom-v1", "2 is disabled because your platform", False),
    (
        "switched off",
        [*TWO, "--disable-custom-all-reduce"],
        [],
        "nccl",
        "as --disable-custom-all-reduce asks",
        False,
    ),
    (
        "deterministic",
        [*TWO, "--enable-deterministic-inference"],
        [],
        "nccl",
        "as --enable-deterministic-inference asks; SGLang sets NCCL_ALGO to allreduce:tree",
        False,
    ),
    ("a silent log", TWO, ["Load weight begin"], "unknown", "does not say", None),
]


@pytest.mark.parametrize(
    ("command", "lines", "kind", "said", "multicast"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_what_runs(
    command: list[str], lines: list[str], kind: str, said: str, multicast: bool | None
) -> None:
    found = judge(command, lines)
    assert (found.kind, found.multicast) == (kind, multicast)
    assert said in found.said


def test_fusion_is_named() -> None:
    line = (
        "FlashInfer AllReduce Fusion enabled and workspace initialized: backend=trtllm, rank=0, world_size=2,"
        " max_token_num=2048, hidden_dim=256"
    )
    assert judge(TWO, [line, CONFIG.format("False")]).fused == "backend=trtllm"


@pytest.mark.parametrize(
    ("words", "size"),
    [(["--tp", "4"], 4), (["--tensor-parallel-size", "8"], 8), (["--tp-size", "2"], 2), ([], 1)],
)
def test_tensor_parallel_size(words: list[str], size: int) -> None:
    assert tensor_parallel(["python", *words, "--port", "1"]) == size


def test_journal_is_read_no_further_than_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    program = tmp_path / "journalctl"
    program.write_text("#!/bin/sh\nwhile true; do echo line $1; done\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert len(allreduce.first_lines("x", 50)) == 50


def test_nothing_runs_nothing_is_said() -> None:
    assert allreduce.of_unit({}, "x") is None
    assert allreduce.of_unit({"command": TWO}, "") is None
