"""The module itself: its documentation, check mode, and a whole run with doubles of server and tokenizer."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import sglang_accept_rate as module
import yaml
from ansible.module_utils.aerie.accept import armed
from ansible.module_utils.aerie.accept.options import MeasureOptions
from ansible.module_utils.aerie.accept.run import Refused
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance.lease import Clock, Controller, Lease
from ansible.module_utils.aerie.instance.startup import START_TIMEOUT
from ansible.module_utils.aerie.instance.state import InstanceState, InstanceStore

sys.path.insert(0, str(Path(__file__).parent))  # whether or not this directory is a package
from accept_double import Double

RETURNED: dict[str, dict[str, Any]] = yaml.safe_load(module.RETURN)

TRANSFORMERS = """
class AutoTokenizer:
    chat_template = "x"
    @classmethod
    def from_pretrained(cls, path):
        return cls()
    def encode(self, text):
        return [1, 2]
    def apply_chat_template(self, chat, add_generation_prompt, tokenize):
        return {"input_ids": [[ord(c) for c in chat[0]["content"]]]}
"""


@pytest.fixture
def double() -> Any:
    server = Double()
    yield server
    server.close()


def params(double: Double, tmp_path: Path, **changes: Any) -> dict[str, Any]:
    (tmp_path / "transformers.py").write_text(TRANSFORMERS)
    defaults = {name: option.get("default") for name, option in module.ARGUMENTS.items()}
    given = {
        "url": double.url,
        "model_path": "/models/target",
        "python": sys.executable,
        "pythonpath": str(tmp_path),
    }
    return {**defaults, **given, **changes}


def test_defaults_are_the_cores() -> None:
    core = MeasureOptions()
    for name in module.MEASURE_OPTIONS:
        assert module.ARGUMENTS[name].get("default") == getattr(core, name)


def test_only_the_key_is_secret() -> None:
    assert [name for name, option in module.ARGUMENTS.items() if option.get("no_log")] == ["api_key"]


class Started:
    """A server that is ready after one look."""

    def __init__(
        self, store: InstanceStore, host: str, port: int, until: str, *, renew: Callable[[], None]
    ) -> None:
        assert (host, port, until) == ("127.0.0.1", 30000, "ready")
        self.renew = renew

    def serving(self, limit_s: float, say: Callable[[str], None]) -> Any:
        self.renew()
        say("loading weights")
        return SimpleNamespace(pid=os.getpid(), done=False)

    def end(self, limit_s: float, say: Callable[[str], None]) -> None:
        """The answer of /health, which comes while the requests run."""
        self.ended.append((limit_s, self.asked()))
        if self.fails:
            raise START_TIMEOUT.error("it is not ready", next="look")

    ended: ClassVar[list[tuple[float, int]]] = []
    asked: ClassVar[Callable[[], int]]
    fails: ClassVar[bool] = False


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_an_armed_measurement_waits_until_the_server_is_ready_or_the_run_is_over(
    double: Double, tmp_path: Path, ready: bool, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    clock = [1000.0]
    started_file, token = tmp_path / "started", "t" if ready else "another run's"
    progress, store = tmp_path / "progress", InstanceStore(str(tmp_path), "default")
    store.create()
    # SIGKILL ended the server before, which is known only after the measurement was armed.
    store.save(InstanceState(soak=30))

    def held(store: InstanceStore) -> Lease:
        asked.append(len(double.bodies))
        clock[0] += 60
        assert (
            '"reached": "prepared"' in progress.read_text()
        )  # the prompts first: nothing is waited for then
        if ready and len(asked) == 2:
            started_file.touch()
        return Lease("t", Controller.from_mapping({}), "boot", 100.0)

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(armed, "ASK_S", 0.1)
    monkeypatch.setattr(armed.lease_host, "read", held)
    monkeypatch.setattr(armed.lease_host, "clock_now", lambda: Clock("boot", 10.0))
    monkeypatch.setattr(armed, "Wait", Started)
    monkeypatch.setattr(Started, "ended", [])
    monkeypatch.setattr(Started, "asked", lambda _: len(double.bodies), raising=False)
    monkeypatch.setattr(Started, "fails", fails)
    run = {"instance": "default", "state_dir": str(tmp_path), "lease": token, "start_timeout": 60}
    run |= {"host": "127.0.0.1", "port": 30000}
    files = {"started_file": str(started_file), "progress_file": str(progress)}
    key = tmp_path / "config.yaml"  # in the deployment, which is built while the measurement waits
    monkeypatch.setattr(module, "client_key", lambda *_: asked.append(-1))
    given = params(double, tmp_path, num_steps=3, state="armed", run=run, **files, api_key_file=str(key))
    if ready and fails:
        with pytest.raises(AerieError) as unhealthy:
            module.run(given, check_mode=False)
        assert unhealthy.value.kind is START_TIMEOUT
    elif ready:
        result = module.run(given, check_mode=False)
        assert result["soak_requests"] == 30
        ((left, answered),) = Started.ended  # nothing is said of a server whose /health has not answered
        assert 30 <= left <= 60
        assert answered == len(double.bodies) >= 30
        assert set(asked[:-1]) == {0}  # its key is read, and it is asked, when it is ready
        assert asked[-1] == -1
        assert result["elapsed_s"] == 0.0  # the two minutes before the server was ready are not the gate's
        told = [json.loads(line) for line in progress.read_text().splitlines()]
        ready_at = told.index(next(one for one in told if one.get("reached") == "ready"))
        assert any(one.get("text") == "loading weights" for one in told[:ready_at])
        assert any("answers" in one.get("text", "") for one in told[ready_at:])
    else:
        with pytest.raises(AerieError) as ended:
            module.run(given, check_mode=False)
        assert ended.value.kind.code == "lease-lost"
        assert not double.bodies


def test_a_start_renews_the_lease_as_long_as_somebody_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was killed touches the file no more: its lease must end by itself."""
    renewed: list[str] = []
    left = [50.0]
    started = tmp_path / "started"
    started.touch()
    run = armed.Run(InstanceStore(str(tmp_path), "default"), "127.0.0.1", 1, "t", 60.0, started)
    monkeypatch.setattr(armed.lease_host, "renew", lambda store, token: renewed.append(token))
    held = Lease("t", Controller.from_mapping({}), "boot", 100.0)
    monkeypatch.setattr(armed.lease_host, "read", lambda store: held)
    monkeypatch.setattr(armed.lease_host, "clock_now", lambda: Clock("boot", 100.0 - left[0]))
    renew = armed._Renewal(run)
    renew()
    renew()  # nobody has touched it since
    assert renewed == ["t"]
    os.utime(started, (1.0, 1.0))  # the clock was set back: it was touched all the same
    renew()
    assert renewed == ["t", "t"]
    started.unlink()  # no error of its own
    renew()
    assert renewed == ["t", "t"]
    left[0] = -1.0
    with pytest.raises(AerieError) as ended:
        renew()
    assert ended.value.kind.code == "lease-lost"


