"""The mirror of one partition: what a leader's answer to a fetch becomes here.

Batches are appended as they came, as a replica does: with their offsets, bytes, leader epochs and producers. Only a
consumer's fetch is used, which ends at the leader's high watermark. So the end of a mirror is a high watermark too. A
transaction whose marker is not below it is open here as well: the stable offset here is never above the leader's.

    asked at `position` ──▶ `take` checks the answer ──▶ `position` moves ──▶ `append`, while the next one is on its way

What came is not believed: checksums, lengths and the order of offsets are checked, and an epoch above the leader's is
refused. A leader compares the epoch of our last batch with its own; where they part, what it does not have is cut off.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from topicfs.engine.batch.table import Bytes, Longs, scan_whole
from topicfs.engine.errors import CorruptBatchError, EngineError, LinkError
from topicfs.engine.kernels.scan import BASE_OFFSET, LAST_OFFSET, LEADER_EPOCH, POSITION, SIZE
from topicfs.engine.link.answer import PartitionAnswer
from topicfs.engine.link.cluster import ClusterPartition
from topicfs.engine.linked.state import MirrorState
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import NO_LEADER_EPOCH
from topicfs.engine.store.store import Store

log = logging.getLogger(__name__)

_RATE_S: Final = 5.0
"""The time over which the rate is an average."""

_NOTES: Final = 10


@dataclass(frozen=True, slots=True)
class Asked:
    """What a leader is asked for.

    position      the first offset that is wanted
    epoch         the leader epoch of the batch before it, −1 without one
    leader_epoch  the epoch of the leader that is asked
    """

    position: int
    epoch: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Checked batches that are to be appended.

    position     the offset that was asked for: they are what the leader has from there on
    data, table  their bytes, and the batch table
    """

    position: int
    data: Bytes
    table: Longs


