"""The producer state of one partition: it checks appends, knows the open transactions, and writes snapshots.

An append is prepared (`prepare`, then `add` for each batch), written to the log, and committed (`commit`).
Preparing changes nothing. Markers among the batches complete transactions. For each of `update.completed`, in
order, the partition asks for its `last_stable_offset_for`, writes the transaction index if it was aborted, and then
calls `complete_transaction`. So a transaction whose index entry could not be written stays open.

    open ──marker──▶ unreplicated ──high watermark above the marker──▶ forgotten
    └────────── both hold the stable offset down ──────────┘

Changes need the partition's lock. `first_unstable_offset`, `map_end_offset` and `producers` may be read without it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from bisect import bisect_left, insort
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Final

from topicfs.engine.batch.marker import Marker
from topicfs.engine.errors import (
    CorruptSnapshotError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from topicfs.engine.format.batch_header import ABORT
from topicfs.engine.format.paths import DELETED_SUFFIX, SNAPSHOT_SUFFIX, TEMPORARY_SUFFIX, snapshot_file
from topicfs.engine.producer import snapshot
from topicfs.engine.producer.entry import BatchInfo, BatchMetadata, Origin, ProducerEntry, increment
from topicfs.engine.record import MAX_INT64, NO_OFFSET, NO_PRODUCER_EPOCH, NO_PRODUCER_ID

log = logging.getLogger(__name__)


_SNAPSHOT: Final = re.compile(rf"([0-9]{{20}}){re.escape(SNAPSHOT_SUFFIX)}({re.escape(TEMPORARY_SUFFIX)})?")


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that has no marker yet.

    producer_id   the id of its producer, which has at most one open transaction
    first_offset  the offset of its first record
    """

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """A transaction that wrote records and was then ended by a marker.

    producer_id   the id of its producer
    first_offset  the offset of its first record
    last_offset   the offset of its marker
    is_aborted    whether the marker is an abort marker
    """

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


_first_offset = attrgetter("first_offset")


class ProducerUpdate:
    """The changes of one append, which `ProducerStates.commit` applies. An update that is not committed has no effect.

    origin      the source of the append
    end_offset  the offset behind the last batch that was added, NO_OFFSET before the first
    entries     the producers' entries after the append, by producer id
    started     the transactions that the append begins, in order
    completed   the transactions that the append ends, in order
    """

    __slots__ = ("_place", "_producers", "completed", "end_offset", "entries", "origin", "started")

    def __init__(self, producers: Mapping[int, ProducerEntry], origin: Origin, place: Path) -> None:
        self._producers = producers
        self._place = place
        self.origin = origin
        self.end_offset = NO_OFFSET
        self.entries: dict[int, ProducerEntry] = {}
        self.started: list[OpenTransaction] = []
        self.completed: list[CompletedTransaction] = []

    def add(self, batch: BatchInfo) -> BatchMetadata | None:
        """Add the next batch. If a client repeats a batch, return the metadata of the original and add nothing.

        A batch that its producer must not write raises InvalidProducerEpochError, OutOfOrderSequenceError,
        InvalidTransactionStateError or TransactionCoordinatorFencedError; then nothing is added either.
        """
        if batch.producer_id > NO_PRODUCER_ID:
            if not batch.is_control:
                entry = self._entry(batch.producer_id)
                if self.origin is Origin.CLIENT:
                    duplicate = entry.duplicate_of(batch)
                    if duplicate is not None:
                        return duplicate
                self._add_data(entry, batch)
            elif batch.marker is not None:
                self._add_marker(self._entry(batch.producer_id), batch, batch.marker)
        self.end_offset = batch.last_offset + 1
        return None

    def _entry(self, producer_id: int) -> ProducerEntry:
        entry = self.entries.get(producer_id) or self._producers.get(producer_id)
        return entry or ProducerEntry(producer_id)

    def _add_data(self, entry: ProducerEntry, batch: BatchInfo) -> None:
        self._check_epoch(entry, batch)
        if self.origin is Origin.CLIENT:
            self._check_sequence(entry, batch)
        if entry.current_transaction_first_offset != NO_OFFSET:
            if not batch.is_transactional:
                raise InvalidTransactionStateError(
                    f"{self._at(batch)}: expected a transactional batch, as a transaction is open since "
                    f"offset {entry.current_transaction_first_offset}, found one that is not"
                )
        elif batch.is_transactional:
            self.started.append(OpenTransaction(batch.producer_id, batch.base_offset))
        self.entries[batch.producer_id] = entry.with_batch(batch)

    def _add_marker(self, entry: ProducerEntry, batch: BatchInfo, marker: Marker) -> None:
        self._check_epoch(entry, batch)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            message = (
                f"{self._at(batch)}: expected a marker of coordinator epoch {entry.coordinator_epoch} "
                f"or above, found {marker.coordinator_epoch}"
            )
            if self.origin is not Origin.REPLICATION:
                raise TransactionCoordinatorFencedError(message)
            log.info(message)
        if entry.current_transaction_first_offset != NO_OFFSET:
            self.completed.append(
                CompletedTransaction(
                    batch.producer_id,
                    entry.current_transaction_first_offset,
                    batch.base_offset,
                    marker.kind == ABORT,
                )
            )
        self.entries[batch.producer_id] = entry.with_marker(
            batch.producer_epoch, marker.coordinator_epoch, batch.max_timestamp
        )

    def _check_epoch(self, entry: ProducerEntry, batch: BatchInfo) -> None:
        if batch.producer_epoch < entry.epoch:
            expected = f"expected producer epoch {entry.epoch} or above"
            message = f"{self._at(batch)}: {expected}, found {batch.producer_epoch}"
            if self.origin is not Origin.REPLICATION:
                raise InvalidProducerEpochError(message)
            log.warning(message)

    def _check_sequence(self, entry: ProducerEntry, batch: BatchInfo) -> None:
        if entry.epoch == NO_PRODUCER_EPOCH:
            # The producer is not known: its records may be deleted, or it may have been idle for too long.
            return
        # Also 0 when no batch of the epoch is known: the last sequence is −1 then.
        expected = increment(entry.last_sequence, 1) if batch.producer_epoch == entry.epoch else 0
        if batch.base_sequence != expected:
            raise OutOfOrderSequenceError(
                f"{self._at(batch)}: expected sequence {expected} of epoch {batch.producer_epoch} (last was "
                f"{entry.last_sequence} of epoch {entry.epoch}), found {batch.base_sequence}"
            )

    def _at(self, batch: BatchInfo) -> str:
        return f"{self._place}: offset {batch.base_offset}: producer {batch.producer_id}"


