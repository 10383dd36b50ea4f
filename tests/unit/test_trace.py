"""What is claimed of communication from made traces, and what is not."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.aerie.accept.client import HttpClient
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.measure import trace_run
from ansible.module_utils.aerie.measure.trace import (
    common,
    is_communication,
    merged,
    rank_figures,
    rank_of,
    trace_figures,
)
from ansible.module_utils.aerie.measure.trace_run import TraceJob, run_trace
from ansible.module_utils.aerie_reports.words import profile_verdict

GEMM = "nvjet_hsh_64x8_64x16_4x1_v_bz_TNT"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def kernel(name: str, begin: float, length: float, **changes: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": begin, "dur": length, "tid": 7, **changes}


def cycle(at: float, beside: float = 0.0) -> list[dict[str, Any]]:
    """100 us: computing 0-70, a collective 70-90 on its own, ``beside`` us of another under the computing."""
    found = [kernel(GEMM, at, 40), kernel("rms_norm", at + 40, 30), kernel(NCCL, at + 70, 20)]
    return found + ([kernel("cross_device_reduce_1stage<bf16, 8>", at + 10, beside, tid=9)] if beside else [])


def rank(number: int = 0, **changes: Any) -> dict[str, Any]:
    return rank_figures(f"TP-{number}", [e for at in range(10) for e in cycle(100.0 * at, **changes)])


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        (NCCL, True),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t", True),
        ("void sglang::cross_device_reduce_2stage<__nv_bfloat16, 8>(...)", True),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<...>", True),
        ("multimem_all_reduce_kernel", True),
        ("void deep_ep::internode_ll::dispatch<...>", True),
        ("Memcpy PtoP (Device -> Device)", True),
        ("Memcpy DtoD (Device -> Device)", False),
        (GEMM, False),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, ...>>", False),
        ("void moe_align_block_size_kernel<int>", False),
        ("void flash::flash_fwd_splitkv_combine_kernel<...>", False),
    ],
)
def test_what_counts_as_communication(name: str, is_one: bool) -> None:
    assert is_communication(name) is is_one


@pytest.mark.parametrize(
    ("spans", "found"),
    [
        ([], []),
        ([(5, 6), (1, 2)], [(1, 2), (5, 6)]),
        ([(1, 4), (2, 3), (4, 6)], [(1, 6)]),
        ([(1, 1)], []),
    ],
)
def test_spans_merge(spans: list[tuple[float, float]], found: list[tuple[float, float]]) -> None:
    assert merged(spans) == found


def test_moments_in_common() -> None:
    assert common([(0, 10), (20, 30)], [(5, 22), (29, 40)]) == 5 + 2 + 1
    assert common([(0, 1)], []) == 0


def test_communication_alone() -> None:
    found = rank()
    assert (found["busy_ms"], found["alone_ms"], found["beside_ms"]) == (0.9, 0.2, 0.0)
    assert found["share"] == pytest.approx(2 / 9, abs=1e-4)
    assert found["span_ms"] == pytest.approx(0.99)
    assert found["names"] == [{"name": NCCL, "ms": 0.2}]


def test_what_runs_beside_computing_is_not_counted_twice() -> None:
    """The busy time stays, the share too; the overlap is told apart."""
    found = rank(beside=50)
    assert (found["busy_ms"], found["alone_ms"], found["beside_ms"]) == (0.9, 0.2, 0.5)
    assert found["share"] + found["share_beside"] < 1


def test_two_streams_that_compute_at_once_count_once() -> None:
    doubled = [kernel(GEMM, 100.0 * at + 5, 40, tid=8) for at in range(10)]
    found = rank_figures("TP-0", [e for at in range(10) for e in cycle(100.0 * at)] + doubled)
    assert found["busy_ms"] == 0.9


def test_only_what_runs_on_the_gpu_counts() -> None:
    other = [
        kernel("nccl:all_reduce", 0, 1e6, cat="gpu_user_annotation"),
        kernel("aten::all_reduce", 0, 1e6, cat="cpu_op"),
        {"ph": "M", "name": "process_name", "pid": 1},
        kernel("Memcpy HtoD (Pinned -> Device)", 0, 1e6, cat="gpu_memcpy"),
    ]
    found = rank_figures("TP-0", [*other, *(e for at in range(10) for e in cycle(100.0 * at))])
    assert found["busy_ms"] == 0.9


@pytest.mark.parametrize(
    ("name", "rank_name"),
    [
        ("1764454000.12-TP-3.trace.json.gz", "TP-3"),
        ("1764454000.12-TP-0-DP-1-EP-2.trace.json.gz", "TP-0-DP-1-EP-2"),
        ("odd.trace.json.gz", "odd.trace.json.gz"),
    ],
)
def test_the_rank_is_in_the_name(name: str, rank_name: str) -> None:
    assert rank_of(name) == rank_name


CPU = rank_figures("TP-0", [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 5}])
FEW = rank_figures("TP-1", cycle(0.0))


@pytest.mark.parametrize(
    ("ranks", "expected", "why"),
    [
        ([rank()], 1, ""),
        ([rank(0), rank(1)], None, ""),
        ([CPU], 1, "no GPU kernel"),
        ([rank(0), FEW], 2, "TP-1"),
        ([rank(0)], 2, "1 of 2 ranks"),
        ([], None, "no trace"),
    ],
)
def test_a_share_is_claimed_of_every_rank_or_not_at_all(
    ranks: list[dict[str, Any]], expected: int | None, why: str
) -> None:
    found = trace_figures(ranks, expected)
    assert (found["share"] is None) == bool(why)
    assert why in found["why"]


def test_ranks_one_by_one() -> None:
    slow = [e for at in range(10) for e in [*cycle(100.0 * at), kernel(GEMM, 100.0 * at + 90, 10)]]
    found = trace_figures([rank(0), rank_figures("TP-1", slow), rank(2)], 3)
    assert found["share"] == found["share_high"] == pytest.approx(2 / 9, abs=1e-4)
    assert found["share_low"] == pytest.approx(0.2)
    assert [one["rank"] for one in found["ranks"]] == ["TP-0", "TP-1", "TP-2"]


# -- In a sentence --------------------------------------------------------------------------------------------------


def verdict(trace: dict[str, Any] | None) -> str:
    part = {"share": 0.25, "median_ms": 1.0, "p10_ms": 1.0, "p90_ms": 1.0}
    parts = dict.fromkeys(("draft", "verify", "extend", "rest"), part)
    batch = {"batch": 1, "cycles": 30, "cycle_ms": 4.0, "parts": parts}
    return " ".join(profile_verdict({"profile": [batch], "settings": [], "trace": trace}))


def test_no_trace_no_claim() -> None:
    said = verdict(None)
    assert "sglang_tune_trace_steps" in said
    assert "Communication" not in said


def test_a_trace_that_failed_says_why() -> None:
    said = verdict({"share": None, "why": "POST /start_profile was answered with HTTP 401"})
    assert "no share of communication can be claimed: POST /start_profile was answered with HTTP 401" in said


def test_a_trace_without_kernels_claims_nothing() -> None:
    said = verdict({**trace_figures([CPU], 1), "steps": 10, "batch": 1})
    assert "no share of communication can be claimed: the trace holds no GPU kernel" in said


def test_a_share_is_said_with_its_ranks() -> None:
    said = verdict({**trace_figures([rank(0), rank(1, beside=50)], 2), "steps": 10, "batch": 8})
    assert "Communication is 22 % of the time in which a kernel runs (10 cycles at batch 8" in said
    assert "2 ranks, 22 to 22 %" in said


# -- Against a server's double --------------------------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    """Decodes until told to stop; writes a trace for each rank when asked, in pieces."""

    daemon_threads = True
    events: Path
    ranks = 2
    status = 200
    writes = True
    asked: list[tuple[str, dict[str, Any]]]


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, {**body, "key": self.headers["Authorization"]}))
        status, answer = 200, "Start profiling.\n"
        if self.path == "/generate":
            for _ in range(5):
                with (self.server.events / "cycles.jsonl").open("a") as file:
                    file.write('{"batch": 2}\n')
                time.sleep(0.1)
            answer = "{}"
        elif self.path == "/start_profile":
            status = self.server.status
            if status == 200 and self.server.writes:
                threading.Thread(target=self.write, args=(Path(body["output_dir"]),), daemon=True).start()
        elif self.path == "/stop_profile":
            self.write(Path(self.server.asked[-2][1]["output_dir"]))
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer.encode())

    def write(self, place: Path) -> None:
        events = [e for at in range(10) for e in cycle(100.0 * at)]
        whole = gzip.compress(json.dumps({"traceEvents": events}).encode())
        for number in range(self.server.ranks):
            with (place / f"1.5-TP-{number}.trace.json.gz").open("wb") as file:
                file.write(whole[:100])
                file.flush()
                time.sleep(0.8)
                file.write(whole[100:])

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    made.events, made.asked = tmp_path, []
    threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def job(server: Server, **changes: Any) -> tuple[HttpClient, HttpClient, TraceJob]:
    url = f"http://127.0.0.1:{server.server_address[1]}"
    settings = {"batch": 2, "steps": 10, "max_new_tokens": 64, "timeout": 20.0, "ranks": 2, **changes}
    return HttpClient(url, "one"), HttpClient(url, "other"), TraceJob(events=server.events, **settings)


def test_a_trace_of_every_rank_is_waited_for_until_it_is_whole(server: Server) -> None:
    (server.events / "trace-old").mkdir()
    (server.events / "cycles.jsonl").write_text('{"batch": 2}\n')
    said: list[str] = []
    place, found = run_trace(*job(server), ["a", "b"], said.append)
    assert [one["rank"] for one in found] == ["TP-0", "TP-1"]
    assert trace_figures(found, 2)["share"] == pytest.approx(2 / 9, abs=1e-4)
    assert [path for path in server.events.iterdir() if path.is_dir()] == [place]
    asked = dict(server.asked)
    assert asked["/start_profile"]["num_steps"] == 10
    assert (asked["/start_profile"]["key"], asked["/generate"]["key"]) == ("Bearer other", "Bearer one")
    assert asked["/generate"]["sampling_params"]["ignore_eos"] is True


def test_a_trace_that_outlives_its_load_is_ended(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_run, "QUIET_S", 0.2)
    server.writes = False
    _, found = run_trace(*job(server), ["a"], lambda _: None)
    assert len(found) == 2
    assert [path for path, _ in server.asked].count("/stop_profile") == 1


@pytest.mark.parametrize(
    ("change", "asked_for", "code"),
    [
        ({"status": 401}, {}, "trace-refused"),
        ({"ranks": 1}, {"timeout": 4.0}, "trace-missing"),
        ({}, {"batch": 3}, "trace-missing"),
    ],
)
def test_no_trace_is_an_error(
    server: Server, change: dict[str, Any], asked_for: dict[str, Any], code: str
) -> None:
    for name, value in change.items():
        setattr(server, name, value)
    with pytest.raises(AerieError) as caught:
        run_trace(*job(server, **asked_for), ["a"], lambda _: None)
    assert caught.value.kind.code == code
