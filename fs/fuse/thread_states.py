"""Python's thread states for libfuse's threads, kept from one callback to the next.

A thread that Python did not start gets a new thread state at the start of each callback and loses it at the end. That
was half of the cost of a callback: a stat took 2.1 times as long as in libfuse's single loop, and takes 1.3 times as
long with the state kept. It also makes `threading.local` work: before, each callback found it empty.

How it works: the state has a counter (`PyGILState_Ensure` and `_Release`), and is freed by the last release. One more
Ensure in a thread's first callback keeps it. libfuse ends threads when it has more than ten idle ones, and all at
unmount. The destructor of a thread-specific key then frees the state.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Final

# Library handles of our own: result types are set on them, while `ctypes.pythonapi` is shared with other code.
_python: Final = ctypes.PyDLL(None)
_python.PyThreadState_Get.restype = ctypes.c_void_p
_python.PyThreadState_Clear.argtypes = [ctypes.c_void_p]
_python.PyThreadState_Clear.restype = None
_python.PyThreadState_Delete.argtypes = [ctypes.c_void_p]
_python.PyThreadState_Delete.restype = None
_python.PyGILState_Release.argtypes = [ctypes.c_int]
_python.PyGILState_Release.restype = None

_system: Final = ctypes.CDLL(None)
_system.pthread_setspecific.argtypes = [ctypes.c_uint, ctypes.c_void_p]

_LOCKED: Final = 0
"""PyGILState_LOCKED: the GIL was held before the Ensure that is undone."""


def _free(state: int) -> None:
    """Free the state at the end of a thread. The system clears a thread's keys in no promised order. If Python's own
    key is gone, this very callback got a new state; if it is still there, the kept state is in use here."""
    if _python.PyThreadState_Get() == state:
        _python.PyGILState_Release(_LOCKED)
    else:
        _python.PyThreadState_Clear(state)
        _python.PyThreadState_Delete(state)


_destructor: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_free)


class ThreadStates:
    """The kept thread states of one process.

    _key   the thread-specific key whose destructor frees a state
    _here  per thread: `known` is set once the thread's state is kept, or need not be
    """

    __slots__ = ("_here", "_key")

    def __init__(self, key: int) -> None:
        self._key = key
        self._here: Any = threading.local()

    @classmethod
    def create(cls) -> ThreadStates:
        """Make the key. A process has only about a thousand keys, so one is used for all mounts."""
        key = ctypes.c_uint()
        failed = _system.pthread_key_create(ctypes.byref(key), _destructor)
        if failed:
            raise OSError(failed, "no thread-specific key is free")
        return cls(key.value)

    def leave_alone(self) -> None:
        """Note that the calling thread is Python's own: Python frees its state."""
        self._here.known = True

    def keep(self) -> None:
        """Keep the calling thread's state. It is called at the start of each callback."""
        try:
            self._here.known  # noqa: B018 - the quickest question: 30 ns
        except AttributeError:
            _python.PyGILState_Ensure()
            _system.pthread_setspecific(self._key, _python.PyThreadState_Get())
            self._here.known = True
