"""The batches of a segment, chunk by chunk: each one by itself, and the order of their offsets.

What the checks of a whole partition need is gathered on the way: changes of the leader epoch, and the batches that
change the state of producers, without those whose effect a later one of the same chunk replaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import records_of
from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.format.batch_header import CONTROL, TRANSACTIONAL
from topicfs.engine.kernels.decode import GOOD
from topicfs.engine.kernels.scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    COUNT,
    LAST_OFFSET,
    LEADER_EPOCH,
    POSITION,
    PRODUCER_ID,
    SIZE,
)
from topicfs.engine.kernels.verify import (
    BAD_CHECKSUM,
    COMPRESSED,
    EARLIEST,
    NO_RECORD,
    PLACE,
    PROBLEMS,
    RECORD,
    VERDICT,
    VERDICT_COLUMNS,
    verify_batches,
    verify_records,
)
from topicfs.engine.producer.entry import BatchInfo
from topicfs.engine.record import MAX_INT32, NO_LEADER_EPOCH
from topicfs.engine.verify.finding import Finding, Kind, Severity
from topicfs.engine.verify.indexes import Flags

_MOST_CHANGES: Final = 500_000
"""The most changes of producers, or of the leader epoch, that are kept of a segment: some 200 MB."""

_LOST: Final = "the records of this batch cannot be read"
_MISPLACED: Final = "its records are shown at wrong offsets, or are not found"
_CONTENT: Final = {True: _LOST, False: "its records are read, but look-ups by time or producer may go wrong"}
_BAD_STREAM: Final = -1
_OF_RECORDS: Final = frozenset(range(1, COMPRESSED))
"""The verdicts on records, which say which record of the batch is wrong."""


@dataclass(slots=True)
class Gathered:
    """What a partition's check needs of one or more chunks.

    next_offset  the offset behind the last batch
    batches      number of batches that lie whole in the file
    records      number of records in good batches, without control records
    is_gapless   whether every offset up to now has its record: nothing was compacted, and nothing is damaged
    is_end_known whether the last batch is a good one: then nothing lies behind `next_offset`
    epochs       leader epoch, base offset and position of each batch whose epoch differs from the one before
    producers    batches that change the state of producers, with the number of their records; None if there are too
                 many
    """

    next_offset: int
    batches: int = 0
    records: int = 0
    is_gapless: bool = True
    is_end_known: bool = True
    epochs: list[tuple[int, int, int]] = field(default_factory=list)
    producers: list[tuple[BatchInfo, int]] | None = field(default_factory=list)


class BatchesCheck:
    """The check of the batches of one segment.

    path      the `.log` file
    base      base offset of the segment
    end       base offset of the next one; the largest offset where there is none
    cuts      offsets at which the state of producers has to be known, rising
    gathered  what was gathered so far
    earliest  the smallest timestamps of the batches of the last chunk
    _last     last offsets of the two batches before, which have the order of offsets
    """

    def __init__(self, path: Path, base: int, end: int, cuts: Iterable[int]) -> None:
        self.path = path
        self.base = base
        self.end = end
        self.cuts = np.array(sorted(cuts), np.int64)
        self.gathered = Gathered(base)
        self.earliest = np.empty(0, np.int64)
        self._last = (base - 1, base - 1)
        self._epoch = NO_LEADER_EPOCH

    def take(self, buffer: Bytes, table: Longs) -> tuple[Flags, list[Finding]]:
        """Check a chunk of batches. Return which of them are good, and what is wrong with the others."""
        origin = int(table[0, POSITION])
        verdicts = np.empty((len(table), VERDICT_COLUMNS), np.int64)
        if verify_batches(buffer, origin, table, verdicts) < 0:
            raise ValueError(f"{self.path}: a batch table that does not fit its bytes")
        findings = self._decompressed(buffer, origin, table, verdicts)
        good = verdicts[:, VERDICT] == GOOD
        for row in np.flatnonzero(~good & (verdicts[:, VERDICT] != _BAD_STREAM)).tolist():
            findings.append(self._verdict(table[row], verdicts[row]))
        findings += self._out_of_order(table, good)
        self.gathered.batches += len(table)
        self.gathered.is_end_known = bool(good[-1])
        if not good.all():
            self.gathered.is_gapless = False
        self.earliest = np.where(good, verdicts[:, EARLIEST], NO_RECORD)
        if good.any():
            self._gather(buffer, origin, table if good.all() else table[good])
        return good, findings

    def _decompressed(self, buffer: Bytes, origin: int, table: Longs, verdicts: Longs) -> list[Finding]:
        """Check the records of compressed batches, and complete their verdicts."""
        findings = []
        for row in np.flatnonzero(verdicts[:, VERDICT] == COMPRESSED).tolist():
            try:
                data = records_of(buffer, table[row], origin)
            except CorruptBatchError as error:
                verdicts[row, VERDICT] = _BAD_STREAM
                findings.append(
                    self._finding(table[row], "a stream that can be decompressed", str(error), _LOST)
                )
            else:
                verdicts[row] = verify_records(data, table[row])
        return findings

    def _verdict(self, row: Longs, verdict: Longs) -> Finding:
        kind, place = int(verdict[VERDICT]), ""
        if kind in _OF_RECORDS:
            place = f" (record {verdict[RECORD]} of {row[COUNT]}, byte {verdict[PLACE]})"
        expected = "bytes that fit their checksum" if kind == BAD_CHECKSUM else "a well-formed batch"
        return self._finding(
            row, expected, PROBLEMS[kind] + place, _CONTENT[kind == BAD_CHECKSUM or bool(place)]
        )

    def _finding(self, row: Longs, expected: str, found: str, effect: str) -> Finding:
        at = f"batch at position {row[POSITION]} (offset {row[BASE_OFFSET]}, {row[SIZE]} bytes)"
        return Finding(Severity.DAMAGE, Kind.BATCH, self.path, at, expected, found, effect)

    def _out_of_order(self, table: Longs, good: Flags) -> Iterator[Finding]:
        """Yield a finding for each good batch whose offsets do not fit, and take it out of the good ones.

        The checksum does not cover a base offset. So of two neighbours that do not rise, the one is named without
        which the others do."""
        bases, lasts = table[:, BASE_OFFSET], table[:, LAST_OFFSET]
        highest = min(self.end - 1, self.base + MAX_INT32)
        for row in np.flatnonzero(good & ((bases < self.base) | (lasts > highest))).tolist():
            good[row] = False
            yield self._finding(
                table[row],
                f"offsets from {self.base} to {highest}",
                f"{bases[row]} to {lasts[row]}",
                _MISPLACED,
            )
        numbers = np.flatnonzero(good)
        if not numbers.size:
            return
        lows, highs = bases[numbers], np.concatenate((self._last, lasts[numbers]))
        for at in np.flatnonzero(lows <= highs[1:-1]).tolist():
            fits_without_previous = lows[at] > highs[at]
            fits_without_this = at + 1 < len(lows) and lows[at + 1] > highs[at + 1]
            previous_is_behind_a_gap = at and lows[at - 1] > highs[at] + 1
            is_previous = fits_without_previous and (not fits_without_this or previous_is_behind_a_gap)
            wrong = at - 1 if at and is_previous else at
            row = int(numbers[wrong])
            good[row] = False
            yield self._finding(
                table[row],
                f"offsets above {highs[wrong + 1]}, and below those of the next batch",
                f"{bases[row]} to {lasts[row]}",
                _MISPLACED,
            )
        kept = lasts[good]
        if kept.size:
            self._last = (int(kept[-2]) if kept.size > 1 else self._last[1], int(kept[-1]))

    # -- for the partition ----------------------------------------------------------------------------

    def _gather(self, buffer: Bytes, origin: int, table: Longs) -> None:
        known = self.gathered
        bases, lasts, counts = table[:, BASE_OFFSET], table[:, LAST_OFFSET], table[:, COUNT]
        before = np.concatenate(((known.next_offset,), lasts[:-1] + 1))
        if (bases != before).any() or (counts != lasts - bases + 1).any():
            known.is_gapless = False
        known.next_offset = max(known.next_offset, int(lasts[-1]) + 1)
        known.records += int(counts[table[:, ATTRIBUTES] & CONTROL == 0].sum())
        self._gather_epochs(table)
        produced = table[table[:, PRODUCER_ID] >= 0]
        if len(produced) and known.producers is not None:
            for part in np.split(produced, np.searchsorted(produced[:, BASE_OFFSET], self.cuts)):
                if len(part):
                    self._gather_producers(buffer, origin, part)

    def _gather_epochs(self, table: Longs) -> None:
        epochs = table[:, LEADER_EPOCH]
        changed = epochs != np.concatenate(((self._epoch,), epochs[:-1]))
        self._epoch = int(epochs[-1])
        changes = table[changed & (epochs != NO_LEADER_EPOCH)][:, (LEADER_EPOCH, BASE_OFFSET, POSITION)]
        room = _MOST_CHANGES - len(self.gathered.epochs)
        self.gathered.epochs += [(epoch, base, position) for epoch, base, position in changes[:room].tolist()]

    def _gather_producers(self, buffer: Bytes, origin: int, table: Longs) -> None:
        known = self.gathered
        assert known.producers is not None, "given up only below"
        for row in table[_deciding(table)]:
            marker = batches.marker(buffer, row, origin) if int(row[ATTRIBUTES]) & CONTROL else None
            known.producers.append((BatchInfo.of_row(row.tolist(), marker), int(row[COUNT])))
        if len(known.producers) > _MOST_CHANGES:
            known.producers = None


def _deciding(table: Longs) -> Flags:
    """Return which of the batches of producers decide what a replay of all of them gives: control batches, each
    producer's last data, and the data before and behind which its transactions begin, with and without records."""
    order = np.argsort(table[:, PRODUCER_ID], kind="stable")
    sorted_ = table[order]
    producers, attributes = sorted_[:, PRODUCER_ID], sorted_[:, ATTRIBUTES]
    control = attributes & CONTROL != 0
    transactional = attributes & TRANSACTIONAL != 0
    filled = sorted_[:, COUNT] > 0
    first = np.ones(len(table), np.bool_)
    first[1:] = (
        (producers[1:] != producers[:-1])
        | control[:-1]
        | (transactional[1:] != transactional[:-1])
        | (filled[1:] != filled[:-1])
    )
    last = np.ones(len(table), np.bool_)
    last[:-1] = (producers[1:] != producers[:-1]) | control[1:]
    deciding = np.empty(len(table), np.bool_)
    deciding[order] = control | last | (first & transactional)
    return deciding
