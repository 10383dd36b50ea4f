"""The faults of a wiring, each made out of the clockwork pair: which draft, which algorithm, which patch."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

IDS = "eagle_aux_hidden_state_layer_ids"

# Stands in for a release whose CUDA graphs capture other layers than eager mode (0.4.9 to 0.5.10.post1, PR #22836).
# There are no CUDA graphs on a CPU, so it acts where graphs would: in verifies, and not in debug mode.
GRAPH_ONLY = {
    "name": "test_only_graph_miswiring",
    "purpose": "Test double of CUDA graphs that capture the default layers; acts in verifies outside of debug mode.",
    "source": "made for tests/wiring",
    "releases": ">=0.5.16",
    "file": "sglang/srt/models/llama.py",
    "anchor": {"class": "LlamaModel", "function": "forward"},
    "where": "first",
    "code": (
        "import os\n"
        "if os.environ.get('EAGLE3_DEBUG') != '1' and self.layers_to_capture:\n"
        "    if not hasattr(self, '_wired'):\n"
        "        self._wired = list(self.layers_to_capture)\n"
        "    n = len(self.layers)\n"
        "    graph = forward_batch.forward_mode.is_target_verify()\n"
        "    self.layers_to_capture = [2, n // 2, n - 3] if graph else self._wired\n"
    ),
}


@dataclass(frozen=True)
class Fault:
    """One row. ``draft``: a directory below the pair's, or made by ``make`` (pair, into).

    both_modes: also try it in production mode without --full. For the others both modes run the same code on a CPU.
    """

    name: str
    what: str
    draft: str = "draft"
    algorithm: str = "EAGLE3"
    make: Callable[[Path, Path], None] | None = None
    patches: tuple[dict[str, Any], ...] = field(default_factory=tuple)
    right: bool = False
    both_modes: bool = False

    def directory(self, pair: Path, scratch: Path) -> Path:
        """The draft's directory, made where it has to be."""
        if self.make is None:
            return pair / self.draft
        into = scratch / f"draft-{self.name}"
        if not into.exists():
            self.make(pair, into)
        return into


def copy_draft(pair: Path, into: Path) -> None:
    shutil.copytree(pair / "draft", into)


def minus_one(pair: Path, into: Path) -> None:
    """The ids of another convention: an embedding and two layers."""
    copy_draft(pair, into)
    path = into / "config.json"
    config = json.loads(path.read_text())
    config["eagle_config"][IDS] = [-1, 1, 3]
    path.write_text(json.dumps(config))


def without_d2t(pair: Path, into: Path) -> None:
    copy_draft(pair, into)
    drop_tensor(into / "model.safetensors", "d2t")


def drop_tensor(path: Path, name: str) -> None:
    """Write a safetensors file again without one tensor: a length, a JSON header, and the bytes behind it."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header, body = json.loads(raw[8 : 8 + size]), raw[8 + size :]
    kept, data = {}, b""
    for tensor, entry in header.items():
        if tensor == "__metadata__":
            kept[tensor] = entry
        elif tensor != name:
            start, end = entry["data_offsets"]
            kept[tensor] = {**entry, "data_offsets": [len(data), len(data) + end - start]}
            data += body[start:end]
    text = json.dumps(kept).encode()
    text += b" " * (-len(text) % 8)
    path.unlink()  # the file may be a hard link of the right draft's
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


OTHER_PAIR = "other"

FAULTS = (
    Fault("right", "nothing wrong", right=True, both_modes=True),
    Fault("shifted", "every layer id one too high", draft="draft-shift+1", both_modes=True),
    Fault("one-id-off", "the second layer id one too high", draft="draft-one1+1"),
    Fault("default-ids", "no layer ids: SGLang takes its default", draft="draft-default"),
    Fault("minus-one", "layer ids [-1, 1, 3]", make=minus_one),
    Fault("permuted-fc", "the draft's fc joins the states in another order", draft="draft-perm-102"),
    Fault("eagle", "algorithm EAGLE with an EAGLE-3 draft", algorithm="EAGLE"),
    Fault("no-aux", "use_aux_hidden_state: false", draft="draft-noaux"),
    Fault("zero-d2t", "d2t is all zero", draft="draft-d2t0"),
    Fault("no-d2t", "d2t is missing", make=without_d2t),
    Fault("other-target", "the draft of another target of the same shape", draft=f"../{OTHER_PAIR}/draft"),
    Fault(
        "graph-only",
        "right in eager mode, other layers inside CUDA graphs",
        patches=(GRAPH_ONLY,),
        both_modes=True,
    ),
)
