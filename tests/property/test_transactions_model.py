"""Producers, transactions, batches of an inbox and groups, in one store, compared with a model under random crashes.

The model is a list of values for each partition, and the positions of a group. A crash stops an operation at any of its
system calls, or comes between two; then each log is cut somewhere behind what a flush has vouched for. What is found
again: all of an operation or nothing, no record twice or out of its place, and nothing lost that was flushed.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from directory_check import check_directory
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from partition_opening import NOW, Clock, without_fsync
from syscalls import THOROUGH, Calls, Crash

from topicfs import Record, Store
from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns
from topicfs.engine.errors import (
    DuplicateSequenceError,
    InvalidProducerEpochError,
    InvalidRecordError,
    NotOwnerError,
)
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.groups.groups import Groups, PositionCommit, Worker
from topicfs.engine.transactions.coordinator import Chunk

TOPIC = "t"
KEYS: list[PartitionKey] = [(TOPIC, 0), (TOPIC, 1), ("u", 0)]
TIMEOUT_MS = 60_000
SESSION_MS = 10_000

Added = Mapping[PartitionKey, list[bytes]]
"""The values that an operation adds to each partition."""

keys = st.sampled_from(KEYS)
names = st.sampled_from(["a", "b"])
workers = st.sampled_from(["w1", "w2"])
counts = st.integers(1, 3)
places = st.dictionaries(keys, counts, min_size=1)
kept = st.sampled_from([0.0, 0.3, 0.7, 1.0])
"""How much is kept of what no flush has vouched for."""
stops = st.none() | st.tuples(st.integers(0, 40), st.booleans())
"""The system call at which the process dies, and whether half of a write is done then; None for no crash."""


def columns_of(values: list[bytes]) -> Columns:
    return batches.columns_of_records([Record(value) for value in values], NOW)


class TransactionsMachine(RuleBasedStateMachine):
    """Every rule does the same to the store and to the model; the invariants compare them."""

    def __init__(self) -> None:
        super().__init__()
        self.place = self.directory()
        self.quiet = without_fsync()
        self.quiet.__enter__()
        self.clock = Clock()
        self.fresh = (b"%d" % number for number in itertools.count())
        self.seen: dict[PartitionKey, list[bytes]] = {key: [] for key in KEYS}
        self.vouched = dict.fromkeys(KEYS, 0)
        self.positions: dict[PartitionKey, int] = {}
        self.known: set[str] = set()
        self.points: dict[Path, int] = {}
        self.produced = dict.fromkeys(KEYS, 0)
        self.acting: dict[str, tuple[Worker, frozenset[PartitionKey]]] = {}
        self.store = Store.open(self.place, None, self.clock, create=True)
        self.store.create_topic(TOPIC, 2)
        self.store.create_topic("u", 1)
        self.groups = Groups.of(self.store)
        self.groups.create("g")
        self.groups.flush("g")
        self.store.producers.init("p")
        for name in ("a", "b"):
            self.store.transactions.init_producer(name, TIMEOUT_MS)

    def directory(self) -> Path:
        raise NotImplementedError

    # -- operations -----------------------------------------------------------------------------------

    @rule(key=keys, count=counts)
    def append(self, key: PartitionKey, count: int) -> None:
        values = self.new(count)
        self.store.partition(*key).append([Record(value) for value in values])
        self.seen[key] += values
        self.note_vouched()

    @rule(key=keys)
    def flush(self, key: PartitionKey) -> None:
        self.store.partition(*key).flush()
        self.note_vouched()

    @rule(name=names, into=places, offset=st.none() | st.integers(0, 3), stop=stops, part=kept)
    def commit(
        self,
        name: str,
        into: dict[PartitionKey, int],
        offset: int | None,
        stop: tuple[int, bool] | None,
        part: float,
    ) -> None:
        """Consume, transform, produce: records for several partitions, and a position of the group with them."""
        added = {key: self.new(count) for key, count in into.items()}
        position = self.position(offset)
        holder = self.store.transactions.transaction(name)
        assert holder is not None

        def run() -> None:
            positions = [] if position is None else [position]
            with (
                self.store.transactions.writing(holder),
                self.groups.in_transaction(positions) as chunks,
            ):
                records: list[Chunk] = [(key, columns_of(values)) for key, values in added.items()]
                found = [*records, *chunks]
                self.store.transactions.run(holder, [key for key, _ in found], found)

        self.attempt(run, added, stop, part, {} if position is None else position.offsets)

    def position(self, offset: int | None) -> PositionCommit | None:
        """A position that may be set now: where the group has members, by the owner of the partition."""
        key = KEYS[0]
        if offset is None or offset > self.store.partition(*key).end_offset:
            return None
        expected = {key: self.positions.get(key)}
        members = self.groups.members("g")
        owners = [member for member in members.values() if key in member.given]
        if members and not owners:
            return None
        if not owners:
            return PositionCommit("g", {key: offset}, expected)
        return PositionCommit("g", {key: offset}, expected, owners[0].name, owners[0].member_id)

    @rule(name=names, into=places)
    def refuse(self, name: str, into: dict[PartitionKey, int]) -> None:
        """A transaction that an error stops behind its last record."""
        holder = self.store.transactions.transaction(name)
        assert holder is not None

        def broken() -> Iterator[Chunk]:
            for key, count in into.items():
                yield key, columns_of(self.new(count))
            raise InvalidRecordError("the last line is bad", (0,))

        with pytest.raises(InvalidRecordError):
            self.store.transactions.run(holder, into, broken())
        self.note_vouched()

    @rule(name=names, key=keys)
    def fence(self, name: str, key: PartitionKey) -> None:
        earlier = self.store.transactions.transaction(name)
        assert earlier is not None
        self.store.transactions.init_producer(name, TIMEOUT_MS)
        with pytest.raises(InvalidProducerEpochError):
            self.store.transactions.run(earlier, [key], [(key, columns_of(self.new(1)))])

    @rule(name=st.sampled_from(["x", "y", "z"]), into=places, stop=stops, part=kept)
    def batch(
        self, name: str, into: dict[PartitionKey, int], stop: tuple[int, bool] | None, part: float
    ) -> None:
        """A batch of the inbox; one whose name is known adds nothing."""
        is_known = name in self.known
        added = {key: self.new(count) for key, count in into.items() if key[0] == TOPIC and not is_known}
        chunks = [(key[1], columns_of(values)) for key, values in added.items()]
        if not chunks and not is_known:
            return

        def run() -> None:
            assert self.store.inboxes.of(TOPIC).commit(name, chunks).known == is_known

        if self.attempt(run, added, stop, part):
            self.known.add(name)

    @rule(key=keys, count=counts, stop=stops, part=kept)
    def produce(self, key: PartitionKey, count: int, stop: tuple[int, bool] | None, part: float) -> None:
        values, sequence = self.new(count), self.produced[key]

        def run() -> None:
            holder = self.store.producers.holder("p")
            self.store.producers.append(holder, *key, sequence, [columns_of(values)])

        if self.attempt(run, {key: values}, stop, part):
            self.produced[key] += count
            with pytest.raises(DuplicateSequenceError):
                run()

    @rule(name=workers)
    def join(self, name: str) -> None:
        if name not in self.groups.members("g"):
            worker = self.groups.join("g", name, [TOPIC], SESSION_MS)
            self.acting[name] = worker, frozenset()

    @rule(name=workers)
    def begin_anew(self, name: str) -> None:
        if name in self.groups.members("g"):
            earlier = self.acting.get(name)
            self.acting[name] = self.groups.replace("g", name), frozenset()
            if earlier is not None:
                with pytest.raises(NotOwnerError):
                    self.groups.heartbeat("g", earlier[0])

    @rule(name=workers)
    def leave(self, name: str) -> None:
        self.acting.pop(name, None)
        if name in self.groups.members("g"):
            self.groups.leave("g", name)

    @precondition(lambda self: self.acting)
    @rule(name=workers)
    def look(self, name: str) -> None:
        if name in self.acting:
            worker, _ = self.acting[name]
            self.acting[name] = worker, self.groups.heartbeat("g", worker)

    @rule(clean=st.booleans(), part=kept)
    def restart(self, clean: bool, part: float) -> None:
        if clean:
            self.store.close()
            self.open()
        else:
            self.crash(part)
            self.take_what_is_left()

    # -- crashes --------------------------------------------------------------------------------------

    def attempt(
        self,
        run: Callable[[], None],
        added: Added,
        stop: tuple[int, bool] | None,
        part: float,
        positions: Mapping[PartitionKey, int] | None = None,
    ) -> bool:
        """Run an operation, and crash in it or behind it where it is to be stopped. Tell whether it is done."""
        done = stop is None
        if stop is None:
            run()
        else:
            with Calls(*stop).patched(), contextlib.suppress(Crash):
                run()
                done = True
            self.crash(part)
            done = done or self.is_done(added, positions or {})
        if done:
            for key, values in added.items():
                self.seen[key] += values
                self.vouched[key] = len(self.seen[key])
            self.positions |= positions or {}
        if stop is not None:
            self.take_what_is_left()
        self.note_vouched()
        return done

    def is_done(self, added: Added, positions: Mapping[PartitionKey, int]) -> bool:
        """Tell what a crash has left of an operation: all of it or nothing."""
        there = {bool(set(values) & set(self.values(key))) for key, values in added.items()}
        assert len(there) <= 1, "some partitions show it, and others do not"
        changed = {key: offset for key, offset in positions.items() if self.positions.get(key) != offset}
        found = self.groups.positions("g")
        there |= {key in found and found[key].offset == offset for key, offset in changed.items()}
        assert len(there) <= 1, "its records show, and its positions do not"
        return there == {True}

    def crash(self, part: float) -> None:
        """End as a power failure ends it: so much is kept of what no flush has vouched for."""
        # What was flushed stays so, though a recovery looks at it again.
        for slot in self.store.slots():
            if slot.partition is not None:
                before = self.points.get(slot.directory, 0)
                self.points[slot.directory] = max(before, slot.partition.recovery_point)
        self.store.abandon()
        for directory, point in self.points.items():
            for path in sorted(directory.glob("*.log"))[-1:]:
                data, position = path.read_bytes(), 0
                while position < len(data) and int.from_bytes(data[position : position + 8]) < point:
                    position += 12 + int.from_bytes(data[position + 8 : position + 12])
                with path.open("r+b") as file:
                    file.truncate(position + int((len(data) - position) * part))
        self.open()

    def open(self) -> None:
        self.store = Store.open(self.place, None, self.clock)
        self.groups = Groups.of(self.store)
        # Workers begin anew with the store.
        self.acting = {}

    def take_what_is_left(self) -> None:
        """Take over the end of each log. What was appended last may be gone, and nothing else."""
        for key, values in self.seen.items():
            found = self.values(key)
            assert found == values[: len(found)]
            assert len(found) >= self.vouched[key]
            self.seen[key] = found
        for key in KEYS:
            assert self.store.producers.next_sequence("p", *key) >= 0

    def new(self, count: int) -> list[bytes]:
        return [next(self.fresh) for _ in range(count)]

    def values(self, key: PartitionKey) -> list[bytes]:
        return [record.value or b"" for record in self.store.partition(*key).records()]

    def note_vouched(self) -> None:
        for key in KEYS:
            partition = self.store.partition(*key)
            if partition.recovery_point >= partition.end_offset:
                self.vouched[key] = len(self.seen[key])

    # -- what is promised -----------------------------------------------------------------------------

    @invariant()
    def no_record_is_lost_doubled_reordered_or_half_visible(self) -> None:
        for key, values in self.seen.items():
            assert self.values(key) == values
            partition = self.store.partition(*key)
            assert partition.stable_offset == partition.end_offset

    @invariant()
    def no_position_is_lost(self) -> None:
        found = self.groups.positions("g")
        assert {key: position.offset for key, position in found.items()} == self.positions

    @invariant()
    def each_name_and_sequence_is_remembered(self) -> None:
        inbox = self.store.inboxes.of(TOPIC)
        assert {name for name in "xyz" if inbox.knows(name)} == self.known
        for key, count in self.produced.items():
            assert self.store.producers.next_sequence("p", *key) == count

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        members = self.groups.members("g")
        given = [key for member in members.values() for key in member.given]
        assert len(given) == len(set(given))
        for name, (_, own) in self.acting.items():
            assert own <= members[name].given

    def teardown(self) -> None:
        self.store.close()
        self.quiet.__exit__(None, None, None)
        for topic, number in KEYS:
            check_directory(self.place / f"logs/{topic}-{number}")


def test_random_producers_transactions_groups_and_crashes_lose_and_double_nothing(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    class Placed(TransactionsMachine):
        def directory(self) -> Path:
            return tmp_path_factory.mktemp("transactions")

    run_state_machine_as_test(
        Placed, settings=settings(max_examples=200 if THOROUGH else 6, stateful_step_count=20, deadline=None)
    )
