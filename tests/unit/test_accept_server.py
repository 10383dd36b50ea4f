"""The HTTP client against a double of the server, and whole measurements through it."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.aerie.accept.client import HttpClient
from ansible.module_utils.aerie.accept.options import MeasureOptions
from ansible.module_utils.aerie.accept.progress import ProgressFile
from ansible.module_utils.aerie.accept.run import Refused, inspect_server
from ansible.module_utils.aerie.accept.run import measure as measure_inspected
from ansible.module_utils.aerie.accept.server import (
    ServerSettings,
    check_environment,
    check_settings,
    server_settings,
    simulated_acceptance,
)
from ansible.module_utils.aerie.errors import AerieError

sys.path.insert(0, str(Path(__file__).parent))  # whether or not this directory is a package
from accept_double import INFO, Double, good_answer

KEY = "sk-a-key-that-must-not-show"


@pytest.fixture
def double() -> Iterator[Double]:
    server = Double()
    yield server
    server.close()


OPTIONS = MeasureOptions(num_prompts=8, request_timeout=5.0, timeout=20.0)
PROMPTS = [[1, 2, 3 + n] for n in range(8)]


def measure(
    client: HttpClient,
    prompts: list[list[int]],
    options: MeasureOptions,
    progress: ProgressFile | None = None,
) -> dict[str, Any]:
    return measure_inspected(client, prompts, options, inspect_server(client, options), progress)


def refusal(double: Double, options: MeasureOptions = OPTIONS, key: str | None = None) -> AerieError:
    with pytest.raises(AerieError) as refused:
        measure(HttpClient(double.url, key), PROMPTS, options)
    return refused.value


def changed(**values: Any) -> MeasureOptions:
    return MeasureOptions(**{**OPTIONS.__dict__, **values})


def test_measures_what_the_server_answers(double: Double) -> None:
    figures = measure(HttpClient(double.url, KEY), PROMPTS, changed(min_accept_length=2.9, temperature=0.5))
    assert figures["accept_length"] == 3.0
    assert figures["accept_rate"] == pytest.approx(2 / 3, abs=1e-4)
    assert figures["passed"] is True
    assert figures["server"] == {
        "release": "0.5.23",
        "algorithm": "EAGLE3",
        "num_steps": 3,
        "num_draft_tokens": 4,
        "topk": 1,
    }
    assert sorted(body["input_ids"] for body in double.bodies) == PROMPTS
    assert double.bodies[0]["sampling_params"] == {"temperature": 0.5, "max_new_tokens": 128}
    assert double.keys == {f"Bearer {KEY}"}


def test_figures_come_with_a_failed_gate(double: Double) -> None:
    with pytest.raises(Refused) as refused:
        measure(HttpClient(double.url), PROMPTS, changed(min_accept_length=3.5))
    assert refused.value.error.kind.code == "accept-length-below-floor"
    assert refused.value.figures["passed"] is False
    assert refused.value.figures["accept_length"] == 3.0


def test_rows_keep_the_order_of_the_prompts(double: Double) -> None:
    def slow_first(body: dict[str, Any]) -> tuple[int, Any]:
        time.sleep(0.2 if body["input_ids"][2] == 3 else 0.0)
        return 200, good_answer(body, verifies=40 + 2 * (body["input_ids"][2] - 3))

    double.generate = slow_first
    rows = measure(HttpClient(double.url), PROMPTS, OPTIONS)["rows"]
    assert [row["index"] for row in rows] == list(range(8))
    assert [row["verify_ct"] for row in rows] == list(range(40, 56, 2))


@pytest.mark.parametrize("concurrency", [1, 3])
def test_concurrency_is_kept(double: Double, concurrency: int) -> None:
    def slow(body: dict[str, Any]) -> tuple[int, Any]:
        time.sleep(0.05)
        return 200, good_answer(body)

    double.generate = slow
    measure(HttpClient(double.url), PROMPTS, changed(concurrency=concurrency))
    assert double.most_running == concurrency


def test_healthy_but_mute_server_is_named(double: Double) -> None:
    release = threading.Event()

    def hang(body: dict[str, Any]) -> tuple[int, Any]:
        release.wait(10)
        return 200, good_answer(body)

    double.generate = hang
    start = time.monotonic()
    error = refusal(double, changed(request_timeout=0.4))
    took = time.monotonic() - start
    release.set()
    assert error.kind.code == "accept-generation-timeout"
    assert "answers health, but not generation" in error.what
    assert took < 3
    assert len(double.bodies) <= 4 + OPTIONS.concurrency  # nothing new after the first failure's round


def test_dripping_answer_cannot_outlive_the_deadline(double: Double) -> None:
    double.drip = 0.1
    start = time.monotonic()
    error = refusal(double, changed(request_timeout=0.5, concurrency=8))
    assert error.kind.code == "accept-generation-timeout"
    assert time.monotonic() - start < 3


def test_total_timeout_ends_a_long_run(double: Double) -> None:
    def slow(body: dict[str, Any]) -> tuple[int, Any]:
        time.sleep(0.3)
        return 200, good_answer(body)

    double.generate = slow
    error = refusal(double, changed(concurrency=1, timeout=0.7))
    assert error.kind.code == "accept-generation-timeout"


def test_nothing_listens() -> None:
    server = Double()
    server.close()
    error = refusal(server)
    assert error.kind.code == "accept-server-unreachable"


def test_key_never_shows_in_an_error(double: Double) -> None:
    double.generate = lambda body: (401, {"error": f"Unauthorized: {KEY} is wrong"})
    error = refusal(double, key=KEY)
    assert error.kind.code == "accept-http-status"
    assert "HTTP 401" in error.what
    assert "api_key" in error.next
    assert KEY not in error.message()
    assert "Unauthorized: ********" in error.message()


def test_http_error_shows_a_short_body(double: Double) -> None:
    double.generate = lambda body: (400, {"error": "The input is too long. " * 100})
    error = refusal(double)
    assert "The input is too long." in error.evidence[0]
    assert len(error.evidence[0]) <= 300


def test_body_that_is_not_json(double: Double) -> None:
    double.generate = lambda body: (200, b"<html>hello</html>")
    error = refusal(double)
    assert error.kind.code == "accept-http-status"
    assert "<html>" in error.evidence[0]


def test_server_without_draft_is_found_at_its_first_answer(double: Double) -> None:
    def plain(body: dict[str, Any]) -> tuple[int, Any]:
        answer = good_answer(body)
        answer["meta_info"] = {k: v for k, v in answer["meta_info"].items() if not k.startswith("spec_")}
        return 200, answer

    double.generate = plain
    error = refusal(double, changed(concurrency=1))
    assert error.kind.code == "accept-no-speculation"
    assert len(double.bodies) < 4
    assert measure(HttpClient(double.url), PROMPTS, changed(speculative=False))["passed"] is True


@pytest.mark.parametrize("where", ["arguments", "live state"])
def test_lossy_thresholds_are_refused_before_a_prompt_is_sent(double: Double, where: str) -> None:
    info = json.loads(json.dumps(INFO["0.5.23-eagle"]))
    place = info if where == "arguments" else info["internal_states"][0]
    place["speculative_accept_threshold_acc"] = 0.9
    double.info = {"/server_info": (200, info)}
    error = refusal(double)
    assert error.kind.code == "accept-lossy-thresholds"
    assert error.evidence == ["speculative_accept_threshold_acc = 0.9"]
    assert double.bodies == []


def test_floor_is_checked_against_the_server_where_no_steps_are_told(double: Double) -> None:
    error = refusal(double, changed(min_accept_length=4.0))
    assert error.kind.code == "accept-floor-invalid"
    assert double.bodies == []


def test_old_path_and_old_shape_of_server_info(double: Double) -> None:
    flat = {k: v for k, v in INFO["0.5.18-eagle"].items() if k != "internal_states"}  # as up to 0.4.6
    double.info = {"/get_server_info": (200, {**flat, "api_key": KEY})}
    settings = server_settings(HttpClient(double.url), 5.0)
    assert (settings.source, settings.steps, settings.version) == ("/get_server_info", 3, "0.5.18")
    assert KEY not in repr(settings)


def test_unknown_settings_are_said(double: Double) -> None:
    double.info = {"/server_info": (401, None)}
    figures = measure(HttpClient(double.url), PROMPTS, changed(num_steps=3, num_draft_tokens=4))
    assert "HTTP 401" in figures["unavailable"]["accept_thresholds"]
    assert figures["server"]["release"] is None
    assert figures["unavailable"]["server.release"]


@pytest.mark.parametrize(
    ("steps", "draft_tokens", "evidence"),
    [
        (3, 4, None),
        (None, None, None),
        (2, 3, "num_steps: told 2, served 3"),
        (3, 5, "num_draft_tokens 5 with topk 1"),
    ],
)
def test_told_settings_must_be_the_servers(
    steps: int | None, draft_tokens: int | None, evidence: str | None
) -> None:
    settings = ServerSettings("/server_info", None, steps=3, draft_tokens=4, topk=1)
    if evidence is None:
        check_settings(settings, steps, draft_tokens)
        return
    with pytest.raises(AerieError) as refused:
        check_settings(settings, steps, draft_tokens)
    assert refused.value.kind.code == "accept-settings-differ"
    assert evidence in refused.value.evidence[0]


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        (b"PATH=/bin\0SGLANG_SIMULATE_ACC_LEN=2.5\0", ["SGLANG_SIMULATE_ACC_LEN=2.5"]),
        (b"SIMULATE_ACC_LEN=3\0", ["SIMULATE_ACC_LEN=3"]),
        (b"SGLANG_SIMULATE_ACC_LEN=much\0", ["SGLANG_SIMULATE_ACC_LEN=much"]),
        (b"SGLANG_SIMULATE_ACC_LEN=-1\0SGLANG_SIMULATE_ACC_METHOD=multinomial\0", []),
        (b"SGLANG_SIMULATE_ACC_LEN=\0X=SGLANG_SIMULATE_ACC_LEN=2\0", []),
    ],
)
def test_simulated_acceptance(environ: bytes, found: list[str]) -> None:
    assert simulated_acceptance(environ) == found


def test_environment_of_a_process(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "environ").write_bytes(b"SGLANG_SIMULATE_ACC_LEN=2\0API_KEY=secret\0")
    with pytest.raises(AerieError) as simulated:
        check_environment(7, tmp_path)
    assert simulated.value.kind.code == "accept-simulated"
    assert "secret" not in simulated.value.message()
    with pytest.raises(AerieError) as gone:
        check_environment(8, tmp_path)
    assert gone.value.kind.code == "accept-environment-unreadable"


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "https://127.0.0.1:8000", "http://host", "http://h:80/v1", "http://h:x"]
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(AerieError) as refused:
        HttpClient(url)
    assert refused.value.kind.code == "accept-url-invalid"


def test_progress_is_appended_line_by_line(double: Double, tmp_path: Path) -> None:
    path = tmp_path / "progress"
    progress = ProgressFile(path, 8, interval=0.0)
    progress.begin("tokenizing")
    measure(HttpClient(double.url), PROMPTS, OPTIONS, progress)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["text"] == "tokenizing"
    assert lines[0]["pid"] > 0
    assert [line["done"] for line in lines] == list(range(9))
    assert lines[-1] == {
        "text": "8 of 8 answers, accept length 3.00",
        "done": 8,
        "total": 8,
        "accept_length": 3.0,
    }


def test_progress_is_written_at_most_each_second_and_for_the_last(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    progress = ProgressFile(path, 50, interval=60.0)
    for _ in range(50):
        progress.add(0, 0)
    assert [json.loads(line)["done"] for line in path.read_text().splitlines()] == [1, 50]


def test_progress_that_cannot_be_written_stops_nothing(double: Double, tmp_path: Path) -> None:
    progress = ProgressFile(tmp_path / "missing" / "progress", 8, interval=0.0)
    assert measure(HttpClient(double.url), PROMPTS, OPTIONS, progress)["passed"] is True


def test_a_soak_sends_the_prompts_again_and_measures_them_once(double: Double) -> None:
    figures = measure(HttpClient(double.url), PROMPTS, changed(soak_requests=21))
    assert figures["soak_requests"] == len(double.bodies) == 21
    assert figures["requests"] == 8
    assert "soak: 21 requests answered in all" in figures["reasons"]


def test_fewer_than_the_measured_are_no_soak(double: Double) -> None:
    figures = measure(HttpClient(double.url), PROMPTS, changed(soak_requests=5))
    assert figures["soak_requests"] == len(double.bodies) == 8


def test_an_empty_answer_in_the_soak_is_refused(double: Double) -> None:
    def generate(body: dict[str, Any]) -> tuple[int, Any]:
        status, answer = good_answer_of(body)
        if len(double.bodies) > 12:
            answer = {**answer, "text": "", "output_ids": []}
        return status, answer

    def good_answer_of(body: dict[str, Any]) -> tuple[int, Any]:
        return 200, good_answer(body)

    double.generate = generate
    error = refusal(double, changed(soak_requests=20))
    assert "empty" in " ".join([error.what, *error.evidence])
