"""Bring a host to the wanted release: look, plan, and under the build lock do it. One path for check mode too."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ErrorKind
from . import wheel_record, wheels
from .build import Build, Say, build
from .existing import check_pristine
from .layout import TOOLS, Host, Layout, Record, look, set_link
from .lockfile import Lock, parse
from .plan import BUILD, CLEAR, LINK, PRUNE, UNLINK, Action, Plan, Wanted, plan
from .python import pip_for, require_sglang

LOCK_OTHER_RELEASE = ErrorKind(
    "lock-for-another-release", "The lock does not name sglang at the release that the inventory names."
)
NOT_INSTALLED = ErrorKind(
    "release-not-installed", "The release is not on the host, or only a dead run's part of it."
)
TAMPERED = ErrorKind(
    "release-tampered",
    "Files of the installed release are not what its wheel contained: somebody edited the installed package. "
    "Deployments are copied from it, so it must be as it was released.",
)
BUSY = ErrorKind("release-build-busy", "Another run builds a release on this host and did not end in time.")
EXISTING_DIFFERS = ErrorKind(
    "existing-release-differs",
    "The python that was named has another release of sglang than the inventory names.",
)

KNOWN_AFTER = "known after install"
_SHOWN_FILES = 20


@dataclass(frozen=True)
class Request:
    """What is wanted; the module's options under the same names. Sizes in MiB, times in seconds."""

    release: str
    source: str
    lock_text: str = ""
    tools_lock_text: str = ""
    wheelhouse: str = ""
    extra_wheels: str = ""
    prefix: str = "/opt/sglang"
    state_dir: str = "/var/lib/sglang"
    python: str = "/usr/bin/python3"
    existing_python: str = ""
    base_site_packages: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    keep: int = 2
    min_free_mib: int | None = None
    verify: str = "quick"
    repair: bool = False
    timeout: int = 3600

    @property
    def layout(self) -> Layout:
        return Layout(Path(self.prefix))

    def locks(self) -> dict[str, tuple[Lock, str]]:
        """Name -> lock and its text, tools first: the release is installed with the tools' pip."""
        found: dict[str, tuple[Lock, str]] = {}
        if self.tools_lock_text:
            found[TOOLS] = (parse(self.tools_lock_text, title="the tools' lock"), self.tools_lock_text)
        if self.source != "existing":
            lock = parse(self.lock_text, title=f"the lock of release {self.release}")
            if lock.version_of("sglang") != self.release:
                raise LOCK_OTHER_RELEASE.error(
                    f"the lock has sglang {lock.version_of('sglang') or 'not at all'}, the release is {self.release}",
                    next="make sglang_install_release and sglang_install_lock agree",
                )
            found[self.release] = (lock, self.lock_text)
        return found

    def wanted(self, locks: Mapping[str, tuple[Lock, str]]) -> list[Wanted]:
        real = os.path.realpath(self.python)
        return [
            Wanted(name, lock.sha256, real, "" if name == TOOLS else self.base_site_packages)
            for name, (lock, _) in locks.items()
        ]


def present(request: Request, *, check: bool, say: Say) -> dict[str, Any]:
    """Make the release present; returns the module's result. ``check``: only say what would be done."""
    existing = _existing(request) if request.source == "existing" else None
    locks = request.locks()
    steps = _decide(request, locks)
    before = _shown(look(request.layout, Path(request.state_dir)))
    if steps.actions:
        _require(request, locks, steps, check=check)
    done = [str(action) for action in steps.actions]
    if steps.actions and not check:
        with _build_lock(request, say) as held:
            steps = _decide(request, locks)  # another run may have done it while this one waited
            done = [str(action) for action in steps.actions]
            for action in steps.actions:
                _do(request, locks, action, held, say)
    result = existing or _result(request, locks, steps, check=check)
    result["tools_python"] = str(request.layout.link(TOOLS) / "bin" / "python") if TOOLS in locks else ""
    after = _foreseen(steps, before) if check else _shown(look(request.layout, Path(request.state_dir)))
    return {**result, "changed": bool(done), "actions": done, "diff": {"before": before, "after": after}}


