"""The command line."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from . import cgroups, image, lifecycle, snapshot, sweep
from .check import check, check_quickly, packages
from .errors import PREFIX, HostsError, Interrupted
from .layout import SUITES, Layout
from .lifecycle import Wanted, checkout_lock
from .record import Host, load_all
from .supervise import supervise

EPILOG = """\
exit codes: 0 done, 1 failed (the reason and what to type next are on stderr), 2 wrong usage, 3 the machine lacks
something, 128 + N interrupted by signal N; `exec` gives the exit code of the command.
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog=PREFIX,
        description="Disposable Debian hosts with real systemd and real ssh, in namespaces on this machine.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str, *, host: bool = False) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        if host:
            made.add_argument("name", metavar="NAME")
        return made

    add("check", "say what the machine lacks, if anything")
    add("packages", "print the Debian packages that this tool needs")
    add("image", "build the root file system of a suite, unless it is there").add_argument(
        "suite", nargs="?", default="bookworm", choices=SUITES
    )
    command = add("up", "boot a host, return when ssh answers, print its address", host=True)
    command.add_argument("--suite", choices=SUITES, help="default: bookworm, or what the snapshot is")
    command.add_argument("--from", dest="snapshot", metavar="SNAPSHOT", help="boot from a frozen host")
    command.add_argument(
        "--bind", action="append", default=[], metavar="SRC:DST[:ro]", help="show a path in the host"
    )
    command.add_argument(
        "--cgroups", default="unified", choices=("unified", "hybrid"), help="what the host sees"
    )
    command.add_argument(
        "--wait", type=float, default=60, metavar="SECONDS", help="how long to wait for ssh (60)"
    )
    command = add(
        "down", "delete a host at once, as by pulling the plug; no-op when there is none", host=True
    )
    command.add_argument("--orderly", action="store_true", help="shut it down first")
    command = add("exec", "run a command in a host, without ssh", host=True)
    command.add_argument("argv", nargs=argparse.REMAINDER, metavar="CMD")
    add("cut", "unplug a host's network cable", host=True)
    add("heal", "plug it in again", host=True)
    add("ip", "print a host's address", host=True)
    add("list", "show the hosts of this checkout").add_argument("--json", action="store_true")
    command = add("snapshot", "power a host off and freeze its disk; the host is gone afterwards", host=True)
    command.add_argument("snapshot", metavar="SNAPSHOT")
    command.add_argument("--replace", action="store_true", help="also when there is one of that name")
    add("snapshots", "show the snapshots").add_argument("--json", action="store_true")
    add("forget", "delete a snapshot; no-op when there is none").add_argument("snapshot", metavar="SNAPSHOT")
    command = add("clean", "delete all hosts of this checkout and its network")
    command.add_argument("--all", action="store_true", help="also images, snapshots and keys")
    command = commands.add_parser("_supervise")
    command.add_argument("name")
    command.add_argument("octet", type=int)
    return top


def describe(layout: Layout, host: Host) -> dict[str, Any]:
    """A host as `list --json` shows it. ``pid`` is that of its pid 1, as the machine sees it; null when off."""
    init = host.init(layout)
    return {
        "name": host.name,
        "ip": host.ip,
        "suite": host.suite,
        "snapshot": host.snapshot,
        "state": host.state(layout),
        "pid": init.pid if init is not None and init.alive() else None,
        "binds": host.binds,
        "key": str(layout.key),
        "ssh_config": str(layout.ssh_config),
        "known_hosts": str(layout.known_hosts),
        "console": str(host.folder(layout) / "console.log"),
    }


