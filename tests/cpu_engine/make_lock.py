#!/usr/bin/env python3
"""Resolve the CPU engine's packages and write `wheels.json`, `lock.txt` and `lock-cuda-torch.txt`.

    python make_lock.py --render            after a change of kernels/: new hash of the kernels wheel, no
    network python make_lock.py [--uv uv]           resolve again, keeping the versions in wheels.json where
    they still fit python make_lock.py --upgrade           resolve again with the newest versions that fit

Needs Python 3.11 and, except for --render, uv. Only metadata is read: uv's pylock.toml output gives each
wheel's size and sha256, so nothing is downloaded, the gigabytes of CUDA libraries least of all. Addresses
in that output are dropped: whatever index pip is configured with serves the files, and the hashes decide.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import tomllib
from locks import (
    ANY,
    COMMITTED,
    CPU,
    CUDA,
    DEFAULT_RELEASE,
    HERE,
    TABLE,
    Package,
    Table,
    Wheel,
    load_table,
    render_lock,
)

RELEASES = ("0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
TORCH = "2.13.0"
EXCLUDED = ("torch", "triton")
# The CPU build carries a local version, which public registries refuse, so uv cannot find it there. Size
# and sha256 of the file as pip took it on 2026-11-29.
TORCH_CPU = Package(
    "torch",
    TORCH,
    (
        Wheel(
            "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
            191794682,
            "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",
        ),
    ),
)


def resolve(uv: str, requirements: str, architecture: str, *options: str) -> dict[str, Package]:
    """Resolve requirement lines for one architecture; one wheel per package, by package name."""
    with tempfile.TemporaryDirectory() as scratch:
        source, result = Path(scratch, "requirements.in"), Path(scratch, "pylock.toml")
        source.write_text(requirements)
        command = [uv, "pip", "compile", "--quiet", str(source), "--format", "pylock.toml", "-o", str(result)]
        command += ["--only-binary", ":all:", "--python-version", "3.11"]
        command += ["--python-platform", f"{architecture}-manylinux_2_36", *options]
        subprocess.run(command, check=True)
        document = tomllib.loads(result.read_text())
    return {raw["name"]: _package(raw) for raw in document["packages"]}


def _package(raw: dict) -> Package:
    """A package of pylock.toml, reduced to the wheel that pip would choose."""
    wheels = []
    for wheel in raw["wheels"]:
        name = wheel.get("name") or wheel["url"].rsplit("/", 1)[1]
        wheels.append(Wheel(name.replace("%2B", "+"), wheel["size"], wheel["hashes"]["sha256"]))
    return Package(raw["name"], raw["version"], (max(wheels, key=wheel_rank),))


def wheel_rank(wheel: Wheel) -> tuple[bool, bool, bool, int]:
    """pip's order for CPython 3.11: own ABI, then stable ABI, then pure; newest glibc first; `any` last."""
    python, abi, platform = wheel.file.removesuffix(".whl").rsplit("-", 3)[1:]
    glibc = max((int(minor) for minor in re.findall(r"manylinux_2_(\d+)", platform)), default=0)
    return (platform != ANY, "cp311" in abi, "abi3" in abi or "cp311" in python, glibc)


def merge(by_architecture: list[dict[str, Package]]) -> tuple[Package, ...]:
    """Join the resolutions of the architectures; they must agree on names and versions."""
    merged = []
    for name in sorted({name for packages in by_architecture for name in packages}):
        found = [packages[name] for packages in by_architecture if name in packages]
        versions = {package.version for package in found}
        if len(versions) != 1 or len(found) != len(by_architecture):
            raise SystemExit(
                f"{name}: the architectures differ: {sorted(versions)}, in {len(found)} resolutions"
            )
        wheels = {wheel.file: wheel for package in found for wheel in package.wheels}
        merged.append(Package(name, found[0].version, tuple(wheels[file] for file in sorted(wheels))))
    return tuple(merged)


def resolve_table(uv: str, pins: str) -> Table:
    """Resolve everything. ``pins``: lines ``name==version`` that hold where they apply."""
    architectures = ("x86_64", "aarch64")
    with tempfile.TemporaryDirectory() as scratch:
        excludes, constraints = Path(scratch, "excludes.txt"), Path(scratch, "constraints.txt")
        excludes.write_text("\n".join(EXCLUDED) + "\n")
        constraints.write_text(pins)
        options = ("--excludes", str(excludes), "-c", str(constraints))
        complete, bare = (HERE / "requirements.in").read_text(), (HERE / "requirements-nodeps.in").read_text()
        common = merge(
            [resolve(uv, complete, a, *options) | resolve(uv, bare, a, "--no-deps") for a in architectures]
        )
        torch = merge([resolve(uv, f"torch=={TORCH}", a, "-c", str(constraints)) for a in architectures])
    own = {package.name for package in common} | {"triton"}
    releases = {
        r: merge([resolve(uv, f"sglang=={r}", a, "--no-deps") for a in architectures])[0] for r in RELEASES
    }
    return Table(
        resolved=datetime.date.today().isoformat(),
        common=common,
        torch={CPU: (TORCH_CPU,), CUDA: tuple(p for p in torch if p.name not in own)},
        releases=releases,
    )


def current_pins() -> str:
    """The versions in the committed table, as constraints."""
    if not TABLE.exists():
        return ""
    table = load_table()
    packages = [*table.common, *table.torch[CUDA]]
    return "".join(f"{p.name}=={p.version}\n" for p in packages)


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Resolve the CPU engine's packages and write its locks.")
    parser.add_argument("--render", action="store_true", help="only render the locks from wheels.json")
    parser.add_argument("--upgrade", action="store_true", help="do not hold on to the current versions")
    parser.add_argument("--uv", default="uv", help="the uv to run")
    options = parser.parse_args(argv)
    if not options.render:
        table = resolve_table(options.uv, "" if options.upgrade else current_pins())
        TABLE.write_text(json.dumps(table.as_json(), indent=1) + "\n")
    table = load_table()
    for build, path in COMMITTED.items():
        path.write_text(render_lock(table, DEFAULT_RELEASE, build))
        print(f"{path.name}: {len(table.packages(DEFAULT_RELEASE, build)) + 1} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
