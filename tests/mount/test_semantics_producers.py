"""The contract's section on named producers."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import pytest
from daemon_mount import DaemonMount, append, own_mount, refused
from inboxes import Topic
from shell import output

from topicfs import Store

pytest_plugins = "shared_mount"

NAMES = (f"p{number}" for number in itertools.count())


def producer(mount: DaemonMount, name: str | None = None) -> Path:
    directory = mount / "producers" / (name or next(NAMES))
    directory.mkdir()
    return directory


def put(directory: Path, name: str, text: str = "") -> None:
    """Write a hidden file, and rename it."""
    scratch = directory / f".{name}"
    scratch.write_text(text)
    scratch.rename(directory / name)


def take_over(directory: Path, epoch: int | str) -> None:
    """One write(2), as echo makes it."""
    descriptor = os.open(directory / "epoch", os.O_WRONLY)
    try:
        os.write(descriptor, f"{epoch}\n".encode())
    finally:
        os.close(descriptor)


def upcoming(directory: Path) -> int:
    return int((directory / "next").read_text())


def test_append(mount: DaemonMount) -> None:
    """Z1. `mkdir producers/p` makes a producer. A file in `producers/p/<topic>-<n>` is appended, once
    and as a whole, when it is renamed from a name that begins with `.` or `_` to `<sequence>.<ext>`,
    `<ext>` being one of I4: when the rename returns it is on disk and shows, and an error means that
    nothing was appended.
    """
    topic = Topic(mount)
    place = producer(mount) / f"{topic.name}-1"
    said = output(
        f"cd {place} && seq 3 > .a.txt && mv .a.txt 0.txt && "
        "printf 'k\\tv\\n' > .b.tsv && mv .b.tsv $(cat next).tsv && ls -A",
        mount.path,
    )
    assert said.split() == [b"next"]
    assert (topic.partition(1) / "log.txt").read_text() == "1\n2\n3\nv\n"
    assert place.parent.name in os.listdir(mount / "producers")


def test_next(mount: DaemonMount) -> None:
    """Z2. The sequence counts the records that the producer has appended to the partition, from 0 on:
    `next` gives that of the next file, and so how far the producer has come in what it reads.
    """
    topic = Topic(mount)
    place = producer(mount) / f"{topic.name}-0"
    assert upcoming(place) == 0
    put(place, "0.txt", "a\nb\n")
    put(place, "2.jsonl", '{"key":"k","value":"c"}\n')
    append(topic.partition() / "log.txt", b"of somebody else\n")
    assert upcoming(place) == 3
    assert upcoming(place.parent / f"{topic.name}-1") == 0


def test_repeated(mount: DaemonMount) -> None:
    """Z3. A sequence that was appended before is EEXIST, and one that others come before is EINVAL; the
    file stays, and nothing is appended.
    """
    topic = Topic(mount)
    place = producer(mount) / f"{topic.name}-0"
    for number in range(7):
        put(place, f"{number}.txt", f"{number}\n")
    for number, refusal in ((0, errno.EEXIST), (6, errno.EEXIST), (2**31, errno.EINVAL), (8, errno.EINVAL)):
        with refused(refusal):
            put(place, f"{number}.txt", "again\n")
        assert (place / f".{number}.txt").exists()
    assert "expected 7 as its next sequence" in str(mount.status(topic.partition())["last_refusal"])
    assert len(topic.values()) == 7


@pytest.mark.parametrize("step", [0, 1])
def test_crashes(tmp_path: Path, step: int) -> None:
    """Z4. After `kill -9` of the daemon at any step the file is appended or there; tried again under its
    sequence, it is there once. Neither time nor retention nor a restart makes the daemon forget a
    sequence.
    """
    served = DaemonMount(tmp_path)
    try:
        served.start()
        with served.watched():
            topic = Topic(served, "t")
            place = producer(served, "p") / "t-0"
            put(place, "0.txt", "a\n")
            served.steer("die_in_commit", topic.partition(), step)
            with refused(errno.ECONNABORTED, errno.ENOTCONN):
                put(place, "1.txt", "b\nc\n")
            served.process.wait()
            served.process = None
            served.start()
            assert topic.values() == (["a", "b", "c"] if step else ["a"])
            assert upcoming(place) == (3 if step else 1)
            if step:
                with refused(errno.EEXIST):
                    (place / ".1.txt").rename(place / "1.txt")
            else:
                (place / ".1.txt").rename(place / "1.txt")
            assert topic.values() == ["a", "b", "c"]
        # A start offset at the end removes the records that tell of them, and leaves their segment.
        (topic.partition() / "start").write_text("-1\n")
        for end in (served.kill, served.stop, served.stop):
            end()
            served.start()
            with served.watched():
                assert upcoming(place) == 3
        with served.watched():
            served.steer("set_clock", topic.partition(), 7 * 86_400_000)
            served.steer("expire_producers", topic.partition())
            with refused(errno.EEXIST):
                put(place, "1.txt", "b\nc\n")
        assert served.stop() == 0
        assert served.alarms() == []
    finally:
        served.clear()


def test_epochs(mount: DaemonMount) -> None:
    """Z5. `epoch` gives the epoch of the producer. Writing the next number takes it over: sequences go
    on, and a rename to `<epoch>-<sequence>.<ext>` with another epoch than the present one is EPERM. Any
    other number is EPERM too, so that of two who want to take it over one does.
    """
    topic = Topic(mount)
    place = producer(mount) / f"{topic.name}-0"
    put(place, "0-0.txt", "a\n")
    take_over(place.parent, 1)
    with refused(errno.EPERM):
        take_over(place.parent, 1)
    with refused(errno.EPERM):
        take_over(place.parent, "9" * 5000)
    with refused(errno.EPERM):
        put(place, "0-1.txt", "of the earlier holder\n")
    put(place, "1-1.txt", "b\n")
    put(place, "2.txt", "c\n")
    assert (place.parent / "epoch").read_text() == "1\n"
    assert topic.values() == ["a", "b", "c"]


def test_refusals(mount: DaemonMount) -> None:
    """Z6. The records of one file are one batch: more than `max.message.bytes` of them is EMSGSIZE, none
    is ENODATA. A malformed line is EINVAL, and so is any other name. A file that is made under a name
    that is not hidden is EPERM, since whether all of it has come could not be known; mkdir of a producer
    that is there is EEXIST.
    """
    topic = Topic(mount)
    topic.configure("max.message.bytes=1000")
    place = producer(mount) / f"{topic.name}-0"
    for name, text, refusal in (
        ("0.txt", "x\n" * 1000, errno.EMSGSIZE),
        ("0.txt", "", errno.ENODATA),
        ("0.jsonl", '{"value":\n', errno.EINVAL),
        ("0.jsonl", '{"value":"x","partition":1}\n', errno.EINVAL),
        ("0.doc", "x\n", errno.EINVAL),
        ("first.txt", "x\n", errno.EINVAL),
    ):
        with refused(refusal):
            put(place, name, text)
    with refused(errno.EPERM):
        (place / "0.txt").write_text("x\n")
    with refused(errno.EEXIST):
        place.parent.mkdir()
    assert not (place.parent / "nobody-0").exists()
    assert (topic.values(), upcoming(place)) == ([], 0)


def test_removal(mount: DaemonMount) -> None:
    """Z7. `rmdir producers/p` forgets a producer, and is ENOTEMPTY while it has files that are not
    appended. One that is made again under the name begins at 0, with another producer id.
    """
    topic = Topic(mount)
    directory = producer(mount)
    place = directory / f"{topic.name}-0"
    put(place, "0.txt", "a\n")
    (place / ".x").write_text("x")
    with refused(errno.ENOTEMPTY):
        directory.rmdir()
    (place / ".x").unlink()
    directory.rmdir()
    assert not directory.exists()
    directory.mkdir()
    assert upcoming(place) == 0
    put(place, "0.txt", "b\n")
    assert topic.values() == ["a", "b"]


def test_log(tmp_path: Path) -> None:
    """Z8. In the log these are the batches of an idempotent producer, with its id, epoch and sequence;
    the name is a `transactional.id` in `__transaction_state`, behind `producers/`.
    """
    with own_mount(tmp_path) as own:
        Topic(own, "t")
        place = producer(own, "p") / "t-0"
        put(place, "0.txt", "a\nb\n")
        take_over(place.parent, 1)
        put(place, "2.txt", "c\n")
        assert '"transactionalId":"producers/p"' in (own / "__transaction_state-0" / "log.jsonl").read_text()
    with Store.open(tmp_path / "backing", read_only=True) as store:
        (entry,) = store.partition("t", 0).log.producers.producers.values()
        assert (entry.epoch, entry.last_sequence) == (1, 2)
