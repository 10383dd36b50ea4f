"""The module itself: a run as Ansible runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import sglang_draft_check as module
import yaml
from draft_made import DEEPSEEK, HIDDEN, draft_config, draft_tensors, write_model

ROOT = Path(__file__).resolve().parents[2]
RUN = (
    "import sys, ansible.module_utils; from pathlib import Path; "
    f"ansible.module_utils.__path__.append({str(ROOT / 'module_utils')!r}); "
    f"sys.path.insert(0, {str(ROOT / 'library')!r}); import sglang_draft_check as m; m.main()"
)


def run(**params):
    arguments = json.dumps(
        {"ANSIBLE_MODULE_ARGS": {"_ansible_check_mode": True, "_ansible_remote_tmp": "~", **params}}
    )
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=arguments, capture_output=True, text=True, timeout=60
    )
    if not done.stdout.strip():
        pytest.fail(done.stderr)
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def pair(tmp_path):
    target = write_model(tmp_path / "t", DEEPSEEK, {"model.norm.weight": ("BF16", [HIDDEN], None)})
    return {
        "target": str(target),
        "draft": str(write_model(tmp_path / "d", draft_config([2, 30, 58]), draft_tensors())),
    }


def test_problems_fail_with_all_that_is_known(pair):
    rc, result = run(**pair, release="0.5.23", training_layers=[2, 30, 58])
    assert rc == 1
    assert result["error"]["code"] == "draft-check-failed"
    assert "wrong-layers" in result["msg"]
    assert result["recommended_ids"] == [3, 31, 59]
    assert [problem["code"] for problem in result["problems"]] == ["wrong-layers"]


def test_fail_false_only_returns_them(pair):
    rc, result = run(**pair, release="0.5.23", training_layers=[2, 30, 58], fail=False)
    assert rc == 0
    assert result["changed"] is False
    assert [problem["code"] for problem in result["problems"]] == ["wrong-layers"]


def test_everything_returned_is_documented(pair):
    _rc, result = run(**pair, release="0.5.12", training_layers=[2, 30, 58])
    documented = set(yaml.safe_load(module.RETURN))
    assert set(result) - {"changed", "invocation", "warnings", "deprecations"} <= documented
    assert documented - {"error"} <= set(result)


def test_only_what_can_be_done_something_about_is_a_warning(pair):
    rc, result = run(**pair, release="0.5.23", training_layers=[2, 30, 58], serve_ids="recommended")
    assert rc == 0
    assert "ids-rewritten" in [note["code"] for note in result["notes"]]
    assert "ids-rewritten" not in json.dumps(result.get("warnings", []))
    _rc, result = run(**pair, release="0.5.23")
    assert "layers-unproven" in json.dumps(result["warnings"])


def test_settings_come_from_the_servers_arguments_too(pair):
    _rc, result = run(**pair, release="0.5.9", training_layers=[2, 30, 58], fail=False)
    graphs = [problem["code"] for problem in result["problems"]]
    off = {"disable-cuda-graph": True}
    _rc, result = run(**pair, release="0.5.9", training_layers=[2, 30, 58], fail=False, arguments=off)
    eager = [problem["code"] for problem in result["problems"]]
    assert set(graphs) - set(eager) == {"graph-captures-other-layers"}


def test_a_wrong_path(pair):
    rc, result = run(**{**pair, "draft": "/nowhere/at/all"}, release="0.5.23")
    assert rc == 1
    assert result["error"]["code"] == "draft-check-unreadable"


def test_a_wrong_release(pair):
    rc, result = run(**pair, release="latest")
    assert rc == 1
    assert result["error"]["code"] == "draft-check-release"
