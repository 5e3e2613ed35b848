"""The memory of the process: what the C library keeps, and what is put away."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_MADV_DONTNEED: Final = 4
_MADV_PAGEOUT: Final = 21
_COMPILER: Final = "libllvmlite"


def keep_freed_blocks() -> None:
    """Have the C library keep freed blocks of a few MiB, instead of returning each to the system.

    Every read and every batch uses a buffer of up to a few MiB for some 100 us. A new one costs a page fault for each 4
    KiB. Measured: reading txt takes half the time. At most 64 MiB are kept for each of two arenas.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        log.info("the C library has no mallopt: reads are slower")
        return
    library.mallopt(_M_MMAP_THRESHOLD, 16 << 20)
    library.mallopt(_M_TRIM_THRESHOLD, 64 << 20)
    library.mallopt(_M_ARENA_MAX, 2)


def put_compiler_away() -> None:
    """Have the kernel take back the memory of the compiler's library, which has loaded the kernels and is done.

    Of 190 MB, it holds 95. It is a mapped file: what is needed again is read again. So pages that are still as they are
    in the file are dropped. The others were changed while it was loaded: the kernel is only asked to put them away,
    which older ones refuse, as does one without swap.
    """
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for start, end, is_changed in _mappings(_COMPILER):
        advise(start, end - start, _MADV_PAGEOUT if is_changed else _MADV_DONTNEED)


def _mappings(library: str) -> Iterator[tuple[int, int, bool]]:
    """Yield where the parts of a library are mapped, and whether a page of the part was changed, or can be."""
    place: tuple[int, int] | None = None
    is_writable = False
    for line in Path("/proc/self/smaps").read_text(errors="replace").splitlines():
        name, *words = line.split()
        if not name.endswith(":"):
            start, end = (int(each, 16) for each in name.split("-"))
            place = (start, end) if Path(words[-1]).name.startswith(library) else None
            is_writable = "w" in words[0]
        elif place is not None and name == "Anonymous:":
            yield *place, is_writable or int(words[0]) > 0
