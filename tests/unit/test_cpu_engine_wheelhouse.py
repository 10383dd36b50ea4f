"""The wheelhouse filler, with pip replaced by a function that writes files."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

CPU_ENGINE = Path(__file__).resolve().parent.parent / "cpu_engine"
sys.path.insert(0, str(CPU_ENGINE))

import locks
import pip_download
import wheelhouse

CONTENT = {f"p{i}-1-py3-none-any.whl": f"content {i}".encode() for i in range(4)}
CONTENT |= {"torch-2-py3-none-any.whl": b"torch", "sglang-7-py3-none-any.whl": b"seven"}
CONTENT |= {"sglang-8-py3-none-any.whl": b"eight"}


def package(file: str) -> locks.Package:
    name, version = file.split("-")[:2]
    wheel = locks.Wheel(file, len(CONTENT[file]), hashlib.sha256(CONTENT[file]).hexdigest())
    return locks.Package(name, version, (wheel,))


TABLE = locks.Table(
    resolved="2026-11-29",
    common=tuple(package(f"p{i}-1-py3-none-any.whl") for i in range(4)),
    torch={build: (package("torch-2-py3-none-any.whl"),) for build in (locks.CPU, locks.CUDA)},
    releases={"0.5.23": package("sglang-7-py3-none-any.whl"), "0.5.20": package("sglang-8-py3-none-any.whl")},
)
DEFAULT = {file for file in CONTENT if file != "sglang-8-py3-none-any.whl"}


class FakePip:
    """Writes wheels; ``content`` can be spoilt, ``fail_after`` makes it die after so many wheels."""

    def __init__(self) -> None:
        self.content = dict(CONTENT)
        self.fetched: list[str] = []
        self.fail_after = 99
        self.tools: list[Path] = []

    def __call__(self, group, directory, say) -> None:
        for _, wheel in group:
            if len(self.fetched) >= self.fail_after:
                raise pip_download.PipFailedError("pip download ended with 1")
            (directory / wheel.file).write_bytes(self.content[wheel.file])
            self.fetched.append(wheel.file)


@pytest.fixture
def pip(monkeypatch) -> FakePip:
    fake = FakePip()
    monkeypatch.setattr(wheelhouse, "download", fake)
    monkeypatch.setattr(wheelhouse, "load_table", lambda: TABLE)
    monkeypatch.setattr(wheelhouse, "has_cpu_torch", lambda package: True)
    monkeypatch.setattr(wheelhouse, "BATCH_COUNT", 2)
    monkeypatch.setattr(wheelhouse, "download_lock", lambda lock, directory: fake.tools.append(lock) or False)
    return fake


def run(directory: Path, *options: str) -> int:
    return wheelhouse.main(["--directory", str(directory), "--architecture", "x86_64", *options])


def wheels(directory: Path) -> set[str]:
    return {path.name for path in directory.glob("*.whl") if "aerie" not in path.name}


def test_fills_and_writes_the_lock(pip, tmp_path, capsys):
    assert run(tmp_path) == 0
    assert wheels(tmp_path) == DEFAULT
    assert (tmp_path / "lock.txt").read_text() == locks.render_lock(TABLE, "0.5.23", locks.CPU)
    assert list(tmp_path.glob("aerie_cpu_kernels-*.whl"))
    assert [lock.name for lock in pip.tools] == ["tools-lock.txt"]
    out = capsys.readouterr().out
    assert out.index("6 of 6 wheels are missing") < out.index("[2/6]") < out.index("wheelhouse complete")


def test_second_run_asks_pip_nothing(pip, tmp_path, monkeypatch):
    run(tmp_path)
    monkeypatch.setattr(wheelhouse, "sha256_of", lambda path: pytest.fail(f"read {path} again"))
    monkeypatch.setattr(wheelhouse, "has_cpu_torch", lambda package: pytest.fail("asked pip again"))
    pip.fail_after = 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.name != ".lock"}
    assert run(tmp_path) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_goes_on_where_it_was_killed(pip, tmp_path, capsys):
    pip.fail_after = 3
    assert run(tmp_path) == 1
    assert "pip download ended with 1" in capsys.readouterr().err
    assert len(wheels(tmp_path)) == 2, "only whole groups are taken over"
    (tmp_path / ".part-killed").mkdir()
    (tmp_path / ".part-killed" / "half.whl").write_bytes(b"x")
    first = set(wheels(tmp_path))
    pip.fail_after, pip.fetched = 99, []
    assert run(tmp_path) == 0
    assert set(pip.fetched) == DEFAULT - first
    assert not list(tmp_path.glob(".part*"))


def test_a_damaged_wheel_is_fetched_again(pip, tmp_path):
    run(tmp_path)
    pip.fetched = []
    (tmp_path / "p1-1-py3-none-any.whl").write_bytes(b"damaged!!")
    assert run(tmp_path) == 0
    assert pip.fetched == ["p1-1-py3-none-any.whl"]
    assert (tmp_path / "p1-1-py3-none-any.whl").read_bytes() == CONTENT["p1-1-py3-none-any.whl"]


def test_verify_finds_damage_that_times_and_sizes_hide(pip, tmp_path):
    run(tmp_path)
    pip.fetched = []
    path = tmp_path / "p1-1-py3-none-any.whl"
    status = path.stat()
    path.write_bytes(b"X" * status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    run(tmp_path)
    assert pip.fetched == []
    assert run(tmp_path, "--verify") == 0
    assert pip.fetched == [path.name]


def test_wrong_bytes_never_get_their_name(pip, tmp_path, capsys):
    pip.content["p2-1-py3-none-any.whl"] = b"evil"
    assert run(tmp_path) == 1
    assert "p2-1-py3-none-any.whl has sha256" in capsys.readouterr().err
    assert "p2-1-py3-none-any.whl" not in wheels(tmp_path)


def test_another_release_adds_its_wheel_and_its_lock(pip, tmp_path):
    run(tmp_path)
    pip.fetched = []
    assert run(tmp_path, "--release", "0.5.20") == 0
    assert pip.fetched == ["sglang-8-py3-none-any.whl"]
    assert "sglang==8" in (tmp_path / "lock-0.5.20.txt").read_text()
    assert "sglang==7" in (tmp_path / "lock.txt").read_text()


def test_full_disk_is_refused_before_anything_is_fetched(pip, tmp_path, monkeypatch, capsys):
    usage = type("Usage", (), {"free": 1_000_000})
    monkeypatch.setattr(wheelhouse.shutil, "disk_usage", lambda path: usage)
    assert run(tmp_path) == 1
    assert "not enough free disk: 1 MB" in capsys.readouterr().err
    assert pip.fetched == []


@pytest.mark.parametrize(
    ("wanted", "current", "architecture", "offered", "build"),
    [
        ("auto", None, "x86_64", True, "cpu"),
        ("auto", None, "x86_64", False, "cuda"),
        ("auto", None, "aarch64", True, "cuda"),
        ("auto", "cuda", "x86_64", True, "cuda"),
        ("cpu", "cuda", "x86_64", False, "cpu"),
        ("cuda", None, "x86_64", True, "cuda"),
    ],
)
def test_choice_of_torch(monkeypatch, wanted, current, architecture, offered, build):
    monkeypatch.setattr(wheelhouse, "has_cpu_torch", lambda package: offered)
    chosen, why = wheelhouse.choose_torch(wanted, current, architecture)
    assert chosen == build
    assert why


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("torch (2.15.0)\nAvailable versions: 2.15.0, 2.13.0+cpu, 2.13.0\n", True),
        ("torch (2.13.0+cpu)\nAvailable versions: 2.13.0+cpu\n", True),
        ("torch (2.15.0)\nAvailable versions: 2.15.0, 2.13.0, 2.12.0+cpu\n", False),
        ("torch (2.15.0)\nAvailable versions: 12.13.0+cpu, 2.13.0+cpu1\n", False),
        ("", False),
    ],
)
def test_probe_reads_pips_answer(monkeypatch, answer, found):
    done = type("Done", (), {"stdout": answer})
    monkeypatch.setattr(pip_download.subprocess, "run", lambda *args, **kwargs: done)
    assert pip_download.has_cpu_torch(locks.Package("torch", "2.13.0", ())) is found


def test_large_wheels_get_a_run_of_their_own():
    sizes = [1, 2, 3, wheelhouse.BATCH_BYTES + 1, 5]
    missing = [(locks.Package(str(s), "1", ()), locks.Wheel(f"{s}.whl", s, "")) for s in sizes]
    groups = [[wheel.size for _, wheel in group] for group in wheelhouse.batches(missing)]
    assert groups == [[1, 2, 3], [wheelhouse.BATCH_BYTES + 1], [5]]


def test_pip_is_asked_for_python_311_up_to_bookworms_glibc():
    options = pip_download.target_options("x86_64")
    assert options[options.index("--python-version") + 1] == "3.11"
    assert "manylinux_2_36_x86_64" in options
    assert "manylinux_2_37_x86_64" not in options
    assert "--only-binary=:all:" in options
