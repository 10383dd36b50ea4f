"""The CPU engine's kernels wheel and its locks: reproducible, in step, naming nothing but packages and hashes."""

from __future__ import annotations

import ast
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CPU_ENGINE = Path(__file__).resolve().parent.parent / "cpu_engine"
sys.path.insert(0, str(CPU_ENGINE))

import build_wheel
import locks
import make_lock

REQUIREMENT = re.compile(r"^([a-z0-9-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)
RENDER = "run: python tests/cpu_engine/make_lock.py --render"


def requirements(text: str) -> dict[str, tuple[str, set[str]]]:
    """name -> (version, hashes) of a lock file."""
    found = REQUIREMENT.findall(text)
    return {name: (version, set(re.findall(r"sha256:(\w+)", hashes))) for name, version, hashes in found}


@pytest.fixture
def kernels_copy(tmp_path, monkeypatch) -> Path:
    copy = tmp_path / "kernels"
    shutil.copytree(build_wheel.KERNELS, copy)
    monkeypatch.setattr(build_wheel, "KERNELS", copy)
    return copy


def test_wheel_bytes_do_not_depend_on_times_modes_or_caches(kernels_copy):
    before = build_wheel.wheel_bytes()
    for path in kernels_copy.rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    (kernels_copy / "triton" / "__pycache__").mkdir(exist_ok=True)
    (kernels_copy / "triton" / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert build_wheel.wheel_bytes() == before


def test_wheel_bytes_depend_on_the_sources(kernels_copy):
    before = build_wheel.wheel_sha256()
    source = kernels_copy / "sgl_kernel" / "eagle.py"
    source.write_text(source.read_text() + "\n")
    assert build_wheel.wheel_sha256() != before


def test_wheel_is_well_formed(tmp_path):
    with zipfile.ZipFile(build_wheel.build(tmp_path)) as wheel:
        names = wheel.namelist()
        record = wheel.read(f"{build_wheel.DIST_INFO}/RECORD").decode().splitlines()
        assert names == sorted(names)
        assert {info.compress_type for info in wheel.infolist()} == {zipfile.ZIP_STORED}
        assert {info.date_time for info in wheel.infolist()} == {build_wheel.TIMESTAMP}
        assert [line.split(",")[0] for line in sorted(record)] == names
        for name, digest, size in (line.split(",") for line in record if not line.endswith(",,")):
            content = wheel.read(name)
            expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={expected}", str(len(content))), name


def test_build_leaves_an_equal_file_alone_and_replaces_another(tmp_path):
    path = build_wheel.build(tmp_path)
    os.utime(path, (1, 1))
    build_wheel.build(tmp_path)
    assert path.stat().st_mtime == 1
    path.write_bytes(b"something else")
    assert build_wheel.build(tmp_path).read_bytes() == build_wheel.wheel_bytes()


@pytest.mark.parametrize("source", sorted(build_wheel.KERNELS.rglob("*.py")), ids=lambda path: path.stem)
def test_every_stand_in_says_that_it_is_one(source):
    assert "stand-in" in (ast.get_docstring(ast.parse(source.read_text())) or "").lower()


@pytest.mark.parametrize(
    "code",
    [
        "import triton\n@triton.jit\ndef k(): pass\nk[(1,)](0)",
        "import triton\n@triton.jit(debug=True)\ndef k(): pass\nk()",
        "import triton\ntriton.runtime.driver.active",
        "import torchvision\ntorchvision.transforms.functional.resize(1)",
        "from torchvision.io import decode_jpeg\ndecode_jpeg(b'')",
    ],
)
def test_a_stand_in_raises_when_really_used(code):
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(build_wheel.KERNELS)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "RuntimeError" in done.stderr
    assert "stand-in" in done.stderr


@pytest.mark.parametrize("build", locks.COMMITTED)
def test_committed_lock_is_what_the_table_and_the_kernels_give(build):
    committed = locks.COMMITTED[build].read_text()
    rendered = locks.render_lock(locks.load_table(), locks.DEFAULT_RELEASE, build)
    assert committed == rendered, (
        f"{locks.COMMITTED[build].name} is stale (kernels or wheels.json changed); {RENDER}"
    )


@pytest.mark.parametrize("build", locks.COMMITTED)
def test_lock_names_every_package_with_the_hashes_of_the_table(build):
    table = locks.load_table()
    expected = {
        package.name: (
            package.version,
            {package.wheel_for(architecture).sha256 for architecture in locks.ARCHITECTURES[build]},
        )
        for package in table.packages(locks.DEFAULT_RELEASE, build)
    }
    expected[build_wheel.NAME] = (build_wheel.VERSION, {build_wheel.wheel_sha256()})
    assert requirements(locks.COMMITTED[build].read_text()) == expected


def test_locks_differ_in_torch_and_its_cuda_libraries_only():
    cpu, cuda = (requirements(locks.COMMITTED[build].read_text()) for build in (locks.CPU, locks.CUDA))
    assert cpu["torch"][0] == cuda["torch"][0]
    assert not cpu["torch"][1] & cuda["torch"][1]
    assert all(name.startswith(("nvidia-", "cuda-")) for name in cuda.keys() - cpu.keys())
    assert not cpu.keys() - cuda.keys()
    assert "triton" not in cuda, "the real triton and its stand-in own the same files"


def test_every_release_has_its_lock():
    table = locks.load_table()
    for release in make_lock.RELEASES:
        lock = requirements(locks.render_lock(table, release, locks.CPU))
        assert lock["sglang"][0] == release
    assert len({locks.lock_name(r, b) for r in make_lock.RELEASES for b in (locks.CPU, locks.CUDA)}) == 10


def test_unknown_release_is_refused_with_the_known_ones():
    with pytest.raises(LookupError, match=r"0\.4\.1.*known: .*0\.5\.20"):
        locks.load_table().packages("0.4.1", locks.CPU)


@pytest.mark.parametrize("path", [*locks.COMMITTED.values(), locks.TABLE], ids=lambda path: path.name)
def test_nothing_names_a_host_or_a_path(path):
    assert not re.search(r"://|/root|/tmp|/home|/opt|--index|--extra|--find-links [^.]", path.read_text())


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ("a-1-cp311-cp311-manylinux_2_17_x86_64.whl", "a-1-cp39-abi3-manylinux_2_28_x86_64.whl"),
        ("a-1-cp39-abi3-manylinux_2_28_x86_64.whl", "a-1-py3-none-any.whl"),
        ("a-1-cp311-cp311-manylinux_2_34_x86_64.whl", "a-1-cp311-cp311-manylinux_2_17_x86_64.whl"),
        ("a-1-py3-none-manylinux_2_17_x86_64.whl", "a-1-py3-none-any.whl"),
    ],
)
def test_wheel_rank_is_pips(better, worse):
    assert make_lock.wheel_rank(locks.Wheel(better, 1, "")) > make_lock.wheel_rank(locks.Wheel(worse, 1, ""))
