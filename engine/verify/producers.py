"""The state of producers, replayed from the log, against snapshots and transaction indexes.

A state is known from the beginning of a log that begins at offset 0, and from each good snapshot on. Where offsets have
no record, compaction may have removed what a state came from: then nothing is compared before the next snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from topicfs.engine.errors import CorruptSnapshotError
from topicfs.engine.files.regular import read_regular
from topicfs.engine.format.batch_header import ABORT
from topicfs.engine.format.paths import snapshot_file, transaction_index_file
from topicfs.engine.format.transaction_index import ENTRY, VERSION, AbortedTransaction, aborted_in
from topicfs.engine.producer import snapshot
from topicfs.engine.producer.entry import BatchInfo, ProducerEntry
from topicfs.engine.record import NO_OFFSET
from topicfs.engine.verify.finding import Finding, Kind, Severity

_MOST_INDEX_BYTES: Final = 256 * 1024 * 1024
_NO_COORDINATOR: Final = -1
_FORGOTTEN: Final = (
    "no record is lost; an older snapshot is used, and the log behind it is read at the next start"
)
_WRONG_STATE: Final = (
    "no record is lost; a producer may be refused, or a batch that it repeats be appended again"
)
_ABORTED_READ: Final = "readers may get records of a transaction that was aborted"
_HIDDEN: Final = "readers of committed records may miss some"


@dataclass(slots=True)
class Replay:
    """The replay of a partition's batches.

    directory   directory of the partition
    is_known    whether the state is that of the log, and nothing is missing in it
    entries     the producers
    open        first offset of each open transaction, by producer
    filled      those of the open transactions that have records in the log
    """

    directory: Path
    is_known: bool
    entries: dict[int, ProducerEntry] = field(default_factory=dict)
    open: dict[int, int] = field(default_factory=dict)
    filled: set[int] = field(default_factory=set)

    # -- batches --------------------------------------------------------------------------------------

    def take(self, batch: BatchInfo, records: int) -> tuple[AbortedTransaction, bool] | None:
        """Apply a batch. Return the transaction that it aborts, and whether records of it are in the log."""
        producer = batch.producer_id
        entry = self.entries.get(producer, ProducerEntry(producer))
        if not batch.is_control:
            self.entries[producer] = entry.with_batch(batch)
            if batch.is_transactional:
                self.open.setdefault(producer, batch.base_offset)
                if records:
                    self.filled.add(producer)
            return None
        if batch.marker is None:
            return None
        self.entries[producer] = entry.with_marker(
            batch.producer_epoch, batch.marker.coordinator_epoch, batch.max_timestamp
        )
        first, was_filled = self.open.pop(producer, None), producer in self.filled
        self.filled.discard(producer)
        if first is None or batch.marker.kind != ABORT:
            return None
        end = batch.base_offset + 1
        stable = min(end, min(self.open.values(), default=end))
        return AbortedTransaction(producer, first, batch.base_offset, stable), was_filled

    # -- snapshots ------------------------------------------------------------------------------------

    def meet(self, offset: int) -> Iterator[Finding]:
        """Compare the state with the snapshot at an offset, and go on with that."""
        path = self.directory / snapshot_file(offset)
        try:
            stored = {entry.producer_id: entry for entry in snapshot.read(path)}
        except FileNotFoundError:
            return
        except (CorruptSnapshotError, OSError) as error:
            yield _of_snapshot(path, "", "a snapshot that can be read", str(error), _FORGOTTEN)
            return
        if self.is_known:
            yield from self._compared(path, stored)
        self.is_known = True
        self.entries = stored
        kept = self.open
        self.open = {
            producer: entry.current_transaction_first_offset
            for producer, entry in stored.items()
            if entry.current_transaction_first_offset != NO_OFFSET
        }
        self.filled = {each for each in self.filled if kept.get(each) == self.open.get(each, NO_OFFSET)}

    def _compared(self, path: Path, stored: dict[int, ProducerEntry]) -> Iterator[Finding]:
        for producer, entry in stored.items():
            expected = self.entries.get(producer)
            if expected is None:
                yield _of_snapshot(
                    path,
                    f"producer {producer}",
                    "no such producer, as the log has none",
                    _told(entry),
                    _WRONG_STATE,
                )
                continue
            # Who was forgotten for being idle, and came back, has lost its last batch, or the epoch of its coordinator.
            if entry.coordinator_epoch == _NO_COORDINATOR:
                expected = replace(expected, coordinator_epoch=_NO_COORDINATOR)
            if not entry.batches:
                expected = replace(expected, batches=())
            if _told(expected) != _told(entry):
                yield _of_snapshot(path, f"producer {producer}", _told(expected), _told(entry), _WRONG_STATE)
        for producer, first in self.open.items():
            if producer not in stored:
                yield _of_snapshot(
                    path,
                    f"producer {producer}",
                    f"its transaction, which is open from offset {first} on",
                    "nothing of this producer",
                    _WRONG_STATE,
                )

    def forget(self) -> None:
        """Note that the state is not known from here on."""
        self.is_known = False


def _told(entry: ProducerEntry) -> str:
    return (
        f"epoch {entry.epoch}, last sequence {entry.last_sequence}, last offset {entry.last_data_offset}, "
        f"delta {entry.last_offset_delta}, timestamp {entry.last_timestamp}, "
        f"coordinator epoch {entry.coordinator_epoch}, "
        f"transaction from {entry.current_transaction_first_offset}"
    )


def _of_snapshot(path: Path, at: str, expected: str, found: str, effect: str) -> Finding:
    return Finding(Severity.REPAIRABLE, Kind.PRODUCER_SNAPSHOT, path, at, expected, found, effect)


# -- transaction indexes ------------------------------------------------------------------------------


def transaction_index(
    directory: Path,
    base: int,
    next_offset: int,
    aborted: Sequence[tuple[AbortedTransaction, bool]],
    is_complete: bool,
    growing: bool,
) -> Iterator[Finding]:
    """Compare a segment's transaction index with the transactions whose abort markers were found in it.

    aborted      these transactions, each with whether records of it are in the log
    is_complete  whether all transactions are known that may have an entry: those that the log shows are always known"""
    path = directory / transaction_index_file(base)
    try:
        with read_regular(path) as file:
            data = file.read(_MOST_INDEX_BYTES)
    except FileNotFoundError:
        data = b""
    except OSError as error:
        yield _of_index(path, "", "a file that can be read", str(error), _ABORTED_READ)
        return
    if len(data) % ENTRY.size:
        yield _of_index(path, "", f"a multiple of {ENTRY.size} bytes", str(len(data)), _ABORTED_READ)
    versions = {
        number
        for number, (version, *_) in enumerate(ENTRY.struct.iter_unpack(_whole(data)))
        if version != VERSION
    }
    expected = {each.last_offset: each for each, _ in aborted}
    before = base - 1
    seen = set()
    for number, entry in enumerate(aborted_in(data)):
        at = f"entry {number}"
        if number in versions:
            yield _of_index(path, at, f"version {VERSION}", "another one", _ABORTED_READ)
        if entry.last_offset <= before:
            yield _of_index(path, at, f"a marker behind offset {before}", _shown(entry), _ABORTED_READ)
        elif not entry.first_offset <= entry.last_offset or entry.last_stable_offset > entry.last_offset + 1:
            yield _of_index(path, at, "offsets in their order", _shown(entry), _ABORTED_READ)
        before = max(before, entry.last_offset)
        known = expected.get(entry.last_offset)
        seen.add(entry.last_offset)
        if known is None:
            if is_complete and (entry.last_offset < next_offset or not growing):
                yield _of_index(
                    path, at, "a transaction that the log shows as aborted", _shown(entry), _HIDDEN
                )
        elif is_complete and known != entry:
            yield _of_index(path, at, _shown(known), _shown(entry), _ABORTED_READ)
        elif (known.producer_id, known.last_offset) != (entry.producer_id, entry.last_offset):
            yield _of_index(path, at, f"producer {known.producer_id}", _shown(entry), _ABORTED_READ)
    for each, is_filled in aborted:
        if is_filled and each.last_offset not in seen:
            yield _of_index(path, "", f"an entry for {_shown(each)}", "none", _ABORTED_READ)


def _whole(data: bytes) -> bytes:
    return data[: len(data) // ENTRY.size * ENTRY.size]


def _shown(entry: AbortedTransaction) -> str:
    return (
        f"producer {entry.producer_id}, offsets {entry.first_offset} to {entry.last_offset}, "
        f"stable from {entry.last_stable_offset}"
    )


def _of_index(path: Path, at: str, expected: str, found: str, effect: str) -> Finding:
    return Finding(Severity.DAMAGE, Kind.TRANSACTION_INDEX, path, at, expected, found, effect)
