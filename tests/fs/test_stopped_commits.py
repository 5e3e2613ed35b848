"""Commits that were decided, could not be completed, and are asked for again: nothing is appended twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tree_bench import TreeBench, array, lines, tree_bench

from topicfs.engine.transactions import coordinator
from topicfs.fs import errors
from topicfs.fs.inbox import topic_inbox


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TreeBench]:
    with tree_bench(tmp_path) as made:
        for number in range(2):
            made.create("t", number)
        yield made


def put(bench: TreeBench, path: str, content: bytes = b"") -> None:
    """A new file."""
    handle = bench.files.create(path, 0o666, os.O_WRONLY | os.O_CREAT).handle
    bench.files.write(handle, array(content))
    bench.files.flush(handle)
    bench.files.release(handle)


def refused(*_: object) -> None:
    raise OSError("as asked for")


def values(bench: TreeBench) -> list[bytes]:
    return [bench.read(f"/t-{number}/log.txt") for number in range(2)]


def test_a_transaction_that_is_committed_again_before_its_markers_are_written_is_there_once(
    bench: TreeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.files.mkdir("/transactions/a", 0o777)
    for number in range(2):
        put(bench, f"/transactions/a/t-{number}.txt", b"%d\n" % number)
    with monkeypatch.context() as broken:
        broken.setattr(coordinator, "append_end", refused)
        bench.files.rename("/transactions/a", "/transactions/a.commit")
        assert values(bench) == [b"", b""]
        with pytest.raises(OSError, match="as asked for"):
            bench.files.rename("/transactions/a", "/transactions/a.commit")
    put(bench, "/transactions/a/t-0.jsonl", b'{"value":"late"}\n')
    with pytest.raises(errors.NotFoundError, match="committed before"):
        bench.files.rename("/transactions/a", "/transactions/a.commit")
    assert values(bench) == [b"0\n", b"1\n"]
    assert "a" not in bench.files.readdir("/transactions")
    lines(bench.views("t", 0).partition, b"behind")
    assert values(bench)[0] == b"0\nbehind\n"


def test_a_batch_whose_files_go_as_another_thread_completes_it_is_there_once(
    bench: TreeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.files.mkdir("/topics/t/inbox/b", 0o777)
    for number in range(2):
        put(bench, f"/topics/t/inbox/b/{number}.jsonl", b'{"value":"%d","partition":%d}\n' % (number, number))
    with monkeypatch.context() as broken:
        broken.setattr(coordinator, "append_end", refused)
        success = bench.files.create("/topics/t/inbox/b/_SUCCESS", 0o666, os.O_WRONLY | os.O_CREAT).handle
        bench.files.release(success)
        assert values(bench) == [b"", b""]
    assert len(list(bench.files.readdir("/topics/t/inbox/b"))) > 1
    chunks = topic_inbox.chunks

    def late(*arguments: Any) -> Iterator[Any]:
        bench.store.inboxes.settle()
        yield from chunks(*arguments)

    monkeypatch.setattr(topic_inbox, "chunks", late)
    again = bench.files.create("/topics/t/inbox/b/_SUCCESS", 0o666, os.O_WRONLY | os.O_CREAT).handle
    bench.files.release(again)
    assert values(bench) == [b"0\n", b"1\n"]
