"""Writers: bytes in any pieces become whole lines, and what was taken is neither lost nor doubled."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_opening import Clock
from patience import PATIENCE_S, ended
from tree_bench import APPEND, LINGER_MS, TreeBench, array, tree_bench

from topicfs.engine.batch import from_records
from topicfs.engine.errors import ClosedError, EngineError, RecordTooLargeError
from topicfs.engine.kernels.scan import BASE_OFFSET
from topicfs.engine.record import Record
from topicfs.engine.segment import appender, offset_index
from topicfs.fs.appending import partition_writers
from topicfs.fs.appending.handle import AppendHandle
from topicfs.fs.appending.line_queue import RETRY_MS, LineQueue
from topicfs.fs.appending.targets import PartitionTarget
from topicfs.fs.errors import BadInputError
from topicfs.fs.views.partition_views import PartitionViews


@pytest.fixture
def place(tmp_path: Path) -> Iterator[TreeBench]:
    with tree_bench(tmp_path) as made:
        made.create()
        yield made


def writer(place: TreeBench, name: str = "log.txt", batch_size: int | None = None) -> AppendHandle:
    views = place.views()
    fmt = place.entry(f"/t-0/{name}").format  # type: ignore[attr-defined]
    size = place.files.context.batch_size if batch_size is None else batch_size
    made = AppendHandle.open(PartitionTarget(views.writers, fmt, size), APPEND)
    told, flush = [made.is_settled], made.flush
    made.settle = told.append

    def checked_flush() -> None:
        """What was told last is true; and where it says that there is nothing to do, nothing is done."""
        assert made.is_settled or not told[-1]
        waiting = views.writers.queue.holds_lines or made.holds_tail
        flush()
        assert not (told[-1] and waiting)

    made.flush = checked_flush  # type: ignore[method-assign]
    return made


FIRST = {
    "log.txt": b"first\n",
    "log.tsv": b"k\tfirst\n",
    "log.jsonl": b'{"key":"k","value":"first"}\n',
}


def busy_writer(place: TreeBench, name: str = "log.txt") -> AppendHandle:
    """One whose next lines gather: its first line, with the value `first`, was appended just now."""
    made = writer(place, name)
    made.write(array(FIRST[name]))
    assert not place.views().writers.queue.holds_lines
    return made


def values(place: TreeBench) -> list[bytes | None]:
    return [record.value for record in place.views().partition.records()]


@contextmanager
def full_disk() -> Iterator[None]:
    """No block is free: only what was allocated before can be written."""
    write = appender.write_exactly
    ends: dict[int, int] = {}

    def write_where_there_is_room(fd: int, position: int, data: memoryview) -> None:
        now = os.fstat(fd)
        allocated = now.st_blocks * 512
        # A block that is begun has room too: it is not counted, so that what fits does not depend on chance.
        end = ends.setdefault(now.st_ino, allocated if allocated >= now.st_size + 8192 else now.st_size)
        if position + len(data) > end:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(fd, position, data)

    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with (
        mock.patch.object(appender, "write_exactly", write_where_there_is_room),
        mock.patch.object(appender, "allocate", side_effect=full),
    ):
        yield


@contextmanager
def broken_disk() -> Iterator[None]:
    """Nothing can be written."""
    broken = OSError(errno.EIO, os.strerror(errno.EIO))
    with mock.patch.object(appender, "write_exactly", side_effect=broken):
        yield


def refused(call) -> int:  # type: ignore[no-untyped-def]
    with pytest.raises(OSError) as caught:  # noqa: PT011 - its errno is given
        call()
    assert caught.value.errno is not None
    return caught.value.errno


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


# -- a full disk --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("disk", [full_disk, broken_disk])
@pytest.mark.parametrize("name", ["log.txt", "log.tsv", "log.jsonl"])
@pytest.mark.parametrize("batch_size", [0, 300, 1 << 20])
def test_a_disk_that_fails_now_and_then_loses_and_doubles_nothing(
    place: TreeBench, name: str, batch_size: int, disk: Callable[[], AbstractContextManager[None]]
) -> None:
    """Who writes goes on as a program does: what a write did not take is written again."""
    handle = writer(place, name, batch_size)
    spelled = {"log.txt": b"%s\n", "log.tsv": b"k\t%s\n", "log.jsonl": b'{"value":"%s"}\n'}[name]
    # Where none wait, more than there is room for that was made sure of for unfinished ones.
    lines = [b"%d" % number if batch_size else b"%0400d" % number for number in range(60)]
    piece = 37 if batch_size else 437
    data = b"".join(spelled % line for line in lines)
    failures = at = steps = 0
    while at < len(data):
        steps += 1
        if steps % 3:
            at += handle.write(array(data[at : at + piece]))
        else:
            # Lines that wait are told of by fsync, which does not come here: they stay, and are there in the end.
            with disk():
                for _ in range(2):
                    try:
                        at += handle.write(array(data[at : at + piece]))
                    except OSError:
                        failures += 1
    handle.flush()
    handle.release()
    assert values(place) == lines
    assert failures > 0 or batch_size > 0


def test_a_full_disk_is_told_by_the_write_whatever_came_before(place: TreeBench) -> None:
    """regression: the line was taken, and the close that failed is looked at by no shell"""
    busy = busy_writer(place)
    with full_disk():
        handle = writer(place)
        for each in (handle, busy, busy):
            assert refused(lambda each=each: each.write(array(b"important\n"))) == errno.ENOSPC
        handle.flush()
        handle.release()
    place.append("/t-0/log.txt", b"second\n")
    busy.write(array(b"accepted\n"))
    with full_disk():
        # What was allocated for those that wait is not enough for these.
        while True:
            size = len(values(place))
            try:
                busy.write(array(b"x" * 200_000 + b"\n"))
            except OSError:
                break
            assert len(values(place)) > size
        assert refused(lambda: busy.write(array(b"y" * 200_000 + b"\n"))) == errno.ENOSPC
        busy.flush()
    busy.write(array(b"there is room\n"))
    found = values(place)
    assert found[:3] == [b"first", b"second", b"accepted"]
    assert found[-1] == b"there is room"
    assert set(found[3:-1]) == {b"x" * 200_000}


def test_an_unfinished_line_has_its_room_or_is_refused_by_its_write(place: TreeBench) -> None:
    """regression: the last close appends it, and nobody was told that there is no room"""
    finished = writer(place)
    finished.write(array(b"x" * 5000))
    with full_disk():
        handle = writer(place)
        assert refused(lambda: handle.write(array(b"y" * 100_000))) == errno.ENOSPC
        handle.flush()
        handle.release()
        finished.flush()
        finished.release()
    assert values(place) == [b"x" * 5000]


def test_a_line_that_a_short_write_begins_behind_others_has_its_room_or_is_refused(place: TreeBench) -> None:
    """regression: there was room for the first line of `printf 'a\\nb' >>` only, and close(2) told nobody in a shell"""
    handle = writer(place)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with mock.patch.object(appender, "allocate", side_effect=full):
        assert handle.write(array(b"a\nb")) == 2
        assert refused(lambda: handle.write(array(b"b"))) == errno.ENOSPC
    handle.flush()
    assert handle.write(array(b"c\nd")) == 3
    with full_disk():
        handle.flush()
        handle.release()
    assert values(place) == [b"a", b"c", b"d"]


def test_the_end_of_a_long_text_without_a_newline_is_refused_by_close(place: TreeBench) -> None:
    handle = writer(place)
    handle.write(array(b"line\n" + b"x" * 9000))
    with full_disk():
        assert refused(handle.flush) == errno.ENOSPC
        handle.release()
    assert values(place) == [b"line"]


def test_a_line_that_a_close_refused_does_not_go_on(place: TreeBench) -> None:
    """A forked child closes its descriptor in the middle of a line, for which there is no room."""
    handle = writer(place)
    handle.write(array(b"line\n" + b"x" * 9000))
    with full_disk():
        assert refused(handle.flush) == errno.ENOSPC
    assert refused(lambda: handle.write(array(b"its end\n"))) == errno.ENOSPC
    handle.write(array(b"whole\n"))
    handle.release()
    assert values(place) == [b"line", b"whole"]


def test_others_do_not_use_up_the_room_of_lines_that_wait(place: TreeBench) -> None:
    partition = place.views().partition
    unfinished, busy = writer(place), busy_writer(place)
    unfinished.write(array(b"x" * 3000))
    busy.write(array(b"accepted\n"))
    with full_disk():
        with pytest.raises(OSError, match="No space"):  # noqa: PT012 - one of many appends fails
            for _ in range(100_000):
                partition.append(Record(b"record"))
        unfinished.flush()
        unfinished.release()
    assert values(place)[-1] == b"x" * 3000


def test_an_index_without_room_refuses_no_line_that_was_accepted(
    place: TreeBench, caplog: pytest.LogCaptureFixture
) -> None:
    place.store.configure("t", {"index.interval.bytes": "100"})
    place.views().partition.append(Record(b"sealed"))
    place.views().partition.roll()
    busy = busy_writer(place)
    for at in range(3):
        busy.write(array(b"%d " % at + b"x" * 200 + b"\n"))
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with mock.patch.object(offset_index, "write_exactly", side_effect=full):
            busy.flush()
    assert "an index entry has to wait" in caplog.text
    assert [value[:1] for value in values(place)[2:] if value] == [b"0", b"1", b"2"]
    busy.release()
    place.append("/t-0/log.txt", b"y" * 200 + b"\n")
    assert place.views().partition.log.chain.active.offset_index.entries == 1
    place.reopen()
    for offset, beginning in ((2, b"0"), (3, b"1"), (4, b"2"), (5, b"y")):
        record = place.views().partition.record(offset)
        assert record is not None
        assert record.value is not None
        assert record.value.startswith(beginning)


def test_without_allocation_no_line_waits(place: TreeBench) -> None:
    with mock.patch.object(appender, "allocate", return_value=False):
        handle = writer(place)
        for at in range(5):
            handle.write(array(b"%d\nunfinished" % at if not at else b"\n%d\nunfinished" % at))
            assert values(place)[-1] == b"%d" % at
        handle.release()
    assert values(place)[-1] == b"unfinished"


def test_room_that_was_not_used_is_given_back(place: TreeBench) -> None:
    handle = busy_writer(place)
    handle.write(array(b"line\n"))
    log_file = place.views().partition.log.chain.active.log.path
    before = os.stat(log_file)
    assert before.st_blocks * 512 > 500_000
    assert before.st_size < 1000
    handle.flush()
    appended = os.stat(log_file)
    handle.release()
    after = os.stat(log_file)
    assert after.st_blocks * 512 < 100_000
    assert (after.st_size, after.st_mtime_ns) == (appended.st_size, appended.st_mtime_ns)
    assert values(place) == [b"first", b"line"]
    assert place.views().partition.log.promised == 0


def test_a_segment_does_not_roll_under_lines_that_have_room_in_it(place: TreeBench) -> None:
    place.store.configure("t", {"segment.ms": "1000"})
    log = place.views().partition.log
    busy = busy_writer(place)
    busy.write(array(b"waits\n"))
    place.clock.ms += 2000
    assert not log.roll_if_waited(place.clock.ms)
    with full_disk():
        busy.flush()
    assert len(log.chain.segments) == 1
    assert log.roll_if_waited(place.clock.ms)
    assert values(place) == [b"first", b"waits"]


# -- a broken disk ------------------------------------------------------------------------------------------


def test_what_a_close_was_told_of_is_never_appended(place: TreeBench) -> None:
    """regression: release tried again, and appended it behind lines that others had been acknowledged"""
    one, other = busy_writer(place), busy_writer(place)
    one.write(array(b"lost\n"))
    with broken_disk():
        assert refused(one.flush) == errno.EIO
    other.write(array(b"later\n"))
    other.flush()
    one.release()
    place.clock.ms += 10 * RETRY_MS
    place.files.context.linger.flush_due()
    assert values(place) == [b"first", b"first", b"later"]


@pytest.mark.parametrize("told", ["flush", "persist"])
def test_an_unfinished_line_goes_with_those_before_it_of_which_its_writer_was_told(
    place: TreeBench, told: str
) -> None:
    """regression: it was appended by the last close, and again by whoever wrote all of it anew"""
    handle = busy_writer(place)
    handle.write(array(b"lost\n"))
    handle.write(array(b"unfini"))
    with broken_disk():
        assert refused(getattr(handle, told)) == errno.EIO
    assert refused(lambda: handle.write(array(b"shed\n"))) == errno.EIO
    handle.write(array(b"lost\nunfini"))
    handle.flush()
    handle.release()
    assert values(place) == [b"first", b"lost", b"unfini"]


def test_what_a_write_with_o_sync_was_refused_is_written_again_once(place: TreeBench) -> None:
    """regression: it waited, was dropped where it could not be appended, and its last line was kept"""
    handle = place.files.open("/t-0/log.txt", APPEND | os.O_SYNC).handle
    place.files.write(handle, array(b"first\n"))
    place.files.write(handle, array(b"sec"))
    with broken_disk():
        for _ in range(2):
            assert refused(lambda: place.files.write(handle, array(b"ond\nunfini"))) == errno.EIO
    assert place.files.write(handle, array(b"ond\nunfini")) == len(b"ond\nunfini")
    with mock.patch.object(
        place.views().partition.log, "flush", side_effect=OSError(errno.EMFILE, "none free")
    ):
        assert refused(lambda: place.files.write(handle, array(b"shed\nthe next"))) == errno.EMFILE
        # No line ends here that was to be brought onto the disk.
        place.files.write(handle, array(b"last"))
    place.files.release(handle)
    assert values(place) == [b"first", b"second", b"unfinished", b"last"]


def test_a_write_that_fails_behind_the_lines_that_wait_gives_its_own_error(tmp_path: Path) -> None:
    """regression: it was an AssertionError, and the beginning of its first line was forgotten"""
    with tree_bench(tmp_path) as place:
        place.create(max_message_bytes=50_000)
        handle = busy_writer(place)
        waiting = [b"%d" % at + b"x" * 600 for at in range(20)]
        for line in waiting:
            handle.write(array(line + b"\n"))
        handle.write(array(b"begun "))
        write = appender.write_exactly
        written: list[int] = []

        def once(fd: int, position: int, data: memoryview) -> None:
            if written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written.append(len(data))
            write(fd, position, data)

        long = b"y" * 45_000 + b"\n"
        with mock.patch.object(appender, "write_exactly", once):
            assert refused(lambda: handle.write(array(long))) == errno.ENOSPC
        assert values(place) == [b"first", *waiting]
        assert handle.write(array(long)) == len(long)
        handle.release()
        assert values(place) == [b"first", *waiting, b"begun " + long[:-1]]


def test_what_is_tried_again_keeps_its_place(place: TreeBench) -> None:
    one, other = busy_writer(place), busy_writer(place)
    one.write(array(b"one\n"))
    place.clock.ms += LINGER_MS
    with broken_disk():
        place.files.context.linger.flush_due()
        assert place.views().writers.refusal is not None
        # Nothing comes in front of it.
        assert refused(lambda: other.write(array(b"other\n"))) == errno.EIO
        with pytest.raises(OSError, match="Input/output"):
            place.views().partition.append(Record(b"record"))
    other.write(array(b"other\n"))
    one.flush()
    assert values(place) == [b"first", b"first", b"one", b"other"]


def test_a_failure_that_one_writer_is_told_of_drops_its_lines_only(place: TreeBench) -> None:
    one, other = busy_writer(place), busy_writer(place, "log.tsv")
    for at in range(3):
        one.write(array(b"one %d\n" % at))
        other.write(array(b"k\tother %d\n" % at))
    with broken_disk():
        assert refused(one.persist) == errno.EIO
    other.flush()
    one.flush()
    assert values(place)[2:] == [b"other 0", b"other 1", b"other 2"]


def test_after_a_failure_each_write_is_appended_until_one_succeeds(place: TreeBench) -> None:
    handle = busy_writer(place)
    with broken_disk():
        handle.write(array(b"waits\n"))
        assert refused(handle.flush) == errno.EIO
        for _ in range(3):
            assert refused(lambda: handle.write(array(b"refused\n"))) == errno.EIO
    handle.write(array(b"appended\n"))
    assert values(place) == [b"first", b"appended"]
    handle.write(array(b"waits again\n"))
    assert values(place) == [b"first", b"appended"]
    handle.flush()


def test_close_succeeds_where_the_disk_does_well_again_whatever_failed_before(place: TreeBench) -> None:
    """regression: close told of a failure that was made good, and who heard it wrote everything again"""
    handle = busy_writer(place)
    handle.write(array(b"one\n"))
    place.clock.ms += LINGER_MS
    with broken_disk():
        place.files.context.linger.flush_due()
        assert place.views().writers.refusal is not None
    assert values(place) == [b"first"]
    handle.flush()
    assert values(place) == [b"first", b"one"]


def test_the_flusher_tries_again_and_not_all_the_time(place: TreeBench) -> None:
    handle = busy_writer(place)
    handle.write(array(b"one\n"))
    place.clock.ms += LINGER_MS
    linger = place.files.context.linger
    with broken_disk():
        linger.flush_due()
    linger.flush_due()
    assert values(place) == [b"first"]
    place.clock.ms += RETRY_MS
    linger.flush_due()
    assert values(place) == [b"first", b"one"]
    handle.release()
    assert values(place) == [b"first", b"one"]


def test_what_the_last_close_could_not_append_is_gone_and_logged(
    place: TreeBench, caplog: pytest.LogCaptureFixture
) -> None:
    handle = writer(place)
    handle.write(array(b"one"))
    with broken_disk():
        handle.flush()
        handle.release()
    assert "lines are lost" in caplog.text
    assert values(place) == []


def test_appending_to_a_partition_that_was_deleted_fails(place: TreeBench) -> None:
    handle, waiting = busy_writer(place), busy_writer(place)
    waiting.write(array(b"waits\n"))
    place.delete("/t-0")
    with pytest.raises(ClosedError):
        handle.write(array(b"one\n"))
    with pytest.raises(ClosedError):
        waiting.flush()
    handle.flush()
    handle.release()
    waiting.release()


def test_lines_that_the_flusher_loses_while_their_writer_asks_whether_any_wait_are_told_of(
    place: TreeBench,
) -> None:
    handle = busy_writer(place)
    handle.write(array(b"waits\n"))

    def holds_none_any_more(queue: LineQueue) -> bool:
        queue._lose(ClosedError("offline"))
        return False

    with mock.patch.object(LineQueue, "holds_lines", property(holds_none_any_more)):
        assert not handle.is_settled
    with pytest.raises(ClosedError):
        handle.flush()
    assert handle.is_settled
    handle.release()


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
        with pytest.raises(Exception, match="appended to"):
            place.files.open("/t-0/log.txt", flags)
    assert place.files.open("/t-0/log.txt", APPEND).handle
