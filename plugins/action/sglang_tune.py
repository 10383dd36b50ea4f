"""The controller's part of benchmark, profile and tune: which setting is next, what was measured, the report.

It asks no host. Its state is the journal under ``reports/``, so a run that is killed goes on where it was.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible import constants
from ansible.plugins.action import ActionBase

# On a host Ansible makes the cores importable; in this process nobody does. Here, since workers are forked: NumPy and
# SciPy are imported once in a run, not in each task.
for _place in constants.DEFAULT_MODULE_UTILS_PATH or ():
    if _place not in ansible.module_utils.__path__:
        ansible.module_utils.__path__.append(_place)

from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie_reports import journal
from ansible.module_utils.aerie_reports.asked import resolved
from ansible.module_utils.aerie_reports.sweep import Record, Sweep, next_step

ROOT = Path(__file__).resolve().parents[2]


class ActionModule(ActionBase):
    """``state``: begun, next, again, recorded, reported."""

    _requires_connection = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        args = self._task.args
        steps = {
            "begun": self._begun,
            "next": self._next,
            "again": self._again,
            "recorded": self._recorded,
            "reported": self._reported,
        }
        try:
            outcome = steps[str(args["state"])](args, task_vars or {})
        except AerieError as error:
            return {**result, "failed": True, **error.as_result()}
        return {**result, "changed": False, **outcome}

    def _begun(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        request = resolved(args["request"])
        request["host"] = task_vars.get("inventory_hostname", "host")
        Sweep.from_dict(request)  # refuses a base without a chain, whoever calls
        if self._task.check_mode:
            return {"directory": "", "resumed": False, "known": []}
        folder = Path(str(args.get("reports_dir") or ROOT / "reports")).expanduser() / request["instance"]
        several = len(task_vars.get("ansible_play_hosts_all") or []) > 1
        place, resumed = journal.begin(
            folder, request, resume=bool(args.get("resume", True)), several=several
        )
        known = [line["setting"]["name"] for line in journal.lines(place)]
        self._say(task_vars, f"{'going on with' if resumed else 'keeping results in'} {place}")
        if known:
            self._say(task_vars, f"known already: {', '.join(known)}")
        return {"directory": str(place), "resumed": resumed, "known": known}

    def _next(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        if self._task.check_mode:
            return {"done": True, "text": "check mode: nothing is started"}
        place = Path(str(args["directory"]))
        journal.check_base(journal.lines(place))
        sweep, records = _loaded(place)
        step = next_step(sweep, records)
        if step.setting is None:
            self._say(task_vars, f"{len(records)} settings are known: {step.text}")
            return {"done": True, "text": step.text, "setting": {}}
        self._say(task_vars, f"setting {len(records) + 1}: {step.setting.name} ({step.text})")
        return {"done": False, "text": step.text, "setting": step.setting.as_dict(), "at": time.time()}

    def _again(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        from dataclasses import replace

        place = Path(str(args["directory"]))
        sweep, records = _loaded(place)
        setting = replace(sweep.base, kind="again", name=f"{sweep.base.name}, again")
        first = any(r.setting.kind == "base" and r.status == "measured" for r in records)
        done = not first or any(r.setting.kind == "again" for r in records)
        return {"done": done, "setting": setting.as_dict(), "at": time.time()}

    def _recorded(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        place = Path(str(args["directory"]))
        measured = args.get("result") or {}
        setting, digest = dict(args["setting"]), str(args.get("digest") or "")
        ran = args.get("ran") or {}
        failure = args.get("failure") or {}
        try:
            if not failure:
                journal.check_measured(journal.lines(place), setting, digest, ran)
        except AerieError as error:
            failure = {"code": error.kind.code, "message": error.message()}
        if failure and not failure.get("code"):
            failure = {**failure, "code": journal.code_in(str(failure.get("message") or ""))}
        keep = ("batches", "acceptance", "prompt_set", "generator", "profile", "trace")
        result = {name: measured[name] for name in keep if name in measured}
        record = {
            "v": 1,
            "t": round(time.time(), 1),
            "setting": setting,
            "status": "failed" if failure else "measured",
            "digest": digest,
            "seconds": round(time.time() - float(args["since"]), 1),
            "failure": failure,
            "result": {} if failure else {**result, "all_reduce": ran.get("all_reduce")},
        }
        journal.append(place, record)
        outcome = f"failed, {failure.get('code') or failure.get('message')}" if failure else ""
        self._say(task_vars, f"{setting['name']}: {outcome or '; '.join(measured.get('summary') or [])}")
        return {"record": {name: record[name] for name in ("status", "digest", "seconds", "failure")}}

    def _reported(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        from ansible.module_utils.aerie_reports.report import write_report

        place = Path(str(args["directory"]))
        sweep, records = _loaded(place)
        about = json.loads((place / "sweep.json").read_text(encoding="utf-8"))
        results = write_report(place, sweep, records, about, final=bool(args.get("final", True)))
        self._say(task_vars, f"report: {place / 'report.html'}")
        chosen = next((r for r in records if r.setting.name == results["recommended"]), None)
        return {
            "report": str(place / "report.html"),
            "verdict": results["verdict"],
            "inventory": results["inventory"],
            "floor": results["floor"],
            "recommended": chosen.setting.as_dict() if chosen else {},
            "speedups": _speedups(results),
        }

    def _say(self, task_vars: dict[str, Any], text: str) -> None:
        self._display.display(f"  {task_vars.get('inventory_hostname', 'host')}: {text}")


def _loaded(place: Path) -> tuple[Sweep, list[Record]]:
    request = json.loads((place / journal.REQUEST).read_text(encoding="utf-8"))
    return Sweep.from_dict(request), [Record.from_dict(line) for line in journal.lines(place)]


def _speedups(results: dict[str, Any]) -> dict[str, Any]:
    """For the host's record: speed against no speculation of each deployment, by batch size."""
    return {
        s["digest"]: {size: b["speedup"] for size, b in s["batches"].items() if b["speedup"]}
        for s in results["settings"]
        if s["status"] == "measured" and s["kind"] != "again" and s["digest"] and s["steps"] > 0
    }
