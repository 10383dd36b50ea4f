#!/usr/bin/env python3
"""Hidden states of a clockwork pair for one prompt, as a training pipeline would have dumped them.

    python reference.py PAIR OUT.safetensors [--text "Tell me a story"] [--ids 5,6,7] [--layers 1,3,5]

They come from the pair's maker (`states.safetensors`), which never saw a server. Needs torch, safetensors and
tokenizers: the python of an installed release.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

TEXT = "Tell me a story about lanterns and the winter"


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Hidden states of a clockwork pair for one prompt.")
    parser.add_argument("pair", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--text", default=TEXT)
    parser.add_argument("--ids", type=numbers, help="the prompt as token ids, in place of --text")
    parser.add_argument(
        "--layers", type=numbers, default=[1, 3, 5], help="layer outputs, in training's order"
    )
    options = parser.parse_args(argv)

    import torch
    from safetensors.torch import load_file, save_file
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(options.pair / "target" / "tokenizer.json"))
    ids = torch.tensor(options.ids or tokenizer.encode(options.text).ids)
    states = load_file(options.pair / "states.safetensors")["states"]  # [before layer, token, hidden]
    joined = torch.cat([states[layer + 1][ids] for layer in options.layers], dim=1)
    save_file({"input_ids": ids, "aux_hidden_states": joined.to(torch.bfloat16)}, options.out)
    options.out.chmod(0o644)
    print(f"{len(ids)} tokens, outputs of layers {options.layers}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
