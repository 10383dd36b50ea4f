"""Make the double's wheels, their locks and two tiny models: make_double.py DIRECTORY."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

from release_wheels_made import lock_of, make_wheel

DOUBLE = Path(__file__).resolve().parent / "double"
SERVER = Path(__file__).resolve().parents[1] / "server_double"
RELEASE = "0.5.23"


def main(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    wheels = directory / "wheels"
    package = {
        "sglang/__init__.py": f"__version__ = {RELEASE!r}\n",
        "sglang/launch_server.py": "from sglang.double.server import main\n\nmain()\n",
        **{f"sglang/double/{path.name}": path.read_text() for path in sorted(SERVER.glob("*.py"))},
        "sglang/srt/__init__.py": "",
        "sglang/srt/server_args.py": "class ServerArgs:\n    def check(self):\n        return 1\n",
    }
    sglang = make_wheel(wheels, "sglang", RELEASE, package, scripts=("sglang",))
    transformers = make_wheel(
        wheels, "transformers", "5.0", {"transformers.py": (DOUBLE / "transformers.py").read_text()}
    )
    # The real one: what it asks is a double of the driver's library (tests/nvml).
    found = importlib.util.find_spec("pynvml")
    if found is None or found.origin is None:
        raise SystemExit("this Python has no pynvml: make setup")
    pynvml = {"pynvml.py": Path(found.origin).read_text()}
    tools = make_wheel(wheels, "nvidia-ml-py", "13.0", pynvml)
    (directory / "lock.txt").write_text(lock_of(sglang, transformers))
    (directory / "tools-lock.txt").write_text(lock_of(tools))
    for name in ("target", "draft"):
        model = directory / "models" / name
        model.mkdir(parents=True)
        (model / "config.json").write_text(json.dumps({"model_type": "double", "role": name}))
        (model / "model.safetensors").write_bytes(b"not weights, but not empty either")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
