"""The pair maker itself; needs an engine's Python (torch), starts no server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import predict
import pytest

HERE = Path(__file__).resolve().parent
PROMPTS = (
    "Tell me a story",
    "Say goodbye!",
    " Every",
    "They carry small lanterns, because winter",
    "né",
    "two \n",
)


def make(python: Path, out: Path, *options: str) -> str:
    done = subprocess.run(
        [python, HERE / "pair.py", out, *options], capture_output=True, text=True, check=True
    )
    return done.stdout


def contents(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


@pytest.fixture(scope="session")
def pair(engine_python, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("pair") / "pair"
    make(engine_python, out, "--wirings", "all")
    return out


def test_two_runs_give_the_same_bytes(engine_python, pair, tmp_path):
    make(engine_python, tmp_path / "again", "--wirings", "all")
    assert contents(tmp_path / "again") == contents(pair)


def test_a_second_call_leaves_the_pair_alone(engine_python, pair):
    before = (pair / "pair.json").stat().st_mtime_ns
    assert make(engine_python, pair, "--wirings", "all").startswith("unchanged")
    assert (pair / "pair.json").stat().st_mtime_ns == before


def test_other_acceptance_is_made_anew(engine_python, tmp_path):
    out = tmp_path / "pair"
    assert make(engine_python, out, "--accept", "0.5,0.5").startswith("made")
    low = predict.expected_accept_length(predict.load(out / "pair.json"), 2)
    assert make(engine_python, out, "--accept", "0.9,0.9").startswith("made")
    high = predict.expected_accept_length(predict.load(out / "pair.json"), 2)
    assert 1.5 < low < 2.0 < 2.5 < high < 3.0


def test_everything_is_readable_by_a_service_user(pair):
    assert {oct(p.stat().st_mode & 0o777) for p in pair.rglob("*") if p.is_file()} == {"0o644"}


def test_the_prediction_knows_the_tokenizer(engine_python, pair):
    """`last_token` works without the tokenizer; it must agree with it, in transformers' own hands."""
    code = (
        "import json, sys; from transformers import AutoTokenizer; t = AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "chat = [t.apply_chat_template([{'role': 'user', 'content': p}], tokenize=False) for p in sys.argv[2:]]\n"
        "print(json.dumps([t.encode(c, add_special_tokens=False)[-1] for c in chat]))"
    )
    command = [engine_python, "-c", code, pair / "target", *PROMPTS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    tables = predict.load(pair / "pair.json")
    assert json.loads(done.stdout.splitlines()[-1]) == [predict.last_token(tables, text) for text in PROMPTS]
