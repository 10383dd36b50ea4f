"""Models that are not whole, or not the right ones."""

from __future__ import annotations

import json

import pytest
from expect import OTHER, assert_serves
from road import Host, Outcome, Road

MODELS = "/srv/models"
TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "vocab_size": 128256,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
}
# Trained for a target of another width.
DRAFT = {
    **TARGET,
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "draft_vocab_size": 32000,
    "target_hidden_size": 5120,
}


def assert_refused(done: Outcome, host: Host, before: dict[str, object], *words: str) -> None:
    """Failed with these words, and the old server was not touched."""
    assert done.rc == 2, done.told()
    for word in words:
        assert word in done.last_words(), (word, done.told())
    assert host.seen()["pid"] == before["pid"]
    assert_serves(host, str(before["mode"]))


@pytest.mark.kind("tamper")
@pytest.mark.full
def test_a_model_file_is_missing(host: Host, road: Road) -> None:
    """The draft's weights are gone from the disk: the transition is refused, the old server untouched."""
    seen = host.seen()
    weights = f"{MODELS}/draft/model.safetensors"
    host.sh(f"mv {weights} /root/kept")
    try:
        done = road.run(f"{OTHER[seen['mode']]}.yml")
    finally:
        host.sh(f"mv /root/kept {weights}")
    assert_refused(done, host, seen, "[model-missing]", f"{MODELS}/draft")


@pytest.mark.kind("tamper")
@pytest.mark.full
def test_a_shard_is_missing(host: Host, road: Road) -> None:
    """The target's index names a shard that is not there: the transition is refused, the old server untouched."""
    seen = host.seen()
    index = f"{MODELS}/target/model.safetensors.index.json"
    shards = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    host.sh(f"echo '{json.dumps(shards)}' > {index}")
    try:
        done = road.run(f"{OTHER[seen['mode']]}.yml")
    finally:
        host.sh(f"rm {index}")
    words = ("[model-missing]", "1 of 2 weight files", "model-00002-of-00002.safetensors")
    assert_refused(done, host, seen, *words)


@pytest.mark.kind("tamper")
@pytest.mark.full
def test_the_draft_of_another_target(host: Host, road: Road) -> None:
    """The inventory names an EAGLE-3 draft that was trained for another target: refused, the old server untouched."""
    seen = host.seen()
    for name, config in (("big", TARGET), ("other", DRAFT)):
        place = f"{MODELS}/{name}"
        host.sh(f"cp -a {MODELS}/target {place} && echo '{json.dumps(config)}' > {place}/config.json")
    settings = {
        "sglang_server_model_path": f"{MODELS}/big",
        "sglang_server_draft_model_path": f"{MODELS}/other",
        "sglang_server_speculative": {
            "algorithm": "EAGLE3",
            "num_steps": 3,
            "eagle_topk": 1,
            "num_draft_tokens": 4,
        },
    }
    try:
        done = road.run(f"{seen['mode']}.yml", "-e", json.dumps(settings))
    finally:
        host.sh(f"rm -r {MODELS}/big {MODELS}/other")
    assert_refused(done, host, seen, "hidden")
