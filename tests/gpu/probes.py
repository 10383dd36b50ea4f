"""The probes of debug and profile on a real GPU, without SGLang: what they do to CUDA graphs, and what they cost.

    /opt/torch/.venv/bin/python tests/gpu/probes.py        # any Python with torch and safetensors; about 10 s

The modules are imported as the server imports them, from a package `sglang.srt` made for this. Prints one JSON object;
ends with 1 when something is not as it should be. `--cpu` rehearses the part that needs no graphs on a machine without
a GPU: the same probes around work on the CPU.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

CATALOGUE = Path(__file__).resolve().parents[2] / "roles" / "sglang_patches" / "files" / "catalogue"
CYCLES = 200
ROUNDS = 7


def package(place: Path) -> None:
    """A package `sglang.srt` that holds the probes."""
    srt = place / "sglang" / "srt"
    srt.mkdir(parents=True)
    for directory in (srt.parent, srt):
        (directory / "__init__.py").write_text("")
    for probe in CATALOGUE.glob("aerie_*.py"):
        (srt / probe.name).write_bytes(probe.read_bytes())


def events(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


CPU = "--cpu" in sys.argv[1:]


def synchronize(torch) -> None:
    if not CPU:
        torch.cuda.synchronize()


class CpuWork:
    """The same without a GPU: the product is done when it is asked for."""

    def __init__(self, torch, size: int, times: int) -> None:
        x = torch.randn(size // 16, size // 16)
        self.graph = SimpleNamespace(replay=lambda: [torch.mm(x, x) for _ in range(times)])


class Work:
    """A matrix product that takes a while, as a CUDA graph."""

    def __init__(self, torch, size: int, times: int) -> None:
        self.x = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
        self.y = torch.empty_like(self.x)
        torch.mm(self.x, self.x, out=self.y)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for _ in range(times):
                torch.mm(self.x, self.x, out=self.y)


class Worker:
    """The shape of an eagle worker: three functions that only launch, with the lines that the patches insert."""

    def __init__(self, torch, probe) -> None:
        self.torch, self.probe = torch, probe
        made = CpuWork if CPU else Work
        self.works = {
            "draft": made(torch, 2048, 8),
            "verify": made(torch, 4096, 16),
            "extend": made(torch, 2048, 4),
        }
        self.accepted = torch.tensor([2, 3, 1], device="cpu" if CPU else "cuda")
        self.batch = SimpleNamespace(seq_lens=self.accepted)

    def run(self, name: str, accepted=None) -> None:
        aerie_phase = self.probe.phase(name, self.batch, accepted) if self.probe else None  # noqa: F841
        self.works[name].graph.replay()

    def cycles(self, count: int) -> tuple[float, float]:
        """Microseconds of the host for each cycle's launches, and milliseconds until the GPU was through with all."""
        synchronize(self.torch)
        began = time.perf_counter()
        for _ in range(count):
            self.run("draft")
            self.run("verify")
            self.run("extend", self.accepted)
        launched = time.perf_counter()
        synchronize(self.torch)
        return (launched - began) / count * 1e6, (time.perf_counter() - began) * 1e3


