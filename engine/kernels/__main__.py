"""`python -m engine.kernels`: compile every kernel, so that no user's first read has to."""

from __future__ import annotations

import importlib
import pkgutil
import time

import engine.kernels


def main() -> None:
    """Import each module of kernels: that compiles what is not in the cache."""
    start = time.perf_counter()
    names = [
        module.name for module in pkgutil.iter_modules(engine.kernels.__path__) if module.name != "__main__"
    ]
    for name in names:
        importlib.import_module(f"engine.kernels.{name}")
    print(f"kernels ready in {time.perf_counter() - start:.1f} s")  # noqa: T201 -- this is a command


if __name__ == "__main__":
    main()
