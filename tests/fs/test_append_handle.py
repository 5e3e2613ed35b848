"""Writers: bytes in any pieces become whole lines, and what was taken is neither lost nor doubled."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from furnished import APPEND, LINGER_MS, Furnished, array, furnished
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ClosedError, RecordTooLargeError
from engine.segment import segment as segments
from fs import shown as shown_module
from fs.append import AppendHandle
from fs.errors import BadInputError
from fs.shown import ShownPartition
from fs.targets import PartitionTarget


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Furnished]:
    with furnished(tmp_path) as made:
        made.create()
        yield made


def writer(place: Furnished, name: str = "log.txt", batch_size: int | None = None) -> AppendHandle:
    shown = place.shown()
    fmt = place.entry(f"/t-0/{name}").format  # type: ignore[attr-defined]
    size = place.files.house.batch_size if batch_size is None else batch_size
    return place.files.house.writers.open(PartitionTarget(shown, fmt, size))


def values(place: Furnished) -> list[bytes | None]:
    return [record.value for record in place.shown().partition.records()]


@contextmanager
def full_disk() -> Iterator[None]:
    """Nothing more fits."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with mock.patch.object(segments, "write_exactly", side_effect=full):
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
    with furnished(tmp_path_factory.mktemp("pieces")) as made:
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


def test_lines_wait_until_the_file_is_closed(place: Furnished) -> None:
    handle = writer(place)
    handle.write(array(b"one\ntwo\n"))
    assert values(place) == []
    handle.flush()
    assert values(place) == [b"one", b"two"]


def test_lines_that_fill_a_batch_do_not_wait(place: Furnished) -> None:
    handle = writer(place, batch_size=100)
    handle.write(array(b"x" * 60 + b"\n"))
    assert values(place) == [b"x" * 60]


def test_an_unfinished_line_waits_for_the_last_close(place: Furnished) -> None:
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


def test_writers_do_not_mix_their_lines(place: Furnished) -> None:
    one, other = writer(place), writer(place)
    one.write(array(b"one "))
    other.write(array(b"other "))
    one.write(array(b"line\none"))
    other.write(array(b"line\n"))
    other.flush()
    one.flush()
    assert values(place) == [b"other line", b"one line"]


# -- refusals -----------------------------------------------------------------------------------------------


def test_a_bad_line_behind_good_ones_gives_a_short_write_and_then_the_error(place: Furnished) -> None:
    handle = writer(place, "log.tsv")
    data = b"k\tone\nk\ttwo\nbad\nk\tthree\n"
    assert handle.write(array(data)) == len(b"k\tone\nk\ttwo\n")
    with pytest.raises(BadInputError):
        handle.write(array(data[12:]))
    handle.release()
    assert values(place) == [b"one", b"two"]


def test_good_lines_of_a_short_write_do_not_wait_longer_than_others(place: Furnished) -> None:
    """regression: the flusher was not told of them"""
    handle = writer(place, "log.tsv")
    handle.write(array(b"k\tone\nbad\n"))
    place.clock.ms += LINGER_MS
    place.files.house.writers.flush_due()
    assert values(place) == [b"one"]


def test_a_bad_line_that_ends_an_unfinished_one_is_refused_with_it(place: Furnished) -> None:
    handle = writer(place, "log.tsv")
    handle.write(array(b"no "))
    with pytest.raises(BadInputError):
        handle.write(array(b"tab\nk\tgood\n"))
    handle.write(array(b"k\tnext\n"))
    handle.release()
    assert values(place) == [b"next"]


def test_a_refusal_can_be_read_afterwards(place: Furnished) -> None:
    handle = writer(place, "log.tsv")
    with pytest.raises(BadInputError):
        handle.write(array(b"bad\n"))
    refusal = place.shown().refusal
    assert refusal is not None
    assert refusal[0] == place.clock.ms
    assert "line 1" in refusal[1]


def test_a_line_that_is_too_long_is_refused_before_its_end_comes(place: Furnished) -> None:
    place.store.configure("t", {"max.message.bytes": "1000"})
    handle = writer(place)
    taken = 0
    with pytest.raises(RecordTooLargeError):  # noqa: PT012 - one of many writes fails
        for _ in range(100):
            taken += handle.write(array(b"x" * 1000))
    assert taken < 10_000
    handle.release()
    assert values(place) == []


def test_lines_before_one_that_is_too_long_are_a_short_write(place: Furnished) -> None:
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


def test_a_refused_line_leaves_nothing_waiting(place: Furnished) -> None:
    place.store.configure("t", {"max.message.bytes": "1000"})
    handle = writer(place)
    with pytest.raises(RecordTooLargeError):
        handle.write(array(b"y" * 2000 + b"\n"))
    assert handle.waiting_since() is None


# -- a full disk --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log.txt", "log.tsv", "log.jsonl"])
@pytest.mark.parametrize("batch_size", [0, 100, 1 << 20])
def test_a_full_disk_loses_and_doubles_nothing(place: Furnished, name: str, batch_size: int) -> None:
    """Who writes goes on as a program does: what a write did not take is written again."""
    handle = writer(place, name, batch_size)
    spelled = {"log.txt": b"%d\n", "log.tsv": b"k\t%d\n", "log.jsonl": b'{"value":"%d"}\n'}[name]
    data = b"".join(spelled % number for number in range(60))
    failures = at = steps = 0
    while at < len(data):
        steps += 1
        piece = data[at : at + 37]
        if steps % 3:
            at += handle.write(array(piece))
        else:
            with full_disk():
                for _ in range(2):
                    try:
                        at += handle.write(array(data[at : at + 37]))
                    except OSError as error:
                        failures += error.errno == errno.ENOSPC
                if handle.waiting_since() is not None:
                    assert refused(handle.flush) == errno.ENOSPC
                    assert refused(handle.persist) == errno.ENOSPC
    handle.flush()
    handle.release()
    assert values(place) == [b"%d" % number for number in range(60)]
    assert failures > 0 or batch_size > 100


