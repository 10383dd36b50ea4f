"""A sweep over made servers: order, budget, failures, journal, results and report."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie_reports import journal, report
from ansible.module_utils.aerie_reports.analysis import analyse, recommended
from ansible.module_utils.aerie_reports.report import write_report
from ansible.module_utils.aerie_reports.settings import (
    PRESETS,
    chain_of,
    presets_for,
    try_custom_all_reduce,
    variations,
)
from ansible.module_utils.aerie_reports.sweep import Record, Sweep, next_step
from ansible.module_utils.aerie_reports.words import floor_for
from tune_made import World

CHAT = (0.75, 0.68, 0.6, 0.55, 0.5, 0.45, 0.4, 0.35, 0.3, 0.3)
BASE = {
    "speculative": {"algorithm": "EAGLE3", "num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4},
    "arguments": {"tensor_parallel_size": 8},
    "environment": {"NCCL_PROTO": "Simple", "OMP_NUM_THREADS": "1"},
}
EFFECT = {"LL/Ring/SYS": 0.8, "page 64": 0.99}
ABOUT = {
    "host": "gpu1",
    "instance": "kimi",
    "base": BASE,
    "server": {"release": "0.5.23", "target": "/m/target", "draft": "/m/draft", "max_running_requests": 48},
    "load": {"prompts": 24, "max_new_tokens": 256},
}


def request(**changes: Any) -> dict[str, Any]:
    asked = {
        "kind": "tune",
        "host": "gpu1",
        "instance": "kimi",
        "base": BASE,
        "server": ABOUT["server"],
        "load": ABOUT["load"],
        "lengths": list(range(1, 11)),
        "presets": ["NCCL default", "LL/Ring/SYS"],
        "custom_all_reduce": False,
        "candidates": [{"name": "page 64", "arguments": {"page_size": 64}}],
        "batch_sizes": [1],
        "exhaustive": False,
        "budget_minutes": 0,
        "budget_restarts": 0,
    }
    return {**asked, **changes}


def world(draft: float = 0.0006, effect: float = 1.0) -> World:
    def cycle(k: int) -> float:
        return effect * (0.0184 if k == 0 else 0.0204 + draft * k + 0.0004 * (k + 1))

    return World(CHAT, cycle, seed=4)


def result(record_of: Any, draft: float, run: int) -> dict[str, Any]:
    """What sglang_benchmark would return for a setting."""
    effect = next((e for name, e in EFFECT.items() if name in record_of.name), 1.0)
    measured = world(draft, effect).measure(record_of.steps, run)
    rows = [{**r, "itl": (r["seconds"] - r["ttft"]) / (r["tokens"] - 1)} for r in measured.rows]
    found: dict[str, Any] = {"batches": [{"batch": 1, "rows": rows, "concurrency": 1.0}]}
    if record_of.steps:
        requests = [{**r, "verify_ct": sum(r["histogram"])} for r in measured.requests]
        found["acceptance"] = {"rows": requests, "accept_length": 2.4, "accept_length_interval": [2.3, 2.5]}
    return found


def play(
    asked: dict[str, Any], *, failing: str = "never", draft: float = 0.0006
) -> tuple[Sweep, list[Record]]:
    """Start what the sweep names until it names nothing, then the first once more."""
    sweep, records = Sweep.from_dict(asked), []
    for number in range(40):
        step = next_step(sweep, records)
        if step.setting is None:
            break
        assert step.setting.key not in {r.setting.key for r in records}, "measured twice"
        if failing in step.setting.name:
            why = {"code": "start-timeout", "message": "it did not start\nNext: look"}
            records.append(Record(step.setting, "failed", {}, 60.0, why))
        else:
            done = result(step.setting, draft, 0)
            records.append(Record(step.setting, "measured", done, 60.0, {}, f"digest{number}"))
    again = replace(sweep.base, kind="again", name="again")
    records.append(Record(again, "measured", result(sweep.base, draft, 5), 60.0, {}))
    return sweep, records


def names(records: list[Record]) -> list[str]:
    return [record.setting.name for record in records]


def test_order_of_a_tune() -> None:
    _, records = play(request())
    assert names(records)[:3] == ["as in the inventory (3 steps)", "no speculation", "10 steps"]
    assert names(records)[-4:-1] == [
        f"{chain}, {what}"
        for chain in [names(records)[-2].split(",")[0]]
        for what in ("NCCL default", "LL/Ring/SYS", "page 64")
    ]
    assert sum(r.setting.kind == "chain" for r in records) <= 4


def test_order_of_a_benchmark() -> None:
    _, records = play(request(kind="benchmark"))
    assert names(records) == ["as in the inventory (3 steps)", "no speculation", "again"]


def test_a_benchmark_needs_no_chain_but_a_tune_does() -> None:
    tree = {**BASE, "speculative": {**BASE["speculative"], "eagle_topk": 4, "num_draft_tokens": 16}}
    Sweep.from_dict(request(kind="benchmark", base=tree))
    with pytest.raises(AerieError) as caught:
        Sweep.from_dict(request(base=tree))
    assert caught.value.kind.code == "tune-no-chain"


def test_a_failed_setting_does_not_stop_the_sweep() -> None:
    sweep, records = play(request(), failing="LL/Ring/SYS")
    assert "page 64" in names(records)[-2]
    verdict = " ".join(analyse(sweep, records)["verdict"])
    assert re.search(r"Failed: \d+ steps, LL/Ring/SYS \(start-timeout\)", verdict)


def test_the_longest_chain_may_fail() -> None:
    sweep, records = play(request(), failing="10 steps")
    assert "9 steps" in names(records)
    assert analyse(sweep, records)["predictions"][-1]["steps"] == 9


@pytest.mark.parametrize(("budget", "started"), [(1, 1), (2, 2)])
def test_restarts_are_bounded(budget: int, started: int) -> None:
    _, records = play(request(budget_restarts=budget))
    assert sum(r.setting.kind in ("chain", "preset", "extra") for r in records) == started


def test_minutes_are_bounded() -> None:
    _, records = play(request(budget_minutes=4))  # a minute each
    assert len(records) == 5


def test_exhaustive_starts_every_chain() -> None:
    _, records = play(request(exhaustive=True, presets=[], candidates=[]))
    assert sum(r.setting.kind == "chain" for r in records) == 9  # and the inventory's own


def test_results_name_the_best_with_lines_for_the_inventory() -> None:
    sweep, records = play(request())
    results = analyse(sweep, records)
    assert results["recommended"].endswith("LL/Ring/SYS")
    written = yaml.safe_load(results["inventory"])
    assert written == results["variables"]
    assert written["sglang_server_environment"] == {"OMP_NUM_THREADS": "1", **PRESETS["LL/Ring/SYS"]}
    assert "against no speculation" in results["verdict"][0]
    errors = [abs(p["error"]) for p in results["predictions"] if p["error"] is not None]
    assert errors
    assert max(errors) < 0.06


def test_speculation_off_is_said() -> None:
    sweep, records = play(request(presets=[], candidates=[]), draft=0.05)
    results = analyse(sweep, records)
    assert results["recommended"] == "no speculation"
    assert results["verdict"][0].startswith("Speculation should be off at batch 1")
    assert yaml.safe_load(results["inventory"]) == {"sglang_server_speculative": {}}


@pytest.mark.parametrize(
    ("floor", "before", "after", "expected"),
    [
        (2.5, 3.29, 1.8, 1.52),  # 65 % of what is gained beside the bonus token
        (2.5, 3.29, 2.299, 1.85),  # rounded down
        (0.0, 3.29, 1.8, 0.0),
        (2.5, None, 1.8, 0.0),
        (1.5, 1.0, 1.8, 0.0),
    ],
)
def test_a_floor_goes_with_its_chain(
    floor: float, before: float | None, after: float, expected: float
) -> None:
    assert floor_for(floor, before, after) == expected


def test_the_floor_is_part_of_what_is_recommended() -> None:
    sweep, records = play(request(floor=1.9))
    results = analyse(sweep, records)
    assert results["recommended"] == "4 steps, LL/Ring/SYS"
    assert results["variables"]["sglang_server_min_accept_length"] == results["floor"] == 1.9
    assert yaml.safe_load(results["inventory"]) == results["variables"]


def test_a_machine_that_was_not_quiet_is_what_the_verdict_begins_with() -> None:
    sweep, records = play(request(presets=[], candidates=[]))
    slow = replace(records[-1], result=result(sweep.base, 0.05, 5))
    results = analyse(sweep, [*records[:-1], slow])
    assert results["verdict"][0].startswith("The machine was not quiet")
    # The figure above it is not shown as a gain.
    assert [report._hero(one)["tone"] for one in (results, analyse(sweep, records))] == ["#b96a0c", "#0f8a63"]
    # Nor where the drift was seen at another batch size, and the interval at this one still shows a gain (on an H200).
    elsewhere = {**analyse(sweep, records), "drift": results["drift"]}
    assert report._hero(elsewhere)["tone"] == "#b96a0c"


def test_the_inventory_stays_where_nothing_is_clearly_faster() -> None:
    sweep, records = play(request(lengths=[3, 4], presets=[], candidates=[]))
    assert recommended(sweep, records) is records[0]
    assert "No other setting was clearly faster" in " ".join(analyse(sweep, records)["verdict"])


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        (0.0006, "Speculation gives x "),
        (0.05, "Speculation loses at batch 1 (x 0."),
        (0.0077, "no difference"),
    ],
)
def test_benchmark_verdict(draft: float, said: str) -> None:
    sweep, records = play(request(kind="benchmark"), draft=draft)
    verdict = analyse(sweep, records)["verdict"]
    assert said in verdict[0]
    assert any("could not have been seen" in sentence for sentence in verdict)


def test_presets_follow_the_topology() -> None:
    nvlink = [{"nvlinks": 18, "p2p": True}] * 28
    pcie = [{"nvlinks": 0, "p2p": False}] * 28
    assert presets_for([], None) == []
    assert "LL/Ring/SYS" not in presets_for(nvlink, None)
    assert "LL/Ring/SYS" in presets_for(pcie, None)
    assert "no P2P" not in presets_for(pcie, None)
    assert presets_for([], ["LL"]) == ["LL"]
    assert try_custom_all_reduce(nvlink, None)
    assert not try_custom_all_reduce(pcie, None)
    assert try_custom_all_reduce(pcie[:1], None)
    with pytest.raises(AerieError) as caught:
        presets_for([], ["LL129"])
    assert caught.value.kind.code == "tune-preset-unknown"


def test_variations_take_out_what_another_preset_set_and_skip_what_runs() -> None:
    on = chain_of(Sweep.from_dict(request()).base, 2)
    default, ll = variations(on, ["NCCL default", "LL"], False, [])
    assert default.environment == {"OMP_NUM_THREADS": "1"}
    assert ll.environment["NCCL_PROTO"] == "LL"
    assert variations(default, ["NCCL default"], False, []) == []
    off = variations(on, [], True, [])[0]
    assert off.arguments["disable_custom_all_reduce"] is True
    assert "disable_custom_all_reduce" not in variations(off, [], True, [])[0].arguments


def test_a_killed_sweep_goes_on_and_a_finished_one_does_not(tmp_path: Path) -> None:
    place, resumed = journal.begin(tmp_path, request(), resume=True, several=False)
    assert not resumed
    journal.append(place, {"setting": {"name": "one"}, "status": "measured"})
    with (place / journal.LINES).open("a") as file:
        file.write('{"setting": {"name": "cut o')  # killed in the middle of a line
    again, resumed = journal.begin(tmp_path, request(budget_restarts=3), resume=True, several=False)
    assert (again, resumed) == (place, True)
    journal.append(place, {"setting": {"name": "two"}, "status": "measured"})
    assert [line["setting"]["name"] for line in journal.lines(place)] == ["one", "two"]
    (place / journal.RESULTS).write_text("{}")
    assert journal.begin(tmp_path, request(), resume=True, several=False)[0] != place


def test_without_the_inventory_s_own_figures_nothing_else_is_started(tmp_path: Path) -> None:
    place, _ = journal.begin(tmp_path, request(), resume=True, several=False)
    journal.check_base(journal.lines(place))  # not tried yet
    failure = {
        "code": "accept-output-degenerate",
        "step": "Measure its speed and acceptance",
        "message": "4 of 10 answers are loops\n  request 0: 127 of 128 tokens repeat",
    }
    base = {"setting": {"name": "as in the inventory", "kind": "base"}, "failure": failure}
    journal.append(place, {**base, "status": "failed"})
    with pytest.raises(AerieError) as caught:
        journal.check_base(journal.lines(place))
    said = caught.value.message()
    for part in ("4 of 10 answers are loops", "sglang_tune_max_new_tokens", "tune-nothing-to-compare"):
        assert part in said
    # The same command begins anew instead of finding the failure again.
    again, resumed = journal.begin(tmp_path, request(), resume=True, several=False)
    assert again != place
    assert not resumed
    journal.append(place, {**base, "status": "measured", "failure": {}})
    journal.check_base(journal.lines(place))


@pytest.mark.parametrize(
    ("key", "digest", "now", "code"),
    [
        ("2", "aa", {"digest": "aa"}, "tune-setting-without-effect"),
        ("2", "bb", {"digest": "cc"}, "tune-server-replaced"),
        ("2", "bb", {"digest": ""}, "tune-server-replaced"),
    ],
)
def test_figures_of_another_deployment_are_none_of_the_setting(
    key: str, digest: str, now: dict[str, str], code: str
) -> None:
    known = [{"digest": "aa", "setting": {"key": "1", "name": "one"}}]
    journal.check_measured(known, {"key": "1"}, "aa", {"digest": "aa"})  # measured again
    journal.check_measured(known, {"key": "2"}, "bb", {})
    with pytest.raises(AerieError) as caught:
        journal.check_measured(known, {"key": key}, digest, now)
    assert caught.value.kind.code == code


@pytest.mark.parametrize(
    "change", [{"host": "gpu2"}, {"server": {"release": "0.5.22"}}, {"load": {"prompts": 8}}]
)
def test_other_requests_share_no_measurements(tmp_path: Path, change: dict[str, Any]) -> None:
    place, _ = journal.begin(tmp_path, request(), resume=True, several=False)
    other, resumed = journal.begin(tmp_path, request(**change), resume=True, several=True)
    assert other != place
    assert not resumed


def test_records_survive_the_journal(tmp_path: Path) -> None:
    sweep, records = play(request(kind="benchmark"))
    place, _ = journal.begin(tmp_path, request(kind="benchmark"), resume=True, several=False)
    for record in records:
        line = {
            "setting": record.setting.as_dict(),
            "status": record.status,
            "result": record.result,
            "seconds": 60,
        }
        journal.append(place, line)
    read = [Record.from_dict(line) for line in journal.lines(place)]
    assert analyse(sweep, read)["verdict"] == analyse(sweep, records)["verdict"]


@pytest.mark.parametrize("kind", ["tune", "benchmark"])
def test_the_page_is_whole_and_alone(tmp_path: Path, kind: str) -> None:
    sweep, records = play(request(kind=kind), failing="page 64")
    results = write_report(tmp_path, sweep, records, ABOUT)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == (4 if kind == "tune" else 1)
    assert not re.search(r"(src|href)=\"(?!#)", page.replace("xlink:href", "href")), "it loads something"
    assert "url(http" not in page
    assert json.loads((tmp_path / "results.json").read_text())["verdict"] == results["verdict"]
    assert yaml.safe_load((tmp_path / "best.yml").read_text()) == results["variables"]
    if kind == "tune":
        assert "failed: start-timeout" in page
        assert "it did not start" in page
    assert "stand-in kernels" not in page


@pytest.mark.parametrize(("host", "shown"), [("gpu1", True), ("gpu2", False)])
def test_the_parts_of_a_cycle_come_from_a_profile_of_the_same_server(
    tmp_path: Path, host: str, shown: bool
) -> None:
    parts = {name: {"share": 0.25, "median_ms": 5.0} for name in ("draft", "verify", "extend", "rest")}
    left = {
        "kind": "profile",
        "written": "2026-11-01T10:00:00+0000",
        "about": {**ABOUT, "host": host},
        "profile": [{"batch": 1, "cycle_ms": 20.0, "parts": parts}],
    }
    for name in ("before", "now"):
        (tmp_path / name).mkdir()
    (tmp_path / "before" / "results.json").write_text(json.dumps(left))
    sweep, records = play(request())
    results = write_report(tmp_path / "now", sweep, records, ABOUT)
    assert bool(results["parts"]["batches"]) == shown
    page = (tmp_path / "now" / "report.html").read_text()
    assert ("profile.yml on 2026-11-01, with 3 steps" in page) == shown


def test_a_double_is_named(tmp_path: Path) -> None:
    sweep, records = play(request(kind="benchmark"))
    about = {**ABOUT, "base": {**BASE, "arguments": {"device": "cpu"}}}
    write_report(tmp_path, sweep, records, about, final=False)
    assert "stand-in kernels" in (tmp_path / "report.html").read_text()
    assert not (tmp_path / "results.json").exists()


def test_a_sweep_of_failures_has_a_report_too(tmp_path: Path) -> None:
    sweep = Sweep.from_dict(request())
    failed = [Record(sweep.base, "failed", {}, 5.0, {"code": "start-timeout"})]
    results = write_report(tmp_path, sweep, failed, ABOUT)
    assert results["verdict"][0] == "No setting could be measured."
