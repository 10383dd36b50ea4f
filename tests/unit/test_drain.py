"""How much a server still has to do, and what it leaves behind."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.aerie import processes
from ansible.module_utils.aerie.health import Answer
from ansible.module_utils.aerie.instance import drain, leftovers
from test_processes import TCP, TCP6

SPEC = {"release": {"release": "0.5.23"}, "command": ["python", "--enable-metrics"]}
METRICS = b"""# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0"} 3.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",tp_rank="0"} 1.0
sglang:num_running_reqs_offline_batch{model_name="m"} 7.0
"""


def ask(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Answer], spec: dict[str, Any] = SPEC) -> str:
    monkeypatch.setattr(
        drain.health, "get", lambda host, port, path, **_: answers.get(path, Answer(404, b""))
    )
    monkeypatch.setattr(drain.processes, "connections", lambda port: 5)
    return str(drain.load_of(spec, "127.0.0.1", 30000))


def test_the_server_is_asked_first_then_its_metrics_then_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = Answer(
        200, b'{"loads": [{"num_running_reqs": 1, "num_waiting_reqs": 1}, {"num_running_reqs": 0}]}'
    )
    metrics = Answer(200, METRICS)
    assert ask(monkeypatch, {"/v1/loads?include=core": loads, "/metrics": metrics}) == "2 requests"
    assert ask(monkeypatch, {"/metrics": metrics}) == "4 requests"
    assert ask(monkeypatch, {"/metrics": metrics}, {**SPEC, "command": []}) == "5 connections"
    assert ask(monkeypatch, {}) == "5 connections"
    assert ask(monkeypatch, {"/metrics": metrics}, {}) == "5 connections"


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (
            [{"num_reqs": 3, "num_waiting_reqs": 1}, {"num_reqs": 0, "num_waiting_reqs": 0}],
            3,
        ),  # /get_load, 0.5.9
        ({"loads": [{"num_running_reqs": 2, "num_waiting_reqs": 4}]}, 6),
        ({"loads": []}, None),
        ({"loads": [{"other": 1}]}, None),
        ("no", None),
        (None, None),
    ],
)
def test_answers_of_the_releases(body: Any, count: int | None) -> None:
    assert drain.parse_loads(body) == count


def test_where_a_release_says_it() -> None:
    assert drain.loads_path("0.5.8") == "/get_load"
    assert drain.loads_path("0.5.23").startswith("/v1/loads")
    assert drain.loads_path("") == ""


def test_connections_are_counted_to_the_port_only() -> None:
    assert processes.parse_connections(TCP, 30000) == 1
    assert processes.parse_connections(TCP, 22) == 0
    assert processes.parse_connections(TCP6, 8080) == 0


@pytest.mark.parametrize(
    ("name", "known", "pid"),
    [
        ("sglang_loads_ipc_ab12.shm", True, None),
        ("sgl_shm_mm_77_0a1b2c3d", True, 77),
        ("multi_tokenizer_args_78", True, 78),
        ("torch_79_123_0", True, 79),
        ("nccl-Ab1", True, None),
        ("postgres.1", False, None),
        ("psm_1234", False, None),
        ("sgl_shm_mm_x_0a1b2c3d", False, None),
    ],
)
def test_whose_file_it_is(name: str, known: bool, pid: int | None) -> None:
    assert leftovers.is_known(name) == known
    assert leftovers.maker_of(name) == pid


def test_only_what_nobody_needs_is_stale(tmp_path: Path) -> None:
    user = pwd.getpwuid(os.getuid()).pw_name
    names = ["sglang_loads_a.shm", "sglang_loads_open.shm", "other.shm", "multi_tokenizer_args_99999999",
             f"multi_tokenizer_args_{os.getpid()}"]  # fmt: skip
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    with (tmp_path / "sglang_loads_open.shm").open("rb"):
        found = [one.name for one in leftovers.stale(user, tmp_path)]
    assert found == ["multi_tokenizer_args_99999999", "sglang_loads_a.shm"]
    assert leftovers.stale("no-such-user", tmp_path) == []
    assert leftovers.stale("nobody" if user != "nobody" else "root", tmp_path) == []
