"""What an install decides to do, from what is wanted and what the host has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible.module_utils.aerie.release.layout import Host, Layout, Record, Venv, look
from ansible.module_utils.aerie.release.plan import Wanted, plan

LAYOUT = Layout(Path("/opt/sglang"))
LOCK_A = "a" * 64
LOCK_B = "b" * 64
WANT = Wanted("0.5.23", LOCK_A, "/usr/bin/python3.11")
TOOLS = Wanted("tools", LOCK_B, "/usr/bin/python3.11")


def venv(
    name: str,
    lock: str,
    number: int = 1,
    *,
    age: int = 0,
    complete: bool = True,
    python: str = "/usr/bin/python3.11",
) -> Venv:
    path = LAYOUT.venv(name, lock, number)
    record = Record(
        name, str(path), f"{path}/bin/python", python, "3.11", "p", "d", lock, "index", "", 1000 - age
    )
    return Venv(path, name, number, record if complete else None)


def host(
    *venvs: Venv, links: dict[str, Venv] | None = None, named: frozenset[Path] | None = frozenset()
) -> Host:
    return Host(venvs, {name: target.path for name, target in (links or {}).items()}, named)


def kinds(found: Host, *wanted: Wanted, keep: int = 2, unfit: frozenset[Path] = frozenset()) -> list[str]:
    steps = plan(LAYOUT, wanted or (WANT,), found, keep=keep, unfit=unfit)
    return [f"{action.kind} {action.path.name}" for action in steps.actions]


CURRENT = venv("0.5.23", LOCK_A)
DEAD = venv("0.5.23", LOCK_A, 1, complete=False)


@pytest.mark.parametrize(
    ("found", "steps"),
    [
        pytest.param(host(), [f"build 0.5.23-{'a' * 12}-1", f"link 0.5.23-{'a' * 12}-1"], id="virgin"),
        pytest.param(host(CURRENT, links={"0.5.23": CURRENT}), [], id="done"),
        pytest.param(host(CURRENT), [f"link 0.5.23-{'a' * 12}-1"], id="killed before the link"),
        pytest.param(
            host(DEAD),
            [f"clear 0.5.23-{'a' * 12}-1", f"build 0.5.23-{'a' * 12}-2", f"link 0.5.23-{'a' * 12}-2"],
            id="killed in the build",
        ),
        pytest.param(
            host(old := venv("0.5.23", LOCK_B), links={"0.5.23": old}),
            [f"build 0.5.23-{'a' * 12}-1", f"link 0.5.23-{'a' * 12}-1"],
            id="another lock",
        ),
        pytest.param(
            host(old := venv("0.5.23", LOCK_A, python="/usr/bin/python3.10"), links={"0.5.23": old}),
            [f"build 0.5.23-{'a' * 12}-2", f"link 0.5.23-{'a' * 12}-2"],
            id="another interpreter",
        ),
        pytest.param(
            host(CURRENT, other := venv("0.5.23", LOCK_B), links={"0.5.23": other}),
            [f"link 0.5.23-{'a' * 12}-1"],
            id="back to a lock that is still there",
        ),
    ],
)
def test_steps(found: Host, steps: list[str]) -> None:
    assert kinds(found) == steps


def test_a_tampered_environment_is_built_again_under_another_number() -> None:
    found = host(CURRENT, links={"0.5.23": CURRENT})
    assert kinds(found, unfit=frozenset({CURRENT.path})) == [
        f"build 0.5.23-{'a' * 12}-2",
        f"link 0.5.23-{'a' * 12}-2",
    ]


def test_tools_come_first_and_the_reason_is_said() -> None:
    steps = plan(LAYOUT, (TOOLS, WANT), host(), keep=2)
    assert [action.name for action in steps.actions] == ["tools", "tools", "0.5.23", "0.5.23"]
    assert steps.actions[0].why == "not installed"
    other = venv("0.5.23", LOCK_B)
    assert (
        plan(LAYOUT, (WANT,), host(other, links={"0.5.23": other}), keep=2).actions[0].why
        == "the lock changed"
    )


OLD = [venv(f"0.5.{n}", LOCK_B, age=30 - n) for n in (17, 18, 19, 20)]
LINKS = {"0.5.23": CURRENT, **{one.name: one for one in OLD}}


@pytest.mark.parametrize(
    ("keep", "named", "pruned"),
    [
        (9, set(), []),
        (2, set(), ["0.5.18", "0.5.17"]),
        (0, set(), ["0.5.20", "0.5.19", "0.5.18", "0.5.17"]),
        (0, {"0.5.18"}, ["0.5.20", "0.5.19", "0.5.17"]),
        (1, {"0.5.20"}, ["0.5.18", "0.5.17"]),
    ],
)
def test_old_environments_go_newest_last_but_none_that_a_deployment_names(
    keep: int, named: set[str], pruned: list[str]
) -> None:
    kept = frozenset(one.path for one in OLD if one.name in named)
    steps = plan(LAYOUT, (WANT,), host(CURRENT, *OLD, links=LINKS, named=kept), keep=keep)
    assert [action.name for action in steps.actions if action.kind == "prune"] == pruned
    assert sorted(action.name for action in steps.actions if action.kind == "unlink") == sorted(pruned)


def test_nothing_is_pruned_while_a_deployment_cannot_be_read() -> None:
    assert kinds(host(CURRENT, *OLD, links=LINKS, named=None), keep=0) == []


def test_replaced_tools_go_whatever_keep_is() -> None:
    new, old = venv("tools", LOCK_B), venv("tools", LOCK_A)
    found = host(CURRENT, old, new, links={"0.5.23": CURRENT, "tools": new})
    assert kinds(found, TOOLS, WANT, keep=9) == [f"prune {old.path.name}"]


def test_deployments_are_read_for_the_environments_they_name(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "opt")
    used = layout.venvs / "0.5.17-aaaaaaaaaaaa-1"
    linked = layout.venvs / "0.5.18-aaaaaaaaaaaa-1"
    for path in (used, linked):
        path.mkdir(parents=True)
    (layout.prefix / "releases").mkdir()
    (layout.prefix / "releases" / "0.5.18").symlink_to(linked)
    state = tmp_path / "state"
    specs = {
        "one/deployments/d1": {"release": {"release": "0.5.17", "path": str(used)}},
        "two/deployments/d2": {"args": ["x", f"{layout.prefix}/releases/0.5.18/bin/python"], "n": 3},
        "two/deployments/d3": {"release": {"path": "/home/me/ml-env"}},
    }
    for place, spec in specs.items():
        (state / place).mkdir(parents=True)
        (state / place / "spec.json").write_text(json.dumps(spec))
    assert look(layout, state).named == {used, linked}
    (state / "one/deployments/d1/spec.json").write_text("{ half a")
    assert look(layout, state).named is None


def test_a_pin_takes_the_local_version_in_the_wheelhouse(tmp_path: Path) -> None:
    from ansible.module_utils.aerie.release.lockfile import parse
    from ansible.module_utils.aerie.release.wheels import require_wheels

    wheel = tmp_path / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
    wheel.touch()
    lock = parse("torch==2.13.0 --hash=sha256:" + "0" * 64 + "\n")
    assert list(require_wheels(lock, tmp_path, []).values()) == [wheel]
