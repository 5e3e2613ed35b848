"""The daemon is killed at each step of an append to the cluster, of an inbox's commit there, and of taking a partition
over from another one of its group: what was acknowledged is there once, in its order."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from daemon_mount import DaemonMount, append, refused
from harness import missing
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest
from line_writer import LineWriter
from patience import PATIENCE_S, eventually
from sampling import sample
from stand_in_broker import StandInBroker
from test_semantics_link import Linked, a_link

from topicfs.engine.format.paths import log_file

Step = tuple[Any, bool]


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[Linked]:
    with a_link(tmp_path) as linked:
        for words in ("lines are lost", "is acknowledged, and not mirrored yet"):
            linked.mount.expect(words)
        yield linked


STEPS: tuple[Step, ...] = (
    (InitProducerIdRequest, False),
    (ProduceRequest, False),
    (ProduceRequest, True),
    (FetchRequest, True),
)
"""At which question the daemon dies, and whether the broker has done by then what it was asked for."""


def killing(linked: Linked, step: Step, dead: threading.Event) -> Callable[[Any, Any], Any]:
    """The broker's answers, up to that at which it kills the daemon."""
    kind, is_done = step
    answer, one_at_a_time = linked.broker._answer, threading.Lock()

    def answer_or_kill(asked: Any, request: Any) -> Any:
        if asked is not kind or dead.is_set():
            return answer(asked, request)
        told = answer(asked, request) if is_done else None
        if is_done and kind is FetchRequest and not told.responses[0].partitions[0].records:
            return told
        with one_at_a_time:
            if not dead.is_set():
                linked.mount.kill()
                dead.set()
        raise OSError("nobody hears the answer")

    return answer_or_kill


def test_a_line_is_acknowledged_once_whenever_the_daemon_dies(linked: Linked) -> None:
    log = linked.topic("killed").logs[0]
    file = linked.mount / "killed-0/log.txt"
    eventually(file.exists, "the topic is here")
    lines = LineWriter(file)
    with lines.running():
        for step in STEPS:
            await_a_line(lines)
            dead = threading.Event()
            with mock.patch.object(linked.broker, "_answer", killing(linked, step, dead)):
                if step[0] is InitProducerIdRequest:
                    # A producer that its leader has forgotten is replaced.
                    linked.broker.refuse = [59]
                assert dead.wait(60), f"it was not asked: {step}"
            linked.start()
        await_a_line(lines)
    eventually(lambda: mirrored(linked) == log.data(), "the mirror has all")
    lines.check(file.read_text().split())
    assert len(lines.failed) >= len(STEPS)


def test_a_line_behind_a_start_waits_until_the_cluster_was_asked(linked: Linked) -> None:
    """regression: it was EROFS, as without a link"""
    log = linked.topic("early", b"first").logs[0]
    linked.shows("early-0", b"first")
    file = linked.mount / "early-0/log.txt"
    assert linked.mount.stop() == 0
    asked = threading.Event()
    linked.broker.twist[MetadataRequest] = lambda *_: asked.wait(0.7)
    linked.start()
    append(file, b"second\n")
    append(linked.mount / "topics/early/in.txt", b"third\n")
    assert file.read_text().split() == ["first", "second", "third"]
    assert log.end == 3
    assert linked.mount.stop() == 0
    linked.broker.twist.clear()
    linked.broker.go()
    linked.start()
    with refused(errno.ETIMEDOUT):
        append(file, b"never\n")
    (linked.mount / "topics/ours").mkdir()
    append(linked.mount / "ours-0/log.txt", b"at once\n")
    linked.broker.come()
    append(file, b"fourth\n")
    assert file.read_text().split() == ["first", "second", "third", "fourth"]


def test_a_batch_behind_a_start_waits_until_the_cluster_was_asked(linked: Linked) -> None:
    """regression: it was EIO, as nothing was mirrored yet"""
    log = linked.topic("prompt", b"first").logs[0]
    linked.shows("prompt-0", b"first")
    asked = threading.Event()
    linked.broker.twist[MetadataRequest] = lambda *_: asked.wait(0.7)
    assert linked.mount.stop() == 0
    linked.start()
    inbox = linked.mount / "topics/prompt/inbox"
    (inbox / ".a").write_text("second\n")
    (inbox / ".a").rename(inbox / "a.txt")
    assert linked.mount.stop() == 0
    linked.start()
    transaction = linked.mount / "transactions/t"
    transaction.mkdir()
    (transaction / "prompt-0.txt").write_text("third\n")
    transaction.rename(linked.mount / "transactions/t.commit")
    assert (linked.mount / "prompt-0/log.txt").read_text().split() == ["first", "second", "third"]
    assert log.end >= 3
    linked.broker.twist.clear()


