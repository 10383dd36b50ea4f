"""Which lines of a unit need a restart."""

from __future__ import annotations

import pytest
from ansible.module_utils.aerie.instance.unit_lines import essential, with_stop_timeout

UNIT = """# Written by Aerie.
[Unit]
Description=a server

[Service]
; a comment
ExecStart=/bin/python \\
    --flag 1 \\
    --other
TimeoutStopSec=195
Restart=on-failure
LimitNOFILE=1
"""


def changed(old: str, new: str) -> bool:
    return essential(UNIT.replace(old, new)) != essential(UNIT)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("=195", "=675"),
        ("# Written by Aerie.", "# Written by somebody else."),
        ("\n[Service]", "[Service]"),
        ("Restart=on-failure", "Restart=no\nRestartSec=5"),
        ("a server", "a very good \\\n    server"),
        ("Restart=on-failure\n", "Restart=on-failure\nKillSignal=SIGINT\n"),
    ],
)
def test_what_needs_no_restart(old: str, new: str) -> None:
    assert not changed(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--flag 1", "--flag 2"),
        ("    --other", "    --TimeoutStopSec=1"),
        ("LimitNOFILE=1", "LimitNOFILE=2"),
        ("LimitNOFILE=1", "Nice=5"),
        ("LimitNOFILE=1", "RuntimeMaxSec=5"),
        ("LimitNOFILE=1", "MemoryMax=1G"),
        ("LimitNOFILE=1", "ExecStopPost=/bin/true"),
        ("LimitNOFILE=1", "SomethingNew=1"),
    ],
)
def test_what_does(old: str, new: str) -> None:
    assert changed(old, new)


def test_another_time_to_stop() -> None:
    assert with_stop_timeout(UNIT, 90) == UNIT.replace("=195", "=90")
    twice = UNIT + "TimeoutStopSec=5\n"
    assert with_stop_timeout(twice, 90) == twice
    assert with_stop_timeout("[Service]\n", 90) == "[Service]\n"
