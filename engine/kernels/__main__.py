"""`python -m engine.kernels`: compile every kernel, so that no user's first read has to."""

from __future__ import annotations

import importlib
import pkgutil
import time
from types import ModuleType

import engine.kernels


def compile_all(package: ModuleType) -> None:
    """Import each module of kernels: that compiles what is not in the cache."""
    start = time.perf_counter()
    names = [module.name for module in pkgutil.iter_modules(package.__path__) if module.name != "__main__"]
    for name in names:
        importlib.import_module(f"{package.__name__}.{name}")
    print(f"{package.__name__} ready in {time.perf_counter() - start:.1f} s")  # noqa: T201 -- this is a command


if __name__ == "__main__":
    compile_all(engine.kernels)
