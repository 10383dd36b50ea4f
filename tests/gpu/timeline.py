#!/usr/bin/env python3
"""Memory and pids of every GPU as NVML shows them, one JSON line a change: `tests/gpu/timeline.py FILE`.

Runs outside the host for as long as a run takes, so that moments of Ansible's log can be compared with the card's.
Times are seconds since the epoch. Used bytes are those of memory info version 2, without the driver's reserve.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

EVERY_S = 0.02


def look(nvml: Any, handles: list[Any]) -> list[dict[str, Any]]:
    found = []
    for handle in handles:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        pids = sorted(process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        found.append({"used": memory.used, "pids": pids})
    return found


def main() -> None:
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    last: list[dict[str, Any]] = []
    with Path(sys.argv[1]).open("a") as out:
        while True:
            now = look(pynvml, handles)
            if now != last:
                out.write(json.dumps({"t": round(time.time(), 3), "gpus": now}) + "\n")
                out.flush()
                last = now
            time.sleep(EVERY_S)


def changes(text: str) -> list[tuple[float, list[int], list[list[int]]]]:
    """(time, used bytes by GPU, pids by GPU) of each line; a line that was cut is left out."""
    found = []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            found.append(
                (entry["t"], [one["used"] for one in entry["gpus"]], [one["pids"] for one in entry["gpus"]])
            )
        except (ValueError, KeyError):
            continue
    return found


def tasks(ansible_log: str) -> list[tuple[float, str]]:
    """(time, name) of each task of an Ansible log, local time."""
    pattern = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) .*\| TASK \[(.*?)\] \**$", re.MULTILINE)
    return [
        (datetime.fromisoformat(moment).timestamp() + int(millis) / 1000, name)
        for moment, millis, name in pattern.findall(ansible_log)
    ]


def freed(timeline: str, ansible_log: str, cards: Sequence[int] | None = None) -> list[dict[str, float]]:
    """For each wait until the GPUs hold nothing: seconds from the stop to the first empty look of NVML at ``cards``
    (None: all), from that to the next task, and how many of those passed before the waiting task began (the launcher
    ends after its memory is free)."""
    seen, named = _of(changes(timeline), cards), tasks(ansible_log)
    found = []
    for number, (began, name) in enumerate(named[:-1]):
        if not name.endswith("Wait until the GPUs hold nothing"):
            continue
        following = next((t for t, other in named[number + 1 :] if other != name), None)
        stop = next((t for t, other in reversed(named[:number]) if "Stop the old server" in other), began)
        empty = _empty_since(seen, following or began)
        # Cards that were empty before the stop were not emptied by it: the server had died.
        if following is None or empty is None or empty < stop:
            continue
        found.append(
            {
                "stop_to_empty_s": round(max(0.0, empty - stop), 3),
                "empty_to_next_task_s": round(following - empty, 3),
                "of_it_before_the_task_s": round(max(0.0, began - empty), 3),
            }
        )
    return found


def emptied(timeline: str, moment: float) -> list[float | None]:
    """For each card the seconds from ``moment`` (since the epoch) to NVML's first look at it without memory in use;
    None where there was none."""
    looks = [(t, used) for t, used, _ in changes(timeline)]
    cards = len(looks[-1][1]) if looks else 0
    return [
        next((round(t - moment, 3) for t, used in looks if t >= moment and not used[card]), None)
        for card in range(cards)
    ]


def _of(
    seen: list[tuple[float, list[int], list[list[int]]]], cards: Sequence[int] | None
) -> list[tuple[float, list[int], list[list[int]]]]:
    """The same looks at some of the cards."""
    if cards is None:
        return seen
    return [(t, [used[card] for card in cards], [pids[card] for card in cards]) for t, used, pids in seen]


def _empty_since(seen: list[tuple[float, list[int], list[list[int]]]], until: float) -> float | None:
    """When the last stretch of empty cards before ``until`` began."""
    since: float | None = None
    for moment, used, _ in seen:
        if moment > until:
            break
        if any(used):
            since = None
        elif since is None:
            since = moment
    return since


if __name__ == "__main__":
    main()
