"""The command `topicfs` with a hand inside the daemon: what later parts of it will do by themselves — roll, raise the
start offset, write transactions — a test asks for through a socket. All else is the daemon as users have it.

    STEER=<socket> python steered_daemon.py mount --foreground BACKING MOUNT
    python steered_daemon.py nursery            forks such ones: see `forked_daemon.py`
"""

from __future__ import annotations

import errno
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Listener
from typing import Any

from forked_daemon import serve

from topicfs.engine.inbox.committed_names import CommittedNames
from topicfs.engine.inbox.journal import InFlight, Journal
from topicfs.engine.inbox.staging import Staging
from topicfs.engine.partition.chain import Chain
from topicfs.engine.partition.cutting import retire
from topicfs.engine.partition.partition import Partition, Producer
from topicfs.engine.record import MAX_INT64, Record
from topicfs.engine.segment.segment import Segment
from topicfs.engine.store.store import Store
from topicfs.fs.fuse import adapter
from topicfs.mountd.assembly import CountedFileSystem
from topicfs.mountd.cli import main
from topicfs.mountd.daemon import Assembly
from topicfs.mountd.metrics import Metrics

FILES: list[CountedFileSystem] = []
"""The file system that is served."""


def roll(partition: Partition) -> None:
    """Seal the active segment."""
    partition.roll()


def raise_start(partition: Partition, offset: int) -> None:
    """What retention does: records below the offset go, and segments that hold only such."""
    FILES[0].context.views(partition.topic, partition.number).rendered.keep_for_readers()
    log = partition.log
    log.raise_start_offset(offset)
    with log.lock:
        segments = log.chain.segments
        gone = [s for s in segments.non_active if segments.higher(s.base_offset).base_offset <= offset]
        retire(log, gone)


def write(partition: Partition, producer: int, sequence: int, values: list[bytes]) -> None:
    """Records of an open transaction."""
    partition.append([Record(value) for value in values], Producer(producer, 0, sequence, transactional=True))


def end(partition: Partition, producer: int, commit: bool) -> None:
    """The transaction's end."""
    partition.end_transaction(producer, 0, commit)


def sweep(partition: Partition) -> int:
    """Remove the files of what was removed and is pinned by nobody, as if their delay were over."""
    return partition.log.remove_due(MAX_INT64)


def die_in_commit(partition: Partition, step: int) -> None:
    """End the process as `kill -9` does, before the step of the next commit that has this number; counted from 0."""
    steps = itertools.count()

    def counted(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **named)

        setattr(owner, name, call)

    for owner, name in (
        (Journal, "write"),
        (Partition, "append_built"),
        (Partition, "end_transaction"),
        (CommittedNames, "add"),
        (Staging, "discard"),
        (Journal, "remove"),
    ):
        counted(owner, name)


def break_disk(partition: Partition) -> None:
    """Have each fsync of a segment fail from now on."""

    def fails(chain: Chain, segment: Segment) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    Chain.sync = fails  # type: ignore[method-assign]


GATE = threading.Event()
"""Open, unless commits are held."""
GATE.set()


def hold_commits(partition: Partition) -> None:
    """Let commits begin, and go no further until they are let go."""
    GATE.clear()


def release_commits(partition: Partition) -> None:
    """Let them go on."""
    GATE.set()


def gated(write: Callable[[Journal, InFlight], None]) -> Callable[[Journal, InFlight], None]:
    """The first step of a commit, which waits at the gate."""

    def call(journal: Journal, commit: InFlight) -> None:
        GATE.wait()
        write(journal, commit)

    return call


Journal.write = gated(Journal.write)  # type: ignore[method-assign]


def commits_under_way(partition: Partition) -> int:
    """How many have begun and not ended."""
    return FILES[0].context.commits._active


def commits_end(partition: Partition) -> bool:
    """Whether no more begin, as the mount goes away."""
    return FILES[0].context.commits._ending


def sweep_inboxes(partition: Partition, later_ms: int) -> int:
    """What is done every minute, as if it were later."""
    store = FILES[0].context.store
    return store.inboxes.sweep(store.clock() + later_ms, store.steady() + later_ms)


def set_clock(partition: Partition, later_ms: int) -> None:
    """Set the wall clock, back where that is below 0, as far as the daemon sees it."""
    told = time.time_ns
    time.time_ns = lambda: told() + later_ms * 1_000_000


def delete(partition: Partition) -> None:
    """Delete the partition with its records."""
    FILES[0].context.delete(partition.topic, partition.number)


def delete_topic(partition: Partition) -> None:
    """Delete its topic, with all records."""
    FILES[0].context.delete(partition.topic)


def files(partition: Partition) -> str:
    """Where its segments are."""
    return str(partition.directory)


def threads(partition: Partition) -> list[str]:
    """The names of the daemon's threads. The kernel does not know them."""
    return [thread.name for thread in threading.enumerate()]


CALLS: dict[str, Callable[..., Any]] = {
    call.__name__: call
    for call in (
        roll,
        raise_start,
        write,
        end,
        sweep,
        delete,
        delete_topic,
        files,
        die_in_commit,
        break_disk,
        hold_commits,
        release_commits,
        commits_under_way,
        commits_end,
        sweep_inboxes,
        set_clock,
        threads,
    )
}


def listen(store: Store, listener: Listener) -> None:
    """Answer calls, one connection each."""
    while True:
        with listener.accept() as connection:
            name, partition, arguments = connection.recv()
            try:
                connection.send((CALLS[name](store.partition(partition), *arguments), None))
            except Exception as error:  # noqa: BLE001 - the test raises it
                connection.send((None, error))


def build(store: Store, metrics: Metrics) -> CountedFileSystem:
    """The file system over a store, which listens from now on."""
    listener = Listener(os.environ["STEER"])
    threading.Thread(target=listen, args=(store, listener), name="steer", daemon=True).start()
    FILES[:] = [CountedFileSystem(store, metrics)]
    return FILES[0]


def run(arguments: list[str]) -> None:
    """The command."""
    main(arguments, obj=lambda: Assembly(build, adapter.serve))


if __name__ == "__main__":
    if sys.argv[1:] == ["nursery"]:
        serve(run)
    else:
        run(sys.argv[1:])
