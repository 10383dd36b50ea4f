"""Port and disk are not there for us."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from expect import OTHER, assert_failed, assert_serves, mode_of, problems
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
@pytest.mark.parametrize(
    ("size", "code"),
    [
        ("size=60m", "no-disk-space"),
        # Room for bytes and none for files: what df does not show before.
        pytest.param("size=400m,nr_inodes=12", "tree-copy-failed", marks=pytest.mark.full),
    ],
    ids=["before", "while it is copied"],
)
def test_no_room_for_the_deployment(host: Host, road: Road, size: str, code: str) -> None:
    """The disk is full when a deployment is to be built: refused with what is missing, the old server untouched."""
    before = host.seen()
    host.sh(f"mkdir -p /var/lib/full && mount -t tmpfs -o {size} none /var/lib/full")
    try:
        done = road.run("production.yml", "-e", '{"sglang_server_state_dir": "/var/lib/full"}',
                        "-e", '{"sglang_server_instance": "other", "sglang_server_port": 30088}',
                        "-e", '{"gpu_host_free_neighbours": ["sglang-default.service"]}')  # fmt: skip
        left = host.sh("ls /var/lib/full/other/lease.json /var/lib/full/other/current", check=False)
    finally:
        host.sh("umount /var/lib/full", check=False)
    assert done.rc == 2, done.told()
    assert done.codes()[0] == code, done.told()
    assert left == ""
    after = host.seen()
    assert after["pid"] == before["pid"]
    assert problems(after, before["mode"]) == []


@pytest.mark.kind("disk")
@pytest.mark.full
def test_no_room_to_install(host: Host, road: Road) -> None:
    """The disk is full while a release is installed: said, nothing half there is used; with room the run goes on."""
    before = host.seen()
    host.sh("mkdir -p /var/lib/full && mount -t tmpfs -o size=9m none /var/lib/full")
    words = ("-e", '{"sglang_install_prefix": "/var/lib/full", "sglang_install_min_free_mib": 1}')
    try:
        done = road.run(f"{before['mode']}.yml", *words)
        links = host.sh("ls /var/lib/full/releases", check=False)
        during = host.seen()
        host.sh("mount -o remount,size=400m /var/lib/full")
        again = road.run(f"{before['mode']}.yml", *words)
        then = host.seen()
        back = road.run(f"{before['mode']}.yml")
    finally:
        host.sh("umount -l /var/lib/full", check=False)
    assert done.rc == 2, done.told()
    assert done.codes() == ["disk-ran-full"], done.told()
    assert links == ""
    assert (during["pid"], problems(during, before["mode"])) == (before["pid"], [])
    assert (again.rc, back.rc) == (0, 0), again.told() + back.told()
    assert problems(then, before["mode"]) == []
    assert_serves(host, before["mode"])


@pytest.fixture
def small_disk(host: Host) -> Iterator[None]:
    """The state directory on a disk of its own, 100 MiB."""
    copied = f"cp -a {STATE}/. /var/lib/kept/"
    host.sh(f"mkdir -p /var/lib/kept && {copied} && mount -t tmpfs -o size=100m,mode=755 none {STATE}")
    host.sh(f"cp -a /var/lib/kept/. {STATE}/ && rm -rf /var/lib/kept")
    yield
    host.sh(f"rm -f {STATE}/fill; mkdir -p /var/lib/kept && {copied}; umount -l {STATE}; rm -rf {STATE}/*")
    host.sh(f"cp -a /var/lib/kept/. {STATE}/ && rm -rf /var/lib/kept")


@pytest.mark.kind("disk")
@pytest.mark.full
def test_no_room_in_the_middle(host: Host, road: Road, small_disk: None) -> None:
    """The disk fills up while the old server drains: stopped, said as it is, and with room the next run converges."""
    mode = OTHER[mode_of(host)]
    host.gpu(free_ms=3000)  # so that there is time between the stop and the start
    run = road.start(f"{mode}.yml")
    run.wait_for("Wait until it has drained and ended")
    host.sh(f"dd if=/dev/zero of={STATE}/fill bs=64k", check=False)
    done = run.wait()
    host.sh(f"rm {STATE}/fill")
    assert_failed(done, "host-refused", "No space left", "is stopped and not enabled at boot")
    assert host.seen()["boot"] == "disabled"
    again = road.run(f"{mode}.yml")
    assert again.rc == 0, again.told()
    assert_serves(host, mode)


@pytest.mark.kind("disk")
@pytest.mark.full
def test_read_only_in_the_middle(host: Host, road: Road) -> None:
    """The state directory turns read-only while the old server drains: stopped, said as it is; a next run converges."""
    mode = OTHER[mode_of(host)]
    host.gpu(free_ms=3000)  # so that there is time between the stop and the start
    run = road.start(f"{mode}.yml")
    run.wait_for("Wait until it has drained and ended")
    host.sh(f"mount --bind {STATE} {STATE} && mount -o remount,bind,ro {STATE}")
    done = run.wait()
    host.sh(f"umount {STATE}")
    assert_failed(done, "host-refused", "Read-only file system", "is stopped and not enabled at boot")
    again = road.run(f"{mode}.yml")
    assert again.rc == 0, again.told()
    assert_serves(host, mode)