def await_a_line(lines: LineWriter) -> None:
    """Wait for an acknowledgement."""
    known = len(lines.acknowledged)
    eventually(lambda: len(lines.acknowledged) > known, "a line is acknowledged")


def mirrored(linked: Linked) -> bytes:
    return (linked.mount.backing / "logs/killed-0" / log_file(0)).read_bytes()


COMMIT_STEPS = 15
"""Three writes of the journal; a producer, two partitions and the end asked for; two batches sent and waited for; the
wait for the mirrors; the name, the files, the end of the journal."""

MOMENTS = [(step, after) for step in range(COMMIT_STEPS) for after in (False, True)]


def test_a_batch_of_an_inbox_is_there_once_whenever_the_daemon_dies(linked: Linked) -> None:
    topic = linked.topic("dying")
    topic.logs[1] = type(topic.logs[0])()
    inbox = linked.mount / "topics/dying/inbox"
    for step, after in sample([*MOMENTS, (COMMIT_STEPS, False)]):
        await_mirrors(linked)
        name = f"{'behind' if after else 'before'}-{step}"
        lay(inbox / name)
        linked.mount.steer("die_in_linked_commit", linked.mount / "dying-0", step, after)
        if step < COMMIT_STEPS:
            with refused(errno.ECONNABORTED, errno.ENOTCONN):
                (inbox / name / "_SUCCESS").touch()
            assert linked.mount.process is not None
            linked.mount.process.wait(PATIENCE_S)
            linked.mount.process = None
            linked.start()
            await_mirrors(linked)
            assert times(linked, name) in ([0, 0], [1, 1])
            lay(inbox / name)
        (inbox / name / "_SUCCESS").touch()
        assert times(linked, name) == [1, 1]
        assert name not in os.listdir(inbox)


def lay(batch: Path) -> None:
    """A batch with a record for each partition."""
    batch.mkdir(exist_ok=True)
    lines = [f'{{"partition":{number},"value":"{batch.name}"}}\n' for number in (0, 1)]
    (batch / "x.jsonl").write_text("".join(lines))


def await_mirrors(linked: Linked) -> None:
    """Wait until both partitions are mirrored, and all of what the cluster has."""
    eventually(lambda: all(linked.has(f"dying-{number}") for number in (0, 1)), "the mirrors have begun")


def times(linked: Linked, name: str) -> list[int]:
    """How often each partition shows the record of a batch."""
    return [(linked.mount / f"dying-{at}/log.txt").read_text().split().count(name) for at in (0, 1)]


HANDOVER_STEPS = ("_join", "take", "detach")
"""The partition becomes the daemon's, and its lease begins; the directory is renamed, behind which its files are
detached from who had them open."""


def test_a_partition_moves_whole_whenever_the_daemon_that_takes_it_dies(tmp_path: Path) -> None:
    lack = missing()
    if lack is not None:
        pytest.skip(lack)
    stores = tmp_path / "stores"
    options = ("--link-group", "daemons", "-o", f"link.group.directory={stores}")
    mounts = [DaemonMount(tmp_path / name) for name in ("one", "two")]
    with StandInBroker.running() as broker:
        try:
            for mount in mounts:
                mount.backing = stores / mount.path.parent.name
            holder, taker = (Linked(broker, mount, mount.path.parent) for mount in mounts)
            holder.start(*options)
            log = holder.topic("moved").logs[0]
            values: list[bytes] = []
            moments = [
                (step, after, back)
                for step in HANDOVER_STEPS
                for after in (False, True)
                for back in (False, True)
            ]
            for step, after, comes_back in sample(moments):
                values.append(f"{step} {after} {comes_back}".encode())
                log.add(values[-1])
                holder.shows("moved-0", *values)
                holder.mount.kill()
                # What the cluster has deleted since can only come from the store that had it.
                log.start = log.end
                broker.other = frozenset({("moved", 0)})
                taker.start(*options)
                local = taker.mount / "local-0"
                local.mkdir(exist_ok=True)
                taker.mount.steer("die_in_handover", local, step, after)
                broker.other = None
                assert taker.mount.process is not None
                taker.mount.process.wait(PATIENCE_S)
                taker.mount.process = None
                if comes_back:
                    holder, taker = taker, holder
                holder.start(*options)
                holder.shows("moved-0", *values)
                assert [store.name for store in stores.iterdir() if (store / "logs/moved-0").exists()] == [
                    holder.mount.backing.name
                ]
            assert holder.mount.stop() == 0
            assert mounts[0].alarms() == mounts[1].alarms() == []
        finally:
            for mount in mounts:
                mount.clear()
