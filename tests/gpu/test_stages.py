"""The stages of a GPU run, as far as no GPU is needed: their plans, inventories, and how they read what comes back."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BIN = Path(sys.executable).parent
sys.path.insert(0, str(HERE))

import load
import on_host
import run
import timeline
from record import RELEASE
from stages import PLANS, STEPS, faults, hardening, nccl, production, rounds, side, speed, tuning, two, wiring
from stages.core import (
    Context,
    Done,
    Outcome,
    Step,
    as_json,
    changed,
    codes,
    group_vars,
    passed,
    recaps,
    refused_with,
    unchanged,
    verdict,
)

RECAP = "PLAY RECAP ***\ngpu                        : ok=18   changed={}    unreachable=0    failed=0    skipped=6\n"


@pytest.mark.parametrize(
    ("judge", "status", "output", "good"),
    [
        (passed, 0, "", True),
        (passed, 2, "", False),
        (unchanged, 0, RECAP.format(0), True),
        (unchanged, 0, RECAP.format(1), False),
        (unchanged, 0, "no recap", False),
        (unchanged, 2, RECAP.format(0), False),
        (changed, 0, RECAP.format(3), True),
        (changed, 0, RECAP.format(0), False),
        (production.zero, 0, "zero: true", True),
        (production.zero, 0, "zero: null", False),
        (production.zero, 2, "zero: true", False),
        (production.held, 2, "holders:\n- pid: 1", True),
        (production.held, 0, "holders: []", False),
        (refused_with("accept-length-below-floor"), 2, "1.6 below 2.8 [accept-length-below-floor]", True),
        (refused_with("accept-length-below-floor"), 0, RECAP.format(3), False),
        (refused_with("accept-length-below-floor"), 2, "no space left on device", False),
    ],
)
def test_judges(judge: Any, status: int, output: str, good: bool) -> None:
    assert (judge(Done(status, output, 1.0)) is None) is good


@pytest.mark.parametrize(
    ("given", "value"),
    [("a=false", False), ("a=2.8", 2.8), ("a=/usr/bin/python3", "/usr/bin/python3"), ("a=x=y", "x=y")],
)
def test_settings_keep_their_types(given: str, value: object) -> None:
    assert json.loads(as_json(given)) == {"a": value}


def test_codes_and_recaps_are_read() -> None:
    text = "x [gpu-held]\n[WARNING]: y\nfatal: [gpu]: z [gpu-held] [draft-check-failed]\n" + RECAP.format(2)
    assert codes(text) == ["gpu-held", "draft-check-failed"]
    assert recaps(text + "gpu-w-right : ok=1 changed=0 failed=1\n")["gpu-w-right"] == {
        "ok": 1,
        "changed": 0,
        "failed": 1,
    }


# ---- plans ----


def test_steps_have_names_of_their_own() -> None:
    names = [step.name for step in STEPS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("plan", sorted(PLANS))
def test_a_plan_does_first_what_later_steps_need(plan: str) -> None:
    seen: set[str] = set()
    known = {step.name: step for step in STEPS}
    for group in PLANS[plan]:
        begun = set(seen)
        for chain in run.chains(group):
            before = set(begun)
            for name in chain:
                assert set(known[name].after) <= before, name
                before.add(name)
            seen |= before


# ---- inventories ----

VALIDATE = """\
- hosts: sglang
  gather_facts: false
  connection: local
  tasks:
    - sglang_validate:
        roles: [gpu_host, sglang_install, sglang_server, sglang_tune]
