"""The probes of the patch sets debug and profile, without torch: what they record, when, and that they harm nothing.

What needs torch is tested with the real server (tests/cpu_engine/test_probes.py) and on a GPU (tests/gpu/probes.py).
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

CATALOGUE = Path(__file__).resolve().parents[2] / "roles" / "sglang_patches" / "files" / "catalogue"


class Tensor:
    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def __len__(self) -> int:
        return self.shape[0]


@pytest.fixture
def probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Imports the probes as the server does, from a package `sglang.srt`; takes the environment."""
    srt = tmp_path / "site" / "sglang" / "srt"
    srt.mkdir(parents=True)
    for package in (srt.parent, srt):
        (package / "__init__.py").write_text("")
    for probe in CATALOGUE.glob("aerie_*.py"):
        (srt / probe.name).write_bytes(probe.read_bytes())
    torch = types.ModuleType("torch")
    torch.cuda = SimpleNamespace(is_available=lambda: False)
    torch.compiler = SimpleNamespace(is_compiling=lambda: False)
    monkeypatch.syspath_prepend(srt.parents[1])
    monkeypatch.setitem(sys.modules, "torch", torch)

    def imported(name: str, **environment: str) -> Any:
        for variable in ("EAGLE3_DEBUG", "EAGLE3_DEBUG_DIR", "EAGLE3_DEBUG_FORWARDS", "AERIE_PROFILE_DIR"):
            monkeypatch.delenv(variable, raising=False)
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        module = importlib.import_module(f"sglang.srt.{name}")
        if name == "aerie_probe":
            state = importlib.import_module("sglang.srt.aerie_probe_state")
            monkeypatch.setattr(state, "summary", lambda x, values=True: {"shape": list(x.shape)})
        return module

    yield imported
    for name in [name for name in sys.modules if name == "sglang" or name.startswith("sglang.")]:
        del sys.modules[name]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def model(*captured: int) -> SimpleNamespace:
    return SimpleNamespace(layers=[object()] * 8, layers_to_capture=list(captured))


def batch(mode: str = "EXTEND") -> SimpleNamespace:
    return SimpleNamespace(forward_mode=SimpleNamespace(name=mode))


def debug(probes, place: Path, **more: str) -> Any:
    return probes("aerie_probe", EAGLE3_DEBUG="1", EAGLE3_DEBUG_DIR=str(place), **more)


def forward(probe: Any, captured: SimpleNamespace) -> None:
    probe.forward_begins(captured, batch())
    probe.aux_captured(captured, [Tensor(4, 8) for _ in captured.layers_to_capture])


