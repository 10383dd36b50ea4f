"""The spec: what changes its digest, what a difference reads like, and that no secret stands in it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance.desired import make_spec
from ansible.module_utils.aerie.instance.difference import differences
from ansible.module_utils.aerie.instance.spec import Release, digest_of, resolved
from ansible.module_utils.aerie.release.rules import server_info_path, stop_signals, version_key
from spec_made import MODELS, RELEASE, SETTINGS, spec
from test_mode import entry


def test_order_of_settings_does_not_matter() -> None:
    one = spec(arguments={"tp_size": 8, "trust_remote_code": True})
    two = spec(arguments={"trust_remote_code": True, "tp-size": 8})
    assert one.digest == two.digest


def test_what_systemd_takes_in_without_a_restart_is_no_part_of_the_digest() -> None:
    template = SETTINGS["unit_template"]
    old, new = (spec(unit_template=f"# {n}\n{template}TimeoutStopSec={n}\n") for n in (195, 200))
    assert old.digest == new.digest
    assert differences(old.as_dict(), new.as_dict()) == [
        "unit file: without TimeoutStopSec=195, with TimeoutStopSec=200"
    ]


def test_a_record_of_before_keeps_its_digest() -> None:
    template = SETTINGS["unit_template"]
    old, new = (
        {**spec(unit_template=f"{template}TimeoutStopSec={n}\n").as_dict(), "version": 1} for n in (195, 200)
    )
    assert digest_of(old) != digest_of(new)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"mode": "baseline"}, "mode production -> baseline"),
        ({"port": 30001}, "--port 30000 -> 30001"),
        ({"arguments": {"tp_size": 4}}, "--tp-size 8 -> 4"),
        ({"arguments": {"tp_size": 8, "trust_remote_code": True}}, "--trust-remote-code added"),
        ({"environment": {}}, "NCCL_ALGO Ring removed"),
        ({"environment": {"NCCL_ALGO": "Tree"}}, "NCCL_ALGO Ring -> Tree"),
        ({"api_key": "k1"}, "api_key set"),
        (
            {"models": {"target": {"path": "/m/t", "config_sha256": "2"}}},
            "target model's config.json changed on disk",
        ),
        (
            {"unit_template": SETTINGS["unit_template"] + "LimitNOFILE=1\n"},
            "unit file: with LimitNOFILE=1",
        ),
        ({"environment": {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": 2}}, "variable OMP_NUM_THREADS 2 added"),
        ({"speculative": {}}, "speculation off"),
        (
            {"speculative": {"algorithm": "EAGLE3", "num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4}},
            "steps 2 -> 3",
        ),
        ({"arguments": {"tp_size": 8, "disable_cuda_graph": True}}, "CUDA graphs off"),
        (
            {"release": Release("0.5.22", "/opt/w", "/opt/w/bin/python", "/w/s", "/w/d", "bb", "index")},
            "release 0.5.23 -> 0.5.22",
        ),
    ],
)
def test_a_change_changes_the_digest_and_is_said(changes: dict[str, Any], line: str) -> None:
    old, new = spec(), spec(**changes)
    assert old.digest != new.digest
    assert line in differences(old.as_dict(), new.as_dict())


def test_where_a_release_came_from_restarts_nothing() -> None:
    other = spec(release=replace(RELEASE, source="wheelhouse"))
    assert other.digest == spec().digest
    assert differences(spec().as_dict(), other.as_dict()) == []


@pytest.mark.parametrize("release", ["0.5.9", "0.5.12", "0.5.23"])
def test_a_change_of_mode_reads_as_a_person_says_it(release: str) -> None:
    entries = [entry(f"probe_{n}", code="x()") for n in "abcdefg"]
    it = replace(RELEASE, release=release)
    production, debug = spec(release=it), spec(release=it, mode="debug", patches=entries)
    assert differences(debug.as_dict(), production.as_dict()) == [
        "mode debug -> production",
        "7 patches to revert: probe_a, probe_b, probe_c, …",
        "CUDA graphs on",
    ]
    assert "CUDA graphs off" in differences(production.as_dict(), debug.as_dict())


def test_what_else_a_graph_config_says_is_not_swallowed() -> None:
    off = {"decode": {"backend": "disabled"}, "prefill": {"backend": "disabled"}}
    wider = {"decode": {"backend": "disabled", "max_bs": 8}}
    plain = spec()
    assert differences(
        plain.as_dict(), spec(arguments={"tp_size": 8, "cuda_graph_config": off}).as_dict()
    ) == ["CUDA graphs off"]
    lines = differences(plain.as_dict(), spec(arguments={"tp_size": 8, "cuda_graph_config": wider}).as_dict())
    assert lines[0] == "CUDA graphs off"
    assert "max_bs" in lines[1]


def test_speculation_that_comes_is_one_line() -> None:
    lines = differences(spec(speculative={}, mode="baseline").as_dict(), spec().as_dict())
    assert lines == ["mode baseline -> production", "speculation EAGLE3: 2 steps, 3 draft tokens"]


def test_the_same_spec_has_no_differences() -> None:
    assert differences(spec().as_dict(), spec().as_dict()) == []


def test_a_secret_is_nowhere_in_the_record_and_its_change_is_seen() -> None:
    one, two = spec(api_key="hunter2-aa"), spec(api_key="hunter2-bb")
    assert "hunter2" not in json.dumps(one.as_dict())
    assert one.digest != two.digest
    assert differences(one.as_dict(), two.as_dict()) == ["api_key changed"]
    assert one.command[-2:] == ["--config", "@DEPLOYMENT@/config.yaml"]


def test_the_hash_of_a_secret_depends_on_the_host() -> None:
    other = make_spec({**SETTINGS, "api_key": "k"}, RELEASE, MODELS, b"t" * 32)
    assert spec(api_key="k").secrets != other.secrets


def test_keys_are_refused_where_they_would_be_visible() -> None:
    old = Release("0.5.2", "/v", "/v/bin/python", "/v/s", "/v/d", "a", "index")
    with pytest.raises(AerieError) as refused:
        spec(release=old, api_key="k")
    assert refused.value.kind.code == "keys-need-config-file"


def test_resolved_puts_the_path_everywhere() -> None:
    record = resolved(spec(api_key="k").as_dict(), "/x/dep")
    assert "@DEPLOYMENT@" not in json.dumps(record)
    assert record["environment"]["PYTHONPATH"] == "/x/dep/site"
    assert "/x/dep/config.yaml" in record["unit"]


@pytest.mark.parametrize(
    ("release", "signals"),
    [
        ("0.4.4.post2", ("SIGKILL",)),
        ("0.5.17", ("SIGKILL",)),
        ("0.5.18", ("SIGKILL",)),
        ("0.5.19", ()),
        ("0.5.23", ()),
    ],
)
def test_how_a_clean_stop_ends(release: str, signals: tuple[str, ...]) -> None:
    assert stop_signals(release) == signals


def test_releases_sort_as_they_came_out() -> None:
    names = ["0.4.10.post2", "0.5.1.post3", "0.5.2", "0.5.9", "0.5.10", "0.5.10.post1", "0.5.23"]
    assert sorted(names, key=version_key) == names
    with pytest.raises(ValueError, match="no SGLang release"):
        version_key("main")


def test_where_the_server_describes_itself() -> None:
    assert server_info_path("0.5.6.post1") == "/get_server_info"
    assert server_info_path("0.5.6.post2") == "/server_info"