"""

INVENTORIES: dict[str, tuple[list[str], list[side.Instance]]] = {
    "one": ([], []),
    "two": ([two.INVENTORY_TWO], []),
    "apart": (["tests/gpu/inventory-apart"], []),
    "wiring": ([], wiring.instances()),
    "speed": ([], speed.everybody()),
    "presets": ([two.INVENTORY_TWO], nccl.presets()),
    "cards": ([two.INVENTORY_TWO], two.one_each()),
}


@pytest.mark.parametrize("name", INVENTORIES)
def test_inventories_are_valid(tmp_path: Path, name: str) -> None:
    others, instances = INVENTORIES[name]
    (tmp_path / "validate.yml").write_text(VALIDATE)
    (tmp_path / "lock.txt").write_text("sglang==0.5.17 --hash=sha256:" + "0" * 64 + "\n")
    load_of_tuning = {**tuning.LOAD, "sglang_tune_budget_minutes": 3}
    words = ["-i", "tests/gpu/inventory", *(word for other in others for word in ("-i", other))]
    words += ["-e", json.dumps(load_of_tuning)]
    if instances:
        (tmp_path / "side.yml").write_text(json.dumps(side.inventory(instances)))
        words += ["-i", str(tmp_path / "side.yml")]
    done = subprocess.run(
        [str(BIN / "ansible-playbook"), str(tmp_path / "validate.yml"), *words],
        cwd=ROOT,
        env={
            **os.environ,
            "AERIE_GPU_STATE": str(tmp_path),
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "NO_COLOR": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert set(recaps(done.stdout)) == {"gpu", *(one.host for one in instances)}


def test_side_instances_share_no_port_with_anybody() -> None:
    listed = [*wiring.instances(), *speed.everybody(), *nccl.presets(), *two.one_each()]
    ports = (
        [one.port for one in listed]
        + [one.port + 1000 for one in listed]
        + [
            one + more
            for one in (speed.HAND_PORT, speed.PAIR_PORT, speed.PAIR_PORT + 1)
            for more in (0, 1000)
        ]
    )
    assert len(set(ports)) == len(ports)
    assert max(ports) < 32768  # Linux gives those above to whoever connects
    assert len({one.name for one in listed}) == len(listed)


def test_two_gpus_are_split_evenly() -> None:
    """Heads of the carried target: 4 and 2; its draft's the same. Both go into two."""
    assert group_vars(two.INVENTORY_TWO)["sglang_server_arguments"]["tp_size"] == 2
    for heads in (4, 2, 768, 4096, 2048):
        assert heads % 2 == 0


def test_no_inventory_lets_multicast_in() -> None:
    variables = group_vars(two.INVENTORY_TWO)
    assert variables["gpu_host_required_env"] == two.REQUIRED
    for one in [*nccl.presets(), *two.one_each()]:
        text = json.dumps(one.variables)
        assert "nvls" not in text.lower().replace("nccl_nvls_enable", "").replace("nvshmem_disable_nvls", "")
        assert "symm_mem" not in text.lower().replace("torch_symm_mem_disable_multicast", "")
        environment = one.variables.get("sglang_server_environment", variables["sglang_server_environment"])
        assert {name: environment[name] for name in two.REQUIRED} == two.REQUIRED


def test_caches_are_copied_with_their_paths(tmp_path: Path) -> None:
    script = side.seed_script(["b"]).replace("/var/cache", str(tmp_path)).replace("chown", ": chown")
    old = tmp_path / "sglang/default" / RELEASE / "triton"
    old.mkdir(parents=True)
    (old / "__grp__k.json").write_text(json.dumps({"child_paths": {"k.cubin": str(old / "k.cubin")}}))
    (old / "k.cubin").write_bytes(b"\x00" + str(old).encode())
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "seeded", done.stderr
    new = tmp_path / "sglang/b" / RELEASE / "triton"
    assert json.loads((new / "__grp__k.json").read_text())["child_paths"]["k.cubin"] == str(new / "k.cubin")
    assert (new / "k.cubin").read_bytes() == (old / "k.cubin").read_bytes()


# ---- the card's timeline ----

LOG = """\
2026-11-29 16:52:33,000 p=1 u=root n=ansible INFO| TASK [sglang_server : Stop the old server] ***
2026-11-29 16:52:37,624 p=1 u=root n=ansible INFO| TASK [gpu_host : Wait until the GPUs hold nothing] *****
2026-11-29 16:52:38,116 p=1 u=root n=ansible INFO| ok: [gpu]
2026-11-29 16:52:38,120 p=1 u=root n=ansible INFO| TASK [sglang_server : Make the new deployment current] ***
"""


def line(moment: float, *used: int) -> str:
    return json.dumps({"t": moment, "gpus": [{"used": size, "pids": [1] if size else []} for size in used]})


def test_moments_of_the_card_and_of_the_log_are_compared() -> None:
    begin = timeline.tasks(LOG)[0][0]
    text = "\n".join(
        [line(begin - 60, 0), line(begin - 50, 5, 5), line(begin + 4, 5, 0), line(begin + 4.2, 0, 0), '{"t":']
    )
    assert timeline.freed(text, LOG) == [
        {"stop_to_empty_s": 4.2, "empty_to_next_task_s": 0.92, "of_it_before_the_task_s": 0.424}
    ]


def test_a_card_that_was_never_empty_gives_no_moment() -> None:
    begin = timeline.tasks(LOG)[0][0]
    assert timeline.freed(line(begin - 50, 7), LOG) == []


