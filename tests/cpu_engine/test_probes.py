"""The patch sets debug and profile in the real server: one request, every state equal to the pair's truth.

A copy of the engine's package is patched and put first on the import path; the engine itself stays as it is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from serve import Server
from test_engine import free_port
from test_pair import pair  # noqa: F401 - the fixture

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "releases"), str(HERE.parents[1] / "module_utils")]

import fetch

from aerie.patch import catalogue as patch_catalogue
from aerie.patch import site as patch_site
from aerie.patch import tree as patch_tree
from aerie.patch.entry import parse_entries

PROMPT = "Ask: They carry small lanterns, because winter"
LAYERS = 8
# Run by the engine's python, which has torch: event by event, what the tensor shows and how far it is from the truth.
COMPARE = """
import json, sys, torch
from pathlib import Path
from safetensors.torch import load_file
from tokenizers import Tokenizer
pair, probes = Path(sys.argv[1]), Path(sys.argv[2])
truth = load_file(pair / "states.safetensors")["states"].float()
tokens = Tokenizer.from_file(str(pair / "target" / "tokenizer.json")).encode(sys.argv[3]).ids
joined = torch.cat([truth[i][tokens] for i in (2, 4, 6)], -1)
wanted = {"embedding": lambda e: truth[0][tokens], "layer_output": lambda e: truth[e["layer"] + 1][tokens],
          "aux_capture": lambda e: truth[e["layer"]][tokens], "draft_input": lambda e: joined,
          "logits_concat": lambda e: joined}
for event in map(json.loads, (probes / "events.jsonl").read_text().splitlines()):
    if event["arm"] != "test" or event["forward"] != 0 or event["event"] not in wanted:
        continue
    if event["event"] == "logits_concat" and event["model"] != "target":
        continue
    x = load_file(probes / event["tensor"])["x"].float()
    far = (x - wanted[event["event"]](event)).abs().max().item()
    assert list(x.shape) == event["shape"] and abs(x.norm().item() - event["norm"]) < 1e-2
    print(json.dumps([event["event"], event["layer"], list(x.shape), far]))
"""


def patched_copy(engine_python: Path, place: Path) -> Path:
    """A site-packages with the engine's sglang and all patches."""
    script = "import sglang; print(sglang.__path__[0])"
    found = Path(subprocess.check_output([engine_python, "-c", script], text=True).strip())
    shutil.copytree(found, place / "sglang", symlinks=True)
    for info in found.parent.glob("sglang-*.dist-info"):
        shutil.copytree(info, place / info.name)
    entries = parse_entries(patch_catalogue.inline(["fixes", "debug", "profile"]))
    patch_tree.apply(place, patch_site.release_of(place), entries)
    return place


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_every_state_is_the_pairs(engine_python, pair: Path, tmp_path: Path, monkeypatch) -> None:  # noqa: F811
    site = patched_copy(engine_python, tmp_path / "site")
    probes, profile = tmp_path / "probes", tmp_path / "profile"
    monkeypatch.setenv("PYTHONPATH", f"{site}:{os.environ.get('PYTHONPATH', '')}".rstrip(":"))
    monkeypatch.setenv("EAGLE3_DEBUG", "1")
    monkeypatch.setenv("EAGLE3_DEBUG_DIR", str(probes))
    monkeypatch.setenv("AERIE_PROFILE_DIR", str(profile))
    with (tmp_path / "server.log").open("w") as log:
        server = Server(engine_python, pair, port=free_port(), log=log)
        with server:
            (probes / "new").write_text('{"id": "test", "forwards": 1, "tensors": true, "layers": true}')
            (probes / "new").replace(probes / "arm.json")
            server.generate([PROMPT], 16)
            server.generate([" Every", "Tell me"], 40)
    command = [engine_python, "-c", COMPARE, pair, probes, PROMPT]
    compared = [json.loads(line) for line in subprocess.check_output(command, text=True).splitlines()]
    assert [(kind, layer) for kind, layer, _, _ in compared] == [
        ("embedding", None),
        *(("layer_output", layer) for layer in range(LAYERS)),
        *(("aux_capture", layer) for layer in (2, 4, 6)),
        ("logits_concat", None),
        ("draft_input", None),
    ]
    assert [one for one in compared if one[3] != 0] == []
    events = lines(probes / "events.jsonl")
    assert [one for one in events if one["event"] == "probe_error"] == []
    assert {tuple(one["values"]) for one in events if one["event"] == "layers_to_capture"} == {(2, 4, 6)}
    cycles = lines(profile / "cycles.jsonl")
    assert {one["batch"] for one in cycles} == {1, 2}
    for one in cycles:
        phases = one["draft_ms"] + one["verify_ms"] + one["extend_ms"]
        assert min(one["draft_ms"], one["verify_ms"], one["extend_ms"]) > 0
        assert one["cycle_ms"] is None or phases <= one["cycle_ms"]
        assert one["batch"] <= one["accepted"] <= 4 * one["batch"]
        assert (one["clock"], one["worker"]) == ("monotonic", "v2")


def test_layers_of_older_releases_and_packed_states(engine_python, tmp_path: Path) -> None:
    packer = fetch.tree("0.5.17") / "sglang" / "srt" / "layers" / "aux_hidden_states.py"
    command = [engine_python, HERE / "probe_shapes.py", tmp_path / "new", patch_catalogue.DEFAULT, packer]
    found = [json.loads(line) for line in subprocess.check_output(command, text=True).splitlines()]
    sums = {0: 2.0, 1: 12.0, 2: 112.0, 3: 1112.0}
    assert found[0][0] == "layers_to_capture"
    assert found[1:] == [
        [*event, None]
        for number in (0, 1)
        for event in (
            ["embedding", number, None, 1.0, False],
            *(["layer_output", number, layer, total, layer == 2] for layer, total in sums.items()),
            ["final_norm", number, None, 556.0, False],
            ["aux_capture", number, 1, 2.0, False],
            ["aux_capture", number, 3, 112.0, False],
        )
    ]
