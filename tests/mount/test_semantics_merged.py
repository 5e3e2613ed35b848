"""`fs/SEMANTICS.md`: a topic as one file."""

from __future__ import annotations

import errno
import json
import mmap
import os
import threading
from pathlib import Path

from daemon_mount import DaemonMount, append, opened, refused
from shell import output

pytest_plugins = ["shared_mount"]


def topic_of(mount: DaemonMount, name: str, count: int = 3) -> Path:
    """A topic of its own, with so many partitions."""
    for number in range(count):
        os.mkdir(mount / f"{name}-{number}")
    return mount / "topics" / name


def put(mount: DaemonMount, name: str, number: int, *rows: tuple[int, str]) -> None:
    """Records with these timestamps, in seconds, and values."""
    lines = [
        json.dumps({"value": value, "timestamp": 1_600_000_000_000 + 1000 * time}) for time, value in rows
    ]
    append(mount / f"{name}-{number}/log.jsonl", "".join(f"{line}\n" for line in lines).encode())


def test_order(mount: DaemonMount) -> None:
    """Y1. `topics/<topic>/log.<fmt>` has the records of all partitions, by their timestamps; in each partition by their
    offsets, so a record that is earlier than one before it comes right behind that one. Of equal times the partition
    with the lower number comes first.
    """
    topic = topic_of(mount, "mergedjoined")
    put(mount, "mergedjoined", 0, (1, "a"), (4, "d"), (6, "f"))
    put(mount, "mergedjoined", 2, (2, "b"), (5, "e"), (3, "late"), (7, "g"))
    put(mount, "mergedjoined", 1, (4, "d1"))
    assert (topic / "log.txt").read_text().split() == ["a", "b", "d", "d1", "e", "late", "f", "g"]
    parts = [json.loads(line)["partition"] for line in (topic / "log.jsonl").read_bytes().splitlines()]
    assert parts == [0, 2, 0, 1, 2, 2, 0, 2]


def test_one_moment(mount: DaemonMount) -> None:
    """Y2. It shows the moment at which it was looked up: its size and bytes do not change while it is open, and the
    next look-up shows what has come, in its place. Only committed records count.
    """
    topic = topic_of(mount, "mergedmoment")
    put(mount, "mergedmoment", 0, (1, "a"), (9, "z"))
    mount.steer("write", mount / "mergedmoment-1", 7, 0, [b"hidden"])
    with opened(topic / "log.txt") as file:
        put(mount, "mergedmoment", 2, (5, "m"))
        assert os.fstat(file).st_size == 4
        assert os.pread(file, 100, 0) == b"a\nz\n"
        assert (topic / "log.txt").read_bytes() == b"a\nm\nz\n"
        assert (topic / "log.txt").stat().st_size == 6
        assert os.pread(file, 100, 2) == b"z\n"
    mount.steer("end", mount / "mergedmoment-1", 7, False)
    assert (topic / "log.txt").read_bytes() == b"a\nm\nz\n"


def test_tools(mount: DaemonMount, tmp_path: Path) -> None:
    """Y3. Its size is that of the partitions' logs together, and it is read from any position: `cat`, `wc`, `grep`,
    `tail -n`, `tail -c`, `cp` and a mapping do as with any file. `tail -f` of it waits for nothing: follow
    `follow.<fmt>`.
    """
    topic = topic_of(mount, "mergedtools")
    values = [(row, f"row {row:05} {'x' * 300}") for row in range(3000)]
    for number in range(3):
        put(mount, "mergedtools", number, *values[number::3])
    whole = "".join(f"{value}\n" for _, value in values)
    sizes = [(mount / f"mergedtools-{number}/log.txt").stat().st_size for number in range(3)]
    assert (topic / "log.txt").stat().st_size == sum(sizes) == len(whole)
    assert output("cat log.txt", topic).decode() == whole
    assert output("wc -lc < log.txt", topic).split() == [b"3000", b"%d" % len(whole)]
    assert output("grep -c 'row 01' log.txt", topic) == b"1000\n"
    assert output("tail -n 2 log.txt", topic).decode() == "".join(whole.splitlines(True)[-2:])
    assert output("tail -c 1000 log.txt", topic).decode() == whole[-1000:]
    assert output(f"cp log.txt {tmp_path}/copy && cat {tmp_path}/copy", topic).decode() == whole
    with opened(topic / "log.txt") as file:
        assert os.pread(file, 500, 400_000).decode() == whole[400_000:400_500]
        with mmap.mmap(file, 0, mmap.MAP_PRIVATE, mmap.PROT_READ) as mapped:
            assert mapped[-1000:].decode() == whole[-1000:]


def test_follow(mount: DaemonMount) -> None:
    """Y4. `topics/<topic>/follow.<fmt>`, which is not listed, gives the records that come to any of its partitions,
    also to one that is made later, after it was opened: those that are there when it is read by their timestamps, later
    ones behind them.
    """
    topic = topic_of(mount, "mergedfollowed")
    put(mount, "mergedfollowed", 0, (1, "old"))
    assert "follow.txt" not in os.listdir(topic)
    with opened(topic / "follow.txt") as file:
        put(mount, "mergedfollowed", 2, (9, "second"))
        put(mount, "mergedfollowed", 1, (8, "first"))
        assert os.read(file, 100) == b"first\nsecond\n"
        found = []
        reader = threading.Thread(target=lambda: found.append(os.read(file, 100)))
        reader.start()
        put(mount, "mergedfollowed", 0, (3, "late"))
        reader.join(30)
        assert found == [b"late\n"]


def test_writing(mount: DaemonMount) -> None:
    """Y5. Both can only be read: opening one for writing is EPERM, and the reason in `last_refusal` names
    `in.<fmt>`.
    """
    topic = topic_of(mount, "mergedunwritten", 1)
    for flags in (os.O_WRONLY | os.O_APPEND, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
        with refused(errno.EPERM):
            os.open(topic / "log.txt", flags)
    assert (
        "topics/mergedunwritten/in.txt" in mount.status(mount / "mergedunwritten-0")["last_refusal"]["reason"]
    )
    with refused(errno.EPERM):
        os.open(topic / "follow.txt", os.O_WRONLY | os.O_APPEND)
