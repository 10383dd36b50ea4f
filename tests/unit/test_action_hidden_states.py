"""The controller's part of sglang_hidden_states: the page becomes a file here, of a mismatch too."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from action_made import load
from ansible.plugins.loader import action_loader

ROOT = Path(__file__).resolve().parents[2]


class Watched:
    """A double of the watching base: hands back what the module would."""

    answer: dict[str, Any] = {}

    def __init__(self, page: str) -> None:
        self._task = SimpleNamespace(args={"page": page})

    def run(self, tmp: Any = None, task_vars: Any = None) -> dict[str, Any]:
        return dict(self.answer)


@pytest.fixture
def action(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(action_loader, "get", lambda name, class_only: Watched)
    return load("sglang_hidden_states")


@pytest.mark.parametrize("failed", [True, False])
def test_the_page_is_written_and_leaves_the_result(action: Any, tmp_path: Path, failed: bool) -> None:
    page = tmp_path / "reports" / "default" / "hidden.html"
    Watched.answer = {"failed": failed, "page_html": "<p>ü</p>", "verdict": "x"}
    result = action.ActionModule(str(page)).run()
    assert page.read_text(encoding="utf-8") == "<p>ü</p>"
    assert result == {"failed": failed, "verdict": "x", "page": str(page)}


def test_a_relative_page_is_below_the_project(
    action: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(action, "ROOT", tmp_path)
    Watched.answer = {"page_html": "x"}
    assert action.ActionModule("reports/a.html").run()["page"] == str(tmp_path / "reports" / "a.html")


def test_without_a_page_nothing_is_written(action: Any, tmp_path: Path) -> None:
    Watched.answer = {"verdict": "x"}
    assert action.ActionModule(str(tmp_path / "a.html")).run() == {"verdict": "x"}
    assert list(tmp_path.iterdir()) == []
