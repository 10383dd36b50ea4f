"""The engine's settings as README.md shows them for copying are those that the tests use."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import yaml

CPU_ENGINE = Path(__file__).resolve().parent.parent / "cpu_engine"
sys.path.insert(0, str(CPU_ENGINE))

import engine


def test_readme_shows_the_settings():
    blocks = re.findall(r"```yaml\n(.*?)```", (CPU_ENGINE / "README.md").read_text(), re.DOTALL)
    shown = {name: value for block in blocks for name, value in yaml.safe_load(block).items()}
    assert shown["environment"] == engine.ENVIRONMENT
    assert shown["arguments"] == {
        option: True if value is None else value for option, value in engine.ARGUMENTS.items()
    }


def test_command_line_of_a_draft_chain():
    words = engine.command_line(
        engine.speculative_arguments("EAGLE3", "/models/a draft", 3) | {"switch": None}
    )
    assert words == [
        *("--speculative-algorithm", "EAGLE3"),
        *("--speculative-draft-model-path", "/models/a draft"),
        *("--speculative-num-steps", "3"),
        *("--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", "4"),
        "--switch",
    ]
