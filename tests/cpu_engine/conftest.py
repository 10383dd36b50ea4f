"""Settings for the slow tests in this directory, which need a Python with the CPU engine.

AERIE_ENGINE_PYTHON=/opt/sglang/releases/0.5.23/bin/python pytest tests/cpu_engine -s
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker (the project runs pytest with --strict-markers)."""
    config.addinivalue_line("markers", "slow: starts real servers, about a minute each")


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """The Python that has the engine; without it nothing here can be tested, which is a failure, not a skip."""
    path = os.environ.get("AERIE_ENGINE_PYTHON", "")
    if not path:
        pytest.fail("set AERIE_ENGINE_PYTHON to a python with tests/cpu_engine/lock.txt installed")
    return Path(path)
