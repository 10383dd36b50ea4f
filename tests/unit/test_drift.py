"""Reality against the record: each thing that can be changed beside Aerie is named."""

from __future__ import annotations

import base64
import hashlib
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.aerie.instance import drift, witness
from ansible.module_utils.aerie.instance.reality import Reality
from ansible.module_utils.aerie.instance.state import FAILED, STOPPED, SWITCHED, InstanceState, InstanceStore
from ansible.module_utils.aerie.patch.store import FileRecord, Manifest, PatchStore
from test_plan import ABSENT, DONE, DOWN, LIVE, RUNNING, UNIT

ACCEPTED_AS = {"digest": "x", "start_ticks": 5000}
LESS = {name: value for name, value in LIVE["environment"].items() if name != "NCCL_ALGO"}


@pytest.mark.parametrize(
    ("seen", "lines"),
    [
        (RUNNING, []),
        (replace(RUNNING, environment=LESS), ["process 100 lacks the variable NCCL_ALGO"]),
        (
            replace(RUNNING, process=replace(RUNNING.process, command=["/x"], start_ticks=7000)),
            ["process 100 runs with other arguments than recorded", "restarted since its gates passed"],
        ),
        (
            replace(RUNNING, process=replace(RUNNING.process, start_ticks=7000), unit=replace(UNIT, restarts=2)),
            ["restarted since its gates passed, 2 times by systemd"],
        ),
        (replace(RUNNING, unit_text="edited"), ["unit file sglang-default.service was edited"]),
        (replace(RUNNING, unit_text=None), ["the unit file is gone"]),
        (replace(RUNNING, unit=replace(UNIT, file_state="disabled")), ["accepted, but disabled at boot"]),
        (replace(RUNNING, running="other"), ["runs deployment other, accepted is " + DONE.accepted]),
        (
            replace(ABSENT, unit_text=LIVE["unit"], unit=replace(DOWN, active="failed")),
            ["accepted, but the unit is failed"],
        ),
        (
            replace(ABSENT, unit_text=LIVE["unit"], unit=replace(DOWN, active="activating", sub="auto-restart")),
            ["accepted, but the unit is activating (in a restart loop)"],
        ),
        (
            replace(ABSENT, unit_text="", unit=replace(DOWN, load="masked", file_state="masked")),
            ["unit file sglang-default.service was edited", "the unit is masked",
             "accepted, but the unit is inactive"],
        ),
    ],
)  # fmt: skip
def test_unit_and_process(seen: Reality, lines: list[str]) -> None:
    assert drift.of_run(LIVE, seen, DONE, ACCEPTED_AS) == lines


def test_a_server_that_a_person_stopped_is_no_drift() -> None:
    stopped = InstanceState(phase=STOPPED, accepted=DONE.accepted)
    assert drift.of_run(LIVE, replace(ABSENT, unit_text=LIVE["unit"]), stopped, ACCEPTED_AS) == []
    assert drift.of_run(LIVE, RUNNING, stopped, ACCEPTED_AS) == ["runs although its record says stopped"]


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (InstanceState(phase=FAILED, failure="Gates: too low\nmore"), "the last run failed: Gates: too low"),
        (InstanceState(phase=SWITCHED), "a run switched to it and did not gate it"),
        (DONE, None),
    ],
)
def test_a_run_that_did_not_end(record: InstanceState, line: str | None) -> None:
    assert drift.of_unfinished(record) == ([line] if line else [])


THEN: dict[str, Any] = {
    "driver": "580.159.03",
    "models": {"draft": {"config.json": [9, 1], "model.safetensors": [100, 5], "tokenizer.json": [7, 5]}},
    "own": {"config.yaml": [10, 3]},
}


@pytest.mark.parametrize(
    ("now", "lines"),
    [
        (THEN, []),
        ({**THEN, "driver": "590.44"}, ["NVIDIA driver 580.159.03 -> 590.44 since its gates passed"]),
        ({**THEN, "driver": ""}, ["NVIDIA driver 580.159.03 -> none since its gates passed"]),
        (
            {**THEN, "models": {"draft": {"config.json": [9, 2], "model.safetensors": [100, 6]}}},
            ["draft model: tokenizer.json gone", "draft model: model.safetensors replaced since its gates passed"],
        ),
        ({**THEN, "models": {}}, ["draft model is gone"]),
        ({**THEN, "own": {"config.yaml": [11, 3]}}, ["deployment: config.yaml replaced since its gates passed"]),
    ],
)  # fmt: skip
def test_driver_models_and_own_files(now: dict[str, Any], lines: list[str]) -> None:
    assert drift.of_witness(THEN, now) == lines


def test_without_a_witness_nothing_is_said() -> None:
    assert drift.of_witness({}, THEN) == []


