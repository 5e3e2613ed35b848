"""Transactions over several partitions, and the coordinator's log, in Kafka's format, that decides them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from directory_check import parse
from store_bench import StoreBench, checked_store_bench

from topicfs import Record, Store
from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns, columns
from topicfs.engine.errors import (
    EngineError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTransactionStateError,
    PolicyViolationError,
)
from topicfs.engine.messages import reading, writing
from topicfs.engine.messages.topics import TRANSACTIONS
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.transactional import Flushes
from topicfs.engine.producer.entry import LOCAL_PRODUCERS
from topicfs.engine.store.deleting import Deleting
from topicfs.engine.store.deletion import Deletions
from topicfs.engine.transactions import coordinator
from topicfs.engine.transactions.states import Transaction, TransactionState

TIMEOUT_MS = 60_000
KEYS = [("t", 0), ("t", 1), ("u", 0)]


@pytest.fixture
def bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[StoreBench]:
    with checked_store_bench(tmp_path, caplog) as bench:
        bench.open()
        bench.store.create_topic("t", 2)
        bench.store.create_topic("u", 1)
        yield bench


def some(*values: bytes) -> Columns:
    batch = batches.from_records([Record(value) for value in values], 1_700_000_000_000)
    (found,) = columns(batch.data, batch.row.reshape(1, -1))
    return found


def values(store: Store) -> list[list[bytes | None]]:
    return [[record.value for record in store.partition(*key).records()] for key in KEYS]


def states(store: Store, transactional_id: str = "a") -> list[str]:
    """The states of an id in the coordinator's log, as Kafka's kernels read them."""
    found = []
    for record in store.partition(TRANSACTIONS, 0).records():
        key, value = reading.message(TRANSACTIONS, record.key, record.value)
        assert key is not None
        if key["data"]["transactionalId"] == transactional_id:
            found.append(
                "forgotten" if value is None else TransactionState(value["data"]["transactionStatus"]).title
            )
    return found


def test_all_partitions_show_a_transaction_or_none_does(bench: StoreBench) -> None:
    store = bench.store
    holder = store.transactions.init_producer("a", TIMEOUT_MS)
    assert (holder.epoch, holder.producer_id in LOCAL_PRODUCERS) == (0, True)
    chunks = [(KEYS[0], some(b"1", b"2")), (KEYS[2], some(b"3")), (KEYS[0], some(b"4"))]
    assert store.transactions.run(holder, KEYS, chunks) == 4
    assert values(store) == [[b"1", b"2", b"4"], [], [b"3"]]
    assert states(store) == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]

    with pytest.raises(PolicyViolationError):
        store.transactions.run(holder, [*KEYS, (TRANSACTIONS, 0)], [])

    def broken() -> Iterator[coordinator.Chunk]:
        yield KEYS[0], some(b"5")
        yield KEYS[1], some(b"6")
        raise InvalidRecordError("the third is bad")

    with pytest.raises(InvalidRecordError, match="the third"):
        store.transactions.run(holder, KEYS, broken())
    assert values(store) == [[b"1", b"2", b"4"], [], [b"3"]]
    assert states(store)[4:] == ["Ongoing", "PrepareAbort", "CompleteAbort"]
    assert store.transactions.run(holder, KEYS, [(KEYS[1], some(b"7"))]) == 1
    assert values(store) == [[b"1", b"2", b"4"], [b"7"], [b"3"]]
    assert [store.partition(*key).stable_offset for key in KEYS] == [
        store.partition(*key).end_offset for key in KEYS
    ]


def test_a_partition_that_was_not_named_aborts_the_transaction(bench: StoreBench) -> None:
    holder = bench.store.transactions.init_producer("a", TIMEOUT_MS)
    with pytest.raises(InvalidTransactionStateError, match="expected one of"):
        bench.store.transactions.run(holder, KEYS[:1], [(KEYS[0], some(b"1")), (KEYS[1], some(b"2"))])
    assert values(bench.store) == [[], [], []]


def test_who_takes_an_id_over_fences_its_earlier_holder(bench: StoreBench) -> None:
    first = bench.store.transactions.init_producer("a", TIMEOUT_MS)
    second = bench.store.transactions.init_producer("a", TIMEOUT_MS)
    assert (second.producer_id, second.epoch) == (first.producer_id, 1)
    with pytest.raises(InvalidProducerEpochError, match="another holder"):
        bench.store.transactions.run(first, KEYS, [(KEYS[0], some(b"1"))])
    assert bench.store.transactions.run(second, KEYS, [(KEYS[0], some(b"2"))]) == 1
    bench.reopen()
    with pytest.raises(InvalidProducerEpochError):
        bench.store.transactions.run(first, KEYS, [(KEYS[0], some(b"1"))])
    third = bench.store.transactions.init_producer("a", TIMEOUT_MS)
    assert (third.producer_id, third.epoch) == (first.producer_id, 2)
    assert values(bench.store) == [[b"2"], [], []]


def test_an_id_whose_epochs_are_used_up_gets_another_producer_id(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "LAST_EPOCH", 1)
    found = [bench.store.transactions.init_producer("a", TIMEOUT_MS) for _ in range(4)]
    assert [each.epoch for each in found] == [0, 1, 0, 1]
    assert found[2].previous_producer_id == found[0].producer_id != found[2].producer_id
    with pytest.raises(InvalidProducerEpochError):
        bench.store.transactions.run(found[1], KEYS, [(KEYS[0], some(b"1"))])


def stopped(store: Store, holder: Transaction, monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    """A transaction that stops before a step, as a process that dies there."""

    class StoppedError(BaseException):
        pass

    def stop(*_: object, **__: object) -> None:
        raise StoppedError

    with monkeypatch.context() as patch:
        patch.setattr(coordinator.Coordinator, "_give_up", lambda *_: None)
        patch.setattr(coordinator.Coordinator, before, stop)
        with pytest.raises(StoppedError):
            store.transactions.run(holder, KEYS, [(KEYS[0], some(b"1")), (KEYS[2], some(b"2"))])


@pytest.mark.parametrize(
    ("before", "shown"), [("_append", []), ("_complete_or_keep", [b"1"]), ("discard", [b"1"])]
)
def test_a_transaction_that_stopped_is_decided_before_anybody_reads(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch, before: str, shown: list[bytes]
) -> None:
    holder = bench.store.transactions.init_producer("a", TIMEOUT_MS)
    stopped(bench.store, holder, monkeypatch, before)
    bench.store.abandon()
    with Store.open(bench.root, read_only=True) as look:
        assert values(look)[0] == shown
    assert values(bench.open())[0] == shown
    assert states(bench.store)[-1] == ("CompleteCommit" if shown else "CompleteAbort")
    assert bench.store.transactions.run(holder, KEYS, [(KEYS[0], some(b"3"))]) == 1
    assert values(bench.store)[0] == [*shown, b"3"]


def test_an_id_that_nobody_used_for_a_week_is_forgotten(bench: StoreBench) -> None:
    store = bench.store
    for name in ("a", "producers/p"):
        store.transactions.init_producer(name, TIMEOUT_MS)
    bench.now += 7 * 86_400_000
    store.transactions.init_producer("b", TIMEOUT_MS)
    assert store.upkeep.forget_transactions() == 0
    bench.now += 1
    assert store.upkeep.forget_transactions() == 1
    assert [each.transactional_id for each in store.transactions.transactions()] == ["b", "producers/p"]
    assert states(store) == ["Empty", "forgotten"]
    bench.reopen()
    assert bench.store.transactions.transaction("a") is None


def test_staged_files_go_with_the_commit_and_with_the_next_holder(bench: StoreBench) -> None:
    coordinator = bench.store.transactions

    def stage() -> None:
        coordinator.staged.make_directory(("a",))
        coordinator.staged.open(("a", "x"), os.O_WRONLY | os.O_CREAT).close()

    holder = coordinator.init_producer("a", TIMEOUT_MS)
    stage()
    with pytest.raises(EngineError):
        coordinator.run(holder, KEYS, [(("nobody", 0), some(b"1"))])
    assert coordinator.staged.names(()) == ["a"]
    coordinator.run(holder, KEYS, [(KEYS[0], some(b"1"))])
    assert coordinator.staged.names(()) == []
    stage()
    coordinator.init_producer("a", TIMEOUT_MS)
    assert coordinator.staged.names(()) == []


def test_what_a_broker_s_coordinator_has_open_is_left_to_it(bench: StoreBench) -> None:
    coordinator = bench.store.transactions
    coordinator.init_producer("ours", TIMEOUT_MS)
    theirs = Transaction("theirs", 7, 0, TIMEOUT_MS, TransactionState.ONGOING, (("t", 0),), 1, 1)
    coordinator._log.append(theirs)
    bench.crash()
    assert bench.store.transactions.transaction("theirs") == theirs


@pytest.mark.parametrize(
    "value",
    [
        b"\0\1" + bytes(8) + b"\0\0" + bytes(4) + b"\x63\xff\xff\xff\xff" + bytes(16),
        b"\0\x09 of a version that nobody knows",
    ],
)
def test_a_record_of_the_coordinators_log_that_nobody_understands_is_passed_over(
    bench: StoreBench, value: bytes
) -> None:
    """What was known of its id stays: it is not forgotten, and the store opens."""
    holder = bench.store.transactions.init_producer("a", TIMEOUT_MS)
    key = writing.key(TRANSACTIONS, 0, {"transactionalId": "a"})
    bench.store.partition(TRANSACTIONS, 0).append(Record(value, key))
    bench.warnings = True
    bench.reopen()
    again = bench.store.transactions.init_producer("a", TIMEOUT_MS)
    assert (again.producer_id, again.epoch) == (holder.producer_id, holder.epoch + 1)


def test_a_transaction_flushes_all_partitions_though_the_disk_fails_one(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = bench.store.transactions
    holder = coordinator.init_producer("a", TIMEOUT_MS)
    bench.warnings = True
    flushed = []
    real = Partition.flush

    def flush(partition: Partition, up_to: int | None = None) -> None:
        if partition.topic != TRANSACTIONS:
            flushed.append(partition.name)
            if partition.name == "t-0":
                raise InvalidRecordError("this flush fails")
        real(partition, up_to)

    with monkeypatch.context() as patch:
        patch.setattr(Partition, "flush", flush)
        with pytest.raises(InvalidRecordError, match="this flush fails"):
            coordinator.run(holder, KEYS, [(key, some(b"v")) for key in KEYS])
    assert {"t-0", "t-1", "u-0"} <= set(flushed)
    coordinator.settle()
    assert values(bench.store) == [[], [], []]


# -- partitions that are deleted in the middle of a transaction --------------------------------------------


def half_way(bench: StoreBench, monkeypatch: pytest.MonkeyPatch, commit: bool) -> None:
    """Stop a transaction before its markers."""

    def refused(*_: object) -> None:
        raise OSError("as asked for")

    bench.warnings = True
    holder = bench.store.transactions.init_producer("a", TIMEOUT_MS)
    chunks = [(key, some(b"1")) for key in KEYS]
    with monkeypatch.context() as broken:
        broken.setattr(coordinator, "append_end", refused)
        if commit:
            assert bench.store.transactions.run(holder, KEYS, chunks) == 3
        else:
            broken.setattr(coordinator.Flushes, "flush", refused)
            with pytest.raises(OSError, match="as asked for"):
                bench.store.transactions.run(holder, KEYS, chunks)


@pytest.mark.parametrize("between", ["nothing", "a crash", "another topic"])
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_ends_in_a_deleted_partition_when_that_is_taken_back(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch, commit: bool, between: str
) -> None:
    half_way(bench, monkeypatch, commit)
    deletion = bench.store.delete_topic("t")
    if between == "another topic":
        bench.store.create_topic("t", 2)
    for _ in range(3):
        bench.store.transactions.settle()
    assert bench.store.transactions.unsettled == 0
    if between == "another topic":
        bench.store.delete_topic("t")
    if between == "a crash":
        bench.crash()
    bench.store.undelete("t", deletion=deletion.id)
    shown = [b"1"] if commit else []
    assert values(bench.store) == [shown] * 3
    for key in KEYS:
        bench.store.partition(*key).append(Record(b"2"))
    assert values(bench.store) == [[*shown, b"2"]] * 3


def test_an_undelete_that_a_crash_stops_ends_the_transactions_too(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_way(bench, monkeypatch, commit=True)
    bench.store.delete_topic("t")
    bench.store.transactions.settle()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(Deleting, "_end_transactions", stop)
        broken.setattr(Deletions, "settle", stop)
        with pytest.raises(KeyboardInterrupt):
            bench.store.undelete("t")
    bench.crash()
    assert [record.value for record in bench.store.partition("t", 0).records()] == [b"1"]
    bench.store.undelete("t")
    assert values(bench.store) == [[b"1"]] * 3


def test_a_transaction_that_ends_while_its_partition_is_taken_back_ends_there(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_way(bench, monkeypatch, commit=True)
    bench.store.delete_topic("t")
    note = bench.store.transactions.note_deleted

    def late(topic: str, number: int, producer_id: int, commit: bool) -> None:
        if (topic, number) not in bench.store:
            with ThreadPoolExecutor(1) as other:
                other.submit(bench.store.undelete, topic, number).result()
        note(topic, number, producer_id, commit)

    bench.store.transactions.note_deleted = late
    bench.store.transactions.settle()
    assert values(bench.store) == [[b"1"]] * 3


def without_last_batch(log: Path) -> None:
    """Damage the last batch of a log."""
    data = log.read_bytes()
    last = parse(data)[0][-1]
    log.write_bytes(data[: last.position + 20] + bytes(len(data) - last.position - 20))


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_whose_marker_a_recovery_has_cut_off_ends_again_as_it_had(
    bench: StoreBench, commit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """regression: it stayed open for ever, and nothing behind its first record showed any more"""
    bench.warnings = True
    holder = bench.store.transactions.init_producer("a", TIMEOUT_MS)
    flush = Flushes.flush

    def fails_once(flushes: Flushes, partitions: Iterable[Partition]) -> None:
        monkeypatch.setattr(Flushes, "flush", flush)
        raise OSError(5, "Input/output error")

    if not commit:
        monkeypatch.setattr(Flushes, "flush", fails_once)
    with contextlib.nullcontext() if commit else pytest.raises(OSError, match="Input/output"):
        bench.store.transactions.run(holder, KEYS, [(KEYS[0], some(b"1")), (KEYS[2], some(b"2"))])
    assert states(bench.store)[-1] == ("CompleteCommit" if commit else "CompleteAbort")
    bench.store.abandon()
    without_last_batch(bench.logs / f"t-0/{0:020}.log")
    store = bench.open()
    store.partition("t", 0).append(Record(b"behind"))
    assert values(store) == ([[b"1", b"behind"], [], [b"2"]] if commit else [[b"behind"], [], []])


def test_a_transaction_of_which_nobody_knows_how_it_ended_is_aborted(bench: StoreBench) -> None:
    bench.warnings = True
    store = bench.store
    holder = store.transactions.init_producer("a", TIMEOUT_MS)
    store.transactions.run(holder, KEYS, [(KEYS[0], some(b"1"))])
    store.partition(TRANSACTIONS, 0).truncate_to(0)
    store.abandon()
    without_last_batch(bench.logs / f"t-0/{0:020}.log")
    store = bench.open()
    store.partition("t", 0).append(Record(b"behind"))
    assert values(store) == [[b"behind"], [], []]
