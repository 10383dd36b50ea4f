"""Waiting: what an observation of a starting or stopping server means."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance.startup import (
    advice_for,
    check_unit,
    how,
    judge_start,
    judge_stop,
    phase_of,
)
from ansible.module_utils.aerie.processes import Listener
from test_plan import ABSENT, RUNNING, UNIT

LOADING = replace(RUNNING, listener=(), health="not listening yet")


def test_ready_needs_our_own_listener_and_health() -> None:
    assert judge_start(RUNNING, [], "").done
    assert not judge_start(replace(RUNNING, health="HTTP 503"), [], "").done
    assert not judge_start(LOADING, [], "").done


def test_a_stranger_on_the_port_is_never_ready() -> None:
    stranger = replace(RUNNING, listener=(Listener("0.0.0.0", 30000, (7,)),))
    verdict = judge_start(stranger, [], "", ["pid 7 (user alice): python -m http.server"])
    assert not verdict.done
    assert verdict.error is not None
    assert "held by another process" in verdict.error.what
    assert verdict.error.evidence == ["pid 7 (user alice): python -m http.server"]


@pytest.mark.parametrize(
    "unit",
    [
        replace(UNIT, active="failed", sub="failed", result="exit-code", exit_status="1"),
        replace(UNIT, active="inactive", sub="dead", result="success"),  # -9 counted as a clean stop
        replace(UNIT, active="activating", sub="auto-restart"),
        replace(UNIT, restarts=1),
        replace(UNIT, active="deactivating", sub="stop-sigterm"),
    ],
)
def test_a_start_that_leaves_active_has_failed_at_once(unit: object) -> None:
    tail = ["noise", "ValueError: Warning: Target model's context_length (4096) is greater than the derived"]
    verdict = judge_start(replace(LOADING, unit=unit), tail, "loading weights")
    assert not verdict.done
    assert verdict.error is not None
    assert verdict.error.kind.code == "start-failed"
    assert "loading weights" in verdict.error.what
    assert verdict.error.evidence == tail
    assert "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN" in verdict.error.next


@pytest.mark.parametrize(
    ("result", "code", "status", "said"),
    [
        ("exit-code", "1", "2", "exit status 2"),
        ("success", "1", "0", "exit status 0"),
        # Seen on an H200 with 0.5.17: the launcher kills itself when its scheduler has died.
        ("success", "2", "9", "killed by SIGKILL"),
        ("signal", "2", "11", "killed by SIGSEGV"),
        ("oom-kill", "2", "9", "killed by SIGKILL, oom-kill"),
        ("start-limit-hit", "0", "0", "start-limit-hit"),
        ("success", "0", "0", "ended"),
        ("", "", "", "ended"),
    ],
)
def test_how_it_ended_is_said_in_words(result: str, code: str, status: str, said: str) -> None:
    assert how(replace(UNIT, result=result, exit_code=code, exit_status=status)) == said


def test_without_known_advice_the_journal_is_named() -> None:
    verdict = judge_start(replace(ABSENT, unit=replace(UNIT, active="failed")), ["?"], "")
    assert verdict.error is not None
    assert verdict.error.next == "journalctl -u sglang-default.service -b -e"


def test_stopped_needs_an_empty_cgroup() -> None:
    assert judge_stop(ABSENT).done
    assert not judge_stop(replace(ABSENT, members=(5,))).done
    assert judge_stop(RUNNING).text == "draining, 2 processes left"
    assert judge_stop(RUNNING, "3 requests").text == "draining, 3 requests, 2 processes left"
    assert "SIGKILL" in judge_stop(replace(ABSENT, unit=replace(ABSENT.unit, result="timeout"))).text


def test_a_masked_unit_is_refused_before_anything_stops() -> None:
    masked = replace(UNIT, load="masked", active="inactive")
    check_unit(UNIT)
    with pytest.raises(AerieError) as refused:
        check_unit(masked)
    assert "systemctl unmask sglang-default.service" in refused.value.next
    assert judge_start(replace(ABSENT, unit=masked), [], "").error is not None


# From the log of a real 0.5.23 on the CPU engine.
LOG = [
    "[2026-11-29 15:24:50] Init parallel begin.",
    "[2026-11-29 15:24:51] Load weight begin. avail mem=21.9 GB",
    "[2026-11-29 15:24:52] Load weight end. elapsed=0.51 s, type=LlamaForCausalLM",
    "[2026-11-29 15:24:52] Memory pool end. avail mem=21.9 GB",
]


def test_the_latest_phase_wins() -> None:
    assert phase_of(LOG) == "memory pool ready"
    assert phase_of(LOG[:2]) == "loading weights"
    assert phase_of([], "loading weights") == "loading weights"
    assert phase_of(["nothing known"], "") == ""


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory.", "mem_fraction_static"),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x512 and 768x256)", "layer ids"),
        ("launch_server.py: error: unrecognized arguments: --foo", "sglang_server_arguments"),
    ],
)
def test_advice(line: str, word: str) -> None:
    assert word in (advice_for(["x", line]) or "")
