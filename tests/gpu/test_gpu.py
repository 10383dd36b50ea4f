"""What of the GPU tests can be tested without a GPU: `pytest tests/gpu`. No network, no root."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import sys
import zipfile
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import host
import namespace
import pack
from ansible.module_utils.aerie.release.lockfile import parse


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "sglang_kernel-0.4.5-cp310-abi3-manylinux2014_x86_64.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("sgl_kernel/flash_ops.abi3.so", b"x" * 1000)
        archive.writestr("sgl_kernel/sm100/common_ops.abi3.so", b"x" * 1000)
        archive.writestr("sgl_kernel/sm90/common_ops.abi3.so", b"kept")
        archive.writestr(
            "sglang_kernel-0.4.5.dist-info/RECORD", "sgl_kernel/flash_ops.abi3.so,sha256=old,1000\n"
        )
    return path


def test_repacked_wheel_lists_exactly_what_it_holds(wheel: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.whl"
    pack.repack(wheel, out)
    with zipfile.ZipFile(out) as archive:
        assert {item.compress_type for item in archive.infolist()} == {zipfile.ZIP_STORED}
        names = archive.namelist()
        record = csv.reader(io.StringIO(archive.read("sglang_kernel-0.4.5.dist-info/RECORD").decode()))
        rows = {name: (digest, size) for name, digest, size in record}
        assert names == ["sgl_kernel/sm90/common_ops.abi3.so", "sglang_kernel-0.4.5.dist-info/RECORD"]
        assert list(rows) == names
        assert rows[names[0]] == (pack.digest(b"kept"), "4")


def test_repacking_twice_gives_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    for name in ("a.whl", "b.whl"):
        pack.repack(wheel, tmp_path / name)
    assert (tmp_path / "a.whl").read_bytes() == (tmp_path / "b.whl").read_bytes()


def test_lock_of_repacked_wheels_is_a_lock(wheel: Path) -> None:
    lock = parse(pack.lock_of([wheel]))
    assert lock.version_of("sglang-kernel") == "0.4.5"


def test_committed_list_locks_the_release() -> None:
    lock = parse(pack.WHEELS_LOCK.read_text())
    assert (lock.version_of("sglang"), lock.version_of("sglang-kernel")) == ("0.5.17", "0.4.5")


def test_subset_keeps_whole_entries() -> None:
    lock = parse(pack.subset(pack.CONTROLLER_LOCK, pack.CONTROLLER))
    assert {entry.name for entry in lock.entries} == set(pack.CONTROLLER)


def test_subset_refuses_a_name_that_is_not_locked() -> None:
    with pytest.raises(SystemExit, match="no-such-package"):
        pack.subset(pack.CONTROLLER_LOCK, ["jinja2", "no-such-package"])


def test_a_piece_is_what_was_packed_or_is_refused(tmp_path: Path) -> None:
    (tmp_path / "debs").mkdir()
    (tmp_path / "debs/a.deb").write_bytes(b"one")
    made = pack.manifest(tmp_path)
    assert made == {"debs/a.deb": hashlib.sha256(b"one").hexdigest()}
    (tmp_path / pack.MANIFEST).write_text(json.dumps(made))
    host.verify(tmp_path)
    (tmp_path / "debs/a.deb").write_bytes(b"two")
    with pytest.raises(SystemExit, match=r"debs/a\.deb"):
        host.verify(tmp_path)
    host.verify(tmp_path / "a piece that is not here yet")


def test_mounts_below_the_root_are_found() -> None:
    text = "\n".join(
        f"{number} 1 0:1 / {point} rw - ext4 /dev/x rw"
        for number, point in enumerate(
            [
                "/",
                "/proc",
                "/sys/fs/cgroup",
                "/usr/local/nvidia",
                "/tmp",
                "/opt/state/layer",
                "/a\\040b",
                "/devices",
            ]
        )
    )
    assert namespace.inner_mounts(text, "/opt/state") == ["/a b", "/devices", "/usr/local/nvidia"]


def test_prompts_are_enough_and_differ() -> None:
    prompts = json.loads((HERE / "prompts.json").read_text())
    text = (HERE / "inventory/group_vars/sglang.yml").read_text()
    wanted = int(re.findall(r"^sglang_server_gate_prompts: (\d+)", text, re.MULTILINE)[0])
    assert len(set(prompts)) == len(prompts) >= wanted
