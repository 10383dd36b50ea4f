#!/usr/bin/env python3
"""Make the clockwork pair: target, EAGLE-3 draft, wrong wirings, and the tables that say what must be
accepted.

    python pair.py OUT [--wirings none|all|NAME,NAME] [--accept .9,.85,.8,.75,.7,.6] [--layers 8] [--ids
    1,3,5]

Needs torch, safetensors and tokenizers: the python of an installed release has them. This file,
`predict.py` and `clockwork/` are all it takes, so they can be copied to a host and run there. The same call
writes the same bytes. A directory that this very code made with these very options is left alone.

OUT/target, OUT/draft, OUT/draft-<wiring>, OUT/states.safetensors (truth for every layer), OUT/prompts.json
(short ones, for sglang_server_gate_prompts_file), OUT/pair.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
DEFAULT_ACCEPT = (0.9, 0.85, 0.8, 0.75, 0.7, 0.6)


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(description="Make the clockwork pair.")
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--wirings", default="none", help="'none', 'all', or names such as shift+1,perm-102,d2t0"
    )
    parser.add_argument(
        "--accept", type=_numbers, default=DEFAULT_ACCEPT, help="acceptance by chain position"
    )
    parser.add_argument("--layers", type=int, default=8, help="layers of the target")
    parser.add_argument("--ids", type=_ids, default=[1, 3, 5], help="layer ids that the draft reads")
    parser.add_argument(
        "--flip", type=float, default=0.3, help="share of signs that changes from layer to layer"
    )
    parser.add_argument("--seeds", type=int, default=300, help="schedules to choose from")
    options = parser.parse_args(argv)
    first, middle, last = options.ids
    if not 0 <= first < middle < last <= options.layers - 3:
        parser.error("--ids must ascend and stay three below --layers, else a shift is a width error")
    if not 1 <= len(options.accept) <= 7 or not all(0 < share <= 1 for share in options.accept):
        parser.error("--accept takes one to seven shares above 0")
    return options


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _ids(text: str) -> list[int]:
    ids = [int(part) for part in text.split(",")]
    if len(ids) != 3:
        raise argparse.ArgumentTypeError("three layer ids, such as 1,3,5")
    return ids


def fingerprint(options: argparse.Namespace) -> str:
    """sha256 over this code and the options that decide what is made."""
    digest = hashlib.sha256()
    for path in [Path(__file__).resolve(), *sorted((HERE / "clockwork").glob("*.py"))]:
        digest.update(path.read_bytes())
    chosen = {name: value for name, value in vars(options).items() if name != "out"}
    digest.update(json.dumps(chosen, sort_keys=True).encode())
    return digest.hexdigest()


def made_already(out: Path, wanted: str) -> bool:
    """Whether OUT/pair.json, which is written last, carries this fingerprint."""
    try:
        return json.loads((out / "pair.json").read_text())["fingerprint"] == wanted
    except (OSError, ValueError, KeyError):
        return False


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    options = arguments(argv)
    wanted = fingerprint(options)
    if made_already(options.out, wanted):
        print(f"unchanged: {options.out}")
        return 0
    from clockwork.build import build_pair  # torch takes seconds to import

    part = options.out.with_name(f".{options.out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    tables = build_pair(part, options, wanted)
    shutil.rmtree(options.out, ignore_errors=True)
    part.replace(options.out)
    lengths = ", ".join(f"{steps + 1}: {length}" for steps, length in enumerate(tables["orbit"]))
    print(f"made: {options.out} (accept length by steps {lengths})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