def table(rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as their widest entry; None shows as a dash."""
    texts = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in texts) for column in range(len(texts[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in texts)
    return "\n".join(line.rstrip() for line in lines)


def _list(layout: Layout, as_json: bool) -> None:
    hosts = [describe(layout, host) for host in load_all(layout)]
    if as_json:
        print(json.dumps(hosts, indent=1))
        return
    if not hosts:
        print("no hosts")
        return
    columns = ("name", "ip", "suite", "snapshot", "state", "pid")
    print(table([[name.upper() for name in columns]] + [[host[name] for name in columns] for host in hosts]))
    print(f"\nssh -F {shlex.quote(str(layout.ssh_config))} NAME")


def _snapshots(layout: Layout, as_json: bool) -> None:
    found = snapshot.all_snapshots(layout)
    if as_json:
        print(json.dumps([{"name": name, **record} for name, record in found.items()], indent=1))
    elif not found:
        print("no snapshots")
    else:
        rows = [
            [name, record["suite"], record["from"], len(record["layers"])] for name, record in found.items()
        ]
        print(table([["NAME", "SUITE", "FROM", "LAYERS"], *rows]))


def _clean(layout: Layout, everything: bool) -> None:
    for host in load_all(layout):
        lifecycle.down(layout, host.name)
    with checkout_lock(layout):
        sweep.remove_network_when_unused(layout)
    if everything:
        shutil.rmtree(layout.state, ignore_errors=True)


def _image(layout: Layout, suite: str) -> None:
    key = image.ensure(layout, suite)
    with checkout_lock(layout):
        image.prune(layout, snapshot.used_images(layout))
    print(layout.images / key / "root")


def _command_to_run(argv: list[str]) -> list[str]:
    command = argv[1:] if argv[:1] == ["--"] else argv
    if not command:
        raise HostsError("exec: no command given", next="hosts exec NAME systemctl status")
    return command


def dispatch(layout: Layout, given: argparse.Namespace) -> None:
    match given.command:
        case "image":
            _image(layout, given.suite)
        case "up":
            wanted = Wanted(given.suite, given.snapshot, given.bind, given.cgroups, given.wait)
            print(lifecycle.up(layout, given.name, wanted).ip)
        case "down":
            if not lifecycle.down(layout, given.name, given.orderly):
                print(f"{PREFIX}: there is no host {given.name}; nothing to do", file=sys.stderr)
        case "exec":
            lifecycle.execute(layout, given.name, _command_to_run(given.argv))
        case "cut" | "heal":
            lifecycle.set_cable(layout, given.name, plugged=given.command == "heal")
        case "ip":
            print(lifecycle.existing(layout, given.name).ip)
        case "list":
            _list(layout, given.json)
        case "snapshot":
            snapshot.freeze(layout, given.name, given.snapshot, given.replace)
        case "snapshots":
            _snapshots(layout, given.json)
        case "forget":
            with checkout_lock(layout):
                snapshot.remove(layout, given.snapshot)
        case "clean":
            _clean(layout, given.all)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    # What follows is clean-up, which a second Ctrl-C must not cut short; it is bounded.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(number)


def main(argv: Sequence[str] | None = None) -> int:
    given = parser().parse_args(argv)
    layout = Layout(Path(__file__).resolve().parents[3])
    if given.command == "packages":
        print(" ".join(packages()))
        return 0
    if given.command == "_supervise":
        return supervise(layout, given.name, given.octet)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        try:
            # The whole check makes namespaces and an overlay, which costs most of a second on a busy disk.
            (check if given.command in ("check", "image", "up") else check_quickly)(layout)
        except HostsError as problem:
            print(problem.message(), file=sys.stderr)
            return 3
        if given.command == "check":
            print(
                "nothing is missing; hosts can be given control groups:",
                *cgroups.modes(cgroups.hierarchies()),
            )
            return 0
        with checkout_lock(layout):
            for line in sweep.sweep(layout):
                print(f"{PREFIX}: {line}", file=sys.stderr)
        dispatch(layout, given)
        return 0
    except HostsError as problem:
        print(problem.message(), file=sys.stderr)
        return 1
    except Interrupted as interruption:
        with contextlib.suppress(OSError):
            print(f"{PREFIX}: interrupted; nothing is left behind", file=sys.stderr)
        return 128 + interruption.number
