"""What the adapter alone can do: transfers and calls of a file system that does nothing.

Each measure takes the path of a file, so that ours can be measured in the same way beside it:

    with nothing() as mount:
        found = compare(lambda: write_rate(log), lambda: write_rate(mount / "direct"))
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from report import Report, Row, compare, seconds
from workplace import folder

# The harness belongs to the tests of the mount; the limit is taken through the same adapter.
sys.path.append(str(Path(__file__).parent.parent / "mount"))

from harness import Mount, mounted
from nothing import SIZE, Nothing

REQUEST = 128 << 10
_LONG_S = 600.0


@contextmanager
def nothing(make: Callable[[], Nothing] = Nothing) -> Iterator[Mount]:
    """A mount that does nothing: `direct` and `cached` are files of 1 GiB."""
    with folder() as place, mounted(make, place, _LONG_S) as mount:
        yield mount


def read_rate(path: Path, total: int = SIZE) -> float:
    """GB/s of reading so many bytes from the start on, in requests of 128 KiB."""
    buffer = bytearray(REQUEST)
    count = total // REQUEST

    def work() -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            for _ in range(count):
                os.readv(descriptor, [buffer])
        finally:
            os.close(descriptor)

    return count * REQUEST / seconds(work) / 1e9


def write_rate(path: Path, data: bytes = bytes(REQUEST), total: int = SIZE // 2) -> float:
    """GB/s of appending the same bytes again and again, until so many are written and the file is closed. The buffer
    begins at a page, as those of cat, dd and cp do: else the kernel makes two requests of each write."""
    count = total // len(data)
    pages = mmap.mmap(-1, len(data))
    pages[:] = data

    def work() -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            for _ in range(count):
                os.write(descriptor, pages)
        finally:
            os.close(descriptor)

    return count * len(data) / seconds(work) / 1e9


def open_closes(path: Path, count: int = 3000) -> float:
    """How often a second the file can be opened and closed."""

    def once() -> None:
        os.close(os.open(path, os.O_RDONLY))

    return _times(count, once)


def open_read_closes(path: Path, count: int = 3000) -> float:
    """How often a second the start of the file can be read: what `cat offset/N` does."""

    def once() -> None:
        descriptor = os.open(path, os.O_RDONLY)
        os.read(descriptor, REQUEST)
        os.close(descriptor)

    return _times(count, once)


def open_write_closes(path: Path, line: bytes = b"x" * 99 + b"\n", count: int = 3000) -> float:
    """How often a second a line can be appended by a program that does nothing else: what `echo >>` does."""

    def once() -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, line)
        os.close(descriptor)

    return _times(count, once)


def stats(path: Path, count: int = 3000) -> float:
    """How often a second the file can be asked for its size."""
    return _times(count, lambda: os.stat(path))


def _times(count: int, once: Callable[[], object]) -> float:
    return count / seconds(lambda: [once() for _ in range(count)])


def run(report: Report) -> None:
    """The limits, beside a file of the native file system."""
    with nothing() as mount, folder() as place:
        plain = place / "plain"
        plain.write_bytes(bytes(SIZE))
        direct, cached = mount / "direct", mount / "cached"
        rows = []
        for work, path, measure, unit in (
            ("read past the page cache", direct, read_rate, "GB/s"),
            ("read into the page cache", cached, read_rate, "GB/s"),
            ("write past the page cache", direct, write_rate, "GB/s"),
            ("write through the page cache", cached, write_rate, "GB/s"),
            ("open, close", direct, open_closes, "/s"),
            ("open, read, close", direct, open_read_closes, "/s"),
            ("open, write a line, close", direct, open_write_closes, "/s"),
            ("stat", direct, stats, "/s"),
        ):
            found = compare(lambda: measure(path), lambda: measure(plain), rounds=3)  # noqa: B023
            shown = ".2f" if unit == "GB/s" else ",.0f"
            native = f"plain file {found.theirs:{shown}} {unit}"
            rows.append(Row(work, f"{found.ours:{shown}} {unit}", native, *found.goal()))
    report.show("A file system that does nothing", rows)
