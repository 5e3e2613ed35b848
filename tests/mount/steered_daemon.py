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
import stat
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Listener
from typing import Any

import lock_order
import lock_watch  # noqa: F401 - before all that makes locks
from forked_daemon import serve

from topicfs.engine.inbox.committed_names import CommittedNames
from topicfs.engine.inbox.joint_journal import JointJournal
from topicfs.engine.inbox.journal import InFlight, Journal
from topicfs.engine.partition.chain import Chain
from topicfs.engine.partition.cutting import retire
from topicfs.engine.partition.partition import Partition, Producer
from topicfs.engine.record import MAX_INT64, Record
from topicfs.engine.segment.segment import Segment
from topicfs.engine.staging.staging import Staging
from topicfs.engine.store import handover
from topicfs.engine.store.store import Store
from topicfs.engine.transactions.log import TransactionLog
from topicfs.fs.fuse import adapter
from topicfs.mountd.assembly import CountedFileSystem
from topicfs.mountd.cli import main
from topicfs.mountd.daemon import Assembly
from topicfs.mountd.metrics import Metrics

# The kernel waits for reads that are under way, which may wait for a lock: but for none of who fetches.
adapter.drop_pages = lock_order.without_locks(adapter.drop_pages, but="Mirror._lock")

# No close(2) waits for the release that the kernel sends behind it.
CountedFileSystem.release = lock_order.late(CountedFileSystem.release)  # type: ignore[method-assign]

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


def begin_keyed(partition: Partition, producer: int, key: str, value: str) -> None:
    """A record with a key of an open transaction."""
    record = Record(value.encode(), key.encode())
    partition.append([record], Producer(producer, 0, 0, transactional=True))


def end(partition: Partition, producer: int, commit: bool) -> None:
    """The transaction's end."""
    partition.end_transaction(producer, 0, commit)


def sweep(partition: Partition) -> int:
    """Remove the files of what was removed and is pinned by nobody, as if their delay were over."""
    return partition.log.remove_due(MAX_INT64)


def die_at(step: int, after: bool, *methods: tuple[Any, str]) -> None:
    """End the process as `kill -9` does, before the call of these methods, or functions of a module, that has this
    number, or behind it; counted from 0."""
    steps = itertools.count()

    def counted(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            is_it = next(steps) == step
            if is_it and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            found = original(*arguments, **named)
            if is_it:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        setattr(owner, name, call)

    for owner, name in methods:
        counted(owner, name)


def die_in_commit(partition: Partition, step: int) -> None:
    """End the process before the step of the next commit that has this number."""
    die_at(
        step,
        False,
        (Journal, "write"),
        (JointJournal, "write"),
        (TransactionLog, "append"),
        (Partition, "append_built"),
        (Partition, "end_transaction"),
        (CommittedNames, "add"),
        (Staging, "discard"),
        (Journal, "remove"),
        (JointJournal, "remove"),
    )


def die_in_linked_commit(partition: Partition, step: int, after: bool) -> None:
    """End the process before the step of the next commit into a cluster that has this number, or behind it."""
    # The link's modules load kafka-python, which only a daemon with a link has loaded.
    from topicfs.engine.link.produce import Producer as Sending  # noqa: PLC0415
    from topicfs.engine.link.produce import Sent  # noqa: PLC0415
    from topicfs.engine.link.transactions import Transactions  # noqa: PLC0415

    die_at(
        step,
        after,
        (Journal, "write"),
        (Transactions, "ask"),
        (Sending, "send"),
        (Sent, "wait"),
        (Transactions, "await_shown"),
        (CommittedNames, "add"),
        (Staging, "discard"),
        (Journal, "remove"),
    )


def die_in_handover(partition: Partition, step: str, after: bool) -> None:
    """End the process before a step of taking a partition over from another daemon of the group, or behind it."""
    from topicfs.engine.link.group import Group  # noqa: PLC0415 - as above

    die_at(0, after, (Group if step == "_join" else handover, step))


def break_disk(partition: Partition) -> None:
    """Have each fsync of a segment fail from now on."""

    def fails(chain: Chain, segment: Segment) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    Chain.sync = fails  # type: ignore[method-assign]


CHANGING = {
    "EIO": ("pwrite", "write", "fsync"),
    "ENOSPC": ("pwrite", "write", "mkdir"),
    "short": ("pwrite", "write"),
    "die": ("pwrite", "write", "rename", "replace", "ftruncate", "unlink", "mkdir", "rmdir", "fsync"),
}
"""Calls that change the backing directory, and those of them that fail in this way."""


def break_call(partition: Partition, number: int, kind: str) -> None:
    """Have the call of this number, from now on, of those that change the backing directory, end the process: before it
    (`die`), or in the middle of a write (`torn`); or write half of what it is given (`short`); or fail once with the
    error of this name."""
    steps = itertools.count()

    def broken(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            # The pipes by which threads wake each other are no disk.
            on_disk = not isinstance(arguments[0], int) or stat.S_ISREG(os.fstat(arguments[0]).st_mode)
            if not on_disk or next(steps) != number:
                return original(*arguments, **named)
            if kind == "short":
                return original(
                    arguments[0], bytes(arguments[1])[: (len(arguments[1]) + 1) // 2], *arguments[2:]
                )
            if kind == "torn" and name in ("pwrite", "write"):
                data = bytes(arguments[1])
                original(arguments[0], data[: len(data) // 2], *arguments[2:])
            if kind in ("die", "torn"):
                os.kill(os.getpid(), signal.SIGKILL)
            wrong = getattr(errno, kind)
            raise OSError(wrong, os.strerror(wrong))

        return call

    for name in CHANGING.get(kind, CHANGING["die"]):
        setattr(os, name, broken(name, getattr(os, name)))


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


def expire_producers(partition: Partition) -> int:
    """Forget idle producers, as is done every ten minutes. Return how many."""
    return partition.log.expire_producers(partition.log.clock())


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
        begin_keyed,
        end,
        sweep,
        delete,
        delete_topic,
        files,
        die_in_commit,
        die_in_linked_commit,
        die_in_handover,
        break_call,
        break_disk,
        hold_commits,
        release_commits,
        commits_under_way,
        commits_end,
        sweep_inboxes,
        set_clock,
        expire_producers,
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
    """The command. A nursery has loaded the locks before it knew of their pauses."""
    lock_order.pause_as_told()
    main(arguments, obj=lambda: Assembly(build, adapter.serve))


if __name__ == "__main__":
    if sys.argv[1:] == ["nursery"]:
        serve(run)
    else:
        run(sys.argv[1:])
