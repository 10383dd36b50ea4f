"""The lease on an instance: who may change it now. ``<state>/<instance>/lease.json``, root's.

One run holds it from before a deployment is built until the instance is accepted, restored or stopped. Every step that
changes something works under a lock (``lease_host``) and checks there that the lease is still its own, so a run that
was taken for dead and comes back to life does no harm. Without a lease a step works only while nobody holds one.

Times are seconds of the host's boot clock, which nobody steps. After a reboot the lease counts from the boot: its owner
may be waiting for the host to come back.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import AerieError, ErrorKind
from .state import now

HELD = ErrorKind(
    "lease-held",
    "Another run is changing this instance, or died while it did. Only one may at a time.",
)
LOST = ErrorKind(
    "lease-lost",
    "This run held the instance's lease and holds it no longer: another run took it over, by force or because it had "
    "expired. Nothing was changed by the step that found out.",
)

TTL_S = 900


@dataclass(frozen=True)
class Controller:
    """The process ``ansible-playbook`` that a run is, and where it runs.

    ``machine``, ``boot`` and ``namespace`` (of pids) tell whether a pid means the same there and here; ``alias`` is
    the name that its inventory gives to the host, so that two names of one host are two owners.
    """

    host: str = ""
    machine: str = ""
    boot: str = ""
    namespace: str = ""
    pid: int = 0
    start: str = ""
    user: str = ""
    alias: str = ""

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Controller:
        known: dict[str, Any] = {name: str(given.get(name) or "") for name in cls.__dataclass_fields__}
        return cls(**{**known, "pid": int(known["pid"] or 0)})

    def __str__(self) -> str:
        who = f"{self.user}@{self.host}" if self.user else self.host
        return f"{who or 'an unknown controller'}, pid {self.pid}"


@dataclass(frozen=True)
class Lease:
    """One lease. ``expires_s`` and ``ttl_s`` are seconds (boot clock, length); ``host_boot`` is the boot they mean.

    ``step`` is the module at work on the host: ``{module, pid, start_ticks}``, empty between two.
    """

    token: str
    controller: Controller
    host_boot: str
    expires_s: float
    ttl_s: float = TTL_S
    phase: str = ""
    taken: str = ""
    step: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_mapping(cls, given: Any) -> Lease | None:
        """Read ``lease.json``; None for anything that is not a lease, which nobody then holds."""
        if not isinstance(given, dict) or not given.get("token"):
            return None
        try:
            return cls(
                token=str(given["token"]),
                controller=Controller.from_mapping(given.get("controller") or {}),
                host_boot=str(given.get("host_boot") or ""),
                expires_s=float(given.get("expires_s") or 0),
                ttl_s=float(given.get("ttl_s") or TTL_S),
                phase=str(given.get("phase") or ""),
                taken=str(given.get("taken") or ""),
                step=dict(given.get("step") or {}),
            )
        except (TypeError, ValueError):
            return None

    def as_dict(self) -> dict[str, Any]:
        return {"version": 1, **vars(self), "controller": dict(vars(self.controller))}

    def left(self, clock: Clock) -> float:
        """Seconds that it still lasts; negative when it has expired."""
        if self.host_boot != clock.boot:
            return self.ttl_s - clock.seconds
        # never longer than its length, whatever the file says
        return min(self.expires_s - clock.seconds, self.ttl_s)

    def describe(self, clock: Clock) -> list[str]:
        """The owner, for a person, a line each."""
        left = self.left(clock)
        lines = [
            f"owner: {self.controller}, since {self.taken}",
            f"at: {self.phase or 'its beginning'}",
            f"expires: in {left:.0f} s, renewed by each of its steps"
            if left > 0
            else f"expired: {-left:.0f} s ago",
        ]
        if self.step and self.host_boot == clock.boot:
            lines.append(f"module at work: {self.step.get('module')}, pid {self.step.get('pid')}")
        if self.host_boot != clock.boot:
            lines.append("the host was rebooted since")
        return lines


@dataclass(frozen=True)
class Clock:
    """The host's boot id and the seconds since that boot."""

    boot: str
    seconds: float


@dataclass(frozen=True)
class Claim:
    """Who asks for a lease. ``dead``: the token of a lease whose owner the controller found dead on its own machine;
    ``override``: the token of one that a person takes by force."""

    controller: Controller
    ttl_s: float = TTL_S
    dead: str = ""
    override: str = ""

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Claim:
        """From the options of a module."""
        return cls(
            Controller.from_mapping(given.get("controller") or {}),
            ttl_s=float(given.get("ttl") or TTL_S),
            dead=str(given.get("dead") or ""),
            override=str(given.get("override") or ""),
        )


def why_free(lease: Lease | None, claim: Claim, clock: Clock) -> str:
    """Why the claim may have the lease, as a word for people; '' when it may not."""
    if lease is None:
        return "free"
    if lease.controller == claim.controller:
        return "own"
    if claim.dead == lease.token:
        return "its run died on this controller"
    if claim.override == lease.token:
        return "overridden"
    return "expired" if lease.left(clock) <= 0 else ""


def granted(lease: Lease | None, claim: Claim, clock: Clock) -> Lease:
    """The lease that the claim gets. Raises lease-held with the owner."""
    why = why_free(lease, claim, clock)
    if lease is not None and not why:
        raise held_error(lease, clock)
    if lease is not None and why == "own":
        return renewed(lease, clock)
    return Lease(
        token=secrets.token_hex(8),
        controller=claim.controller,
        host_boot=clock.boot,
        expires_s=clock.seconds + claim.ttl_s,
        ttl_s=claim.ttl_s,
        taken=now(),
    )


def renewed(lease: Lease, clock: Clock) -> Lease:
    """The lease with all of its length before it."""
    return replace(lease, host_boot=clock.boot, expires_s=clock.seconds + lease.ttl_s)


def held_error(lease: Lease, clock: Clock) -> AerieError:
    """lease-held: the owner and what to type."""
    return HELD.error(
        "another run holds this instance's lease",
        evidence=lease.describe(clock),
        next="wait for that run; if it is dead, run again after the expiry, or at once with "
        f"-e sglang_server_lease_override={lease.token}",
    )


def check(lease: Lease | None, token: str, clock: Clock) -> None:
    """Raise unless a step with this token ('' for none) may change something now."""
    if not token:
        if lease is not None and lease.left(clock) > 0:
            raise held_error(lease, clock)
        return
    if lease is None or lease.token != token:
        raise LOST.error(
            "this run's lease on the instance is gone",
            evidence=lease.describe(clock) if lease else ["nobody holds one now"],
            next="look at what the other run did (playbooks/status.yml), then run again",
        )
