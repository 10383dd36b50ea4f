"""The module around ``bench_serving``, with a double of the release: its load generator and its tokenizer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import sglang_benchmark as module
from ansible.module_utils.aerie.accept.prompts import choose_prompts
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.measure import bench_run
from ansible.module_utils.aerie.measure.bench_figures import batch_figures
from ansible.module_utils.aerie.measure.bench_run import BenchJob, run_load

sys.path.insert(0, str(Path(__file__).parent))
from accept_double import Double

TRANSFORMERS = """
class AutoTokenizer:
    bos_token, bos_token_id = "<s>", 7
    @classmethod
    def from_pretrained(cls, path):
        return cls()
    def encode(self, text, add_special_tokens=True):
        return [7] * add_special_tokens + [ord(c) for c in text]
    def apply_chat_template(self, chat, add_generation_prompt, tokenize):
        return "<s>" + chat[0]["content"]
"""

SERVING = """
import argparse, json, os, random, sys
from tqdm import tqdm

def get_tokenizer(name):
    raise SystemExit("the tokenizer was loaded again, with remote code")

def check_chat_template(path):
    raise SystemExit("model code was run")

def cli_main():
    parser = argparse.ArgumentParser()
    for name in ("backend base-url dataset-name dataset-path num-prompts sharegpt-output-len max-concurrency "
                 "warmup-requests output-file seed model tokenizer").split():
        parser.add_argument("--" + name)
    for name in ("disable-ignore-eos", "output-details", "flush-cache"):
        parser.add_argument("--" + name, action="store_true")
    args = parser.parse_args()
    assert check_chat_template(args.model) and get_tokenizer(args.tokenizer).encode("x")
    key = os.environ.get("OPENAI_API_KEY", "")
    assert key not in " ".join(sys.argv) or not key
    if args.flush_cache:
        import requests
        requests.post(args.base_url + "/flush_cache", headers={"Authorization": "Bearer " + key})
    lines = [json.loads(line)["conversations"][0]["content"] for line in open(args.dataset_path)]
    random.shuffle(lines)
    if TROUBLE == "exit":
        sys.exit(1)
    if TROUBLE == "hang":
        import time; time.sleep(60)
    bar = tqdm(total=len(lines))
    for _ in lines:
        bar.update(1)
    bar.close()
    result = {
        "server_info": {"api_key": key},
        "duration": 0.25 * len(lines),
        "ttfts": [0.1] * len(lines),
        "itls": [[0.01] * len(line) for line in lines],
        "output_lens": [len(line) + 1 for line in lines],
        "errors": ["" for _ in lines],
    }
    if TROUBLE == "errors":
        result["errors"][1] = "Unauthorized: " + key
    with open(args.output_file, "a") as file:
        file.write(json.dumps(result) + "\\n")

if __name__ == "__main__":
    cli_main()
"""


REQUESTS = """
STATUS, SEEN = [400, 200], []

class Answer:
    def __init__(self, status):
        self.status_code = status
    def raise_for_status(self):
        if self.status_code >= 400:
            raise OSError("HTTP %d for %s" % (self.status_code, SEEN[-1]))

def post(url, headers=None, **_):
    SEEN.append(headers["Authorization"])
    status = STATUS.pop(0) if STATUS else 200
    return Answer(401 if headers["Authorization"] == "Bearer refused" else status)
"""


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A double of a release's environment, new layout."""
    (tmp_path / "transformers.py").write_text(TRANSFORMERS)
    (tmp_path / "tqdm.py").write_text("def tqdm(**_):\n    raise SystemExit('not replaced')\n")
    (tmp_path / "requests.py").write_text(REQUESTS)
    place = tmp_path / "sglang" / "benchmark"
    place.mkdir(parents=True)
    (tmp_path / "sglang" / "__init__.py").touch()
    (place / "__init__.py").touch()
    (place / "serving.py").write_text("TROUBLE = ''\n" + SERVING)
    return tmp_path


def job(release: Path, **changes: Any) -> BenchJob:
    options: dict[str, Any] = {
        "url": "http://127.0.0.1:1",
        "api_key": "key-of-keys",
        "model_path": "/models/target",
        "python": sys.executable,
        "batch_sizes": [1, 8],
        "max_new_tokens": 64,
        "timeout": 60.0,
        "pythonpath": str(release),
    }
    return BenchJob(**{**options, **changes})


def trouble(release: Path, kind: str) -> None:
    (release / "sglang" / "benchmark" / "serving.py").write_text(f"TROUBLE = {kind!r}\n" + SERVING)


def test_prompts_keep_their_order_and_the_warm_up_comes_first(release: Path) -> None:
    prompts = choose_prompts(6)
    order: list[str] = []
    load = run_load(
        job(release), prompts, lambda ids: order.append(f"{len(ids)} prompts of ids"), order.append
    )
    assert order[0] == "6 prompts of ids"
    assert order[-1] == "load at batch 8: 24 of 24 requests"
    assert load.module == "sglang.benchmark.serving"
    one, eight = load.batches
    assert [row["prompt"] for row in one["rows"]] == list(range(6))
    assert [row["prompt"] for row in eight["rows"]] == [i % 6 for i in range(24)]  # whole rounds
    assert [row["tokens"] - 1 for row in one["rows"]] == [len(str(p)) for p in prompts.prompts]
    assert one["rows"][0]["seconds"] == pytest.approx(0.1 + 0.01 * len(str(prompts.prompts[0])))


