"""Stage 6: what the sandbox leaves open, and what it blocked."""

from __future__ import annotations

import re
from typing import Any

from record import RUN, local, ssh

from .core import Context, Outcome, Step

# A copy of the unit without the filter, that logs what the filter would have blocked.
DROP_IN = r"""
[Service]
SystemCallFilter=
SystemCallLog=~@system-service pidfd_open pidfd_getfd
"""


def exposure(text: str) -> float | None:
    found = re.search(r"exposure level for \S+: ([0-9.]+)", text)
    return float(found[1]) if found else None


def blocked(kernel_log: str) -> dict[str, int]:
    """System calls of seccomp's audit lines (type 1326), by number, of processes named python or sglang."""
    counts: dict[str, int] = {}
    for line in kernel_log.splitlines():
        if "type=1326" in line and re.search(r'comm="(python|sglang|pt_)', line):
            number = re.search(r"syscall=(\d+)", line)
            if number:
                counts[number[1]] = counts.get(number[1], 0) + 1
    return counts


def works(journal: str) -> dict[str, bool]:
    """What the server's own log shows to have worked in the sandbox."""
    return {
        "cuda": "Load weight end" in journal,
        "graph_capture": "CUDA graph end" in journal,
        "serving": "fired up and ready to roll" in journal,
        "no_permission_error": not re.search(r"Operation not permitted|EPERM|Bad system call", journal),
    }


def work(context: Context) -> Outcome:
    report = ssh("systemd-analyze security --no-pager sglang-default.service", 30)
    journal = ssh("journalctl --no-pager -o cat -u sglang-default", 30)
    refused = [
        line.strip()[:240]
        for line in journal.splitlines()
        if re.search(r"not permitted|EPERM|Bad system call|Permission denied", line)
    ]
    kernel = {
        "audit": local("cat /proc/sys/kernel/seccomp/actions_logged; dmesg 2>/dev/null | grep -c type=1326"),
        "lines": local("dmesg 2>/dev/null | grep type=1326 | tail -20"),
    }
    (RUN / "hardening.security.txt").write_text(report + "\n")
    facts: dict[str, Any] = {
        "exposure": exposure(report),
        "works": works(journal),
        "refused_in_journal": refused[:20],
        "kernel": kernel,
    }
    score = facts["exposure"]
    return Outcome(None if score is not None and score <= 2.0 else f"exposure {score}", facts)


def would_block(context: Context) -> Outcome:
    """One start without the filter that logs what is outside it; an empty list is the proof that nothing needs more."""
    unit = "sglang-w-none.service"
    folder = f"/etc/systemd/system/{unit}.d"
    ssh(
        f"mkdir -p {folder} && cat > {folder}/look.conf <<'AERIE'\n{DROP_IN}\nAERIE\nsystemctl daemon-reload",
        20,
    )
    from record import on_host

    before = local("dmesg 2>/dev/null | wc -l")
    started = on_host(["restart", unit], 160)
    log = local(f"dmesg 2>/dev/null | tail -n +{int(before or 0) + 1} | grep type=1326")
    ssh(f"rm -r {folder}; systemctl daemon-reload", 20)
    audit = local(
        "cat /proc/sys/kernel/seccomp/actions_avail; zcat /proc/config.gz 2>/dev/null | grep -w CONFIG_AUDIT"
    )
    return Outcome(
        None if started.get("ready_s") else f"it did not start: {started}",
        {"started": started, "outside_the_filter": blocked(log), "kernel": audit, "lines": log[-2000:]},
    )


STEPS = (
    Step("hardening", 10, "exposure, what works in the sandbox, what it refused", work, ("production",)),
    Step(
        "would-block",
        75,
        "system calls outside the filter, logged by a start without it",
        would_block,
        ("wiring",),
    ),
)