class ProducerStates:
    """The producers of one partition directory.

    directory             the directory of the partition
    expiration_ms         the time after which idle producers are forgotten; may be changed
    map_end_offset        the offset up to which the log is included in this state
    first_unstable_offset first offset of the earliest transaction, open or unreplicated; None without one
    producers             a read-only view of the entries
    unsynced              the snapshots that were written without fsync, until a flush takes them
    _producers            the entries by producer id
    _ongoing              the open transactions by rising first offset; exactly those that entries name
    _unreplicated         completed transactions whose marker is not below the high watermark, by rising first offset
    _snapshots            the offsets of the snapshot files, rising
    _last_snapshot_offset the offset at or below which no snapshot is taken
    _read_only            whether snapshots are only read, and neither taken nor deleted
    """

    __slots__ = (
        "_last_snapshot_offset",
        "_ongoing",
        "_producers",
        "_read_only",
        "_snapshots",
        "_unreplicated",
        "directory",
        "expiration_ms",
        "first_unstable_offset",
        "map_end_offset",
        "producers",
        "unsynced",
    )

    def __init__(
        self, directory: Path, expiration_ms: int, snapshots: list[int], read_only: bool = False
    ) -> None:
        self.directory = directory
        self._read_only = read_only
        self.expiration_ms = expiration_ms
        self.map_end_offset = 0
        self.first_unstable_offset: int | None = None
        self._producers: dict[int, ProducerEntry] = {}
        # Read-only. Copy it (`.copy()` is one step) to walk over it without the partition's lock.
        self.producers: Mapping[int, ProducerEntry] = MappingProxyType(self._producers)
        self._ongoing: list[OpenTransaction] = []
        self._unreplicated: list[CompletedTransaction] = []
        self._snapshots = snapshots
        self._last_snapshot_offset = 0
        self.unsynced: list[Path] = []

    @classmethod
    def open(cls, directory: Path, expiration_ms: int) -> ProducerStates:
        """Open the state without producers, and list the snapshots. `truncate_and_reload` reads one of them."""
        return cls(directory, expiration_ms, _find_snapshots(directory))

    @classmethod
    def look(cls, directory: Path, expiration_ms: int) -> ProducerStates:
        """Open the state read-only. No file is changed: snapshots that are not wanted are ignored, not deleted."""
        snapshots = _find_snapshots(directory, read_only=True)
        return cls(directory, expiration_ms, snapshots, read_only=True)

    def __len__(self) -> int:
        return len(self._producers)

    # -- appends ------------------------------------------------------------------------------------

    def prepare(self, origin: Origin) -> ProducerUpdate:
        """Return an update for one append. Commit it before anything else changes here, or drop it."""
        return ProducerUpdate(self._producers, origin, self.directory)

    def commit(self, update: ProducerUpdate) -> None:
        """Apply an update. Its completed transactions stay open until `complete_transaction`."""
        self._producers.update(update.entries)
        for transaction in update.started:
            insort(self._ongoing, transaction, key=_first_offset)
        if update.end_offset != NO_OFFSET:
            self.map_end_offset = update.end_offset
        self._publish()

    def advance(self, end_offset: int) -> None:
        """Move the map end offset: over batches without a producer, and over parts of the log that a replay skips."""
        self.map_end_offset = end_offset

    # -- transactions -------------------------------------------------------------------------------

    @property
    def ongoing(self) -> tuple[OpenTransaction, ...]:
        """The open transactions, by rising first offset."""
        return tuple(self._ongoing)

    @property
    def unreplicated(self) -> tuple[CompletedTransaction, ...]:
        """The completed transactions whose marker is not below the high watermark, by rising first offset."""
        return tuple(self._unreplicated)

    def last_stable_offset_for(self, completed: CompletedTransaction) -> int:
        """Return the last stable offset for its entry in the transaction index; the high watermark is ignored.

        Transactions that begin behind the marker do not count. So a replay that commits many batches at
        once writes the same index as the appends did one by one.
        """
        for transaction in self._ongoing:
            if transaction.producer_id != completed.producer_id:
                return min(transaction.first_offset, completed.last_offset + 1)
        return completed.last_offset + 1

    def complete_transaction(self, completed: CompletedTransaction) -> None:
        """Move a transaction from the open ones to the unreplicated ones."""
        at = bisect_left(self._ongoing, completed.first_offset, key=_first_offset)
        found = self._ongoing[at] if at < len(self._ongoing) else None
        expected = OpenTransaction(completed.producer_id, completed.first_offset)
        if found != expected:
            raise InvalidTransactionStateError(
                f"{self.directory}: expected an open transaction of producer {completed.producer_id} from "
                f"offset {completed.first_offset}, found {found}"
            )
        del self._ongoing[at]
        insort(self._unreplicated, completed, key=_first_offset)
        self._publish()

    def on_high_watermark(self, high_watermark: int) -> None:
        """Forget the completed transactions whose marker is below the high watermark."""
        if self._unreplicated:
            self._unreplicated = [each for each in self._unreplicated if each.last_offset >= high_watermark]
            self._publish()

    def on_start_offset(self, start_offset: int) -> None:
        """Update the state after the start offset has risen. Producers stay, also those whose records are gone."""
        self.on_high_watermark(start_offset)
        self.map_end_offset = max(self.map_end_offset, start_offset)
        latest = self.latest_snapshot_offset
        self._last_snapshot_offset = start_offset if latest is None else latest

    def _publish(self) -> None:
        heads = [*self._ongoing[:1], *self._unreplicated[:1]]
        self.first_unstable_offset = min(map(_first_offset, heads), default=None)

    # -- forgetting and loading ---------------------------------------------------------------------

    def remove_expired(self, now: int) -> int:
        """Forget the idle producers without an open transaction. Return how many there were."""
        expired = [
            producer_id
            for producer_id, entry in self._producers.items()
            if entry.is_expired(now, self.expiration_ms)
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def truncate_and_reload(self, start_offset: int, end_offset: int, now: int) -> None:
        """Load the newest snapshot that is not behind the end, and delete those that are.

        `map_end_offset` is then the offset from which the log must be replayed: the snapshot's offset, or the
        start offset if there is none. A state that ends at the end offset already is kept.

        Snapshots up to the start offset stay until their segments go, other than in Kafka. They alone know producers
        whose records were all removed: without the one at the first segment, the next recovery would forget them, and
        append again what they repeat.
        """
        for offset in list(self._snapshots):
            if offset > end_offset:
                self._delete_snapshot(offset)
        if end_offset == self.map_end_offset:
            self.on_start_offset(start_offset)
            return
        newest = self._snapshots[-1] if self._snapshots else NO_OFFSET
        if self._read_only and max(start_offset, newest) < self.map_end_offset < end_offset:
            # A writer has taken a snapshot of this state, and would load that, without what is expired.
            self.remove_expired(now)
            return
        self._clear()
        offset, entries = self._load(start_offset)
        for entry in entries:
            if entry.is_expired(now, self.expiration_ms):
                continue
            self._producers[entry.producer_id] = entry
            if entry.current_transaction_first_offset != NO_OFFSET:
                self._ongoing.append(
                    OpenTransaction(entry.producer_id, entry.current_transaction_first_offset)
                )
        self._ongoing.sort(key=_first_offset)
        self.map_end_offset = self._last_snapshot_offset = offset
        self._publish()

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Forget every producer and delete every snapshot: the log is empty and begins at `offset`."""
        self._clear()
        for each in list(self._snapshots):
            self._delete_snapshot(each)
        self._last_snapshot_offset = 0
        self.map_end_offset = offset

    def _clear(self) -> None:
        self._producers.clear()
        self._ongoing = []
        self._unreplicated = []
        self._publish()

    def _load(self, start_offset: int) -> tuple[int, list[ProducerEntry]]:
        while self._snapshots:
            offset = self._snapshots[-1]
            try:
                entries = snapshot.read(self._snapshot_path(offset))
            except (CorruptSnapshotError, FileNotFoundError) as error:
                log.warning(f"producer snapshot dropped, the one before it is used: {error}")
                self._delete_snapshot(offset)
            else:
                log.info(f"{self.directory}: {len(entries)} producers in the snapshot at offset {offset}")
                return offset, entries
        return start_offset, []

    # -- snapshots ----------------------------------------------------------------------------------

    @property
    def latest_snapshot_offset(self) -> int | None:
        """The offset of the newest snapshot file."""
        return self._snapshots[-1] if self._snapshots else None

    def take_snapshot(self, *, fsync: bool) -> Path | None:
        """Write a snapshot at the map end offset, and return its path; None where the last one is not older.

        One that was written without `fsync` is `unsynced`: `topicfs.engine.producer.snapshot.flush` makes it durable.
        """
        offset = self.map_end_offset
        # Where the start offset has risen to the end, nothing else would tell of the producers below it: nobody replays
        # their records any more.
        is_needed = bool(self._producers) and not self._snapshots
        if self._read_only or (offset <= self._last_snapshot_offset and not is_needed):
            return None
        path = self._snapshot_path(offset)
        snapshot.write(path, self._producers.values(), fsync=fsync)
        if not fsync:
            self.unsynced.append(path)
        if offset not in self._snapshots:
            insort(self._snapshots, offset)
        self._last_snapshot_offset = offset
        return path

    def remove_stray_snapshots(self, segment_bases: Collection[int]) -> None:
        """Delete the snapshots at whose offset no segment begins. The newest of these stays unless below the last base.

        It was taken at a clean stop. The directory is listed again: the recovery of segments, which has states of its
        own, has written and deleted snapshots in it.
        """
        self._snapshots = _find_snapshots(self.directory, self._read_only)
        bases = frozenset(segment_bases)
        strays = [offset for offset in self._snapshots if offset not in bases]
        if strays and strays[-1] >= max(bases, default=NO_OFFSET):
            strays.pop()
        for offset in strays:
            self._delete_snapshot(offset)

    def mark_snapshot_for_deletion(self, offset: int) -> Path | None:
        """Rename the snapshot at exactly `offset`, and return its new path; None if there is none (any more)."""
        if offset not in self._snapshots:
            return None
        self._snapshots.remove(offset)
        path = self._snapshot_path(offset)
        renamed = path.with_name(path.name + DELETED_SUFFIX)
        try:
            path.rename(renamed)
        except FileNotFoundError:
            log.info(f"{path}: was gone before it was marked for deletion")
            return None
        return renamed

    def _snapshot_path(self, offset: int) -> Path:
        return self.directory / snapshot_file(offset)

    def _delete_snapshot(self, offset: int) -> None:
        if not self._read_only:
            self._snapshot_path(offset).unlink(missing_ok=True)
        self._snapshots.remove(offset)


def _find_snapshots(directory: Path, read_only: bool = False) -> list[int]:
    """Return the offsets of the directory's snapshots, rising. Files that a crash left half-written are deleted."""
    offsets = []
    with os.scandir(directory) as entries:
        for entry in entries:
            name = _SNAPSHOT.fullmatch(entry.name)
            if name is None or int(name[1]) > MAX_INT64:
                continue
            if name[2] is None:
                offsets.append(int(name[1]))
            elif not read_only:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.path)
    return sorted(offsets)
