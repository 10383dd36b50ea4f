"""Import-only stand-in for ``torchvision``: SGLang imports it for multimodal configurations.

A text model never uses it. Any submodule and any name can be imported; calling a function raises.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types

__all__ = ["io", "transforms"]
__version__ = "0.0.0"


class _Submodule(types.ModuleType):
    """Every name exists here: classes for CapitalNames, else functions that raise when called."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper():
            value = type(name, (), {"__getattr__": lambda self, attribute: None})
        else:
            value = _missing_function(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


def _missing_function(name):
    def missing(*args, **kwargs):
        raise RuntimeError(f"torchvision stand-in: {name} is not available")

    return missing


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.startswith("torchvision."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Submodule(spec.name)

    def exec_module(self, module):
        module.__path__ = []


sys.meta_path.insert(0, _Finder())

import torchvision.io as io
import torchvision.transforms as transforms
import torchvision.transforms.functional as _functional


class InterpolationMode:
    """transformers reads these members at import."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"
    BOX = "box"
    HAMMING = "hamming"


transforms.InterpolationMode = InterpolationMode
_functional.InterpolationMode = InterpolationMode
