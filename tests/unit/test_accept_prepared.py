"""Token ids that are kept on the host: used while everything that decides them is the same, made anew otherwise."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from ansible.module_utils.aerie.accept import prepared as accept_prepared
from ansible.module_utils.aerie.accept.prompts import choose_prompts
from ansible.module_utils.aerie.accept.tokenize import TokenizerJob

PROMPTS = choose_prompts(2)
IDS = [[1, 2], [3]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    place = tmp_path / "model"
    place.mkdir()
    (place / "tokenizer.json").write_text("{}")
    (place / "model-00001.safetensors").write_text("weights")
    return place


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[TokenizerJob]:
    made: list[TokenizerJob] = []
    monkeypatch.setattr(accept_prepared, "tokenize", lambda job, prompts: made.append(job) or IDS)
    return made


def test_the_tokenizer_is_started_once(model: Path, calls: list[TokenizerJob], tmp_path: Path) -> None:
    job, place = TokenizerJob("/p/bin/python", str(model)), tmp_path / "kept"
    for _ in range(3):
        assert accept_prepared.token_ids(job, PROMPTS, place) == IDS
    assert len(calls) == 1
    (file,) = place.iterdir()
    assert (place.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    accept_prepared.token_ids(dataclasses.replace(job, timeout=1.0), PROMPTS, place)
    (model / "model-00001.safetensors").write_text("other weights")
    accept_prepared.token_ids(job, PROMPTS, place)
    assert len(calls) == 1
    accept_prepared.token_ids(job, PROMPTS, None)
    assert len(calls) == 2


@pytest.mark.parametrize("change", ["tokenizer", "file", "prompts", "python", "template", "broken"])
def test_whatever_decides_the_ids_makes_them_anew(
    model: Path, calls: list[TokenizerJob], tmp_path: Path, change: str
) -> None:
    job, prompts, place = TokenizerJob("/p/bin/python", str(model)), PROMPTS, tmp_path / "kept"
    accept_prepared.token_ids(job, prompts, place)
    if change == "tokenizer":
        (model / "tokenizer.json").write_text('{"a": 1}')
    elif change == "file":
        (model / "chat_template.jinja").write_text("x")
    elif change == "prompts":
        prompts = choose_prompts(2, "one\ntwo\n", "a file")
    elif change == "python":
        job = dataclasses.replace(job, python="/q/bin/python")
    elif change == "template":
        job = dataclasses.replace(job, chat_template=False)
    else:
        next(place.iterdir()).write_text("[[1], []]")
    accept_prepared.token_ids(job, prompts, place)
    assert len(calls) == 2


def test_few_are_kept(model: Path, calls: list[TokenizerJob], tmp_path: Path) -> None:
    for number in range(8):
        job = TokenizerJob(f"/p{number}/bin/python", str(model))
        accept_prepared.token_ids(job, PROMPTS, tmp_path / "kept")
    assert len(list((tmp_path / "kept").iterdir())) == accept_prepared.KEPT
