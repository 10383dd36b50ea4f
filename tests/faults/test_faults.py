"""Faults on the road, one test each: nothing lost, no half state, the right message, and the next run converges."""

from __future__ import annotations

import time

import pytest
from road import STATE, UNIT, Host, Outcome, Road, problems, unsafe_at_boot

# The way there and back: whatever serves, the other mode is asked for.
OTHER = {"production": "debug", "debug": "production"}
# For runs that are kept waiting until something else has been done to them.
PATIENT = ("-e", '{"sglang_server_start_timeout": 600}')


def mode_of(host: Host) -> str:
    return str(host.seen()["mode"])


def assert_serves(host: Host, mode: str) -> None:
    seen = host.seen()
    assert problems(seen, mode) == []


def assert_failed(done: Outcome, code: str, *words: str) -> None:
    """The run failed with that error, and its last words say what, how the host is, and what to do."""
    assert done.rc == 2, done.told()
    assert code in done.codes(), (done.codes(), done.told())
    said = done.last_words()
    for word in (f"[{code}]", "Failed step: ", "The host now: ", "Next: ", *words):
        assert word in said, (word, said)


# -- kill ----------------------------------------------------------------------------------------------------


@pytest.mark.kind("kill")
def test_killed_in_the_middle_of_the_start(host: Host, road: Road) -> None:
    """ansible-playbook gets SIGKILL while the new server starts; the next run takes over and ends the transition."""
    mode = OTHER[mode_of(host)]
    run = road.start(f"{mode}.yml")
    run.wait_for("Wait until it is ready")
    run.kill()
    seen = host.seen()
    assert unsafe_at_boot(seen) == ""
    assert seen["lease"]["controller"]["pid"] == run.process.pid
    again = road.run(f"{mode}.yml")
    assert again.rc == 0, again.told()
    assert "the run that held the lease is dead" in again.output
    assert_serves(host, mode)


# -- lease ---------------------------------------------------------------------------------------------------


@pytest.mark.kind("lease")
def test_two_runs_at_once(host: Host, road: Road) -> None:
    """A second run while one is at work fails at once, names the owner, and harms nothing."""
    mode = OTHER[mode_of(host)]
    host.misbehave(only=mode, health=503)  # so that the first one waits
    first = road.start(f"{mode}.yml", *PATIENT)
    first.wait_for("Wait until it is ready")
    second = road.run(f"{mode}.yml")
    assert second.rc == 2, second.told()
    assert second.codes()[0] == "lease-held", second.told()
    assert f"pid {first.process.pid}, since " in second.output
    assert "sglang_server_lease_override=" in second.output
    host.misbehave()
    done = first.wait()
    assert done.rc == 0, done.told()
    assert_serves(host, mode)


@pytest.mark.kind("lease")
@pytest.mark.full
def test_another_controllers_dead_run(host: Host, road: Road) -> None:
    """The lease of another controller's run is respected until a person overrides it by its token."""
    mode = OTHER[mode_of(host)]
    run = road.start(f"{mode}.yml")
    run.wait_for("Wait until it is ready")
    run.kill()
    host.sh(f'sed -i \'s/"host": "[^"]*"/"host": "elsewhere"/\' {STATE}/lease.json')
    refused = road.run(f"{mode}.yml")
    assert refused.codes()[0] == "lease-held", refused.told()
    token = host.seen()["lease"]["token"]
    done = road.run(f"{mode}.yml", "-e", f"sglang_server_lease_override={token}")
    assert done.rc == 0, done.told()
    assert_serves(host, mode)


@pytest.mark.kind("lease")
@pytest.mark.full
def test_a_run_that_lost_its_lease_changes_nothing_more(host: Host, road: Road) -> None:
    """A run whose lease was taken over stops at its next step and leaves the instance to the other one."""
    before = mode_of(host)
    mode = OTHER[before]
    host.misbehave(only=mode, health=503)
    run = road.start(f"{mode}.yml", *PATIENT)
    run.wait_for("Wait until it is ready")
    host.sh(f'sed -i \'s/"token": "[^"]*"/"token": "another"/\' {STATE}/lease.json')
    done = run.wait()
    assert done.rc == 2, done.told()
    assert done.codes()[0] == "lease-lost", done.told()
    assert "another" in host.seen()["lease"]["token"]
    assert host.seen()["active"] == "active"  # not even stopped
    host.sh(f"rm {STATE}/lease.json")
    host.misbehave()
    again = road.run(f"{mode}.yml")
    assert again.rc == 0, again.told()
    assert_serves(host, mode)


