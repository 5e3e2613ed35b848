"""The entries of `.index`, `.timeindex` and `.txnindex`, and of producer snapshots.

Indexes are compared with the log beside them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from topicfs.engine.batch.table import Longs
from topicfs.engine.dump.report import Report
from topicfs.engine.dump.wanted import Wanted
from topicfs.engine.errors import CorruptSnapshotError
from topicfs.engine.files.regular import open_regular
from topicfs.engine.format import producer_snapshot, transaction_index
from topicfs.engine.format.batch_header import HEADER_SIZE
from topicfs.engine.format.index import OFFSET_ENTRY, TIME_ENTRY
from topicfs.engine.format.layout import Layout
from topicfs.engine.format.paths import index_file, log_file, offset_of_file
from topicfs.engine.kernels import dump_entries as kernels
from topicfs.engine.kernels.crc import crc32c
from topicfs.engine.producer.snapshot import MAX_BYTES
from topicfs.engine.record import MAX_INT32

_AT_ONCE: Final = 1 << 16
"""Entries that are shown in one call of a kernel."""

_OFFSET_INDEX_BYTES: Final = 256 << 20
"""The largest offset index that a time index is looked up in; that of a log of 2 GiB has some 4 MB."""

_NO_TIMESTAMP: Final = -1


class Columns:
    """The columns of a file's entries.

    names     their names, as Kafka's tool prints them
    optional  which of them may be missing
    """

    def __init__(self, names: str, optional: frozenset[str] = frozenset()) -> None:
        parts = names.split()
        self._names = np.frombuffer("".join(parts).encode(), np.uint8)
        self._ends = np.cumsum([len(name) for name in parts], dtype=np.int64)
        self._optional = np.array([name in optional for name in parts], np.int64)

    def show(self, table: Longs, wanted: Wanted, report: Report, widths: Longs | None = None) -> None:
        """Show entries: all columns of each row, or so many as `widths` has for it."""
        if wanted.only_check:
            return
        if widths is None:
            widths = np.full(len(table), self._ends.size, np.int64)
        row = 0
        while row < len(table):
            row, report.position = kernels.entries(
                table,
                widths,
                self._names,
                self._ends,
                self._optional,
                wanted.as_json,
                row,
                report.out,
                report.position,
            )
            if row < len(table):
                report.flush()


_OFFSETS: Final = Columns("offset position")
_TIMES: Final = Columns("timestamp offset")
_ABORTED: Final = Columns("version producerId firstOffset lastOffset lastStableOffset")
_PRODUCERS: Final = Columns(
    "producerId producerEpoch coordinatorEpoch currentTxnFirstOffset lastTimestamp "
    "firstSequence lastSequence lastOffset offsetDelta timestamp",
    frozenset({"currentTxnFirstOffset"}),
)
_WITHOUT_BATCH: Final = 5
"""The columns of a producer without a batch."""


def show_offset_index(descriptor: int, path: Path, wanted: Wanted, report: Report) -> None:
    """Show the entries of an offset index, and compare them with its log."""
    base = offset_of_file(path.name)
    _check_length(descriptor, path, OFFSET_ENTRY, report)
    if os.fstat(descriptor).st_size < OFFSET_ENTRY.size:
        report.line(f"{path} is empty.", "empty", file=str(path))
        return
    log = _opened_beside(path, log_file(base), report)
    header = np.empty(HEADER_SIZE, np.uint8)
    before = base - 1
    try:
        for number, table in _index(descriptor, path, base, OFFSET_ENTRY, 0, report):
            _check_rising(path, number, table[:, 0], before, "offset", report)
            before = int(table[-1, 0])
            row = _entries_of_zeros(number, table, base)
            while log is not None:
                row, found = kernels.check_positions(table, row, log, header)
                if row == len(table):
                    break
                report.problem(path, f"entry {number + row}", _mismatch(table[row, 0], table[row, 1], found))
                row += 1
            _OFFSETS.show(table[_is_wanted(table[:, 0], wanted)], wanted, report)
    finally:
        if log is not None:
            os.close(log)


def show_time_index(descriptor: int, path: Path, wanted: Wanted, report: Report) -> None:
    """Show the entries of a time index, and compare them with its log."""
    base = offset_of_file(path.name)
    _check_length(descriptor, path, TIME_ENTRY, report)
    log = _opened_beside(path, log_file(base), report)
    lookup = _offset_index_beside(path, base)
    header = np.empty(HEADER_SIZE, np.uint8)
    before, before_offset, position = _NO_TIMESTAMP, base, 0
    try:
        for number, table in _index(descriptor, path, base, TIME_ENTRY, 1, report):
            _check_rising(path, number, table[:, 0], before, "timestamp", report)
            _check_rising(path, number, table[:, 1], before_offset - 1, "offset", report, may_repeat=True)
            before, before_offset = (int(last) for last in table[-1])
            places = np.searchsorted(lookup[:, 0], table[:, 1], "right")
            positions = np.concatenate(([0], lookup[:, 1]))[places]
            row = _entries_of_zeros(number, table, base)
            while log is not None:
                row, position, last, timestamp = kernels.check_times(
                    table, positions, row, position, log, header
                )
                if row == len(table):
                    break
                what = _time_mismatch(int(table[row, 0]), int(table[row, 1]), last, timestamp, position)
                report.problem(path, f"entry {number + row}", what)
                row += 1
            chosen = _is_wanted(table[:, 1], wanted)
            chosen &= (table[:, 0] >= wanted.first_time) & (table[:, 0] < wanted.end_time)
            _TIMES.show(table[chosen], wanted, report)
    finally:
        if log is not None:
            os.close(log)


def show_transaction_index(descriptor: int, path: Path, wanted: Wanted, report: Report) -> None:
    """Show the aborted transactions of a segment, up to the first one of another version."""
    _check_length(descriptor, path, transaction_index.ENTRY, report)
    before = -1
    for number, rows in _read(descriptor, transaction_index.ENTRY, 0):
        table = _table(rows)
        wrong = np.flatnonzero(table[:, 0] != transaction_index.VERSION)
        if wrong.size:
            table = table[: wrong[0]]
        if len(table):
            _check_rising(path, number, table[:, 3], before, "last offset", report)
            before = int(table[-1, 3])
        _ABORTED.show(
            table[(table[:, 3] >= wanted.first_offset) & (table[:, 2] < wanted.end_offset)], wanted, report
        )
        if wrong.size:
            found = int(rows["version"][wrong[0]])
            what = f"expected version {transaction_index.VERSION}, found {found}: the rest is not shown"
            report.problem(path, f"entry {number + wrong[0]}", what)
            return


def show_producers(descriptor: int, path: Path, wanted: Wanted, report: Report) -> None:
    """Show the producers of a snapshot. With a wrong checksum they are shown too."""
    size = os.fstat(descriptor).st_size
    if size > MAX_BYTES:
        report.problem(path, "", f"expected at most {MAX_BYTES} bytes, found {size}")
        return
    data = np.empty(size, np.uint8)
    data = data[: os.preadv(descriptor, [memoryview(data)], 0)]
    try:
        checksum, count = producer_snapshot.header_in(
            path, data[: producer_snapshot.HEADER.size].tobytes(), data.size
        )
    except CorruptSnapshotError as error:
        report.problem(path, "", str(error).removeprefix(f"{path}: "))
        return
    found = crc32c(data, producer_snapshot.CHECKED_FROM, data.size)
    if found != checksum:
        report.problem(path, "", f"expected checksum {checksum:#010x}, found {found:#010x}")
    rows = np.frombuffer(data, producer_snapshot.ENTRY.dtype(), count, producer_snapshot.HEADER.size)
    for start in range(0, count, _AT_ONCE):
        part = rows[start : start + _AT_ONCE]
        last, delta = part["last_sequence"].astype(np.int64), part["offset_delta"].astype(np.int64)
        table = np.stack(
            [
                part["producer_id"],
                part["epoch"],
                part["coordinator_epoch"],
                part["transaction_first_offset"],
                part["timestamp"],
                # Before sequence number 0 comes 2^31-1.
                np.where(last < delta, MAX_INT32 - (delta - last) + 1, last - delta),
                last,
                part["last_offset"],
                delta,
                part["timestamp"],
            ],
            axis=1,
        ).astype(np.int64)
        widths = np.where(table[:, 7] >= 0, table.shape[1], _WITHOUT_BATCH).astype(np.int64)
        _PRODUCERS.show(np.ascontiguousarray(table), wanted, report, widths)


def _index(
    descriptor: int, path: Path, base: int, layout: Layout, offset: int, report: Report
) -> Iterator[tuple[int, Longs]]:
    """Yield the entries of an index, each group with the number of its first one. Only the first entry of all may have
    the segment's base offset: behind entries, zeros are room that a broker has reserved."""
    for number, rows in _read(descriptor, layout, 0):
        table = _table(rows)
        ends = np.flatnonzero(table[:, offset] == 0)
        ends = ends[ends > 0] if number == 0 else ends
        is_end = ends.size > 0
        if is_end:
            table = table[: ends[0]]
            if _has_more(descriptor, layout, number + int(ends[0])):
                what = "expected zeros behind the last entry, found something else: it is not shown"
                report.problem(path, f"entry {number + ends[0]}", what)
        table[:, offset] += base
        if len(table):
            yield number, table
        if is_end:
            return


