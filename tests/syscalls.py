"""Every system call that changes the file system, counted, and stopped at the n-th.

A process that dies does nothing any more: after a Crash, every later call raises it too. An OSError comes once,
or from then on, and the process lives.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar
from unittest import mock

COUNTED = ("pwrite", "write", "rename", "replace", "ftruncate", "truncate", "unlink", "mkdir", "fsync")

THOROUGH: Final = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"


def sample(total: int, stride: int, shift: int = 0) -> list[int]:
    """Return the numbers of the calls to stop at: all in a thorough run. Otherwise the first, the last, and each one
    that is so many behind another, from a random one on; the seed that pytest-randomly prints chooses the same again.
    Tests that look at the same calls in several ways shift it."""
    if THOROUGH:
        return list(range(total))
    first = (random.randrange(stride) + shift) % stride
    return sorted({0, *range(first, total, stride), total - 1})


class Crash(BaseException):
    """The process dies here: nothing may catch it and go on."""


def _is_in_memory(file: object) -> bool:
    """Return whether a descriptor is of a file that is on no disk."""
    return isinstance(file, int) and os.readlink(f"/proc/self/fd/{file}").startswith("/memfd:")


class Calls:
    """Counts calls, and fails at the one numbered `stop` (from 0; -1 never).

    torn      half of a write is done before a crash
    error     errno of the OSError to raise instead of a Crash; None for a Crash
    lasting   the error comes again at every later call
    """

    def __init__(
        self, stop: int = -1, torn: bool = False, error: int | None = None, lasting: bool = False
    ) -> None:
        self.stop = stop
        self.torn = torn
        self.error = error
        self.lasting = lasting
        self.count = 0
        self.fsync_fails = error is None or error == errno.EIO

    @property
    def failed(self) -> bool:
        return 0 <= self.stop < self.count

    def hit(self) -> bool:
        """Count one call; whether it is to fail."""
        number = self.count
        self.count += 1
        lasting = self.error is None or self.lasting
        return number == self.stop or (lasting and 0 <= self.stop < number)

    def fail(self, path: object) -> None:
        if self.error is None:
            raise Crash
        raise OSError(self.error, os.strerror(self.error), str(path))

    @contextlib.contextmanager
    def patched(self) -> Iterator[Calls]:
        """Count from here on."""
        with contextlib.ExitStack() as stack:
            for name in COUNTED:
                original = getattr(os, name)
                stack.enter_context(mock.patch.object(os, name, self._wrapped(name, original)))
            stack.enter_context(mock.patch.object(os, "open", self._open(os.open)))
            stack.enter_context(mock.patch.object(io, "open", self._io_open(io.open)))
            yield self

    def _wrapped(self, name: str, original: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if name == "fsync" and not self.fsync_fails:
                return None
            if name in ("pwrite", "write", "truncate") and _is_in_memory(arguments[0]):
                return original(*arguments, **named)
            # A full disk still lets files be removed and cut.
            if self.error == errno.ENOSPC and name in (
                "unlink",
                "ftruncate",
                "truncate",
                "rename",
                "replace",
            ):
                return original(*arguments, **named)
            if self.hit():
                first = self.count - 1 == self.stop
                if self.torn and first and name in ("pwrite", "write"):
                    data = bytes(arguments[1])
                    original(arguments[0], data[: len(data) // 2], *arguments[2:])
                self.fail(arguments[0])
            # Nothing is lost here with power: what fsync does cannot be seen, and takes time.
            return None if name == "fsync" else original(*arguments, **named)

        return call

    def _open(self, original: Any) -> Any:
        def call(path: Any, flags: int, *arguments: Any, **named: Any) -> int:
            if flags & os.O_CREAT and not os.path.exists(path) and self.hit():
                self.fail(path)
            number: int = original(path, flags, *arguments, **named)
            return number

        return call

    def _io_open(self, original: Any) -> Any:
        """Small files are written whole: opening and writing are one call each, made by the io module."""

        def call(path: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
            if "w" not in mode or not isinstance(path, str | os.PathLike):
                return original(path, mode, *arguments, **named)
            if self.hit():
                self.fail(path)
            file = original(path, mode, *arguments, **named)
            real = file.write
            calls = self

            class Writer:
                def __enter__(self) -> Writer:
                    return self

                def __exit__(self, *_: object) -> None:
                    file.close()

                def __getattr__(self, name: str) -> Any:
                    return getattr(file, name)

                def write(self, data: bytes) -> int:
                    if calls.hit():
                        if calls.torn:
                            real(data[: len(data) // 2])
                        calls.fail(path)
                    written: int = real(data)
                    return written

            return Writer()

        return call


Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Attempts(Generic[Outcome]):
    """One piece of work, tried with each of its calls failing.

    root     a directory as it is before; each attempt has a copy of it
    place    where the copies are
    attempt  does the work in a copy, and ends as a crash ends it
    check    looks at what an attempt has left, and at what it told
    """

    root: Path
    place: Path
    attempt: Callable[[Path, Calls], Outcome]
    check: Callable[[Path, Outcome], object]

    def count(self) -> int:
        """Count the calls of an attempt that succeeds."""
        calls = Calls()
        self.attempt(shutil.copytree(self.root, self.place / "counted"), calls)
        assert calls.count > 10
        return calls.count

    def each(self, failing: Iterable[Calls]) -> None:
        """Try with each of these failures."""
        for calls in failing:
            copy = shutil.copytree(self.root, self.place / f"at-{calls.stop}")
            self.check(copy, self.attempt(copy, calls))
            shutil.rmtree(copy)

    def twice(self, stop: int, seconds: Iterable[int], again: Callable[[Path], object]) -> None:
        """Crash at a call, and then at each of these calls of what makes it good."""
        broken = shutil.copytree(self.root, self.place / f"at-{stop}")
        told = self.attempt(broken, Calls(stop))
        for second in seconds:
            copy = shutil.copytree(broken, self.place / f"at-{stop}-{second}")
            with Calls(second).patched(), contextlib.suppress(Crash):
                again(copy)
            self.check(copy, told)
            shutil.rmtree(copy)
        shutil.rmtree(broken)