def test_release_disk_and_port() -> None:
    release = {"release": "0.5.23", "python": "/opt/v/bin/python", "lock_sha256": "aa"}
    assert drift.of_release(release, {"lock_sha256": "aa"}, True) == []
    assert drift.of_release(release, None, True) == []
    assert "gone" in drift.of_release(release, None, False)[0]
    assert "another lock" in drift.of_release(release, {"lock_sha256": "bb"}, True)[0]
    assert drift.of_disk("/d", 1 << 40, 1 << 40) == []
    assert drift.of_disk("/d", 100 << 20, 1 << 40) == [
        "disk nearly full: /d has 100 MiB free, 512 are needed"
    ]
    assert drift.of_disk("/d", 1 << 40, 3) == ["disk nearly full: /d has room for 3 files"]
    assert drift.of_port(30000, ["pid 7 (user alice): x", "  since"]) == [
        "port 30000 is held by pid 7 (user alice): x"
    ]


def test_many_files_are_counted() -> None:
    (line,) = drift.of_sources([f"changed: sglang/{n}.py" for n in range(9)])
    assert line.endswith("sglang/4.py and 4 more")


def test_the_error_names_instances_and_differences() -> None:
    assert drift.error_of([{"instance": "a", "drift": []}]) is None
    error = drift.error_of([{"instance": "a", "drift": ["one", "two"]}, {"instance": "b", "drift": []}])
    assert error is not None
    assert error.what == "2 differences from the record: a"
    assert error.evidence == ["a: one", "a: two"]


# -- the tree ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    """A small package with its RECORD, as a deployment holds it."""
    site = tmp_path / "site"
    info = site / "sglang-0.5.23.dist-info"
    info.mkdir(parents=True)
    rows = ["../../bin/sglang,sha256=x,3", "sglang-0.5.23.dist-info/RECORD,,"]
    for name in ("sglang/__init__.py", "sglang/srt/model.py", "sglang/srt/patched.py"):
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
        digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{path.stat().st_size}")
    (info / "RECORD").write_text("\n".join(rows) + "\n")
    time.sleep(0.01)
    (tmp_path / "spec.json").write_text("{}")
    return tmp_path


def patch(deployment: Path) -> Path:
    """Patch one file as the role does: with a manifest beside it."""
    path = deployment / "site" / "sglang" / "srt" / "patched.py"
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_text("# patched\n")
    after = hashlib.sha256(path.read_bytes()).hexdigest()
    store = PatchStore(deployment / "site")
    store.create()
    record = FileRecord(before, after, "record")
    store.write("manifest", Manifest("0.5.23", [], {"sglang/srt/patched.py": record}))
    return path


@pytest.mark.parametrize("full", [False, True])
def test_a_tree_as_it_was_built(deployment: Path, full: bool) -> None:
    assert witness.changed_sources(deployment, full=full) == []
    patch(deployment)
    assert witness.changed_sources(deployment, full=full) == []


def test_a_debug_print_in_a_source_file(deployment: Path) -> None:
    path = deployment / "site" / "sglang" / "srt" / "model.py"
    path.write_text("print('x')\n" + path.read_text())
    (deployment / "site" / "sglang" / "extra.py").write_text("")
    assert witness.changed_sources(deployment) == ["changed: sglang/srt/model.py", "extra: sglang/extra.py"]
    path.unlink()
    assert "missing: sglang/srt/model.py" in witness.changed_sources(deployment)


def test_an_edit_of_the_same_size_with_its_old_time(deployment: Path) -> None:
    path = deployment / "site" / "sglang" / "srt" / "model.py"
    seen = path.stat()
    path.write_text(path.read_text().replace("#", "!"))
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    # The inode's own time tells, so even the quick look hashes it.
    assert witness.changed_sources(deployment) == ["changed: sglang/srt/model.py"]


def test_an_edit_of_a_patched_file(deployment: Path) -> None:
    patch(deployment).write_text("# patched, and edited\n")
    assert witness.changed_sources(deployment) == ["changed: sglang/srt/patched.py (patched by Aerie)"]


def test_a_source_checkout_has_nothing_to_compare_with(tmp_path: Path) -> None:
    (tmp_path / "site" / "sglang").mkdir(parents=True)
    assert witness.changed_sources(tmp_path) == []


def test_a_witness_sees_weights_that_were_replaced(tmp_path: Path) -> None:
    store = InstanceStore(str(tmp_path / "state"), "default")
    (store.deployment("aa") / "draft").mkdir(parents=True)
    (store.deployment("aa") / "config.yaml").write_text("{}")
    model = tmp_path / "draft"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"x" * 10)
    spec = {"models": {"draft": {"path": str(model)}}}
    witness.keep(store, "aa", spec)
    then = witness.load(store, "aa")
    assert drift.of_witness(then, witness.take(store, "aa", spec)) == []
    (model / "model.safetensors").write_bytes(b"y" * 10)
    assert drift.of_witness(then, witness.take(store, "aa", spec)) == [
        "draft model: model.safetensors replaced since its gates passed"
    ]
    assert witness.load(store, "") == {}


def test_free_space_of_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    free, files = witness.free_space(tmp_path / "a" / "b")
    assert free > 0
    assert files > 0
