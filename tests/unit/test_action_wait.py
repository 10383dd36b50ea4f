"""What a wait on the controller ends with when its time is over: an error like a module's, with its code."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

PLUGIN = Path(__file__).resolve().parents[2] / "plugins/action/sglang_server_wait.py"


@pytest.fixture(scope="module")
def wait() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wait_action", PLUGIN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("until", "code"), [("ready", "start-timeout"), ("stopped", "stop-timeout")])
def test_too_late_is_an_error_with_its_code(wait: ModuleType, until: str, code: str) -> None:
    seen = {"unit": "active/running", "pid": 7, "text": "loading weights"}
    message = wait.ActionModule._too_late({"until": until, "instance": "a"}, seen, 12.4)
    failure = wait.as_failure(message)
    assert failure["msg"] == message
    error = failure["error"]
    assert error["code"] == code
    assert error["what"] == f"sglang-a.service is not {until} after 12 s"
    assert error["evidence"] == ["unit active/running, pid 7, last seen: loading weights"]
    assert error["next"].startswith("journalctl -u sglang-a.service -b -e")