def _entries_of_zeros(number: int, table: Longs, base: int) -> int:
    """Return how many entries are shown, as Kafka's tool shows them, but are only room that a broker has reserved."""
    return int(number == 0 and sorted(table[0].tolist()) == [0, base])


def _has_more(descriptor: int, layout: Layout, number: int) -> bool:
    """Whether there is something other than zeros from an entry on."""
    return any(rows.view(np.uint8).any() for _, rows in _read(descriptor, layout, number))


def _read(descriptor: int, layout: Layout, number: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yield the whole entries of a file from a number on, each group with the number of its first one."""
    while True:
        data = os.pread(descriptor, _AT_ONCE * layout.size, number * layout.size)
        rows = np.frombuffer(data, layout.dtype(), len(data) // layout.size)
        if not rows.size:
            return
        yield number, rows
        number += rows.size


def _table(rows: npt.NDArray[Any]) -> Longs:
    """Return entries as rows of numbers."""
    names = rows.dtype.names or ()
    return np.ascontiguousarray(np.stack([rows[name].astype(np.int64) for name in names], axis=1))


def _offset_index_beside(path: Path, base: int) -> Longs:
    """Return the offset index of the same segment, columns offset and position; nothing where it cannot be read."""
    nothing = np.empty((0, 2), np.int64)
    try:
        descriptor = open_regular(path.with_name(index_file(base)), os.O_RDONLY, follow=True)
    except OSError:
        return nothing
    try:
        data = os.pread(descriptor, min(os.fstat(descriptor).st_size, _OFFSET_INDEX_BYTES), 0)
    finally:
        os.close(descriptor)
    table = _table(np.frombuffer(data, OFFSET_ENTRY.dtype(), len(data) // OFFSET_ENTRY.size))
    # Behind the zeros there is nothing, and a search wants offsets that rise.
    ends = np.flatnonzero(np.diff(table[:, 0]) <= 0)
    table = table[: ends[0] + 1] if ends.size else table
    table[:, 0] += base
    return table if (table >= 0).all() else nothing


def _opened_beside(path: Path, name: str, report: Report) -> int | None:
    """Open a file of the same segment. Where that fails it is told."""
    try:
        return open_regular(path.with_name(name), os.O_RDONLY, follow=True)
    except OSError as error:
        report.problem(path, "", f"cannot be compared with {name}: {error.strerror}")
        return None


def _check_length(descriptor: int, path: Path, layout: Layout, report: Report) -> None:
    size = os.fstat(descriptor).st_size
    if size % layout.size:
        report.problem(path, f"position {size - size % layout.size}", "the bytes end inside an entry")


def _check_rising(
    path: Path, number: int, column: Longs, before: int, name: str, report: Report, may_repeat: bool = False
) -> None:
    """Tell the first of a column's numbers that does not rise. `before` is the one before the first."""
    floors = np.concatenate(([before], column[:-1]))
    wrong = np.flatnonzero(column < floors if may_repeat else column <= floors)
    if wrong.size:
        at = wrong[0]
        least = "at least" if may_repeat else "more than"
        what = f"{name}: expected {least} {floors[at]}, found {column[at]}"
        report.problem(path, f"entry {number + at}", what)


def _is_wanted(offsets: Longs, wanted: Wanted) -> npt.NDArray[np.bool_]:
    return (offsets >= wanted.first_offset) & (offsets < wanted.end_offset)


def _mismatch(offset: int, position: int, found: int) -> str:
    if found == kernels.NOT_FOUND:
        return f"expected a batch at position {position} of the log, found none"
    return f"expected last offset {found}, as the batch at position {position} of the log has, found {offset}"


def _time_mismatch(timestamp: int, offset: int, found: int, largest: int, position: int) -> str:
    if found == kernels.NOT_FOUND:
        return f"expected offset {offset} in the log, found none: no batch begins at position {position}"
    if found != offset:
        return (
            f"expected the last offset of a batch, found {offset}: the log has {found} at position {position}"
        )
    return (
        f"expected timestamp {largest}, as the batch at position {position} of the log has, found {timestamp}"
    )
