"""The module: documentation, check mode, and whole runs against a double of a server whose probes speak."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import sglang_hidden_states as module
from ansible.module_utils.aerie.accept.client import HttpClient
from ansible.module_utils.aerie.accept.progress import ProgressFile
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.hidden import run as hidden_run
from ansible.module_utils.aerie.hidden.probe import ARM, EVENTS
from ansible.module_utils.aerie.hidden.run import Settings, compare, read_reference, record
from ansible.module_utils.aerie.release.child import ChildJob, Finished

sys.path.insert(0, str(Path(__file__).parent))  # whether or not this directory is a package
from accept_double import Double

ROWS, WIDTH = 6, 8
VALUES = {layer: [0.1 * (layer + 2), -0.1, 0.2 * layer, 0.3, -0.01 * layer] for layer in range(-1, 6)}


def values(layer: int) -> dict[str, Any]:
    return {"norm": 5.0 + layer, "first": VALUES[layer], "last": VALUES[layer]}


class Probed:
    """A server whose probes speak about each prompt. ``captured``: layer outputs that reach the draft."""

    def __init__(self, directory: Path, captured: tuple[int, ...]) -> None:
        self.directory, self.captured = directory, captured
        self.cached = [0]
        self.width = WIDTH * len(captured)
        self.silent = False
        self.armed: list[dict[str, Any]] = []

    def __call__(self, body: dict[str, Any]) -> tuple[int, Any]:
        wish = json.loads((self.directory / ARM).read_text())
        self.armed.append(wish)
        rows = len(body["input_ids"])
        cached = self.cached.pop(0) if self.cached else 0
        if not self.silent:
            with (self.directory / EVENTS).open("a") as file:
                for event in self.events(wish, rows - cached):
                    file.write(json.dumps(event) + "\n")
        return 200, {"text": "", "meta_info": {"cached_tokens": cached, "finish_reason": {"type": "length"}}}

    def events(self, wish: dict[str, Any], rows: int) -> list[dict[str, Any]]:
        base = {
            "v": 1,
            "arm": wish["id"],
            "shape": [rows, WIDTH],
            "dtype": "bfloat16",
            "graph_capture": False,
        }

        def tensor(name: str) -> str | None:
            return f"{name}.safetensors" if wish["tensors"] else None

        layers = [
            {**base, "event": "layer_output", "layer": n, **values(n), "tensor": tensor(f"l{n}")}
            for n in range(6)
        ]
        aux = [
            {**base, "event": "aux_capture", "index": i, "layer": n + 1, **values(n)}
            for i, n in enumerate(self.captured)
        ]
        draft = {**base, "event": "draft_input", "shape": [rows, self.width], "tensor": tensor("d")}
        return [
            *(layers if wish["layers"] else []),
            *aux,
            draft,
            {**base, "event": "draft_fc", "tensor": tensor("f")},
        ]


@pytest.fixture
def double() -> Any:
    server = Double()
    yield server
    server.close()


@pytest.fixture
def probes(tmp_path: Path) -> Path:
    place = tmp_path / "probes"
    place.mkdir(mode=0o700)
    return place


def reference(tmp_path: Path, layers: tuple[int, ...]) -> str:
    path = tmp_path / "reference.json"
    entries = [{"layer": n, "norm": 5.0 + n, "first": VALUES[n]} for n in layers]
    path.write_text(json.dumps({"input_ids": list(range(ROWS)), "layers": entries}))
    return str(path)


def params(double: Double, probes: Path, path: str, **changes: Any) -> dict[str, Any]:
    defaults = {name: option.get("default") for name, option in module.ARGUMENT_SPEC.items()}
    given = {
        "url": double.url,
        "probes": str(probes),
        "reference": path,
        "python": "/nowhere",
        "timeout": 5.0,
    }
    return {**defaults, **given, **changes}


def run(given: dict[str, Any]) -> tuple[dict[str, Any], AerieError | None]:
    return module.run_compare(given, ProgressFile(None, 1))


def test_a_match_from_norms_and_first_values(double: Double, probes: Path, tmp_path: Path) -> None:
    double.generate = server = Probed(probes, (1, 3, 5))
    given = params(double, probes, reference(tmp_path, (1, 3, 5)), api_key="k", page="p", label="one")
    given["result_file"] = str(tmp_path / "result.json")
    result, error = run(given)
    assert error is None
    assert (result["passed"], result["state"], result["captured_layers"]) == (True, "match", [1, 3, 5])
    assert "<svg" in result["page_html"]
    assert json.loads((tmp_path / "result.json").read_text())["instance"] == "one"
    assert double.keys == {"Bearer k"}
    body = double.bodies[0]
    assert body["input_ids"] == list(range(ROWS))
    assert body["sampling_params"] == {"temperature": 0.0, "max_new_tokens": 1}
    assert body["extra_key"] == server.armed[0]["id"]
    last = json.loads((probes / ARM).read_text())
    assert (last["forwards"], last["tensors"]) == (0, False), "the next requests would be recorded too"
    assert last["id"] != body["extra_key"]


def test_a_mismatch_is_an_error_with_the_sentence_and_what_to_change(
    double: Double, probes: Path, tmp_path: Path
) -> None:
    double.generate = Probed(probes, (1, 2, 5))
    result, error = run(params(double, probes, reference(tmp_path, (1, 3, 5)), training_layers=[1, 2, 5]))
    assert error is not None
    assert error.kind.code == "hidden-states-differ"
    assert (
        error.what
        == "segment 2 carries the output of layer 2; the draft was trained on the output of layer 3"
    )
    assert (
        error.next == "set sglang_server_training_layers: [1, 3, 5] (it is [1, 2, 5]) and run debug.yml again"
    )
    assert result["passed"] is False


def test_one_state_instead_of_three(double: Double, probes: Path, tmp_path: Path) -> None:
    server = Probed(probes, (1, 3, 5))
    server.width = WIDTH
    double.generate = server
    result, error = run(params(double, probes, reference(tmp_path, (1, 3, 5))))
    assert error is not None
    assert result["state"] == "width"
    assert "algorithm EAGLE3" in error.next


def test_a_prompt_from_the_prefix_cache_is_sent_again(double: Double, probes: Path, tmp_path: Path) -> None:
    server = Probed(probes, (1, 3, 5))
    server.cached = [2, 0]
    double.generate = server
    assert run(params(double, probes, reference(tmp_path, (1, 3, 5))))[1] is None
    assert len(double.bodies) == 2
    server.cached = [2, 2]
    with pytest.raises(AerieError) as refused:
        run(params(double, probes, reference(tmp_path, (1, 3, 5))))
    assert refused.value.kind.code == "hidden-prompt-cached"


def test_probes_that_say_nothing(double: Double, probes: Path, tmp_path: Path) -> None:
    server = Probed(probes, (1, 3, 5))
    server.silent = True
    double.generate = server
    with pytest.raises(AerieError) as refused:
        run(params(double, probes, reference(tmp_path, (1, 3, 5)), timeout=0.3))
    assert refused.value.kind.code == "hidden-probes-silent"


@pytest.mark.parametrize(("path", "words"), [("/nowhere/r.json", "no such file"), ("short", "at least 4")])
def test_references_that_are_refused(
    double: Double, probes: Path, tmp_path: Path, path: str, words: str
) -> None:
    if path == "short":
        path = str(tmp_path / "r.json")
        Path(path).write_text('{"input_ids": [1], "layers": [{"norm": 1}]}')
    with pytest.raises(AerieError) as refused:
        run(params(double, probes, path))
    assert words in refused.value.evidence[0]


class Child:
    """A double of the release's python: notes its jobs and answers as told."""

    def __init__(self, *answers: dict[str, Any] | None, file: bytes | None = None) -> None:
        self.answers, self.file = list(answers), file
        self.jobs: list[dict[str, Any]] = []

    def __call__(self, job: ChildJob, code: str, payload: bytes, file: str | None = None) -> Finished:
        compile(code, "child", "exec")
        self.jobs.append(json.loads(payload))
        answer = self.answers.pop(0)
        said = f"torch says hello\n{hidden_run.MARK}{json.dumps(answer)}\n" if answer is not None else ""
        return Finished(0, said, "Traceback\nBoom", self.file)


