"""A full check of a partition, written from the format alone: the engine is asked only what it shows to readers.

`verify_files` looks at a directory, `verify` at a partition that is open. Both raise AssertionError with
everything that is wrong. `checked` asks the check of the engine itself, `topicfs verify`, which has to find nothing
where these find nothing.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import google_crc32c
import numpy as np
from plain_batches import HEADER, records_in

from topicfs.engine.batch.compression import decompress
from topicfs.engine.partition.offsets import Isolation
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import Codec, Record
from topicfs.engine.verify import partition as partitions
from topicfs.engine.verify import segment as segments
from topicfs.engine.verify.finding import Finding
from topicfs.engine.verify.partition import PartitionPiece

MAX_INT32 = 2**31 - 1
SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
TRANSACTION_ENTRY = struct.Struct(">hqqqq")
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


@dataclass
class PlainBatch:
    """One batch of a file, with its records as they are encoded: timestamps before a log append time."""

    position: int
    size: int
    base: int
    last: int
    leader_epoch: int
    attributes: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: list[Record]

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & 0x20)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & 0x10)


@dataclass
class PlainProducer:
    """What a snapshot says of a producer, in its order."""

    epoch: int = -1
    last_sequence: int = -1
    last_offset: int = -1
    delta: int = 0
    timestamp: int = -1
    coordinator_epoch: int = -1
    first_offset: int = -1

    def row(self) -> tuple[int, ...]:
        return (
            self.epoch,
            self.last_sequence,
            self.last_offset,
            self.delta,
            self.timestamp,
            self.coordinator_epoch,
            self.first_offset,
        )


@dataclass
class Found:
    """What a directory holds: batches by segment base, and what a replay of them gives."""

    problems: list[str] = field(default_factory=list)
    segments: dict[int, list[PlainBatch]] = field(default_factory=dict)
    aborted: dict[int, list[tuple[int, int, int, int]]] = field(default_factory=dict)
    producers: dict[int, PlainProducer] = field(default_factory=dict)
    snapshots: dict[int, dict[int, tuple[int, ...]]] = field(default_factory=dict)

    @property
    def batches(self) -> list[PlainBatch]:
        return [batch for base in sorted(self.segments) for batch in self.segments[base]]

    @property
    def end(self) -> int:
        batches = self.batches
        return max(max(self.segments, default=0), batches[-1].last + 1 if batches else 0)

    def expect(self, condition: bool, problem: str) -> None:
        if not condition:
            self.problems.append(problem)


def verify_files(
    directory: Path,
    *,
    interval: int,
    max_index_bytes: int = 10 * 1024 * 1024,
    exact: bool = False,
    history: bool = True,
    sizes: dict[int, int] | None = None,
) -> Found:
    """Check a directory. `exact`: no segment was reopened or truncated, so each index is what one pass over
    the batches gives. `history`: producers can be replayed from the batches that are there. `sizes`: of
    segments, where the partition is open; a closed one has files of their true size, and all that belong."""
    found = Found()
    names = sorted(path.name for path in directory.iterdir())
    bases = sorted(int(name[:20]) for name in names if name.endswith(".log"))
    for name in names:
        found.expect(not name.endswith((".tmp", ".cleaned", ".swap")), f"{name} is left over")
        if name.endswith((".index", ".timeindex", ".txnindex")):
            found.expect(int(name[:20]) in bases, f"{name} has no log")
    for at, base in enumerate(bases):
        data = (directory / f"{base:020d}.log").read_bytes()
        if sizes is not None:
            found.expect(
                sizes[base] <= len(data), f"segment {base}: {len(data)} bytes, {sizes[base]} published"
            )
            data = data[: sizes[base]]
        else:
            found.expect(f"{base:020d}.index" in names, f"segment {base} has no offset index")
        found.segments[base] = _batches(found, base, data)
        following = bases[at + 1] if at + 1 < len(bases) else None
        last = found.segments[base][-1].last if found.segments[base] else base - 1
        found.expect(
            following is None or last < following, f"segment {base} reaches {last}, next is {following}"
        )
        _check_offset_index(found, directory, base, interval, max_index_bytes, exact)
        sealed = sizes is None or following is not None
        _check_time_index(found, directory, base, interval, max_index_bytes, exact, sealed)
    _read_snapshots(found, directory)
    _replay(found, history and bases[:1] == [0])
    for base in bases:
        _check_transactions(found, directory, base, history and bases[0] == 0)
    return found


def _batches(found: Found, base: int, data: bytes) -> list[PlainBatch]:
    batches: list[PlainBatch] = []
    at, before = 0, base - 1
    while at < len(data):
        where = f"segment {base}, position {at}"
        if at + HEADER.size > len(data):
            found.problems.append(f"{where}: {len(data) - at} bytes are no batch")
            break
        offset, size, epoch, magic, crc, attributes, delta, first, largest, pid, pepoch, sequence, count = (
            HEADER.unpack_from(data, at)
        )
        end = at + 12 + size
        if magic != 2 or size < 49 or end > len(data):
            found.problems.append(f"{where}: magic {magic}, size {size}, {len(data) - at} bytes left")
            break
        found.expect(google_crc32c.value(data[at + 21 : end]) == crc, f"{where}: wrong checksum")
        found.expect(offset > before, f"{where}: base offset {offset} behind {before}")
        found.expect(delta >= 0 and offset + delta - base <= MAX_INT32, f"{where}: last offset delta {delta}")
        codec = Codec(attributes & 7)
        stream = np.frombuffer(data, np.uint8)[at + HEADER.size : end]
        records = list(records_in(bytes(decompress(codec, stream)), offset, first))
        found.expect(len(records) == count, f"{where}: {len(records)} records, {count} declared")
        offsets = [record.offset for record in records]
        found.expect(offsets == sorted(set(offsets)), f"{where}: offsets {offsets}")
        found.expect(
            not offsets or offsets[-1] <= offset + delta, f"{where}: offsets {offsets}, delta {delta}"
        )
        if records and not attributes & 8:
            true = max(record.timestamp or 0 for record in records)
            found.expect(true == largest, f"{where}: max timestamp {largest}, records have {true}")
        batches.append(
            PlainBatch(
                at,
                end - at,
                offset,
                offset + delta,
                epoch,
                attributes,
                largest,
                pid,
                pepoch,
                sequence,
                records,
            )
        )
        at, before = end, offset + delta
    return batches


def _entries(found: Found, path: Path, base: int, form: struct.Struct) -> list[tuple[int, int]]:
    data = path.read_bytes() if path.exists() else b""
    found.expect(len(data) % form.size == 0, f"{path.name}: {len(data)} bytes")
    return list(form.iter_unpack(data[: len(data) // form.size * form.size]))


def _check_offset_index(
    found: Found, directory: Path, base: int, interval: int, max_index_bytes: int, exact: bool
) -> None:
    batches = found.segments[base]
    path = directory / f"{base:020d}.index"
    entries = [
        (base + offset, position) for offset, position in _entries(found, path, base, struct.Struct(">ii"))
    ]
    places = {batch.last: batch.position for batch in batches}
    before = (base - 1, 0)
    for offset, position in entries:
        where = f"{path.name}: entry ({offset}, {position})"
        found.expect(places.get(offset) == position, f"{where} names no batch")
        found.expect(offset > before[0], f"{where} does not rise above {before}")
        found.expect(position - before[1] > interval, f"{where} is nearer than {interval} bytes to {before}")
        before = offset, position
    if exact:
        expected, since = [], 0
        for batch in batches:
            if since > interval and len(expected) < max_index_bytes // 8:
                expected.append((batch.last, batch.position))
                since = 0
            since += batch.size
        found.expect(entries == expected, f"{path.name}: {entries}, a rebuild gives {expected}")


def _check_time_index(
    found: Found, directory: Path, base: int, interval: int, max_index_bytes: int, exact: bool, sealed: bool
) -> None:
    batches = found.segments[base]
    path = directory / f"{base:020d}.timeindex"
    entries = [(time, base + offset) for time, offset in _entries(found, path, base, struct.Struct(">qi"))]
    maxima = {}  # of those batches that are later than all before them
    largest = -1
    for batch in batches:
        if batch.max_timestamp > largest:
            largest = batch.max_timestamp
            maxima[batch.last] = largest
    before = (-1, base - 1)
    for time, offset in entries:
        where = f"{path.name}: entry ({time}, {offset})"
        found.expect(maxima.get(offset) == time, f"{where} is no new maximum of a batch that ends there")
        found.expect(time > before[0] and offset > before[1], f"{where} does not rise above {before}")
        before = time, offset
    if sealed:
        found.expect(
            largest == -1 or before[0] == largest, f"{path.name}: ends with {before}, not at {largest}"
        )
    if exact:
        expected: list[tuple[int, int]] = []
        since, so_far = 0, (-1, base)
        for batch in batches:
            if batch.max_timestamp > so_far[0]:
                so_far = batch.max_timestamp, batch.last
            if since > interval:
                since = 0
                last = expected[-1][0] if expected else -1
                if so_far[0] > last and len(expected) < max_index_bytes // 12 - 1:
                    expected.append(so_far)
            since += batch.size
        if sealed and so_far[0] > (expected[-1][0] if expected else -1):
            expected.append(so_far)
        found.expect(entries == expected, f"{path.name}: {entries}, a rebuild gives {expected}")


def _read_snapshots(found: Found, directory: Path) -> None:
    for path in sorted(directory.glob("*.snapshot")):
        data = path.read_bytes()
        version, crc, count = struct.unpack_from(">hIi", data)
        found.expect(version == 1 and crc == google_crc32c.value(data[6:]), f"{path.name}: damaged")
        found.expect(
            len(data) == 10 + count * SNAPSHOT_ENTRY.size, f"{path.name}: {count} in {len(data)} bytes"
        )
        found.snapshots[int(path.name[:20])] = {
            row[0]: tuple(row[1:]) for row in SNAPSHOT_ENTRY.iter_unpack(data[10:])
        }


def _replay(found: Found, complete: bool) -> None:
    """Bring producers to the end, and compare with each snapshot on the way."""
    waiting = sorted(found.snapshots)
    for base in sorted(found.segments):
        found.aborted[base] = []
        for batch in found.segments[base]:
            while waiting and waiting[0] <= batch.last:
                _compare_snapshot(found, waiting.pop(0), complete)
            _apply(found, base, batch)
    for offset in waiting:
        _compare_snapshot(found, offset, complete)


def _compare_snapshot(found: Found, offset: int, complete: bool) -> None:
    expected = {pid: producer.row() for pid, producer in found.producers.items()}
    if complete:
        stored = found.snapshots[offset]
        found.expect(stored == expected, f"snapshot {offset}: {stored}, a replay gives {expected}")


def _apply(found: Found, base: int, batch: PlainBatch) -> None:
    if batch.producer_id < 0:
        return
    state = found.producers.setdefault(batch.producer_id, PlainProducer())
    if batch.is_control:
        key, value = batch.records[0].key or b"", batch.records[0].value or b""
        (kind,), (coordinator_epoch,) = struct.unpack_from(">h", key, 2), struct.unpack_from(">i", value, 2)
        if state.first_offset >= 0 and kind == 0:
            others = [
                each.first_offset
                for pid, each in found.producers.items()
                if pid != batch.producer_id and each.first_offset >= 0
            ]
            stable = min([*others, batch.base + 1])
            found.aborted[base].append((batch.producer_id, state.first_offset, batch.base, stable))
        if batch.producer_epoch != state.epoch:
            state.last_sequence, state.last_offset, state.delta = -1, -1, 0
        state.coordinator_epoch, state.first_offset = coordinator_epoch, -1
    else:
        delta = batch.last - batch.base
        state.last_sequence = -1 if batch.base_sequence < 0 else (batch.base_sequence + delta) % 2**31
        state.last_offset, state.delta = batch.last, delta
        if batch.is_transactional and state.first_offset < 0:
            state.first_offset = batch.base
    state.epoch, state.timestamp = batch.producer_epoch, batch.max_timestamp


def _check_transactions(found: Found, directory: Path, base: int, complete: bool) -> None:
    path = directory / f"{base:020d}.txnindex"
    data = path.read_bytes() if path.exists() else b""
    found.expect(len(data) % 34 == 0, f"{path.name}: {len(data)} bytes")
    entries = [row[1:] for row in TRANSACTION_ENTRY.iter_unpack(data[: len(data) // 34 * 34])]
    if complete:
        expected = found.aborted[base]
        found.expect(entries == expected, f"{path.name}: {entries}, a replay gives {expected}")


def checked(directory: Path) -> list[Finding]:
    """What the engine's own check finds in a partition that nobody has open."""
    piece = PartitionPiece("t", 0, directory, None, growing=False)
    reports = [report for each in piece.segments() if (report := segments.check(each)) is not None]
    found = [finding for report in reports for finding in report.findings]
    return found + partitions.check(piece, reports).findings


