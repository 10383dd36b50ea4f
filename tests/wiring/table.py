#!/usr/bin/env python3
"""Which check sees which fault of the wiring: made and tried on a real SGLang on the CPU, written into the docs.

    .venv/bin/python tests/wiring/table.py --python /opt/sglang/releases/0.5.23/bin/python [--only shifted,eagle]

Every fault gets a server in debug mode; those that can differ between the modes, and all with --full, get one in
production mode too. Each check is tried alone. A server takes one to two minutes on two cores. Each row is put into
the table of the last run (measured.json) as soon as it is there, and docs/wiring-faults.md written from that; --missing
goes on where an interrupted run ended.
"""

from __future__ import annotations

import argparse
import datetime
import json
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

import ansible.module_utils

ansible.module_utils.__path__.append(str(ROOT / "module_utils"))
sys.path[:0] = [str(HERE), str(ROOT / "library"), str(ROOT / "tests" / "cpu_engine")]

import checks
from ansible.module_utils.aerie.accept.prompts import choose_prompts
from ansible.module_utils.aerie.accept.tokenize import TokenizerJob, tokenize
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance.startup import advice_for
from checks import Outcome
from engine_run import Engine, PatchedServer
from faults import FAULTS, OTHER_PAIR, Fault
from render import CHECKS, RECORDED, START, write

PROMPTS = 12
MEASURED = HERE / "measured.json"


@dataclass
class Row:
    """What became of one fault; ``outcomes`` by check."""

    fault: Fault
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    accept_length: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "fault": self.fault.name,
            "what": self.fault.what,
            "right": self.fault.right,
            "accept_length": self.accept_length,
            "checks": {name: vars(one) for name, one in self.outcomes.items()},
        }


class Table:
    """Everything that the rows share: engine, pair, prompts and their ids, the reference."""

    def __init__(self, python: Path, scratch: Path, *, full: bool, files_only: bool) -> None:
        self.full, self.files_only = full, files_only
        scratch.mkdir(parents=True, exist_ok=True)
        self.engine, self.scratch = Engine(python, scratch), scratch
        self.pair = self._pair("pair", "--wirings=all")
        self._pair(OTHER_PAIR, "--flip=0.35")
        self.target = self.pair / "target"
        self.prompts = choose_prompts(PROMPTS)
        self.ids = tokenize(TokenizerJob(str(python), str(self.target)), self.prompts)
        self.reference = scratch / "reference.safetensors"
        self.recorded = scratch / "recorded.safetensors"  # from the right server, which comes first
        checks.make_reference(python, self.pair, self.ids[0], self.reference)

    def _pair(self, name: str, *options: str) -> Path:
        out = self.scratch / name
        maker = ROOT / "tests" / "cpu_engine" / "pair.py"
        subprocess.run([self.engine.python, maker, out, *options], check=True, stdout=subprocess.DEVNULL)
        return out

    def row(self, fault: Fault) -> Row:
        """Try every check on one fault."""
        row, draft = Row(fault), fault.directory(self.pair, self.scratch)
        row.outcomes["draft check"] = checks.draft_check(
            self.target, draft, fault.algorithm, self.engine.release
        )
        if self.files_only:
            return row
        debug = self._run(row, draft, "debug")
        if debug is None:
            return row
        both = self.full or fault.both_modes
        production = self._run(row, draft, "production") if both else debug
        if production is None:
            return row
        row.accept_length = production["accept_length"]
        row.outcomes["accept floor"] = checks.accept_floor(production)
        if not both:
            return row
        found = checks.agrees(debug, production, self.target, draft, self.engine.release)
        row.outcomes["agreement"] = Outcome(found.state == "disagrees", found.sentence)
        return row

    def _run(self, row: Row, draft: Path, mode: str) -> dict[str, Any] | None:
        """Start a server and measure; in debug mode compare hidden states too. None when it did not start."""
        probes = None
        if mode == "debug":
            probes = self.scratch / f"probes-{row.fault.name}"
            probes.mkdir(mode=0o700, exist_ok=True)
        log = self.scratch / f"{row.fault.name}-{mode}.log"
        with log.open("w") as file:
            server = PatchedServer(
                self.engine.python,
                self.pair,
                self.engine.site(mode, row.fault.patches),
                probes,
                port=free_port(),
                draft=str(draft),
                steps=checks.STEPS,
                algorithm=row.fault.algorithm,
                log=file,
            )
            try:
                with server:
                    if probes is not None:
                        self._compare(row, server.address, probes)
                    return checks.measured(
                        server.address, self.prompts, self.ids, self.target, self.engine.python
                    )
            except (RuntimeError, AerieError) as error:
                row.outcomes[START] = Outcome(True, why(error, log))
                return None

    def _compare(self, row: Row, url: str, probes: Path) -> None:
        """Hidden states with the dump of training, and with what was recorded from the right server."""
        python = self.engine.python
        row.outcomes["hidden states"] = checks.hidden_states(url, probes, self.reference, python)
        if row.fault.right:
            checks.record_reference(url, probes, self.ids[0], self.recorded, python)
        if self.recorded.exists():
            row.outcomes[RECORDED] = checks.hidden_states(url, probes, self.recorded, python)