def test_a_card_that_was_empty_before_the_stop_was_not_emptied_by_it() -> None:
    begin = timeline.tasks(LOG)[0][0]
    assert timeline.freed("\n".join([line(begin - 90, 7), line(begin - 50, 0)]), LOG) == []


# ---- load ----


def entry(server: str, number: int, tok_s: float, **more: Any) -> dict[str, Any]:
    return {"server": server, "round": number, "batch": 1, "tok_s": tok_s, "failures": [], "gained": 30, "verifies": 10,
            "histograms": [1, 2], **more}  # fmt: skip


def test_servers_are_compared_round_by_round() -> None:
    entries = [entry("a", n, 100.0 * (1 + n)) for n in range(5)] + [
        entry("b", n, 50.0 * (1 + n)) for n in range(5)
    ]
    found = load.compare(entries, "a", "b", 1)
    assert found == {"ratio": 2.0, "interval": [2.0, 2.0], "rounds": 5}


def test_a_round_that_failed_is_left_out() -> None:
    entries = [entry("a", 0, 100.0), entry("b", 0, 100.0, failures=["HTTP 500"])]
    assert load.compare(entries, "a", "b", 1) is None
    assert load.rates(entries, "b", 1) is None


def test_a_burst_is_summed_without_the_token_of_the_prefill() -> None:
    answers = [
        {"completion_tokens": 65, "spec_verify_ct": 16, "spec_correct_drafts_histogram": [3, 5, 8]},
        {"completion_tokens": 65, "spec_verify_ct": 16, "spec_correct_drafts_histogram": [1, 1]},
    ]
    found = load.summary(answers, [], 0.5, 2)
    assert (found["tokens"], found["tok_s"], found["accept_length"]) == (130, 260.0, 4.0)
    assert found["histograms"] == [4, 6, 8]
    assert load.summary([{"completion_tokens": 5}], [], 0.5, 1)["accept_length"] is None


def test_findings_name_the_best_chain() -> None:
    speeds = {
        "s1": 100.0,
        "s3": 130.0,
        "s5": 120.0,
        "base": 90.0,
        "s5-eager": 40.0,
        "base-eager": 30.0,
        "by-hand": 120.0,
    }
    entries = [entry(name, n, speed_) for name, speed_ in speeds.items() for n in range(3)]
    turns = [entry(name, 0, speeds[name]) for name in ("s5", "s5-eager", "base", "base-eager")]
    found = speed.findings(entries, turns)
    assert found["graphs"]["1"]["speculative"]["ratio"] == 3.0
    assert found["best"]["1"]["chain"] == "s3"
    assert found["best"]["1"]["against_baseline"]["ratio"] == pytest.approx(1.4444)
    assert found["aerie_against_by_hand"]["1"]["ratio"] == 1.0
    assert found["gain"]["8"] is None


def made_rounds(acceptance: float = 0.7) -> list[dict[str, Any]]:
    """Measurements of chains 1 to 10 whose cycle costs 1 ms and 0.1 ms a step, at batch 1, with a little noise."""
    entries = []
    for steps in (*range(11),):
        name = f"s{steps}" if steps else "base"
        histogram = [round(1000 * acceptance**a * (1 - acceptance)) for a in range(steps)] + [
            round(1000 * acceptance**steps)
        ]
        length = 1 + sum(acceptance**j for j in range(1, steps + 1))
        for number in range(3):
            rows = [
                {"prompt": p, "tokens": 128, "ttft": 0.01, "histogram": histogram if steps else [],
                 "seconds": 0.01 + 127 * (0.001 + 0.0001 * steps) / length * (1 + 0.002 * ((p + number) % 3))}
                for p in range(8)
            ]  # fmt: skip
            seconds = sum(row["seconds"] for row in rows)
            entries.append(
                {
                    "server": name,
                    "round": number,
                    "batch": 1,
                    "failures": [],
                    "seconds": seconds,
                    "rows": rows,
                }
            )
    return entries


def test_the_search_is_tried_on_measured_chains() -> None:
    pytest.importorskip("scipy")
    import predicted

    found = predicted.evaluate(made_rounds(), 1)
    assert found is not None
    assert found["found_it"], found
    assert len(found["started"]) <= found["allowance"] == 4
    assert found["largest_off"] < 0.05
    assert speed.judge_search({"1": found}) is None
    assert "off by" in str(speed.judge_search({"1": {**found, "largest_off": 0.2}}))
    assert "not tried" in str(speed.judge_search({"error": "no numpy"}))


