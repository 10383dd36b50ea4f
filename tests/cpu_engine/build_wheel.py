#!/usr/bin/env python3
"""Build the wheel ``aerie-cpu-kernels`` from ``kernels/``, the same bytes on every machine and Python.

    python build_wheel.py DIRECTORY

The wheel holds the stand-ins for sgl_kernel, torchvision and triton. Only the CPU engine's locks name it,
with its sha256; its name exists in no registry. Standard library only.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import sys
import zipfile
from pathlib import Path

NAME = "aerie-cpu-kernels"
# Below torchvision 0.15 and triton 1.0 on purpose: transformers takes the version of the distribution that
# owns a package for the package's own, and with a low one it leaves torchvision and triton alone.
VERSION = "0.1.0"
KERNELS = Path(__file__).resolve().parent / "kernels"
STEM = f"{NAME.replace('-', '_')}-{VERSION}"
WHEEL_NAME = f"{STEM}-py3-none-any.whl"
DIST_INFO = f"{STEM}.dist-info"
TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file can hold

METADATA = f"""\
Metadata-Version: 2.1
Name: {NAME}
Version: {VERSION}
Summary: Test stand-ins for sgl_kernel, torchvision and triton, to run SGLang on a CPU
License: Apache-2.0
Requires-Python: >=3.10
"""
WHEEL = """\
Wheel-Version: 1.0
Generator: aerie
Root-Is-Purelib: true
Tag: py3-none-any
"""


def wheel_bytes() -> bytes:
    """The wheel as bytes; depends on the sources in ``kernels/`` and nothing else."""
    files = {path.relative_to(KERNELS).as_posix(): path.read_bytes() for path in KERNELS.rglob("*.py")}
    files[f"{DIST_INFO}/METADATA"] = METADATA.encode()
    files[f"{DIST_INFO}/WHEEL"] = WHEEL.encode()
    record = f"{DIST_INFO}/RECORD"
    files[record] = _record(files, record).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            archive.writestr(_entry(name), files[name])
    return buffer.getvalue()


def wheel_sha256() -> str:
    """Hex digest of the wheel, as the locks write it."""
    return hashlib.sha256(wheel_bytes()).hexdigest()


def build(directory: Path) -> Path:
    """Write the wheel into ``directory`` and return its path; an equal file is left alone."""
    target = directory / WHEEL_NAME
    content = wheel_bytes()
    if not target.is_file() or target.read_bytes() != content:
        directory.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        part.write_bytes(content)
        part.replace(target)
    return target


def _entry(name: str) -> zipfile.ZipInfo:
    """A zip entry with nothing in it that differs from machine to machine."""
    entry = zipfile.ZipInfo(name, TIMESTAMP)
    entry.create_system = 3  # Unix, wherever it is built
    entry.external_attr = 0o644 << 16
    return entry


def _record(files: dict[str, bytes], own_name: str) -> str:
    """RECORD: path, urlsafe base64 sha256 without padding, size; RECORD itself has neither."""
    lines = []
    for name in sorted(files):
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(files[name])}")
    return "\n".join([*lines, f"{own_name},,", ""])


def main(argv: list[str] | None = None) -> int:
    """Command line; prints the path and the sha256."""
    parser = argparse.ArgumentParser(description="Build the wheel aerie-cpu-kernels.")
    parser.add_argument("directory", type=Path)
    path = build(parser.parse_args(argv).directory)
    print(f"{path} sha256={wheel_sha256()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
