"""The files of a sweep on the controller: ``sweep.json`` (what was asked), ``results.jsonl`` (a line a setting).

A line is written when its setting is finished, in one write that is synced, so a run that is killed loses at most the
setting that it was at. A line that was cut off is left out. The next run with the same request goes on there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.aerie.files import read_json, write_json
from ansible.module_utils.aerie.measure.tune_errors import NOTHING_TO_COMPARE, REPLACED, WITHOUT_EFFECT

REQUEST, LINES, RESULTS = "sweep.json", "results.jsonl", "results.json"


def identity(request: Mapping[str, Any]) -> str:
    """Two requests with the same identity may share measurements. Budget and presets may differ; the server may not."""
    same = {name: request[name] for name in ("kind", "host", "instance", "base", "server", "load")}
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16]


def begin(folder: Path, request: Mapping[str, Any], *, resume: bool, several: bool) -> tuple[Path, bool]:
    """The sweep's directory and whether it goes on with an unfinished one. ``folder``: of the instance."""
    folder.mkdir(parents=True, exist_ok=True)
    name = identity(request)
    if resume:
        for old in sorted(folder.glob("*/" + REQUEST), reverse=True):
            place = old.parent
            known = read_json(old)
            unfinished = (
                isinstance(known, dict) and known.get("identity") == name and not (place / RESULTS).exists()
            )
            if unfinished and why_no_base(lines(place)) is None:
                write_json(old, {**request, "identity": name, "began": known.get("began")})
                return place, True
    place = _fresh(folder, str(request["host"]) if several else "")
    write_json(place / REQUEST, {**request, "identity": name, "began": time.time()})
    return place, False


def _fresh(folder: Path, host: str) -> Path:
    """A directory named after the moment, and the host where a run has several."""
    stamp = time.strftime("%Y-%m-%dT%H-%M-%S")
    for number in range(100):
        tail = [part for part in (host, str(number) if number else "") if part]
        place = folder / "-".join([stamp, *tail])
        try:
            place.mkdir()
        except FileExistsError:
            continue
        return place
    raise FileExistsError(str(folder / stamp))


def append(place: Path, record: Mapping[str, Any]) -> None:
    """Keep one finished setting."""
    line = json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"
    path = place / LINES
    torn = path.exists() and path.stat().st_size and path.read_bytes()[-1:] != b"\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(handle, (("\n" if torn else "") + line).encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def lines(place: Path) -> list[dict[str, Any]]:
    """What was kept, whole lines only."""
    found = []
    try:
        text = (place / LINES).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and "setting" in record:
            found.append(record)
    return found


def why_no_base(known: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The failure of the inventory's own setting, with which all others are compared; None when it was measured, or was
    not tried yet."""
    base = [line for line in known if line["setting"].get("kind") == "base"]
    return (base[-1].get("failure") or {}) if base and base[-1]["status"] == "failed" else None


def check_base(known: Sequence[Mapping[str, Any]]) -> None:
    """Raise an ``AerieError`` when the inventory's own setting could not be measured."""
    failure = why_no_base(known)
    if failure is None:
        return
    again = "put right what failed, and run again; it begins anew"
    if failure.get("code") == "accept-output-degenerate":
        again = (
            "ask for fewer tokens (sglang_tune_max_new_tokens) or other prompts (sglang_tune_prompts_file), "
            "and run again"
        )
    raise NOTHING_TO_COMPARE.error(
        f"the inventory's own setting could not be measured: {failure.get('step') or 'it failed'}",
        evidence=str(failure.get("message") or "no message").splitlines(),
        next=again,
    )


def check_measured(
    known: Sequence[Mapping[str, Any]], setting: Mapping[str, Any], digest: str, ran: Mapping[str, Any]
) -> None:
    """Raise an ``AerieError`` when a measurement is not one of its setting.

    known: the journal's lines. digest: of the deployment that was measured. ran: what the host said afterwards.
    """
    if not digest:
        return
    if ran and ran.get("digest") != digest:
        raise REPLACED.error(
            f"deployment {digest} was measured, and {ran.get('digest') or 'no deployment'} is there afterwards",
            next="see who else changes the instance (its lease, its journal), and run again",
        )
    for line in known:
        if line.get("digest") == digest and line["setting"]["key"] != setting["key"]:
            raise WITHOUT_EFFECT.error(
                f"the deployment is the very one of {line['setting']['name']}",
                next="take sglang_server_speculative, _arguments and _environment out of -e, into the inventory",
            )


def code_in(message: str) -> str:
    """The error's code in a message for people, where it stands in brackets; empty without one."""
    found = re.search(r"\[([a-z0-9]+(?:-[a-z0-9]+)+)\]", message)
    return found.group(1) if found else ""