def verified(request: Request) -> dict[str, Any]:
    """The release as it is on the host; raises NOT_INSTALLED or TAMPERED. Changes nothing."""
    if request.source == "existing":
        return {**_existing(request), "changed": False, "actions": []}
    locks = request.locks()
    steps = _decide(request, locks)
    if any(action.name == request.release and action.kind in (BUILD, LINK) for action in steps.actions):
        raise NOT_INSTALLED.error(
            f"release {request.release} with this lock is not installed in {request.prefix}",
            evidence=[str(action) for action in steps.actions],
            next="ansible-playbook production.yml (its role sglang_install installs it)",
        )
    return {**_result(request, locks, steps, check=False), "changed": False, "actions": []}


def is_installed(request: Request) -> bool:
    """Whether nothing would have to be built or linked. Cheap: no file of the release is compared."""
    if request.source == "existing" and not request.tools_lock_text:
        return True
    steps = plan(
        request.layout,
        request.wanted(request.locks()),
        look(request.layout, Path(request.state_dir)),
        keep=request.keep,
    )
    return not any(action.kind in (BUILD, LINK) for action in steps.actions)


def _decide(request: Request, locks: Mapping[str, tuple[Lock, str]]) -> Plan:
    """The plan for what the host has now. Raises TAMPERED unless ``repair`` allows to build the release again."""
    host = look(request.layout, Path(request.state_dir))
    wanted = request.wanted(locks)
    steps = plan(request.layout, wanted, host, keep=request.keep)
    goal = steps.goals.get(request.release)
    record = next((venv.record for venv in host.venvs if venv.path == goal), None)
    if record is None:
        return steps
    changed = tampered_files(record, full=request.verify == "full")
    if not changed:
        return steps
    if not request.repair:
        more = [f"… and {len(changed) - _SHOWN_FILES} more"] if len(changed) > _SHOWN_FILES else []
        raise TAMPERED.error(
            f"{len(changed)} files of release {request.release} in {record.path} are not as released",
            evidence=[*changed[:_SHOWN_FILES], *more],
            next="build it again aside and switch: ansible-playbook production.yml -e sglang_install_repair=true",
        )
    return plan(request.layout, wanted, host, keep=request.keep, unfit=frozenset({Path(record.path)}))


def tampered_files(record: Record, *, full: bool) -> list[str]:
    """Files of an installed sglang that are not as in its wheel's RECORD.

    quick (not full): sizes of all files, and the hashes of those modified since the environment was
    completed. An edit that keeps both size and modification time is found by ``full`` only.
    """
    since = None if full else record.completed_ns
    found = wheel_record.differences(record.site_packages, "sglang", unchanged_since_ns=since)
    return [str(difference) for difference in found]


def _existing(request: Request) -> dict[str, Any]:
    """The result for a python that people already have. Only looked at, never written to."""
    found = require_sglang(request.existing_python)
    same = found.version == request.release or found.version.startswith(
        (f"{request.release}+", f"{request.release}.")
    )
    if not same:
        raise EXISTING_DIFFERS.error(
            f"{request.existing_python} has sglang {found.version}, the inventory names {request.release}",
            evidence=[f"package: {found.package_dir}", f"dist-info: {found.dist_info}"],
            next=f"set sglang_install_release: {found.version!r}, or name another python",
        )
    check_pristine(found, request.existing_python)
    return {
        "release": request.release,
        "version": found.version,
        "python": request.existing_python,
        "python_version": found.python_version,
        "package_dir": found.package_dir,
        "dist_info": found.dist_info,
        "path": "",
        "lock_sha256": "",
        "source": "existing",
        "proof": "existing",
    }


def _result(
    request: Request, locks: Mapping[str, tuple[Lock, str]], steps: Plan, *, check: bool
) -> dict[str, Any]:
    path = steps.goals[request.release]
    pending = check and steps.builds(request.release)
    record = (
        None
        if pending
        else next(
            venv.record for venv in look(request.layout, Path(request.state_dir)).venvs if venv.path == path
        )
    )
    return {
        "release": request.release,
        "version": request.release,
        "python": str(path / "bin" / "python"),
        "python_version": record.python_version if record else KNOWN_AFTER,
        "package_dir": record.package_dir if record else KNOWN_AFTER,
        "dist_info": record.dist_info if record else KNOWN_AFTER,
        "path": str(path),
        "lock_sha256": locks[request.release][0].sha256,
        "source": record.source if record else request.source,
        "proof": "record" if record else KNOWN_AFTER,
    }


