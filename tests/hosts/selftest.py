"""The test-host tool against this machine: boots real hosts. Needs root; about a minute once the image is there.

    pytest tests/hosts/selftest.py

Works in a checkout of its own under .cache/, so that it also shows that two checkouts do not collide and leaves the
hosts of this one alone.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from testhosts import cgroups, image
from testhosts.layout import Layout

ROOT = HERE.parents[1]
COPY = ROOT / ".cache" / "hosts-selftest"
LAYOUT = Layout(COPY)
TOOL = COPY / "tests" / "hosts" / "hosts"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="test hosts need root")


def hosts(*arguments: str, rc: int = 0) -> str:
    done = subprocess.run([str(TOOL), *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == rc, (
        f"hosts {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
    )
    return done.stdout if rc == 0 else done.stderr


def ssh(name: str, command: str, rc: int = 0, seconds: int = 5) -> str:
    base = ["ssh", "-F", str(LAYOUT.ssh_config), "-o", "BatchMode=yes", "-o", f"ConnectTimeout={seconds}"]
    done = subprocess.run([*base, name, command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == rc, f"{done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


def left_behind() -> dict[str, list[str]]:
    """What the checkout has on the machine outside of its own folder."""
    links = json.loads(subprocess.check_output(["ip", "-j", "link", "show"]))
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_text()
            except OSError:
                continue
            if str(COPY) in command and "pytest" not in command:
                processes.append(f"{entry.name} {command!r}")
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    groups = [str(point / LAYOUT.cgroup) for point in cgroups.hierarchies().all()]
    return {
        "links": [link["ifname"] for link in links if link["ifname"].startswith(LAYOUT.bridge)],
        "processes": processes,
        "mounts": [line for line in mounts if str(COPY) in line],
        "groups": [group for group in groups if Path(group).exists()],
        "hosts": [entry.name for entry in LAYOUT.hosts.iterdir()] if LAYOUT.hosts.exists() else [],
        "half": [str(path) for path in LAYOUT.state.glob("*/.*")],
    }


NOTHING: dict[str, list[str]] = {
    name: [] for name in ("links", "processes", "mounts", "groups", "hosts", "half")
}


def assert_nothing_left() -> None:
    """Within 3 s: the supervisor of a run that was killed in its first moments ends by itself."""
    deadline = time.monotonic() + 3
    while left_behind() != NOTHING and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left_behind() == NOTHING


@pytest.fixture(scope="module", autouse=True)
def checkout() -> Iterator[None]:
    image.ensure(Layout(ROOT), "bookworm")
    if TOOL.exists():
        hosts("clean", "--all")
    shutil.rmtree(COPY, ignore_errors=True)
    shutil.copytree(HERE, TOOL.parent, ignore=shutil.ignore_patterns("__pycache__"))
    LAYOUT.make()
    key = image.image_key("bookworm")
    (LAYOUT.images / key).symlink_to(Layout(ROOT).images / key)
    yield
    hosts("clean", "--all")
    shutil.rmtree(COPY)


@pytest.fixture
def host() -> Iterator[str]:
    hosts("up", "one", "--bind", f"{HERE}:/mnt/hosts:ro")
    yield "one"
    hosts("down", "one")
    assert_nothing_left()


def wait_for(what: str, condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.1)


def test_a_host_is_a_host(host: str) -> None:
    assert hosts("exec", host, "systemctl", "is-system-running", "--wait").strip() == "running"
    assert ssh(host, "hostname; id -un; cat /sys/class/net/eth0/mtu").split() == [host, "root", "1400"]
    assert "cli.py" in ssh(host, "ls /mnt/hosts/testhosts")
    ssh(host, "touch /mnt/hosts/x", rc=1)
    ssh(host, "sysctl -q -w vm.max_map_count=99999", rc=1)
    ssh(host, "sysctl -q -w net.core.somaxconn=4000")
    ssh(host, "echo secret > /root/c; systemd-run --wait --pipe -q -p LoadCredential=k:/root/c true")
    ssh(host, "systemd-run --wait --pipe -q -p ProtectSystem=strict touch /etc/x", rc=1)
    hosts("exec", host, "sh", "-c", "exit 7", rc=7)
    assert hosts("up", host) == hosts("ip", host)
    [listed] = json.loads(hosts("list", "--json"))
    assert (listed["name"], listed["state"], listed["suite"]) == (host, "running", "bookworm")
    assert Path(f"/proc/{listed['pid']}").exists()


def test_a_reboot_comes_back(host: str) -> None:
    before = ssh(host, "cat /proc/sys/kernel/random/boot_id; touch /var/lib/stays")
    subprocess.run(["ssh", "-F", str(LAYOUT.ssh_config), host, "systemctl reboot"], check=False, timeout=20)

    def is_back() -> bool:
        base = ["ssh", "-F", str(LAYOUT.ssh_config), "-o", "ConnectTimeout=1", host]
        done = subprocess.run(
            [*base, "cat /proc/sys/kernel/random/boot_id"], capture_output=True, text=True, check=False
        )
        return done.returncode == 0 and done.stdout.strip() != before

    wait_for("another boot id", is_back)
    ssh(host, "test -e /var/lib/stays")


def test_a_host_that_is_off_boots_from_its_own_disk(host: str) -> None:
    ssh(host, "touch /var/lib/stays")
    hosts("exec", host, "systemctl", "poweroff")
    wait_for("off", lambda: json.loads(hosts("list", "--json"))[0]["state"] == "off")
    assert "is off" in hosts("exec", host, "true", rc=1)
    hosts("up", host)
    ssh(host, "test -e /var/lib/stays")


def test_cut_and_heal(host: str) -> None:
    hosts("cut", host)
    ssh(host, "true", rc=255, seconds=1)
    hosts("exec", host, "true")
    hosts("heal", host)
    ssh(host, "true")


def test_hybrid_control_groups_limit_memory() -> None:
    if "hybrid" not in cgroups.modes(cgroups.hierarchies()):
        pytest.skip("this machine has cgroup2 alone")
    hosts("up", "old", "--cgroups", "hybrid")
    limit = "systemd-run --wait --pipe -q -p MemoryMax=64M -p MemorySwapMax=0 python3 -c"
    ssh("old", f"{limit} 'bytearray(1 << 20)'")
    ssh("old", f"! {limit} 'bytearray(200 << 20)'")
    hosts("down", "old")
    assert_nothing_left()


def test_snapshot_gives_the_disk_and_not_the_identity() -> None:
    hosts("up", "origin")
    identity = "cat /etc/machine-id /etc/ssh/ssh_host_ed25519_key.pub"
    first = ssh("origin", f"{identity}; mkdir /var/lib/kept; rm /etc/os-release")
    hosts("snapshot", "origin", "frozen")
    assert "origin" not in hosts("list")
    hosts("up", "a", "--from", "frozen")
    hosts("up", "b", "--from", "frozen")
    # Renaming a folder of a lower layer works, as on a plain disk.
    second = ssh("a", f"{identity}; mv /var/lib/kept /var/lib/moved; test ! -e /etc/os-release")
    third = ssh("b", f"{identity}; test -d /var/lib/kept")
    lines = [*first.splitlines(), *second.splitlines(), *third.splitlines()]
    assert len(set(lines)) == 6
    assert len(ssh("a", "journalctl --list-boots --no-pager -q | grep -v IDX").splitlines()) == 1
    assert "in use" in hosts("forget", "frozen", rc=1)
    hosts("snapshot", "a", "second")
    hosts("up", "c", "--from", "second")
    ssh("c", "test -d /var/lib/moved && test ! -e /var/lib/kept && test ! -e /etc/os-release")
    for name in ("b", "c"):
        hosts("down", name)
    hosts("forget", "second")
    hosts("forget", "frozen")
    assert_nothing_left()


def test_three_at_once() -> None:
    started = [
        subprocess.Popen([str(TOOL), "up", f"h{number}"], stdout=subprocess.PIPE) for number in range(3)
    ]
    addresses = {process.communicate(timeout=60)[0] for process in started}
    assert [process.returncode for process in started] == [0, 0, 0]
    assert len(addresses) == 3
    hosts("clean")
    assert_nothing_left()


def begun() -> bool:
    return (LAYOUT.hosts / "gone").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("delay", [0, 0.1, 0.3, 0.6])
def test_interrupted_up_leaves_nothing(number: signal.Signals, delay: float) -> None:
    with subprocess.Popen([str(TOOL), "up", "gone", "--wait", "30"], stderr=subprocess.DEVNULL) as process:
        wait_for("the record of the host", begun)
        time.sleep(delay)
        process.send_signal(number)
        code = process.wait(timeout=30)
    if code == 0:  # it was quicker than the signal
        hosts("down", "gone")
    else:
        assert code == 128 + number
    assert_nothing_left()


@pytest.mark.parametrize("delay", [0, 0.1, 0.3, 0.6])
def test_killed_up_is_swept_by_the_next_command(delay: float) -> None:
    with subprocess.Popen([str(TOOL), "up", "gone", "--wait", "30"], stderr=subprocess.DEVNULL) as process:
        wait_for("the record of the host", begun)
        time.sleep(delay)
        process.kill()
        code = process.wait(timeout=30)
    if code == 0:
        hosts("down", "gone")
    time.sleep(0.5)
    assert "gone" not in hosts("list")
    assert_nothing_left()


def test_killed_supervisor_takes_its_host_along() -> None:
    hosts("up", "gone")
    supervisor = json.loads((LAYOUT.hosts / "gone" / "supervisor.json").read_text())
    os.kill(supervisor["pid"], signal.SIGKILL)
    assert "gone" not in hosts("list")
    assert_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_interrupted_image_build_leaves_nothing(number: signal.Signals) -> None:
    with subprocess.Popen([str(TOOL), "image", "trixie"], stderr=subprocess.DEVNULL) as process:
        wait_for("the build", lambda: any(LAYOUT.images.glob(".building-*/root/var")), seconds=60)
        time.sleep(3)
        process.send_signal(number)
        process.wait(timeout=30)
    hosts("list")
    assert_nothing_left()


def test_absent_hosts() -> None:
    hosts("down", "nobody")
    for command in ("exec", "cut", "heal", "ip"):
        arguments = [command, "nobody", "true"] if command == "exec" else [command, "nobody"]
        assert "there is no host nobody" in hosts(*arguments, rc=1)
    assert "there is no snapshot" in hosts("up", "x", "--from", "nothing", rc=1)
    assert "does not exist" in hosts("up", "x", "--bind", "/nonexistent:/x", rc=1)
    assert_nothing_left()
