"""What the double was started with, and what it is told to do."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

COMMANDS = Path("/srv/double/commands.json")
WORDS = sys.orig_argv[sys.orig_argv.index("sglang.launch_server") + 1 :]


def flag(name: str, otherwise: str = "") -> str:
    """The word after an option on the command line."""
    return WORDS[WORDS.index(name) + 1] if name in WORDS else otherwise


STEPS = int(flag("--speculative-num-steps", "0"))
# Debug mode is the one that turns CUDA graphs off.
MODE = "debug" if any("cuda-graph" in word for word in WORDS) else "production" if STEPS else "baseline"
# Which draft it is: where its weights really lie.
DRAFT = Path(
    os.path.realpath(flag("--speculative-draft-model-path") + "/model.safetensors")
).parent.name.removeprefix("draft-")
# The key that clients must send, from where Aerie keeps it: as with SGLang, HTTP 401 without it.
KEY = json.loads(Path(flag("--config")).read_text()).get("api-key", "") if flag("--config") else ""


def commanded() -> dict[str, Any]:
    """What it is to do now."""
    try:
        given: dict[str, Any] = json.loads(COMMANDS.read_text())
    except (OSError, ValueError):
        return {}
    meant = given.get("only") in (None, MODE) and given.get("pid") in (None, os.getpid())
    return given if meant else {}


def pace() -> float:
    return float(commanded().get("pace", 0.0))
