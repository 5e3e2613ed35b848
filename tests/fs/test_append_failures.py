"""Writers on a disk that is full or broken: what was taken is neither lost nor doubled, and what fails is told."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from unittest import mock

import pytest
from append_bench import broken_disk, busy_writer, full_disk, refused, values, writer
from tree_bench import APPEND, LINGER_MS, TreeBench, array, tree_bench

from topicfs.engine.errors import ClosedError
from topicfs.engine.record import Record
from topicfs.engine.segment import appender, offset_index
from topicfs.fs.appending.line_queue import RETRY_MS, LineQueue


@pytest.fixture
def place(tmp_path: Path) -> Iterator[TreeBench]:
    with tree_bench(tmp_path) as made:
        made.create()
        yield made


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


@pytest.mark.parametrize("limit", [50_000, 100_000], ids=["together", "one by one"])
def test_a_write_that_fails_behind_the_lines_that_wait_gives_its_own_error(
    tmp_path: Path, limit: int
) -> None:
    """regression: it was an AssertionError, and the beginning of its first line was forgotten"""
    with tree_bench(tmp_path) as place:
        # Two batches are appended together, if both fit into an eighth of a segment.
        place.create(max_message_bytes=limit, segment_bytes=1 << 20)
        handle = busy_writer(place)
        waiting = [b"%d" % at + b"x" * 600 for at in range(20)]
        for line in waiting:
            handle.write(array(line + b"\n"))
        handle.write(array(b"begun "))
        write = appender.write_exactly

        def little(fd: int, position: int, data: memoryview) -> None:
            if position + len(data) > 30_000:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write(fd, position, data)

        long = b"y" * (limit - 5000) + b"\n"
        with mock.patch.object(appender, "write_exactly", little):
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
