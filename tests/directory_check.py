"""A partition's files read in plain Python, from the format's description alone: what the engine is compared with.

Nothing here uses the engine. It is slow, and simple enough to be believed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import google_crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
MAX_INT32 = 2**31 - 1


@dataclass(frozen=True)
class Batch:
    """One batch of a `.log`; `kind` is None for data, 0 for an abort marker, 1 for a commit marker."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    attributes: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    kind: int | None

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & 0x10)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & 0x20)


def parse(data: bytes, base_offset: int = 0) -> tuple[list[Batch], int]:
    """The good batches at the beginning of the bytes, with rising offsets, and how many bytes they take."""
    found: list[Batch] = []
    at, before = 0, base_offset - 1
    while len(data) - at > 17:
        size = struct.unpack_from(">i", data, at + 8)[0] + 12
        if size < HEADER.size or size > len(data) - at or data[at + 16] != 2:
            break
        (base, _, epoch, _, crc, attributes, delta, _, largest, pid, pid_epoch, sequence, count) = (
            HEADER.unpack_from(data, at)
        )
        if google_crc32c.value(data[at + 21 : at + size]) != crc:
            break
        if base <= before or delta < 0 or base + delta - base_offset > MAX_INT32:
            break
        kind = _kind(data[at + HEADER.size : at + size]) if attributes & 0x20 and count else None
        found.append(
            Batch(
                at,
                size,
                base,
                base + delta,
                epoch,
                attributes,
                largest,
                pid,
                pid_epoch,
                sequence,
                count,
                kind,
            )
        )
        before = base + delta
        at += size
    return found, at


def _kind(record: bytes) -> int:
    at = 0
    for _ in range(5):  # length, attributes, timestamp delta, offset delta, key length
        while record[at] & 0x80:
            at += 1
        at += 1
    return struct.unpack_from(">h", record, at + 2)[0]


def bases(directory: Path, suffix: str = ".log") -> list[int]:
    """The base offsets of the directory's segments, rising."""
    return sorted(int(path.name[:20]) for path in directory.glob(f"*{suffix}"))


def path_of(directory: Path, base: int, suffix: str) -> Path:
    return directory / f"{base:020d}{suffix}"


def recoverable(directory: Path, recovery_point: int) -> list[tuple[int, list[Batch]]]:
    """What recovery has to keep: base offset and batches of each segment."""
    kept: list[tuple[int, list[Batch]]] = []
    all_bases = bases(directory)
    floor = max((base for base in all_bases if base <= recovery_point), default=0)
    for base in all_bases:
        data = path_of(directory, base, ".log").read_bytes()
        batches, used = parse(data, base)
        kept.append((base, batches))
        if base >= floor and used < len(data):
            break
    return kept


def offset_entries(base: int, batches: Iterable[Batch], interval: int, room: int) -> bytes:
    """The `.index` that a rebuild gives."""
    out, since = b"", 0
    for batch in batches:
        if since > interval:
            if len(out) // 8 < room // 8:
                out += struct.pack(">ii", batch.last_offset - base, batch.position)
            since = 0
        since += batch.size
    return out


def time_entries(base: int, batches: Iterable[Batch], interval: int, room: int) -> bytes:
    """The `.timeindex` that a rebuild gives, the last entry included that sealing adds."""
    entries: list[tuple[int, int]] = []
    largest, at, since = -1, base, 0
    for batch in batches:
        if batch.max_timestamp > largest:
            largest, at = batch.max_timestamp, batch.last_offset
        if since > interval:
            if largest > (entries[-1][0] if entries else -1) and len(entries) < room // 12 - 1:
                entries.append((largest, at))
            since = 0
        since += batch.size
    if largest > (entries[-1][0] if entries else -1):
        entries.append((largest, at))
    return b"".join(struct.pack(">qi", timestamp, offset - base) for timestamp, offset in entries)


