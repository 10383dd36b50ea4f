"""Make the scenario's tiny wheels, a simple index of them and their locks: make_wheels.py DIRECTORY."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "unit"))

from release_wheels_made import lock_of, make_sglang, make_wheel


def main(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    wheels = directory / "wheels"
    release = make_sglang(wheels, "0.5.23")
    dependency = make_wheel(wheels, "dep-one", "1.0")
    tools = make_wheel(wheels, "nvidia-ml-py", "13.0")
    extra = make_wheel(directory / "extra", "dep-extra", "1.0")
    (directory / "lock.txt").write_text(lock_of(release, dependency, extra))
    (directory / "tools-lock.txt").write_text(lock_of(tools))
    for wheel in (release, dependency, tools, extra):
        folder = directory / "index" / wheel.name.split("-")[0].replace("_", "-")
        folder.mkdir(parents=True)
        shutil.copy(wheel, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
