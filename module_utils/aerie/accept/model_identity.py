"""What a model directory is, by content: whether two runs served the same draft."""

from __future__ import annotations

import hashlib
from pathlib import Path

_WHOLE = 64 << 20
_BLOCK = 64 << 10
_SAMPLES = 64


def fingerprint(model: Path) -> str:
    """sha256 over ``config.json`` and the weight files' names, sizes and content.

    Files above 64 MiB are sampled (64 blocks of 64 KiB, the first and the last among them), so a change of a few
    values in a large file may go unseen; another checkpoint, header or vocabulary map does not. Times and paths do not
    count: a copy is the same model.
    """
    digest = hashlib.sha256((model / "config.json").read_bytes())
    for path in sorted(one for one in model.iterdir() if one.suffix in (".safetensors", ".bin", ".pt")):
        digest.update(f"\n{path.name} {path.stat().st_size}\n".encode())
        _add(digest, path)
    return digest.hexdigest()


def config_fingerprint(model: Path) -> str:
    """sha256 of ``config.json`` alone: of a target, whose weights are too many to read at each gate."""
    return hashlib.sha256((model / "config.json").read_bytes()).hexdigest()


def _add(digest: hashlib._Hash, path: Path) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _WHOLE:
            while block := file.read(1 << 20):
                digest.update(block)
            return
        for place in range(_SAMPLES):
            file.seek(place * (size - _BLOCK) // (_SAMPLES - 1))
            digest.update(file.read(_BLOCK))
