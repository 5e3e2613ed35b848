"""Writing and reading producer snapshots. Their format is drawn in `topicfs.engine.format.producer_snapshot`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from topicfs.engine.errors import CorruptSnapshotError
from topicfs.engine.files.atomic import sync_directory, sync_file, write_atomically
from topicfs.engine.files.regular import read_regular
from topicfs.engine.format.producer_snapshot import CHECKED_FROM, ENTRY, HEADER, VERSION, header_in
from topicfs.engine.kernels.crc import crc32c
from topicfs.engine.producer.entry import BatchMetadata, ProducerEntry
from topicfs.engine.record import NO_OFFSET

_ROWS: Final = ENTRY.dtype()

# The size with 5.8 million producers. A longer file is refused before it is read, as its size cannot be trusted.
MAX_BYTES: Final = 256 * 1024 * 1024


def write(path: Path, entries: Collection[ProducerEntry], *, fsync: bool) -> None:
    """Write a snapshot, which replaces a file at `path`. With `fsync` it is durable when this returns."""
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
    table = np.fromiter(rows, _ROWS, count=len(entries))
    data = bytearray(HEADER.size) + table.tobytes()
    HEADER.struct.pack_into(data, 0, VERSION, 0, len(entries))
    HEADER.struct.pack_into(data, 0, VERSION, _checksum(data), len(entries))
    write_atomically(path, data, fsync)


def flush(path: Path) -> None:
    """Make a snapshot durable that was written without fsync. It may be deleted by now."""
    try:
        sync_file(path)
    except FileNotFoundError:
        return
    sync_directory(path.parent)


def read(path: Path) -> list[ProducerEntry]:
    """Return the entries of a snapshot; CorruptSnapshotError where the file breaks the format."""
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
        checksum, count = header_in(path, header, size)
        # The read is bounded too: the file may have grown since fstat.
        data = header + file.read(size - HEADER.size)
    if len(data) != size:
        raise CorruptSnapshotError(f"{path}: expected {size} bytes, found {len(data)}")
    found = _checksum(data)
    if found != checksum:
        raise CorruptSnapshotError(f"{path}: expected checksum {checksum:#010x}, found {found:#010x}")
    return np.frombuffer(data, _ROWS, count, HEADER.size)


def _check_entries(path: Path, table: npt.NDArray[Any]) -> None:
    """Check what the checksum does not cover: no producer has two entries, and no two transactions begin at one
    offset."""
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
