"""Rendering ahead: who reads in order finds the next block made; what he reads is the same with and without it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from memory_view_cache import MemoryViewCache
from patience import PATIENCE_S, ended

from topicfs import Store
from topicfs.fs.operations import FileSystem
from topicfs.fs.views.read_ahead import ReadAhead
from topicfs.fs.views.rendered_segment import BLOCK

REQUEST = 128 << 10
LINES = b"".join(b"%099d\n" % number for number in range(40_000))


@pytest.fixture
def files(tmp_path: Path) -> Iterator[FileSystem]:
    with Store.open(tmp_path, create=True) as store:
        partition = store.create("t", 0)
        for start in range(0, len(LINES), 50_000):
            partition.append_lines(LINES[start : start + 50_000])
        made = FileSystem(store, MemoryViewCache())
        thread = threading.Thread(target=made.context.read_ahead.run)
        thread.start()
        try:
            yield made
        finally:
            made.context.read_ahead.stop()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def read(files: FileSystem, handle: int, position: int) -> bytes:
    into = np.empty(REQUEST, np.uint8)
    return into[: files.read(handle, position, into)].tobytes()


def blocks(files: FileSystem) -> int:
    (views,) = files.context.looked_at()
    (text,) = views.rendered._rendered.values()
    return max((block.end for block in text._blocks), default=0)


def await_rendered(files: FileSystem, end: int) -> None:
    deadline = time.monotonic() + 60
    while blocks(files) < end:
        assert time.monotonic() < deadline, (blocks(files), end)
        time.sleep(0.005)


def test_the_next_block_is_rendered_while_one_is_read(files: FileSystem) -> None:
    handle = files.open("/t-0/log.txt", os.O_RDONLY).handle
    for number in range(3):
        assert read(files, handle, number * REQUEST) == LINES[number * REQUEST : (number + 1) * REQUEST]
    # The third request lies in the block that the second had rendered, and that ends before this.
    await_rendered(files, 3 * BLOCK // 2)


def test_who_comes_to_a_block_at_the_end_of_a_read_has_the_next_one_rendered_too(files: FileSystem) -> None:
    """What lies in a window is read without a call: the calls that are left begin in one block and end in the next."""
    handle = files.open("/t-0/log.txt", os.O_RDONLY).handle
    position = 0
    for number in range(3):
        read(files, handle, position)
        window = files._handles[handle].handle.window(position + REQUEST - 1)
        assert window is not None
        end = window[0] + window[1].size
        assert end % REQUEST
        if number:  # the first read may be the only one
            await_rendered(files, end + 1)
        position = end // REQUEST * REQUEST


def test_no_more_than_one_block_ahead(files: FileSystem) -> None:
    handle = files.open("/t-0/log.txt", os.O_RDONLY).handle
    read(files, handle, 0)
    read(files, handle, REQUEST)
    time.sleep(0.3)
    assert blocks(files) <= 3 * BLOCK


def test_a_reader_in_order_gets_every_byte_once(files: FileSystem) -> None:
    handle = files.open("/t-0/log.txt", os.O_RDONLY).handle
    got = bytearray()
    while part := read(files, handle, len(got)):
        got += part
    assert bytes(got) == LINES


def test_who_reads_here_and_there_has_nothing_rendered_ahead(files: FileSystem) -> None:
    handle = files.open("/t-0/log.txt", os.O_RDONLY).handle
    read(files, handle, 3 * BLOCK)
    before = blocks(files)
    time.sleep(0.2)
    assert blocks(files) == before


def test_readers_side_by_side_get_their_own_bytes(files: FileSystem) -> None:
    wrong: list[int] = []

    def reader(start: int) -> None:
        handle = files.open("/t-0/log.txt", os.O_RDONLY).handle
        for position in range(start, len(LINES), REQUEST):
            good = read(files, handle, position) == LINES[position : position + REQUEST]
            wrong.extend([] if good else [position])
        files.release(handle)

    starts = (0, 700_000, 1_500_000, 3_000_000)
    threads = [threading.Thread(target=reader, args=(start,), daemon=True) for start in starts]
    for thread in threads:
        thread.start()
    ended(*threads)
    assert not wrong


def test_a_mistake_in_one_block_does_not_hold_up_the_next(files: FileSystem) -> None:
    handle = files.open("/t-0/log.txt", os.O_RDONLY).handle
    read(files, handle, 0)
    (views,) = files.context.looked_at()
    (text,) = views.rendered._rendered.values()
    read_ahead = ReadAhead()
    asked: list[int] = []

    class Broken:
        def render_at(self, position: int, *_: object) -> None:
            asked.append(position)
            raise ValueError("a mistake")

    def run_again() -> None:
        for _ in range(2):
            with contextlib.suppress(ValueError):
                read_ahead.run()

    thread = threading.Thread(target=run_again)
    thread.start()
    log = views.partition.log
    while not read_ahead._running:
        time.sleep(0.001)
    read_ahead.ask(Broken(), 7, log.snapshot)  # type: ignore[arg-type]
    read_ahead.ask(text, 3 * BLOCK, log.snapshot)
    await_rendered(files, 3 * BLOCK)
    read_ahead.stop()
    thread.join(PATIENCE_S)
    assert asked == [7]
    assert not thread.is_alive()
