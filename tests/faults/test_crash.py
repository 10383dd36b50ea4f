"""The new server does not come up, or answers what no gate lets through; and the way back."""

from __future__ import annotations

import time
from typing import Any

import pytest
from expect import OTHER, assert_failed, assert_serves, mode_of
from road import Host, Road


@pytest.mark.kind("crash")
@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ({"at_load": "crash"}, "start-failed", "crashes while it loads weights"),
        pytest.param({"at_graphs": "crash"}, "start-failed", "mem_fraction_static", marks=pytest.mark.full),
        pytest.param({"at_load": "hang"}, "start-timeout", "journalctl", marks=pytest.mark.full),
        pytest.param({"health": 503}, "start-timeout", "journalctl", marks=pytest.mark.full),
        # It says that it has fired up and answers the gates' requests, but nobody gets an answer from /health.
        pytest.param({"health_s": 60}, "start-timeout", "journalctl", marks=pytest.mark.full),
    ],
    ids=["load", "graphs", "hangs", "unhealthy", "deaf"],
)
def test_the_new_server_does_not_come_up(
    host: Host, road: Road, how: dict[str, Any], code: str, words: str
) -> None:
    """The new server crashes or hangs at its start: the old one comes back, the run fails with the journal's words."""
    before = mode_of(host)
    host.misbehave(only=OTHER[before], **how)
    done = road.run(f"{OTHER[before]}.yml", "-e", '{"sglang_server_start_timeout": 12}')
    assert_failed(done, code, words, f"again\n({before}, SGLang")
    assert_serves(host, before)


@pytest.mark.kind("crash")
@pytest.mark.full
def test_it_dies_again_and_again_after_it_was_ready(host: Host, road: Road) -> None:
    """The new server answers, is dead a moment later, and loops in restarts: the old one comes back."""
    before = mode_of(host)
    host.misbehave(only=OTHER[before], after_ready=0.3)
    done = road.run(f"{OTHER[before]}.yml")
    assert done.rc == 2, done.told()
    for word in ("Failed step: ", "The host now: ", "Next: ", f"again\n({before}, SGLang"):
        assert word in done.last_words(), (word, done.last_words())
    assert_serves(host, before)


@pytest.mark.kind("crash")
def test_it_ends_by_itself_as_if_it_were_asked_to(host: Host, road: Road) -> None:
    """The running server ends with status 0, as SGLang's launcher may after a child: started again, measured anew."""
    before = host.seen()
    host.sh(f"kill -TERM {before['pid']}")
    until = time.monotonic() + 60
    while (seen := host.seen())["pid"] in (0, before["pid"]) or seen["health"] != 200:
        assert time.monotonic() < until, seen
        time.sleep(1)
    found = road.run("verify.yml")
    assert "restarted since its gates passed, 1 times by systemd" in found.last_words(), found.told()
    done = road.run(f"{before['mode']}.yml")
    assert done.rc == 0, done.told()
    assert host.seen()["pid"] == seen["pid"], "it was restarted once more"
    assert_serves(host, before["mode"])
    verified, again = road.run("verify.yml"), road.run(f"{before['mode']}.yml")
    assert (verified.rc, again.rc, again.changed()) == (0, 0, []), verified.told() + again.told()


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


@pytest.mark.kind("crash")
@pytest.mark.full
def test_the_launcher_stays_and_nothing_answers(host: Host, road: Road) -> None:
    """The server's inside is dead, as after a killed detokenizer (simulated), its launcher stays: named, restarted."""
    before = host.seen()
    host.misbehave(pid=before["pid"], health=503, generate="hang")
    found = road.run("verify.yml")
    assert found.rc == 2, found.told()
    assert "HTTP 503" in found.last_words(), found.told()
    done = road.run(f"{before['mode']}.yml")
    assert done.rc == 0, done.told()
    assert host.seen()["pid"] != before["pid"]
    assert_serves(host, before["mode"])


@pytest.mark.kind("gate")
@pytest.mark.full
@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"accept": 0}, "accept-length-below-floor"),
        ({"generate": "garbage"}, "accept-output-degenerate"),
        ({"generate": "empty"}, "accept-no-answer"),
        ({"generate": "hang"}, "accept-generation-timeout"),
        ({"generate": 500}, "accept-http-status"),
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
