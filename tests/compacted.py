"""A partition that is cleaned in tests: what it holds, read from its files in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from directory_check import bases, check_directory, path_of
from partition_opening import NEVER, NOW, Clock, open_partition

from topicfs.engine import batch as batches
from topicfs.engine.cleaner.clean import Cleaned, Cleaner
from topicfs.engine.partition.loading import Known
from topicfs.engine.partition.partition import Partition, Producer
from topicfs.engine.record import Record

SECRET = bytes(range(16))
DAY = 86_400_000


def nothing(*_: object) -> None:
    """A check that never aborts, a throttle that never waits."""


def cleaner(keys: int = 1000, io_buffer: int = 8192, throttle: Callable[[int], None] = nothing) -> Cleaner:
    """A cleaner whose map takes so many keys."""
    return Cleaner.create(
        24 * (keys + 1), keys / (keys + 1) if keys > 1 else 0.75, io_buffer, throttle, SECRET
    )


class Cleaning:
    """A compacted partition, its clock, and how far it was cleaned.

    dirty  the cleaner's checkpoint: where the next clean begins
    """

    def __init__(self, directory: Path, **settings: object) -> None:
        self.directory = directory
        self.settings = {"cleanup_policy": "compact", "segment_bytes": 1000, **settings}
        self.clock = Clock()
        self.dirty = 0
        self.sequences: dict[int, int] = {}
        self.partition = self._open(Known())

    def _open(self, known: Known) -> Partition:
        return open_partition(self.directory, known, self.clock, **self.settings)

    # -- writing --------------------------------------------------------------------------------------

    def put(self, *pairs: tuple[object, object], at: int | None = None) -> int:
        """Append one batch of keys and values; a value of None is a tombstone. Gives the first offset."""
        return self.partition.append(records(pairs, self.clock.ms if at is None else at)).first_offset

    def produce(
        self, producer: int, *pairs: tuple[object, object], transactional: bool = False, epoch: int = 0
    ) -> int:
        """Append one batch as an idempotent producer, or in its transaction."""
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + len(pairs)
        by = Producer(producer, epoch, sequence, transactional)
        return self.partition.append(records(pairs, self.clock.ms), by).first_offset

    def end(self, producer: int, commit: bool, epoch: int = 0) -> int:
        """Append the marker of a producer's transaction."""
        return self.partition.end_transaction(producer, epoch, commit).first_offset

    def unkeyed(self, *values: bytes) -> None:
        """Append records without a key, as a topic has them that was not compacted before."""
        batch = batches.from_records([Record(value, None, self.clock.ms) for value in values], self.clock.ms)
        self.partition.append_built(batch)

    # -- cleaning -------------------------------------------------------------------------------------

    def clean(
        self,
        by: Cleaner | None = None,
        until: int | None = None,
        check: Callable[[], None] = nothing,
        roll: bool = True,
    ) -> Cleaned:
        """Clean from the checkpoint, in one pass. Seals the active segment before, unless it is not to `roll`."""
        log = self.partition.log
        if roll:
            self.partition.roll()
        end = log.chain.active.base_offset if until is None else until
        cleaned = (by or cleaner()).clean(log, self.dirty, end, self.clock.ms, check)
        self.dirty = cleaned.end_offset
        return cleaned

    # -- looking --------------------------------------------------------------------------------------

    @property
    def bases(self) -> list[int]:
        return [segment.base_offset for segment in self.partition.log.chain.segments]

    def pairs(self) -> list[tuple[int, object, object]]:
        """Offset, key and value of the records that a reader sees."""
        return [(r.offset, _text(r.key), _text(r.value)) for r in self.partition.records()]

    def values(self) -> dict[object, object]:
        """The last value of each key, without tombstones."""
        found = {key: value for _, key, value in self.pairs()}
        return {key: value for key, value in found.items() if value is not None}

    def offsets(self) -> list[int]:
        return [offset for offset, _, _ in self.pairs()]

    def batches(self) -> list[tuple[int, int, int, int]]:
        """Base offset, last offset, attributes and record count of every batch, markers and empty ones too."""
        return [
            (row[2], row[3], row[5], row[11])
            for segment in self.partition.log.chain.segments
            for _, table in segment.log.batches()
            for row in table.tolist()
        ]

    def markers(self) -> list[int]:
        """Offsets of the control batches that have their record."""
        return [base for base, _, attributes, count in self.batches() if attributes & 0x20 and count]

    def aborted(self) -> list[tuple[int, int, int]]:
        """Producer, first and last offset of the entries of the transaction indexes."""
        return [
            (entry.producer_id, entry.first_offset, entry.last_offset)
            for segment in self.partition.log.chain.segments
            for entry in segment.transactions.all()
        ]

    def files(self) -> dict[str, bytes]:
        """Every file of a segment but those that were deleted."""
        return {
            path.name: path.read_bytes()
            for path in sorted(self.directory.iterdir())
            if path.name[:1] == "0" and not path.name.endswith((".deleted", ".snapshot"))
        }

    # -- stopping -------------------------------------------------------------------------------------

    def reopen(self, crash: bool = False) -> Partition:
        """Stop and open again, cleanly or not; a reader sees the same."""
        before = list(self.partition.records())
        offsets = self.partition.offsets
        if crash:
            self.partition.log.abandon()
            known = Known(start=offsets.start)
        else:
            self.partition.close()
            known = Known(clean=True, start=offsets.start)
        self.partition = self._open(known)
        assert list(self.partition.records()) == before
        assert self.partition.end_offset == offsets.end
        return self.partition

    def check(self) -> None:
        """The files are sound, recovery agrees with them, and segments are dated in their order."""
        times = [path_of(self.directory, base, ".log").stat().st_mtime_ns for base in self.bases[:-1]]
        assert times == sorted(set(times)), times
        self.reopen(crash=True)
        self.reopen()
        self.partition.log.remove_due(NEVER)
        self.partition.close()
        check_directory(self.directory)
        assert bases(self.directory) == self.bases


def records(pairs: Sequence[tuple[object, object]], timestamp: int) -> list[Record]:
    """Keyed records; keys and values may be anything that has a text."""
    return [
        Record(None if value is None else str(value).encode(), str(key).encode(), timestamp)
        for key, value in pairs
    ]


def _text(data: bytes | None) -> object:
    if data is None:
        return None
    text = data.decode()
    return int(text) if text.lstrip("-").isdecimal() else text


def several(count: int, keys: int) -> Iterator[tuple[int, int]]:
    """So many pairs of a key, below `keys`, and a value that rises."""
    return ((number % keys, number) for number in range(count))


__all__ = ["DAY", "NOW", "SECRET", "Cleaning", "cleaner", "nothing", "records", "several"]
