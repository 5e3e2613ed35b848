"""How a kernel is made: Python compiled to machine code for fixed types, once, at set-up.

A kernel works on whole buffers without the GIL. Its types are stated, so that no argument can make
numba compile another variant on a user's first read; the machine code is kept on disk: see `cache`.
`READ` and `WRITE` are the two kinds of buffer: a kernel that only reads takes `READ`, and so accepts
writable and read-only arrays alike.

Whoever wants to show that kernels are compiled, which takes a minute, listens to this module's log.

No kernel allocates, so none counts references (`_nrt`): that doubled the speed of those with many helpers.
Lengths are checked by the kernels themselves: indexing outside an array is not caught by numba.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba import types
from numba.core import sigutils
from numba.core.ccallback import CFunc

from topicfs.engine.format import batch_header, index, layout, messages
from topicfs.engine.kernels.cache import KernelCache, prepare

log = logging.getLogger(__name__)

Function = Callable[..., Any]


FORMATS = tuple(map(Path, (batch_header.__file__, index.__file__, layout.__file__, messages.__file__)))
"""Whose constants kernels take."""

prepare(Path(__file__).parent, *FORMATS)

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


# The kernels that can be called.
_READY: list[str] = []

# What loads those of them that are on disk, and were not called yet.
_PENDING: dict[str, Callable[[], None]] = {}

# Held while a kernel is loaded: several threads may be the first to call it.
_LOADING = threading.RLock()


def _begun(function: Function, is_kept: bool) -> None:
    """A kernel was not found, and is compiled: told with how many are ready, and whether it is for this run alone.
    It may call others, whose types are not to be guessed: all that were defined before it are loaded first."""
    for name, load in tuple(_PENDING.items()):
        if name == _name(function):
            break
        load()
    log.info(f"compiling {function.__name__}", extra={"ready": len(_READY), "is_kept": is_kept})


def kernel(result: Any, *arguments: Any) -> Callable[[Function], Function]:
    """Compile a function for exactly these types, without the GIL, cached on disk. What is on disk already is loaded by
    the first call: each takes some 3 ms, and most commands need few."""
    signature = result(*arguments)

    def compile_it(function: Function) -> Function:
        compiled: Any = numba.njit(**_OPTIONS)(function)
        compiled._cache = KernelCache(function, lambda is_kept: _begun(function, is_kept))
        # No call compiles, from the beginning: a call that began when compiling was allowed wants arguments of exactly
        # the stated types, and would fail for others if another thread ended that meanwhile.
        compiled._can_compile = False

        def load() -> None:
            with _LOADING:
                if not compiled.overloads:
                    maker: Any = numba.njit(**_OPTIONS)(function)
                    maker._cache = compiled._cache
                    maker.compile(signature)
                    (made,) = maker.overloads.values()
                    compiled.add_overload(made)
                    # What it made would go with it.
                    compiled.maker = maker

        if compiled._cache.holds(signature, compiled.targetctx):
            _load_later(compiled, load)
        else:
            load()
        _READY.append(function.__name__)
        return compiled  # type: ignore[no-any-return]

    return compile_it


def _load_later(compiled: Any, load: Callable[[], None]) -> None:
    """Have a kernel loaded by its first call."""
    name = _name(compiled)
    search = compiled._search_new_conversions

    def load_and_search(*arguments: Any, **named: Any) -> Any:
        load()
        _PENDING.pop(name, None)
        return search(*arguments, **named)

    # numba calls this where it has no machine code for the arguments, and then looks for some again.
    compiled._search_new_conversions = load_and_search
    _PENDING[name] = load


def _name(function: Any) -> str:
    return f"{function.__module__}.{function.__name__}"


def load_all() -> None:
    """Load the kernels that were not called yet, so that no later call waits for it."""
    for load in tuple(_PENDING.values()):
        load()
    _PENDING.clear()


def inline(function: Function) -> Function:
    """A helper of kernels: compiled into each one that calls it."""
    compiled: Function = numba.njit(**_OPTIONS)(function)
    return compiled


def callback(result: Any, *arguments: Any) -> Callable[[Function], Any]:
    """Compile a function that C calls by its `address`, in threads that Python need not know; cached on disk."""

    def compile_it(function: Function) -> Any:
        # As `numba.cfunc` does it, but for where the code is kept.
        compiled: Any = CFunc(
            function, sigutils.normalize_signature(result(*arguments)), {}, {"error_model": "numpy"}
        )
        compiled._cache = KernelCache(function, lambda is_kept: _begun(function, is_kept))
        compiled.compile()
        _READY.append(function.__name__)
        return compiled

    return compile_it