def test_while_the_disk_is_full_no_more_is_taken_than_one_write(place: Furnished) -> None:
    handle = writer(place, batch_size=0)
    with full_disk():
        assert handle.write(array(b"taken\n")) == 6
        for _ in range(5):
            assert refused(lambda: handle.write(array(b"not taken\n"))) == errno.ENOSPC
    handle.flush()
    assert values(place) == [b"taken"]


def test_the_beginning_of_a_line_outlives_a_full_disk(place: Furnished) -> None:
    """regression: it was forgotten when the write that ended the line failed"""
    handle = writer(place, batch_size=0)
    handle.write(array(b"beg"))
    handle.target._unsent.append(_stuck(handle))  # type: ignore[attr-defined]
    with full_disk():
        assert refused(lambda: handle.write(array(b"inning\n"))) == errno.ENOSPC
    handle.write(array(b"inning\n"))
    handle.release()
    assert values(place) == [b"stuck", b"beginning"]


def _stuck(handle: AppendHandle):  # type: ignore[no-untyped-def]
    target = handle.target
    assert isinstance(target, PartitionTarget)
    target._builder.add_lines(array(b"stuck\n"), 0, 5)
    target._finish()
    return target._unsent.pop()


def test_close_succeeds_where_there_is_room_again_whatever_failed_before(place: Furnished) -> None:
    """regression: close told of a failure that was made good, and who heard it wrote everything again"""
    handle = writer(place)
    handle.write(array(b"one\n"))
    place.clock.ms += LINGER_MS
    with full_disk():
        place.files.house.writers.flush_due()
        assert place.shown().refusal is not None
    assert values(place) == []
    handle.flush()
    assert values(place) == [b"one"]


def test_the_flusher_tries_again(place: Furnished) -> None:
    handle = writer(place)
    handle.write(array(b"one\n"))
    place.clock.ms += LINGER_MS
    with full_disk():
        place.files.house.writers.flush_due()
        place.files.house.writers.flush_due()
    place.files.house.writers.flush_due()
    assert values(place) == [b"one"]
    handle.release()
    assert values(place) == [b"one"]


def test_what_a_close_was_told_of_and_the_last_close_could_not_append_is_gone_and_logged(
    place: Furnished, caplog: pytest.LogCaptureFixture
) -> None:
    handle = writer(place)
    handle.write(array(b"one\n"))
    with full_disk():
        assert refused(handle.flush) == errno.ENOSPC
        handle.release()
    assert "lines are lost" in caplog.text
    assert values(place) == []


def test_appending_to_a_partition_that_was_deleted_fails(place: Furnished) -> None:
    handle = writer(place)
    handle.write(array(b"one\n"))
    place.delete("/t-0")
    with pytest.raises(ClosedError):
        handle.flush()
    handle.release()


# -- lingering ----------------------------------------------------------------------------------------------


def test_lines_wait_for_the_linger_time_and_no_longer(place: Furnished) -> None:
    writers = place.files.house.writers
    handle = writer(place)
    handle.write(array(b"one\n"))
    place.clock.ms += LINGER_MS - 1
    writers.flush_due()
    assert values(place) == []
    place.clock.ms += 1
    writers.flush_due()
    assert values(place) == [b"one"]
    handle.write(array(b"two\n"))
    writers.flush_due()
    assert values(place) == [b"one"]
    place.clock.ms += LINGER_MS
    writers.flush_due()
    assert values(place) == [b"one", b"two"]


def test_the_flusher_does_not_wait_for_a_writer_at_work(place: Furnished) -> None:
    handle = writer(place)
    handle.write(array(b"one\n"))
    place.clock.ms += LINGER_MS
    with handle._lock:
        place.files.house.writers.flush_due()
    assert values(place) == []
    place.files.house.writers.flush_due()
    assert values(place) == [b"one"]


def test_a_writer_that_is_gone_is_forgotten(place: Furnished) -> None:
    writers = place.files.house.writers
    handle = writer(place)
    handle.write(array(b"one\ntail"))
    handle.release()
    assert not writers._open
    assert not writers._waiting


def test_the_end_of_the_mount_appends_everything(place: Furnished) -> None:
    one, other = writer(place), writer(place)
    one.write(array(b"one\nunfinished"))
    other.write(array(b"other\n"))
    place.files.house.writers.flush_all()
    assert sorted(filter(None, values(place))) == [b"one", b"other", b"unfinished"]


# -- readers that come right behind -------------------------------------------------------------------------


def test_a_reader_waits_for_a_close_that_is_under_way_and_not_for_long(place: Furnished) -> None:
    shown: ShownPartition = place.shown()
    with mock.patch.object(shown_module, "CLOSE_GRACE", 0.05):
        handle = writer(place)
        handle.write(array(b"tail"))
        handle.flush()
        assert shown._closing
        shown.await_closing()
        assert values(place) == []
        handle.write(array(b" goes on"))
        assert not shown._closing
        handle.flush()
        handle.release()
        assert not shown._closing
        assert values(place) == [b"tail goes on"]


def test_an_open_for_appending_needs_append(place: Furnished) -> None:
    for flags in (os.O_WRONLY, os.O_RDWR, APPEND | os.O_TRUNC):
        with pytest.raises(Exception, match="appended to"):
            place.files.open("/t-0/log.txt", flags)
    assert place.files.open("/t-0/log.txt", APPEND).handle
