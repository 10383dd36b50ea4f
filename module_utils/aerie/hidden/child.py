"""The arithmetic on tensors, in a child process of the release's python: it has torch, and only it is sure to.

This file is handed to that python as source text, so it imports nothing of the project and torch only inside
functions. It reads one job as JSON from standard input and prints one line, ``mark`` followed by JSON.

Jobs: ``look`` (what a reference file holds), ``compare`` (figures of the served states against it), ``record``
(write a reference file from served states).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

IDS = ("input_ids", "prompt_token_ids", "prompt_ids", "token_ids")
JOINED = ("aux_hidden_states", "aux_hidden_state", "hidden_states", "states")
LAYER = re.compile(r"(?:^|[._ ])(?:output_of_)?layers?[._ ]?(\d+)$")
SHARDS = (2, 4, 8, 16)


class Unusable(Exception):
    """The reference cannot be used, in words for a person."""


def read_file(path: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Tensors (or lists of them) by name, and text metadata, of a ``.safetensors`` or ``.pt``/``.ckpt`` file.

    A pickle is read with ``weights_only``, so nothing in it is run.
    """
    import torch

    if path.endswith(".safetensors"):
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(loaded, dict):
        raise Unusable(f"it holds a {type(loaded).__name__}, not tensors by name")
    return {str(name): value for name, value in loaded.items()}, {}


def prompt_ids(found: dict[str, Any]) -> list[int]:
    """The prompt's token ids."""
    for name in IDS:
        if name in found:
            value = found[name]
            flat = value.flatten().tolist() if hasattr(value, "flatten") else list(value)
            return [int(one) for one in flat]
    raise Unusable(
        f"no token ids (looked for {', '.join(IDS)}); it holds: {', '.join(sorted(found)) or 'nothing'}"
    )


def joined_states(found: dict[str, Any], rows: int) -> tuple[Any, list[int]]:
    """The states as one [rows, width] tensor in the file's order, and the layer numbers where keys name them."""
    import torch

    numbered = sorted(
        (int(match.group(1)), name)
        for name in found
        if (match := LAYER.search(name)) and hasattr(found[name], "dim")
    )
    for name in JOINED:
        value = found.get(name)
        if isinstance(value, (list, tuple)) and value and hasattr(value[0], "dim"):
            return torch.cat([flat(one, rows, name) for one in value], dim=-1), []
        if hasattr(value, "dim"):
            assert value is not None
            if value.dim() == 3 and value.shape[0] > 1 and value.shape[1] == rows:  # [K, rows, H]
                return torch.cat([flat(one, rows, name) for one in value], dim=-1), []
            return flat(value, rows, name), []
    if numbered:
        layers = [layer for layer, _ in numbered]
        return torch.cat([flat(found[name], rows, name) for _, name in numbered], dim=-1), layers
    raise Unusable(
        f"no hidden states (looked for {', '.join(JOINED)}, layer_<number>); it holds: {', '.join(sorted(found))}"
    )


def flat(tensor: Any, rows: int, name: str) -> Any:
    """[rows, width] in float32, whether or not there is a batch dimension of one."""
    while tensor.dim() > 2 and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.dim() != 2 or tensor.shape[0] < rows:
        raise Unusable(
            f"{name} has the shape {list(tensor.shape)}; {rows} rows, one a prompt token, were expected"
        )
    return tensor[:rows].float()


def look(job: dict[str, Any]) -> dict[str, Any]:
    """What the reference holds: ``ids``, ``width`` of the joined states, ``layers``, ``metadata``."""
    found, metadata = read_file(job["reference"])
    ids = prompt_ids(found)
    states, layers = joined_states(found, len(ids))
    stored = metadata.get("training_layers")
    return {
        "ids": ids,
        "width": int(states.shape[1]),
        "layers": layers or (json.loads(stored) if stored else []),
    }


def pair(a: Any, b: Any) -> dict[str, float] | None:
    """How far ``a`` is from ``b``, both [rows, width] in float32; None where the shapes do not fit.

    ``error``: |a - b| / |b| of a row, median over the rows (one token of a prompt, often the first, has a norm that
    would hide all others in a sum). ``error_90``: the same for the row at 90 %.
    """
    import torch

    if a.shape != b.shape or a.numel() == 0:
        return None
    difference = a - b
    norm_a, norm_b = a.norm(dim=1), b.norm(dim=1)
    floor = torch.finfo(torch.float32).tiny
    error = difference.norm(dim=1) / norm_b.clamp_min(floor)
    cosine = (a * b).sum(1) / (norm_a * norm_b).clamp_min(floor)
    return {
        "error": float(error.quantile(0.5)),
        "error_90": float(error.quantile(0.9)),
        "cosine": float(cosine.quantile(0.5)),
        "norm_ratio": float(a.norm() / b.norm().clamp_min(floor)),
        "max_difference": float(difference.abs().max()),
    }


