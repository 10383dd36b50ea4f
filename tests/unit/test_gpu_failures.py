"""What a person is told to do next, cause by cause; and memory without a process whose device file is open."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.aerie.gpu.failures import failure, holders_of
from ansible.module_utils.aerie.gpu.holders import Identity
from ansible.module_utils.aerie.gpu.readings import (
    COMPUTE,
    GRAPHICS,
    MIB,
    GpuProcess,
    GpuReading,
    Problem,
    Rule,
    judge,
)
from ansible.module_utils.aerie.gpu.wait import Outcome

ID = "3f4a" * 16


def reading(index: int = 0, **more: Any) -> GpuReading:
    given: dict[str, Any] = {"total": 100 * MIB, "reserved": 0, "used": 9 * MIB, "minor": index + 1, **more}
    return GpuReading(index, f"GPU-{index}", "NVIDIA H200", **given)


def who(pid: int, **more: Any) -> Identity:
    return Identity(pid, "alice", "python train.py", more.pop("state", "S"), "2026-01-02T03:04:05Z", **more)


def told(
    readings: list[GpuReading], known: dict[int, Identity], openers: dict[int, list[int]] | None = None
) -> Any:
    outcome = Outcome(tuple(judge(each, Rule()) for each in readings), 12.34)
    holders = holders_of(outcome, known.get)
    return failure(outcome, Rule(), holders, known.get, lambda minor: (openers or {}).get(minor, []))


HELD = reading(processes=(GpuProcess(7, COMPUTE, 9 * MIB),))
NEXT = [
    ("a service", who(7, unit="train.service"), "systemctl status train.service"),
    ("a login session", who(7, unit="session-3.scope"), "ps -o pid,user,lstart,args -p 7"),
    ("docker", who(7, container=ID, runtime="docker"), f"docker inspect {ID[:12]}"),
    ("podman", who(7, container=ID, runtime="podman"), f"podman inspect {ID[:12]}"),
    ("kubernetes", who(7, container=ID, runtime="containerd"), f"crictl inspect {ID[:12]}"),
    ("nspawn", who(7, container="web", runtime="machine"), "machinectl list"),
    ("not visible", None, "outside any container: ps -o pid,user,lstart,args -p 7"),
]


@pytest.mark.parametrize(("identity", "command"), [row[1:] for row in NEXT], ids=[row[0] for row in NEXT])
def test_next_command_for_a_holder(identity: Identity | None, command: str) -> None:
    error = told([HELD], {7: identity} if identity else {})
    assert error.kind.code == "gpu-held"
    assert command in error.next
    assert "1 of 1 GPU still in use after 12.3 s" in error.message()


def test_a_holder_is_named_in_full() -> None:
    text = told([HELD], {7: who(7, unit="train.service", state="D")}).message()
    assert (
        "GPU 0: pid 7 (compute), 9 MiB, user alice, since 2026-01-02T03:04:05Z, unit train.service, in"
        " uninterruptible sleep (a signal cannot end it now): python train.py"
    ) in text


def test_memory_without_a_process_names_who_has_the_device_open() -> None:
    error = told([reading()], {8: who(8, container=ID, runtime="docker")}, {1: [8, 9]})
    assert error.kind.code == "gpu-held-no-process"
    assert "pid 8 has /dev/nvidia1 open, user alice" in error.message()
    assert "pid 9" not in error.message()
    assert "fuser -v /dev/nvidia1" in error.next
    assert (
        "no process that can be looked into from here has /dev/nvidia1 open"
        in told([reading()], {}).message()
    )


def test_ignored_graphics_processes_are_still_told() -> None:
    text = told([reading(processes=(GpuProcess(5, GRAPHICS, None),))], {}).message()
    assert "pid 5 (graphics), memory not attributed: does not count" in text


def test_the_gravest_cause_gives_the_code_and_every_cause_is_told() -> None:
    lost = reading(1, used=None, problems=(Problem("memory info: GPU is lost", lost=True),) * 3)
    unknown = reading(2, used=None, problems=(Problem("memory info: Not Supported", True),))
    error = told([HELD, lost, unknown], {7: who(7)})
    assert error.kind.code == "gpu-lost"
    assert error.message().count("GPU is lost") == 1
    for part in ("pid 7", "GPU 1", "GPU 2: memory info: Not Supported", "tolerance 0 MiB"):
        assert part in error.message()
    assert told([HELD, unknown], {7: who(7)}).kind.code == "gpu-memory-unknown"
