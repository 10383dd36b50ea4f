"""Which all-reduce a tensor-parallel server really runs, read from what it said while it started.

A custom all-reduce that cannot be set up is no error to SGLang: it warns and goes on with NCCL, so that "on" can
silently be "off". Read in the source of 0.5.17 (`parallel_state.py`, `custom_all_reduce_v2.py`,
`custom_all_reduce_utils.py`): version 2 says what it has set up, version 1 only why it is not used. Of 0.5.23 the
first line was seen to carry one more figure.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

CUSTOM_V2, CUSTOM_V1, NCCL, NONE, UNKNOWN = "custom-v2", "custom-v1", "nccl", "none", "unknown"
# A start says what is looked for within its first few hundred lines; a long life says a million more.
FIRST_LINES = 4000

_SET_UP = re.compile(r"All Reduce config: symmetric_memory = ([0-9.]+) MB.*?multicast = (True|False)")
_FAILED = re.compile(r"Setup Custom allreduce failed with (.*?)\.? To silence this")
_DISABLED = re.compile(r"(CustomAllReduceV2|CustomAllreduce) is disabled (.*?)(?:\.? To silence this|$)")
_FUSED = re.compile(r"FlashInfer AllReduce Fusion enabled and workspace initialized: (backend=[^,\s]+)")
_SWITCH = "--disable-custom-all-reduce"
_DETERMINISTIC = "--enable-deterministic-inference"
_SIZES = ("--tp-size", "--tensor-parallel-size", "--tp")


@dataclass(frozen=True)
class AllReduce:
    """``kind``: custom-v2, custom-v1, nccl, none (one GPU) or unknown. ``multicast``: null where the log is silent."""

    kind: str
    said: str
    multicast: bool | None = None
    fused: str = ""

    def as_result(self) -> dict[str, Any]:
        return {"kind": self.kind, "said": self.said, "multicast": self.multicast, "fused": self.fused}


def tensor_parallel(command: Sequence[str]) -> int:
    """The tensor-parallel size of a server's command line."""
    values = dict(pairwise(command))
    return next((int(values[flag]) for flag in _SIZES if str(values.get(flag, "")).isdigit()), 1)


def judge(command: Sequence[str], lines: Iterable[str]) -> AllReduce:
    """What runs, from the server's command line and the lines of its start."""
    if tensor_parallel(command) == 1:
        return AllReduce(NONE, "one GPU, nothing to reduce")
    kept = list(lines)
    fused = next((match.group(1) for line in kept if (match := _FUSED.search(line))), "")
    if _SWITCH in command or _DETERMINISTIC in command:
        said = f"NCCL, as {_SWITCH if _SWITCH in command else _DETERMINISTIC} asks"
        if _DETERMINISTIC in command:
            # Read in the source of 0.5.4, 0.5.17 and 0.5.23 (`server_args.py`, `attention_hook.py`).
            said += "; SGLang sets NCCL_ALGO to allreduce:tree over what the unit has"
        return AllReduce(NCCL, said, False, fused)
    if found := next((match for line in kept if (match := _SET_UP.search(line))), None):
        multicast = found.group(2) == "True"
        said = f"custom all-reduce 2, {found.group(1)} MB of symmetric memory, multicast {'ON' if multicast else 'off'}"
        return AllReduce(CUSTOM_V2, said, multicast, fused)
    if failed := next((match.group(1) for line in kept if (match := _FAILED.search(line))), None):
        return AllReduce(
            NCCL, f"NCCL, though custom all-reduce was on: its set-up failed with {failed}", None, fused
        )
    reasons = {match.group(1): match.group(2) for line in kept if (match := _DISABLED.search(line))}
    if "CustomAllreduce" in reasons:
        return AllReduce(
            NCCL, f"NCCL, though custom all-reduce was on: disabled {reasons['CustomAllreduce']}", None, fused
        )
    if reasons:
        return AllReduce(
            CUSTOM_V1, f"custom all-reduce 1; 2 is disabled {reasons['CustomAllReduceV2']}", False, fused
        )
    return AllReduce(UNKNOWN, "the log does not say (version 1 says nothing where it works)", None, fused)


def first_lines(invocation: str, count: int = FIRST_LINES) -> list[str]:
    """The first messages of one start of a unit, at most ``count``; none without a journal."""
    command = [
        "journalctl",
        "--no-pager",
        "--quiet",
        "--output=cat",
        "--boot",
        f"_SYSTEMD_INVOCATION_ID={invocation}",
    ]
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace"
        )
    except OSError:
        return []
    with process:
        assert process.stdout is not None
        lines = [line.rstrip("\n") for _, line in zip(range(count), process.stdout, strict=False)]
        process.kill()
    return lines


def of_unit(spec: Mapping[str, Any], invocation: str) -> AllReduce | None:
    """What a running unit uses; None where nothing runs. Reads the journal only for more than one GPU."""
    command = [str(word) for word in spec.get("command") or []]
    if not command or not invocation:
        return None
    return judge(command, first_lines(invocation) if tensor_parallel(command) > 1 else ())