# -- an open partition --------------------------------------------------------------------------------


def verify(partition: Partition, *, exact: bool = False, history: bool = True) -> None:
    """Check the files of an open partition, and that what it shows to readers is what they hold."""
    log = partition.log
    segments = log.chain.segments
    found = verify_files(
        partition.directory,
        interval=partition.settings.index_interval_bytes,
        max_index_bytes=partition.settings.segment_index_bytes,
        exact=exact,
        history=history,
        sizes={segment.base_offset: segment.size for segment in segments},
    )
    offsets = partition.offsets
    in_order = offsets.start <= offsets.stable <= offsets.high_watermark <= offsets.end
    found.expect(in_order, f"offsets {offsets}")
    found.expect(found.end <= offsets.end, f"the log ends at {found.end}, offsets are {offsets}")
    found.expect(partition.recovery_point <= offsets.end, f"recovery point {partition.recovery_point}")
    found.expect(offsets.active_base == max(found.segments), f"active base {offsets.active_base}")
    found.expect(offsets.end_position == segments.last.size, f"end position {offsets.end_position}")
    found.expect(
        all(offset <= offsets.end for offset in found.snapshots), f"snapshots {sorted(found.snapshots)}"
    )
    _check_epochs(found, partition)
    if history and min(found.segments) == 0:
        _check_producers(found, partition)
        _check_reading(found, partition)
    assert not found.problems, "\n".join(found.problems)


