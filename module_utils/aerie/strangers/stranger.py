"""A server that Aerie did not start: who it is, whether it may be taken over, and the note to go back by. Pure, but
for :func:`read` at the end."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import processes, systemd
from ..errors import ErrorKind
from ..gpu import holders as gpu_holders
from ..gpu.holders import Identity, hidden_words
from .process_tree import Member, descendants, starter_of, top_of

BAD_TOKEN = ErrorKind(
    "takeover-token",
    "sglang_server_takeover names a process by pid and start time, as the refusal before it printed them; this does "
    "not.",
)

# Variables whose values say how a server was tuned. Of all others only the name is kept: a value may be a secret.
_SHOWN = re.compile(
    r"(NCCL|CUDA|SGLANG|SGL|OMP|TORCH|TORCHDYNAMO|TRITON|FLASHINFER|GLOO|UCX|MKL|NVSHMEM|DG|TVM)_\w+"
    r"|PYTHONPATH|LD_LIBRARY_PATH|VIRTUAL_ENV|CONDA_PREFIX|HF_HOME|HF_HUB_OFFLINE"
)


@dataclass(frozen=True)
class Stranger:
    """A process tree that holds what the instance needs.

    main: the process that a person started. who: what is said of it. cwd, words (command line, secrets hidden), nohup,
    log (where its output goes, '' when to a terminal or nowhere), environment (name: value; None for a value that is
    not kept). managed: the unit whose main process it is. starter: a script of the same process group around it.
    up_s: its age. holds: what of ours it holds.
    """

    main: Member
    who: Identity
    tree: tuple[Member, ...]
    words: tuple[str, ...]
    environment: Mapping[str, str | None]
    cwd: str = ""
    nohup: bool = False
    log: str = ""
    managed: str = ""
    starter: Member | None = None
    up_s: float = 0.0
    holds: tuple[str, ...] = ()

    @property
    def token(self) -> str:
        return self.main.token

    def line(self) -> str:
        """``pid 4711 (user root): python -m sglang.launch_server …``, the form of every message about a process."""
        unit = self.who.unit
        where = (
            f"{self.who.runtime} container {(self.who.container or '')[:12]}" if self.who.container else unit
        )
        head = f"pid {self.main.pid} (user {self.who.user}{f', {where}' if where else ''})"
        return f"{head}: {'nohup ' if self.nohup else ''}{shlex.join(self.words)[:200]}"

    def evidence(self) -> list[str]:
        """Who it is, since when, where, and how many processes it is."""
        more = len(self.tree) - 1
        size = f"; {more} process{'' if more == 1 else 'es'} below it" if more else ""
        lines = [
            self.line(),
            f"  since {self.who.since or '?'} (up {said(self.up_s)}), in {self.cwd or '?'}{size}",
        ]
        lines += [f"  holds {one}" for one in self.holds]
        if self.starter is not None:
            lines.append(
                f"  its parent, pid {self.starter.pid}, may start it again; to take over both: {self.starter.token}"
            )
        return lines

    def tokens(self) -> list[str]:
        """What names it in ``sglang_server_takeover``: itself, or the script around it."""
        return [self.token, *([self.starter.token] if self.starter else [])]

    def note(self) -> dict[str, Any]:
        """What the record keeps, to go back by. No secret is in it."""
        return {
            "pid": self.main.pid,
            "start_ticks": self.main.start_ticks,
            "user": self.who.user,
            "since": self.who.since,
            "cwd": self.cwd,
            "command": list(self.words),
            "nohup": self.nohup,
            "log": self.log,
            "environment": {name: value for name, value in self.environment.items() if value is not None},
            "environment_names": sorted(name for name, value in self.environment.items() if value is None),
            "holds": list(self.holds),
        }


def said(seconds: float) -> str:
    """An age as a person says it: ``42 s``, ``17 min``, ``5 h``, ``3 d``."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def way_out(one: Stranger, rerun: str) -> str:
    """The next command for a holder: its manager's own where it has one, the takeover where nobody else minds it."""
    if one.who.container:
        tool = one.who.runtime if one.who.runtime in ("docker", "podman") else "its runtime's tool:"
        return f"{tool} stop {one.who.container[:12]}"
    if one.managed:
        return f"systemctl disable --now {one.managed}"
    return rerun