# ---- what the playbooks print ----

ROAD = """\
TASK [sglang_server : What the gates measured] ***
ok: [gpu-w-deep] =>
    msg: |-
        accept length 2.4000 [2.1000, 2.7000]
ok: [gpu-w-right] =>
    msg: |-
        accept length 3.6 [3.2642, 4.0385]
"""
COMPARED = """\
gpu-w-deep | FAILED! =>
    changed: false
    msg: |-
        the draft does not get what it was trained on [hidden-states-differ]
    next: "set sglang_server_training_layers"
    state: other-layers
    verdict: segment 1 carries the output of layer 12; the draft was trained on the
        output of layer 1
"""


def test_each_host_is_read_by_itself() -> None:
    deep, right = (wiring.measured(ROAD, f"gpu-w-{name}") for name in ("deep", "right"))
    assert (deep, right) == ([2.4, 2.1, 2.7], [3.6, 3.2642, 4.0385])
    states = verdict(COMPARED)
    assert (states["state"], states["codes"]) == ("other-layers", ["hidden-states-differ"])
    assert states["verdict"].endswith("was trained on the output of layer 1")
    found = {"accept_length": deep, "hidden_states": states}
    assert wiring.stopped(found, Done(0, "", 1), 2.8) == ["hidden-states", "accept-length"]
    assert wiring.stopped({"accept_length": right}, Done(0, "", 1), 2.8) == []


def test_what_the_road_says_is_kept() -> None:
    text = """\
TASK [sglang_server : What the draft gets] ***
ok: [gpu] =>
    msg: every segment matches

TASK [sglang_server : What the gates measured] ***
ok: [gpu] =>
    msg: |-
        accept length 3.6 [3.2, 4.0]
        agrees with debug mode
TASK [sglang_server : Admit connections] ***
changed: [gpu]
"""
    assert rounds.said(text) == [
        "every segment matches",
        "accept length 3.6 [3.2, 4.0]",
        "agrees with debug mode",
    ]


def test_a_wrong_draft_that_nothing_stops_is_told() -> None:
    row = {"case": "off-by-one", "expected": ["hidden-states"], "stopped_by": []}
    assert "off-by-one" in str(wiring.judge([row]))
    assert wiring.judge([{**row, "stopped_by": ["hidden-states", "accept-length"]}]) is None
    assert wiring.judge([{"case": "right", "expected": [], "stopped_by": ["accept-length"]}])


def test_tree_judgement() -> None:
    clean = {"checked": 900, "wrong": [], "extra": []}
    assert rounds.judge_tree(clean, patched=False) is None
    assert rounds.judge_tree(clean, patched=True)
    assert rounds.judge_tree({**clean, "extra": ["sglang/srt/aerie_probe.py"]}, patched=False)
    assert rounds.judge_tree({"error": "no such file"}, patched=False)


def test_the_way_back_is_to_what_was_accepted() -> None:
    before = {"unit": "active", "current": "a", "accepted": "a"}
    assert faults.came_back(before, before) is None
    assert faults.came_back(before, {**before, "unit": "inactive"})
    assert faults.came_back(before, {**before, "current": "b"})


def test_refusals_before_sglang() -> None:
    good = {name: f"status 1\n{name} is not set\nExecMainPID=0" for name in two.REQUIRED}
    found: dict[str, Any] = {"road": {"status": 2}, **good, "lines_of_sglang": "0"}
    assert two.judge_refusals(found) is None
    assert "SGLang was loaded" in str(two.judge_refusals({**found, "lines_of_sglang": "1"}))
    assert "not refused" in str(
        two.judge_refusals({**found, "NCCL_NVLS_ENABLE": "status 0\nNCCL_NVLS_ENABLE"})
    )
    assert "no unit" in str(
        two.judge_refusals({**found, "NCCL_NVLS_ENABLE": "no-unit\nstatus 5 NCCL_NVLS_ENABLE"})
    )


def test_system_calls_are_counted() -> None:
    text = 'audit: type=1326 audit(1): comm="sglang::schedul" exe="/x" sig=0 syscall=203 compat=0\nother\n'
    assert hardening.blocked(text * 2) == {"203": 2}
    assert hardening.exposure("→ Overall exposure level for sglang-default.service: 1.9 OK 🙂") == 1.9


