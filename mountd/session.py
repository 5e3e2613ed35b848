"""The thread in which libfuse runs, and the way to end it.

libfuse has signal handlers of its own, which leave the process no say in how it stops, and it replaces only handlers
that nobody else has set. So signals belong to the main thread, and libfuse runs in another one. When it ends it has
SIGPIPE, which Python ignores, end the process: unless a handler of ours is in its place. What is appended and written
down after that would be lost as soon as a line goes to a terminal that is closed, or a pipe that nobody reads.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

import fuse

# Sent to libfuse's thread alone: it makes its wait return, and libfuse look whether it is to end.
_NUDGE: Final = signal.SIGUSR2
_NUDGE_EVERY_S: Final = 0.05


class Session:
    """One mount, from mounting to unmounting.

    ended     done when the mount is gone; holds the error that it ended with
    _serve    mounts, answers calls, and returns when the mount is gone
    _started  called when the kernel asked for the first time, from libfuse's thread
    _fuse     libfuse's handle, None before the start and from the end on, when it may be freed
    _guard    guards _fuse
    _thread   in which libfuse runs
    """

    def __init__(self, serve: Callable[[Session], None], started: Callable[[], None]) -> None:
        self.ended: Future[None] = Future()
        self._serve = serve
        self._started = started
        self._fuse: ctypes.c_void_p | None = None
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="fuse")

    def start(self) -> None:
        """Mount. Called in the main thread, which keeps its own handlers for SIGINT, SIGTERM and SIGHUP."""
        # A handler that does nothing, and interrupts: an ignored signal would not.
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
        """In `init`: the mount answers from now on."""
        with self._guard:
            self._fuse = ctypes.c_void_p(fuse._libfuse.fuse_get_context().contents.fuse)
        self._started()

    def destroyed(self) -> None:
        """In `destroy`: libfuse frees its handle next."""
        with self._guard:
            self._fuse = None

    # -- called by the main thread ----------------------------------------------------------------------

    def stop(self) -> None:
        """Unmount, also when files are open, and wait until that is done. Calls that are under way are answered
        first; who is waiting in a read gets an error."""
        while self._thread.is_alive():
            with self._guard:
                if self._fuse is not None:
                    fuse._libfuse.fuse_exit(self._fuse)
                    if self._thread.ident is not None:
                        signal.pthread_kill(self._thread.ident, _NUDGE)
            self._thread.join(_NUDGE_EVERY_S)