def may_be_taken(one: Stranger) -> bool:
    """Only a process that no service manager and no container runtime minds: they would start it again."""
    return not one.managed and not one.who.container


def plan_line(one: Stranger) -> str:
    """``takes over pid 4711 (root, nohup python -m sglang.launch_server …, up 3 d)``."""
    text = ("nohup " if one.nohup else "") + shlex.join(one.words)
    short = text if len(text) <= 60 else f"{text[:60].rstrip()} …"
    return f"takes over pid {one.main.pid} ({one.who.user}, {short}, up {said(one.up_s)})"


def note_line(note: Mapping[str, Any]) -> str:
    """The note as what to type: ``cd /root && NCCL_ALGO=Ring nohup python -m sglang.launch_server … &``."""
    given = [
        f"{name}={shlex.quote(value)}" for name, value in sorted((note.get("environment") or {}).items())
    ]
    words = [*given, *(["nohup"] if note.get("nohup") else []), shlex.join(note.get("command") or ["?"])]
    if note.get("log"):
        words.append(f">> {shlex.quote(note['log'])} 2>&1")
    return f"cd {shlex.quote(note.get('cwd') or '/')} && {' '.join(words)} &"


def parse_token(text: str) -> tuple[int, int]:
    """``4711:81234567`` -> (pid, start time in clock ticks since boot). Raises takeover-token."""
    match = re.fullmatch(r"\s*(\d+):(\d+)\s*", str(text))
    if not match or int(match.group(1)) <= 1:
        raise BAD_TOKEN.error(
            f"sglang_server_takeover is {text!r}, not PID:START",
            next="run without it; the refusal prints the exact words",
        )
    return int(match.group(1)), int(match.group(2))


def kept_environment(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Which values may stand in a record: those of known tuning variables whose names say nothing of a secret."""
    return {
        name: value if _SHOWN.fullmatch(name) and not gpu_holders.is_secret(name) else None
        for name, value in sorted(environment.items())
    }


def read(table: Mapping[int, Member], pid: int, holds: str) -> Stranger | None:
    """What ``/proc`` and systemd say of the tree that ``pid`` belongs to; None when it is gone."""
    main = top_of(table, pid)
    return read_named(table, main.pid, holds) if main else None


def read_named(table: Mapping[int, Member], pid: int, *holds: str) -> Stranger | None:
    """The same of the tree below ``pid`` itself."""
    who = gpu_holders.identify(pid)
    if who is None or pid not in table:
        return None
    main = table[pid]
    folder = processes.PROC / str(main.pid)
    process = processes.read_process(main.pid)
    return Stranger(
        main=main,
        who=who,
        tree=tuple(descendants(table, main.pid)),
        words=tuple(hidden_words(process.command)) if process else (),
        environment=kept_environment(processes.read_environment(main.pid) or {}),
        cwd=_link(folder / "cwd"),
        nohup=_ignores_hangup(folder),
        log=_log(folder),
        managed=_managed(table, main, who),
        starter=starter_of(table, main),
        up_s=processes.seconds_since_start(process) if process else 0.0,
        holds=holds,
    )


def _managed(table: Mapping[int, Member], main: Member, who: Identity) -> str:
    """The unit whose main process this is, as systemctl takes it; a shell's child in ssh.service has none."""
    if not who.unit or not who.unit.endswith(".service"):
        return ""
    parent = table.get(main.parent)
    if parent is not None and parent.pid != 1 and parent.exe.endswith("/systemd"):
        return f"{who.unit} --user --machine={who.user}@"
    return who.unit if systemd.show(who.unit).main_pid == main.pid else ""


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _log(folder: Path) -> str:
    target = _link(folder / "fd" / "1")
    return target if target.startswith("/") and not target.startswith(("/dev/", "/proc/")) else ""


def _ignores_hangup(folder: Path) -> bool:
    """``nohup`` leaves no trace but this: SIGHUP, the lowest bit, is ignored."""
    try:
        found = re.search(r"^SigIgn:\s*([0-9a-f]+)$", (folder / "status").read_text(), re.MULTILINE)
    except OSError:
        return False
    return bool(found and int(found.group(1), 16) & 1)
