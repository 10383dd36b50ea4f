"""What has to be so after a fault: how a host serves, and how a run says that it failed."""

from __future__ import annotations

from typing import Any

from road import Host, Outcome

# The way there and back: whatever serves, the other mode is asked for.
OTHER = {"production": "debug", "debug": "production"}
# For runs that are kept waiting until something else has been done to them.
PATIENT = ("-e", '{"sglang_server_start_timeout": 600}')


def mode_of(host: Host) -> str:
    return str(host.seen()["mode"])


def problems(seen: dict[str, Any], mode: str) -> list[str]:
    """How a host differs from one that serves ``mode``, accepted and with nothing half done; a line each."""
    state = seen["state"]
    wrong = {
        f"phase {state.get('phase')}": state.get("phase") != "accepted",
        f"serves {seen['mode']}": seen["mode"] != mode,
        f"current {seen['current']}, accepted {state.get('accepted')}": seen["current"]
        != state.get("accepted"),
        f"unit {seen['active']}": seen["active"] != "active",
        f"at boot: {seen['boot']}": seen["boot"] != "enabled",
        f"health {seen['health']}": seen["health"] != 200,
        f"connections are refused: {seen['chain']}": seen["refused"],
        f"a lease is left: {seen['lease']}": seen["lease"] is not None,
    }
    return [text for text, is_so in wrong.items() if is_so]


def unsafe_at_boot(seen: dict[str, Any]) -> str:
    """Why a reboot at this moment would start something whose gates have not passed; '' when it would not."""
    accepted = [one["digest"] for one in seen["state"].get("history", [])]
    if seen["boot"] == "enabled" and seen["current"] and seen["current"] not in accepted:
        return f"{seen['current']} is enabled at boot and was never accepted"
    return ""


def assert_serves(host: Host, mode: str) -> None:
    wrong = problems(host.seen(), mode)
    assert not wrong, wrong


def assert_failed(done: Outcome, code: str, *words: str) -> None:
    """The run failed with that error, and its last words say what, how the host is, and what to do."""
    assert done.rc == 2, done.told()
    assert code in done.codes(), (done.codes(), done.told())
    said = done.last_words()
    for word in (f"[{code}]", "Failed step: ", "The host now: ", "Next: ", *words):
        assert word in said, (word, said)