def aborted_entries(segments: Iterable[tuple[int, list[Batch]]]) -> dict[int, bytes]:
    """The `.txnindex` files that a replay of the whole log gives, by base offset; empty ones are left out."""
    ongoing: dict[int, int] = {}
    files: dict[int, bytes] = {}
    for base, batches in segments:
        for batch in batches:
            pid = batch.producer_id
            if pid < 0 or not (batch.is_transactional or batch.is_control):
                continue
            if not batch.is_control:
                ongoing.setdefault(pid, batch.base_offset)
            elif batch.kind is not None and pid in ongoing:
                first = ongoing.pop(pid)
                stable = min([*ongoing.values(), batch.last_offset + 1])
                if batch.kind == 0:
                    entry = struct.pack(">hqqqq", 0, pid, first, batch.last_offset, stable)
                    files[base] = files.get(base, b"") + entry
    return files


def check_indexes(directory: Path, base: int) -> None:
    """Every entry of a segment's offset and time index is one that a reader may trust."""
    data = path_of(directory, base, ".log").read_bytes()
    batches, used = parse(data, base)
    assert used == len(data), f"{base}.log: {len(data) - used} bytes behind the last good batch"
    place = {batch.last_offset: batch for batch in batches}
    index = path_of(directory, base, ".index")
    entries = list(struct.iter_unpack(">ii", index.read_bytes())) if index.exists() else []
    assert all(low < high for low, high in _pairs(entries)), f"{index}: {entries}"
    for relative, position in entries:
        batch = place.get(base + relative)
        assert batch is not None, f"{index}: {relative} is no batch's last offset"
        assert batch.position == position, f"{index}: {relative} at {position}, is at {batch.position}"
    index = path_of(directory, base, ".timeindex")
    times = list(struct.iter_unpack(">qi", index.read_bytes())) if index.exists() else []
    for (earlier, lower), (later, higher) in _pairs(times):
        assert earlier < later, f"{index}: {times}"
        assert lower < higher, f"{index}: {times}"
    for timestamp, relative in times:
        batch = place.get(base + relative)
        assert batch is not None, f"{index}: {relative} is no batch's last offset"
        assert batch.max_timestamp == timestamp, f"{index}: {timestamp} at {relative}"
        assert all(b.max_timestamp <= timestamp for b in batches if b.last_offset <= base + relative)


def check_rebuilt(directory: Path, from_base: int, interval: int, room: int) -> None:
    """The indexes of the segments from `from_base` on are, byte for byte, what a rebuild gives."""
    segments = [
        (base, parse(path_of(directory, base, ".log").read_bytes(), base)[0]) for base in bases(directory)
    ]
    aborted = aborted_entries(segments)
    for base, batches in segments:
        if base < from_base:
            continue
        expected = {
            ".index": offset_entries(base, batches, interval, room),
            ".timeindex": time_entries(base, batches, interval, room),
            ".txnindex": aborted.get(base, b""),
        }
        for suffix, content in expected.items():
            path = path_of(directory, base, suffix)
            found = path.read_bytes() if path.exists() else b""
            assert found == content, f"{path.name}: {found.hex(' ')}, a rebuild gives {content.hex(' ')}"


def check_directory(directory: Path) -> None:
    """Nothing temporary is left, and every index of every segment may be trusted."""
    for path in directory.iterdir():
        assert not path.name.endswith((".cleaned", ".swap", ".tmp")), path.name
    last = -1
    for base in bases(directory):
        assert base > last, f"segment {base} begins below the end of the one before, {last}"
        check_indexes(directory, base)
        batches, _ = parse(path_of(directory, base, ".log").read_bytes(), base)
        last = batches[-1].last_offset if batches else last
    logs = set(bases(directory))
    for suffix in (".index", ".timeindex", ".txnindex"):
        assert set(bases(directory, suffix)) <= logs, f"{suffix} without a .log"


def _pairs(entries: list[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    return pairwise(entries)


def content(directory: Path) -> dict[str, bytes]:
    """Every file's bytes."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def identity(path: Path) -> tuple[int, int, int]:
    """Inode, size and time of modification: what tells a file that was written anew. Times of access do not."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns
