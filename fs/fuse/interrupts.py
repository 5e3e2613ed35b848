"""Whether anybody still waits for the answer to the call that is being worked on.

The kernel tells libfuse when a signal has come for a program whose call is not answered yet (FUSE_INTERRUPT); with the
option `intr` libfuse passes that on to who asks. So a read that waits for records goes on waiting until there
is a reason to end. To say EINTR every now and then, and trust that programs ask again, does not do: cat, tail and
grep ask again, but sed, awk and xargs give up with an error, and jq and perl take it for the end of the file.
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
    # libfuse sends it to the thread that is at work, to wake it from system calls; ours look by themselves. Nobody
    # else has a use for this one, and it does nothing where it is not caught.
    "intr_signal": str(signal.SIGURG.value),
}


def given_up() -> bool:
    """Inside a callback: whether the caller has a signal to attend to, or the mount is going away. Outside of one
    nobody can know, and True is the safe answer."""
    context = _libfuse.fuse_get_context().contents
    if context.fuse is None:
        return True
    return bool(_libfuse.fuse_interrupted()) or bool(_libfuse.fuse_exited(context.fuse))
