"""NCCL's and Gloo's environment: the interfaces that it names, and configuration files that change it silently.

Rules from NCCL's source (os/linux socket code and misc/param.cc, 2.28): ``^`` excludes, ``=`` is exact, either for the
whole list; otherwise names are prefixes; only running interfaces with an address count. The environment wins over
``NCCL_CONF_FILE`` or ``~/.nccl.conf`` (the home of the password file, not ``HOME``), and both win over
``/etc/nccl.conf``. Gloo's list (PyTorch, ProcessGroupGloo) is of exact names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import ErrorKind
from .facts import CAUTION, Finding, Interface

MISSING = ErrorKind(
    "gpu-host-interface-missing",
    "A variable names a network interface that this host does not have: NCCL or Gloo would find no way to the other"
    " processes and hang or fail at the start.",
)
UNUSABLE = ErrorKind(
    "gpu-host-interface-unusable",
    "The named network interface is there and NCCL will not take it: it is down, has no carrier, or no address.",
)
PREFIX = ErrorKind(
    "gpu-host-interface-prefix",
    "NCCL takes a name in NCCL_SOCKET_IFNAME as a prefix unless the list begins with '=', so it uses more interfaces"
    " than the one that is meant, or another one.",
)
CONF = ErrorKind(
    "gpu-host-nccl-conf",
    "A file of the host sets NCCL variables too. It fills in what the server's environment leaves open, and it is"
    " overruled where the environment has another value.",
)

NCCL_IFNAME = "NCCL_SOCKET_IFNAME"
GLOO_IFNAME = "GLOO_SOCKET_IFNAME"


@dataclass(frozen=True)
class Selection:
    """A list of interface names as NCCL reads it."""

    names: tuple[str, ...]
    exclude: bool = False
    exact: bool = False

    @classmethod
    def parse(cls, value: str) -> Selection:
        """``eth``, ``=eth0,eth1``, ``^docker``, ``^=docker0``; a port after a colon is not part of the name."""
        exclude = value.startswith("^")
        rest = value.removeprefix("^")
        exact = rest.startswith("=")
        words = [word.partition(":")[0].strip() for word in rest.removeprefix("=").split(",")]
        return cls(tuple(word for word in words if word), exclude, exact)

    def matches(self, name: str, word: str) -> bool:
        return name == word if self.exact else name.startswith(word)

    def chosen(self, interfaces: Sequence[Interface]) -> list[Interface]:
        return [
            one
            for one in interfaces
            if any(self.matches(one.name, word) for word in self.names) != self.exclude
        ]


def read_conf(text: str) -> dict[str, str]:
    """NAME=VALUE lines as NCCL reads them: no quoting, no spaces stripped, ``#`` only at the beginning of a line.

    Of a name that stands twice the first counts. Names of other libraries are there too (seen: NVSHMEM, TORCH).
    """
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            values.setdefault(name, value)
    return values


def effective(environment: Mapping[str, str], files: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Every variable as a server process sees it: name -> (value, where it comes from). files: path -> text, in
    NCCL's order: the user's first."""
    values = {name: (value, "environment") for name, value in environment.items()}
    for path, text in files.items():
        for name, value in read_conf(text).items():
            values.setdefault(name, (value, path))
    return values


def check_interfaces(
    environment: Mapping[str, str], files: Mapping[str, str], interfaces: Sequence[Interface]
) -> list[Finding]:
    """NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME against the interfaces of this host."""
    known = effective(environment, files)
    found = []
    if known.get(NCCL_IFNAME, ("", ""))[0]:
        found += _check(NCCL_IFNAME, *known[NCCL_IFNAME], Selection.parse(known[NCCL_IFNAME][0]), interfaces)
    # Gloo reads the environment only, and knows neither ^ nor =.
    gloo = environment.get(GLOO_IFNAME, "")
    if gloo:
        exact = Selection(tuple(word for word in gloo.split(",") if word), exact=True)
        found += _check(GLOO_IFNAME, gloo, "environment", exact, interfaces)
    return found


def check_conf(environment: Mapping[str, str], files: Mapping[str, str]) -> list[Finding]:
    """Variables of the host's files that the server gets without being told, or that are overruled."""
    known = effective(environment, files)
    lines = []
    for path, text in files.items():
        for name, value in read_conf(text).items():
            wins, source = known[name]
            if source == path:
                lines.append(f"{path}: {name}={value} takes effect; the inventory does not set it")
            elif wins != value:
                where = "the server's environment" if source == "environment" else source
                lines.append(f"{path}: {name}={value} is overruled by {where}: {wins}")
    if not lines:
        return []
    return [
        Finding(
            CONF.error(
                f"NCCL variables of {', '.join(files)}",
                evidence=lines,
                next="set these variables in gpu_host_nccl_env, so that the inventory says what runs, or remove them"
                " from the file",
            ),
            CAUTION,
        )
    ]


def _check(
    variable: str, value: str, source: str, selection: Selection, interfaces: Sequence[Interface]
) -> list[Finding]:
    where = f"{variable}={value} ({source})"
    evidence = [where, *(one.said() for one in interfaces)]
    following = f"ip -br addr; correct {variable} in " + (
        "gpu_host_nccl_env (or sglang_server_environment)" if source == "environment" else source
    )
    if selection.exclude:
        if any(one.usable and one.name != "lo" for one in selection.chosen(interfaces)):
            return []
        what = f"{variable}={value} excludes every usable interface"
        return [Finding(UNUSABLE.error(what, evidence=evidence, next=following))]
    missing = [w for w in selection.names if not any(selection.matches(i.name, w) for i in interfaces)]
    if missing:
        what = f"{variable} names {', '.join(missing)}, which this host does not have"
        return [Finding(MISSING.error(what, evidence=evidence, next=following))]
    chosen = selection.chosen(interfaces)
    if not any(one.usable for one in chosen):
        what = f"{variable} names {', '.join(one.name for one in chosen)}, which cannot be used"
        return [Finding(UNUSABLE.error(what, evidence=evidence, next=following))]
    extra = [one.name for one in chosen if one.name not in selection.names]
    if selection.exact or not extra:
        return []
    names = ", ".join(one.name for one in chosen)
    exact = ",".join(one for one in selection.names if one in {i.name for i in chosen}) or chosen[0].name
    return [
        Finding(
            PREFIX.error(
                f"{variable}={value} is a prefix: it selects {names}",
                evidence=evidence,
                next=f"write {variable}: '={exact}' for exactly that interface",
            ),
            CAUTION,
        )
    ]