def shard(a: Any, b: Any, tolerance: float) -> dict[str, int | str] | None:
    """Whether ``a`` is a part of ``b`` or ``b`` with its parts in another order, as tensor parallelism makes them."""
    import torch

    for parts in SHARDS:
        for axis, name in ((1, "columns"), (0, "rows")):
            if b.shape[axis] % parts:
                continue
            pieces = b.chunk(parts, dim=axis)
            if a.shape == pieces[0].shape:
                for rank, piece in enumerate(pieces):
                    if close(a, piece, tolerance):
                        return {"kind": name, "of": parts, "rank": rank}
            if a.shape == b.shape:
                for rank in range(1, parts):
                    if close(a, torch.cat([*pieces[rank:], *pieces[:rank]], dim=axis), tolerance):
                        return {"kind": f"{name} turned", "of": parts, "rank": rank}
    return None


def close(a: Any, b: Any, tolerance: float) -> bool:
    figures = pair(a, b)
    return figures is not None and figures["error"] <= tolerance


def row_shift(a: Any, b: Any, tolerance: float) -> int:
    """By how many tokens ``a`` runs ahead of ``b`` (1 or -1), 0 when it does not."""
    if a.shape != b.shape or a.shape[0] < 4:
        return 0
    if close(a[:-1], b[1:], tolerance):
        return 1
    return -1 if close(a[1:], b[:-1], tolerance) else 0


def load_x(directory: str, name: str) -> Any:
    from safetensors import safe_open

    with safe_open(str(Path(directory) / name), framework="pt") as file:
        return file.get_tensor("x")


def compare(job: dict[str, Any]) -> dict[str, Any]:
    """Figures of the served segments against the reference's, and of both against the server's own layers."""
    import torch

    torch.set_num_threads(max(1, int(job.get("threads") or 1)))
    rows, tolerance = job["rows"], job["tolerance"]
    found, _ = read_file(job["reference"])
    reference, _ = joined_states(found, rows)
    served = load_x(job["directory"], job["served"]).float()
    count = job["segments"]
    width = reference.shape[1] // count
    if reference.shape[1] % count:
        raise Unusable(
            f"the states are {reference.shape[1]} wide, which {count} segments cannot share evenly"
        )
    wanted = list(reference.split(width, dim=1))
    got = list(served.split(job["served_width"], dim=1))
    figures: dict[str, Any] = {
        "cross": [[pair(a, b) for b in wanted] for a in got],
        "shard": [
            shard(a, b, tolerance) if not close(a, b, tolerance) else None
            for a, b in zip(got, wanted, strict=False)
        ],
        "row_shift": [row_shift(a, b, tolerance) for a, b in zip(got, wanted, strict=False)],
        "served_to": [[] for _ in got],
        "reference_to": [[] for _ in wanted],
        "extra": {},
    }
    for candidate in job["candidates"]:
        state = load_x(job["directory"], candidate["tensor"]).float()
        for place, one in enumerate(got):
            figures["served_to"][place].append(pair(one, state))
        for place, one in enumerate(wanted):
            figures["reference_to"][place].append(pair(one, state))
    for name, tensor in (job.get("extra") or {}).items():
        if hasattr(found.get(name), "dim"):
            figures["extra"][name] = pair(
                load_x(job["directory"], tensor).float(), flat(found[name], rows, name)
            )
    return figures


def record(job: dict[str, Any]) -> dict[str, Any]:
    """Write a reference: ``input_ids``, ``aux_hidden_states`` [tokens, K*H] and the draft's fc output."""
    import torch
    from safetensors.torch import save_file

    tensors = {
        "input_ids": torch.tensor(job["ids"], dtype=torch.int64),
        "aux_hidden_states": load_x(job["directory"], job["served"]).contiguous(),
    }
    for name, tensor in (job.get("extra") or {}).items():
        tensors[name] = load_x(job["directory"], tensor).contiguous()
    metadata = {key: json.dumps(value) for key, value in job["metadata"].items()}
    save_file(tensors, job["out"], metadata={"format": "pt", **metadata})
    return {"written": job["out"], "shape": list(tensors["aux_hidden_states"].shape)}


def main() -> None:
    job = json.load(sys.stdin)
    try:
        answer = {"look": look, "compare": compare, "record": record}[job["do"]](job)
    except Unusable as error:
        answer = {"unusable": str(error)}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print("\n" + job["mark"] + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