def test_a_load_that_was_over_too_soon_is_made_longer_by_whole_rounds(release: Path) -> None:
    said: list[str] = []
    load = run_load(job(release, least_seconds=4.0), choose_prompts(6), lambda _: None, said.append)
    one, eight = load.batches
    assert (len(one["rows"]), one["duration"]) == (18, 4.5)  # 6 of 1.5 s were too few, and are not counted
    assert (len(eight["rows"]), eight["duration"]) == (24, 6.0)  # long enough as it was
    assert [row["prompt"] for row in one["rows"]] == [i % 6 for i in range(18)]
    ends = [line for line in said if line.endswith("of 6 requests") and "batch 1" in line]
    assert ends[-1] == "load at batch 1: 6 of 6 requests"
    assert "load at batch 1: 18 of 18 requests" in said


def test_no_load_is_longer_than_its_result_can_hold(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_run, "MOST_REQUESTS", 20)
    asked = job(release, least_seconds=float("inf"), batch_sizes=[1])
    load = run_load(asked, choose_prompts(6), lambda _: None, lambda _: None)
    assert len(load.batches[0]["rows"]) == 24  # whole rounds


def test_the_cache_is_emptied_with_the_administrators_key_and_it_is_looked_at(release: Path) -> None:
    load = run_load(job(release, admin_key="admin"), choose_prompts(4), lambda _: None, lambda _: None)
    assert len(load.batches) == 2  # a 400 on the way: the server was still at the warm-up
    with pytest.raises(AerieError) as caught:
        run_load(job(release, admin_key="refused"), choose_prompts(4), lambda _: None, lambda _: None)
    assert "HTTP 401" in caught.value.evidence[0]
    assert "refused" not in caught.value.evidence[0]


def test_ids_are_those_of_the_rendered_text(release: Path) -> None:
    seen: list[list[list[int]]] = []
    run_load(job(release), choose_prompts(4), seen.append, lambda _: None)
    assert bytes(seen[0][0][:3]).decode() == "<s>"


def test_the_old_layout_is_found_too(release: Path) -> None:
    (release / "sglang" / "benchmark" / "serving.py").rename(release / "sglang" / "bench_serving.py")
    load = run_load(job(release), choose_prompts(4), lambda _: None, lambda _: None)
    assert load.module == "sglang.bench_serving"


@pytest.mark.parametrize(
    ("kind", "code", "said"),
    [
        ("exit", "bench-serving-failed", "ended with 1"),
        ("errors", "bench-serving-failed", "1 of 4 requests failed: Unauthorized: ********"),
        ("hang", "bench-serving-timeout", "0 of 1 batch sizes"),
    ],
)
def test_trouble_is_told_without_the_key(release: Path, kind: str, code: str, said: str) -> None:
    trouble(release, kind)
    short = job(release, batch_sizes=[1], timeout=3.0 if kind == "hang" else 60.0)
    with pytest.raises(AerieError) as caught:
        run_load(short, choose_prompts(4), lambda _: None, lambda _: None)
    assert caught.value.kind.code == code
    assert said in caught.value.message()
    assert "key-of-keys" not in caught.value.message()


def test_a_release_without_the_generator(tmp_path: Path) -> None:
    (tmp_path / "transformers.py").write_text(TRANSFORMERS)
    with pytest.raises(AerieError, match="brought no figures") as caught:
        run_load(job(tmp_path), choose_prompts(4), lambda _: None, lambda _: None)
    assert "neither sglang.benchmark.serving" in caught.value.message() or "sglang" in caught.value.message()


def test_figures_of_a_batch() -> None:
    rows = [{"prompt": p, "tokens": 11, "seconds": 1.0, "ttft": 0.2, "itl": 0.08} for p in range(4)]
    found = batch_figures(4, rows, 1.25)
    assert (found["output_tokens_per_second"], found["concurrency"]) == (35.2, 3.2)
    assert (found["ttft_ms"], found["itl_ms"]) == (200.0, 80.0)


def test_the_whole_module_against_a_double(release: Path, tmp_path: Path) -> None:
    double = Double()
    (tmp_path / "config.yaml").write_text('{"api-key": "from-the-file"}')
    try:
        defaults = {name: option.get("default") for name, option in module.ARGUMENTS.items()}
        given = {"url": double.url, "model_path": "/m", "python": sys.executable, "pythonpath": str(release)}
        given["api_key_file"] = str(tmp_path / "config.yaml")
        result = module.run({**defaults, **given, "num_prompts": 6, "batch_sizes": [2]}, False)
    finally:
        double.close()
    assert double.keys == {"Bearer from-the-file"}
    assert result["acceptance"]["rows"][3]["histogram"] is not None
    assert result["acceptance"]["rows"][3]["prompt"] == 3
    assert result["batches"][0]["requests"] == 6
    assert result["summary"][-1].startswith("accept length ")


@pytest.mark.parametrize("batches", [[], [0, 1], [2, 2]])
def test_impossible_batches_are_refused(batches: list[int]) -> None:
    defaults = {name: option.get("default") for name, option in module.ARGUMENTS.items()}
    with pytest.raises(AerieError) as caught:
        module.run({**defaults, "url": "http://127.0.0.1:1", "batch_sizes": batches}, True)
    assert caught.value.kind.code == "bench-batches-invalid"
