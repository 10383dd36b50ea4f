"""Fixtures of the fault matrix. Run by molecule/faults/verify.yml; by hand see tests/faults/README.md."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import results
from expect import problems
from road import Host, Road

ALL = os.environ.get("AERIE_FAULTS") in ("all", "engine")
# On the host with a real SGLang: the tests that are marked so, and they alone.
ENGINE = os.environ.get("AERIE_FAULTS") == "engine"
# Leave out what has survived with this very commit: a full run in several sittings.
RESUME = bool(os.environ.get("AERIE_FAULTS_RESUME"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "kind(name): what kind of fault a test makes; `make test` takes one of each"
    )
    config.addinivalue_line("markers", "full: only `make faults` runs it")
    config.addinivalue_line("markers", "engine: needs a real SGLang on the CPU (scenario faults_engine)")


@pytest.hookimpl(tryfirst=True)  # before -k takes tests away: docs/faults.md names what was not run too
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    results.write({"all": [described(one) for one in items]})
    items[:] = [one for one in items if bool(one.get_closest_marker("engine")) == ENGINE]
    if not ALL:
        items[:] = [one for one in items if not one.get_closest_marker("full")]
    if RESUME:
        done = results.survived_now()
        items[:] = [one for one in items if one.name not in done]


def described(item: pytest.Item) -> dict[str, str]:
    """A test's kind, name, and what it is about: the first line of its docstring."""
    kind = item.get_closest_marker("kind")
    about = (item.function.__doc__ or "").strip().splitlines()[0]  # type: ignore[attr-defined]
    return {"kind": kind.args[0] if kind else "", "test": item.name, "what": about}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A line of JSON for each test: docs/faults.md is written from them."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.when != "call":
        return
    said = {name: value for name, value in item.user_properties if value}
    found = {"outcome": report.outcome, "seconds": round(report.duration, 1)}
    results.write(results.stamped({**described(item), **said, **found}))


@pytest.fixture(scope="session")
def road() -> Road:
    return Road(Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "inventory")


@pytest.fixture(scope="session")
def machine() -> Host:
    return Host("faults-engine" if ENGINE else "faults")


@pytest.fixture
def host(machine: Host, road: Road) -> Iterator[Host]:
    """The host, serving an accepted deployment before each fault, behaving again after it."""
    if not ENGINE:
        machine.misbehave()
        machine.gpu()
    if not any(not problems(machine.seen(), mode) for mode in ("production", "debug")):
        done = road.run("production.yml")
        assert done.rc == 0, done.told()
    yield machine
    if not ENGINE:
        machine.misbehave()
