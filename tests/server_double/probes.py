"""What the probes of debug mode and the timers of profile mode would write."""

from __future__ import annotations

import json
import os
import random
import struct
import time
from pathlib import Path
from typing import Any

from .asked import DRAFT

# Drafts that get the reference's states; the others get noise.
RIGHT = ("right", "none", "fc-reversed", "random")
REFERENCE = Path("/srv/models/reference.safetensors")


def cycles(found: list[int]) -> None:
    """A line for each verify, with the drafts that it accepted."""
    directory = os.environ.get("AERIE_PROFILE_DIR")
    if not directory:
        return
    Path(directory).mkdir(mode=0o700, exist_ok=True)
    now = time.time()
    with Path(directory, "cycles.jsonl").open("a") as file:
        for accepted in found:
            parts = {"draft_ms": 0.5, "verify_ms": 0.8 + random.random() / 10, "extend_ms": 0.2}
            line = {"v": 1, "t": now, "batch": 1, "accepted": accepted + 1, "cycle_ms": 1.7, **parts}
            file.write(json.dumps({**line, "clock": "monotonic", "worker": "v2"}) + "\n")


def directory() -> Path | None:
    """Where debug mode's probes write; made when the server starts."""
    if not os.environ.get("EAGLE3_DEBUG"):
        return None
    place = Path(os.environ["EAGLE3_DEBUG_DIR"])
    place.mkdir(mode=0o700, exist_ok=True)
    return place


def states(ids: list[int] | None) -> None:
    """What reaches the draft, for the prompt that the probes were armed for."""
    place = directory()
    if place is None or not ids or not REFERENCE.is_file():
        return
    arm: dict[str, Any] = {}
    if (place / "arm.json").exists():
        arm = json.loads((place / "arm.json").read_text())
    with (place / "events.jsonl").open("a") as file:
        for kind, index, layer, tensor in states_of(len(ids)):
            name = None
            if arm.get("tensors"):
                name = f"{arm.get('id', '')}-{kind}-{index}.safetensors"
                save(place / name, tensor, len(ids))
            shape = [len(ids), len(tensor) // 4 // len(ids)]
            line = {"v": 1, "t": time.time(), "pid": os.getpid(), "arm": arm.get("id", ""), "event": kind,
                    "where": "double", "forward": 0, "mode": "extend", "graph_capture": False, "index": index,
                    "layer": layer, "shape": shape, "dtype": "bfloat16", "norm": 1.0, "tensor": name}  # fmt: skip
            file.write(json.dumps(line) + "\n")


def states_of(rows: int) -> list[tuple[str, int | None, int | None, bytes]]:
    """Kind, index, loop index and float32 bytes of what a forward of the reference's prompt hands to the draft."""
    raw = REFERENCE.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8 : 8 + size]), raw[8 + size :]
    layers = sorted(int(name[6:]) for name in header if name.startswith("layer_"))
    found: list[tuple[str, int | None, int | None, bytes]] = []
    segments = []
    for index, number in enumerate(layers):
        entry = header[f"layer_{number}"]
        begin, end = entry["data_offsets"]
        width = entry["shape"][1]
        tensor = data[begin:end] if entry["shape"][0] == rows and DRAFT in RIGHT else noise(rows, width)
        segments.append((tensor, width))
        found.append(("aux_capture", index, number + 1, tensor))
    joined = b"".join(
        tensor[row * width * 4 : (row + 1) * width * 4] for row in range(rows) for tensor, width in segments
    )
    return [*found, ("draft_input", None, None, joined)]


def noise(rows: int, width: int) -> bytes:
    rng = random.Random(rows)
    return struct.pack(f"<{rows * width}f", *(rng.gauss(0, 1) for _ in range(rows * width)))


def save(path: Path, tensor: bytes, rows: int) -> None:
    shape = [rows, len(tensor) // 4 // rows]
    header = json.dumps({"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, len(tensor)]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + tensor)