def _require(request: Request, locks: Mapping[str, tuple[Lock, str]], steps: Plan, *, check: bool) -> None:
    """Everything that can be refused before anything is touched."""
    building = [lock for name, (lock, _) in locks.items() if steps.builds(name)]
    if not building:
        return
    extra = [Path(request.extra_wheels)] if request.extra_wheels else []
    brought = all(directory.is_dir() for directory in extra)
    if not check:
        pip_for(request.python)
    needed = 0
    if request.wheelhouse:
        if brought or not check:  # in check mode the role has not yet copied what it would bring
            for lock in building:
                needed += wheels.unpacked_mib(
                    wheels.require_wheels(lock, Path(request.wheelhouse), extra).values()
                )
    else:
        needed = sum(wheels.index_mib(lock) for lock in building)
        needed = request.min_free_mib if request.min_free_mib is not None else needed
    if check and any(action.kind == CLEAR for action in steps.actions):
        return  # what a dead run left is removed first, and makes room
    wheels.require_space(request.layout.venvs, max(needed, request.min_free_mib or 0))


def _do(request: Request, locks: Mapping[str, tuple[Lock, str]], action: Action, held: int, say: Say) -> None:
    layout = request.layout
    if action.kind in (CLEAR, PRUNE):
        say(f"removing {action.path}: {action.why}")
        _remove(action.path)
    elif action.kind == UNLINK:
        action.path.unlink(missing_ok=True)
    elif action.kind == LINK:
        set_link(layout.link(action.name), action.path)
    elif action.kind == BUILD:
        lock, text = locks[action.name]
        job = Build(
            name=action.name,
            path=action.path,
            lock=lock,
            lock_text=text,
            python=request.python,
            pip_python=_pip_python(request, action.name),
            wheelhouse=Path(request.wheelhouse) if request.wheelhouse else None,
            find_links=(Path(request.extra_wheels),) if request.extra_wheels else (),
            base_site_packages="" if action.name == TOOLS else request.base_site_packages,
            environment=request.environment,
            held=(held,),
        )
        build(layout, job, say)


def _pip_python(request: Request, name: str) -> str:
    """Whose pip installs ``name``: the tools', which are there first; else as the interpreter allows."""
    tools = request.layout.link(TOOLS) / "bin"
    if name != TOOLS and request.tools_lock_text and (tools / "pip").exists():
        return str(tools / "python")
    return pip_for(request.python)


def _remove(path: Path) -> None:
    """Remove an environment; the record goes first, so that a removal cut short leaves no complete one."""
    (path / "release.json").unlink(missing_ok=True)
    shutil.rmtree(path)


@contextmanager
def _build_lock(request: Request, say: Say) -> Iterator[int]:
    """Hold the build lock; waits for a run that has it, at most ``timeout`` seconds (then BUSY)."""
    layout = request.layout
    layout.venvs.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + request.timeout
    descriptor = os.open(layout.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = os.pread(descriptor, 64, 0).decode().strip() or "unknown"
                if time.monotonic() > deadline:
                    raise BUSY.error(
                        f"another run still builds in {layout.venvs}",
                        evidence=[f"process: {holder}"],
                        next=f"fuser -v {layout.lock_file}; wait for it, or end it",
                    ) from None
                say(f"another run (process {holder}) builds here; waiting for it")
                time.sleep(0.5)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _shown(host: Host) -> str:
    """What a diff compares: the links, the environments, one a line."""
    lines = [f"{name} -> {target}" for name, target in sorted(host.links.items())]
    lines += [f"{venv.path}{'' if venv.record else ' (incomplete)'}" for venv in host.venvs]
    return "".join(f"{line}\n" for line in lines)


def _foreseen(steps: Plan, before: str) -> str:
    """``before`` as the plan would leave it."""
    gone = {str(action.path) for action in steps.actions if action.kind in (CLEAR, PRUNE)}
    unlinked = {action.name for action in steps.actions if action.kind in (UNLINK, LINK)}
    lines = []
    for line in before.splitlines():
        name, arrow, _ = line.partition(" -> ")
        if (arrow and name in unlinked) or line.removesuffix(" (incomplete)") in gone:
            continue
        lines.append(line)
    links = [f"{action.name} -> {action.path}" for action in steps.actions if action.kind == LINK]
    builds = [str(action.path) for action in steps.actions if action.kind == BUILD]
    kept = [line for line in lines if " -> " in line], [line for line in lines if " -> " not in line]
    return "".join(f"{line}\n" for line in [*sorted(kept[0] + links), *sorted(kept[1] + builds)])
