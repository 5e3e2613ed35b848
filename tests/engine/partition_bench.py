"""A partition on a test bench: a clock that is moved by hand, crashes, and a full check at the end.

`batch` builds what a producer or another log would send, byte by byte, without the engine's builder.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from plain_batches import batch_of
from verify import checked, verify, verify_files

from topicfs.engine.partition.loading import Known, load
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import Record
from topicfs.engine.segment.descriptors import Descriptors
from topicfs.engine.settings.topic import TopicSettings, resolve_topic

EXPIRATION_MS = 86_400_000


class HandClock:
    """Stands still until it is moved. `ms` is the time."""

    def __init__(self, ms: int = 1_700_000_000_000) -> None:
        self.ms = ms

    def __call__(self) -> int:
        return self.ms

    def advance(self, ms: int) -> int:
        self.ms += ms
        return self.ms


def topic_settings(**overrides: object) -> TopicSettings:
    """Settings by their names with underscores; `segment_bytes` may be as small as a test likes."""
    names = {name.replace("_", "."): str(value) for name, value in overrides.items()}
    if "segment.bytes" in names:
        names["internal.segment.bytes"] = names.pop("segment.bytes")
    return resolve_topic(names, {})


class Bench:
    """One partition directory, and the partition that has it open.

    exact     indexes must be what one pass over the batches gives: nothing was reopened or truncated
    history   producers must be what a replay of the batches gives: none expired or lost its batches
    warnings  whether the engine's log may have warnings
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = HandClock()
        self.descriptors = Descriptors(16)
        self.settings = topic_settings()
        self.partition: Partition | None = None
        self.exact = True
        self.history = True
        self.warnings = False

    def open(
        self,
        known: Known | None = None,
        lone: bool = True,
        expiration_ms: int = EXPIRATION_MS,
        **settings: object,
    ) -> Partition:
        """The partition, created when it is not there."""
        self.directory.mkdir(exist_ok=True)
        self.settings = topic_settings(**settings)
        return self._load(known or Known(), lone, expiration_ms)

    def _load(self, known: Known, lone: bool, expiration_ms: int = EXPIRATION_MS) -> Partition:
        self.partition = load(
            "topic",
            0,
            self.directory,
            self.settings,
            expiration_ms,
            known,
            self.clock,
            self.descriptors,
            lone,
        )
        return self.partition

    def _known(self, clean: bool, recovery_point: int | None) -> Known:
        partition = self.partition
        assert partition is not None
        point = partition.recovery_point if recovery_point is None else recovery_point
        return Known(clean, point, partition.start_offset, partition.high_watermark)

    def reopen(self) -> Partition:
        """Stop cleanly and open again."""
        assert self.partition is not None
        self.partition.close()
        self.exact = False
        return self._load(self._known(True, None), self.partition.log.lone)

    def crash(self, recovery_point: int | None = None) -> Partition:
        """Stop as a killed process does, and open again."""
        assert self.partition is not None
        self.partition.log.abandon()
        self.exact = False
        return self._load(self._known(False, recovery_point), self.partition.log.lone)

    def reopen_closed(self, end: int) -> Partition:
        """Open what a clean stop left; it must end there."""
        partition = self._load(self._known(True, None), True)
        self.exact = False
        assert (partition.end_offset, partition.recovery_point) == (end, end)
        return partition

    def truncate(self, offset: int) -> bool:
        """Cut the partition; its indexes then begin to count anew."""
        assert self.partition is not None
        self.exact = False
        return self.partition.truncate_to(offset)

    def names(self, *suffixes: str) -> list[str]:
        """The names of the directory's files that end so, without leading zeros."""
        return sorted(
            (path.name.lstrip("0") if path.name[:1] == "0" else path.name)
            for path in self.directory.iterdir()
            if path.name.endswith(suffixes or "")
        )

    def check(self) -> None:
        """Verify the open partition; then its files when it is closed; then what recovery makes of them."""
        partition = self.partition
        if partition is None or partition.log.failure is not None:
            return
        interval, most = self.settings.index_interval_bytes, self.settings.segment_index_bytes
        verify(partition, exact=self.exact, history=self.history)
        start, end = partition.start_offset, partition.end_offset
        values = list(partition.records()) if partition.log.lone else []
        partition.close()
        found = verify_files(
            self.directory, interval=interval, max_index_bytes=most, exact=self.exact, history=self.history
        )
        assert not found.problems, found.problems
        told = checked(self.directory)
        assert not told, str(told)
        assert end == 0 or end in found.snapshots or end == start, f"no snapshot at {end}: {found.snapshots}"
        again = self._load(Known(False, 0, start), True)
        verify(again, history=self.history)
        # Without a batch, a log ends where its last segment begins.
        last = max(int(path.stem) for path in self.directory.glob("*.log"))
        assert (again.start_offset, again.end_offset) == (
            start,
            found.end if found.batches else max(start, last),
        )
        if values:
            assert list(again.records()) == values
        again.close()
        told = checked(self.directory)
        assert not told, str(told)
        self.partition = None


NOW = 1_700_000_000_000
TRANSACTIONAL = 0x10
CONTROL = 0x20


def values(count: int, timestamp: int = NOW, key: bytes | None = None) -> list[Record]:
    """Records with the values v0, v1 …"""
    return [Record(b"v%d" % number, key, timestamp) for number in range(count)]


def batch(
    records: int | Sequence[Record] = 1,
    *,
    producer: int | None = None,
    epoch: int = 0,
    sequence: int = 0,
    transactional: bool = False,
    base: int = 0,
    leader_epoch: int = -1,
    timestamp: int = NOW,
) -> bytes:
    """One plain batch, of so many records or of these."""
    fields = {"base_offset": base, "leader_epoch": leader_epoch}
    if producer is not None:
        fields |= {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
    if transactional:
        fields["attributes"] = TRANSACTIONAL
    return batch_of(values(records, timestamp) if isinstance(records, int) else records, **fields)


def marker(
    producer: int,
    commit: bool,
    *,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    base: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The control batch that ends a transaction."""
    key = struct.pack(">hh", 0, int(commit))
    value = struct.pack(">hi", 0, coordinator_epoch)
    return batch_of(
        [Record(value, key, NOW)],
        attributes=TRANSACTIONAL | CONTROL,
        producer_id=producer,
        producer_epoch=epoch,
        base_offset=base,
        leader_epoch=leader_epoch,
    )


def bases_of(partition: Partition) -> list[int]:
    """The base offsets of a partition's segments."""
    return [segment.base_offset for segment in partition.log.chain.segments]