@pytest.mark.parametrize("environment", [{}, {"EAGLE3_DEBUG_DIR": "here"}, {"EAGLE3_DEBUG": "1"}])
def test_nothing_without_both_variables(
    probes, tmp_path: Path, environment: dict[str, str], monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    forward(probes("aerie_probe", **environment), model(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["site"]


def test_one_line_a_captured_layer(probes, tmp_path: Path) -> None:
    probe = debug(probes, tmp_path / "d")
    forward(probe, model(6, 2, 4))
    found = lines(tmp_path / "d" / "events.jsonl")
    assert [(one["event"], one["index"], one["layer"]) for one in found] == [
        ("layers_to_capture", None, None),
        ("aux_capture", 0, 2),
        ("aux_capture", 1, 4),
        ("aux_capture", 2, 6),
    ]
    assert found[0]["values"] == [2, 4, 6]
    assert {(one["forward"], one["mode"], one["where"], one["model"]) for one in found} == {
        (0, "extend", "SimpleNamespace.forward", "target")
    }
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "d" / "events.jsonl").stat().st_mode & 0o777 == 0o600


def test_the_first_forwards_only(probes, tmp_path: Path) -> None:
    probe = debug(probes, tmp_path, EAGLE3_DEBUG_FORWARDS="2")
    for _ in range(4):
        forward(probe, model(2))
    found = [one["forward"] for one in lines(tmp_path / "events.jsonl") if one["event"] == "aux_capture"]
    assert found == [0, 1]


def test_an_arm_records_again_and_an_old_one_does_not(probes, tmp_path: Path) -> None:
    arm = tmp_path / "arm.json"
    arm.write_text(json.dumps({"id": "old", "forwards": 9}))
    os.utime(arm, (time.time() - 60,) * 2)
    probe = debug(probes, tmp_path, EAGLE3_DEBUG_FORWARDS="0")
    forward(probe, model(2))
    assert [one for one in lines(tmp_path / "events.jsonl") if one["event"] == "aux_capture"] == []
    for name in ("a", "b", "b"):
        arm.write_text(json.dumps({"id": name, "forwards": 1}))
        os.utime(arm, (time.time() + 60,) * 2)
        for _ in range(2):
            forward(probe, model(2))
    found = [one for one in lines(tmp_path / "events.jsonl") if one["event"] == "aux_capture"]
    assert [(one["arm"], one["forward"]) for one in found] == [("a", 0), ("b", 0)]


def test_an_arm_of_no_forwards_is_silent(probes, tmp_path: Path) -> None:
    probe = debug(probes, tmp_path, EAGLE3_DEBUG_FORWARDS="1")
    forward(probe, model(2))
    before = lines(tmp_path / "events.jsonl")
    (tmp_path / "arm.json").write_text(json.dumps({"id": "off", "forwards": 0}))
    forward(probe, model(2))
    assert lines(tmp_path / "events.jsonl") == before != []


def test_layers_are_told_again_only_when_they_change(probes, tmp_path: Path) -> None:
    probe = debug(probes, tmp_path)
    for captured in (model(2), model(2), model(3)):
        forward(probe, captured)
    probe.layers_set(SimpleNamespace(model=model(5)))
    found = [one["values"] for one in lines(tmp_path / "events.jsonl") if one["event"] == "layers_to_capture"]
    assert found == [[2], [3], [5]]


def test_an_index_that_no_layer_has_is_never_captured(probes, tmp_path: Path) -> None:
    probe = debug(probes, tmp_path)
    probe.forward_begins(model(2, 99), batch())
    probe.aux_captured(model(2, 99), [Tensor(4, 8)])
    assert [one["layer"] for one in lines(tmp_path / "events.jsonl") if one["event"] == "aux_capture"] == [2]


def test_marked_layers_count(probes) -> None:
    """Qwen's MoE models mark layers, and what a graph runner marked first stays marked."""
    probe = probes("aerie_probe")
    marked = SimpleNamespace(layers=[SimpleNamespace(_is_layer_to_capture=i in (1, 3)) for i in range(5)])
    assert probe.layers_of(marked) == [1, 3]


@pytest.mark.parametrize(
    ("mode", "width", "event"),
    [("EXTEND", 24, "draft_input"), ("EXTEND", 8, "draft_input"), ("DECODE", 8, "draft_hidden")],
)
def test_what_the_draft_is_given(probes, tmp_path: Path, mode: str, width: int, event: str) -> None:
    probe = debug(probes, tmp_path)
    forward(probe, model(2))
    probe.draft_input(object(), Tensor(4, width), Tensor(4, 8), batch(mode))
    probe.draft_fc(object(), Tensor(4, 8))
    found = [
        (one["event"], one["shape"][-1])
        for one in lines(tmp_path / "events.jsonl")
        if one["model"] == "draft"
    ]
    assert found == [(event, width), ("draft_fc", 8)][: 1 if mode == "DECODE" else 2]


def test_a_failure_is_told_once_and_swallowed(probes, tmp_path: Path) -> None:
    probe = debug(probes, tmp_path)
    for _ in range(3):
        probe.forward_begins(model(2), batch())
        probe.aux_captured(model(2), 7)
    found = [one for one in lines(tmp_path / "events.jsonl") if one["event"] == "probe_error"]
    assert [(one["where"], one["error"].split(":")[0]) for one in found] == [("aux_captured", "TypeError")]


def test_a_directory_that_cannot_be_made_harms_nothing(probes, tmp_path: Path, capfd) -> None:
    (tmp_path / "file").write_text("")
    probe = debug(probes, tmp_path / "file" / "d")
    forward(probe, model(2))
    assert "aerie_probe: " in capfd.readouterr().err


# -- profile -------------------------------------------------------------------------------------------------------


def worker(profile: Any, *, inside: bool = False) -> Any:
    """A cycle as the workers run it, by a clock of its own. inside: extend is a part of verify, as in 0.5.3.post2."""
    now = [0.0]
    profile.time = SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    given = SimpleNamespace(seq_lens=Tensor(2))
    result = SimpleNamespace(accept_length_per_req_cpu=[1, 3])

    def draft() -> None:
        aerie_phase = profile.phase("draft", given)  # noqa: F841
        now[0] += 0.002

    def verify() -> None:
        aerie_phase = profile.phase("verify", given)  # noqa: F841
        now[0] += 0.004
        if inside:
            extend()
        profile.gained(result)

    def extend() -> None:
        aerie_phase = profile.phase("extend", given)  # noqa: F841
        now[0] += 0.006

    def cycle() -> None:
        draft()
        verify()
        if not inside:
            extend()

    return cycle


@pytest.mark.parametrize("inside", [False, True])
def test_a_line_a_cycle(probes, tmp_path: Path, inside: bool) -> None:
    profile = probes("aerie_profile", AERIE_PROFILE_DIR=str(tmp_path))
    cycle = worker(profile, inside=inside)
    for _ in range(3):
        cycle()
    profile.prefill()
    found = lines(tmp_path / "cycles.jsonl")
    assert len(found) == 3
    for one in found:
        assert (one["batch"], one["accepted"], one["clock"], one["worker"]) == (2, 6, "monotonic", "v1")
        assert (one["draft_ms"], one["verify_ms"], one["extend_ms"]) == (2, 4, 6)
    assert [one["cycle_ms"] for one in found] == [12, 12, None]


def test_the_other_ranks_dummy_batches_are_no_cycles(probes, tmp_path: Path) -> None:
    profile = probes("aerie_profile", AERIE_PROFILE_DIR=str(tmp_path))
    assert profile.phase("draft", SimpleNamespace(seq_lens=Tensor(0))) is None
    profile.prefill()
    assert lines(tmp_path / "cycles.jsonl") == []


def test_a_failure_ends_the_measuring(probes, tmp_path: Path) -> None:
    profile = probes("aerie_profile", AERIE_PROFILE_DIR=str(tmp_path))
    worker(profile)()
    profile.gained(SimpleNamespace(accept_length_per_req_cpu=[None]))
    worker(profile)()
    assert [one.get("event") for one in lines(tmp_path / "cycles.jsonl")] == ["probe_error"]


def test_nothing_is_measured_without_a_directory(probes) -> None:
    profile = probes("aerie_profile")
    assert profile.phase("draft", None) is None
    profile.gained(None)
    profile.prefill()
