"""Every draft rule on every release: `make releases` alone, since all models are parsed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fetch
import pytest

CONFIRM = Path(__file__).resolve().parent / "confirm_draft_rules.py"


@pytest.mark.every_release
def test_no_rule_is_contradicted() -> None:
    fetch.trees(fetch.known())
    done = subprocess.run(
        [sys.executable, CONFIRM, fetch.CACHE], capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
