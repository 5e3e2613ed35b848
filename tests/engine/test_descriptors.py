"""Descriptors: bounded, shared, never closed under a reader."""

from __future__ import annotations

import errno
import os
import resource
import threading
from pathlib import Path

import pytest
from patience import ended

from topicfs.engine.errors import ClosedError, CorruptSegmentError, TooFewDescriptorsError
from topicfs.engine.segment.descriptors import (
    Descriptor,
    Descriptors,
    PinnedFile,
    cut_file,
    descriptors_for_segments,
    raise_descriptor_limit,
    read_exactly,
    read_exactly_into,
    write_exactly,
)


def file_with(path: Path, content: bytes, descriptors: Descriptors) -> PinnedFile:
    path.write_bytes(content)
    return PinnedFile(str(path), descriptors)


def content_of(file: PinnedFile, length: int = 3) -> bytes:
    descriptor = file.descriptor()
    return read_exactly(descriptor.fd, 0, length, file.path)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_no_more_files_are_open_than_the_limit(tmp_path: Path) -> None:
    descriptors = Descriptors(3)
    files = [file_with(tmp_path / str(number), b"%03d" % number, descriptors) for number in range(10)]
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        for number, file in enumerate(files):
            assert content_of(file) == b"%03d" % number
            assert len(descriptors) <= 3
    assert len(os.listdir("/proc/self/fd")) == before + 3


def test_a_file_that_is_read_again_and_again_stays_open(tmp_path: Path) -> None:
    descriptors = Descriptors(2)
    files = [file_with(tmp_path / str(number), b"abc", descriptors) for number in range(10)]
    first = files[0].descriptor()
    for file in files[1:]:
        content_of(file)
        assert files[0].descriptor() is first


def test_a_descriptor_in_use_is_not_closed_by_an_eviction(tmp_path: Path) -> None:
    descriptors = Descriptors(1)
    first = file_with(tmp_path / "first", b"abc", descriptors)
    held = first.descriptor()
    content_of(file_with(tmp_path / "second", b"def", descriptors))
    assert first.cached is None
    assert os.pread(held.fd, 3, 0) == b"abc"
    number = held.fd
    del held
    assert not is_open(number)


def test_readers_in_threads_and_evictions_do_not_meet(tmp_path: Path) -> None:
    descriptors = Descriptors(2)
    files = [file_with(tmp_path / str(number), b"%03d" % number, descriptors) for number in range(8)]
    wrong: list[object] = []

    def read(start: int) -> None:
        try:
            for turn in range(400):
                number = (start + turn * 3) % 8
                if content_of(files[number]) != b"%03d" % number:
                    wrong.append(number)
        except OSError as error:
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(each,), daemon=True) for each in range(4)]
    for thread in threads:
        thread.start()
    ended(*threads)
    assert wrong == []


def test_a_renamed_file_stays_readable(tmp_path: Path) -> None:
    file = file_with(tmp_path / "a", b"abc", Descriptors(1))
    file.rename(str(tmp_path / "b"))
    file.release()
    assert content_of(file) == b"abc"


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        PinnedFile(str(tmp_path / "none"), Descriptors(1)).descriptor()


def test_a_pinned_file_is_readable_after_its_name_was_taken_by_another(tmp_path: Path) -> None:
    descriptors = Descriptors(1)
    file = file_with(tmp_path / "a", b"old", descriptors)
    file.pin()
    file.condemn()
    file.rename(str(tmp_path / "a.deleted"))
    (tmp_path / "a.deleted").write_bytes(b"other")
    (tmp_path / "new").write_bytes(b"new")
    os.rename(tmp_path / "new", tmp_path / "a.deleted")
    content_of(file_with(tmp_path / "evicts", b"abc", descriptors))
    assert file.pins == 1
    assert content_of(file) == b"oth"
    file.unpin()
    with pytest.raises(ClosedError):
        file.descriptor()


def test_a_condemned_file_takes_no_new_pin_and_no_read(tmp_path: Path) -> None:
    file = file_with(tmp_path / "a", b"abc", Descriptors(1))
    file.condemn()
    with pytest.raises(ClosedError):
        file.pin()
    assert file.pins == 0
    with pytest.raises(ClosedError):
        file.descriptor()


def test_the_last_unpin_closes_a_condemned_file(tmp_path: Path) -> None:
    file = file_with(tmp_path / "a", b"abc", Descriptors(1))
    file.pin()
    file.pin()
    file.condemn()
    number = file.descriptor().fd
    file.unpin()
    assert is_open(number)
    file.unpin()
    assert not is_open(number)


