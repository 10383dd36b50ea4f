"""Who a pid is: cgroups of both versions, containers, masked secrets, start times; from made-up and real /proc."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from ansible.module_utils.aerie.gpu.holders import (
    COMMAND_LENGTH,
    command_line,
    describe,
    device_openers,
    identify,
    parse_cgroup,
)

ID = "3f4a" * 16
POD = "kubepods-burstable-pod0123.slice"

CGROUPS = [
    ("service, version 2", "0::/system.slice/sglang-main.service\n", ("sglang-main.service", None, None)),
    ("a service's subgroup", "0::/system.slice/a.service/worker\n", ("a.service", None, None)),
    ("login session", "0::/user.slice/user-1000.slice/session-3.scope\n", ("session-3.scope", None, None)),
    (
        "user service",
        "0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.service\n",
        ("x.service", None, None),
    ),
    (
        "service, version 1",
        "4:memory:/system.slice\n1:name=systemd:/system.slice/b.service\n",
        ("b.service", None, None),
    ),
    (
        "hybrid",
        "1:name=systemd:/system.slice/b.service\n0::/system.slice/b.service\n",
        ("b.service", None, None),
    ),
    # As read on a test host, where both versions are mounted and systemd uses version 2.
    ("both mounted", "9:name=systemd:/\n8:pids:/\n0::/system.slice/c.service\n", ("c.service", None, None)),
    ("docker, version 1", f"1:name=systemd:/docker/{ID}\n", (None, ID, "docker")),
    ("docker, systemd driver", f"0::/system.slice/docker-{ID}.scope\n", (None, ID, "docker")),
    ("docker seen from a container", f"0::/../docker-{ID}.scope\n", (None, ID, "docker")),
    ("podman", f"0::/machine.slice/libpod-{ID}.scope/container\n", (None, ID, "podman")),
    (
        "containerd in kubernetes",
        f"0::/kubepods.slice/{POD}/cri-containerd-{ID}.scope\n",
        (None, ID, "containerd"),
    ),
    ("cri-o in kubernetes", f"0::/kubepods.slice/{POD}/crio-{ID}.scope\n", (None, ID, "cri-o")),
    ("kubernetes, cgroupfs", f"5:devices:/kubepods/burstable/pod0123/{ID}\n", (None, ID, "kubernetes")),
    ("lxc", "0::/lxc.payload.web/system.slice/x.service\n", (None, "web", "lxc")),
    ("nspawn", "0::/machine.slice/systemd-nspawn@web.service/payload\n", (None, "web", "machine")),
    ("root group", "0::/\n", (None, None, None)),
    ("nothing", "", (None, None, None)),
]


@pytest.mark.parametrize(("text", "expected"), [row[1:] for row in CGROUPS], ids=[row[0] for row in CGROUPS])
def test_cgroup(text: str, expected: tuple[str | None, str | None, str | None]) -> None:
    assert parse_cgroup(text) == expected


COMMANDS = [
    ("python -m sglang.launch_server --port 30000", "python -m sglang.launch_server --port 30000"),
    ("x --api-key s3cret --port 1", "x --api-key *** --port 1"),
    ("x --api-key=s3cret", "x --api-key=***"),
    ("x --admin-api-key s3cret", "x --admin-api-key ***"),
    ("env HF_TOKEN=s3cret x", "env HF_TOKEN=*** x"),
    ("x --api-key --port 1", "x --api-key --port 1"),
    ("x --tokenizer-path /m --max-total-tokens 65536", "x --tokenizer-path /m --max-total-tokens 65536"),
    ("x http://me:s3cret@host/", "x http://***@host/"),
]


@pytest.mark.parametrize(("given", "shown"), COMMANDS)
def test_secrets_of_a_command_line_are_masked(given: str, shown: str) -> None:
    assert command_line("\0".join(given.split()) + "\0") == shown


def test_command_line_of_a_renamed_process_and_a_long_one() -> None:
    assert command_line("sglang::scheduler_TP0\0\0\0\0") == "sglang::scheduler_TP0"
    assert command_line("") == ""
    assert len(command_line("x" * 5000)) == COMMAND_LENGTH + 1


def test_a_real_process() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)", "--api-key", "abc"]
    ) as process:
        try:
            time.sleep(0.2)
            who = identify(process.pid)
        finally:
            process.kill()
    assert who is not None
    assert who.user == pwd.getpwuid(os.getuid()).pw_name
    assert who.command.endswith("--api-key ***")
    assert who.since is not None
    started = datetime.strptime(who.since, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    assert abs(datetime.now(timezone.utc) - started) < timedelta(seconds=30)
    assert identify(process.pid) is None


def fake(
    proc: Path, pid: int, *, comm: str = "python", state: str = "S", uid: int = 0, cmdline: str = ""
) -> Path:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} ({comm}) {state} 1 " + "0 " * 17 + "100000 0 0\n")
    (folder / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    (folder / "cmdline").write_text(cmdline)
    (folder / "cgroup").write_text("0::/system.slice/x.service\n")
    (proc / "stat").write_text("cpu 1\nbtime 1700000000\n")
    return folder


def test_a_made_up_process(tmp_path: Path) -> None:
    fake(tmp_path, 42, comm="odd ) name", state="D", uid=4000000)
    who = identify(42, tmp_path)
    assert who is not None
    assert (who.user, who.command, who.unit) == ("uid 4000000", "[odd ) name]", "x.service")
    assert who.since == datetime.fromtimestamp(1700000000 + 1000, tz=timezone.utc).strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )
    assert "uninterruptible sleep" in describe(who)


def test_a_zombie_has_exited(tmp_path: Path) -> None:
    fake(tmp_path, 42, state="Z")
    assert identify(42, tmp_path) is None


def test_who_has_the_device_open(tmp_path: Path) -> None:
    (fake(tmp_path, 42) / "fd" / "7").symlink_to("/dev/nvidia1")
    (fake(tmp_path, 43) / "fd" / "7").symlink_to("/dev/nvidia10")
    assert device_openers(1, tmp_path) == [42]
    assert device_openers(0, tmp_path) == []
