"""A real SGLang with a real EAGLE-3 draft on the CPU instead of the double: a part of it dies, or it is not ours."""

from __future__ import annotations

import re
import time

import pytest
from expect import assert_serves, mode_of
from road import STATE, UNIT, Host, Road

pytestmark = [pytest.mark.engine, pytest.mark.full]

# Starts the release's server as root with what the unit started it with, and prints its pid.
BY_HAND = """
import json, os, subprocess
pid = int(subprocess.check_output(["systemctl", "show", "--property=MainPID", "--value", "{unit}"]))
words = open(f"/proc/{{pid}}/cmdline").read().split("\\0")[:-1]
known = dict(line.partition("=")[::2] for line in open(f"/proc/{{pid}}/environ").read().split("\\0"))
kept = {{name: known[name] for name in ("SGLANG_USE_CPU_ENGINE", "TORCHDYNAMO_DISABLE", "OMP_NUM_THREADS",
                                       "HF_HUB_OFFLINE") if name in known}}
subprocess.check_call(["systemctl", "stop", "{unit}"])
words = words[words.index("sglang.launch_server"):]
words = ["nohup", "/opt/sglang/releases/0.5.23/bin/python", "-m", *words]
log = open("/root/by-hand.log", "w")
print(subprocess.Popen(words, cwd="/root", env={{**os.environ, **kept}}, stdin=subprocess.DEVNULL, stdout=log,
                       stderr=log, start_new_session=True).pid)
"""


def processes_of(host: Host, root: int) -> dict[int, str]:
    """The process and all below it: pid to title."""
    rows = [line.split(None, 2) for line in host.sh("ps -eo pid=,ppid=,args=").splitlines()]
    found = {root}
    while more := {int(pid) for pid, parent, _ in rows if int(parent) in found} - found:
        found |= more
    return {int(pid): args for pid, _, args in rows if int(pid) in found}


def wait_for_health(host: Host, other_than: int, seconds: float = 240.0) -> None:
    """Until a server answers, and the unit runs another process than that pid (-1: any, or none)."""
    until = time.monotonic() + seconds
    while (seen := host.seen())["health"] != 200 or seen["pid"] == other_than:
        assert time.monotonic() < until, seen
        time.sleep(2)


@pytest.mark.kind("crash, real engine")
@pytest.mark.parametrize("inside", ["scheduler", "detokenizer"])
def test_a_process_of_the_server_is_killed(host: Host, road: Road, inside: str) -> None:
    """SIGKILL to a process inside a real server: verify.yml says so at once, and the next run is accepted again."""
    before = host.seen()
    titles = processes_of(host, before["pid"])
    victims = [pid for pid, title in titles.items() if title.startswith(f"sglang::{inside}")]
    assert len(victims) == 1, titles
    host.sh(f"kill -9 {victims[0]}")
    found = road.run("verify.yml")
    assert found.rc == 2, found.told()
    assert found.codes() == ["drift-found"], found.told()
    done = road.run(f"{before['mode']}.yml")
    assert done.rc == 0, done.told()
    assert host.seen()["pid"] != before["pid"]
    assert_serves(host, before["mode"])
    assert road.run("verify.yml").rc == 0


@pytest.mark.kind("crash, real engine")
def test_systemd_has_restarted_it(host: Host, road: Road) -> None:
    """A real detokenizer died and systemd has started the server again: named, and measured anew as it serves."""
    before = host.seen()
    host.sh("kill -9 $(pgrep -f ^sglang::detokenizer)")
    wait_for_health(host, before["pid"])
    found = road.run("verify.yml")
    assert found.rc == 2, found.told()
    assert "restarted since its gates passed" in found.last_words(), found.told()
    pid = host.seen()["pid"]
    done = road.run(f"{before['mode']}.yml")
    assert done.rc == 0, done.told()
    assert host.seen()["pid"] == pid
    assert_serves(host, before["mode"])
    assert road.run("verify.yml").rc == 0


@pytest.mark.kind("takeover, real engine")
def test_a_real_server_started_by_hand(host: Host, road: Road) -> None:
    """A real server that root started with nohup: named, and its whole process tree goes when a person says so."""
    mode = mode_of(host)
    bystander = int(
        host.sh(
            "systemd-run --quiet --collect --unit=bystander python3 -m http.server 30500;"
            " systemctl show --property=MainPID --value bystander"
        )
    )
    pid = int(host.tool("exec", host.name, "python3", "-c", BY_HAND.format(unit=UNIT)))
    wait_for_health(host, -1)
    tree = processes_of(host, pid)
    assert any(title.startswith("sglang::scheduler") for title in tree.values()), tree
    refused = road.run(f"{mode}.yml")
    assert (refused.rc, refused.codes(), refused.changed()) == (2, ["port-taken"], []), refused.told()
    said = refused.last_words()
    for word in (f"pid {pid} (user root)", "nohup", "in /root", "sglang.launch_server"):
        assert word in said, (word, said)
    allowed = re.search(r"-e (sglang_server_takeover=\d+:\d+)", said)
    assert allowed is not None, said
    assert processes_of(host, pid) == tree

    done = road.run(f"{mode}.yml", "-e", allowed.group(1))
    assert done.rc == 0, done.told()
    assert_serves(host, mode)
    left = [one for one in tree if host.sh(f"test -d /proc/{one} && echo yes", check=False)]
    assert left == []
    assert host.sh(f"test -d /proc/{bystander} && echo yes", check=False) == "yes"
    host.sh("systemctl stop bystander")
    assert "sglang.launch_server" in host.sh(f"cat {STATE}/before.json")
