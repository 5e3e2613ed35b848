"""The inbox: a batch is appended as a whole, exactly once, in whatever partitions."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest
from houses import House, living, values
from hypothesis import given
from hypothesis import strategies as st

from topicfs import Record
from topicfs.engine.batch.columns import Columns
from topicfs.engine.errors import BatchExistsError, ClosedError, InvalidRecordError, UnknownPartitionError
from topicfs.engine.inbox import names as remembered
from topicfs.engine.inbox.content import Content
from topicfs.engine.inbox.inbox import PRODUCER_ID, Chunk, Inbox, batch_name
from topicfs.engine.inbox.journal import InFlight, Journal, State
from topicfs.engine.partition.partition import Partition

DAY = 86_400_000


@pytest.fixture
def house(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[House]:
    with living(tmp_path / "backing", caplog) as made:
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


def inbox(house: House) -> Inbox:
    return house.store.inboxes.of("t")


def both(house: House) -> list[list[bytes | None]]:
    """What readers see in both partitions."""
    return [values(house.store.partition("t", number)) for number in (0, 1)]


def open_transactions(house: House) -> list[int]:
    return [
        transaction.first_offset
        for number in (0, 1)
        for transaction in house.store.partition("t", number).log.producers.ongoing
    ]


def test_a_batch_is_appended_to_every_partition_and_is_on_disk(house: House) -> None:
    done = inbox(house).commit("b", chunks(p0=(b"a", b"b"), p1=(b"c",)))
    assert (done.records, done.known) == (3, False)
    assert both(house) == [[b"a", b"b"], [b"c"]]
    for number in (0, 1):
        partition = house.store.partition("t", number)
        assert partition.recovery_point == partition.end_offset == partition.stable_offset
    assert not (house.root / "staging/t/journal").exists()


def test_a_name_that_is_known_adds_nothing_and_takes_the_sources(house: House) -> None:
    box = inbox(house)
    box.commit("b", chunks(p0=(b"a",)))
    box.staging.make_directory(("d",))
    box.staging.open(("d", "x.txt"), os.O_WRONLY | os.O_CREAT).close()
    assert box.commit("b", chunks(p0=(b"again",)), [("d",)]).known
    assert both(house) == [[b"a"], []]
    assert box.staging.names(("d",)) == []


def test_names_are_known_after_a_clean_stop_and_after_a_crash(house: House) -> None:
    inbox(house).commit("b", chunks(p0=(b"a",)))
    house.reopen()
    assert inbox(house).commit("b", chunks(p0=(b"again",))).known
    house.crash()
    assert inbox(house).knows("b")
    assert both(house) == [[b"a"], []]


def test_an_empty_batch_is_known_too(house: House) -> None:
    assert inbox(house).commit("b", ()).records == 0
    assert inbox(house).commit("b", chunks(p0=(b"late",))).known


def test_a_record_that_is_refused_leaves_nothing(house: House) -> None:
    house.store.configure("t", {"cleanup.policy": "compact"})
    with pytest.raises(InvalidRecordError):
        inbox(house).commit("b", chunks(p0=(b"a",)))
    house.store.configure("t", {"cleanup.policy": "delete"})
    assert both(house) == [[], []]
    assert inbox(house).commit("b", chunks(p0=(b"a",))).records == 1


def test_an_error_in_the_middle_aborts_what_was_appended(house: House) -> None:
    def failing() -> Iterator[Chunk]:
        # Enough for several record batches: the first of them is in the log by then.
        yield 0, column(*[b"x" * 100_000] * 30)
        yield 1, column(b"y")
        raise OSError(errno.EIO, "the source is broken")

    with pytest.raises(OSError, match="broken"):
        inbox(house).commit("b", failing())
    assert house.store.partition("t", 0).end_offset > 0
    assert both(house) == [[], []]
    assert open_transactions(house) == []
    assert inbox(house).commit("b", chunks(p0=(b"a",), p1=(b"b",))).records == 2
    assert both(house) == [[b"a"], [b"b"]]


def test_one_producer_does_for_all_commits(house: House) -> None:
    for number in range(20):
        inbox(house).commit(f"b{number}", chunks(p0=(b"%d" % number, b"x")))
    entries = house.store.partition("t", 0).log.producers.producers
    assert list(entries) == [PRODUCER_ID]
    assert entries[PRODUCER_ID].last_sequence == 39
    house.crash()
    inbox(house).commit("after", chunks(p0=(b"y",)))
    assert house.store.partition("t", 0).log.producers.producers[PRODUCER_ID].last_sequence == 40


def test_a_commit_goes_on_after_its_producer_was_forgotten(house: House) -> None:
    inbox(house).commit("one", chunks(p0=(b"a",)))
    house.now += 2 * DAY
    assert house.store.expire_producers() == 1
    inbox(house).commit("two", chunks(p0=(b"b",)))
    assert both(house) == [[b"a", b"b"], []]


def test_what_others_append_meanwhile_waits_for_the_decision_and_stays(house: House) -> None:
    partition = house.store.partition("t", 0)

    def slow() -> Iterator[Chunk]:
        yield 0, column(*[b"x" * 100_000] * 12)
        partition.append(Record(b"other"))
        assert values(partition) == []

    inbox(house).commit("b", slow())
    assert sorted(set(values(partition))) == [b"other", b"x" * 100_000]


def hang(partition: Partition) -> None:
    """What a commit that was broken off leaves in a partition."""
    from topicfs.engine.partition.partition import Producer  # noqa: PLC0415

    partition.append([Record(b"half")], Producer(PRODUCER_ID, 0, 0, transactional=True))


def test_a_journal_that_says_appending_is_aborted_at_the_start(house: House) -> None:
    hang(house.store.partition("t", 1))
    Journal(house.root / "staging/t/journal").write(InFlight(State.APPENDING, "b", (0, 1, 7), ()))
    house.crash()
    assert open_transactions(house) == []
    assert both(house) == [[], []]
    assert not inbox(house).knows("b")


def test_a_journal_that_says_committed_is_completed_at_the_start(house: House) -> None:
    hang(house.store.partition("t", 1))
    inbox(house).staging.make_directory(("d",))
    inbox(house).staging.open(("d", "x.txt"), os.O_WRONLY | os.O_CREAT).close()
    Journal(house.root / "staging/t/journal").write(InFlight(State.COMMITTED, "b", (1,), (("d",),)))
    house.crash()
    assert open_transactions(house) == []
    assert both(house) == [[], [b"half"]]
    assert inbox(house).knows("b")
    assert inbox(house).staging.names(("d",)) == []
    assert not (house.root / "staging/t/journal").exists()


def test_a_transaction_of_the_inbox_without_a_journal_ends_with_the_next_commit(house: House) -> None:
    hang(house.store.partition("t", 0))
    inbox(house).commit("b", chunks(p0=(b"a",)))
    assert both(house) == [[b"a"], []]


def test_a_marker_that_cannot_be_written_is_written_later(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.warnings = True
    box = inbox(house)

    def full(self: Partition, *_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(Partition, "end_transaction", full)
        # It is decided: to say that it failed would have it done twice.
        assert box.commit("b", chunks(p0=(b"a",))).records == 1
        assert box.is_unsettled
        assert both(house) == [[], []]
        house.store.inboxes.settle()
        assert box.is_unsettled
    house.store.inboxes.settle()
    assert not box.is_unsettled
    assert both(house) == [[b"a"], []]
    assert box.commit("b", chunks(p0=(b"a",))).known


def test_the_newest_names_are_remembered(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "KEPT", 3)
    path = house.root / "names"
    names = remembered.CommittedNames(path)
    for number in range(20):
        names.add(f"é\n{number}")
    for found in (names, remembered.CommittedNames(path)):
        assert [number for number in range(20) if f"é\n{number}" in found] == [17, 18, 19]
    assert len(path.read_bytes().splitlines()) <= 7


def content(*lines: bytes, kind: str = "txt:-1") -> Content:
    found = Content()
    for line in lines:
        found.add(np.frombuffer(line, np.uint8), kind)
    return found


@given(st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"") + b"\n")), st.randoms())
def test_equal_lines_are_equal_content_in_any_order_and_pieces(lines: list[bytes], random: Random) -> None:
    mixed = random.sample(lines, len(lines))
    assert str(content(*lines)) == str(content(b"".join(mixed)))
    assert content(*lines).is_empty == (not lines)
    assert str(content(*lines)) != str(content(*lines, b"one more\n"))
    if lines:
        assert str(content(*lines)) != str(content(*lines, kind="txt:3"))
        assert str(content(*lines)) != str(content(*lines[1:], lines[0][:-1] + b"x\n"))


def test_content_is_of_whole_lines() -> None:
    with pytest.raises(ValueError, match="expected whole lines, found 1 bytes"):
        content(b"a\nb")


def test_other_content_under_a_known_name_is_refused_and_nothing_is_removed(house: House) -> None:
    box = inbox(house)
    box.commit("b", chunks(p0=(b"a",)), content=content(b"a\n"))
    box.staging.make_directory(("d",))
    box.staging.open(("d", "x.txt"), os.O_WRONLY | os.O_CREAT).close()
    for start in (lambda: None, house.reopen, house.crash):
        start()
        with pytest.raises(BatchExistsError, match=r"expected 1:.*, found 2:"):
            inbox(house).commit("b", chunks(p0=(b"c",)), [("d",)], content(b"c\n", b"d\n"))
        assert inbox(house).staging.names(("d",)) == ["x.txt"]
    assert inbox(house).commit("b", (), [("d",)], content()).known
    assert inbox(house).commit("b", (), [("d",)], content(b"a\n")).known
    assert both(house) == [[b"a"], []]


def test_content_that_was_not_noted_is_not_compared(house: House) -> None:
    house.file("staging/t/committed", '"old"\n["new", "1:0"]\n[1]\n{}\n["x"]\n')
    assert inbox(house).commit("old", chunks(p0=(b"a",)), content=content(b"a\n")).known
    with pytest.raises(BatchExistsError):
        inbox(house).commit("new", chunks(p0=(b"a",)), content=content(b"a\n"))
    assert not inbox(house).knows("x")
    Journal(house.root / "staging/t/journal").write(InFlight(State.COMMITTED, "j", (), (), "1:0"))
    house.crash()
    with pytest.raises(BatchExistsError):
        inbox(house).commit("j", (), content=content(b"a\n"))


def test_a_name_that_is_half_written_is_not_known_and_harms_no_other(house: House) -> None:
    path = house.root / "names"
    path.write_bytes(b'"one"\n"tw')
    names = remembered.CommittedNames(path)
    assert "one" in names
    assert "tw" not in names
    names.add("three")
    assert "three" in remembered.CommittedNames(path)


def test_a_topics_files_and_names_go_with_it(house: House) -> None:
    box = inbox(house)
    box.commit("b", chunks(p0=(b"a",)))
    house.store.delete_topic("t")
    assert list((house.root / "staging").iterdir()) == []
    with pytest.raises(ClosedError):
        box.commit("c", ())
    with pytest.raises(UnknownPartitionError):
        inbox(house)
    house.store.create_topic("t", 2)
    assert inbox(house).commit("b", chunks(p0=(b"new",))).records == 1


def test_the_last_partition_takes_them_along(house: House) -> None:
    inbox(house).commit("b", chunks(p0=(b"a",)))
    house.store.delete("t", 0)
    assert inbox(house).knows("b")
    house.store.delete("t-1")
    assert list((house.root / "staging").iterdir()) == []


def test_files_of_a_topic_that_is_gone_are_removed_at_the_start(house: House) -> None:
    house.file("staging/gone/inbox/x.txt", "x")
    house.file("staging/~half/inbox/x.txt", "x")
    house.reopen()
    assert list((house.root / "staging").iterdir()) == []


def test_a_sweep_removes_what_nobody_changed_for_long(house: House) -> None:
    box = inbox(house)
    for name in ("done", "pending"):
        box.staging.make_directory((name,))
        box.staging.open((name, "x.txt"), os.O_WRONLY | os.O_CREAT).close()
    box.commit(batch_name("done"), (), [("done",)])
    now = box.staging.last_change_ms(("pending",))
    # A file keeps its own time when it is copied here; that says nothing of how long it lies here.
    box.staging.set_times(("pending", "x.txt"), 0, 0)
    assert house.store.inboxes.sweep(now + 1000) == 0
    assert house.store.inboxes.sweep(now + 3_600_000) == 1
    assert box.staging.names(()) == ["pending"]
    assert house.store.inboxes.sweep(now + 8 * DAY) == 1
    assert box.staging.names(()) == []
