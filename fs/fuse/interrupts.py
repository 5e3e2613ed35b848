"""Interrupts: they tell whether the caller still waits for the answer to the present call.

If a signal comes for a program whose call is not answered yet, the kernel tells libfuse (FUSE_INTERRUPT). With the
option `intr`, libfuse answers whether that has happened. So a read that waits for records waits until there is a reason
to end. It would not do to return EINTR now and then, and to trust that programs read again: cat, tail and grep do, but
sed, awk and xargs give up with an error, and jq and perl take it for the end of the file.
"""

from __future__ import annotations

import ctypes
import signal
from typing import Final

import fuse

_libfuse: Final = fuse._libfuse
_libfuse.fuse_exited.argtypes = [ctypes.c_void_p]
_libfuse.fuse_interrupted.argtypes = []

OPTIONS: Final[dict[str, str | bool]] = {
    "intr": True,
    # libfuse sends this signal to the thread at work, to wake it from system calls; our threads check by themselves.
    # Nothing else uses this signal, and it has no effect if it is not caught.
    "intr_signal": str(signal.SIGURG.value),
}


def given_up() -> bool:
    """Tell, in a callback, whether the caller has a signal to handle, or the mount is going away. Outside of a callback
    that is not known, and True is the safe answer."""
    context = _libfuse.fuse_get_context().contents
    if context.fuse is None:
        return True
    return bool(_libfuse.fuse_interrupted()) or bool(_libfuse.fuse_exited(context.fuse))
