"""How a kernel is made: Python compiled to machine code for fixed types, once, at set-up.

A kernel works on whole buffers without the GIL. Its types are stated, so that no argument can make
numba compile another variant on a user's first read; the machine code is cached beside the source
(or in numba's own cache directory where that cannot be written). `READ` and `WRITE` are the two kinds
of buffer: a kernel that only reads takes `READ`, and so accepts writable and read-only arrays alike.

numba takes cached code for current while the kernel's own file is unchanged, but helpers and constants of
other files are compiled into it: so all of it is dropped when any file of this folder changes.

No kernel allocates, so none counts references (`_nrt`): that doubled the speed of those with many helpers.
Lengths are checked by the kernels themselves: indexing outside an array is not caught by numba.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba import types

Function = Callable[..., Any]


def drop_outdated_code(folder: Path, *also: Path) -> None:
    """Drop the cached code of a folder's kernels, where a source in it, or in the folders whose helpers they
    use, has changed since it was made. Called before the first of them is imported."""
    digest = hashlib.sha256()
    for place in (folder, *also):
        for source in sorted(place.glob("*.py")):
            digest.update(source.read_bytes())
    cache = folder / "__pycache__"
    stamp = cache / "kernels.sha256"
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return
    # Where the folder cannot be written, it was installed by somebody else, and its sources do not change.
    with contextlib.suppress(OSError):
        for outdated in (*cache.glob("*.nbi"), *cache.glob("*.nbc")):
            outdated.unlink(missing_ok=True)
        cache.mkdir(exist_ok=True)
        stamp.write_text(digest.hexdigest())


drop_outdated_code(Path(__file__).parent)

READ = types.Array(types.uint8, 1, "C", readonly=True)
WRITE = types.Array(types.uint8, 1, "C")
LONGS = types.Array(types.int64, 1, "C")
INTS = types.Array(types.int32, 1, "C")
TABLE = types.Array(types.int64, 2, "C")
INT = types.int64
BOOL = types.boolean


def results(*each: Any) -> Any:
    """The type of a kernel that returns several values."""
    return types.Tuple(each)


_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


def kernel(result: Any, *arguments: Any) -> Callable[[Function], Function]:
    """Compile a function for exactly these types, without the GIL, cached on disk."""

    def compile_it(function: Function) -> Function:
        compiled: Function = numba.njit(result(*arguments), cache=True, **_OPTIONS)(function)
        return compiled

    return compile_it


def inline(function: Function) -> Function:
    """A helper of kernels: compiled into each one that calls it."""
    compiled: Function = numba.njit(**_OPTIONS)(function)
    return compiled