# -- cut -----------------------------------------------------------------------------------------------------


@pytest.mark.kind("cut")
@pytest.mark.parametrize(
    "task",
    [
        "Wait until it is ready",
        pytest.param("Wait until it has drained and ended", marks=pytest.mark.full),
        pytest.param("Measure the accept length and gate it", marks=pytest.mark.full),
    ],
)
def test_cut_and_healed(host: Host, road: Road, task: str) -> None:
    """The network is unplugged for some seconds during a wait; the run goes on when it is back."""
    mode = OTHER[mode_of(host)]
    run = road.start(f"{mode}.yml")
    run.wait_for(task)
    host.tool("cut", host.name)
    time.sleep(8)
    host.tool("heal", host.name)
    done = run.wait()
    assert done.rc == 0, done.told()
    assert_serves(host, mode)


@pytest.mark.kind("cut")
@pytest.mark.full
def test_rebooted_in_the_middle(host: Host, road: Road) -> None:
    """The host reboots while the new server starts: nothing half-made comes up, the next run converges."""
    mode = OTHER[mode_of(host)]
    host.misbehave(only=mode, health=503)
    run = road.start(f"{mode}.yml", *PATIENT)
    run.wait_for("Wait until it is ready")
    host.sh("systemctl reboot", check=False)
    run.kill()
    until = time.monotonic() + 60
    while host.sh("systemctl is-system-running", check=False) not in ("running", "degraded"):
        assert time.monotonic() < until
        time.sleep(1)
    assert host.seen()["active"] == "inactive"
    host.misbehave()
    done = road.run(f"{mode}.yml")
    assert done.rc == 0, done.told()
    assert_serves(host, mode)


# -- crash ---------------------------------------------------------------------------------------------------


@pytest.mark.kind("crash")
@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ({"at_load": "crash"}, "start-failed", "crashes while it loads weights"),
        pytest.param({"at_graphs": "crash"}, "start-failed", "mem_fraction_static", marks=pytest.mark.full),
        pytest.param({"at_load": "hang"}, "start-timeout", "journalctl", marks=pytest.mark.full),
        pytest.param({"health": 503}, "start-timeout", "journalctl", marks=pytest.mark.full),
    ],
    ids=["load", "graphs", "hangs", "unhealthy"],
)
def test_the_new_server_does_not_come_up(
    host: Host, road: Road, how: dict[str, str], code: str, words: str
) -> None:
    """The new server crashes or hangs at its start: the old one comes back, the run fails with the journal's words."""
    before = mode_of(host)
    host.misbehave(only=OTHER[before], **how)
    done = road.run(f"{OTHER[before]}.yml")
    assert_failed(done, code, words, f"again\n({before}, SGLang")
    assert_serves(host, before)


@pytest.mark.kind("crash")
@pytest.mark.full
def test_the_way_back_fails_too(host: Host, road: Road) -> None:
    """New and old server both crash: stopped, both failures said, nothing enabled; the next run converges."""
    before = mode_of(host)
    host.misbehave(at_load="crash")
    done = road.run(f"{OTHER[before]}.yml")
    assert_failed(
        done, "start-failed", "failed too, at: Wait until it is ready", "is stopped and not enabled at boot"
    )
    seen = host.seen()
    assert (seen["active"], seen["boot"], seen["state"]["phase"]) == ("inactive", "disabled", "failed")
    host.misbehave()
    again = road.run(f"{before}.yml")
    assert again.rc == 0, again.told()
    assert_serves(host, before)


# -- gate ----------------------------------------------------------------------------------------------------


@pytest.mark.kind("gate")
@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"accept": 0}, "accept-length-below-floor"),
        pytest.param({"generate": "garbage"}, "accept-answer-loops", marks=pytest.mark.full),
        pytest.param({"generate": "empty"}, "accept-no-answer", marks=pytest.mark.full),
        pytest.param({"generate": "hang"}, "accept-request-timeout", marks=pytest.mark.full),
        pytest.param({"generate": 500}, "accept-server-error", marks=pytest.mark.full),
    ],
    ids=["collapses", "garbage", "empty", "hangs", "error"],
)
def test_the_gates_refuse_it(host: Host, road: Road, how: dict[str, object], code: str) -> None:
    """The new server is healthy, but its answers are not: the old one comes back, the figures are in the message."""
    before = mode_of(host)
    host.misbehave(only=OTHER[before], **how)
    done = road.run(f"{OTHER[before]}.yml")
    assert_failed(done, code, f"again\n({before}, SGLang")
    assert_serves(host, before)


