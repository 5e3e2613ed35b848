"""The state of the groups of one partition of `__consumer_offsets`: what its committed records say.

The state follows the log: whoever appends to it, by a commit, in a transaction or as another process on the same files,
is seen at the next look. Of a key the record with the highest offset counts. So a commit of ours that lies behind an
open transaction counts at once, as it does with Kafka, and what the transaction has committed for the same key before
it does not come back when it ends.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from topicfs.engine import batch as batches
from topicfs.engine.errors import GroupLimitError
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.format.batch_header import CONTROL, TRANSACTIONAL
from topicfs.engine.groups.records import (
    Entry,
    GroupEntry,
    GroupMetadata,
    NewerEntry,
    Position,
    PositionEntry,
    entry_of,
    record_of,
)
from topicfs.engine.kernels.scan import ATTRIBUTES, LAST_OFFSET
from topicfs.engine.partition.offsets import Isolation
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import NO_OFFSET

MOST_POSITIONS: Final = 500_000
"""How many positions one partition may have here: each takes some 300 bytes of memory. New ones are refused then."""

_CHUNK_BYTES: Final = 1 << 20


@dataclass(slots=True)
class GroupState:
    """What is known of one group.

    positions  how far it has read each partition
    metadata   its members; None of a group that only has positions
    newer      the newer protocol that it belongs to, None for none: then its members are a broker's
    """

    positions: dict[PartitionKey, Position] = field(default_factory=dict)
    metadata: GroupMetadata | None = None
    newer: str | None = None

    @property
    def is_there(self) -> bool:
        """Tell whether there is such a group."""
        return bool(self.positions or self.metadata or self.newer)


class GroupLog:
    """The groups of one partition.

    partition   the partition, which is never replaced: a topic that is made again gets a new state
    lock        held while the state changes, and from a look at it to the append that relies on that
    groups      the state of each group
    _applied    below this offset all committed records are in the state
    _offsets    the offset of the record behind each thing in the state, and of later removals
    _positions  how many positions there are
    _cuts       the truncations that the state knows of
    """

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.lock = threading.RLock()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.groups: dict[str, GroupState] = {}
        self._applied = NO_OFFSET
        self._offsets: dict[object, int] = {}
        self._removed: dict[object, int] = {}
        self._positions = 0
        self._cuts = self.partition.log.snapshot.cuts

    def catch_up(self) -> None:
        """Take up what was committed since the last look."""
        self.partition.catch_up()
        now = self.partition.log.snapshot
        if now.stable == self._applied and now.cuts == self._cuts:
            return
        with self.lock:
            now = self.partition.log.snapshot
            if now.cuts != self._cuts:
                self._begin_anew()
            is_first = self._applied == NO_OFFSET
            latest: dict[bytes, tuple[int, bytes | None]] = {}
            start = max(self._applied, now.start)
            for columns in self.partition.columns(start, now.stable) if start < now.stable else ():
                for record in columns.records():
                    if record.key is not None:
                        latest[record.key] = record.offset, record.value
            if is_first:
                self._find_undecided(now.stable, now.end, latest)
            for key, (offset, value) in latest.items():
                entry = entry_of(key, value)
                if entry is not None:
                    self._apply(entry, offset)
            self._applied = max(self._applied, now.stable)
            self._removed = {each: at for each, at in self._removed.items() if at >= now.stable}

    def _find_undecided(self, offset: int, end: int, latest: dict[bytes, tuple[int, bytes | None]]) -> None:
        """Find the commits that lie behind an open transaction, and belong to none."""
        while offset < end:
            data = np.frombuffer(self.partition.read(offset, _CHUNK_BYTES, Isolation.LOG_END).data, np.uint8)
            table, _ = batches.scan_whole(data)
            if not len(table):
                return
            own = table[table[:, ATTRIBUTES] & (TRANSACTIONAL | CONTROL) == 0]
            for columns in batches.columns(data, own):
                for record in columns.records():
                    if record.key is not None and record.offset >= offset:
                        latest[record.key] = record.offset, record.value
            offset = int(table[-1, LAST_OFFSET]) + 1

    def append(self, entries: Sequence[PositionEntry | GroupEntry]) -> None:
        """Append the records of these entries, in one batch, and take them up. The caller holds the lock."""
        self.check_room(entries)
        appended = self.partition.append([record_of(entry) for entry in entries])
        for offset, entry in enumerate(entries, appended.first_offset):
            self._apply(entry, offset)
        if self._applied == appended.first_offset == self.partition.stable_offset - len(entries):
            self._applied = appended.last_offset + 1

    def check_room(self, entries: Sequence[PositionEntry | GroupEntry]) -> None:
        """Refuse new positions where there are too many. The caller holds the lock."""
        added = sum(
            entry.position is not None and entry.key not in self._state(entry.group).positions
            for entry in entries
            if isinstance(entry, PositionEntry)
        )
        if added and self._positions + added > MOST_POSITIONS:
            raise GroupLimitError(
                f"{self.partition.name}: expected at most {MOST_POSITIONS} positions of groups, found one more"
            )

    def _state(self, group: str) -> GroupState:
        found = self.groups.get(group)
        return GroupState() if found is None else found

    def _apply(self, entry: Entry, offset: int) -> None:
        place = (type(entry), entry.group, entry.key if isinstance(entry, PositionEntry) else None)
        if offset <= self._offsets.get(place, self._removed.get(place, NO_OFFSET)):
            return
        state = self.groups.get(entry.group)
        if state is None:
            state = self.groups[entry.group] = GroupState()
        match entry:
            case PositionEntry(_, key, position):
                self._positions += (position is not None) - (key in state.positions)
                if position is None:
                    state.positions.pop(key, None)
                else:
                    state.positions[key] = position
                is_there = position is not None
            case GroupEntry(_, metadata):
                state.metadata, is_there = metadata, metadata is not None
            case NewerEntry(_, protocol, is_there):
                state.newer = protocol if is_there else None
        if is_there:
            self._offsets[place] = offset
            self._removed.pop(place, None)
        else:
            self._offsets.pop(place, None)
            self._removed[place] = offset
        if not state.is_there:
            del self.groups[entry.group]
