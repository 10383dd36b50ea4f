"""The CPU engine's table of wheels (`wheels.json`) and the lock files rendered from it. Standard library
only.

The table is what a resolution found: for every package one wheel per architecture, with size and sha256. A
lock is one flat file for ``pip install --no-deps --require-hashes -r``: the common packages, one build of
torch, one release of SGLang and the stand-in kernels. `lock.txt` and `lock-cuda-torch.txt` are renderings
for the default release; `wheelhouse.py` renders the same for the other releases.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import build_wheel

HERE = Path(__file__).resolve().parent
TABLE = HERE / "wheels.json"
DEFAULT_RELEASE = "0.5.23"
CPU, CUDA = "cpu", "cuda"  # builds of torch
COMMITTED = {CPU: HERE / "lock.txt", CUDA: HERE / "lock-cuda-torch.txt"}
ARCHITECTURES = {CPU: ("x86_64",), CUDA: ("x86_64", "aarch64")}
ANY = "any"

TORCH_NOTE = {
    CPU: ["# torch: the CPU build that PyTorch publishes beside the registry. Run and measured."],
    CUDA: [
        "# torch: the registry's own CUDA build with its NVIDIA libraries, for a pip that has no CPU build",
        "# and for aarch64. Resolved from metadata, not run. Triton stays a stand-in.",
    ],
}


@dataclass(frozen=True)
class Wheel:
    """One wheel file: its name, size in bytes and sha256."""

    file: str
    size: int
    sha256: str

    @property
    def architecture(self) -> str:
        """``x86_64``, ``aarch64`` or ``any``."""
        platform = self.file.removesuffix(".whl").rsplit("-", 1)[1]
        if platform == ANY:
            return ANY
        return "aarch64" if platform.endswith("aarch64") else "x86_64"


@dataclass(frozen=True)
class Package:
    """One pinned package with the wheel for each architecture."""

    name: str
    version: str
    wheels: tuple[Wheel, ...]

    def wheel_for(self, architecture: str) -> Wheel:
        """The wheel to install on ``architecture``; LookupError when there is none."""
        for wheel in self.wheels:
            if wheel.architecture in (architecture, ANY):
                return wheel
        raise LookupError(f"{self.name} {self.version} has no wheel for {architecture}")

    def as_json(self) -> dict[str, object]:
        """The form that `wheels.json` holds."""
        wheels = [{"file": w.file, "size": w.size, "sha256": w.sha256} for w in self.wheels]
        return {"name": self.name, "version": self.version, "wheels": wheels}

    @classmethod
    def from_json(cls, raw: dict) -> Package:
        """Read what `as_json` wrote."""
        return cls(raw["name"], raw["version"], tuple(Wheel(**wheel) for wheel in raw["wheels"]))


@dataclass(frozen=True)
class Table:
    """What was resolved: ``common``, ``torch`` by build, ``releases`` of sglang; ``resolved`` is the date."""

    resolved: str
    common: tuple[Package, ...]
    torch: dict[str, tuple[Package, ...]]
    releases: dict[str, Package]

    def packages(self, release: str, torch_build: str) -> list[Package]:
        """Everything from a registry that one lock names, sorted by name."""
        if release not in self.releases:
            raise LookupError(
                f"no wheel of sglang {release} in {TABLE.name}; known: {', '.join(self.releases)}"
            )
        return sorted(
            [*self.common, *self.torch[torch_build], self.releases[release]], key=lambda package: package.name
        )

    def as_json(self) -> dict[str, object]:
        """The content of `wheels.json`."""
        return {
            "resolved": self.resolved,
            "python": "3.11",
            "glibc": "2.36",
            "common": [package.as_json() for package in self.common],
            "torch": {build: [p.as_json() for p in packages] for build, packages in self.torch.items()},
            "releases": {release: package.as_json() for release, package in self.releases.items()},
        }

    @classmethod
    def from_json(cls, raw: dict) -> Table:
        """Read what `as_json` wrote."""
        return cls(
            resolved=raw["resolved"],
            common=tuple(Package.from_json(p) for p in raw["common"]),
            torch={build: tuple(Package.from_json(p) for p in ps) for build, ps in raw["torch"].items()},
            releases={release: Package.from_json(p) for release, p in raw["releases"].items()},
        )


def load_table(path: Path = TABLE) -> Table:
    """The committed table."""
    return Table.from_json(json.loads(path.read_text()))


def kernels_package() -> Package:
    """The stand-in kernels, built from the sources beside this file."""
    content = build_wheel.wheel_bytes()
    wheel = Wheel(build_wheel.WHEEL_NAME, len(content), build_wheel.wheel_sha256())
    return Package(build_wheel.NAME, build_wheel.VERSION, (wheel,))


def lock_name(release: str, torch_build: str) -> str:
    """File name of a lock: the default release and the CPU build are not spelled out."""
    parts = ["lock"]
    if release != DEFAULT_RELEASE:
        parts.append(release)
    if torch_build == CUDA:
        parts.append("cuda-torch")
    return "-".join(parts) + ".txt"


def render_lock(table: Table, release: str, torch_build: str) -> str:
    """Text of one lock file, the same for the same table and kernels."""
    packages = table.packages(release, torch_build)
    architectures = ARCHITECTURES[torch_build]
    sizes = ", ".join(
        f"{sum(p.wheel_for(a).size for p in packages) / 1e6:.0f} MB on {a}" for a in architectures
    )
    lines = [
        f"# SGLang {release} on the CPU, Python 3.11, Linux with glibc 2.34 to 2.36.",
        "# Every package is named, so that pip need not (and must not) resolve anything:",
        "#   pip install --no-deps --require-hashes -r THIS_FILE",
        *TORCH_NOTE[torch_build],
        f"# Download: {sizes} (measured {table.resolved}).",
        "# Made by `python tests/cpu_engine/make_lock.py` (uv pip compile, see there) from requirements.in",
        "# and requirements-nodeps.in; not edited by hand. aerie-cpu-kernels is built from kernels/ and is",
        "# in no registry: fill a wheelhouse with wheelhouse.py and install with --no-index --find-links.",
    ]
    for package in sorted([*packages, kernels_package()], key=lambda p: p.name):
        wheels = [w for w in package.wheels if w.architecture in (*architectures, ANY)]
        hashes = [f"    --hash=sha256:{wheel.sha256}" for wheel in wheels]
        lines.append(" \\\n".join([f"{package.name}=={package.version}", *hashes]))
    return "\n".join(lines) + "\n"
