"""Whose pip fills an environment, asked of stand-in interpreters that answer as real ones do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.release.python import inspect, pip_for


def interpreter(tmp_path: Path, answer: str, status: int = 0) -> str:
    path = tmp_path / "python3"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\necho went wrong >&2\nexit {status}\n")
    path.chmod(0o755)
    return str(path)


def told(ensurepip: bool, pip: str) -> str:
    return json.dumps({"version": "3.12", "ensurepip": ensurepip, "pip": pip})


def test_ensurepip_gives_the_environment_its_own(tmp_path: Path) -> None:
    assert pip_for(interpreter(tmp_path, told(True, ""))) == ""


@pytest.mark.parametrize("pip", ["22.3", "23.0.1", "26.1"])
def test_without_it_the_interpreter_s_own_pip_does(tmp_path: Path, pip: str) -> None:
    python = interpreter(tmp_path, told(False, pip))
    assert pip_for(python) == python


@pytest.mark.parametrize("pip", ["", "22.2.2", "9.0", "22.x"])
def test_without_any_the_package_to_install_is_named(tmp_path: Path, pip: str) -> None:
    with pytest.raises(AerieError) as caught:
        pip_for(interpreter(tmp_path, told(False, pip)))
    assert caught.value.kind.code == "venv-module-missing"
    assert caught.value.next.startswith("apt-get install python3.12-venv")


@pytest.mark.parametrize(("answer", "status"), [("", 0), ("Welcome to bash", 0), ("{}", 3)])
@pytest.mark.parametrize("ask", [pip_for, inspect])
def test_what_is_no_python_is_said(tmp_path: Path, answer: str, status: int, ask: object) -> None:
    assert callable(ask)
    with pytest.raises(AerieError) as caught:
        ask(interpreter(tmp_path, answer, status))
    assert caught.value.kind.code == "python-unusable"
    if status:
        assert caught.value.evidence == ["went wrong"]
