"""Action plugins, loaded from their files as Ansible's loader does."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

PLUGINS = Path(__file__).resolve().parents[2] / "plugins" / "action"


def load(name: str) -> ModuleType:
    """The module of one plugin, anew each time."""
    spec = importlib.util.spec_from_file_location(f"{name}_under_test", PLUGINS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    return module
