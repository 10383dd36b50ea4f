"""Production against debug mode's record: what compares, what agrees, and what could not have been seen."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import sglang_accept_agreement as module
from ansible.module_utils.aerie.accept.agreement import (
    KEPT,
    agreement,
    disagreement,
    identity,
    make_record,
    newest_of,
    with_record,
)
from ansible.module_utils.aerie.accept.causes import IN_GRAPHS, known_from, likely_causes
from ansible.module_utils.aerie.accept.model_identity import fingerprint
from ansible.module_utils.aerie.accept.paired import Counted, paired_difference, t_quantile

EASY = [2 + n % 3 for n in range(24)]  # tokens that a verify gains, by prompt


def gate(per_verify: list[float], verifies: int = 40, **changes: Any) -> dict[str, Any]:
    rows = [
        {
            "prompt_sha256": f"p{n}",
            "completion_tokens": round(verifies * gain) + 1,
            "verify_ct": verifies,
            "degenerate": None,
            "output_sha256": f"o{n}",
        }
        for n, gain in enumerate(per_verify)
    ]
    return {
        "accept_length": 3.0,
        "rows": rows,
        "server": {"num_steps": 3, "num_draft_tokens": 4, "topk": 1},
        "prompt_set": {"sha256": "s", "chat_template": True},
        **changes,
    }


def who(measured: dict[str, Any], **changes: Any) -> dict[str, Any]:
    given = {"release": "0.5.23", "target": "t", "draft": "d", "max_new_tokens": 64}
    return identity(measured, **{**given, **changes})


def compare(new: list[float], old: list[float], **options: Any) -> Any:
    debug, production = gate(old), gate(new)
    record = make_record(who(debug), debug, "2026-11-29T00:00:00Z", cuda_graphs=False, hidden={})
    return agreement([record], who(production), production, **options)


def noisy(spread: float, shift: float = 0.0) -> list[float]:
    rng = random.Random(3)
    return [gain + shift + rng.uniform(-spread, spread) for gain in EASY]


CASES = [
    ("token for token", EASY, "agrees"),
    ("a little noise", noisy(0.1), "agrees"),
    ("much noise", noisy(1.5), "inconclusive"),
    ("every prompt a little less", noisy(0.05, -0.2), "disagrees"),
    ("nothing accepted", [1.0] * 24, "disagrees"),
    ("more than debug mode", noisy(0.05, 0.3), "disagrees"),
    ("a sure difference below the margin", noisy(0.02, -0.05), "agrees"),
]


@pytest.mark.parametrize(("name", "new", "state"), CASES, ids=[case[0] for case in CASES])
def test_states(name: str, new: list[float], state: str) -> None:
    found = compare(new, EASY)
    assert found.state == state, found.sentence
    assert "smallest difference that could have been detected" in found.sentence
    assert found.difference.detectable > 0
    if state == "agrees":
        assert found.difference.detectable <= 0.1
    if state == "inconclusive":
        assert "agrees" not in found.sentence
        assert "more prompts" in found.sentence


def test_a_margin_that_could_not_be_seen_never_reads_agrees() -> None:
    assert compare(EASY, EASY).state == "agrees"
    assert compare(EASY, EASY, margin=0.0001).state == "inconclusive"


def test_few_prompts_are_inconclusive() -> None:
    found = compare(EASY[:7], EASY[:7])
    assert found.state == "inconclusive"
    assert "7 prompts can be paired, 8 are needed" in found.sentence


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"release": "0.5.20"}, "another release"),
        ({"draft": "other"}, "another draft"),
        ({"target": "other"}, "another target"),
        ({"max_new_tokens": 128}, "another tokens per answer"),
    ],
)
def test_only_the_same_is_compared(changes: dict[str, Any], words: str) -> None:
    debug = gate(EASY)
    record = make_record(who(debug), debug, "then", cuda_graphs=False, hidden={})
    found = agreement([record], who(debug, **changes), debug)
    assert (found.state, words in found.sentence) == ("not compared", True)
    other = gate(EASY, server={"num_steps": 2, "num_draft_tokens": 3, "topk": 1})
    assert agreement([record], who(other), other).state == "not compared"
    assert "left no record" in agreement([], who(debug), debug).sentence


def test_loops_and_prompts_without_verifies_are_left_out() -> None:
    new = gate(EASY)
    new["rows"][0].update(degenerate="a loop", completion_tokens=1)
    new["rows"][1].update(verify_ct=0)
    old = gate(EASY)
    record = make_record(who(old), old, "then", cuda_graphs=False, hidden={})
    assert agreement([record], who(new), new).difference.pairs == 22


@pytest.mark.parametrize(
    ("release", "graphs", "words"),
    [
        ("0.5.9", False, "install 0.5.11 or later"),
        ("0.5.23", False, "sglang_server_debug_cuda_graphs=true"),
        ("0.5.23", True, "playbooks/status.yml"),
    ],
)
def test_what_to_do_about_a_disagreement(release: str, graphs: bool, words: str) -> None:
    debug, production = gate(EASY), gate([1.0] * 24)
    hidden = {"passed": True, "state": "match", "verdict": "all 3 segments", "segments": []}
    record = make_record(who(debug, release=release), debug, "then", cuda_graphs=graphs, hidden=hidden)
    found = agreement([record], who(production, release=release), production)
    captured = {"eager": {"output_of_layer": [1, 3, 5]}, "cuda_graph": {"output_of_layer": [1, 3, 4]}}
    error = disagreement(found, release, captured)
    assert words in error.next
    assert ("inside them than in eager mode" in error.message()) is not graphs
    assert "all 3 segments" in error.message()
    assert "CUDA graphs captures the outputs of layers 1, 3, 4" in error.message()


def test_records_are_replaced_by_identity_and_bounded() -> None:
    records: list[Any] = []
    for n in range(2 * KEPT):
        measured = gate(EASY)
        made = make_record(who(measured, draft=f"d{n}"), measured, str(n), cuda_graphs=False, hidden={})
        records = with_record(with_record(records, made), made)
    assert [one["at"] for one in records] == [str(n) for n in range(2 * KEPT - 1, KEPT - 1, -1)]
    assert newest_of(records, who(gate(EASY), draft="d12", max_new_tokens=1))["at"] == "12"
    assert newest_of(records, who(gate(EASY), draft="gone")) == {}


def test_paired_difference_is_far_narrower_than_the_prompts() -> None:
    old = [Counted(round(40 * gain), 40) for gain in EASY]
    new = [Counted(one.gained - 4, 40) for one in old]
    found = paired_difference(new, old, 0.95, 1)
    assert found.value == pytest.approx(-0.1)
    assert found.high < 0
    assert found.detectable == pytest.approx(1 / 960)
    assert found == paired_difference(new, old, 0.95, 1)
    with pytest.raises(ValueError, match="two or more"):
        paired_difference(new[:1], old[:1], 0.95, 1)


@pytest.mark.parametrize(
    ("freedom", "true"), [(3, 3.182), (7, 2.365), (11, 2.201), (23, 2.069), (1000, 1.962)]
)
def test_quantiles_of_t(freedom: int, true: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(true, rel=0.01)


def test_a_model_is_its_content(tmp_path: Path) -> None:
    def model(name: str, weights: bytes, config: str = "{}") -> str:
        place = tmp_path / name
        place.mkdir()
        (place / "config.json").write_text(config)
        (place / "model.safetensors").write_bytes(weights)
        return fingerprint(place)

    one = model("a", b"12345")
    assert model("copy", b"12345") == one
    assert len({one, model("b", b"12346"), model("c", b"12345", '{"ids": [1]}')}) == 3


def test_a_large_file_is_sampled_to_its_end(tmp_path: Path) -> None:
    place = tmp_path / "m"
    place.mkdir()
    (place / "config.json").write_text("{}")
    with (place / "model.safetensors").open("wb") as file:
        file.truncate(100 << 20)
    before = fingerprint(place)
    with (place / "model.safetensors").open("r+b") as file:
        file.seek((100 << 20) - 1)
        file.write(b"x")
    assert fingerprint(place) != before


def params(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    for name in ("target", "draft"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "config.json").write_text(json.dumps({"model": name}))
    given = {name: option.get("default") for name, option in module.ARGUMENT_SPEC.items()}
    places = {
        "record": str(tmp_path / "r.json"),
        "target": str(tmp_path / "target"),
        "draft": str(tmp_path / "draft"),
    }
    return {**given, **places, "release": "0.5.23", "gate": gate(EASY), **changes}


def test_the_module_keeps_and_compares(tmp_path: Path) -> None:
    assert module.run(params(tmp_path))[0]["state"] == "not compared"
    before = module.run(params(tmp_path, state="known", gate={}))[0]
    assert (before["record"], before["sentence"][:31]) == (False, "not compared with debug mode: d")
    hidden = {"passed": True, "state": "match", "verdict": "right", "similarity": {"much": 1}}
    kept = params(tmp_path, state="recorded", hidden_states=hidden)
    assert module.run(kept)[0]["changed"] is True
    assert module.run(kept)[0]["changed"] is False
    assert module.run(params(tmp_path))[0]["state"] == "agrees"
    known = module.run(params(tmp_path, state="known", gate={}))[0]
    assert known["hidden_states"] == {"passed": True, "state": "match", "verdict": "right"}
    assert (known["record"], known["sentence"]) == (True, "")
    result, error = module.run(params(tmp_path, gate=gate([1.0] * 24)))
    assert error is not None
    assert (error.kind.code, result["state"]) == ("accept-modes-disagree", "disagrees")
    (tmp_path / "r.json").write_text("broken")
    assert module.run(params(tmp_path))[0]["state"] == "not compared"


# -- what other checks know goes into the message about a low accept length --------------------------------------------


def low(first: float) -> dict[str, Any]:
    positions = [{"position": 1, "unconditional": first, "conditional": first, "verifies": 100}]
    return {
        "acceptance_by_position": positions,
        "accept_length": 1 + first,
        "accept_length_interval": [1, 1 + first],
    }


NOTE = {"code": "d2t-zero", "what": "d2t is all zero", "fix": "copy the draft again"}
QUIET = {"code": "ids-order", "what": "ids out of order", "fix": "nothing to do"}
RIGHT = {"passed": True, "verdict": "all 3 segments"}
WRONG = {"passed": False, "verdict": "segment 1 carries the output of layer 1"}


def test_without_checks_everything_is_in_question() -> None:
    causes = likely_causes(low(0.0), 2.0, {})
    assert "EAGLE3" in causes[0]
    assert len(causes) == 6


def test_a_verdict_on_hidden_states_comes_first() -> None:
    causes = likely_causes(low(0.0), 2.0, {"hidden_states": WRONG})
    assert causes[0] == "hidden states in debug mode: segment 1 carries the output of layer 1"


def test_right_states_rule_out_layer_ids_and_point_at_graphs() -> None:
    checks = {"hidden_states": RIGHT, "cuda_graphs": True}
    causes = likely_causes(low(0.0), 2.0, checks)
    assert causes[0] == IN_GRAPHS
    assert not [one for one in causes if "layer_ids" in one or "layer ids are shifted" in one]
    assert IN_GRAPHS not in likely_causes(low(0.0), 2.0, {"hidden_states": RIGHT, "cuda_graphs": False})


def test_a_draft_check_rules_out_what_it_judged_and_no_more() -> None:
    clean = {"problems": [], "notes": [QUIET], "judged": {"training_layers": [1, 3, 5]}}
    found, out = known_from({"draft_check": clean})
    assert found == []
    assert out == {"algorithm", "vocabulary", "ids-missing", "ids-shifted"}
    unknown = {**clean, "judged": {"training_layers": []}}
    assert known_from({"draft_check": unknown})[1] == {"algorithm", "vocabulary"}
    accepted = {**clean, "notes": [NOTE]}
    found, out = known_from({"draft_check": accepted})
    assert found == ["draft check: d2t-zero: d2t is all zero. copy the draft again"]
    assert "vocabulary" not in out
    assert known_from({"draft_check": {"problems": [NOTE], "notes": []}})[1] == set()