def _check_epochs(found: Found, partition: Partition) -> None:
    entries = partition.log.epochs.entries
    rising = all(a.epoch < b.epoch and a.start_offset < b.start_offset for a, b in pairwise(entries))
    found.expect(rising, f"epochs {entries}")
    starts = [entry.start_offset for entry in entries]
    for batch in found.batches:
        if batch.leader_epoch >= 0 and batch.base >= partition.start_offset:
            at = bisect_right(starts, batch.base)
            known = entries[at - 1].epoch if at else -1
            found.expect(
                known == batch.leader_epoch, f"offset {batch.base}: epoch {batch.leader_epoch}, {entries}"
            )


def _check_producers(found: Found, partition: Partition) -> None:
    states = partition.log.producers
    found.expect(states.map_end_offset == partition.end_offset, f"map end offset {states.map_end_offset}")
    known = {
        pid: (
            entry.epoch,
            entry.last_sequence,
            entry.last_data_offset,
            entry.last_offset_delta,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.current_transaction_first_offset,
        )
        for pid, entry in states.producers.items()
    }
    expected = {pid: producer.row() for pid, producer in found.producers.items()}
    found.expect(known == expected, f"producers {known}, a replay gives {expected}")
    is_open = [row.first_offset for row in found.producers.values() if row.first_offset >= 0]
    below = min([*is_open, partition.high_watermark])
    found.expect(
        partition.stable_offset <= max(below, partition.start_offset),
        f"stable offset {partition.stable_offset}, a transaction is open from {below}",
    )


def _check_reading(found: Found, partition: Partition) -> None:
    """Records as the read path gives them, against those in the files."""
    aborted = [entry for base in sorted(found.aborted) for entry in found.aborted[base]]
    for isolation in Isolation:
        limit = partition.offsets.limit(isolation)
        expected = []
        for batch in found.batches:
            hidden = isolation is Isolation.COMMITTED and batch.is_transactional and any(
                pid == batch.producer_id and first <= batch.base and batch.last < last
                for pid, first, last, _ in aborted
            )  # fmt: skip
            if batch.is_control or hidden or batch.last >= limit:
                continue
            for record in batch.records:
                if record.offset >= partition.start_offset:
                    time = batch.max_timestamp if batch.attributes & 8 else record.timestamp
                    expected.append(Record(record.value, record.key, time, record.headers, record.offset))
        read = list(partition.records(isolation=isolation))
        found.expect(read == expected, f"{isolation}: read {read[:5]}…, the files hold {expected[:5]}…")
