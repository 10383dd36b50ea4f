"""The page of the fault matrix: what it counts, and that it hides nothing that was not run; the points of the kills."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FAULTS = Path(__file__).resolve().parents[1] / "faults"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(FAULTS))

    def one(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"faults_{name}", FAULTS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    yield one
    sys.modules.pop("results", None)


TESTS = [{"kind": "cut", "test": f"test_cut[{case}]", "what": "Unplugged."} for case in "abcd"]


def test_a_fault_counts_by_its_last_run_and_what_was_not_run_is_named(load: Any) -> None:
    runs = [
        ("a", "failed", "2026-11-01", "1111111"),
        ("a", "passed", "2026-11-03", "2222222"),
        ("b", "failed", "2026-11-02", "1111111"),
        ("d", "passed", "2026-11-03", "2222222"),
    ]
    lines: list[dict[str, Any]] = [{"all": TESTS}]
    lines += [
        {**TESTS["abcd".index(case)], "outcome": how, "at": at, "commit": of} for case, how, at, of in runs
    ]
    lines[-1] |= {"rest": "7", "detail": "3 of 3 kills converge; 7 not run"}
    text = load("__main__").page(lines)
    assert "4 faults: 1 survived, 1 failed, 1 survived in part, 1 not run." in text
    assert (
        "Seen 2026-11-02 to 2026-11-03, with different states of the code: 2 with 2222222, 1 with 1111111."
        in text
    )
    assert "| cut | Unplugged. | a | survived, 2026-11-03 2222222 |" in text
    assert "| cut | Unplugged. | b | failed, 2026-11-02 1111111 |" in text
    assert "| cut | Unplugged. | c | not run |" in text
    assert "| d | survived in part, 3 of 3 kills converge; 7 not run, 2026-11-03 2222222 |" in text


def test_outcomes_of_one_commit_are_said_to_be(load: Any) -> None:
    lines: list[dict[str, Any]] = [{"all": TESTS[:1]}]
    lines.append({**TESTS[0], "outcome": "passed", "at": "2026-11-03", "commit": "2222222"})
    text = load("__main__").page(lines)
    assert (
        "1 faults: 1 survived, 0 failed, 0 not run.\nAll with the code of commit 2222222, 2026-11-03." in text
    )


def event(n: int, kind: str, t: float, **more: Any) -> dict[str, Any]:
    return {"n": n, "event": kind, "t": t, **more}


def test_points_are_the_recorded_runs_boundaries_and_the_middle_of_what_changes(load: Any) -> None:
    events = [
        event(0, "task", 0.0, name="Validate the inventory"),
        event(0, "ok", 1.0, changed=False),
        event(1, "task", 1.0, name="sglang_server : Compare what is asked with what runs"),
        event(1, "ok", 2.0, changed=False),
        event(2, "task", 2.0, name="sglang_server : Bring it into service"),
        event(2, "skipped", 2.0),
        event(3, "task", 2.0, name="sglang_server : Stop the old server"),
        event(3, "ok", 6.0, changed=True),
        event(
            4, "task", 6.0, name="sglang_server : Check its sockets, admit connections, record it as accepted"
        ),
        event(4, "ok", 7.0, changed=False),
        event(5, "task", 7.0, name="sglang_server : Tell the pipeline"),
    ]
    points = load("points")
    found = points.points_of("debug", events)
    assert [one.name for one in found if not one.delay] == [
        "debug: before Compare what is asked with what runs",
        "debug: before Stop the old server",
        "debug: before Check its sockets, admit connections, record it as accepted",
        "debug: before Tell the pipeline",
    ]
    assert [(one.task, one.how, one.delay) for one in found if one.delay] == [
        ("Compare what is asked with what runs", "inside", 0.5),
        ("Compare what is asked with what runs", "everything, inside", 0.8),
        ("Stop the old server", "inside", 2.0),
        ("Stop the old server", "everything, inside", 3.2),
        ("Check its sockets, admit connections, record it as accepted", "inside", 0.5),
        ("Check its sockets, admit connections, record it as accepted", "everything, inside", 0.8),
    ]
    done = {found[0].name: {"wrong": "", "hit": False}, found[-1].name: {"wrong": "x", "hit": True}}
    assert points.told(found, done).startswith("1 of 2 kills converge: 1 at a boundary, 0 of the controller")
    assert points.told(found, done).endswith(
        "(1 of the latter two before the module had answered); 8 not run"
    )
    twice = [*events, event(6, "task", 8.0, name="gpu_host : Stop the old server"), event(6, "ok", 9.0)]
    twice += [
        event(
            7, "task", 9.0, name="sglang_server : Check its sockets, admit connections, record it as accepted"
        ),
        event(7, "ok", 9.0),
    ]
    with pytest.raises(ValueError, match="Stop the old server"):
        points.points_of("debug", twice)


def test_kills_come_in_rows_of_one_kind_in_the_order_of_the_road(load: Any) -> None:
    points = load("points")
    all_of_them = [
        points.Point(mode, str(n), 0.0 if how == points.BOUNDARY else 1.0, how)
        for mode in ("debug", "production")
        for how in (points.BOUNDARY, points.INSIDE)
        for n in range(25 if how == points.BOUNDARY else 3)
    ]
    rows = points.chains_of(all_of_them)
    assert sorted(one.name for row in rows for one in row) == sorted(one.name for one in all_of_them)
    assert [row[0].mode for row in rows] == ["debug", "production"] * 4
    for row in rows:
        assert len(row) <= points.LONGEST
        assert len({(one.mode, one.how) for one in row}) == 1
        assert [int(one.task) for one in row] == sorted(int(one.task) for one in row)
    assert points.chains_of([]) == []
    halves = points.share_of(rows, "1/2"), points.share_of(rows, "2/2")
    assert [*halves[0], *halves[1]] == points.share_of(rows, "1/1") == rows
    assert abs(len(halves[0]) - len(halves[1])) <= 1


def test_the_tasks_that_faults_wait_for_are_there(load: Any) -> None:
    roles = FAULTS.parents[1] / "roles"
    names = [
        line.partition("- name: ")[2].strip('"')
        for path in roles.glob("*/tasks/*.yml")
        for line in path.read_text().splitlines()
        if "- name: " in line
    ]
    text = "".join(path.read_text() for path in FAULTS.glob("test_*.py"))
    waited = re.findall(r'wait_for\("([^"]+)"\)', text) + re.findall(
        r'^        "([A-Z][a-z]+ [^"]+)",$', text, re.M
    )
    points = load("points")
    assert len(waited) > 8
    assert not [one for one in [*waited, points.FIRST, points.LAST] if not any(one in name for name in names)]
