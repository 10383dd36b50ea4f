"""pip's output: progress, and failures told apart. The samples are what pip 23 to 25 print."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.module_utils.aerie.release.pip import Progress, command, environment, failure, redacted

OUTPUT = """\
Looking in links: /srv/wheels
Processing /srv/wheels/torch-2.11.0+cu130-cp312-none-linux_x86_64.whl (from -r lock.txt (line 1))
Collecting sglang==0.5.23 (from -r lock.txt (line 3))
  Downloading sglang-0.5.23-py3-none-any.whl (4.1 MB)
Collecting six==1.17.0
  Downloading six-1.17.0-py2.py3-none-any.whl (11 kB)
Installing collected packages: torch, six, sglang
Successfully installed sglang-0.5.23 six-1.17.0 torch-2.11.0+cu130
"""


def test_progress() -> None:
    progress = Progress(3)
    said = [text for line in OUTPUT.splitlines()[:-1] if (text := progress.feed(line))]
    assert said == [
        "fetching 1/3 torch",
        "fetching 2/3 sglang",
        "fetching 2/3 sglang (4.1 MB)",
        "fetching 3/3 six",
        "installing 1/3 torch",
    ]
    assert progress.installed(set()) is None  # said already
    assert progress.installed({"torch"}) == "installing 2/3 six"
    assert progress.installed({"torch", "six", "sglang"}) is None


def test_a_wheelhouse_is_the_only_source() -> None:
    words = command("/t/python", "/r/python", Path("l"), wheelhouse=Path("/w"), find_links=[Path("/x")])
    assert words[:3] == ["/t/python", "-m", "pip"]
    assert words[words.index("--python") + 1] == "/r/python"
    assert {"--no-index", "--require-hashes", "--no-deps", "--ignore-installed"} <= set(words)
    assert [words[i + 1] for i, word in enumerate(words) if word == "--find-links"] == ["/w", "/x"]
    assert "--no-index" not in command("/t", "/t", Path("l"), wheelhouse=None, find_links=[])


def test_the_host_s_pip_settings_do_not_reach_a_wheelhouse_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.invalid/simple")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    isolated = environment({"https_proxy": "http://p.invalid"}, Path("/t"), isolated=True)
    assert "PIP_INDEX_URL" not in isolated
    assert isolated["PIP_CONFIG_FILE"] == "/dev/null"
    assert isolated["https_proxy"] == "http://p.invalid"
    opened = environment({}, Path("/t"), isolated=False)
    assert opened["PIP_INDEX_URL"] == "https://index.invalid/simple"
    assert "PYTHONPATH" not in opened


@pytest.mark.parametrize(
    ("output", "code", "said"),
    [
        (
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. Someone may have …\n"
            "    six==1.17.0 from https://u:p@index.invalid/six.whl:\n        Expected sha256 aa\n   Got bb\n",
            "package-hash-mismatch",
            "six==1.17.0 from https://****@index.invalid/six.whl",
        ),
        (
            "ERROR: Could not find a version that satisfies the requirement torch==9 (from versions: 2.11.0)\n"
            "ERROR: No matching distribution found for torch==9\n",
            "package-missing",
            "from versions: 2.11.0",
        ),
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(…)'\n"
            "ERROR: No matching distribution found for torch==9\n",
            "index-unreachable",
            "Retrying",
        ),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space\n",
            "install-failed",
            "Errno 28",
        ),
    ],
)
def test_failures_are_told_apart(output: str, code: str, said: str) -> None:
    error = failure(output.splitlines(keepends=True), Path("/opt/log"))
    assert error.kind.code == code
    assert said in "\n".join(error.evidence)


def test_passwords_in_addresses_are_hidden() -> None:
    text = "Looking in indexes: https://user:s3cret@index.invalid/simple, http://plain.invalid/a@b"
    assert redacted(text) == "Looking in indexes: https://****@index.invalid/simple, http://plain.invalid/a@b"