class Mirror:
    """The mirror of one partition. One fetcher at a time works on it, its `owner`.

    partition      the partition here
    topic_id       the id of its topic, here and in the cluster
    owner          the fetcher that asks its leader; None while nobody does
    leader         who leads it in the cluster, as far as that is known
    position       the offset that is asked for next: the end of the log, or that of what waits to be appended
    epoch          the leader epoch of the batch before it
    retry_at       when it is asked for again after an error, by time.monotonic
    failures       how many errors came one after the other
    _floor         offsets below are no longer in the cluster
    _is_released   whether nobody mirrors it any more
    _may_write     tells whether the partition is this daemon's to write to at this moment
    _lock          held while an answer is taken, or appended, or the owner changes
    _rated         when the rate was last computed, and the bytes mirrored until then
    """

    def __init__(
        self,
        store: Store,
        partition: Partition,
        topic_id: str,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.owner: object | None = None
        self.leader = ClusterPartition(-1, NO_LEADER_EPOCH)
        self.position = 0
        self.epoch = NO_LEADER_EPOCH
        self.retry_at = 0.0
        self.failures = 0
        self._floor = 0
        self._is_released = False
        self._store = store
        self._may_write = may_write
        self._lock = threading.RLock()
        self._rated = (time.monotonic(), 0)
        self.state = MirrorState()

    def __repr__(self) -> str:
        return f"<Mirror {self.name} at {self.position}>"

    @property
    def topic(self) -> str:
        """Return the name of the topic."""
        return self.partition.topic

    @property
    def number(self) -> int:
        """Return the number of the partition."""
        return self.partition.number

    @property
    def name(self) -> str:
        """Return `<topic>-<number>`."""
        return self.partition.name

    @property
    def state(self) -> MirrorState:
        """The state that people see."""
        return self._store.links.mirrors.get((self.topic, self.number), MirrorState())

    @state.setter
    def state(self, state: MirrorState) -> None:
        if not self._is_released:
            self._store.links.mirrors[self.topic, self.number] = state

    # -- who asks -------------------------------------------------------------------------------------

    def assign(self, owner: object | None, leader: ClusterPartition) -> None:
        """Have another fetcher ask this leader from now on. What the one before has not appended is asked for again."""
        with self._lock:
            if self.owner is owner and self.leader == leader:
                return
            self.owner, self.leader = owner, leader
            self.retry_at = 0.0
            self._begin_at_end()
            self.state = replace(
                self.state,
                leader=leader.leader if leader.leader >= 0 else None,
                leader_epoch=leader.leader_epoch,
            )

    def _begin_at_end(self) -> None:
        now, epochs = self.partition.offsets, self.partition.log.epochs
        self.position = max(now.end, self._floor)
        epoch = epochs.epoch_for_offset(now.end - 1) if now.end > now.start else None
        self.epoch = NO_LEADER_EPOCH if epoch is None else epoch

    def release(self) -> None:
        """End the mirror: nobody asks any more, and it has no state."""
        with self._lock:
            self.owner = None
            self.partition.log.remote = None
            self._is_released = True
            self._store.links.mirrors.pop((self.topic, self.number), None)

    def asks(self, owner: object) -> Asked | None:
        """Return what to ask the leader for; None where another fetcher does, or it is too early after an error."""
        with self._lock:
            if self.owner is not owner or time.monotonic() < self.retry_at or not self._may_write():
                return None
            return Asked(self.position, self.epoch, self.leader.leader_epoch)

    # -- answers --------------------------------------------------------------------------------------

    def take(self, owner: object, asked: Asked, told: PartitionAnswer) -> Chunk | None:
        """Check a leader's answer without an error, and return what is to be appended of it. CorruptBatchError or
        LinkError where it cannot be used."""
        with self._lock:
            if not self._is_due(owner, asked):
                return None
            chunk = self._checked(told.records, told.high_watermark) if len(told.records) else None
            if chunk is not None:
                self.position = int(chunk.table[-1, LAST_OFFSET]) + 1
                self.epoch = int(chunk.table[-1, LEADER_EPOCH])
            self._note_answer(told.high_watermark, told.stable_offset)
            if chunk is None and self.position != max(self.partition.end_offset, self._floor):
                # All that came before was appended. So somebody else has changed the log since.
                self._begin_at_end()
            elif chunk is None:
                self._note_success()
            return chunk

    def _is_due(self, owner: object, asked: Asked) -> bool:
        """Tell whether an answer is to what would be asked now: an error, or another owner, begins again."""
        is_asked = asked == Asked(self.position, self.epoch, self.leader.leader_epoch)
        return self.owner is owner and is_asked and self._may_write()

    def _checked(self, data: Bytes, high_watermark: int) -> Chunk | None:
        table, _ = scan_whole(data)
        falling = np.flatnonzero(table[1:, BASE_OFFSET] <= table[:-1, LAST_OFFSET])
        if falling.size:
            at = int(falling[0])
            raise CorruptBatchError(
                f"{self.name}: the leader's batch {at + 1} begins at offset {table[at + 1, BASE_OFFSET]}, expected one "
                f"above {table[at, LAST_OFFSET]}"
            )
        # What a broken broker gives beyond its own high watermark may be lost in an election.
        table = table[(table[:, LAST_OFFSET] >= self.position) & (table[:, LAST_OFFSET] < high_watermark)]
        if not len(table):
            return None
        newest = int(table[:, LEADER_EPOCH].max())
        if newest > self.leader.leader_epoch:
            raise CorruptBatchError(
                f"{self.name}: the leader of epoch {self.leader.leader_epoch} gave a batch of epoch {newest}"
            )
        first, last = int(table[0, POSITION]), int(table[-1, POSITION] + table[-1, SIZE])
        table[:, POSITION] -= first
        return Chunk(self.position, data[first:last], table)

    def append(self, owner: object, chunk: Chunk) -> None:
        """Append what `take` has returned. Where something before it was never appended, or the mirror has begun again
        since, nothing is appended, and the leader is asked again from the log's end on. So it is after an error, which
        is raised."""
        with self._lock:
            if self.owner is not owner:
                return
            if chunk.position != max(self.partition.end_offset, self._floor):
                self._begin_at_end()
                return
            try:
                self._align(int(chunk.table[0, BASE_OFFSET]))
                for data, table in _pieces(chunk, self.partition.settings.segment_bytes):
                    if not self._may_write():
                        # The process was stopped for longer than a session: others may have the partition by now.
                        self._begin_at_end()
                        return
                    self.partition.append_scanned(data, table)
                    self._note_appended(data.size, len(table))
            except (EngineError, OSError):
                self._begin_at_end()
                raise
            self._note_success()
            self._note_lag()

    def _align(self, first: int) -> None:
        """Have an empty log begin with the whole batch that holds the offset that was asked for."""
        now = self.partition.offsets
        if first < now.end and now.start == now.end:
            self._store.restart_at(self.topic, self.number, first)

    # -- when logs part -------------------------------------------------------------------------------

    def diverged(self, owner: object, asked: Asked, epoch: int, end_offset: int) -> None:
        """Cut off what the leader does not have: its largest epoch that is not above ours ends at `end_offset`."""
        with self._lock:
            if not self._is_due(owner, asked):
                return
            end = self.partition.end_offset
            own_epoch, own_end = self.partition.log.epochs.end_offset_for(epoch, end)
            cut = min(own_end, end_offset) if own_epoch == epoch else own_end
            if epoch < 0 or end_offset < 0 or not 0 <= cut < end:
                raise LinkError(
                    f"{self.name}: the leader says that its epoch {epoch} ends at offset {end_offset}, and the epochs "
                    f"here do not tell where they part: nothing is removed"
                )
            self._store.truncate(self.topic, self.number, cut)
            lost = end - cut
            words = (
                f"offsets {cut} to {end - 1} were lost in the cluster by an unclean election (epoch {epoch} ends at "
                f"{end_offset} there), and were cut off here too"
            )
            log.warning(f"{self.name}: {words}")
            self._note(words)
            self.state = replace(self.state, truncated_records=self.state.truncated_records + lost)
            self._begin_at_end()

    def out_of_range(self, owner: object, asked: Asked, earliest: int, latest: int) -> None:
        """Go on after the leader has said that it does not have the offset that was asked for. LinkError where it ends
        below, and does not tell where the logs part."""
        with self._lock:
            if not self._is_due(owner, asked):
                return
            if asked.position < earliest:
                self._note(
                    f"offsets {asked.position} to {earliest - 1} were deleted in the cluster before they were mirrored"
                )
                self._floor = earliest
                self._begin_at_end()
                return
            now = self.partition.offsets
            if now.start == now.end and self._floor <= now.end and latest < asked.position:
                # Nothing is here that could part from the leader's log.
                self._note(
                    f"the cluster lost offsets {latest} to {asked.position - 1} by an unclean election before anything "
                    f"was mirrored: the mirror begins at {latest}"
                )
                self._store.restart_at(self.topic, self.number, latest)
                self._begin_at_end()
                return
            raise LinkError(
                f"{self.name}: the leader has offsets {earliest} to {latest} and does not tell where its log parts "
                f"from the mirror's, which ends at {asked.position}: nothing is removed or added"
            )

    # -- what people see ------------------------------------------------------------------------------

    def fail(self, words: str, delay_s: float) -> bool:
        """Note an error, and ask no leader again before a delay. Return whether it is another one than before."""
        with self._lock:
            self.failures += 1
            self.retry_at = time.monotonic() + delay_s
            told = f"{words}; tried again"
            is_new = told != self.state.error
            self.state = replace(self.state, error=told, errors=self.state.errors + 1, bytes_per_second=0.0)
            self._rated = time.monotonic(), self.state.mirrored_bytes
            return is_new

    def note_append(self, error: str | None) -> None:
        """Note why what is appended is sent again; None: it is acknowledged, or lost."""
        if self.state.append_error != error:
            with self._lock:
                self.state = replace(self.state, append_error=error)

    def _note_success(self) -> None:
        """Note that nothing is wrong: all of an answer is here. An answer that cannot be appended ends no error."""
        self.failures = 0
        self.state = replace(self.state, error=None)

    def _note_answer(self, high_watermark: int, stable: int) -> None:
        self.state = replace(self.state, high_watermark=high_watermark, stable_offset=stable)
        self._note_lag()

    def _note_lag(self) -> None:
        state = self.state
        lag = max(0, state.high_watermark - max(self.partition.end_offset, self._floor))
        now, (rated_at, bytes_then) = time.monotonic(), self._rated
        rate = state.bytes_per_second
        if now - rated_at >= _RATE_S:
            rate = (state.mirrored_bytes - bytes_then) / (now - rated_at)
            self._rated = now, state.mirrored_bytes
        caught_up = self._store.clock() if lag == 0 else state.caught_up_ms
        self.state = replace(
            state,
            lag_records=lag,
            lag_bytes=self._bytes_of(lag),
            caught_up_ms=caught_up,
            bytes_per_second=rate,
        )

    def _bytes_of(self, count: int) -> int | None:
        """Return the size of so many records, by the mean of those that are here."""
        now = self.partition.offsets
        if not count:
            return 0
        return None if now.start >= now.end else self.partition.size * count // (now.end - now.start)

    def _note_appended(self, size: int, count: int) -> None:
        state = self.state
        self.state = replace(
            state,
            mirrored_bytes=state.mirrored_bytes + size,
            mirrored_batches=state.mirrored_batches + count,
        )

    def _note(self, words: str) -> None:
        if words not in self.state.notes:
            self.state = replace(self.state, notes=(*self.state.notes, words)[-_NOTES:])


def _pieces(chunk: Chunk, most: int) -> Iterator[tuple[Bytes, Longs]]:
    """Divide batches into appends that fit into a segment."""
    first, rows = 0, len(chunk.table)
    while first < rows:
        begin = int(chunk.table[first, POSITION])
        ends = chunk.table[first:, POSITION] + chunk.table[first:, SIZE] - begin
        count = max(1, int(np.searchsorted(ends, most, side="right")))
        yield chunk.data[begin : begin + int(ends[count - 1])], chunk.table[first : first + count]
        first += count
