"""What each mode means for command, environment and patches."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.files import read_json
from ansible.module_utils.aerie.instance import deployment, mode
from ansible.module_utils.aerie.instance.difference import differences
from ansible.module_utils.aerie.instance.spec import Release
from ansible.module_utils.aerie.instance.state import InstanceStore
from ansible.module_utils.aerie.patch import tree as patch_tree
from spec_made import spec

FILE = "sglang/srt/models/deepseek_v2.py"
PROBE = "sglang/srt/aerie_probe.py"


def entry(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "set": "debug",
        "purpose": "See it.",
        "releases": ">=0.5.9",
        "file": FILE,
        "anchor": {"function": "forward", "statement": "return x"},
        "where": "before",
        "code": "aerie_probe.seen(x)",
        **changes,
    }


@pytest.mark.parametrize(
    ("release", "given", "wanted"),
    [
        ("0.5.9", {}, {"disable_cuda_graph": True, "enable_piecewise_cuda_graph": None}),
        (
            "0.5.13.post1",
            {},
            {
                "disable_cuda_graph": True,
                "disable_piecewise_cuda_graph": True,
                "enforce_piecewise_cuda_graph": None,
            },
        ),
        (
            "0.5.14",
            {},
            {"cuda_graph_config": {"decode": {"backend": "disabled"}, "prefill": {"backend": "disabled"}}},
        ),
        (
            "0.5.23",
            {"cuda_graph_config": '{"decode": {"backend": "full", "max_bs": 8}, "x": 1}'},
            {
                "cuda_graph_config": {
                    "decode": {"backend": "disabled", "max_bs": 8},
                    "prefill": {"backend": "disabled"},
                    "x": 1,
                }
            },
        ),
    ],
)
def test_cuda_graphs_are_switched_off_as_the_release_has_it(
    release: str, given: dict[str, Any], wanted: dict[str, Any]
) -> None:
    assert mode.without_cuda_graphs(release, given) == wanted


def test_debug_switches_probes_on_and_graphs_off() -> None:
    made = spec(mode="debug")
    assert made.environment["EAGLE3_DEBUG"] == "1"
    assert made.environment["EAGLE3_DEBUG_DIR"] == "/var/cache/sglang/default/probes"
    config = made.command[made.command.index("--cuda-graph-config") + 1]
    assert json.loads(config) == {"decode": {"backend": "disabled"}, "prefill": {"backend": "disabled"}}
    assert "--cuda-graph-config" not in spec(mode="debug", debug_cuda_graphs=True).command


@pytest.mark.parametrize("name", ["production", "baseline", "profile"])
def test_other_modes_leave_graphs_alone(name: str) -> None:
    made = spec(mode=name)
    assert "--cuda-graph-config" not in made.command
    assert "EAGLE3_DEBUG" not in made.environment
    place = made.environment.get("AERIE_PROFILE_DIR")
    assert place == ("/var/cache/sglang/default/profile" if name == "profile" else None)


@pytest.mark.parametrize("name", ["EAGLE3_DEBUG", "EAGLE3_DEBUG_DIR", "AERIE_PROFILE_DIR"])
def test_an_inventory_cannot_move_the_events(name: str) -> None:
    with pytest.raises(AerieError, match=f"{name}, which Aerie sets itself"):
        spec(environment={name: "x"})


def test_the_spec_holds_the_patches_of_its_release_by_what_they_do() -> None:
    plain, other = entry("a"), entry("b", releases="<0.5.9")
    made = spec(patches=[plain, other])
    assert [one["name"] for one in made.patches] == ["a"]
    assert made.digest != spec().digest
    assert made.digest == spec(patches=[{**plain, "purpose": "Other words.", "source": "PR #1"}]).digest
    assert made.digest != spec(patches=[{**plain, "code": "aerie_probe.seen(y)"}]).digest
    with_probe = [
        spec(patches=[{**plain, "probes": {PROBE: text}}]).digest for text in ("a = 1\n", "a = 2\n")
    ]
    assert len({made.digest, *with_probe}) == 3


def test_the_plan_says_which_patches_come_and_go() -> None:
    def record(*names: str, code: str = "x()") -> dict[str, Any]:
        return spec(patches=[entry(name, code=code) for name in names]).as_dict()

    assert differences(record(), record("a", "b")) == ["patches to apply: a, b"]
    assert differences(record(*"abcdefg"), record("a")) == ["6 patches to revert: b, c, d, …"]
    assert differences(record("a", "b"), record("a", "c")) == ["patch to apply: c", "patch to revert: b"]
    assert differences(record("a"), record("a", code="y()")) == ["patch changed: a"]
    assert differences(record("a"), record("a")) == []


def test_a_deployment_is_patched_aside_and_says_so(tmp_path: Path) -> None:
    package = tmp_path / "venv" / "site" / "sglang"
    (package / "srt" / "models").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    source = package / "srt" / "models" / "deepseek_v2.py"
    source.write_text("def forward(x):\n    return x\n")
    release = Release("0.5.23", "/v", "/v/bin/python", str(package), "", "a", "index")
    patches = [entry("a", probes={PROBE: "def seen(x): pass\n"})]
    wanted = spec(release, patches=patches, mode="debug")
    store = InstanceStore(str(tmp_path / "state"), "default")
    made = deployment.build(store, wanted, {}, os.getgid(), mode.patches_for(patches, "0.5.23"))
    copy = made / "site" / FILE
    assert copy.read_text() == "def forward(x):\n    aerie_probe.seen(x)\n    return x\n"
    assert (made / "site" / PROBE).is_file()
    assert source.read_text() == "def forward(x):\n    return x\n"
    record = read_json(made / "patches.json")
    assert record["tree"] == "debug: a"
    assert record["messages"] == ["[OK] deepseek_v2.py: a applied", "[OK] aerie_probe.py: probe applied"]


def test_a_copy_of_somebodys_patched_install_is_reverted(tmp_path: Path) -> None:
    site = tmp_path / "theirs"
    (site / "sglang" / "srt" / "models").mkdir(parents=True)
    (site / "sglang" / "__init__.py").write_text("")
    source = site / FILE
    source.write_text("def forward(x):\n    return x\n")
    patch_tree.apply(site, "0.5.23", mode.patches_for([entry("a")], "0.5.23"))
    assert "seen" in source.read_text()
    release = Release("0.5.23", "/v", "/v/bin/python", str(site / "sglang"), "", "a", "existing")
    store = InstanceStore(str(tmp_path / "state"), "default")
    made = deployment.build(store, spec(release), {}, os.getgid())
    assert (made / "site" / FILE).read_text() == "def forward(x):\n    return x\n"
    assert "seen" in source.read_text()


def test_a_probe_s_text_outlives_the_entry_that_brought_it() -> None:
    """The text is sent once, with the first entry that names it: here one that is for older releases."""
    given = [
        {**entry("old", probes={PROBE: "text\n"}), "releases": "<0.5.0"},
        {**entry("new", probes={PROBE: None}), "releases": ">=0.5.0"},
    ]
    (one,) = mode.patches_for(given, "0.5.23")
    assert (one.name, one.probes) == ("new", {PROBE: "text\n"})
