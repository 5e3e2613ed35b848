"""The thread in which libfuse runs, and the way to end it.

libfuse has signal handlers of its own, which would decide how the process stops. It sets them only where there is no
other handler. So the main thread handles the signals, and libfuse runs in another thread. When libfuse ends, it makes
SIGPIPE, which Python ignores, end the process, unless our handler is in its place. Otherwise what is still to be
appended and written down would be lost as soon as a line goes to a closed terminal, or to a pipe that nobody reads.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

import fuse

# This is sent to libfuse's thread alone. It ends the thread's wait, so that libfuse checks whether to end.
_NUDGE: Final = signal.SIGUSR2
_NUDGE_EVERY_S: Final = 0.05


class Session:
    """One mount, from mounting to unmounting.

    ended     done when the mount is gone; it holds the error that ended the mount
    _serve    mounts, answers calls, and returns when the mount is gone
    _started  called at the kernel's first request, from libfuse's thread
    _fuse     libfuse's handle; None before the start, and again from the end on, when it may be freed
    _guard    guards _fuse
    _thread   the thread in which libfuse runs
    """

    def __init__(self, serve: Callable[[Session], None], started: Callable[[], None]) -> None:
        self.ended: Future[None] = Future()
        self._serve = serve
        self._started = started
        self._fuse: ctypes.c_void_p | None = None
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="fuse")

    def start(self) -> None:
        """Mount. It is called in the main thread, which keeps its own handlers for SIGINT, SIGTERM and SIGHUP."""
        # This handler does nothing, but interrupts the thread. An ignored signal would not interrupt.
        signal.signal(_NUDGE, lambda *_: None)
        signal.signal(signal.SIGPIPE, lambda *_: None)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._serve(self)
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)

    # -- called by the file system, inside libfuse's callbacks ------------------------------------------

    def initialised(self) -> None:
        """Note, in `init`, that the mount answers from now on."""
        with self._guard:
            self._fuse = ctypes.c_void_p(fuse._libfuse.fuse_get_context().contents.fuse)
        self._started()

    def destroyed(self) -> None:
        """Note, in `destroy`, that libfuse frees its handle next."""
        with self._guard:
            self._fuse = None

    # -- called by the main thread ----------------------------------------------------------------------

    def stop(self) -> None:
        """Unmount, even if files are open, and wait until that is done. Calls in progress are answered first; a waiting
        read gets an error."""
        while self._thread.is_alive():
            with self._guard:
                if self._fuse is not None:
                    fuse._libfuse.fuse_exit(self._fuse)
                    if self._thread.ident is not None:
                        signal.pthread_kill(self._thread.ident, _NUDGE)
            self._thread.join(_NUDGE_EVERY_S)