def why(error: Exception, log: Path) -> str:
    """The last error in the log, and the advice that the road gives for it."""
    lines = log.read_text(errors="replace").splitlines()
    errors = [line.strip() for line in lines if "Error:" in line and "sglang::" not in line]
    advice = advice_for(lines)
    said = errors[-1][:200] if errors else str(error)
    return said + (f" ({advice})" if advice else "")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the server ends too
    parser = argparse.ArgumentParser(description="Which check sees which fault of the wiring.")
    parser.add_argument("--python", type=Path, required=True, help="python of a release with the CPU engine")
    parser.add_argument("--scratch", type=Path, default=ROOT / ".cache" / "wiring")
    parser.add_argument(
        "--files-only", action="store_true", help="the draft check alone, which needs no server"
    )
    parser.add_argument("--only", default="", help="names of faults, with commas")
    parser.add_argument("--missing", action="store_true", help="only what no server was started for yet")
    parser.add_argument(
        "--full", action="store_true", help="every fault in production mode too, also where it is the same"
    )
    options = parser.parse_args(argv)
    names = options.only.split(",") if options.only else [one.name for one in FAULTS]
    chosen = [next(one for one in FAULTS if one.name == name) for name in names]
    table = Table(options.python, options.scratch.resolve(), full=options.full, files_only=options.files_only)
    facts = {"date": today(), "release": table.engine.release, "rows": []}
    before = json.loads(MEASURED.read_text()) if MEASURED.exists() else facts
    if before["release"] == facts["release"]:
        facts["rows"] = before["rows"]
    if options.missing:
        tried = {row["fault"] for row in facts["rows"] if len(row["checks"]) > 1}
        chosen = [one for one in chosen if one.name not in tried]
    wrong = []
    for fault in chosen:
        row = table.row(fault).as_dict()
        say(row)
        if not options.files_only and fault.right is any(one["seen"] for one in row["checks"].values()):
            wrong.append(fault.name)
        keep(facts, row)
    if wrong:
        print(f"seen though right, or seen by nothing: {', '.join(wrong)}")
    return 1 if wrong else 0


def today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


def say(row: dict[str, Any]) -> None:
    """One row, for whoever waits."""
    seen = [name for name in (*CHECKS, START) if row["checks"].get(name, {}).get("seen")]
    print(
        f"{row['fault']}: accept length {row['accept_length']}, seen by {', '.join(seen) or 'nothing'}",
        flush=True,
    )
    for name, outcome in row["checks"].items():
        print(f"    {name}: {outcome['text']}", flush=True)


def keep(facts: dict[str, Any], row: dict[str, Any]) -> None:
    """Put a row in its place, what was tried before and not now along with it; write the page."""
    order = [one.name for one in FAULTS]
    rows = {one["fault"]: one for one in facts["rows"]}
    old = rows.get(row["fault"], {})
    if len(row["checks"]) == 1 and old:
        row = {**old, "checks": {**old["checks"], **row["checks"]}}
    rows[row["fault"]] = row
    facts["rows"] = [rows[name] for name in order if name in rows]
    MEASURED.write_text(json.dumps(facts, indent=1) + "\n")
    write(ROOT / "docs" / "wiring-faults.md", facts)


if __name__ == "__main__":
    sys.exit(main())
