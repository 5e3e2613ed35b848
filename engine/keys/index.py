"""The index of a partition's keys: it follows the log up to the stable offset, and says which record is a key's last.

It is made when it is first asked for, from its checkpoint and what came after that; without one from the whole log. It
only needs to read what was appended since: compaction keeps the last record of each key, with its offset, and what lies
below the start offset does not count.

Where a batch is damaged nobody knows which keys it has. So a key is answered only if its last record is known to lie
behind the damage.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.table import Longs
from topicfs.engine.errors import CorruptBatchError, CorruptError, OffsetOutOfRangeError
from topicfs.engine.format.paths import KEYS_CHECKPOINT
from topicfs.engine.keys.checkpoint import Checkpoint, Witness, decode, encode
from topicfs.engine.keys.table import KeyTable, Place
from topicfs.engine.partition.offsets import Isolation
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.snapshot import Snapshot
from topicfs.engine.record import Record

if TYPE_CHECKING:
    from topicfs.engine.keys.listing import KeyListing

log = logging.getLogger(__name__)

CHECKPOINT_EVERY: Final = 100_000
"""Records after which the job writes a new checkpoint: that many are read again after a crash, in some 20 ms."""

CHECKPOINT_SHARE: Final = 10
"""A large table is written when at least a tenth of its keys has changed: the checkpoint has 24 bytes a key."""

MOST_BYTES: Final = 1 << 36
"""Bytes of a checkpoint that is read, at most: those of some three thousand million keys."""

_WITNESSES: Final = 4


class CheckpointPlace(Protocol):
    """Where checkpoints are kept from one run to the next. To lose one costs only time."""

    def load(self, partition: str, name: str, most: int = ...) -> bytes | None:
        """Return what was saved under this name, or None if there is nothing, or more than `most` bytes."""

    def save(self, partition: str, name: str, data: bytes) -> None:
        """Save data under a name, and replace what was there."""

    def remove(self, partition: str, name: str) -> None:
        """Remove what was saved under this name."""


class KeyIndex:
    """The last record of each key of one partition.

    partition      the partition
    table          the table of keys
    next_offset    everything visible below this offset was put into the table
    damaged_below  a record below this offset is not known to be its key's last one: damage may hide another
    read           how many records were read for the table in this run
    seconds        the time that this took, and the reading of the checkpoint
    lookups        how many keys were looked up in this run
    _place         where its checkpoint is kept
    _cuts          how many truncations there were when the table was begun
    _saved         `next_offset` when the checkpoint was last written
    _listings      the listings that are open: they are told which records are no longer the last ones
    _lock          held while the table is looked at or grows
    """

    def __init__(self, partition: Partition, place: CheckpointPlace) -> None:
        self.partition = partition
        self.damaged_below = 0
        self.read = self.lookups = 0
        self.seconds = 0.0
        self._place = place
        self._listings: set[KeyListing] = set()
        self._lock = threading.Lock()
        self._begin(partition.log.snapshot)
        if not self._cuts:
            began = time.monotonic()
            self._restore()
            self.seconds = time.monotonic() - began

    # -- looking up -----------------------------------------------------------------------------------

    def find(self, key: bytes) -> int | None:
        """Return the offset of a key's last record, or None if the key is not live: it was never set, or its last
        record is a tombstone. CorruptError if damage may hide a later record of it."""
        with self._lock:
            self._catch_up()
            self.lookups += 1
            place = self.table.find(key)
            self._check_known(key, place)
        if place is None or place.is_tombstone or place.offset < self.partition.start_offset:
            return None
        return place.offset

    def record(self, key: bytes, read: Callable[[int], Record | None] | None = None) -> Record | None:
        """Return the last record of a key, or None if the key is not live. `read` gives the record at an offset."""
        offset = self.find(key)
        while offset is not None:
            record = (read or self.partition.record)(offset)
            if record is not None:
                if record.key != key:
                    raise CorruptBatchError(
                        f"{self.partition.name}: offset {offset}: expected a record of the key {key!r}, found "
                        f"{record.key!r}"
                    )
                return record
            # Another one has taken its place since, and compaction has removed it: the key was live all the time.
            before, offset = offset, self.find(key)
            if offset == before:
                return None
        return None

    def last_undecided(self, key: bytes) -> int | None:
        """Return the offset of the key's last record in what no reader may see yet, behind an open transaction, or
        None if it has none there."""
        now = self.partition.log.snapshot
        last = None
        if now.stable < now.end:
            for part in self.partition.columns(now.stable, now.end, Isolation.UNCOMMITTED):
                for record in part.records():
                    if record.key == key:
                        last = record.offset
        return last

    def _check_known(self, key: bytes, place: Place | None) -> None:
        if (0 if place is None else place.offset + 1) <= self.damaged_below and self.damaged_below:
            raise CorruptBatchError(
                f"{self.partition.name}: records below offset {self.damaged_below} cannot be read: whether a later one "
                f"of the key {key!r} is among them is not known"
            )

    @property
    def live(self) -> int:
        """Return how many keys are live, with those whose records retention has removed since the table last grew."""
        with self._lock:
            self._catch_up()
            return self.table.live

    # -- following the log ----------------------------------------------------------------------------

    @property
    def behind(self) -> int:
        """Return how many offsets lie between the table and the stable offset. It waits for nobody who reads them."""
        return max(0, self.partition.stable_offset - self.next_offset)

    def catch_up(self) -> None:
        """Put what was appended, so that the next look-up has less to read."""
        with self._lock:
            self._catch_up()

    def open_listing(self, listing: KeyListing) -> None:
        """Tell a listing from now on which records are no longer the last ones of their keys. It begins with the table
        as it is at the stable offset that this gives it."""
        with self._lock:
            self._catch_up()
            listing.end_offset = self.next_offset
            self._listings.add(listing)

    def close_listing(self, listing: KeyListing) -> None:
        """Tell a listing no more."""
        with self._lock:
            self._listings.discard(listing)

    def choose(self, listing: KeyListing, columns: Columns) -> Columns:
        """Return the records of a chunk that are in a listing, by the table as it is now."""
        with self._lock:
            return listing.chosen_of(self.table, columns)

    def _begin(self, now: Snapshot) -> None:
        self._cuts = now.cuts
        self.damaged_below = 0
        self.table = KeyTable.create(now.start)
        self.next_offset = self._saved = now.start

    def _catch_up(self) -> None:
        now = self.partition.log.snapshot
        if now.cuts != self._cuts or self.next_offset > now.end:
            self._begin(now)
        if self.next_offset >= now.stable:
            return
        began = time.monotonic()
        try:
            self._read_up_to(now)
        finally:
            self.seconds += time.monotonic() - began

    def _read_up_to(self, now: Snapshot) -> None:
        while self.next_offset < now.stable:
            start = max(self.next_offset, now.start)
            try:
                self._put(start, now.stable)
            except CorruptError as error:
                self._pass_damage(max(self.next_offset, now.start), now.stable, error)
            except OffsetOutOfRangeError:
                before, now = now, self.partition.log.snapshot
                if (now.start, now.cuts) == (before.start, before.cuts):
                    raise
                if now.cuts != self._cuts:
                    self._begin(now)

    def _put(self, start: int, end: int) -> None:
        for part in self.partition.columns(start, end):
            for replaced in self.table.put(part, self.partition.start_offset):
                self._tell(replaced)
            self.read += len(part)
            self.next_offset = int(part.offsets[-1]) + 1
        self.next_offset = end

    def _tell(self, replaced: Longs) -> None:
        for listing in self._listings:
            listing.note_replaced(replaced)

    def _pass_damage(self, start: int, end: int, error: CorruptError) -> None:
        """Put the next batch alone, because it, or one that was read together with it, cannot be read; if it is this
        one, pass over it."""
        behind = None
        segments = self.partition.log.snapshot.segments
        segment = segments.floor(start)
        following = None if segment is None else segments.higher(segment.base_offset)
        limit = end if following is None else min(end, following.base_offset)
        try:
            found = None if segment is None else segment.position_of(start)
            if found is not None:
                behind = min(limit, max(start, found[3]) + 1)
                self._put(start, behind)
                return
        except CorruptError as problem:
            error = problem
        sound = None if segment is None or behind is not None else segment.finder.damage_at(start)[1]
        self.next_offset = self.damaged_below = behind or min(limit, sound or limit)
        log.error(
            f"{self.partition.name}: keys of the offsets {start} to {self.next_offset - 1} are not known: {error}"
        )

    # -- the checkpoint -------------------------------------------------------------------------------

    def save_if_due(self) -> bool:
        """Write the checkpoint if much has changed since it was written. Return whether it was."""
        changed = self.next_offset - self._saved
        if changed < max(CHECKPOINT_EVERY, self.table.live // CHECKPOINT_SHARE):
            return False
        return self.save()

    def save(self) -> bool:
        """Write the checkpoint if anything has changed since it was written. Return whether it was. A table that damage
        has left incomplete is not kept, as the damage may be repaired later."""
        with self._lock:
            if self.next_offset == self._saved or self.damaged_below or not self.partition.is_open:
                return False
            if self.next_offset > self.partition.stable_offset:
                return False
            witnesses = []
            for slot in self.table.newest(_WITNESSES):
                digest = self._digest(self.table.place_in(slot).offset)
                if digest is not None:
                    witnesses.append(Witness(slot, digest))
            data = encode(Checkpoint(self.table, self.next_offset, witnesses))
            reached = self.next_offset
        self._place.save(self.partition.name, KEYS_CHECKPOINT, data)
        self._saved = reached
        return True

    def _restore(self) -> None:
        """Begin with the checkpoint, if it is one of this log."""
        data = self._place.load(self.partition.name, KEYS_CHECKPOINT, MOST_BYTES)
        if data is None:
            return
        found = decode(data)
        fresh = self.table, self.next_offset
        problem = "it is damaged" if found is None else None
        if found is not None:
            self.table, self.next_offset = found.table, found.next_offset
            problem = self._problem_of(found)
        if problem is None:
            self._saved = self.next_offset if found is None else found.next_offset
            return
        self.table, self.next_offset = fresh
        log.warning(f"{self.partition.name}: the checkpoint of its keys is made anew: {problem}")
        with contextlib.suppress(OSError):
            self._place.remove(self.partition.name, KEYS_CHECKPOINT)

    def _problem_of(self, found: Checkpoint) -> str | None:
        """Return why a checkpoint is not one of this log, or None if it is. It is in use already, so that the records
        behind it can tell."""
        now = self.partition.log.snapshot
        if found.next_offset > now.stable:
            return f"it reaches to offset {found.next_offset}, beyond the stable offset {now.stable}"
        try:
            self._catch_up()
            for witness in found.witnesses:
                place = found.table.place_in(witness.slot)
                digest = self._digest(place.offset) if place.offset >= now.start else None
                if digest == witness.digest or place.offset < now.start:
                    continue
                # Compaction removes a tombstone that has had its time, and a record that is no longer its key's last.
                if digest is not None or not (place.is_tombstone or self._is_replaced(witness)):
                    return f"offset {place.offset} has another record than it had"
        except CorruptError as error:
            return str(error)
        return None

    def _is_replaced(self, witness: Witness) -> bool:
        slots = self.table.slots
        mark = witness.slot[1] >> 48
        same = np.flatnonzero((slots[::2] == witness.slot[0]) & (slots[1::2] >> 48 == mark))
        return not any(int(slots[2 * at + 1]) == witness.slot[1] for at in same.tolist())

    def _digest(self, offset: int) -> int | None:
        """Return a hash of the record at an offset, or None if there is none."""
        record = self.partition.record(offset)
        if record is None:
            return None
        content = hashlib.blake2b(digest_size=8)
        for field in (record.key or b"", record.value or b"", str(record.timestamp).encode()):
            content.update(len(field).to_bytes(8, "little") + field)
        return int.from_bytes(content.digest(), "little", signed=True)
