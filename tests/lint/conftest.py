"""ansible-lint keeps one core busy for minutes: it starts once the tests are collected, and its test waits for it.

`make test` puts the linters after the unit tests, which need the other core meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from linters import LINTERS, Linter

ROOT = Path(__file__).resolve().parents[2]
SLOW = "ansible-lint"
STARTED = pytest.StashKey[Linter]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start ansible-lint if its test is among those that run."""
    wanted = any(item.nodeid.endswith(f"test_linter[{SLOW}]") for item in session.items)
    if wanted and not session.config.option.collectonly:
        session.config.stash[STARTED] = Linter(LINTERS[SLOW])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End it when its test did not get to wait for it."""
    linter = session.config.stash.get(STARTED, None)
    if linter and linter.process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(linter.process.pid, signal.SIGTERM)


@pytest.fixture
def linter(request: pytest.FixtureRequest) -> Linter:
    """The linter of the test's parameter ``name``: the one that runs already, or a new one."""
    name = request.getfixturevalue("name")
    running = request.config.stash.get(STARTED, None) if name == SLOW else None
    return running or Linter(LINTERS[name])
