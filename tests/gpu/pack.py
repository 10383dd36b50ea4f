#!/usr/bin/env python3
"""Make the pieces that are carried to a GPU machine which reaches no registry: `tests/gpu/pack.py --help`.

Runs on the controller. Two pieces under .cache/gpu, each small enough for one transfer of 64 MiB together with the
working tree:

wheels/  wheels.tar.xz   SGLang 0.5.17 and what it needs over the image's torch, repacked (see `repack`)
         lock.txt        hash-locked list of the repacked wheels
host/    debs/           systemd, sshd and their libraries, from Debian 12
         controller/     wheels of ansible-core for Python 3.12
         tools/          the wheel of roles/sglang_install/files/tools-lock.txt
         ensurepip.zip   Python's ensurepip, for an image whose /usr/bin/python3 lacks it
         models.tar.xz   target and right draft; the wrong ones are made from it there (drafts.py)
         caches.tar.gz   compile caches that an earlier run brought back, where --caches names them

Each piece has a manifest.json with the sha256 of its files, which host.py compares before it unpacks them.

A piece that is there is kept; --again makes it anew.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WHEELS_LOCK = HERE / "sglang-0.5.17-cp312.txt"
TOOLS_LOCK = ROOT / "roles/sglang_install/files/tools-lock.txt"
CONTROLLER_LOCK = ROOT / "requirements/controller-3.12.txt"
# ansible-core and all that it requires; the linters and test runners of the list stay here.
CONTROLLER = (
    "ansible-core",
    "cffi",
    "cryptography",
    "jinja2",
    "markupsafe",
    "packaging",
    "pycparser",
    "pyyaml",
    "resolvelib",
)
# What one Hopper card with Triton attention never loads: FA3's kernels alone unpack to 1.1 GB.
DROP = {
    "sglang_kernel": (
        "sgl_kernel/flash_ops",
        "sgl_kernel/sm100/",
        "sgl_kernel/flashmla_ops",
        "sgl_kernel/infllm_ops",
    ),
    "xgrammar": ("xgrammar/lib/libxgrammar.a", "xgrammar/include/"),
    "zstandard": ("zstandard/backend_cffi", "zstandard/_cffi"),
}
STRIP = ("xgrammar", "zstandard", "tokenizers", "apache_tvm_ffi")
PLATFORMS = ("2_34", "2_31", "2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")
# What the device takes in one call, working tree included.
LIMIT_MIB = 64
MANIFEST = "manifest.json"
CACHES = "caches.tar.gz"


def say(text: str) -> None:
    print(f"pack: {text}", flush=True)


def pip_download(lock: Path, destination: Path) -> None:
    """Every wheel of a hash-locked list, for Python 3.12 on x86-64 Linux, whatever runs here."""
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    words += ["--only-binary", ":all:", "--python-version", "3.12", "--implementation", "cp"]
    words += ["--abi", "cp312", "--abi", "abi3", "--abi", "none"]
    for name in (*(f"manylinux_{version}_x86_64" for version in PLATFORMS), "manylinux2014_x86_64", "any"):
        words += ["--platform", name]
    done = subprocess.run(
        [*words, "--dest", str(destination), "--requirement", str(lock)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"pack: pip could not download {lock.name}:\n{done.stderr[-2000:]}")


def subset(lock: Path, names: Iterable[str]) -> str:
    """The entries of ``names`` out of a hash-locked list; raises SystemExit when one is not there."""
    wanted, kept, inside = set(names), [], False
    for line in lock.read_text(encoding="utf-8").splitlines():
        if line and not line[0].isspace():
            name = line.partition("==")[0]
            inside = name in wanted
            wanted.discard(name)
        if inside:
            kept.append(line)
    if wanted:
        raise SystemExit(f"pack: {lock} does not lock {', '.join(sorted(wanted))}")
    return "\n".join(kept) + "\n"


def digest(data: bytes) -> str:
    """A file's hash as RECORD has it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def stripped(data: bytes) -> bytes:
    """A shared library without debug information."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        subprocess.run(["strip", "--strip-debug", file.name], check=True)
        smaller = Path(file.name).read_bytes()
    return min(data, smaller, key=len)


def repack(wheel: Path, destination: Path) -> None:
    """The wheel without what is never loaded and without debug information, RECORD written again, stored
    uncompressed so that one xz over all of them finds more to share."""
    name = wheel.name.split("-")[0]
    record: list[tuple[str, str, str]] = []
    record_name = ""
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(destination, "w", zipfile.ZIP_STORED) as new:
        for item in old.infolist():
            if item.filename.endswith(".dist-info/RECORD"):
                record_name = item.filename
            if item.is_dir() or item.filename == record_name:
                continue
            if item.filename.startswith(DROP.get(name, ("\0",))):
                continue
            data = old.read(item)
            if name in STRIP and ".so" in Path(item.filename).name:
                data = stripped(data)
            kept = zipfile.ZipInfo(item.filename, item.date_time)
            kept.external_attr, kept.create_system = item.external_attr, item.create_system
            new.writestr(kept, data)
            record.append((item.filename, digest(data), str(len(data))))
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*record, (record_name, "", "")])
        new.writestr(record_name, text.getvalue())


def lock_of(wheels: Iterable[Path]) -> str:
    """A hash-locked list of exactly these files."""
    lines = [
        "# Made by tests/gpu/pack.py: the wheels of sglang-0.5.17-cp312.txt, repacked. No index has these files."
    ]
    for wheel in sorted(wheels):
        name, version = wheel.name.split("-")[:2]
        lines += [
            f"{re.sub('[-_.]+', '-', name).lower()}=={version} \\",
            f"    --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}",
        ]
    return "\n".join(lines) + "\n"


def pack_wheels(piece: Path, downloads: Path) -> None:
    say("downloading 480 MB of wheels (kept in .cache/gpu/downloads)")
    pip_download(WHEELS_LOCK, downloads)
    with tempfile.TemporaryDirectory(dir=piece.parent) as scratch:
        for wheel in sorted(downloads.glob("*.whl")):
            repack(wheel, Path(scratch) / wheel.name)
        wheels = sorted(Path(scratch).glob("*.whl"))
        stored = sum(wheel.stat().st_size for wheel in wheels) >> 20
        say(f"{len(wheels)} wheels, {stored} MiB stored; compressing, two to four minutes")
        (piece / "lock.txt").write_text(lock_of(wheels), encoding="utf-8")
        words = [
            "tar",
            "--create",
            "--sort=name",
            "--mtime=@0",
            "--owner=0",
            "--group=0",
            f"--directory={scratch}",
        ]
        archive = subprocess.Popen([*words, *(wheel.name for wheel in wheels)], stdout=subprocess.PIPE)
        # A dictionary as large as the whole: two copies of one thing are far apart here.
        with (piece / "wheels.tar.xz").open("wb") as out:
            subprocess.run(
                ["xz", "--threads=2", "--lzma2=preset=8,dict=128MiB", "--block-size=512MiB"],
                stdin=archive.stdout,
                stdout=out,
                check=True,
            )
        if archive.wait() != 0:
            raise SystemExit("pack: tar failed")


def pack_host(piece: Path, models: Path, caches: Path | None) -> None:
    for name in ("debs", "controller", "tools"):
        (piece / name).mkdir(exist_ok=True)
    say("downloading Debian's packages")
    names = [
        line for line in (HERE / "debs.txt").read_text().splitlines() if line and not line.startswith("#")
    ]
    subprocess.run(
        ["apt-get", "download", "--quiet=2", "-o", "APT::Sandbox::User=root", *names],
        cwd=piece / "debs",
        check=True,
    )
    say("downloading ansible-core and the tools")
    with tempfile.TemporaryDirectory() as scratch:
        lock = Path(scratch) / "controller.txt"
        lock.write_text(subset(CONTROLLER_LOCK, CONTROLLER), encoding="utf-8")
        pip_download(lock, piece / "controller")
    pip_download(TOOLS_LOCK, piece / "tools")
    say("packing ensurepip and the models")
    pack_ensurepip(piece / "ensurepip.zip")
    pack_models(piece / "models.tar.xz", models)
    if caches is not None:
        shutil.copyfile(caches, piece / CACHES)


def pack_ensurepip(archive: Path) -> None:
    """This Python's ensurepip: it is pure, and its bundled pip runs on 3.12."""
    import ensurepip

    top = Path(ensurepip.__file__).parent
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as out:
        for path in sorted(top.rglob("*")):
            if path.suffix in (".py", ".whl"):
                out.write(path, Path("ensurepip") / path.relative_to(top))