def test_starts_are_compared_over_whole_rounds() -> None:
    rounds = [
        {"seconds": {"unit": 42.0, "hand": 40.0, "tree": 41.0}},
        {"seconds": {"unit": 41.0, "hand": None, "tree": None}},
    ]
    fine = speed.judge_ready({"rounds": rounds})
    assert (fine.why, fine.facts["ratio"]) == (None, 1.05)
    assert fine.facts["against by hand"] == {"unit": 1.05, "tree": 1.025}
    assert speed.judge_ready({"rounds": [{"seconds": {"unit": 43.0, "hand": 40.0}}]}).why
    assert "no round" in str(speed.judge_ready({"error": "ssh"}).why)


def test_how_far_a_start_was_when() -> None:
    began = time.mktime((2026, 11, 30, 5, 57, 14, 0, 0, -1)) + 0.7
    log = (
        "[2026-11-30 05:56:34] server_args=ServerArgs(...)\n"  # an earlier start
        "[2026-11-30 05:57:25] server_args=ServerArgs(...)\n"
        "[2026-11-30 05:57:37] Init torch distributed begin.\n"
        "[2026-11-30 05:57:38] Init torch distributed begin.\n"
        "[2026-11-30 05:57:45] The server is fired up and ready to roll!\n"
    )
    assert on_host.marks(log, began) == {"arguments": 10.3, "scheduler": 22.3, "fired up": 30.3}


def test_a_rehearsal_is_kept_by_nobody(tmp_path: Path) -> None:
    import keep

    (tmp_path / "record.json").write_text(json.dumps({"date": "2026-11-29", "rehearsal": "double"}))
    with pytest.raises(SystemExit, match="doubles"):
        keep.keep(tmp_path, "x", tmp_path / "results", "/checkout")


# ---- a call ----


def made(name: str, why: str | None = None, after: tuple[str, ...] = ()) -> Step:
    return Step(name, 1, name, lambda context: Outcome(why), after)


