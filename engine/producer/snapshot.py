"""Producer snapshots: `<offset>.snapshot`, what a partition knows of its producers below that offset.

    0   int16   version, always 1                the file, big-endian
    2   uint32  CRC-32C of bytes [6, end)
    6   int32   number of entries
    10  entries, one behind the other, to the end

    0   int64  producer id                       an entry, 46 bytes
    8   int16  epoch, −1 none
    10  int32  last sequence, −1 none
    14  int64  last offset, −1 none: then the producer has no batch
    22  int32  last offset − first offset of the last batch
    26  int64  last timestamp
    34  int32  coordinator epoch, −1 none
    38  int64  first offset of the open transaction, −1 none

Of a producer's batches only the last is stored. A snapshot comes into being whole: it is written as
`<name>.tmp` and renamed.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from topicfs.engine.errors import CorruptSnapshotError
from topicfs.engine.files.atomic import TEMPORARY_SUFFIX, sync_directory
from topicfs.engine.files.regular import open_regular, read_regular, write_regular
from topicfs.engine.kernels.crc import crc32c
from topicfs.engine.producer.entry import BatchMetadata, ProducerEntry
from topicfs.engine.record import NO_OFFSET

VERSION: Final = 1
HEADER: Final = struct.Struct(">hIi")
CHECKED_FROM: Final = 6
ENTRY: Final = np.dtype(
    [
        ("producer_id", ">i8"),
        ("epoch", ">i2"),
        ("last_sequence", ">i4"),
        ("last_offset", ">i8"),
        ("offset_delta", ">i4"),
        ("timestamp", ">i8"),
        ("coordinator_epoch", ">i4"),
        ("transaction_first_offset", ">i8"),
    ]
)

# 5.8 million producers. A longer file is refused before it is read: nothing that we trust says it is real.
MAX_BYTES: Final = 256 * 1024 * 1024


def write(path: Path, entries: Collection[ProducerEntry], *, fsync: bool) -> None:
    """Write a snapshot in place of what is at `path`; durable when it returns if `fsync`."""
    rows = (
        (
            entry.producer_id,
            entry.epoch,
            entry.last_sequence,
            entry.last_data_offset,
            entry.last_offset_delta,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.current_transaction_first_offset,
        )
        for entry in entries
    )
    table = np.fromiter(rows, ENTRY, count=len(entries))
    data = bytearray(HEADER.size) + table.tobytes()
    HEADER.pack_into(data, 0, VERSION, 0, len(entries))
    HEADER.pack_into(data, 0, VERSION, _checksum(data), len(entries))
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        write_regular(temporary, data, fsync)
        temporary.replace(path)
    except OSError:
        # A disk that is full stays full as long as the half-written file is there.
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if fsync:
        sync_directory(path.parent)


def flush(path: Path) -> None:
    """Make a snapshot durable that was written without fsync; nothing to do when it is gone by now."""
    try:
        descriptor = open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_directory(path.parent)


def read(path: Path) -> list[ProducerEntry]:
    """The entries of a snapshot; CorruptSnapshotError where the file breaks the format."""
    table = _read_table(path)
    _check_entries(path, table)
    return [
        ProducerEntry(
            producer_id,
            epoch,
            coordinator_epoch,
            timestamp,
            first_offset if first_offset >= 0 else NO_OFFSET,
            (BatchMetadata(sequence, offset, delta, timestamp),) if offset >= 0 else (),
        )
        for (
            producer_id,
            epoch,
            sequence,
            offset,
            delta,
            timestamp,
            coordinator_epoch,
            first_offset,
        ) in table.tolist()
    ]


def _read_table(path: Path) -> npt.NDArray[Any]:
    with read_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if not HEADER.size <= size <= MAX_BYTES:
            raise CorruptSnapshotError(f"{path}: expected {HEADER.size} to {MAX_BYTES} bytes, found {size}")
        header = file.read(HEADER.size)
        if len(header) < HEADER.size:
            raise CorruptSnapshotError(f"{path}: expected {HEADER.size} bytes, found {len(header)}")
        version, checksum, count = HEADER.unpack(header)
        if version != VERSION:
            raise CorruptSnapshotError(f"{path}: expected version {VERSION}, found {version}")
        if size != HEADER.size + count * ENTRY.itemsize:
            entries = (size - HEADER.size) / ENTRY.itemsize
            raise CorruptSnapshotError(f"{path}: expected {count} entries as declared, found {entries:g}")
        # Bounded once more: the file may grow between fstat and here.
        data = header + file.read(size - HEADER.size)
    if len(data) != size:
        raise CorruptSnapshotError(f"{path}: expected {size} bytes, found {len(data)}")
    found = _checksum(data)
    if found != checksum:
        raise CorruptSnapshotError(f"{path}: expected checksum {checksum:#010x}, found {found:#010x}")
    return np.frombuffer(data, ENTRY, count, HEADER.size)


def _check_entries(path: Path, table: npt.NDArray[Any]) -> None:
    """What a right checksum does not promise: no producer twice, no two transactions from one offset."""
    if not table.size:
        return
    producers = table["producer_id"].astype(np.int64)
    if producers.min() < 0:
        raise CorruptSnapshotError(f"{path}: expected producer ids of at least 0, found {producers.min()}")
    first_offsets = table["transaction_first_offset"].astype(np.int64)
    for name, values in (
        ("producer id", producers),
        ("transaction's first offset", first_offsets[first_offsets >= 0]),
    ):
        values.sort()
        repeated = np.flatnonzero(values[1:] == values[:-1])
        if repeated.size:
            value = values[repeated[0]]
            raise CorruptSnapshotError(f"{path}: expected each {name} once, found {value} more than once")


def _checksum(data: bytes | bytearray) -> int:
    checksum: Callable[[npt.NDArray[np.uint8], int, int], int] = crc32c
    return checksum(np.frombuffer(data, np.uint8), CHECKED_FROM, len(data))
