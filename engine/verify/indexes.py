"""The indexes of a segment against its batches, chunk by chunk. `topicfs.engine.format.index` draws the files.

Each entry can be compared with the batch that it names. Entries that are missing are no fault: an index may be
coarser than its settings say, and a look-up then reads a little more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from topicfs.engine.batch.table import Longs
from topicfs.engine.files.regular import read_regular
from topicfs.engine.format.index import OFFSET_ENTRY, TIME_ENTRY
from topicfs.engine.format.layout import Layout
from topicfs.engine.format.paths import index_file, time_index_file
from topicfs.engine.kernels.scan import BASE_OFFSET, LAST_OFFSET, MAX_TIMESTAMP, POSITION
from topicfs.engine.min_timestamps.file import MinTimestamps
from topicfs.engine.record import NO_TIMESTAMP
from topicfs.engine.segment.offset_index import LARGEST_FILE
from topicfs.engine.verify.finding import Finding, Kind, Severity

_SLOWER: Final = (
    "no record is lost; look-ups that meet it read more of the log, and it is rebuilt when it is noticed"
)
_MENDED: Final = "no record is lost; it is rebuilt when the segment is next loaded or searched"

Flags = npt.NDArray[np.bool_]


def _read(path: Path, kind: Kind, layout: Layout) -> tuple[npt.NDArray[Any], bool, list[Finding]]:
    """Return the entries of an index without zeros at the end, whether there are such zeros, and what is wrong with the
    file as a whole."""
    with read_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(min(size, LARGEST_FILE))
    findings = []
    if size > LARGEST_FILE:
        findings.append(
            Finding(Severity.REPAIRABLE, kind, path, "", f"at most {LARGEST_FILE} bytes", f"{size}", _MENDED)
        )
    if len(data) % layout.size:
        findings.append(
            Finding(
                Severity.REPAIRABLE, kind, path, "", f"a multiple of {layout.size} bytes", str(size), _MENDED
            )
        )
    table = np.frombuffer(data, layout.dtype(), len(data) // layout.size)
    first, second = (table[name] for name in layout.dtype().names or ())
    used = np.flatnonzero((first != 0) | (second != 0))
    kept = int(used[-1]) + 1 if used.size else 0
    return table[:kept], kept < len(table), findings


class _IndexCheck:
    """The check of one index.

    path    its file
    kind    its kind, for findings
    keys    by rising value: what says to which chunk an entry belongs
    order   the number of the entry of each key
    _next   the first key that no chunk had yet
    _fits   by number: whether the entry names a batch as it should
    """

    def __init__(self, path: Path, kind: Kind, keys: Longs) -> None:
        self.path = path
        self.kind = kind
        self.order = np.argsort(keys, kind="stable")
        self.keys = keys[self.order]
        self._next = 0
        self._fits = np.zeros(len(keys), np.bool_)

    def _take(self, start: int, end: int) -> Longs:
        """Return the numbers of the entries whose keys lie in [start, end). Those below were passed over."""
        first, behind = np.searchsorted(self.keys[self._next :], (start, end)) + self._next
        self._next = int(behind)
        return self.order[first:behind].astype(np.int64)

    def _finding(self, number: int, expected: str, found: str) -> Finding:
        return Finding(Severity.REPAIRABLE, self.kind, self.path, f"entry {number}", expected, found, _SLOWER)

    def _disorder(self, rising: Longs, never_falling: Longs) -> Iterator[Finding]:
        """Yield a finding for each entry that fits the log, and does not lie above the one before it."""
        numbers = np.flatnonzero(self._fits)
        first, second = rising[numbers], never_falling[numbers]
        for at in np.flatnonzero((first[1:] <= first[:-1]) | (second[1:] < second[:-1])).tolist():
            yield self._finding(
                int(numbers[at + 1]), f"an entry above entry {numbers[at]}", "one that is not above it"
            )

    def _beyond(self, end: int, unit: str) -> Iterator[Finding]:
        """Yield a finding for each entry behind the log's end."""
        for number in self.order[np.searchsorted(self.keys, end) :].tolist():
            yield self._finding(number, f"{unit} below {end}", "one behind the end of the log")


class OffsetIndexCheck(_IndexCheck):
    """The check of an offset index: an entry names the last offset of a batch, and the position where it begins."""

    def __init__(self, directory: Path, base: int) -> None:
        path = directory / index_file(base)
        table, self.has_zeros, self.findings = _read(path, Kind.OFFSET_INDEX, OFFSET_ENTRY)
        self.offsets = table["offset"].astype(np.int64) + base
        self.positions = table["position"].astype(np.int64)
        super().__init__(path, Kind.OFFSET_INDEX, self.positions)

    def take(self, table: Longs, good: Flags, end: int) -> Iterator[Finding]:
        """Compare the entries of a chunk of batches, which ends at a position. Those of batches that are not good are
        passed over."""
        numbers = self._take(int(table[0, POSITION]), end)
        rows = np.searchsorted(table[:, POSITION], self.positions[numbers], side="right") - 1
        begins = table[rows, POSITION] == self.positions[numbers]
        fits = begins & (table[rows, LAST_OFFSET] == self.offsets[numbers])
        self._fits[numbers] = fits & good[rows]
        for at in np.flatnonzero(~fits & good[rows]).tolist():
            row = table[rows[at]]
            yield self._finding(
                int(numbers[at]),
                f"position {row[POSITION]} for offset {row[LAST_OFFSET]}",
                f"position {self.positions[numbers[at]]} for offset {self.offsets[numbers[at]]}",
            )

    def finish(self, end: int, growing: bool) -> Iterator[Finding]:
        """Yield what only all batches show. `end` is the position behind the last one."""
        yield from self._disorder(self.offsets, self.positions)
        if not growing:
            yield from self._beyond(end, "a position")
        below = np.flatnonzero(self.positions < 0)
        yield from (
            self._finding(number, "a position of 0 or more", "a negative one") for number in below.tolist()
        )


class TimeIndexCheck(_IndexCheck):
    """The check of a time index: an entry has the largest timestamp so far, and the last offset of its batch.

    largest  the largest timestamp so far, and whether it can be believed: no batch before was damaged
    """

    def __init__(self, directory: Path, base: int) -> None:
        path = directory / time_index_file(base)
        table, self.has_zeros, self.findings = _read(path, Kind.TIME_INDEX, TIME_ENTRY)
        self.times = table["timestamp"].astype(np.int64)
        self.offsets = table["offset"].astype(np.int64) + base
        self.largest = NO_TIMESTAMP
        self.is_known = True
        super().__init__(path, Kind.TIME_INDEX, self.offsets)

    def take(self, table: Longs, good: Flags) -> Iterator[Finding]:
        """Compare the entries of a chunk of batches. What damaged batches would say is not known."""
        before = self.is_known
        self.is_known = self.is_known and bool(good.all())
        table = table[good]
        if not len(table):
            return
        lasts, times = table[:, LAST_OFFSET], table[:, MAX_TIMESTAMP]
        largest = np.maximum.accumulate(np.maximum(times, self.largest))
        self.largest = int(largest[-1])
        numbers = self._take(-(2**63), int(lasts[-1]) + 1)
        rows = np.searchsorted(lasts, self.offsets[numbers])
        ends = lasts[rows] == self.offsets[numbers]
        fits = ends & (times[rows] == self.times[numbers])
        is_largest = largest[rows] == self.times[numbers]
        self._fits[numbers] = fits
        # Where a batch is damaged the entry may be its own, or the largest so far may have been in it.
        wrong = ~(fits & is_largest) if before and self.is_known else ends & ~fits
        for at in np.flatnonzero(wrong).tolist():
            number, row = int(numbers[at]), int(rows[at])
            yield self._finding(
                number,
                f"the largest timestamp up to offset {lasts[row]}, {largest[row]}, in the batch that ends there"
                + ("" if times[row] == largest[row] else f" (its own is {times[row]})"),
                f"timestamp {self.times[number]} for offset {self.offsets[number]}",
            )

    def finish(self, next_offset: int, growing: bool, sealed: bool) -> Iterator[Finding]:
        """Yield what only all batches show. `next_offset` is the offset behind the last one."""
        yield from self._disorder(self.times, self.offsets)
        if not growing and self.is_known:
            yield from self._beyond(next_offset, "an offset")
        last = int(self.times[-1]) if len(self.times) else NO_TIMESTAMP
        if sealed and self.is_known and last < self.largest and self.largest > 0:
            yield Finding(
                Severity.NOTE,
                self.kind,
                self.path,
                "",
                f"a last entry with the largest timestamp of the segment, {self.largest}",
                str(last),
                "a broker takes the segment for older than it is, and may remove it too early",
            )


class MinTimestampsCheck:
    """The check of a file that says how early records are: none may be earlier than it says.

    path  its file
    """

    def __init__(self, path: Path, noted: MinTimestamps) -> None:
        self.path = path
        entries = np.array(noted.entries, np.int64).reshape(-1, 2)
        self._times = entries[:, 0]
        self._offsets = entries[:, 1] + noted.base_offset

    def take(self, table: Longs, earliest: Longs) -> Iterator[Finding]:
        """Compare the batches of a chunk, with the smallest timestamp of each."""
        if not len(self._times):
            return
        places = np.searchsorted(self._offsets, table[:, BASE_OFFSET], side="right") - 1
        early = (places >= 0) & (earliest < self._times[places])
        for row in np.flatnonzero(early).tolist():
            yield Finding(
                Severity.DAMAGE,
                Kind.MIN_TIMESTAMPS,
                self.path,
                f"entry {places[row]}",
                f"no record from offset {self._offsets[places[row]]} on earlier than {self._times[places[row]]}",
                f"one with {earliest[row]} in the batch at offset {table[row, BASE_OFFSET]}",
                "queries by time leave records out; the file can be deleted, and is made again",
            )
