"""The locked lists hold together: every pin has a hash, and each list fits what it was made from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
MINORS = ("3.11", "3.12", "3.13")
GPU = "roles/sglang_install/files/sglang-0.5.23-cu13.txt"
TOOLS = "roles/sglang_install/files/tools-lock.txt"
LISTS = [*(f"requirements/controller-{minor}.txt" for minor in MINORS), GPU, TOOLS]

# What SGLang 0.5.23's own metadata demands exactly, of what decides whether it starts at all.
SGLANG_PINS = {
    "torch": "2.14.1",
    "torchaudio": "2.11.0",
    "transformers": "5.19.0",
    "flashinfer-python": "0.7.2",
    "sglang-kernel": "0.4.10",
    "xgrammar": "0.2.7",
    "nvidia-cutlass-dsl": "4.8.0",
}


def read(name: str) -> dict[str, tuple[Version, list[str]]]:
    """Name -> (version, sha256 sums) of a locked list; any line that is neither fails."""
    pins: dict[str, tuple[Version, list[str]]] = {}
    hashes: list[str] = []
    for line in (ROOT / name).read_text().splitlines():
        text = line.removesuffix("\\").strip()
        if not text or text.startswith("#"):
            continue
        if text.startswith("--hash=sha256:"):
            hashes.append(text.removeprefix("--hash=sha256:"))
            continue
        requirement = Requirement(text)
        (exact,) = requirement.specifier
        assert exact.operator == "==", text
        hashes = []
        pins[canonicalize_name(requirement.name)] = (Version(exact.version), hashes)
    return pins


@pytest.mark.parametrize("name", LISTS)
def test_every_pin_has_a_hash(name: str) -> None:
    pins = read(name)
    assert pins
    unhashed = [
        pin
        for pin, (_, hashes) in pins.items()
        if not hashes or not all(re.fullmatch("[0-9a-f]{64}", value) for value in hashes)
    ]
    assert not unhashed


@pytest.mark.parametrize("minor", MINORS)
def test_a_controller_list_fits_what_it_was_made_from(minor: str) -> None:
    pins = read(f"requirements/controller-{minor}.txt")
    for line in (ROOT / "requirements/controller.in").read_text().splitlines():
        if line and not line.startswith("#"):
            wanted = Requirement(line)
            version, _ = pins[canonicalize_name(wanted.name)]
            assert wanted.specifier.contains(version), f"{line}: {version} is locked; run make lock"


@pytest.mark.parametrize(("minor", "core"), [("3.11", "2.19"), ("3.12", "2.21"), ("3.13", "2.21")])
def test_the_lists_span_the_supported_ansible_releases(minor: str, core: str) -> None:
    version, _ = read(f"requirements/controller-{minor}.txt")["ansible-core"]
    assert f"{version.major}.{version.minor}" == core


def test_the_gpu_list_is_the_release_with_its_own_pins() -> None:
    pins = {name: str(version) for name, (version, _) in read(GPU).items()}
    assert pins["sglang"] == "0.5.23"
    assert {name: pins.get(name) for name in SGLANG_PINS} == SGLANG_PINS
    # CUDA 13 throughout: two CUDA majors' runtimes in one environment is how undefined symbols happen.
    assert not [
        name for name in pins if name.startswith("nvidia-") and name.endswith("-cu12") and "dsl" not in name
    ]
    assert pins["nvidia-cuda-runtime"].startswith("13.")


def test_the_gpu_list_names_its_only_pre_release() -> None:
    early = {name for name, (version, _) in read(GPU).items() if version.is_prerelease}
    assert early == {"flash-attn-4"}
    header = [line for line in (ROOT / GPU).read_text().splitlines() if line.startswith("#")]
    assert any("not run on a GPU" in line for line in header)
    assert any("flash-attn-4" in line for line in header)


def test_the_tools_list_is_nvml_alone() -> None:
    pins = read(TOOLS)
    assert set(pins) == {"nvidia-ml-py"}
    assert pins["nvidia-ml-py"][0].major == 13