def pack_models(archive: Path, models: Path) -> None:
    """Target and right draft as they lie in ``models``; the wrongly wired ones are made from it on the machine."""
    if not (models / "target/model.safetensors").is_file():
        raise SystemExit(
            f"pack: {models} holds no target/model.safetensors; name the pair's directory with --models"
        )

    def plain(item: tarfile.TarInfo) -> tarfile.TarInfo:
        item.uid = item.gid = 0
        item.uname = item.gname = "root"
        item.mode = 0o755 if item.isdir() else 0o644
        return item

    with tarfile.open(archive, "w:xz", preset=6) as out:
        for name in ("target", "draft-right"):
            out.add(models / name, name, filter=plain)


def manifest(piece: Path) -> dict[str, str]:
    """sha256 of every file of a piece, by its path in it."""
    return {
        str(path.relative_to(piece)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(piece.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }


def mib(path: Path) -> float:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / (1 << 20)


def tree_mib() -> float:
    """What of the working tree travels: tracked and untracked files that git does not ignore."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(words, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    return sum((ROOT / name).stat().st_size for name in names if name and (ROOT / name).is_file()) / (1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / ".cache/gpu")
    parser.add_argument("--models", type=Path, default=ROOT.parent / "shared/prototypes/gpu-host/model")
    parser.add_argument("--caches", type=Path, help="caches.tar.gz that an earlier run brought back")
    parser.add_argument("--only", choices=("wheels", "host"), help="make this piece alone")
    parser.add_argument("--again", action="store_true", help="make pieces anew that are there")
    options = parser.parse_args()
    began = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    downloads = options.out / "downloads"
    downloads.mkdir(exist_ok=True)
    for name in ("wheels", "host"):
        piece = options.out / name
        if options.only in (None, name) and (options.again or not piece.exists()):
            half = options.out / f".{name}.half"
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir()
            if name == "wheels":
                pack_wheels(half, downloads)
            else:
                pack_host(half, options.models, options.caches)
            (half / MANIFEST).write_text(json.dumps(manifest(half), indent=1) + "\n")
            shutil.rmtree(piece, ignore_errors=True)
            half.rename(piece)
    tree = tree_mib()
    say(f"done in {time.monotonic() - began:.0f} s; the working tree itself: {tree:.1f} MiB")
    for name in ("wheels", "host"):
        if (options.out / name).is_dir():
            size = mib(options.out / name)
            verdict = "" if size + tree < LIMIT_MIB else f"  TOO LARGE: {LIMIT_MIB} MiB is the limit"
            say(f"carry .cache/gpu/{name}: {size:.1f} MiB, {size + tree:.1f} MiB with the tree{verdict}")


if __name__ == "__main__":
    main()