def test_chains_go_on_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two steps that stand side by side wait for each other; the one that needs a failed one is left out."""
    meet = threading.Barrier(2, timeout=10)

    def waiting(context: Context) -> Outcome:
        meet.wait()
        return Outcome()

    steps = [
        Step("a", 1, "a", waiting),
        Step("b", 1, "b", waiting),
        made("c", "bad"),
        made("d", None, ("c",)),
    ]
    monkeypatch.setattr(run, "BY_NAME", {step.name: step for step in steps})
    monkeypatch.setattr(run, "UNSEEN", [step.name for step in steps])
    monkeypatch.setattr(run, "RUN", tmp_path)
    monkeypatch.setattr(run, "write", lambda *_: None)
    record: dict[str, Any] = {"steps": [], "not_run": {}}
    call = run.Run(record, [], tmp_path, time.monotonic() + 60, False, [])
    call.group("a/c/d+b")
    assert {one["name"]: one["ok"] for one in record["steps"]} == {"a": True, "b": True, "c": False}
    assert record["not_run"] == {"d": "needs c"}


def test_the_verdict_on_nccl_names_what_differs() -> None:
    turns = {"n-default": [1.0, 1.01, 0.99], "n-ll128": [0.9, 0.91, 0.9], "n-tree": [1.0, 1.02, 0.98],
             "c-default": [0.8, 0.81, 0.8], "c-ll-ring-sys": [0.8, 0.8, 0.81]}  # fmt: skip
    said = nccl.verdict(turns)["sentence"]
    assert "Without custom all-reduce: n-ll128 takes 0.903" in said
    assert "n-tree" not in said
    assert "With it: none of c-ll-ring-sys differs" in said
    assert "custom all-reduce takes 0.80" in said
    assert nccl.verdict({"n-default": [1.0]})["sentence"] == "too few turns to say anything"


def test_cards_apart_are_looked_at_apart() -> None:
    """The second card is never empty; the first is, from 2 on."""
    looks = [(1.0, [5, 5]), (2.0, [0, 5]), (4.0, [3, 5])]
    text = "\n".join(
        json.dumps({"t": t, "gpus": [{"used": used, "pids": []} for used in both]}) for t, both in looks
    )
    stamp = datetime.fromtimestamp
    log = "\n".join(
        f"{stamp(t):%Y-%m-%d %H:%M:%S},{int(t % 1 * 1000):03d} p=1 | TASK [{name}] ****"
        for t, name in (
            (1.0, "x : Stop the old server"),
            (1.5, "x : Wait until the GPUs hold nothing"),
            (3.0, "x"),
        )
    )
    assert timeline.emptied(text, 1.5) == [0.5, None]
    assert timeline.freed(text, log) == []
    found = timeline.freed(text, log, [0])
    assert [one["empty_to_next_task_s"] for one in found] == [1.0]


# ---- what is kept ----


def test_a_record_is_kept_with_a_line_for_each_figure(tmp_path: Path) -> None:
    import tarfile

    import keep

    out, run = tmp_path / "out", tmp_path / "run"
    (run / "reports/default").mkdir(parents=True)
    out.mkdir()
    (run / "reports/default/hidden-states-gpu.html").write_text("<html>")
    for case in ("deep", "off-by-one"):
        (run / f"hidden-states-w-{case}.html").write_text("<html>")
    (run / "production.log").write_text("\n".join(f"/checkout/roles: {n}" for n in range(500)))
    (run / "production.ansible.log").write_text("x")
    machine = {"torch": "2.11.0", "gpu": "NVIDIA H200", "kernel": "6.18", "host": "Ubuntu\nsystemd"}
    table = [{"case": "off-by-one", "stopped_by": ["hidden-states"], "accept_length": [3.5, 3.2, 3.9]}]
    back = {"seconds": 40, "gpu": [], "said": ["a|b"]}
    record = {
        "date": "2026-11-29T17:00:00+00:00", "commit": "abc", "release": "0.5.17", "machine": machine,
        "steps": [{"name": "wiring", "ok": True, "seconds": 90.1, "facts": {"table": table}},
                  {"name": "round-1", "ok": True, "seconds": 80, "facts": {"back": back}}],
        "not_run": {"tune": "12 s left, 330 s needed"},
    }  # fmt: skip
    (out / "record.json").write_text(json.dumps(record))
    (out / "record.md").write_text("# x")
    with tarfile.open(out / "logs.tar.gz", "w:gz") as archive:
        archive.add(run, "logs")
    place = keep.keep(out, "one-h200", tmp_path / "results", "/checkout")
    assert place.name == "2026-11-29-one-h200"
    text = (place / "README.md").read_text()
    assert "| draft off-by-one | stopped by hidden-states; accept length [3.5, 3.2, 3.9];" in text
    assert "| round-1, back: the road said | a/b | round-1 |" in text
    assert "Not run: tune: 12 s left, 330 s needed." in text
    assert (place / "logs/production.log").read_text().splitlines()[0] == "./roles: 380"
    assert (place / "reports/default/hidden-states-gpu.html").exists()
    assert [page.name for page in place.glob("*.html")] == ["hidden-states-w-off-by-one.html"]
    assert not (place / "logs/production.ansible.log").exists()


# ---- the reference ----


def test_the_reference_is_the_definition_of_a_llama() -> None:
    """One layer with hand-made weights: attention that looks only back, and the sum after the layer."""
    torch = pytest.importorskip(
        "torch", reason="torch is in no list of this project; the GPU machine's image has it"
    )
    import reference

    config = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2, "hidden_size": 4, "rms_norm_eps": 0.0,
              "num_hidden_layers": 1}  # fmt: skip
    torch.manual_seed(0)
    shapes = {"self_attn.q_proj": (4, 4), "self_attn.k_proj": (2, 4), "self_attn.v_proj": (2, 4)}
    shapes |= {
        "self_attn.o_proj": (4, 4),
        "mlp.gate_proj": (6, 4),
        "mlp.up_proj": (6, 4),
        "mlp.down_proj": (4, 6),
    }
    weights = {f"model.layers.0.{name}.weight": torch.randn(*shape) for name, shape in shapes.items()}
    weights["model.embed_tokens.weight"] = torch.randn(5, 4)
    for name in ("input_layernorm", "post_attention_layernorm"):
        weights[f"model.layers.0.{name}.weight"] = torch.ones(4)
    whole = reference.layer_outputs(weights, config, [1, 2, 3])[0]
    alone = reference.layer_outputs(weights, config, [1])[0]
    assert torch.allclose(whole[0], alone[0], atol=1e-6)
    normed = reference.rms_norm(torch.tensor([3.0, 4.0]), torch.ones(2), 0.0)
    assert normed.tolist() == pytest.approx([3 / math.sqrt(12.5), 4 / math.sqrt(12.5)])
    turned = reference.rotate(torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]]), 10000.0)
    assert turned[1, 0].tolist() == pytest.approx([math.cos(1), math.sin(1)])
