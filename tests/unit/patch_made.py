"""Trees and entries for the tests of source patches."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.aerie.patch.entry import Entry, parse_entries
from ansible.module_utils.aerie.patch.tree import TreeResult, apply

RELEASE = "0.5.9"
MODEL = "sglang/srt/models/deepseek_v2.py"
PROBE = "sglang/srt/aerie_probe.py"
TEXT = b'''"""A model."""

import torch  # noqa


class Model:
    """It has one."""

    def __init__(self, config):
        """Begin."""
        self.layers = []

    @property
    def size(self):
        return 1

    def forward(self, x, *, captured=None):
        aux = []
        for i in range(len(self.layers)):
            if i in captured:
                aux.append(x)
            elif x is None:
                break
            x = self.layers[i](x)
        if len(aux) == 0:
            return x
        return (
            x,
            aux,
        )


class Other:
    def forward(self, x):
        if len(aux) == 0: return x
        a = 1; b = 2
        return x


def helper():
    return None
'''


def entry(**changes: Any) -> dict[str, Any]:
    """An entry that puts a call before ``if len(aux) == 0`` of Model.forward."""
    return {
        "name": "aux",
        "set": "debug",
        "purpose": "See what is captured.",
        "file": MODEL,
        "anchor": {"class": "Model", "function": "forward", "statement": "if len(aux) == 0:"},
        "where": "before",
        "code": "aerie_probe.seen(aux)",
        **changes,
    }


def entries(*given: Mapping[str, Any]) -> list[Entry]:
    return parse_entries(given)


def make_tree(site: Path, files: Mapping[str, bytes] | None = None, *, record: bool = True) -> Path:
    """A site-packages with sglang, and a RECORD of it unless ``record`` is false."""
    content = {"sglang/__init__.py": b"", MODEL: TEXT, **(files or {})}
    for path, data in content.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(data)
    if record:
        info = site / f"sglang-{RELEASE}.dist-info"
        info.mkdir()
        lines = [f"{path},sha256={digest(data)},{len(data)}" for path, data in content.items()]
        (info / "RECORD").write_text("\n".join([*lines, f"{info.name}/RECORD,,"]) + "\n")
    return site


def digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def patch(site: Path, *given: Mapping[str, Any], release: str = RELEASE, **options: Any) -> TreeResult:
    return apply(site, release, entries(*given), **options)


def snapshot(site: Path) -> dict[str, tuple[bytes, int, int]]:
    """Every file of a tree with its bytes, mode and time."""
    return {
        str(path.relative_to(site)): (path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns)
        for path in sorted(site.rglob("*"))
        if path.is_file()
    }
