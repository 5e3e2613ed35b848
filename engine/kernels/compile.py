"""How a kernel is made: Python compiled to machine code for fixed types, once, at set-up.

A kernel works on whole buffers without the GIL. Its types are stated, so that no argument can make
numba compile another variant on a user's first read; the machine code is cached beside the source
(or in numba's own cache directory where that cannot be written). `READ` and `WRITE` are the two kinds
of buffer: a kernel that only reads takes `READ`, and so accepts writable and read-only arrays alike.

Lengths are checked by the kernels themselves: indexing outside an array is not caught by numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import types

Function = Callable[..., Any]

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


def kernel(result: Any, *arguments: Any) -> Callable[[Function], Function]:
    """Compile a function for exactly these types, without the GIL, cached on disk."""

    def compile_it(function: Function) -> Function:
        compiled: Function = numba.njit(result(*arguments), nogil=True, cache=True, error_model="numpy")(
            function
        )
        return compiled

    return compile_it


def inline(function: Function) -> Function:
    """A helper of kernels: compiled into each one that calls it."""
    compiled: Function = numba.njit(nogil=True, error_model="numpy")(function)
    return compiled
