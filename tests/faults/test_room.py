"""Port and disk are not there for us."""

from __future__ import annotations

import pytest
from expect import OTHER, assert_serves, mode_of, problems
from road import STATE, Host, Road


@pytest.mark.kind("port")
@pytest.mark.parametrize(
    "answer", [200, pytest.param(404, marks=pytest.mark.full), pytest.param(0, marks=pytest.mark.full)]
)
def test_a_stranger_on_the_port(host: Host, road: Road, answer: int) -> None:
    """A stranger listens on the port that is asked for (answers 200, 404, nothing): refused, nothing touched."""
    before = host.seen()
    speak = f"c.sendall(b'HTTP/1.1 {answer} X\\r\\nContent-Length: 0\\r\\n\\r\\n')" if answer else "pass"
    host.sh(
        'systemd-run --unit stranger --collect python3 -c "'
        "import socket\ns = socket.create_server(('127.0.0.1', 30077))\n"
        f'while True:\n c, _ = s.accept()\n {speak}\n"'
    )
    try:
        done = road.run(f"{before['mode']}.yml", "-e", '{"sglang_server_port": 30077}')
    finally:
        host.sh("systemctl stop stranger", check=False)
    assert done.rc == 2, done.told()
    assert done.codes()[0] == "port-taken", done.told()
    after = host.seen()
    assert after["pid"] == before["pid"]
    assert problems(after, before["mode"]) == []


@pytest.mark.kind("disk")
def test_no_room_for_the_deployment(host: Host, road: Road) -> None:
    """The disk is full when a deployment is to be built: refused with the figures, the old server untouched."""
    before = host.seen()
    host.sh("mkdir -p /var/lib/full && mount -t tmpfs -o size=60m none /var/lib/full")
    try:
        done = road.run("production.yml", "-e", '{"sglang_server_state_dir": "/var/lib/full"}',
                        "-e", '{"sglang_server_instance": "other", "sglang_server_port": 30088}')  # fmt: skip
    finally:
        host.sh("umount /var/lib/full", check=False)
    assert done.rc == 2, done.told()
    assert done.codes()[0] == "no-disk-space", done.told()
    assert host.seen()["pid"] == before["pid"]


@pytest.mark.kind("disk")
@pytest.mark.full
def test_read_only_in_the_middle(host: Host, road: Road) -> None:
    """The state directory turns read-only while the old server drains: said as it is, and the next run converges."""
    before = mode_of(host)
    mode = OTHER[before]
    run = road.start(f"{mode}.yml")
    run.wait_for("Wait until it has drained and ended")
    host.sh(f"mount --bind {STATE} {STATE} && mount -o remount,bind,ro {STATE}")
    done = run.wait()
    host.sh(f"umount {STATE}")
    assert done.rc == 2, done.told()
    assert "host-refused" in done.codes(), (done.codes(), done.told())
    again = road.run(f"{mode}.yml")
    assert again.rc == 0, again.told()
    assert_serves(host, mode)
