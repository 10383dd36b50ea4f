"""On the host: build driver packages that hold nothing, and a repository of them for apt: make_driver.py VERSION."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path("/srv/driver")


def main(version: str) -> None:
    ROOT.mkdir(parents=True, exist_ok=True)
    branch = version.split(".")[0]
    entries = []
    for name in (f"nvidia-driver-{branch}-server-open", f"nvidia-utils-{branch}-server"):
        control = (
            f"Package: {name}\nVersion: {version}-0test1\nArchitecture: all\n"
            "Maintainer: Aerie <test@example.com>\nDescription: holds nothing\n"
        )
        package = ROOT / f"{name}_{version}-0test1_all.deb"
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "DEBIAN").mkdir(mode=0o755)
            (Path(folder) / "DEBIAN" / "control").write_text(control)
            subprocess.run(["dpkg-deb", "--build", "--root-owner-group", folder, str(package)], check=True)
        content = package.read_bytes()
        entries.append(
            f"{control}Filename: ./{package.name}\nSize: {len(content)}\n"
            f"SHA256: {hashlib.sha256(content).hexdigest()}\n"
        )
    (ROOT / "Packages").write_text("\n".join(entries))
    sources = Path("/etc/apt/sources.list.d")
    for path in [Path("/etc/apt/sources.list"), *sources.glob("*")]:
        path.unlink(missing_ok=True)  # a host of a test asks nobody outside
    (sources / "driver.list").write_text(f"deb [trusted=yes] copy:{ROOT} ./\n")


if __name__ == "__main__":
    main(sys.argv[1])
