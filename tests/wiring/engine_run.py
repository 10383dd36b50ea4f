"""One server of the CPU engine for a fault, in debug or in production mode, from a patched copy of the release."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "cpu_engine"))

import engine
import serve
from ansible.module_utils.aerie.patch import catalogue as patch_catalogue
from ansible.module_utils.aerie.patch import tree as patch_tree
from ansible.module_utils.aerie.patch.entry import parse_entries

CATALOGUE = ROOT / "roles" / "sglang_patches" / "files" / "catalogue"
KERNELS = ROOT / "tests" / "cpu_engine" / "kernels"


@dataclass(frozen=True)
class Engine:
    """The python with the release, and where copies of its package are made."""

    python: Path
    scratch: Path

    @property
    def site_packages(self) -> Path:
        code = "import importlib.util as u; print(u.find_spec('sglang').submodule_search_locations[0])"
        done = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True)
        return Path(done.stdout.strip()).parent

    @property
    def release(self) -> str:
        name = next(self.site_packages.glob("sglang-*.dist-info")).name
        return name.removeprefix("sglang-").removesuffix(".dist-info")

    def site(self, mode: str, own: tuple[dict[str, Any], ...] = ()) -> Path:
        """A copy of the package with the mode's patches, as the road makes it for a deployment."""
        site = self.scratch / f"site-{mode}{'-own' if own else ''}"
        if not site.exists():
            site.mkdir(parents=True)
            for name in ("sglang", f"sglang-{self.release}.dist-info"):
                shutil.copytree(self.site_packages / name, site / name, symlinks=True)
        sets = ["fixes", "own", *(["debug"] if mode == "debug" else [])]
        given = patch_catalogue.inline(sets, list(own), str(CATALOGUE))
        entries = [one for one in parse_entries(given) if one.for_release(self.release)]
        patch_tree.apply(site, self.release, entries)
        return site


serve.START_TIMEOUT = 900.0  # a machine that does other things too took five minutes


class PatchedServer(serve.Server):
    """`serve.Server` from such a copy. ``probes``: directory of the debug mode's probes, None in production mode."""

    def __init__(self, python: Path, pair: Path, site: Path, probes: Path | None, **options: Any) -> None:
        super().__init__(python, pair, **options)
        self._site, self._probes = site, probes

    def start(self) -> None:
        """Launch; does not wait."""
        environment = {
            **os.environ,
            **engine.ENVIRONMENT,
            "PYTHONPATH": f"{self._site}:{KERNELS}",
            # Else a scheduler that fails waits a minute for CUDA core dumps.
            "SGLANG_CUDA_COREDUMP_BEFORE_CRASH_WAIT_SECS": "0",
        }
        if self._probes is not None:
            environment |= {"EAGLE3_DEBUG": "1", "EAGLE3_DEBUG_DIR": str(self._probes)}
        log: IO | None = self._log
        self._process = subprocess.Popen(
            self.command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
