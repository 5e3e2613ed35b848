"""A read-only mount of the log directory of a running broker shows what a consumer gets, at each moment, and changes
nothing there."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from daemon_mount import DaemonMount, eventually
from kafka_broker import Broker
from kafka_clients import consume, create_topics, delete_records, fence, produce, transact

from topicfs import Record

SETTINGS = {
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "300",
    "log.cleaner.backoff.ms": "200",
    "log.flush.offset.checkpoint.interval.ms": "500",
    "log.flush.start.offset.checkpoint.interval.ms": "500",
}
SMALL = {"internal.segment.bytes": "20000", "file.delete.delay.ms": "2000", "index.interval.bytes": "1000"}
TOPICS = {
    "kept": {**SMALL, "retention.bytes": "60000"},
    "compacted": {
        **SMALL,
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.ms": "1000",
    },
    "transactions": SMALL,
}


@contextmanager
def mounted(place: Path, *directories: Path) -> Iterator[DaemonMount]:
    """A read-only mount of log directories."""
    mount = DaemonMount(place)
    mount.backing = directories[-1]
    try:
        mount.start("--read-only", *map(str, directories[:-1]))
        with mount.watched():
            yield mount
        assert mount.stop() == 0
    finally:
        mount.clear()


def held(directory: Path) -> dict[Path, tuple[int, int, int, str]]:
    """All files with their sizes, both times of change, and contents."""
    found = {}
    for path in (directory, *sorted(directory.rglob("*"))):
        status = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[path] = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, content)
    return found


def opened_for_writing(mount: DaemonMount, directory: Path) -> list[str]:
    """What the daemon has open below a directory, and may write to."""
    assert mount.process is not None
    process = Path(f"/proc/{mount.process.pid}")
    found = []
    for link in (process / "fd").iterdir():
        try:
            target = os.readlink(link)
            flags = int((process / "fdinfo" / link.name).read_text().split("flags:")[1].split()[0], 8)
        except FileNotFoundError:
            continue
        if target.startswith(f"{directory}/") and flags & os.O_ACCMODE != os.O_RDONLY:
            found.append(target)
    return found


def shown(path: Path) -> list[tuple[int, str | None, str | None]]:
    """Offset, key and value of the records of a file in jsonl."""
    lines = (json.loads(line) for line in path.read_text().splitlines())
    return [(line["offset"], line["key"], line["value"]) for line in lines]


def plain(records: list[Record]) -> list[tuple[int, str | None, str | None]]:
    """The same of records."""
    return [
        (record.offset, record.key and record.key.decode(), record.value and record.value.decode())
        for record in records
    ]


def agree(mount: DaemonMount, broker: Broker, topic: str) -> None:
    """Have the mount show what a consumer gets. Retention and compaction may come in between."""

    def is_so() -> bool:
        return shown(mount / f"{topic}-0/log.jsonl") == plain(consume(broker.bootstrap, topic))

    eventually(is_so, f"the records of {topic}")


def some(count: int, turn: int) -> list[Record]:
    """Records of a few keys, other ones at each turn."""
    return [
        Record(b"%d of turn %d " % (number, turn) + b"x" * 100, b"key %d" % (number % (5 + turn)))
        for number in range(count)
    ]


def test_a_mount_follows_a_running_broker_and_changes_nothing(tmp_path: Path) -> None:
    """Through transactions, retention, compaction, deleted records, a clean stop and a crash."""
    logs, home = tmp_path / "logs", tmp_path / "home"
    broker = Broker.start(logs, home, settings=SETTINGS)
    with broker, mounted(tmp_path, logs) as mount, (tmp_path / "lines").open("wb") as lines:
        create_topics(broker.bootstrap, TOPICS)
        eventually((mount / "transactions-0").is_dir, "the topics")
        follow = subprocess.Popen(["cat", mount / "kept-0/follow.txt"], stdout=lines)
        produced: list[Record] = []
        with (mount / "transactions-0/log.txt").open("rb", buffering=0) as whole:
            for turn in range(3):
                produced += produce(broker.bootstrap, "kept", some(300, turn), "lz4" if turn == 1 else None)
                produce(broker.bootstrap, "compacted", some(300, turn))
                ends = [
                    ("commit", some(30, 0)),
                    ("abort", some(30, 1)),
                    ("commit", some(5, 2)),
                    ("open", some(2, 3)),
                ]
                transact(broker.bootstrap, "transactions", f"id-{turn}", ends)
                for topic in TOPICS:
                    agree(mount, broker, topic)
                fence(broker.bootstrap, f"id-{turn}")
                agree(mount, broker, "transactions")
                assert opened_for_writing(mount, logs) == []
            assert whole.read(1 << 22).count(b"\n") == 3 * 35
        expected = b"".join(record.value + b"\n" for record in produced if record.value)
        eventually(
            lambda: (tmp_path / "lines").read_bytes() == expected, "all lines, of which retention left few"
        )
        status = json.loads((mount / "kept-0/status.json").read_bytes())
        assert 0 < status["start_offset"] < status["end_offset"] == len(produced)
        delete_records(broker.bootstrap, "kept", len(produced) - 3)
        agree(mount, broker, "kept")
        eventually(lambda: len(shown(mount / "compacted-0/log.jsonl")) < 300, "a compaction")
        broker.stop()
        with Broker.start(logs, home, settings=SETTINGS) as again:
            more = produce(again.bootstrap, "kept", some(50, 9))
            for topic in TOPICS:
                agree(mount, again, topic)
            again.stop(clean=False)
        follow.kill()
        follow.wait()
        before = held(logs)
        assert shown(mount / "kept-0/log.jsonl")[-50:] == plain(more)
        (tmp_path / "copy").mkdir()
        subprocess.run(["cp", "-rL", *mount.path.glob("*-0"), tmp_path / "copy"], check=True)
        assert held(logs) == before
    assert held(logs) == before
    assert broker.complaints() == []
