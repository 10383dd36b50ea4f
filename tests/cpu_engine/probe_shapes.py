"""Run by an engine's python: the debug probes on layers as releases before 0.5.21 have them, and on packed states.

    python probe_shapes.py EMPTY_DIRECTORY CATALOGUE …/0.5.17/sglang/srt/layers/aux_hidden_states.py

Prints a JSON list an event: kind, forward, layer, first value, partial, error.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch


class Layer(torch.nn.Module):
    """Adds 10 to the power of its number, as (hidden, residual); layer 2 leaves the sum over the ranks to the next."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, positions, hidden_states, forward_batch, residual):
        residual = hidden_states if residual is None else hidden_states + residual
        hidden_states = torch.full_like(hidden_states, float(10**self.number))
        if self.number == 2:
            hidden_states._sglang_needs_allreduce_fusion = True
        return hidden_states, residual


class Norm(torch.nn.Module):
    def forward(self, x, residual):
        return (x + residual) / 2, x + residual


def forward(probe, model, batch, aux) -> None:
    """The loop of every decoder up to 0.5.20."""
    probe.forward_begins(model, batch)
    hidden, residual = torch.ones(3, 4), None
    for i, layer in enumerate(model.layers):
        if i in model.layers_to_capture:
            aux.append(hidden + residual)
        hidden, residual = layer(None, hidden, batch, residual)
    model.norm(hidden, residual)
    probe.aux_captured(model, aux)


def main() -> None:
    place, catalogue, packer = map(Path, sys.argv[1:])
    srt = place / "sglang" / "srt"
    srt.mkdir(parents=True)
    for directory in (srt.parent, srt):
        (directory / "__init__.py").write_text("")
    for file in catalogue.glob("aerie_*.py"):
        (srt / file.name).write_bytes(file.read_bytes())
    sys.path.insert(0, str(place))
    os.environ.update(EAGLE3_DEBUG="1", EAGLE3_DEBUG_DIR=str(place / "probes"))
    from sglang.srt import aerie_probe
    from sglang.srt.aerie_probe_state import STATE

    spec = importlib.util.spec_from_file_location("packer", packer)
    packed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(packed)
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([Layer(number) for number in range(4)])
    model.norm, model.layers_to_capture = Norm(), [1, 3]
    STATE.layers = True
    for aux in ([], packed.AuxHiddenStatePacker(2)):
        forward(aerie_probe, model, SimpleNamespace(forward_mode=SimpleNamespace(name="EXTEND")), aux)
    for line in map(json.loads, (place / "probes" / "events.jsonl").read_text().splitlines()):
        first = (line.get("first") or [None])[0]
        shown = [line["event"], line["forward"], line["layer"], first, line.get("partial", False)]
        print(json.dumps([*shown, line.get("error")]))


if __name__ == "__main__":
    main()
