"""Tiny real wheels and locks for the tests of `sglang_release`, made in milliseconds."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

SCRIPT = "import sglang.launch\n"


def make_wheel(
    directory: Path,
    name: str,
    version: str,
    files: dict[str, str] | None = None,
    scripts: tuple[str, ...] = (),
) -> Path:
    """A valid pure wheel with RECORD. ``files``: path -> text; default: one package with one module."""
    stem = name.replace("-", "_")
    if files is None:
        files = {f"{stem}/__init__.py": f"__version__ = {version!r}\n"}
    info = f"{stem}-{version}.dist-info"
    contents = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if scripts:
        lines = "".join(f"{script} = {stem}:main\n" for script in scripts)
        contents[f"{info}/entry_points.txt"] = f"[console_scripts]\n{lines}"
    record = [
        f"{path},{recorded_hash(text.encode())},{len(text.encode())}" for path, text in contents.items()
    ]
    record.append(f"{info}/RECORD,,")
    contents[f"{info}/RECORD"] = "\n".join(record) + "\n"
    directory.mkdir(parents=True, exist_ok=True)
    wheel = directory / f"{stem}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in contents.items():
            archive.writestr(zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0)), text)
    return wheel


def recorded_hash(data: bytes) -> str:
    """A sha256 as RECORD writes it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def make_sglang(directory: Path, version: str, *, note: str = "") -> Path:
    """A stand-in for the distribution `sglang`: a package with a few modules."""
    files = {
        "sglang/__init__.py": f"__version__ = {version!r}\n{note}",
        "sglang/launch.py": "def main():\n    print('launched')\n",
        "sglang/srt/__init__.py": "",
        "sglang/srt/server_args.py": "class ServerArgs:\n    pass\n",
    }
    return make_wheel(directory, "sglang", version, files, scripts=("sglang",))


def lock_of(*wheels: Path) -> str:
    """A hash-locked list of these wheels, as pip-compile writes it."""
    lines = []
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        lines.append(
            f"{name.replace('_', '-')}=={version} \\\n    --hash=sha256:{digest}\n    # via a test\n"
        )
    return "".join(lines)