def profile(torch, directory: Path) -> dict:
    from sglang.srt import aerie_profile

    bare, worker = Worker(torch, None), Worker(torch, aerie_profile)
    for one in (bare, worker):
        one.cycles(20)
    pairs = [
        (bare.cycles(CYCLES), worker.cycles(CYCLES)) for _ in range(ROUNDS)
    ]  # in turn: the card gets warmer
    without, with_probe = (statistics.median(pair[i][1] for pair in pairs) for i in (0, 1))
    # With few cycles the launches never wait for the GPU's queue.
    few = [(bare.cycles(20)[0], worker.cycles(20)[0]) for _ in range(ROUNDS)]
    launch_without, launch_with = (statistics.median(pair[i] for pair in few) for i in (0, 1))
    aerie_profile.prefill()
    lines = events(directory / "cycles.jsonl")
    last = lines[-60:]
    mean = {
        key: sum(line[key] for line in last) / len(last) for key in ("draft_ms", "verify_ms", "extend_ms")
    }
    # The median, and shares line by line: the first cycle after a bare round began before that round.
    whole = [line for line in last if line["cycle_ms"]]
    return {
        "lines": len(lines),
        "clock": lines[-1]["clock"],
        "accepted": sorted({line["accepted"] for line in lines}),
        "batch": sorted({line["batch"] for line in lines}),
        "mean_ms": mean,
        "cycle_ms": statistics.median(line["cycle_ms"] for line in whole),
        "phases_share": statistics.median(
            sum(line[key] for key in mean) / line["cycle_ms"] for line in whole
        ),
        "by_the_clock_ms": with_probe / CYCLES,
        "gpu_slower_percent": (with_probe / without - 1) * 100,
        "host_us_a_cycle": launch_with - launch_without,
        "errors": [line for line in lines if "error" in line],
    }


def debug(torch, directory: Path) -> dict:
    from sglang.srt import aerie_probe

    model = torch.nn.Module()
    model.layers, model.layers_to_capture = torch.nn.ModuleList([torch.nn.Identity() for _ in range(4)]), [2]
    batch = SimpleNamespace(forward_mode=SimpleNamespace(name="TARGET_VERIFY"))
    given, out = torch.ones(4, 8, device="cuda"), torch.zeros(4, 8, device="cuda")

    def forward() -> None:
        aerie_probe.forward_begins(model, batch)
        state = given * 2
        aerie_probe.aux_captured(model, [state])
        out.copy_(state + 1)

    forward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward()
    before = len(events(directory / "events.jsonl"))
    given.fill_(3)
    graph.replay()
    torch.cuda.synchronize()
    lines = events(directory / "events.jsonl")
    shown = [line for line in lines if line["event"] == "aux_capture"]
    return {
        "graph_works": bool((out == 7).all()),
        "replay_is_silent": len(lines) == before,
        "eager": [line["norm"] for line in shown if not line["graph_capture"]],
        "captured": [(line["shape"], line["norm"]) for line in shown if line["graph_capture"]],
        "layers": [
            (line["values"], line["graph_capture"]) for line in lines if line["event"] == "layers_to_capture"
        ],
        "errors": [line for line in lines if line["event"] == "probe_error"],
    }


def right(found: dict) -> bool:
    profiled = found["profile"]
    timed = (
        profiled["clock"] == ("monotonic" if CPU else "cuda_event")
        and profiled["accepted"] == [6]
        and profiled["batch"] == [3]
        and 0.8 < profiled["phases_share"] <= 1.001
        and (CPU or abs(profiled["cycle_ms"] / profiled["by_the_clock_ms"] - 1) < 0.2)
        and not profiled["errors"]
    )
    if CPU or not timed:
        return timed
    seen = found["debug"]
    return (
        seen["graph_works"]
        and seen["replay_is_silent"]
        and seen["captured"] == [([4, 8], None)]
        and len(seen["eager"]) == 1
        and seen["layers"] == [([2], False), ([2], True)]
        and not seen["errors"]
    )


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        package(place)
        sys.path.insert(0, str(place))
        os.environ.update(
            EAGLE3_DEBUG="1", EAGLE3_DEBUG_DIR=f"{name}/debug", AERIE_PROFILE_DIR=f"{name}/profile"
        )
        import torch

        found = {"gpu": None if CPU else torch.cuda.get_device_name(), "torch": torch.__version__}
        found["profile"] = profile(torch, place / "profile")
        found["debug"] = None if CPU else debug(torch, place / "debug")
        found["right"] = right(found)
        print(json.dumps(found, indent=1))
        return 0 if found["right"] else 1


if __name__ == "__main__":
    sys.exit(main())
