"""Writers: bytes in any pieces become whole lines, and what was taken is neither lost nor doubled."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from append_bench import FIRST, broken_disk, busy_writer, full_disk, refused, values, writer
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_opening import Clock
from patience import PATIENCE_S, ended
from tree_bench import APPEND, LINGER_MS, TreeBench, array, tree_bench

from topicfs.engine.batch import from_records
from topicfs.engine.errors import EngineError, RecordTooLargeError
from topicfs.engine.kernels.scan import BASE_OFFSET, SIZE
from topicfs.engine.record import Record
from topicfs.engine.segment import appender
from topicfs.fs.appending import partition_writers
from topicfs.fs.appending.handle import AppendHandle
from topicfs.fs.appending.line_queue import BATCH, RETRY_MS
from topicfs.fs.appending.targets import PartitionTarget
from topicfs.fs.errors import AppendOnlyError, BadInputError
from topicfs.fs.views.partition_views import PartitionViews


@pytest.fixture
def place(tmp_path: Path) -> Iterator[TreeBench]:
    with tree_bench(tmp_path) as made:
        made.create()
        yield made


# -- lines --------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    text=st.lists(st.sampled_from([b"a", b"bc", b"\n", b"", b"\n\n", b"longer \xff"]), max_size=20),
    batch_size=st.sampled_from([0, 100, 1 << 20]),
)
def test_any_pieces_give_the_same_lines(
    tmp_path_factory: pytest.TempPathFactory, text: list[bytes], batch_size: int
) -> None:
    with tree_bench(tmp_path_factory.mktemp("pieces")) as made:
        made.create()
        handle = writer(made, batch_size=batch_size)
        for piece in text:
            assert handle.write(array(piece)) == len(piece)
        handle.flush()
        whole = b"".join(text)
        lines = whole.split(b"\n")
        assert values(made) == lines[:-1]
        handle.release()
        assert values(made) == (lines if lines[-1] else lines[:-1])


def test_lines_that_come_fast_wait_until_the_file_is_closed(place: TreeBench) -> None:
    handle = busy_writer(place)
    handle.write(array(b"one\n"))
    handle.write(array(b"two\n"))
    assert values(place) == [b"first"]
    handle.flush()
    assert values(place) == [b"first", b"one", b"two"]


def test_lines_that_fill_a_batch_do_not_wait(place: TreeBench) -> None:
    handle = writer(place, batch_size=1000)
    lines = [b"%d " % at + b"x" * 60 for at in range(30)]
    for at, line in enumerate(lines):
        handle.write(array(line + b"\n"))
        assert at - 12 < len(values(place)) <= at + 1
    handle.flush()
    assert values(place) == lines


def test_a_large_write_does_not_wait_and_takes_along_what_does(place: TreeBench) -> None:
    handle = busy_writer(place)
    handle.write(array(b"small\nbegun "))
    handle.write(array(b"and ended\n" + b"large\n" * 10_000))
    assert values(place) == [b"first", b"small", b"begun and ended", *[b"large"] * 10_000]
    assert len(batches_of(place)) == 2


def test_a_very_large_write_is_appended_at_once_in_batches_of_a_good_size(place: TreeBench) -> None:
    handle = writer(place, batch_size=1 << 17)
    handle.write(array(b"first\nbegun "))
    lines = [b"%d " % at + b"x" * (at % 300) for at in range(6000)]
    with mock.patch.object(appender, "write_exactly", wraps=appender.write_exactly) as written:
        handle.write(array(b"\n".join(lines) + b"\n"))
    assert len(written.mock_calls) == 1
    assert values(place) == [b"first", b"begun " + lines[0], *lines[1:]]
    (segment,) = place.views().partition.log.chain.segments
    sizes = [int(size) for _, table in segment.log.batches() for size in table[:, SIZE]][1:]
    assert len(sizes) == 6
    assert all(size <= BATCH for size in sizes)
    into = np.zeros(1 << 21, np.uint8)
    opened = place.files.open("/t-0/log.txt", os.O_RDONLY).handle
    shown = into[: place.files.read(opened, 0, into)].tobytes()
    assert shown == b"first\nbegun " + b"\n".join(lines) + b"\n"
    place.files.release(opened)


# -- write-behind -------------------------------------------------------------------------------------------

LARGE_LINES = b"y" * 99 + b"\n"
LARGE_LINES *= 600


@contextmanager
def written_behind(place: TreeBench) -> Iterator[threading.Thread]:
    """The thread of the daemon that appends large writes."""
    behind = place.files.context.write_behind
    thread = threading.Thread(target=behind.run, daemon=True)
    thread.start()
    until(lambda: behind.is_idle)
    try:
        yield thread
    finally:
        behind.stop()
        ended(thread)


@contextmanager
def slow_disk(of: threading.Thread | None = None) -> Iterator[threading.Event]:
    """Nothing is written until the event, or nothing of one thread."""
    write, may_go = appender.write_exactly, threading.Event()

    def write_slowly(fd: int, position: int, data: memoryview) -> None:
        if of in (None, threading.current_thread()):
            assert may_go.wait(PATIENCE_S)
        write(fd, position, data)

    with mock.patch.object(appender, "write_exactly", write_slowly):
        try:
            yield may_go
        finally:
            may_go.set()


def test_a_large_write_behind_another_is_answered_before_it_is_appended(place: TreeBench) -> None:
    handle = busy_writer(place)
    with written_behind(place):
        with slow_disk() as may_go:
            assert handle.write(array(LARGE_LINES)) == len(LARGE_LINES)
            assert values(place) == [b"first"]
            assert not handle.is_settled
            threading.Timer(0.1, may_go.set).start()
            handle.flush()
            assert may_go.is_set()
        assert values(place) == [b"first", *[b"y" * 99] * 600]
        with slow_disk() as may_go:
            handle.write(array(LARGE_LINES))
            threading.Timer(0.1, may_go.set).start()
            # It waits for its turn, and comes behind.
            place.views().partition.append(Record(b"record"))
        assert values(place)[-2:] == [b"y" * 99, b"record"]
        handle.release()


def test_a_large_write_that_is_the_first_or_comes_late_is_appended_when_it_returns(place: TreeBench) -> None:
    with written_behind(place):
        handle = writer(place)
        for at in range(3):
            handle.write(array(LARGE_LINES))
            assert len(values(place)) == 600 * (at + 1)
            place.clock.ms += LINGER_MS
        handle.release()


def test_what_could_not_be_written_behind_stays_in_front_until_close_tells(place: TreeBench) -> None:
    handle, other = busy_writer(place), busy_writer(place)
    with written_behind(place):
        with broken_disk():
            assert handle.write(array(LARGE_LINES)) == len(LARGE_LINES)
            until(lambda: place.views().writers.refusal is not None)
            assert refused(lambda: other.write(array(b"other\n"))) == errno.EIO
            assert refused(lambda: handle.write(array(LARGE_LINES))) == errno.EIO
        other.write(array(b"other\n"))
        assert values(place) == [b"first", b"first", *[b"y" * 99] * 600, b"other"]
        with broken_disk():
            other.write(array(LARGE_LINES))
            assert refused(other.flush) == errno.EIO
        handle.flush()
        other.flush()
    assert values(place)[-1] == b"other"
    handle.release()
    other.release()


def test_the_flusher_tries_again_what_could_not_be_written_behind(place: TreeBench) -> None:
    handle = busy_writer(place)
    linger = place.files.context.linger
    with written_behind(place):
        with broken_disk():
            handle.write(array(LARGE_LINES))
            until(lambda: place.views().writers.refusal is not None)
        place.clock.ms += RETRY_MS
        until(lambda: not place.views().writers.queue._lock.locked())
        linger.flush_due()
        assert len(values(place)) == 601
    handle.release()


def test_a_full_disk_refuses_the_large_write_itself(place: TreeBench) -> None:
    handle = busy_writer(place)
    with written_behind(place), full_disk():
        assert refused(lambda: handle.write(array(LARGE_LINES))) == errno.ENOSPC
    handle.release()
    assert values(place) == [b"first"]


def test_a_writer_does_not_wait_for_the_disk_of_another_ones_large_write(place: TreeBench) -> None:
    handle = busy_writer(place)
    place.create(number=1)
    other = AppendHandle.open(
        PartitionTarget(place.views("t", 1).writers, handle.target.format, 1 << 17),
        APPEND,
        place.files.context.holdings.unfinished_bytes,
    )
    other.write(array(b"first\n"))
    with written_behind(place) as thread, slow_disk(thread):
        handle.write(array(LARGE_LINES))
        other.write(array(LARGE_LINES))
        assert len(list(place.views("t", 1).partition.records())) == 601
        assert values(place) == [b"first"]
    handle.release()
    other.release()
    assert len(values(place)) == 601


def test_a_large_line_that_is_too_long_is_refused_by_its_write(place: TreeBench) -> None:
    place.store.configure("t", {"max.message.bytes": "50000"})
    handle = busy_writer(place)
    text = LARGE_LINES + b"z" * 60_000 + b"\nlast\n"
    with written_behind(place):
        done = handle.write(array(text))
        assert done == len(LARGE_LINES)
        with pytest.raises(RecordTooLargeError):
            handle.write(array(text[done:]))
        handle.release()
    assert values(place) == [b"first", *[b"y" * 99] * 600]


def test_what_was_left_to_the_thread_is_appended_before_it_ends(place: TreeBench) -> None:
    behind = place.files.context.write_behind
    handle = busy_writer(place)
    with slow_disk() as may_go, written_behind(place):
        handle.write(array(LARGE_LINES))
        threading.Timer(0.1, may_go.set).start()
    assert len(values(place)) == 601
    assert not behind.runs
    assert not behind.take(lambda: pytest.fail("it has ended"))
    handle.write(array(LARGE_LINES))
    assert len(values(place)) == 1201
    handle.release()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def batches_of(place: TreeBench) -> list[int]:
    """Base offsets of the batches."""
    segments = place.views().partition.log.chain.segments
    return [
        int(row[0])
        for segment in segments
        for _, table in segment.log.batches()
        for row in table[:, [BASE_OFFSET]]
    ]


# -- several writers ----------------------------------------------------------------------------------------


def test_a_line_by_itself_is_appended_by_its_write(place: TreeBench) -> None:
    handle = busy_writer(place)
    for at in range(3):
        place.clock.ms += LINGER_MS
        handle.write(array(b"%d\n" % at))
        assert values(place)[1:] == [b"%d" % each for each in range(at + 1)]


def test_the_first_line_of_an_open_file_is_appended_by_its_write(place: TreeBench) -> None:
    busy = busy_writer(place)
    busy.write(array(b"waits\n"))
    handle = writer(place)
    handle.write(array(b"echoed\n"))
    assert values(place) == [b"first", b"waits", b"echoed"]


@pytest.mark.parametrize("names", [("log.txt", "log.txt"), ("log.txt", "log.jsonl"), ("log.tsv", "log.txt")])
def test_the_order_of_lines_is_that_of_their_writes_whoever_closes_first(
    place: TreeBench, names: tuple[str, str]
) -> None:
    one, other = busy_writer(place, names[0]), busy_writer(place, names[1])
    spelled = {"log.txt": b"%s\n", "log.tsv": b"k\t%s\n", "log.jsonl": b'{"value":"%s"}\n'}
    one.write(array(spelled[names[0]] % b"one"))
    other.write(array(spelled[names[1]] % b"other"))
    one.write(array(spelled[names[0]] % b"one more"))
    assert values(place) == [b"first", b"first"]
    other.flush()
    other.release()
    one.flush()
    one.release()
    assert values(place) == [b"first", b"first", b"one", b"other", b"one more"]


def test_lines_of_jsonl_keep_their_times_beside_plain_ones(place: TreeBench) -> None:
    one, other = busy_writer(place, "log.jsonl"), busy_writer(place)
    one.write(array(b'{"value":"old","timestamp":5}\n'))
    place.clock.ms += 1
    other.write(array(b"new\n"))
    one.flush()
    found = [(record.value, record.timestamp) for record in place.views().partition.records()][2:]
    assert found == [(b"old", 5), (b"new", place.clock.ms)]


def test_what_others_append_comes_behind_the_lines_that_wait(place: TreeBench) -> None:
    partition = place.views().partition
    appends = [
        lambda: partition.append(Record(b"record")),
        lambda: partition.append_lines(b"record\n"),
        lambda: partition.append_batch(from_records([Record(b"record")], 5).data),
        lambda: partition.append_built(from_records([Record(b"record")], 5)),
    ]
    for append in appends:
        handle = busy_writer(place)
        handle.write(array(b"waits\n"))
        append()
        assert values(place)[-3:] == [b"first", b"waits", b"record"]
        handle.release()
    handle = busy_writer(place)
    handle.write(array(b"waits\n"))
    partition.roll()
    assert partition.log.chain.active.size == 0


def test_an_unfinished_line_waits_for_the_last_close(place: TreeBench) -> None:
    handle = writer(place)
    handle.write(array(b"half"))
    handle.flush()
    handle.flush()
    assert values(place) == []
    handle.write(array(b" and half\n"))
    handle.flush()
    assert values(place) == [b"half and half"]
    handle.write(array(b"rest"))
    handle.release()
    assert values(place)[1:] == [b"rest"]


def test_writers_do_not_mix_their_lines(place: TreeBench) -> None:
    one, other = writer(place), writer(place)
    one.write(array(b"one "))
    other.write(array(b"other "))
    one.write(array(b"line\none"))
    other.write(array(b"line\n"))
    other.flush()
    one.flush()
    assert values(place) == [b"one line", b"other line"]


# -- refusals -----------------------------------------------------------------------------------------------


def test_a_bad_line_behind_good_ones_gives_a_short_write_and_then_the_error(place: TreeBench) -> None:
    handle = writer(place, "log.tsv")
    data = b"k\tone\nk\ttwo\nbad\nk\tthree\n"
    assert handle.write(array(data)) == len(b"k\tone\nk\ttwo\n")
    with pytest.raises(BadInputError):
        handle.write(array(data[12:]))
    handle.release()
    assert values(place) == [b"one", b"two"]


def test_good_lines_of_a_short_write_do_not_wait_longer_than_others(place: TreeBench) -> None:
    """regression: the flusher was not told of them"""
    handle = writer(place, "log.tsv")
    handle.write(array(b"k\tfirst\n"))
    handle.write(array(b"k\tone\nbad\n"))
    assert values(place) == [b"first"]
    place.clock.ms += LINGER_MS
    place.files.context.linger.flush_due()
    assert values(place) == [b"first", b"one"]


@pytest.mark.parametrize(
    ("name", "first", "rest"),
    [
        ("log.tsv", b"\r" + b"x" * 90_000, b"rest\tvalue\n"),
        ("log.txt", b"y" * 90_000, b"y" * 90_000 + b"\n"),
    ],
)
def test_the_rest_of_a_line_that_is_refused_in_a_later_piece_of_a_write_is_no_line(
    place: TreeBench, name: str, first: bytes, rest: bytes
) -> None:
    """regression: the kernel told of a short write, and what was left of the line was taken for a whole one"""
    place.store.configure("t", {"max.message.bytes": "100000"})
    handle = writer(place, name)
    assert handle.write(array(first)) == len(first)
    for _ in range(2):
        with pytest.raises(EngineError):
            handle.write(array(rest))
    handle.write(array(FIRST[name]))
    handle.release()
    assert values(place) == [b"first"]


def test_a_bad_line_that_ends_an_unfinished_one_is_refused_with_it(place: TreeBench) -> None:
    handle = writer(place, "log.tsv")
    handle.write(array(b"no "))
    with pytest.raises(BadInputError):
        handle.write(array(b"tab\nk\tgood\n"))
    handle.write(array(b"k\tnext\n"))
    handle.release()
    assert values(place) == [b"next"]


def test_a_refusal_can_be_read_afterwards(place: TreeBench) -> None:
    handle = writer(place, "log.tsv")
    with pytest.raises(BadInputError):
        handle.write(array(b"bad\n"))
    refusal = place.views().writers.refusal
    assert refusal is not None
    assert refusal[0] == place.clock.ms
    assert "line 1" in refusal[1]


def test_a_line_that_is_too_long_is_refused_before_its_end_comes(place: TreeBench) -> None:
    place.store.configure("t", {"max.message.bytes": "1000"})
    handle = writer(place)
    taken = 0
    with pytest.raises(RecordTooLargeError):  # noqa: PT012 - one of many writes fails
        for _ in range(100):
            taken += handle.write(array(b"x" * 1000))
    assert taken < 10_000
    handle.release()
    assert values(place) == []


def test_lines_before_one_that_is_too_long_are_a_short_write(place: TreeBench) -> None:
    """regression: they were taken, but the write failed, so who tried again wrote them twice"""
    place.store.configure("t", {"max.message.bytes": "1000"})
    handle = writer(place)
    data = b"good\n" + b"x" * 20_000
    assert handle.write(array(data)) == 5
    with pytest.raises(RecordTooLargeError):
        handle.write(array(data[5:]))
    data = b"more\n" + b"y" * 2000 + b"\n"
    assert handle.write(array(data)) == 5
    with pytest.raises(RecordTooLargeError):
        handle.write(array(data[5:]))
    handle.release()
    assert values(place) == [b"good", b"more"]


def test_a_refused_line_leaves_nothing_waiting(place: TreeBench) -> None:
    place.store.configure("t", {"max.message.bytes": "1000"})
    handle = writer(place)
    with pytest.raises(RecordTooLargeError):
        handle.write(array(b"y" * 2000 + b"\n"))
    assert not place.views().writers.queue.holds_lines


# -- lingering ----------------------------------------------------------------------------------------------


def test_lines_wait_for_the_linger_time_and_no_longer(place: TreeBench) -> None:
    linger = place.files.context.linger
    handle = busy_writer(place)
    handle.write(array(b"one\n"))
    place.clock.ms += LINGER_MS - 1
    linger.flush_due()
    assert values(place) == [b"first"]
    place.clock.ms += 1
    linger.flush_due()
    assert values(place) == [b"first", b"one"]
    handle.write(array(b"two\n"))
    linger.flush_due()
    assert values(place) == [b"first", b"one"]
    place.clock.ms += LINGER_MS
    linger.flush_due()
    assert values(place) == [b"first", b"one", b"two"]


def test_the_flusher_does_not_wait_for_a_writer_at_work_which_looks_at_the_time_itself(
    place: TreeBench,
) -> None:
    handle = busy_writer(place)
    handle.write(array(b"one\n"))
    place.clock.ms += LINGER_MS
    with place.views().writers.queue._lock:
        place.files.context.linger.flush_due()
    assert values(place) == [b"first"]
    handle.write(array(b"two\n"))
    assert values(place) == [b"first", b"one", b"two"]


def test_a_clock_that_is_set_back_stops_no_line(tmp_path: Path) -> None:
    """regression: lines waited for as long as the clock was set back, and kill -9 lost them"""
    with tree_bench(tmp_path) as place:
        place.create()
        steady = Clock(1000)
        place.files.context.linger.clock = steady
        handle = busy_writer(place)
        handle.write(array(b"one\n"))
        place.clock.ms -= 3_600_000
        steady.ms += LINGER_MS
        place.files.context.linger.flush_due()
        assert values(place) == [b"first", b"one"]


def test_a_writer_that_is_gone_is_forgotten(place: TreeBench) -> None:
    linger = place.files.context.linger
    handle = busy_writer(place)
    handle.write(array(b"one\ntail"))
    handle.release()
    linger.flush_due()
    assert not place.views().writers.handles
    assert not linger._waiting


def test_the_end_of_the_mount_appends_everything(place: TreeBench) -> None:
    one, other = (place.files.open("/t-0/log.txt", APPEND).handle for _ in range(2))
    place.files.write(one, array(b"one\nunfinished"))
    place.files.write(other, array(b"other\n"))
    place.files.close()
    assert sorted(filter(None, values(place))) == [b"one", b"other", b"unfinished"]


# -- readers that come right behind -------------------------------------------------------------------------


def test_a_reader_waits_for_a_close_that_is_under_way_and_not_for_long(place: TreeBench) -> None:
    views: PartitionViews = place.views()
    with mock.patch.object(partition_writers, "CLOSE_GRACE", 0.05):
        handle = writer(place)
        handle.write(array(b"tail"))
        handle.flush()
        assert views.writers._closing
        views.writers.await_closing()
        assert values(place) == []
        handle.write(array(b" goes on"))
        assert not views.writers._closing
        handle.flush()
        handle.release()
        assert not views.writers._closing
        assert values(place) == [b"tail goes on"]


@pytest.mark.parametrize("path", ["/t-0/log.txt", "/t-0/views/log.tsv", "/t-0/views/offset/0-.txt"])
def test_a_last_close_is_waited_for_however_slow_the_disk_is(place: TreeBench, path: str) -> None:
    """regression: readers waited for a tenth of a second, also where the disk was at work on the line"""
    views: PartitionViews = place.views()
    append = views.partition.append_waiting
    begun, may_go = threading.Event(), threading.Event()

    def append_slowly(*arguments: Any) -> Any:
        begun.set()
        may_go.wait(PATIENCE_S)
        return append(*arguments)

    handle = writer(place)
    handle.write(array(b"tail"))
    with (
        mock.patch.object(views.partition, "append_waiting", append_slowly),
        mock.patch.object(partition_writers, "CLOSE_GRACE", 0.01),
    ):
        handle.flush()
        release = threading.Thread(target=handle.release, daemon=True)
        release.start()
        assert begun.wait(PATIENCE_S)
        timer = threading.Timer(0.3, may_go.set)
        timer.start()
        opened = place.files.open(path, os.O_RDONLY).handle
        assert may_go.is_set(), "opened before the line was there"
        into = np.zeros(100, np.uint8)
        assert b"tail\n" in into[: place.files.read(opened, 0, into)].tobytes()
        ended(release)
    place.files.release(opened)


def test_what_tells_of_the_log_waits_for_a_close_that_is_under_way(place: TreeBench) -> None:
    """regression: attributes and `status.json` told of the log without a line whose file was closed before"""
    views: PartitionViews = place.views()
    asks: dict[str, Callable[[], bytes]] = {
        "directory": lambda: place.files.getxattr("/t-0", "user.topicfs.next_offset"),
        "log": lambda: place.files.getxattr("/t-0/log.txt", "user.topicfs.next_offset"),
        "segment": lambda: place.files.getxattr(f"/t-0/segments/{0:020}.txt", "user.topicfs.next_offset"),
        "status": lambda: str(json.loads(place.read("/t-0/status.json"))["stable_offset"]).encode(),
    }
    for number, (name, ask) in enumerate(asks.items()):
        handle = writer(place)
        handle.write(array(b"tail"))
        handle.flush()
        timer = threading.Timer(0.1, handle.release)
        timer.start()
        with mock.patch.object(partition_writers, "CLOSE_GRACE", PATIENCE_S):
            views.writers.begin_close(handle)
            assert ask() == b"%d" % (number + 1), name
        ended(timer)


@pytest.mark.parametrize("path", ["/t-0/log.txt", "/t-0/log.tsv", "/topics/t/in.txt"])
def test_what_is_opened_after_a_close_is_written_behind_its_last_line(place: TreeBench, path: str) -> None:
    """regression: the kernel tells of the last close after close(2) has returned, and of the next open meanwhile"""
    first = place.files.open("/t-0/log.txt", APPEND).handle
    place.files.write(first, array(b"first"))
    place.files.flush(first)
    release = threading.Timer(0.1, place.files.release, (first,))
    with mock.patch.object(partition_writers, "CLOSE_GRACE", 60.0):
        place.files.flush(first)
        release.start()
        second = place.files.open(path, APPEND).handle
        place.files.write(second, array(b"k\tsecond\n" if path.endswith("tsv") else b"second\n"))
    ended(release)
    place.files.release(second)
    assert values(place) == [b"first", b"second"]


def test_an_open_for_appending_needs_append(place: TreeBench) -> None:
    for flags in (os.O_WRONLY, os.O_RDWR, APPEND | os.O_TRUNC):
        with pytest.raises(AppendOnlyError, match="append"):
            place.files.open("/t-0/log.txt", flags)
    assert place.files.open("/t-0/log.txt", APPEND).handle
