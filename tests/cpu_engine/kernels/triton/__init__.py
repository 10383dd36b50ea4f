"""Import-only stand-in for ``triton``: SGLang decorates GPU kernels at import; on a CPU none is launched.

Any submodule and any name can be imported. Launching or calling a decorated kernel raises, and so does
asking for the active driver.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types

__all__ = ["compiler", "language", "runtime", "testing", "tools"]
__version__ = "0.0.0"


class Kernel:
    """What ``@triton.jit`` leaves behind: importable, never launchable."""

    def __init__(self, fn=None, *args, **kwargs):
        self.fn = fn
        self.__name__ = getattr(fn, "__name__", "kernel")

    def __getitem__(self, grid):
        raise RuntimeError(f"triton stand-in: GPU kernel {self.__name__} was launched on a CPU")

    def __call__(self, *args, **kwargs):
        raise RuntimeError(f"triton stand-in: GPU kernel {self.__name__} was called on a CPU")


class _Submodule(types.ModuleType):
    """Every name exists here: classes for CapitalNames, else further modules of this kind."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper():
            value = type(name, (), {"__init__": lambda self, *args, **kwargs: None})
        else:
            value = _Submodule(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *args, **kwargs):
        """Used at import: ``tl.dtype(...)``, and decorators such as ``@tl.core.extern``."""
        is_decorator = len(args) == 1 and callable(args[0]) and not kwargs
        return args[0] if is_decorator else self


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.startswith("triton."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Submodule(spec.name)

    def exec_module(self, module):
        module.__path__ = []


sys.meta_path.insert(0, _Finder())


def jit(fn=None, **kwargs):
    """Both ``@triton.jit`` and ``@triton.jit(...)``."""
    return Kernel if fn is None else Kernel(fn)


def autotune(*args, **kwargs):
    """Decorator that leaves its kernel as it is."""
    return lambda fn: fn


heuristics = autotune


def cdiv(a, b):
    """Quotient rounded up."""
    return -(-a // b)


def next_power_of_2(n):
    """Smallest power of two that is not below n."""
    return 1 << (n - 1).bit_length() if n > 0 else 1


class Config:
    """A tuning configuration that nobody reads."""

    def __init__(self, *args, **kwargs):
        pass


import triton.backends as _backends
import triton.compiler as compiler
import triton.language as language
import triton.runtime as runtime
import triton.testing as testing
import triton.tools as tools


class constexpr:
    """A compile-time constant; only its value is read at import."""

    def __init__(self, value=None):
        self.value = value


class _NoDriver:
    def __getattr__(self, name):
        raise RuntimeError("triton stand-in: no active driver")


language.constexpr = constexpr
JITFunction = KernelInterface = Kernel
runtime.JITFunction = runtime.KernelInterface = Kernel
runtime.driver = _NoDriver()
_backends.backends = {}  # triton.backends.backends: no backend is registered
