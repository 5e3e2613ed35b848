"""The inbox: a batch is appended as a whole, exactly once, in whatever partitions."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_bench import StoreBench, checked_store_bench, values

from topicfs import Record
from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns
from topicfs.engine.errors import (
    BatchExistsError,
    ClosedError,
    CorruptBatchError,
    CorruptCheckpointError,
    InvalidRecordError,
    PolicyViolationError,
    UnknownPartitionError,
)
from topicfs.engine.files import atomic
from topicfs.engine.inbox import committed_names as remembered
from topicfs.engine.inbox import journal as journals
from topicfs.engine.inbox.content import Content
from topicfs.engine.inbox.inbox import OLDER_PRODUCER_ID, Chunk, Inbox, batch_name
from topicfs.engine.inbox.inboxes import Inboxes
from topicfs.engine.inbox.journal import CommitState, InFlight, Journal
from topicfs.engine.inbox.rows import NO_PARTITION, UNDATED, Rows
from topicfs.engine.messages.topics import OFFSETS, TRANSACTIONS
from topicfs.engine.partition.partition import Partition
from topicfs.engine.producer.entry import LOCAL_PRODUCERS
from topicfs.engine.transactions.states import Transaction, TransactionState
from topicfs.engine.verify.finding import Kind

DAY = 86_400_000


@pytest.fixture
def store_bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[StoreBench]:
    with checked_store_bench(tmp_path / "backing", caplog) as made:
        made.open()
        made.store.create_topic("t", 2)
        yield made


def column(*found: bytes) -> Columns:
    """Records with these values, and no keys."""
    buffer = np.frombuffer(b"".join(found), np.uint8)
    lengths = np.array([len(value) for value in found], np.int32)
    none = np.zeros(len(found), np.int32)
    starts = (np.cumsum(lengths) - lengths).astype(np.int32)
    times = np.full(len(found), 1_700_000_000_000)
    return Columns(buffer, np.arange(len(found)), times, none, none - 1, starts, lengths, none, none)


def chunks(**found: tuple[bytes, ...]) -> list[Chunk]:
    """Values for partitions p0, p1 …"""
    return [(int(name[1:]), column(*given)) for name, given in found.items()]


def inbox(store_bench: StoreBench) -> Inbox:
    return store_bench.store.inboxes.of("t")


def both(store_bench: StoreBench) -> list[list[bytes | None]]:
    """What readers see in both partitions."""
    return [values(store_bench.store.partition("t", number)) for number in (0, 1)]


def open_transactions(store_bench: StoreBench) -> list[int]:
    return [
        transaction.first_offset
        for number in (0, 1)
        for transaction in store_bench.store.partition("t", number).log.producers.ongoing
    ]


def test_a_batch_is_appended_to_every_partition_and_is_on_disk(store_bench: StoreBench) -> None:
    done = inbox(store_bench).commit("b", chunks(p0=(b"a", b"b"), p1=(b"c",)))
    assert (done.records, done.known) == (3, False)
    assert both(store_bench) == [[b"a", b"b"], [b"c"]]
    for number in (0, 1):
        partition = store_bench.store.partition("t", number)
        assert partition.recovery_point == partition.end_offset == partition.stable_offset
    assert not (store_bench.root / "staging/t/journal").exists()


def test_a_name_that_is_known_adds_nothing_and_takes_the_sources(store_bench: StoreBench) -> None:
    box = inbox(store_bench)
    box.commit("b", chunks(p0=(b"a",)))
    box.staging.make_directory(("d",))
    box.staging.open(("d", "x.txt"), os.O_WRONLY | os.O_CREAT).close()
    assert box.commit("b", chunks(p0=(b"again",)), [("d",)]).known
    assert both(store_bench) == [[b"a"], []]
    assert box.staging.names(("d",)) == []


def test_names_are_known_after_a_clean_stop_and_after_a_crash(store_bench: StoreBench) -> None:
    inbox(store_bench).commit("b", chunks(p0=(b"a",)))
    store_bench.reopen()
    assert inbox(store_bench).commit("b", chunks(p0=(b"again",))).known
    store_bench.crash()
    assert inbox(store_bench).knows("b")
    assert both(store_bench) == [[b"a"], []]


def test_an_empty_batch_is_known_too(store_bench: StoreBench) -> None:
    assert inbox(store_bench).commit("b", ()).records == 0
    assert inbox(store_bench).commit("b", chunks(p0=(b"late",))).known


def test_a_record_that_is_refused_leaves_nothing(store_bench: StoreBench) -> None:
    store_bench.store.configure("t", {"cleanup.policy": "compact"})
    with pytest.raises(InvalidRecordError):
        inbox(store_bench).commit("b", chunks(p0=(b"a",)))
    store_bench.store.configure("t", {"cleanup.policy": "delete"})
    assert both(store_bench) == [[], []]
    assert inbox(store_bench).commit("b", chunks(p0=(b"a",))).records == 1


def test_an_error_in_the_middle_aborts_what_was_appended(store_bench: StoreBench) -> None:
    def failing() -> Iterator[Chunk]:
        # Enough for several record batches: the first of them is in the log by then.
        yield 0, column(*[b"x" * 100_000] * 30)
        yield 1, column(b"y")
        raise OSError(errno.EIO, "the source is broken")

    with pytest.raises(OSError, match="broken"):
        inbox(store_bench).commit("b", failing())
    assert store_bench.store.partition("t", 0).end_offset > 0
    assert both(store_bench) == [[], []]
    assert open_transactions(store_bench) == []
    assert inbox(store_bench).commit("b", chunks(p0=(b"a",), p1=(b"b",))).records == 2
    assert both(store_bench) == [[b"a"], [b"b"]]


def test_one_producer_does_for_all_commits(store_bench: StoreBench) -> None:
    for number in range(20):
        inbox(store_bench).commit(f"b{number}", chunks(p0=(b"%d" % number, b"x")))
    (entry,) = store_bench.store.partition("t", 0).log.producers.producers.values()
    assert (entry.producer_id in LOCAL_PRODUCERS, entry.last_sequence) == (True, 39)
    store_bench.crash()
    inbox(store_bench).commit("after", chunks(p0=(b"y",)))
    assert [
        (each.producer_id, each.last_sequence)
        for each in store_bench.store.partition("t", 0).log.producers.producers.values()
    ] == [(entry.producer_id, 40)]


def test_a_commit_goes_on_after_its_producer_was_forgotten(store_bench: StoreBench) -> None:
    inbox(store_bench).commit("one", chunks(p0=(b"a",)))
    store_bench.now += 2 * DAY
    assert store_bench.store.upkeep.expire_producers() == 1
    inbox(store_bench).commit("two", chunks(p0=(b"b",)))
    assert both(store_bench) == [[b"a", b"b"], []]


def test_what_others_append_meanwhile_waits_for_the_decision_and_stays(store_bench: StoreBench) -> None:
    partition = store_bench.store.partition("t", 0)

    def slow() -> Iterator[Chunk]:
        yield 0, column(*[b"x" * 100_000] * 12)
        partition.append(Record(b"other"))
        assert values(partition) == []

    inbox(store_bench).commit("b", slow())
    assert sorted(set(values(partition))) == [b"other", b"x" * 100_000]


def hang(partition: Partition) -> None:
    """What a commit that was broken off leaves in a partition."""
    from topicfs.engine.partition.partition import Producer  # noqa: PLC0415

    partition.append([Record(b"half")], Producer(OLDER_PRODUCER_ID, 0, 0, transactional=True))


def test_a_journal_that_says_appending_is_aborted_at_the_start(store_bench: StoreBench) -> None:
    hang(store_bench.store.partition("t", 1))
    Journal(store_bench.root / "staging/t/journal").write(InFlight(CommitState.APPENDING, "b", (0, 1, 7), ()))
    store_bench.crash()
    assert open_transactions(store_bench) == []
    assert both(store_bench) == [[], []]
    assert not inbox(store_bench).knows("b")


def test_a_journal_that_says_committed_is_completed_at_the_start(store_bench: StoreBench) -> None:
    hang(store_bench.store.partition("t", 1))
    inbox(store_bench).staging.make_directory(("d",))
    inbox(store_bench).staging.open(("d", "x.txt"), os.O_WRONLY | os.O_CREAT).close()
    Journal(store_bench.root / "staging/t/journal").write(
        InFlight(CommitState.COMMITTED, "b", (1,), (("d",),))
    )
    store_bench.crash()
    assert open_transactions(store_bench) == []
    assert both(store_bench) == [[], [b"half"]]
    assert inbox(store_bench).knows("b")
    assert inbox(store_bench).staging.names(("d",)) == []
    assert not (store_bench.root / "staging/t/journal").exists()


def test_a_transaction_of_the_inbox_without_a_journal_ends_with_the_next_commit(
    store_bench: StoreBench,
) -> None:
    hang(store_bench.store.partition("t", 0))
    inbox(store_bench).commit("b", chunks(p0=(b"a",)))
    assert both(store_bench) == [[b"a"], []]


def test_a_batch_is_a_transaction_of_the_coordinator(store_bench: StoreBench) -> None:
    inbox(store_bench).commit("b", chunks(p0=(b"a",), p1=(b"b",)))
    store_bench.store.configure("t", {"cleanup.policy": "compact"})
    with pytest.raises(InvalidRecordError):
        inbox(store_bench).commit("c", chunks(p0=(b"no key",)))
    (known,) = store_bench.store.transactions.transactions()
    assert (known.transactional_id, known.state) == ("inboxes/t", TransactionState.COMPLETE_ABORT)
    assert list(store_bench.store.partition("t", 1).log.producers.producers) == [known.producer_id]


def test_two_who_commit_first_have_one_producer(store_bench: StoreBench) -> None:
    """regression: the second of them found an id without a producer yet, and failed"""
    box = inbox(store_bench)
    with ThreadPoolExecutor(8) as pool:
        done = pool.map(lambda number: box.commit(f"b{number}", chunks(p0=(b"a",))).records, range(8))
        assert sum(done) == 8
    assert len(store_bench.store.partition("t", 0).log.producers.producers) == 1


@pytest.mark.parametrize("topic", [OFFSETS, TRANSACTIONS])
def test_an_inbox_of_a_topic_that_coordinators_write_says_why_it_refuses(
    store_bench: StoreBench, topic: str
) -> None:
    store_bench.store.create_topic(topic, 1)
    with pytest.raises(PolicyViolationError, match="only coordinators write it"):
        store_bench.store.inboxes.of(topic).commit("b", chunks(p0=(b"a",)))
    assert values(store_bench.store.partition(topic, 0)) == []


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"state":"appending","name":"b","partitions":[Infinity],"sources":[]}',
        '{"state":"appending","name":"b","partitions":[],"sources":[],"cluster":{"ranges":{},"transactional_id":"x",'
        '"producer_id":1e999,"epoch":0}}',
    ],
    ids=["nested", "endless", "endless in a cluster"],
)
def test_a_journal_that_somebody_made_up_is_refused(store_bench: StoreBench, text: str) -> None:
    path = store_bench.file("staging/t/journal", text)
    with pytest.raises(CorruptCheckpointError, match="expected a commit under way"):
        Journal(path).read()
    path.unlink()


def test_a_batch_whose_transaction_nobody_knows_is_not_guessed_at(store_bench: StoreBench) -> None:
    store_bench.warnings = True
    journal = Journal(store_bench.root / "staging/t/journal")
    journal.write(InFlight(CommitState.TRANSACTION, "b", (), (), producer_id=LOCAL_PRODUCERS.start))
    store_bench.crash()
    with pytest.raises(CorruptCheckpointError, match="nobody can tell whether b was committed"):
        inbox(store_bench).commit("c", chunks(p0=(b"a",)))
    journal.remove()
    assert inbox(store_bench).commit("c", chunks(p0=(b"a",))).records == 1


def test_a_batch_that_a_broker_has_completed_is_known_and_its_files_go(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = inbox(store_bench)
    box.staging.make_directory(("d",))
    box.staging.open(("d", "x.txt"), os.O_WRONLY | os.O_CREAT).close()
    with monkeypatch.context() as patch:
        patch.setattr(store_bench.store.transactions, "end_batch", lambda transaction: None)
        patch.setattr(Inbox, "_settle", lambda self: None)
        box.commit("b", chunks(p0=(b"a",)), [("d",)])
    assert (store_bench.root / "staging/t/journal").exists()
    store_bench.crash()
    assert inbox(store_bench).knows("b")
    assert inbox(store_bench).staging.names(("d",)) == []
    assert not (store_bench.root / "staging/t/journal").exists()


def test_a_marker_that_cannot_be_written_is_written_later(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_bench.warnings = True
    box = inbox(store_bench)

    def full(self: Partition, *_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(Partition, "end_transaction", full)
        # It is decided: to say that it failed would have it done twice.
        assert box.commit("b", chunks(p0=(b"a",))).records == 1
        assert box.is_unsettled
        assert both(store_bench) == [[], []]
        store_bench.store.upkeep.run_due()
        assert box.is_unsettled
    store_bench.store.upkeep.run_due()
    assert not box.is_unsettled
    assert both(store_bench) == [[b"a"], []]
    assert box.commit("b", chunks(p0=(b"a",))).known


def test_the_newest_names_are_remembered(store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "KEPT", 3)
    path = store_bench.root / "names"
    names = remembered.CommittedNames(path)
    for number in range(20):
        names.add(f"é\n{number}")
    for found in (names, remembered.CommittedNames(path)):
        assert [number for number in range(20) if f"é\n{number}" in found] == [17, 18, 19]
    assert len(path.read_bytes().splitlines()) <= 7


def rows_of(records: Sequence[tuple[Record, int]]) -> Rows:
    """Records, each with the partition that it names; those without a timestamp are undated."""
    made = batches.from_records([record for record, _ in records], 0)
    found = next(batches.columns(made.data, made.row.reshape(1, -1)), Columns.empty(made.data, 0))
    dates = [UNDATED if record.timestamp is None else record.timestamp for record, _ in records]
    return Rows(
        replace(found, timestamps=np.array(dates, np.int64)), np.array([to for _, to in records], np.int32)
    )


def content(*records: Record, to: int = NO_PARTITION) -> Content:
    found = Content()
    for record in records:
        found.add(rows_of([(record, to)]))
    return found


field = st.binary(max_size=20)
record = st.builds(
    Record,
    st.none() | field,
    st.none() | field,
    st.none() | st.integers(-1, 1 << 62),
    st.lists(st.tuples(st.text(max_size=3), st.none() | field), max_size=2).map(tuple),
)
going = st.tuples(record, st.integers(-1, 3))


@given(st.lists(going, min_size=1, max_size=6), st.lists(going, min_size=1, max_size=6), st.randoms())
def test_content_is_equal_where_records_and_partitions_are_and_nowhere_else(
    some: list[tuple[Record, int]], others: list[tuple[Record, int]], random: Random
) -> None:
    whole, pieces = Content(), Content()
    whole.add(rows_of(some))
    for each in random.sample(some, len(some)):
        pieces.add(rows_of([each]))
    assert str(whole) == str(pieces)
    other = Content()
    other.add(rows_of(others))
    assert (str(whole) == str(other)) == (Counter(some) == Counter(others))
    assert whole.is_other(str(other)) == (Counter(some) != Counter(others))
    assert not whole.is_empty


def test_what_is_null_empty_or_elsewhere_is_other_content() -> None:
    some = [
        Record(b"x"),
        Record(b""),
        Record(None),
        Record(b"x", b""),
        Record(b"", b"x"),
        Record(b"x", b"k"),
        Record(b"x", None, 0),
        Record(b"x", None, -1),
        Record(b"x", None, None, (("k", None),)),
        Record(b"x", None, None, (("k", b""),)),
        Record(b"x", None, None, (("", b"k"),)),
    ]
    assert len({str(content(each, to=to)) for each in some for to in (-1, 0, 1)}) == 3 * len(some)


def test_a_span_outside_its_buffer_is_no_content() -> None:
    rows = rows_of([(Record(b"value", b"key"), 0), (Record(b"value"), 0)])
    for name in ("value_length", "value_start", "key_length", "headers_start"):
        spans = getattr(rows.columns, name).copy()
        spans[:] = 1 << 30
        with pytest.raises(CorruptBatchError, match="record 0 of 2 has a span outside"):
            Content().add(
                replace(rows, columns=replace(rows.columns, headers_length=spans * 0 + 2, **{name: spans}))
            )


def test_other_content_under_a_known_name_is_refused_and_nothing_is_removed(store_bench: StoreBench) -> None:
    box = inbox(store_bench)
    box.commit("b", chunks(p0=(b"a",)), content=content(Record(b"a")))
    box.staging.make_directory(("d",))
    box.staging.open(("d", "x.txt"), os.O_WRONLY | os.O_CREAT).close()
    for start in (lambda: None, store_bench.reopen, store_bench.crash):
        start()
        with pytest.raises(BatchExistsError, match=r"expected 1:1:.*, found 1:2:"):
            inbox(store_bench).commit("b", chunks(p0=(b"c",)), [("d",)], content(Record(b"c"), Record(b"d")))
        assert inbox(store_bench).staging.names(("d",)) == ["x.txt"]
    assert inbox(store_bench).commit("b", (), [("d",)], content()).known
    assert inbox(store_bench).commit("b", (), [("d",)], content(Record(b"a"))).known
    assert both(store_bench) == [[b"a"], []]


@pytest.mark.parametrize("noted", ['"b"', '["b", "1:0"]', '["b", "2:1:0"]', '["b", ""]'])
def test_content_that_was_not_noted_or_in_another_form_is_not_compared(
    store_bench: StoreBench, noted: str
) -> None:
    """Older versions noted nothing, or lines."""
    store_bench.damaged = {Kind.STAGING}
    store_bench.file("staging/t/committed", f'{noted}\n["new", "1:1:0"]\n[1]\n{{}}\n["x"]\n')
    assert inbox(store_bench).commit("b", chunks(p0=(b"a",)), content=content(Record(b"a"))).known
    with pytest.raises(BatchExistsError):
        inbox(store_bench).commit("new", chunks(p0=(b"a",)), content=content(Record(b"a")))
    assert not inbox(store_bench).knows("x")
    assert both(store_bench) == [[], []]


def test_the_content_of_a_commit_that_a_crash_has_stopped_is_noted(store_bench: StoreBench) -> None:
    journal = Journal(store_bench.root / "staging/t/journal")
    journal.write(InFlight(CommitState.COMMITTED, "j", (), (), "1:1:0"))
    store_bench.crash()
    with pytest.raises(BatchExistsError):
        inbox(store_bench).commit("j", (), content=content(Record(b"a")))


def test_a_name_that_is_half_written_is_not_known_and_harms_no_other(store_bench: StoreBench) -> None:
    path = store_bench.root / "names"
    path.write_bytes(b'"one"\n"tw')
    names = remembered.CommittedNames(path)
    assert "one" in names
    assert "tw" not in names
    names.add("three")
    assert "three" in remembered.CommittedNames(path)


def test_whether_a_name_is_known_is_told_where_there_is_no_room(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store_bench.root / "names"
    path.write_bytes(b'"one"\n"tw')

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    names = remembered.CommittedNames(path)
    with monkeypatch.context() as patched:
        patched.setattr(remembered, "write_atomically", full)
        assert "one" in names
        assert "tw" not in names
        with pytest.raises(OSError, match="No space left"):
            names.add("three")
        assert "three" not in names
    names.add("three")
    assert path.read_bytes() == b'"one"\n"three"\n'


def test_a_topics_files_and_names_go_with_it(store_bench: StoreBench) -> None:
    box = inbox(store_bench)
    box.commit("b", chunks(p0=(b"a",)))
    store_bench.store.delete_topic("t")
    assert list((store_bench.root / "staging").iterdir()) == []
    with pytest.raises(ClosedError):
        box.commit("c", ())
    with pytest.raises(UnknownPartitionError):
        inbox(store_bench)
    store_bench.store.create_topic("t", 2)
    assert inbox(store_bench).commit("b", chunks(p0=(b"new",))).records == 1


def test_the_last_partition_takes_them_along(store_bench: StoreBench) -> None:
    inbox(store_bench).commit("b", chunks(p0=(b"a",)))
    store_bench.store.delete("t", 0)
    assert inbox(store_bench).knows("b")
    store_bench.store.delete("t-1")
    assert list((store_bench.root / "staging").iterdir()) == []


def test_files_of_a_topic_that_is_gone_are_removed_at_the_start(store_bench: StoreBench) -> None:
    store_bench.file("staging/gone/inbox/x.txt", "x")
    store_bench.file("staging/~half/inbox/x.txt", "x")
    store_bench.reopen()
    assert list((store_bench.root / "staging").iterdir()) == []


def test_a_sweep_removes_what_nobody_changed_for_long(store_bench: StoreBench) -> None:
    box = inbox(store_bench)
    for name in ("done", "pending"):
        box.staging.make_directory((name,))
        box.staging.open((name, "x.txt"), os.O_WRONLY | os.O_CREAT).close()
    box.commit(batch_name("done"), (), [("done",)])
    now = box.staging.last_change_ms(("pending",))
    # A file keeps its own time when it is copied here; that says nothing of how long it lies here.
    box.staging.set_times(("pending", "x.txt"), 0, 0)
    sweep = store_bench.store.inboxes.sweep
    assert sweep(now + 1000, 0) == 0
    assert sweep(now + 3_600_000, 3_600_000) == 1
    assert box.staging.names(()) == ["pending"]
    assert sweep(now + 8 * DAY, 8 * DAY) == 1
    assert box.staging.names(()) == []


def test_what_waits_is_told_and_what_is_committed_is_not(store_bench: StoreBench) -> None:
    box, inboxes = inbox(store_bench), store_bench.store.inboxes
    assert inboxes.waiting() == {}
    for name in ("done", "pending", ".hidden", "_temporary"):
        box.staging.make_directory((name,))
        for file in ("x.txt", ".x.txt.crc"):
            box.staging.open((name, file), os.O_WRONLY | os.O_CREAT).close()
    box.staging.make_directory(("pending", "partition=0"))
    box.staging.open(("pending", "partition=0", "y.txt"), os.O_WRONLY | os.O_CREAT).close()
    box.staging.make_directory(("pending", "_temporary"))
    box.staging.open(("pending", "_temporary", "z.txt"), os.O_WRONLY | os.O_CREAT).close()
    box.staging.make_directory(("nothing",))
    box.commit(batch_name("done"), (), [("done",)])
    box.staging.open(("done", "_SUCCESS"), os.O_WRONLY | os.O_CREAT).close()
    box.staging.open(("_SUCCESS",), os.O_WRONLY | os.O_CREAT).close()
    for name in ("part-00000.txt", "part-00001.txt"):
        box.staging.open((name,), os.O_WRONLY | os.O_CREAT).close()
    (found,) = inboxes.waiting().values()
    assert sorted((each.directory, each.files) for each in found) == [
        (".", 2),
        ("nothing", 0),
        ("pending", 2),
    ]
    assert [each.since_ms for each in found] == sorted(each.since_ms for each in found)
    since = {each.directory: each.since_ms for each in found}
    assert since["pending"] == box.staging.last_change_ms(("pending",))
    box.staging.make_directory(("done", "again"))
    assert "done" in {each.directory for each in box.waiting()}


def test_an_inbox_that_cannot_be_read_hides_none_of_the_others(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """regression: all metrics of a mount failed with it, also where a topic was deleted in that moment"""
    box, inboxes = inbox(store_bench), store_bench.store.inboxes
    box.staging.make_directory(("pending",))
    store_bench.store.create_topic("other")
    (inboxes.directory / "other").mkdir(exist_ok=True)
    plain = Inboxes.of
    for error in (
        UnknownPartitionError("there is no topic other"),
        OSError(errno.EMFILE, "no descriptor is free"),
    ):

        def of(self: Inboxes, topic: str, error: Exception = error) -> Inbox:
            if topic == "other":
                raise error
            return plain(self, topic)

        monkeypatch.setattr(Inboxes, "of", of)
        assert list(inboxes.waiting()) == [box.topic]


def test_a_clock_that_is_set_removes_nothing_from_an_inbox_and_keeps_nothing(store_bench: StoreBench) -> None:
    """regression: what was set a week ahead, as where a board without a clock of its own learns the time, removed
    files that had just come"""
    box = inbox(store_bench)
    box.staging.make_directory(("pending",))
    now = box.staging.last_change_ms(("pending",))
    sweep = store_bench.store.inboxes.sweep
    assert sweep(now, 0) == 0
    assert sweep(now + 8 * DAY, 60_000) == 0
    box.staging.make_directory(("later",))
    for steady_ms in (2 * 60_000, 6 * DAY):
        assert sweep(now - 30 * DAY, steady_ms) == 0
    assert sweep(now - 30 * DAY, 7 * DAY) == 1
    assert box.staging.names(()) == ["later"]
    assert sweep(now - 30 * DAY, 7 * DAY + 2 * 60_000) == 1


def test_a_start_goes_by_the_dates_of_what_lies_in_an_inbox(store_bench: StoreBench) -> None:
    inbox(store_bench).staging.make_directory(("pending",))
    now = inbox(store_bench).staging.last_change_ms(("pending",))
    store_bench.reopen()
    sweep = store_bench.store.inboxes.sweep
    assert sweep(now + 6 * DAY, 50) == 0
    assert sweep(now, DAY + 49) == 0
    assert sweep(now, DAY + 50) == 1


def test_where_the_coordinators_log_was_deleted_a_batch_makes_it_before_it_takes_the_inboxs_lock(
    store_bench: StoreBench,
) -> None:
    inbox(store_bench).commit("a", chunks(p0=(b"a",)))
    store_bench.store.delete_topic(TRANSACTIONS)
    inbox(store_bench).commit("b", chunks(p0=(b"b",)))
    assert both(store_bench)[0] == [b"a", b"b"]


def test_a_commit_that_holds_the_inbox_leaves_a_coordinators_log_that_was_deleted_to_the_next_one(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion of the topic has the store to itself, and waits for the inbox: nothing can be made meanwhile."""
    box, prepared = inbox(store_bench), Inbox._prepared

    def and_then_deleted(self: Inbox) -> Transaction | None:
        holder = prepared(self)
        store_bench.store.delete_topic(TRANSACTIONS)
        return holder

    with monkeypatch.context() as late:
        late.setattr(Inbox, "_prepared", and_then_deleted)
        store_bench.warnings = True
        with pytest.raises(UnknownPartitionError, match="the next transaction makes it anew"):
            box.commit("a", chunks(p0=(b"a",)))
    assert TRANSACTIONS not in store_bench.store.topics()
    box.commit("a", chunks(p0=(b"a",)))
    assert both(store_bench)[0] == [b"a"]


@pytest.mark.parametrize("staged", [True, False])
def test_a_topics_first_note_and_first_name_are_in_a_directory_that_lasts(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch, staged: bool
) -> None:
    """Without its note a commit that is completed at the next start would not be known by its name."""
    if staged:
        inbox(store_bench).staging.make_directory(("a",))
    steps, real, write, add = [], atomic.sync_directory, Journal.write, remembered.CommittedNames.add

    def sync(directory: Path) -> None:
        steps.append(directory.name)
        real(directory)

    for module in (atomic, journals, remembered):
        monkeypatch.setattr(module, "sync_directory", sync)
    monkeypatch.setattr(Journal, "write", lambda self, note: (write(self, note), steps.append("noted")))
    monkeypatch.setattr(
        remembered.CommittedNames, "add", lambda self, *name: (add(self, *name), steps.append("named"))
    )
    inbox(store_bench).commit("a", chunks(p0=(b"a",)))
    noted, named = steps.index("noted"), steps.index("named")
    assert "staging" in steps[:noted]
    assert "staging" in steps[noted:named]
    steps.clear()
    inbox(store_bench).commit("b", chunks(p0=(b"b",)))
    assert "named" in steps
    assert "staging" not in steps
