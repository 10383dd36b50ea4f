"""Token ids of the gate's prompts, kept on the host: the tokenizer starts a Python of its own, which takes seconds.

So the road prepares them while the old server still serves, and a start is gated without waiting for that again. What
is kept is named by everything that decides the ids; other prompts, another tokenizer or release make another file.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from ..files import read_json, write_json
from .prompts import PromptSet
from .tokenize import TokenizerJob, tokenize

KEPT = 4  # files: two modes' prompts, and those before


def token_ids(job: TokenizerJob, prompts: PromptSet, directory: Path | None) -> list[list[int]]:
    """The ids of every prompt, in order, from ``directory`` where they are kept. None: nothing is kept.

    Raises the errors of ``accept_tokenize``. A directory that cannot be written to only costs the time.
    """
    if directory is None:
        return tokenize(job, prompts)
    path = directory / f"{name(job, prompts)}.json"
    kept = read_json(path)
    if isinstance(kept, list) and len(kept) == len(prompts.prompts) and all(_are_ids(one) for one in kept):
        return kept
    ids = tokenize(job, prompts)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(path, ids, mode=0o600)
        files = sorted(directory.glob("*.json"), key=lambda one: one.stat().st_mtime_ns)
        for old in files[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError:
        pass
    return ids


def name(job: TokenizerJob, prompts: PromptSet) -> str:
    """Names what decides the ids: prompts, options, and size and time of each small file beside the model."""
    marks = []
    model = Path(job.model_path)
    for path in sorted(model.iterdir()) if model.is_dir() else []:
        seen = path.stat()
        # The weights do not matter here, and there may be hundreds of them.
        if path.suffix not in (".safetensors", ".bin", ".pt", ".gguf"):
            marks.append([path.name, seen.st_size, seen.st_mtime_ns])
    options = {key: value for key, value in asdict(job).items() if key != "timeout"}
    options["python"] = str(Path(job.python).resolve().parent.parent)
    text = json.dumps([prompts.sha256, len(prompts.prompts), options, marks], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)