@pytest.mark.parametrize(
    ("done", "took", "asked"), [(True, 5.0, []), (False, 5.0, [55.0]), (False, 59.0, [armed.LEAST_S])]
)
def test_health_has_what_is_left_of_the_start_s_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool, took: float, asked: list[float]
) -> None:
    clock, ended, said = [100.0], [], []

    class Fired(Started):
        def serving(self, limit_s: float, say: Callable[[str], None]) -> Any:
            clock[0] += took
            return SimpleNamespace(pid=7, done=done)

        def end(self, limit_s: float, say: Callable[[str], None]) -> None:
            ended.append(limit_s)
            say("fired up")

    monkeypatch.setattr(armed, "Wait", Fired)
    monkeypatch.setattr(armed, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda _: None))
    started = tmp_path / "started"
    started.touch()
    run = armed.Run(InstanceStore(str(tmp_path), "default"), "127.0.0.1", 30000, "t", 60.0, started)
    pid, healthy = run.await_server(said.append)
    assert pid == 7
    healthy()
    assert ended == asked  # one that has answered 200 already is not asked again
    assert said == ["waiting for the answer of /health"] * len(asked)


def test_a_whole_run_returns_what_is_documented(double: Double, tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    result = module.run(
        params(
            double,
            tmp_path,
            num_steps=3,
            min_accept_length=2.5,
            server_pid=os.getpid(),
            progress_file=str(progress),
        ),
        check_mode=False,
    )
    assert result["passed"] is True
    assert result["accept_length"] == 3.0
    assert set(result) <= set(RETURNED)
    undocumented_free = set(RETURNED) - {"known_after", "error", "armed"}
    assert undocumented_free == set(result)
    assert result["prompt_set"]["source"] == "shipped"
    assert result["prompt_set"]["count"] == len(double.bodies) == 24
    assert len({row["prompt_sha256"] for row in result["rows"]}) == 24
    assert "simulated_acceptance" not in result["unavailable"]
    assert len(progress.read_text().splitlines()) >= 2


def test_what_was_not_checked_is_said(double: Double, tmp_path: Path) -> None:
    result = module.run(params(double, tmp_path, chat_template=False), check_mode=False)
    assert "server_pid" in result["unavailable"]["simulated_acceptance"]
    assert result["prompt_set"]["chat_template"] is False
    assert "raw text" in result["reasons"][-1]
    assert double.bodies[0]["input_ids"] == [1, 2]


def test_failed_gate_keeps_its_figures(double: Double, tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        module.run(params(double, tmp_path, min_accept_length=3.5), check_mode=False)
    assert refused.value.figures["prompt_set"]["count"] == 24
    assert refused.value.figures["rows"][0]["prompt_sha256"]


def test_users_prompts(double: Double, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"Question {n}?\n" for n in range(6)))
    result = module.run(params(double, tmp_path, prompts=str(prompts), num_prompts=6), check_mode=False)
    assert result["prompt_set"]["source"] == str(prompts)
    assert sorted(bytes(b["input_ids"]).decode() for b in double.bodies)[0] == "Question 0?"


def test_check_mode_sends_nothing_but_still_refuses_bad_options(double: Double, tmp_path: Path) -> None:
    result = module.run(params(double, tmp_path), check_mode=True)
    assert result["known_after"] == "start"
    assert result["skipped"] is True
    assert result["passed"] is None
    with pytest.raises(AerieError) as refused:
        module.run(params(double, tmp_path, num_steps=2, min_accept_length=3.0), check_mode=True)
    assert refused.value.kind.code == "accept-floor-invalid"
    assert double.bodies == []


@pytest.mark.parametrize(
    ("given", "kept", "sent"),
    [
        (None, '{"api-key": "k", "admin-api-key": "a"}', "Bearer k"),
        (None, '{"admin-api-key": "a"}', "Bearer a"),
        ("mine", '{"api-key": "k"}', "Bearer mine"),
    ],
)
def test_the_key_comes_from_the_deployments_file(
    double: Double, tmp_path: Path, given: str | None, kept: str, sent: str
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(kept)
    result = module.run(params(double, tmp_path, api_key=given, api_key_file=str(config)), check_mode=False)
    assert double.keys == {sent}
    assert sent.split()[1] not in str(result).split("'")


def test_a_file_without_a_key_is_an_error_and_not_an_http_401(double: Double, tmp_path: Path) -> None:
    gone = params(double, tmp_path, api_key_file=str(tmp_path / "config.yaml"))
    assert module.run(gone, check_mode=True)["known_after"] == "start"
    with pytest.raises(AerieError) as refused:
        module.run(gone, check_mode=False)
    assert refused.value.kind.code == "api-key-missing"
    assert double.bodies == []


def test_server_is_asked_before_the_tokenizer_is_started(double: Double, tmp_path: Path) -> None:
    double.close()
    with pytest.raises(AerieError) as refused:
        module.run(params(double, tmp_path, python="/nowhere/python"), check_mode=False)
    assert refused.value.kind.code == "accept-server-unreachable"
