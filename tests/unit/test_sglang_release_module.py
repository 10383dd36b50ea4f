"""The module's face: documentation and options agree, secrets stay secret, bad input is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sglang_release
import yaml

ROOT = Path(__file__).resolve().parents[2]
RUN = """
import runpy, sys
import ansible.module_utils
ansible.module_utils.__path__.append(sys.argv[1])
sys.argv = [sys.argv[2]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(**options: Any) -> tuple[dict[str, Any], str]:
    """The module as a process, as on a host: its result and all it printed."""
    words = [
        sys.executable,
        "-c",
        RUN,
        str(ROOT / "module_utils"),
        str(ROOT / "library" / "sglang_release.py"),
    ]
    arguments = json.dumps({"ANSIBLE_MODULE_ARGS": options})
    done = subprocess.run(
        words, input=arguments, capture_output=True, text=True, check=False, env={**os.environ}
    )
    return json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr


def test_role_passes_only_options_that_exist() -> None:
    variables = yaml.safe_load((ROOT / "roles" / "sglang_install" / "vars" / "main.yml").read_text())
    options = set(variables["__sglang_install_options"])
    assert {"release", "lock_content"} <= options <= set(sglang_release.argument_spec())


def test_the_role_s_defaults_are_its_argument_spec_s() -> None:
    role = ROOT / "roles" / "sglang_install"
    defaults = yaml.safe_load((role / "defaults" / "main.yml").read_text())
    entries = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    assert {name: option["default"] for name, option in entries["main"]["options"].items()} == defaults
    for entry in entries.values():
        for name, option in entry["options"].items():
            assert option["default"] == defaults[name]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"source": "wheelhouse"}, "wheelhouse"),
        ({"source": "existing"}, "existing_python"),
        ({"source": "wheelhouse", "wheelhouse": "/nonexistent", "lock_content": "sglang==1"}, "lock-invalid"),
    ],
)
def test_bad_input_is_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    result, _ = run(release="1", prefix=str(tmp_path / "opt"), **options)
    assert result["failed"]
    assert said in result["msg"]
    assert not (tmp_path / "opt").exists()


def test_values_of_the_environment_are_never_shown(tmp_path: Path) -> None:
    secret = "https://user:s3cr3t-value@index.invalid/simple"
    options = {"release": "1", "lock_content": "sglang==1", "prefix": str(tmp_path / "opt")}
    result, printed = run(**options, environment={"PIP_INDEX_URL": secret, "PIP_NO_INPUT": "1"})
    assert "s3cr3t" not in printed
    assert "1" in result["msg"].split("release ")[1][:2]  # short values are no secrets and mask nothing


def test_inspected_says_what_the_host_lacks(tmp_path: Path) -> None:
    lock = f"sglang==1 --hash=sha256:{'a' * 64}"
    result, _ = run(
        release="1", state="inspected", lock_content=lock, prefix=str(tmp_path / "opt"),
        user="no-such-user", group="root",
    )  # fmt: skip
    assert result["missing"] == {"user": True, "group": False, "packages": []}
    assert result["installed"] is False
    assert not result["changed"]