# -- port ----------------------------------------------------------------------------------------------------


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


# -- disk ----------------------------------------------------------------------------------------------------


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


# -- tamper --------------------------------------------------------------------------------------------------


@pytest.mark.kind("tamper")
def test_the_unit_was_edited(host: Host, road: Road) -> None:
    """Somebody edited the unit file: the run names it, puts it back, restarts once, and is accepted."""
    mode = mode_of(host)
    host.sh(f"sed -i 's/^RestartSec=10$/RestartSec=3/' /etc/systemd/system/{UNIT} && systemctl daemon-reload")
    done = road.run(f"{mode}.yml")
    assert done.rc == 0, done.told()
    assert f"unit file /etc/systemd/system/{UNIT} was edited" in done.output
    assert "RestartSec=10" in host.sh(f"cat /etc/systemd/system/{UNIT}")
    assert_serves(host, mode)


@pytest.mark.kind("tamper")
@pytest.mark.full
def test_half_made_deployment_of_a_dead_run(host: Host, road: Road) -> None:
    """A dead run left half a deployment: the next one removes it and builds its own."""
    mode = OTHER[mode_of(host)]
    seen = host.seen()
    for digest in set(seen["deployments"]) - {seen["current"]}:
        host.sh(f"mv {STATE}/deployments/{digest} {STATE}/deployments/.building-{digest}")
    host.sh(f"mkdir -p {STATE}/deployments/.building-0123456789abcdef/site")
    done = road.run(f"{mode}.yml")
    assert done.rc == 0, done.told()
    assert not [name for name in host.seen()["deployments"] if name.startswith(".building")]
    assert_serves(host, mode)


@pytest.mark.kind("tamper")
@pytest.mark.full
def test_the_previous_deployment_is_gone(host: Host, road: Road) -> None:
    """What was to be gone back to is not there any more: stopped, and the message says why."""
    before = mode_of(host)
    host.misbehave(only=OTHER[before], at_load="crash")
    run = road.start(f"{OTHER[before]}.yml")
    run.wait_for("Wait until it is ready")
    seen = host.seen()
    for digest in {one["digest"] for one in seen["state"]["history"]} - {seen["current"]}:
        host.sh(f"rm -rf {STATE}/deployments/{digest}")
    done = run.wait()
    assert_failed(done, "start-failed", "is stopped and not enabled at boot", "its directory is gone")
    host.misbehave()
    again = road.run(f"{before}.yml")
    assert again.rc == 0, again.told()
    assert_serves(host, before)


@pytest.mark.kind("tamper")
@pytest.mark.full
def test_stopped_by_hand(host: Host, road: Road) -> None:
    """Somebody stopped the unit: the same mode starts it again."""
    mode = mode_of(host)
    host.sh(f"systemctl stop {UNIT}")
    done = road.run(f"{mode}.yml")
    assert done.rc == 0, done.told()
    assert_serves(host, mode)


@pytest.mark.kind("tamper")
@pytest.mark.full
def test_start_limit_hit(host: Host, road: Road) -> None:
    """The server crashed until systemd gave up: the next run starts it all the same."""
    mode = mode_of(host)
    host.sh(
        f"for n in 1 2 3 4 5; do systemctl restart {UNIT}; sleep 0.2; done; systemctl is-failed {UNIT}",
        check=False,
    )
    done = road.run(f"{mode}.yml")
    assert done.rc == 0, done.told()
    assert_serves(host, mode)


@pytest.mark.kind("rollback")
@pytest.mark.full
def test_rollback_there_is_no_second_one(host: Host, road: Road) -> None:
    """rollback.yml goes to the deployment accepted before; a second call changes nothing."""
    mode = OTHER[mode_of(host)]
    done = road.run(f"{mode}.yml")
    assert done.rc == 0, done.told()
    back = road.run("rollback.yml")
    assert back.rc == 0, back.told()
    assert_serves(host, OTHER[mode])
    pid = host.seen()["pid"]
    again = road.run("rollback.yml")
    assert again.rc == 0, again.told()
    assert again.changed() == []
    assert host.seen()["pid"] == pid
