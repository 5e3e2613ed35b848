"""Loading the engine for a command. This compiles its kernels once, which takes up to a minute and is reported.

`python -m topicfs.mountd.kernels` compiles all of them. An administrator who installs topicfs for others runs it with
the right to write where it is installed. Nothing of the engine is imported here before it is needed, since an import of
the engine compiles it.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import logging
import os
import pkgutil
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from topicfs.mountd.progress import Progress

_LOG: Final = "topicfs.engine.kernels.compile"
_ROOT: Final = Path(__file__).parents[1]
_BLAS_THREADS: Final = "OPENBLAS_NUM_THREADS"
_FOLDERS: Final = ("engine/kernels", "fs/kernels")


class _Counting(logging.Handler):
    """A log handler that turns the engine's message about each compiled kernel into a line of progress.

    _tell   called with the line
    _began  when the first line came; None before it
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._tell = tell
        self._began: float | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Report one kernel."""
        if not hasattr(record, "ready"):
            return
        now = time.monotonic()
        if self._began is None:
            self._began = now
        how = (
            "once"
            if getattr(record, "is_kept", True)
            else "for this run alone, as there is no place to keep them (XDG_CACHE_HOME names one)"
        )
        self._tell(
            f"compiling, {how}: {record.ready} of {_count()} kernels are ready after {now - self._began:.0f} s"
        )


@contextmanager
def told(tell: Callable[[str], None]) -> Iterator[None]:
    """Report, kernel by kernel, what the imports inside this context compile.

    What they make stays as long as the process, so the garbage collector need not look through it again and again: a
    short command takes a seventh less of the processor's time without that. Nor does numpy start its threads for linear
    algebra, which is another twelfth.
    """
    is_told = _BLAS_THREADS in os.environ
    os.environ.setdefault(_BLAS_THREADS, "1")
    log, counting = logging.getLogger(_LOG), _Counting(tell)
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(counting)
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(_thaw)
        log.removeHandler(counting)
        log.setLevel(level)
        if not is_told:
            # numpy has read it. Programs that this one starts may compute.
            del os.environ[_BLAS_THREADS]


def _thaw() -> None:
    """Let the last garbage collection of the process see all objects where DuckDB needs it: it writes pages about
    objects that are left when the process ends."""
    if "duckdb" in sys.modules:
        gc.unfreeze()


@contextmanager
def loading() -> Iterator[None]:
    """Report it on stderr: in one line that changes on a terminal, elsewhere in a few lines."""
    with Progress() as progress, told(progress.progress):
        yield


def _count() -> int:
    """Count all kernels."""
    sources = (source for folder in _FOLDERS for source in (_ROOT / folder).glob("*.py"))
    return sum(
        len(re.findall(r"^@(?:kernel|callback)\(", source.read_text(), re.MULTILINE)) for source in sources
    )


def compile_all() -> None:
    """Import each module of kernels, which compiles those that are not in the cache yet."""

    import topicfs.engine.kernels  # noqa: PLC0415 - see the module's head
    import topicfs.fs.kernels  # noqa: PLC0415

    for package in (topicfs.engine.kernels, topicfs.fs.kernels):
        for name in [module.name for module in pkgutil.iter_modules(package.__path__)]:
            importlib.import_module(f"{package.__name__}.{name}")


def main() -> None:
    """Compile all kernels, and report it."""
    began = time.monotonic()
    with loading():
        compile_all()
    print(f"kernels are ready after {time.monotonic() - began:.1f} s", file=sys.stderr)  # noqa: T201 - a command


if __name__ == "__main__":
    main()