def test_tensors_are_compared_by_the_releases_python_and_removed(
    double: Double, probes: Path, tmp_path: Path
) -> None:
    double.generate = Probed(probes, (1, 3, 5))
    path = tmp_path / "r.safetensors"
    path.write_bytes(b"x")
    (probes / "d.safetensors").write_bytes(b"x")
    good = {"error": 0.003, "error_90": 0.004, "cosine": 0.999, "norm_ratio": 1.0, "max_difference": 0.01}
    figures = {
        "cross": [[good if a == b else None for b in range(3)] for a in range(3)],
        "served_to": [[None] * 6] * 3,
        "reference_to": [[None] * 6] * 3,
        "shard": [None] * 3,
        "row_shift": [0] * 3,
        "extra": {},
    }
    child = Child({"ids": list(range(ROWS)), "width": 24, "layers": []}, figures)
    settings = Settings(str(probes), None, ChildJob("/python"), (1, 3, 5), timeout=5.0)
    read = read_reference(str(path), settings.child, child)
    verdict, _ = compare(HttpClient(double.url), read, str(path), settings, child)
    assert verdict.matched
    job = child.jobs[1]
    assert (job["served"], job["served_width"], job["segments"], job["rows"]) == (
        "d.safetensors",
        WIDTH,
        3,
        ROWS,
    )
    assert [one["tensor"] for one in job["candidates"]] == [f"l{n}.safetensors" for n in range(6)]
    assert not (probes / "d.safetensors").exists()


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        ({"unusable": "no token ids"}, "hidden-reference-unusable", "no token ids"),
        ({"error": "OSError: x"}, "hidden-comparison-failed", "OSError: x"),
        (None, "hidden-comparison-failed", "Boom"),
    ],
)
def test_what_the_releases_python_cannot_do(tmp_path: Path, answer: Any, code: str, words: str) -> None:
    path = tmp_path / "r.pt"
    path.write_bytes(b"x")
    with pytest.raises(AerieError) as refused:
        read_reference(str(path), ChildJob("/python"), Child(answer))
    assert (refused.value.kind.code, refused.value.evidence[0]) == (code, words)


def test_a_reference_is_recorded_from_the_server(double: Double, probes: Path) -> None:
    double.generate = Probed(probes, (1, 3, 5))
    child = Child({"shape": [ROWS, 24]}, file=b"tensors")
    settings = Settings(str(probes), None, ChildJob("/python"), timeout=5.0)
    made, facts = record(HttpClient(double.url), range(ROWS), settings, {"release": "0.5.23"}, child)
    assert made == b"tensors"
    assert facts["training_layers"] == [1, 3, 5]
    assert child.jobs[0]["metadata"] == {"release": "0.5.23", "training_layers": [1, 3, 5]}
    assert child.jobs[0]["extra"] == {"draft_fc": "f.safetensors"}
