"""Work in several threads, also when a program's main thread has ended."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from topicfs import Store
from topicfs.engine.threads import run_all

_BEHIND_MAIN = """
import sys, threading
from pathlib import Path
from topicfs import Record, Store
from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import columns
store = Store.open(Path(sys.argv[1]))
batch = batches.from_records([Record(b"late")], 1_700_000_000_000)
(late,) = columns(batch.data, batch.row.reshape(1, -1))

def commit():
    threading.main_thread().join()
    holder = store.transactions.init_producer("late", 60_000)
    keys = [("t", n) for n in range(3)]
    store.transactions.run(holder, keys, [(key, late) for key in keys])
    store.close()

threading.Thread(target=commit).start()
"""


def test_a_thread_that_outlives_a_programs_main_thread_commits_and_closes_the_store(
    tmp_path: Path,
) -> None:
    with Store.open(tmp_path / "store", create=True) as store:
        store.create_topic("t", 3)
    ended = subprocess.run(
        [sys.executable, "-c", _BEHIND_MAIN, tmp_path / "store"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    with Store.open(tmp_path / "store") as store:
        assert store.stopped_clean
        assert [record.value for n in range(3) for record in store.partition("t", n).records()] == [
            b"late"
        ] * 3


def test_threads_that_have_ended_leave_the_tasks_to_who_asks() -> None:
    pool, done = ThreadPoolExecutor(2), list[int]()
    pool.shutdown()

    def refused() -> None:
        raise OSError("as asked for")

    with pytest.raises(OSError, match="as asked for"):
        run_all(pool, [lambda: done.append(1), refused, lambda: done.append(2)])
    assert sorted(done) == [1, 2]
