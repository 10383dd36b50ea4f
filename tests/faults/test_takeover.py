"""What somebody did beside Aerie: a server started by hand on our port, and what is changed under a server."""

from __future__ import annotations

import re

import pytest
from expect import OTHER, problems
from road import STATE, UNIT, Host, Road

PYTHON = "/opt/sglang/releases/0.5.23/bin/python"
# As people start it: as root, from their home, with a key on the command line and a token in the environment.
BY_HAND = (
    "cd /root && HF_TOKEN=hf-secret NCCL_ALGO=Ring nohup {python} -m sglang.launch_server --host 127.0.0.1 "
    "--port {port} --nccl-port {meeting} --api-key sk-secret >> /root/{port}.log 2>&1 & echo $!"
)


def start_by_hand(host: Host, port: int) -> int:
    """The pid of a double that answers on the port."""
    pid = int(host.sh(BY_HAND.format(python=PYTHON, port=port, meeting=port + 1000)))
    host.sh(f"for n in $(seq 100); do grep -q ready /root/{port}.log && exit; sleep 0.1; done; exit 1")
    return pid


def runs(host: Host, pid: int) -> bool:
    return host.sh(f"test -d /proc/{pid} && echo yes", check=False) == "yes"


@pytest.mark.kind("takeover")
def test_a_server_started_by_hand_is_taken_over_only_when_told(host: Host, road: Road) -> None:
    """A server that root started with nohup on our port is named, and goes only when a person says so."""
    mode = str(host.seen()["mode"])
    host.sh(f"systemctl stop {UNIT}")
    pid, bystander = start_by_hand(host, 30000), start_by_hand(host, 30500)
    refused = road.run(f"{mode}.yml")
    assert refused.rc == 2, refused.told()
    assert refused.codes() == ["port-taken"], refused.told()
    assert not refused.changed()
    said = refused.last_words()
    for word in (f"pid {pid} (user root)", "nohup", "in /root", "sglang.launch_server", "--api-key '***'"):
        assert word in said, (word, said)
    allowed = re.search(r"-e (sglang_server_takeover=\d+:\d+)", said)
    assert allowed is not None, said
    assert runs(host, pid)

    done = road.run(f"{mode}.yml", "-e", allowed.group(1))
    assert done.rc == 0, done.told()
    assert problems(host.seen(), mode) == []
    assert not runs(host, pid)
    assert runs(host, bystander)
    host.sh(f"kill {bystander}")

    again = road.run(f"{mode}.yml", "-e", allowed.group(1))
    assert (again.rc, again.changed()) == (0, []), again.told()
    status = road.run("status.yml").output
    assert "cd /root && NCCL_ALGO=Ring nohup" in status, status
    kept = host.sh(f"cat {STATE}/before.json; stat -c %a {STATE}/before.json")
    assert "HF_TOKEN" in kept
    assert kept.endswith("600")
    for secret in ("sk-secret", "hf-secret"):
        assert secret not in kept + status + done.output + refused.output


@pytest.mark.kind("takeover")
@pytest.mark.full
def test_check_mode_shows_the_takeover(host: Host, road: Road) -> None:
    """With --check a run that may take over a server says so, and the server lives on."""
    mode = str(host.seen()["mode"])
    host.sh(f"systemctl stop {UNIT}")
    pid = start_by_hand(host, 30000)
    allowed = re.search(r"-e (sglang_server_takeover=\d+:\d+)", road.run(f"{mode}.yml").last_words())
    assert allowed is not None
    planned = road.run(f"{mode}.yml", "--check", "--diff", "-e", allowed.group(1))
    assert f"takes over pid {pid} (root, nohup" in planned.output, planned.told()
    assert runs(host, pid)
    host.sh(f"kill {pid}")


@pytest.mark.kind("drift")
@pytest.mark.full
def test_what_is_changed_beside_aerie_is_named_and_put_right(host: Host, road: Road) -> None:
    """Source edited, draft replaced, not enabled at boot: verify.yml names each; the next run puts it right."""
    mode = str(host.seen()["mode"])
    host.sh(f"echo \"print('here')\" >> {STATE}/current/site/sglang/__init__.py")
    host.sh("printf 'other weights' > /srv/models/draft/model.safetensors")
    host.sh(f"systemctl disable {UNIT}")
    found = road.run("verify.yml")
    assert found.rc == 2, found.told()
    assert found.codes() == ["drift-found"], found.told()
    named = [
        "changed: sglang/__init__.py",
        "draft model: model.safetensors replaced since its gates passed" if mode != "baseline" else "",
        "disabled at boot",
    ]
    for line in named:
        assert line in found.last_words(), (line, found.last_words())
    done = road.run(f"{mode}.yml")
    assert done.rc == 0, done.told()
    after = road.run("verify.yml")
    assert (after.rc, after.changed()) == (0, []), after.told()
    assert problems(host.seen(), mode) == []


@pytest.mark.kind("drift")
@pytest.mark.full
def test_restarted_by_hand_without_a_variable(host: Host, road: Road) -> None:
    """A drop-in that takes a variable away, and a restart by hand: named, and put right."""
    mode = str(host.seen()["mode"])
    place = f"/etc/systemd/system/{UNIT}.d"
    host.sh(
        f"mkdir -p {place} && printf '[Service]\\nUnsetEnvironment=HF_HUB_OFFLINE\\n' > {place}/mine.conf"
    )
    host.sh(f"systemctl daemon-reload && systemctl restart {UNIT}")
    found = road.run("verify.yml")
    for line in (
        "lacks the variable HF_HUB_OFFLINE",
        "unit has drop-ins",
        "restarted since its gates passed",
    ):
        assert line in found.last_words(), (line, found.last_words())
    host.sh(f"rm -r {place} && systemctl daemon-reload")
    done = road.run(f"{mode}.yml")
    assert done.rc == 0, done.told()
    assert road.run("verify.yml").rc == 0


@pytest.mark.kind("stop")
@pytest.mark.full
def test_sigkill_after_the_drain_asks_for_a_soak(host: Host, road: Road) -> None:
    """A server that ignores SIGTERM is killed by systemd after the bound; the next start is gated over 150 requests."""
    mode = str(host.seen()["mode"])
    other = OTHER[mode]
    host.sh(
        f"sed -i s/^TimeoutStopSec=.*/TimeoutStopSec=3/ /etc/systemd/system/{UNIT} && systemctl daemon-reload"
    )
    host.misbehave(deaf=True)
    done = road.run(f"{other}.yml")
    assert done.rc == 0, done.told()
    assert "soak: 150 requests answered in all" in done.output, done.told()
    assert "by SIGKILL" in done.output or host.seen()["state"]["soak"] == 0
    assert problems(host.seen(), other) == []