def test_reading_beyond_the_file_is_an_error_with_numbers(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abcdef")
    descriptor = Descriptor.open(str(tmp_path / "a"))
    with pytest.raises(CorruptSegmentError, match="expected 10 bytes at position 2, found 4"):
        read_exactly(descriptor.fd, 2, 10, "a")
    with pytest.raises(CorruptSegmentError, match="expected 3 bytes at position 9, found 0"):
        read_exactly_into(descriptor.fd, 9, memoryview(bytearray(3)), "a")


def test_short_reads_and_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread, preadv, pwrite = os.pread, os.preadv, os.pwrite
    monkeypatch.setattr(os, "pread", lambda fd, length, at: pread(fd, min(length, 2), at))
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: preadv(fd, [into[0][:2]], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:2], at))
    fd = os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT)
    write_exactly(fd, 3, memoryview(b"abcdefg"))
    assert read_exactly(fd, 3, 7, "a") == b"abcdefg"
    os.close(fd)


def test_cutting_to_the_same_size_leaves_the_mtime(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    os.utime(path, (1, 1))
    fd = os.open(path, os.O_RDWR)
    cut_file(fd, 3)
    assert path.stat().st_mtime == 1
    cut_file(fd, 2)
    os.close(fd)
    assert path.read_bytes() == b"ab"


def test_the_soft_limit_of_open_files_is_raised_to_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        assert raise_descriptor_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_written_file_is_written_back_when_its_descriptor_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptors = Descriptors(1)
    file = file_with(tmp_path / "a", b"abc", descriptors)
    opened = file.begin_writing()
    write_exactly(opened.fd, 3, memoryview(b"def"))
    opened.is_dirty = True
    number = opened.fd
    del opened
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    content_of(file_with(tmp_path / "b", b"xyz", descriptors))
    assert synced == [number]
    assert not is_open(number)
    assert content_of(file, 6) == b"abcdef"


def test_what_was_flushed_is_not_written_back_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptors = Descriptors(1)
    file = file_with(tmp_path / "a", b"abc", descriptors)
    file.begin_writing().is_dirty = True
    file.sync()
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    content_of(file_with(tmp_path / "b", b"xyz", descriptors))
    assert synced == []


def test_an_error_of_writing_back_reaches_the_next_append_and_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptors = Descriptors(1)
    file = file_with(tmp_path / "a", b"abc", descriptors)
    file.begin_writing().is_dirty = True

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(os, "fdatasync", broken)
    content_of(file_with(tmp_path / "b", b"xyz", descriptors))
    monkeypatch.undo()
    for use in (file.written, file.sync):
        with pytest.raises(OSError, match="the disk is broken"):
            use()


def test_an_appender_does_not_get_what_a_reader_opened(tmp_path: Path) -> None:
    file = file_with(tmp_path / "a", b"abc", Descriptors(4))
    reading = file.descriptor()
    opened = file.begin_writing()
    file._descriptors.forget(file)
    file._descriptors.admit(file, reading, 1)
    assert write_at(file.written().fd) == 1
    assert opened.flags == os.O_RDWR


def write_at(fd: int) -> int:
    return os.pwrite(fd, b"x", 0)


def test_the_bound_leaves_room_for_other_files_and_says_where_there_is_too_little() -> None:
    assert descriptors_for_segments(1024) == 768
    assert descriptors_for_segments(10**6) == 16_384
    assert descriptors_for_segments(256) == 64
    with pytest.raises(TooFewDescriptorsError, match="limit of open files is 255, expected at least 256"):
        descriptors_for_segments(255)


def test_files_of_other_kinds_borrow_places(tmp_path: Path) -> None:
    """regression: files that were open in an inbox counted nowhere, so that many of them left none for segments"""
    descriptors = Descriptors(66)
    files = [file_with(tmp_path / str(number), b"%03d" % number, descriptors) for number in range(66)]
    for file in files:
        content_of(file)
    descriptors.lend()
    descriptors.lend()
    assert len(descriptors) == 64
    with pytest.raises(OSError, match="too many files of inboxes and tables") as refusal:
        descriptors.lend()
    assert refusal.value.errno == errno.EMFILE
    assert [content_of(file) for file in files] == [b"%03d" % number for number in range(66)]
    descriptors.take_back()
    descriptors.lend()
