"""What a checkpoint says about itself: config.json and the headers of its safetensors files. No weights are loaded.

The only tensor bytes that are read are those of two small vocabulary maps, ``d2t`` and ``t2d``.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ErrorKind

UNREADABLE = ErrorKind(
    "draft-check-unreadable",
    "A model directory, or its config.json, cannot be read, so nothing can be said about the pair. Usually a wrong "
    "path, or a directory that only the service user may read.",
)
_HEADER_LIMIT = 100_000_000  # bytes; the format's own limit
_MAP_LIMIT = 16_000_000  # bytes; a map of 2 million tokens


@dataclass(frozen=True)
class Tensor:
    """A tensor's description: dtype as safetensors names it (``BF16``, ``I64``), shape, and where its bytes lie."""

    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    length: int


@dataclass(frozen=True)
class Checkpoint:
    """A model directory. ``faults``: what is wrong with its weight files, one sentence each."""

    path: Path
    config: Mapping[str, Any]
    config_sha256: str
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    faults: tuple[str, ...] = ()

    @property
    def text(self) -> Mapping[str, Any]:
        """The language model's part of the config (``text_config`` of multimodal models), else the whole."""
        for key in ("text_config", "llm_config", "language_config"):
            inner = self.config.get(key)
            if isinstance(inner, Mapping) and "num_hidden_layers" in inner:
                return inner
        return self.config

    @property
    def architecture(self) -> str:
        """First entry of ``architectures``; empty where there is none."""
        listed = self.config.get("architectures")
        return str(listed[0]) if isinstance(listed, list) and listed else ""

    def number(self, key: str) -> int | None:
        """A whole number of the language model's config, or None."""
        value = self.text.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def tensor(self, *names: str) -> Tensor | None:
        """The first tensor whose name is one of ``names``, with or without the prefix ``model.``."""
        for name in names:
            for candidate in (name, f"model.{name}"):
                if candidate in self.tensors:
                    return self.tensors[candidate]
        return None


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a model directory. Raises AerieError (``draft-check-unreadable``) where config.json cannot be read."""
    config_file = path / "config.json"
    try:
        raw = config_file.read_bytes()
        config = json.loads(raw)
        if not isinstance(config, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError) as error:
        raise UNREADABLE.error(
            f"{config_file} cannot be read", evidence=[str(error)], next=f"ls -l {path}"
        ) from error
    tensors, faults = _read_tensors(path)
    return Checkpoint(path, config, hashlib.sha256(raw).hexdigest(), tensors, tuple(faults))


def _read_tensors(path: Path) -> tuple[dict[str, Tensor], list[str]]:
    listed, faults = _weight_files(path)
    tensors: dict[str, Tensor] = {}
    for file in listed:
        try:
            tensors.update(read_header(file))
        except (OSError, ValueError, KeyError, TypeError) as error:
            faults.append(f"{file.name}: {error}")
    return tensors, faults


def _weight_files(path: Path) -> tuple[list[Path], list[str]]:
    """The safetensors files, by the index where there is one."""
    index = path / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (OSError, ValueError, KeyError, AttributeError) as error:
            return [], [f"{index.name} cannot be read: {error}"]
        missing = [
            f"{name} is named by {index.name} and is not there"
            for name in names
            if not (path / name).is_file()
        ]
        return [path / name for name in names if (path / name).is_file()], missing
    files = sorted(path.glob("*.safetensors"))
    return files, ([] if files else ["there is no *.safetensors file"])


def read_header(file: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file: 8 bytes little-endian length, then JSON. Raises OSError or ValueError."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(size - 8, _HEADER_LIMIT):
            raise ValueError(f"no safetensors header (file of {size} bytes)")
        header = json.loads(stream.read(length))
    tensors: dict[str, Tensor] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        tensors[name] = Tensor(
            str(entry["dtype"]), tuple(int(n) for n in entry["shape"]), file, 8 + length + begin, end - begin
        )
    needed = max((tensor.offset + tensor.length for tensor in tensors.values()), default=0)
    if needed > size:
        raise ValueError(f"cut off: {size} bytes of the {needed} that its header describes")
    return tensors


_INTEGERS = {"I64": "q", "I32": "i", "I16": "h", "U8": "B", "BOOL": "B"}


def read_integers(tensor: Tensor) -> list[int]:
    """The values of a small integer or boolean tensor. Raises ValueError for other types and large tensors."""
    code = _INTEGERS.get(tensor.dtype)
    if code is None:
        raise ValueError(f"{tensor.dtype} is no integer type")
    if tensor.length > _MAP_LIMIT:
        raise ValueError(f"{tensor.length} bytes are too many for a vocabulary map")
    count = tensor.length // struct.calcsize(code)
    with tensor.file.open("rb") as stream:
        stream.seek(tensor.offset)
        data = stream.read(tensor.length)
    return list(struct.unpack(f"<{count}{code}", data))
