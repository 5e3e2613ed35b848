"""The reference: a partition as a plain list of batches. Nothing is stored twice; all is found by looking."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from topicfs.engine.record import Record

ABORT, COMMIT = 0, 1


@dataclass(frozen=True)
class Batch:
    """What one append wrote: records with their offsets, or a marker (kind ABORT or COMMIT) with its timestamp."""

    base_offset: int
    last_offset: int
    records: tuple[Record, ...] = ()
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False
    kind: int | None = None
    timestamp: int = -1

    @property
    def last_sequence(self) -> int:
        return self.base_sequence + self.last_offset - self.base_offset


@dataclass
class Model:
    """A partition that has no other replicas.

    batches   by rising offset
    start     first offset that may be read
    end       next offset
    flushed   below it everything must survive a crash
    """

    batches: list[Batch] = field(default_factory=list)
    start: int = 0
    end: int = 0
    flushed: int = 0

    # -- changes --------------------------------------------------------------------------------------

    def append(self, batch: Batch) -> None:
        assert batch.base_offset >= self.end
        self.batches.append(batch)
        self.end = batch.last_offset + 1

    def append_records(self, records: list[Record], first: int, **producer: object) -> Batch:
        """Append records at `first` and the offsets behind it."""
        placed = tuple(replace(record, offset=first + at) for at, record in enumerate(records))
        batch = Batch(first, first + len(records) - 1, placed, **producer)  # type: ignore[arg-type]
        self.append(batch)
        return batch

    def truncate(self, offset: int) -> None:
        """Remove the batches that reach `offset`; the end is there, also inside of one that was removed."""
        if offset < self.end:
            self.batches = [batch for batch in self.batches if batch.last_offset < offset]
            self.end = offset
            self.start = min(self.start, offset)
            self.flushed = min(self.flushed, offset)

    def restart(self, offset: int) -> None:
        self.batches = []
        self.start = self.end = offset
        self.flushed = min(self.flushed, offset)

    def reopen(self, kept: int, bases: list[int], known_start: int) -> None:
        """What is left when only the first `kept` batches are, in segments with these base offsets."""
        self.batches = self.batches[:kept]
        self.end = max([bases[-1], *(batch.last_offset + 1 for batch in self.batches[-1:])])
        self.start = max(known_start, bases[0])
        if self.end < known_start:
            self.restart(known_start)

    # -- transactions ---------------------------------------------------------------------------------

    def ongoing(self) -> dict[int, int]:
        """First offsets of the open transactions, by producer."""
        found: dict[int, int] = {}
        for batch in self.batches:
            if batch.kind is not None:
                found.pop(batch.producer_id, None)
            elif batch.transactional:
                found.setdefault(batch.producer_id, batch.base_offset)
        return found

    def stable(self) -> int:
        """Below every open transaction, and not below the start."""
        return max(self.start, min(self.ongoing().values(), default=self.end))

    def aborted(self) -> set[int]:
        """Base offsets of the batches whose transaction was aborted."""
        found: set[int] = set()
        pending: dict[int, list[int]] = {}
        for batch in self.batches:
            if batch.kind is not None:
                of_it = pending.pop(batch.producer_id, [])
                if batch.kind == ABORT:
                    found.update(of_it)
            elif batch.transactional:
                pending.setdefault(batch.producer_id, []).append(batch.base_offset)
        return found

    # -- reading --------------------------------------------------------------------------------------

    def records(self, start: int, end: int, committed: bool) -> list[Record]:
        """The records in [start, end); with `committed` only those of no open or aborted transaction."""
        gone = self.aborted() if committed else set()
        end = min(end, self.stable()) if committed else end
        return [
            record
            for batch in self.batches
            if batch.kind is None and batch.base_offset not in gone
            for record in batch.records
            if max(start, self.start) <= record.offset < end
        ]

    def times(self) -> list[tuple[int, int]]:
        """Offset and timestamp of each record and of each marker: a time leads to both."""
        return [
            (offset, timestamp)
            for batch in self.batches
            for offset, timestamp in (
                [(record.offset, record.timestamp) for record in batch.records]
                if batch.kind is None
                else [(batch.base_offset, batch.timestamp)]
            )
            if offset >= self.start
        ]

    def fetched(self, offset: int, limit: int) -> list[tuple[int, int]]:
        """Base and last offset of the batches from the one that holds `offset` on, below `limit`."""
        return [
            (batch.base_offset, batch.last_offset)
            for batch in self.batches
            if batch.last_offset >= offset and batch.base_offset < limit
        ]

    # -- producers ------------------------------------------------------------------------------------

    def last_of(self, producer_id: int) -> Batch | None:
        """The producer's last batch of records."""
        for batch in reversed(self.batches):
            if batch.producer_id == producer_id and batch.kind is None:
                return batch
        return None
