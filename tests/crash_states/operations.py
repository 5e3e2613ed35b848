"""The operations that sequences are made of, the store that they change, and what is seen of it.

t-0   plain records, with retention     k-0   keys, compacted
u-0   the second one in transactions    d-0   deleted, and taken back
n-0   created
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from topicfs import Isolation, Producer, Record, Store
from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns
from topicfs.engine.cleaner.clean import Cleaner
from topicfs.engine.errors import EngineError
from topicfs.engine.groups.groups import Groups, PositionCommit
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.validate import shape_for
from topicfs.engine.record import Codec

START = 1_700_000_000_000
INTERNAL = "__"
SMALL = {"internal.segment.bytes": "700", "index.interval.bytes": "200", "retention.ms": "-1"}
TOPICS = {
    "t": {**SMALL, "retention.bytes": "1200"},
    "k": {**SMALL, "internal.segment.bytes": "250", "cleanup.policy": "compact", "delete.retention.ms": "0"},
    "u": SMALL,
    "d": SMALL,
}
SETTINGS = {
    "num.recovery.threads.per.data.dir": "1",
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
}
SECRET = bytes(range(16))
GROUP = "g"
HOLDER = "a"
PREPARED = 100
"""More records than `prepare` makes."""
IDEMPOTENT = 77
SETTING = "segment.ms"
"""A setting that changes nothing else here."""

Shown = tuple[int, bytes | None, bytes | None]
"""Offset, key and value of a record that shows."""


class InapplicableError(Exception):
    """There is nothing that an operation could be done to."""


@dataclass(frozen=True)
class Seen:
    """What a store shows.

    records    by partition: the records that show
    starts     by partition: the start offset
    sequences  by partition: the last sequence number that is known of the idempotent producer; -1 for none
    position   the group's position in t-0
    committed  the names of the batches that the inbox of t has committed
    setting    the setting of t
    offline    why partitions cannot be used
    """

    records: dict[str, tuple[Shown, ...]]
    starts: dict[str, int]
    sequences: dict[str, int]
    position: int | None = None
    committed: frozenset[str] = frozenset()
    setting: str | None = None
    offline: tuple[str, ...] = ()

    @classmethod
    def of(cls, store: Store) -> Seen:
        """Look at an open store."""
        partitions: dict[str, Partition] = {}
        offline = []
        for slot in store.slots():
            try:
                partitions[slot.name] = store.partition(slot.topic, slot.number)
            except EngineError as error:
                offline.append(f"{slot.name}: {error}")
        shown = {name: each for name, each in partitions.items() if not name.startswith(INTERNAL)}
        found = None
        with contextlib.suppress(EngineError):
            found = Groups.of(store).position(GROUP, ("t", 0))
        return cls(
            {name: records_of(each) for name, each in shown.items()},
            {name: each.start_offset for name, each in shown.items()},
            {name: sequence_of(each) for name, each in shown.items()},
            None if found is None else found.offset,
            frozenset(name for name in BATCHES if store.inboxes.of("t").knows(name)),
            _setting_of(store),
            tuple(offline),
        )


def _setting_of(store: Store) -> str | None:
    return next(each.value for each in store.explain("t") if each.name == SETTING)


def records_of(partition: Partition) -> tuple[Shown, ...]:
    """The records that show."""
    return tuple(
        (each.offset, each.key, each.value) for each in partition.records(isolation=Isolation.COMMITTED)
    )


def sequence_of(partition: Partition) -> int:
    """The last sequence number of the idempotent producer."""
    entry = partition.log.producers.producers.get(IDEMPOTENT)
    return -1 if entry is None else entry.last_sequence


@dataclass
class World:
    """An open store, and what was done to it.

    number     grows with each record, so that none is like another, also not like those that `prepare` has made
    sequences  by value: the sequence number of each record of the idempotent producer
    """

    root: Path
    store: Store
    now: list[int]
    number: int = 0
    sequences: dict[bytes, int] = field(default_factory=dict)

    @classmethod
    def open(cls, root: Path, create: bool = False) -> World:
        now = [START]
        store = Store.open(root, SETTINGS, lambda: now[0], create=create)
        return cls(root, store, now, 0 if create else PREPARED)

    def partition(self, topic: str) -> Partition:
        if (topic, 0) not in self.store:
            raise InapplicableError
        return self.store.partition(topic, 0)

    def value(self, size: int = 24) -> bytes:
        self.number += 1
        return (b"%05d " % self.number).ljust(size, b".")

    def records(self, count: int, size: int = 24, key: bytes | None = None) -> list[Record]:
        return [Record(self.value(size), key, self.now[0]) for _ in range(count)]

    def columns(self, count: int) -> Columns:
        """Records of a transaction."""
        values = [self.value() for _ in range(count)]
        none = np.zeros(count, np.int32)
        ends = np.cumsum([len(each) for each in values]).astype(np.int32)
        lengths = np.array([len(each) for each in values], np.int32)
        times = np.full(count, self.now[0])
        data = np.frombuffer(b"".join(values), np.uint8)
        return Columns(data, np.arange(count), times, none, none - 1, ends - lengths, lengths, none, none)


# -- the operations -----------------------------------------------------------------------------------


def append(world: World) -> None:
    world.partition("t").append(world.records(2))


def append_large(world: World) -> None:
    """More than one segment holds, in batches of their own."""
    for _ in range(3):
        world.partition("t").append(world.records(3, 120))


def append_compressed(world: World) -> None:
    partition, now = world.partition("t"), world.now[0]
    shape = replace(shape_for(partition.settings), codec=Codec.LZ4)
    partition.append_built(batches.from_records(world.records(3, 60), now, shape))


def append_keyed(world: World) -> None:
    world.partition("t").append(world.records(1, 24, b"key"))


def append_idempotent(world: World) -> None:
    partition, records = world.partition("t"), world.records(2)
    first = sequence_of(partition) + 1
    partition.append(records, Producer(IDEMPOTENT, 0, first))
    for number, record in enumerate(records, first):
        assert record.value is not None
        world.sequences[record.value] = number


def fsync(world: World) -> None:
    for topic in "tk":
        world.partition(topic).flush()
    world.store.upkeep.checkpoint_recovery_points()


def roll(world: World) -> None:
    world.partition("t").roll()


def key_set(world: World) -> None:
    world.partition("k").append(world.records(1, 24, b"a"))
    world.partition("k").append(world.records(1, 24, b"b"))


def key_removed(world: World) -> None:
    world.partition("k").append(Record(None, b"a", world.now[0]))


def compact(world: World) -> None:
    world.partition("k").roll()
    cleaner = Cleaner.create(24 * 1001, 0.9, 8192, lambda _: None, SECRET)
    world.store.cleaning.asked.add(("k", 0))
    if world.store.cleaning.work_asked(cleaner, world.now[0]) is None:
        raise InapplicableError


def delete_records(world: World) -> None:
    partition = world.partition("t")
    if partition.start_offset + 2 > partition.high_watermark:
        raise InapplicableError
    world.store.delete_records("t", 0, partition.start_offset + 2)


def retain(world: World) -> None:
    world.store.upkeep.retain()


def upkeep(world: World) -> None:
    """A minute goes by: whatever is due is done, and removed files go."""
    world.now[0] += 120_000
    world.store.upkeep.run_due()


def truncate(world: World) -> None:
    """A mirror is cut, as behind an unclean election."""
    partition = world.partition("t")
    if partition.end_offset - 3 < partition.start_offset:
        raise InapplicableError
    world.store.truncate("t", 0, partition.end_offset - 3)


def commit_transaction(world: World) -> None:
    holder = world.store.transactions.transaction(HOLDER)
    assert holder is not None
    end = world.partition("t").end_offset
    commit = PositionCommit(GROUP, {("t", 0): end}, {})
    with (
        world.store.transactions.writing(holder),
        Groups.of(world.store).in_transaction([commit]) as positions,
    ):
        chunks = [(("t", 0), world.columns(2)), (("u", 0), world.columns(1)), *positions]
        world.store.transactions.run(holder, [key for key, _ in chunks], chunks)


def abort_transaction(world: World) -> None:
    holder = world.store.transactions.transaction(HOLDER)
    assert holder is not None

    def chunks() -> Iterator[Any]:
        yield ("t", 0), world.columns(2)
        yield ("u", 0), world.columns(1)
        raise InapplicableError

    with contextlib.suppress(InapplicableError):
        world.store.transactions.run(holder, [("t", 0), ("u", 0)], chunks())


BATCHES = [f"batch:{number}" for number in range(4)]


def commit_inbox(world: World) -> None:
    box = world.store.inboxes.of("t")
    name = next(each for each in BATCHES if not box.knows(each))
    box.commit(name, [(0, world.columns(3))])


def commit_position(world: World) -> None:
    groups = Groups.of(world.store)
    before = groups.position(GROUP, ("t", 0))
    offset = 0 if before is None else before.offset + 1
    if offset > world.partition("t").end_offset:
        raise InapplicableError
    groups.commit(GROUP, {("t", 0): offset})


def fsync_position(world: World) -> None:
    Groups.of(world.store).flush(GROUP)


def configure(world: World) -> None:
    world.number += 1
    world.store.configure("t", {SETTING: str(1_000_000_000 + world.number)})


def create(world: World) -> None:
    if ("n", 0) in world.store:
        world.partition("n").append(world.records(1))
    else:
        world.store.create_topic("n", 1, SMALL)


def delete(world: World) -> None:
    world.partition("d")
    world.store.delete_topic("d")


def undelete(world: World) -> None:
    if ("d", 0) in world.store:
        raise InapplicableError
    world.store.undelete("d")


def restart(world: World) -> None:
    world.store.close()
    world.store = Store.open(world.root, SETTINGS, lambda: world.now[0])


@dataclass(frozen=True)
class Operation:
    """What is done, and what may be found of it.

    whole   behind a crash in the middle of it all of it is there, or nothing
    synced  what surely is on disk when it is done: partitions, and "position"
    alone   nothing but t-0 and k-0 has to do with it
    """

    work: Callable[[World], None]
    whole: bool = False
    synced: frozenset[str] = frozenset()
    alone: bool = False


EVERYTHING = frozenset({"t-0", "k-0", "u-0", "d-0", "n-0", "position"})
OPERATIONS: dict[str, Operation] = {
    "append": Operation(append, whole=True, alone=True),
    "append_large": Operation(append_large, alone=True),
    "append_compressed": Operation(append_compressed, whole=True, alone=True),
    "append_keyed": Operation(append_keyed, whole=True, alone=True),
    "append_idempotent": Operation(append_idempotent, whole=True, alone=True),
    "fsync": Operation(fsync, synced=frozenset({"t-0", "k-0"}), alone=True),
    "roll": Operation(roll, alone=True),
    "key_set": Operation(key_set, alone=True),
    "key_removed": Operation(key_removed, whole=True, alone=True),
    "compact": Operation(compact, alone=True),
    "delete_records": Operation(delete_records, whole=True, alone=True),
    "retain": Operation(retain, alone=True),
    "upkeep": Operation(upkeep),
    "truncate": Operation(truncate, alone=True),
    "commit_transaction": Operation(
        commit_transaction, whole=True, synced=frozenset({"t-0", "u-0", "position"})
    ),
    "abort_transaction": Operation(abort_transaction, whole=True),
    "commit_inbox": Operation(commit_inbox, whole=True, synced=frozenset({"t-0"})),
    "commit_position": Operation(commit_position, whole=True),
    "fsync_position": Operation(fsync_position, synced=frozenset({"position"})),
    "configure": Operation(configure, whole=True),
    "create": Operation(create, whole=True),
    "delete": Operation(delete, whole=True),
    "undelete": Operation(undelete, whole=True, synced=frozenset({"d-0"})),
    "restart": Operation(restart, synced=EVERYTHING),
}


# -- where sequences begin ----------------------------------------------------------------------------


def prepare(root: Path) -> None:
    """A store with some records of each kind, stopped cleanly."""
    world = World.open(root, create=True)
    for topic, settings in TOPICS.items():
        world.store.create_topic(topic, 1, settings)
    for _ in range(3):
        world.partition("t").append(world.records(2, 60))
    for key in (b"a", b"b", b"a", b"c"):
        world.partition("k").append(world.records(1, 24, key))
    world.partition("k").roll()
    world.partition("k").append(world.records(1, 24, b"b"))
    world.partition("d").append(world.records(2))
    groups = Groups.of(world.store)
    groups.create(GROUP)
    groups.commit(GROUP, {("t", 0): 1})
    world.store.transactions.init_producer(HOLDER, 60_000)
    commit_inbox(world)
    world.store.close()


@contextlib.contextmanager
def determined() -> Iterator[None]:
    """What is drawn at random in the engine is the same in each run, so that equal states are found equal."""
    chance = random.Random(1)
    numbers = itertools.count(1)

    class Drawn:
        def __init__(self) -> None:
            self.bytes = next(numbers).to_bytes(16, "big")
            self.hex = self.bytes.hex()

        def __str__(self) -> str:
            return self.hex

    with (
        mock.patch("uuid.uuid4", Drawn),
        mock.patch("secrets.randbelow", chance.randrange),
    ):
        yield
