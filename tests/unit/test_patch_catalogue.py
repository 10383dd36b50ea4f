"""From YAML files and an inventory to the list that modules take; and the module and its controller part."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance.mode import MODES, patch_record
from ansible.module_utils.aerie.patch import catalogue as patch_catalogue
from patch_made import MODEL, PROBE, entry, make_tree, snapshot

ROOT = Path(__file__).resolve().parents[2]
OWN = {"name": "mine", "purpose": "Mine.", "diff": f"--- a/{MODEL}\n+++ b/{MODEL}\n@@ -1 +1 @@\n-a\n+b\n"}


@pytest.fixture
def catalogue(tmp_path: Path) -> Path:
    place = tmp_path / "catalogue"
    place.mkdir()
    (place / "b.yml").write_text(yaml.safe_dump([entry(name="b1", set="fixes")]))
    first = [entry(name=name, probes=["aerie_probe.py"]) for name in ("a1", "a2")]
    (place / "a.yml").write_text(yaml.safe_dump(first))
    (place / "aerie_probe.py").write_text("a = 1\n")
    (place / "empty.yml").write_text("---\n")
    return place


@pytest.mark.parametrize(
    ("wanted", "own", "names"),
    [
        (["fixes"], [], ["b1"]),
        (["debug", "fixes"], [], ["a1", "a2", "b1"]),
        (["b1", "a2"], [], ["a2", "b1"]),
        (["fixes", "own"], [OWN], ["b1", "mine"]),
        (["debug"], [OWN, {**OWN, "name": "m2", "set": "debug"}], ["a1", "a2", "m2"]),
        ([], [OWN], []),
    ],
)
def test_sets_and_names_in_catalogue_order(
    catalogue: Path, wanted: list[str], own: list[dict[str, Any]], names: list[str]
) -> None:
    assert [one["name"] for one in patch_catalogue.inline(wanted, own, catalogue)] == names


def test_a_probes_text_is_sent_once(catalogue: Path) -> None:
    sent = patch_catalogue.inline(["debug"], [], catalogue)
    assert [one["probes"] for one in sent] == [{PROBE: "a = 1\n"}, {PROBE: None}]
    alone = patch_catalogue.inline(["a2"], [], catalogue)
    assert alone[0]["probes"] == {PROBE: "a = 1\n"}
    # what a deployment is called does not depend on which entry carried the text
    assert patch_record(alone, "0.5.9")[0] == patch_record(sent, "0.5.9")[1]


@pytest.mark.parametrize(
    ("file", "text", "code"),
    [
        ("c.yml", "name: x\n", "patch-catalogue-missing"),
        ("c.yml", "- [", "patch-catalogue-missing"),
        ("c.yml", "- {name: x, probes: [gone.py]}", "bad-patch-entry"),
        ("c.yml", "- {name: x, probes: [../a.py]}", "bad-patch-entry"),
        ("c.yml", "- {name: x}", "bad-patch-entry"),
        ("c.yml", yaml.safe_dump([entry(name="a1")]), "bad-patch-entry"),
    ],
)
def test_a_bad_catalogue_is_refused_whatever_is_asked_for(
    catalogue: Path, file: str, text: str, code: str
) -> None:
    (catalogue / file).write_text(text)
    with pytest.raises(AerieError) as caught:
        patch_catalogue.inline(["fixes"], [], catalogue)
    assert caught.value.kind.code == code


def test_what_is_not_there_is_named(catalogue: Path) -> None:
    with pytest.raises(AerieError, match="'dbug'") as caught:
        patch_catalogue.inline(["dbug"], [], catalogue)
    assert "patches: a1, a2, b1" in caught.value.evidence
    with pytest.raises(AerieError, match="cannot be read"):
        patch_catalogue.inline([], [], catalogue / "gone.yml")


def test_the_shipped_catalogue_is_well_formed() -> None:
    assert patch_catalogue.inline(["fixes", "debug", "profile"]) is not None


def test_every_mode_has_its_sets() -> None:
    given = yaml.safe_load((ROOT / "roles/sglang_server/vars/main.yml").read_text())[
        "__sglang_server_patch_sets"
    ]
    assert set(given) == set(MODES)
    assert all({"fixes", "own"} <= set(sets) for sets in given.values())
    assert [name for name, sets in given.items() if "debug" in sets] == ["debug"]
    assert [name for name, sets in given.items() if "profile" in sets] == ["profile"]


def playbook(site: Path, catalogue: Path, *words: str, **variables: Any) -> dict[str, Any]:
    """Run playbooks/patches.yml against this machine; its exit status and output."""
    inventory = catalogue.parent / "inventory.yml"
    inventory.write_text("sglang: {hosts: {here: {ansible_connection: local}}}\n")
    given = {
        "sglang_patches_site_packages": str(site),
        "sglang_patches_catalogue": str(catalogue),
        "ansible_python_interpreter": sys.executable,
        **variables,
    }
    done = subprocess.run(
        [
            Path(sys.executable).parent / "ansible-playbook",
            "playbooks/patches.yml",
            "-i",
            inventory,
            "-e",
            json.dumps(given),
            *words,
        ],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": str(catalogue)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return {"rc": done.returncode, "text": done.stdout + done.stderr}


def test_the_playbook_on_a_tree_of_ones_own(tmp_path: Path, catalogue: Path) -> None:
    site = make_tree(tmp_path / "site")
    before = snapshot(site)
    done = playbook(site, catalogue, "--diff", sglang_patches_sets="debug")
    assert "+        aerie_probe.seen(aux)" in done["text"], done["text"]
    assert "debug: a1, a2; fixes: b1" in done["text"]
    assert "[OK] deepseek_v2.py: a1 applied" in done["text"]
    assert (site / PROBE).is_file()
    back = playbook(site, catalogue, sglang_patches_fixes=False)
    assert "changed=1" in back["text"]
    assert snapshot(site) == before
