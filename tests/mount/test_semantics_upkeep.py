"""`fs/SEMANTICS.md`: retention and compaction, seen through the mount."""

from __future__ import annotations

import errno
import json
import mmap
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from daemon_mount import DaemonMount, append, eventually, opened, own_mount, refused

from topicfs import Record, Store

BASE = f"{0:020d}"
SETTINGS = {
    "log.cleaner.backoff.ms": 20,
    "log.initial.task.delay.ms": 100,
    "log.retention.check.interval.ms": 1000,
    "log.segment.delete.delay.ms": 0,
    "log.cleaner.min.cleanable.ratio": 0,
}


@contextmanager
def upkeep(place: Path) -> Iterator[DaemonMount]:
    """A mount whose upkeep is quick."""
    options = [word for name, value in SETTINGS.items() for word in ("-o", f"{name}={value}")]
    with own_mount(place, *options, keeps=False) as mount:
        yield mount


def keyed(partition: Path, mount: DaemonMount, rounds: int = 3) -> None:
    """A segment for each round: the same keys again and again. Then one more record, in the active segment."""
    for number in range(rounds):
        lines = "".join(f"k{key}\tround {number} {'x' * (220 - 10 * number)}\n" for key in range(200))
        append(partition / "log.tsv", lines.encode())
        mount.steer("roll", partition)
    append(partition / "log.tsv", b"last\tone\n")


def policy(mount: DaemonMount, partition: Path, value: str) -> None:
    config = mount / "topics" / partition.name.rpartition("-")[0] / "config"
    with config.open("w") as file:
        file.write(f"cleanup.policy={value}\n")


def records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().splitlines()]


def compacted(mount: DaemonMount, partition: Path) -> None:
    """Wait until nothing is left to compact."""

    def is_done() -> bool:
        status = mount.status(partition)
        return status["cleaning"] is not None and status["cleaning"]["from_offset"] >= 600

    eventually(is_done, "a compaction")


def rest(descriptor: int, position: int) -> bytes:
    found = bytearray()
    while part := os.pread(descriptor, 1 << 16, position + len(found)):
        found += part
    return bytes(found)


def test_retention(tmp_path: Path) -> None:
    """U1. What retention removes is gone from every listing, and the log begins behind it; `status.json` tells
    which segment goes next, when or after how many bytes more, and why.
    """
    with upkeep(tmp_path) as mount:
        partition = mount.new("short")
        keyed(partition, mount)
        before = mount.status(partition)["next_removal"]
        assert before["segment"] == 0
        assert before["reason"] is None
        assert before["more_bytes"] is None
        assert abs(before["at_ms"] - (time.time() + 7 * 24 * 3600) * 1000) < 60_000
        size = mount.status(partition)["log_bytes"]
        config = mount / "topics/short/config"
        config.write_text(f"retention.bytes={size + 1000}\n")
        first = (partition / f"segments/{BASE}.log").stat().st_size
        assert mount.status(partition)["next_removal"]["more_bytes"] == 1000 + first
        third = (partition / f"segments/{400:020d}.log").stat().st_size
        config.write_text(f"retention.bytes={third}\n")
        eventually(lambda: mount.status(partition)["segments"] == 2, "retention by size")
        assert sorted(os.listdir(partition / "sealed/txt")) == [f"{400:020d}.txt"]
        assert not any(name.startswith(BASE) for name in os.listdir(partition / "segments"))
        assert records(partition / "log.jsonl")[0]["offset"] == 400
        assert int((partition / "start").read_text()) == 400


def test_compaction_under_readers(tmp_path: Path) -> None:
    """U2. A file that was open before a compaction gives what it was opened on; one opened later has the last
    value of each key, with its offset, in the order of offsets.
    """
    with upkeep(tmp_path) as mount:
        partition = mount.new("keys")
        keyed(partition, mount)
        names = [
            "log.tsv",
            "offset/0-599.tsv",
            f"segments/{BASE}.tsv",
            f"sealed/jsonl/{BASE}.jsonl",
            f"segments/{BASE}.log",
        ]
        whole = {name: (partition / name).read_bytes() for name in names}
        handles = {name: os.open(partition / name, os.O_RDONLY) for name in names}
        try:
            policy(mount, partition, "compact")
            compacted(mount, partition)
            mount.steer("sweep", partition)
            for name, handle in handles.items():
                # `log.tsv` is what there was; what is appended later comes behind.
                assert rest(handle, 0) == whole[name], name
        finally:
            for handle in handles.values():
                os.close(handle)
        left = records(partition / "log.jsonl")
        assert [each["offset"] for each in left] == [*range(400, 601)]
        assert left[0] == {**left[0], "key": "k0", "value": f"round 2 {'x' * 200}"}
        assert (partition / "offset/0-599.tsv").read_bytes().count(b"\n") == 200


@pytest.mark.parametrize(
    ("name", "rewritten"),
    [
        (f"sealed/tsv/{BASE}.tsv", f"sealed/tsv/{BASE}-{600:020d}.tsv"),
        (f"segments/{BASE}.tsv", f"segments/{BASE}.tsv"),
        (f"segments/{BASE}.log", f"segments/{BASE}.log"),
    ],
)
def test_a_rewritten_file(tmp_path: Path, name: str, rewritten: str) -> None:
    """U3. A file that compaction rewrote has another inode, size and content; whoever has it open or mapped
    from before goes on with the old ones.
    """
    with upkeep(tmp_path) as mount:
        partition = mount.new("keys")
        keyed(partition, mount)
        file = partition / name
        before, old = file.stat(), file.read_bytes()
        with opened(file) as handle, mmap.mmap(handle, 0, mmap.MAP_SHARED, mmap.PROT_READ) as seen:
            start = os.pread(handle, 100, 0)
            policy(mount, partition, "compact")
            compacted(mount, partition)
            mount.steer("sweep", partition)
            assert start + rest(handle, 100) == old
            new = (partition / rewritten).read_bytes()
            assert new != old
            assert start + rest(handle, 100) == old
            assert seen[:] == old
        eventually(lambda: (partition / rewritten).stat().st_size == len(new), "the new size")
        after = (partition / rewritten).stat()
        assert after.st_ino != before.st_ino
        assert after.st_size < before.st_size
        assert (partition / rewritten).read_bytes() == new
        policy(mount, partition, "delete")
        assert file.read_bytes() == new


def test_the_size_of_a_held_log(tmp_path: Path) -> None:
    """U4. While anyone holds `log.<fmt>` open, compaction does not make its size smaller; a reader that opens it then
    and begins at byte 0 reads what there is now, and `tail -f` goes on.
    """
    with upkeep(tmp_path) as mount:
        partition = mount.new("keys")
        keyed(partition, mount)
        log = partition / "log.tsv"
        size = log.stat().st_size
        with subprocess.Popen(["tail", "-n", "1", "-f", log], stdout=subprocess.PIPE) as tail:
            try:
                assert tail.stdout is not None
                assert tail.stdout.readline() == b"last\tone\n"
                policy(mount, partition, "compact")
                compacted(mount, partition)
                mount.steer("sweep", partition)
                assert log.stat().st_size == size
                assert log.read_bytes().count(b"\n") == 201
                assert subprocess.run(["tail", "-n", "2", log], capture_output=True, check=True).stdout == (
                    f"k199\tround 2 {'x' * 200}\nlast\tone\n".encode()
                )
                append(log, b"more\tto come\n")
                assert log.stat().st_size == size + 13
                assert log.read_bytes().endswith(b"last\tone\nmore\tto come\n")
                assert tail.stdout.readline() == b"more\tto come\n"
            finally:
                tail.kill()
        eventually(lambda: log.stat().st_size == len(log.read_bytes()), "the size of what is left")
        assert log.stat().st_size < size


def test_status_of_upkeep(tmp_path: Path) -> None:
    """U5. `status.json` tells how dirty a compacted log is, what compaction would do or why it does nothing, and how
    many bytes open files keep from being freed.
    """
    with upkeep(tmp_path) as mount:
        partition = mount.new("keys")
        keyed(partition, mount)
        assert mount.status(partition)["cleaning"] is None
        with opened(partition / "log.tsv") as handle:
            os.pread(handle, 10, 0)
            policy(mount, partition, "compact")
            compacted(mount, partition)
            status = mount.status(partition)
            assert status["cleanup_policy"] == "compact"
            assert status["cleaning"]["eligible"] is False
            assert status["cleaning"]["why_not"] == "everything but the active segment is compacted"
            assert status["cleaning"]["dirty_ratio"] == 0
            assert status["cleaning"]["set_aside"] is None
            assert status["pinned_bytes"] > 100_000
        eventually(lambda: mount.status(partition)["pinned_segments"] == 0, "the last close")


def test_plan(tmp_path: Path) -> None:
    """U6. `topicfs plan` prints what retention and compaction would do now, for a backing directory and for a mount,
    and changes nothing.
    """
    # What the daemon writes by itself, every few seconds, is not the plan's doing.
    never = "3600000"
    still = ["log.cleaner.enable=false", f"replica.high.watermark.checkpoint.interval.ms={never}"]
    still += [f"log.flush.offset.checkpoint.interval.ms={never}", f"log.initial.task.delay.ms={never}"]
    with own_mount(tmp_path, *(f"-o{setting}" for setting in still)) as mount:
        partition = mount.new("keys")
        policy(mount, partition, "compact")
        keyed(partition, mount)
        before = {path: path.stat().st_mtime_ns for path in sorted((mount.backing / "logs").rglob("*"))}
        for place in (mount.path, mount.backing):
            words = [Path(sys.executable).with_name("topicfs"), "plan", "--json", place]
            done = subprocess.run(words, capture_output=True, check=True)
            (plan,) = json.loads(done.stdout)
            assert plan["partition"] == "keys-0"
            assert plan["cleaning"]["eligible"] is True
            assert (plan["cleaning"]["from_offset"], plan["cleaning"]["to_offset"]) == (0, 600)
        after = {path: path.stat().st_mtime_ns for path in sorted((mount.backing / "logs").rglob("*"))}
        assert before == after


def test_records_that_were_not_made_here(tmp_path: Path) -> None:
    """U7. Records that were not made here, as in a log directory that a broker wrote, are neither deleted nor
    compacted until somebody says what holds for them: the cluster's metadata beside them, the topic's `config`, or
    `server.properties`. Where no metadata tells of a topic it may be a compacted one, so `cleanup.policy` has to be
    said as well as `retention.ms`; where the metadata cannot be read, `server.properties` does not say it. `config`,
    `status.json` and `topicfs plan` say so.
    """
    old = 1_600_000_000_000
    small = {"internal.segment.bytes": "300"}
    with Store.open(tmp_path / "backing", create=True) as store:
        for topic in ("orders", "__consumer_offsets"):
            store.create(topic, 0, small).append(Record(b"first", b"key", old))
            for number in range(9):
                store.partition(topic, 0).append(Record(b"v" * 120, b"key", old + number))
    made_here = tmp_path / "made here"
    made_here.mkdir()
    shutil.copytree(tmp_path / "backing", made_here / "backing")
    for path in ((tmp_path / "backing" / "topics").iterdir(), [tmp_path / "backing" / "created-topics"]):
        for each in path:
            each.unlink()
    with upkeep(made_here) as mount:
        eventually(lambda: not (mount / "orders-0/log.txt").stat().st_size, "retention of what was made here")
        assert (mount / "__consumer_offsets-0/log.txt").stat().st_size, (
            "but of Kafka's own topics nothing goes"
        )
    with upkeep(tmp_path) as mount:
        time.sleep(3)
        for name in ("orders-0", "__consumer_offsets-0"):
            assert (mount / name / "log.txt").read_bytes().startswith(b"first\n")
            assert "stay until cleanup.policy and retention.ms are set" in mount.status(mount / name)["kept"]
        config = mount / "topics/orders/config"
        assert [
            line.split() for line in config.read_text().splitlines() if line.startswith("retention.ms")
        ] == [["retention.ms=-1", "#", "kept"]]
        words = [Path(sys.executable).with_name("topicfs"), "plan", "--json", mount.path]
        plans = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
        assert [(each["remove"], each["kept"] is None) for each in plans] == [([], False), ([], False)]
        config.write_text(config.read_text())
        assert mount.status(mount / "orders-0")["kept"] is not None
        config.write_text("retention.ms=1000\n")
        assert "stay until cleanup.policy is set" in mount.status(mount / "orders-0")["kept"]
        config.write_text("cleanup.policy=delete\n")
        assert mount.status(mount / "orders-0")["kept"] is None
        eventually(lambda: not (mount / "orders-0/log.txt").stat().st_size, "retention, as it was said")
        assert (mount / "__consumer_offsets-0/log.txt").read_bytes().startswith(b"first\n")


def test_names_in_a_compacted_log(tmp_path: Path) -> None:
    """U8. Where `cleanup.policy` has `compact`, a name in `sealed/<fmt>` and in `table` is `<base>-<end>.<ext>`,
    `<end>` being where the next segment begins, and `<base>.<ext>` is ENOENT: a listed name never gets a record that
    it did not have before, so who reads each name once meets the last value of each key.
    """
    with upkeep(tmp_path) as mount:
        partition = mount.new("keys")
        sealed, table = partition / "sealed/jsonl", mount / "topics/keys/table/partition=0"
        config = mount / "topics/keys/config"
        config.write_text("parquet.enable=true\nmin.compaction.lag.ms=3600000\n")
        keyed(partition, mount)
        plain = [f"{base:020d}" for base in (0, 200, 400)]
        assert os.listdir(sealed) == [f"{stem}.jsonl" for stem in plain]
        eventually(lambda: os.listdir(table) == [f"{stem}.parquet" for stem in plain], "the table")
        for stem in plain:
            (sealed / f"{stem}.jsonl").read_bytes()
        config.write_text("cleanup.policy=compact\n")
        stems = [f"{base:020d}-{base + 200:020d}" for base in (0, 200, 400)]
        read = seen_once(sealed, set())
        assert sorted(read) == [f"{stem}.jsonl" for stem in stems]
        assert os.listdir(table) == [f"{stem}.parquet" for stem in stems]
        for stem in plain:
            for path in (sealed / f"{stem}.jsonl", table / f"{stem}.parquet"):
                with pytest.raises(FileNotFoundError):
                    path.open()
        assert os.listdir(partition / "segments")[0] == f"{BASE}.txt"
        config.write_text("min.compaction.lag.ms=0\n")
        compacted(mount, partition)
        whole = f"{BASE}-{600:020d}"
        assert os.listdir(sealed) == [f"{whole}.jsonl"]
        eventually(lambda: os.listdir(table) == [f"{whole}.parquet"], "the new table")
        # The second round of cleaning puts records that are new into the segment that begins at 0.
        lines = "".join(f"k{key}\tnewest\n" for key in range(100))
        append(partition / "log.tsv", lines.encode())
        mount.steer("roll", partition)
        append(partition / "log.tsv", b"last\tone\n")
        eventually(lambda: mount.status(partition)["cleaning"]["from_offset"] >= 701, "another compaction")
        assert os.listdir(sealed) == [f"{BASE}-{701:020d}.jsonl"]
        read |= seen_once(sealed, set(read))
        newest: dict[str, tuple[int, str]] = {}
        for each in (line for lines in read.values() for line in lines):
            newest[each["key"]] = max(newest.get(each["key"], (-1, "")), (each["offset"], each["value"]))
        assert newest == {
            each["key"]: (each["offset"], each["value"])
            for each in records(partition / "log.jsonl")
            if each["offset"] < 701
        }
        config.write_text("cleanup.policy=delete\n")
        assert os.listdir(sealed) == [f"{BASE}.jsonl"]
        with pytest.raises(FileNotFoundError):
            (sealed / f"{BASE}-{701:020d}.jsonl").open()


def seen_once(directory: Path, known: set[str]) -> dict[str, list[dict[str, Any]]]:
    """The records of the files whose names are not known."""
    return {name: records(directory / name) for name in os.listdir(directory) if name not in known}


def test_compaction_that_is_asked_for(tmp_path: Path) -> None:
    """U9. Setting `user.topicfs.compact` of `topics` to the name of a topic, or of the root to that of a partition, has
    it compacted next, however little of it is dirty, and `cleaning.asked` in `status.json` is true until that is
    done; where `cleanup.policy` has no `compact`, or by `log.cleaner.enable` or `log.cleaner.threads` nobody compacts,
    it is EPERM. `topicfs compact` sets it, and waits.
    """
    with upkeep(tmp_path) as mount:
        partition = mount.new("keys")
        keyed(partition, mount)
        for directory, name in ((mount / "topics", b"keys"), (mount.path, b"keys-0")):
            with refused(errno.EPERM):
                os.setxattr(directory, "user.topicfs.compact", name)
        append(partition.parent / "topics/keys/config", b"min.cleanable.dirty.ratio=1.0\n")
        policy(mount, partition, "compact")
        assert mount.status(partition)["cleaning"]["eligible"] is False
        for directory, name in ((mount / "topics", b"keys"), (mount.path, b"keys-0")):
            os.setxattr(directory, "user.topicfs.compact", name)
            eventually(lambda: not mount.status(partition)["cleaning"]["asked"], "the end of the compaction")
            compacted(mount, partition)


def test_records_that_are_old_when_they_come(tmp_path: Path) -> None:
    """U10. Records that are older than `retention.ms` when they are appended are taken, and retention removes them
    like all others that old; the daemon's log says how many there are, once for a batch of an inbox and once for
    an open file, and so does `topicfs import`.
    """
    old, new = b'{"value":"old","timestamp":1600000000000}\n', b'{"value":"new"}\n'
    reason = "are older than retention.ms=604800000 of orders"
    with own_mount(tmp_path, "-o", "log.initial.task.delay.ms=600000", keeps=False) as mount:

        def imported(topic: str, content: bytes) -> subprocess.CompletedProcess[str]:
            (tmp_path / "file.jsonl").write_bytes(content)
            command = [sys.executable, "-m", "topicfs.mountd.cli", "import", mount.path, topic]
            return subprocess.run(
                [*command, tmp_path / "file.jsonl"], capture_output=True, text=True, check=False
            )

        (mount / "topics" / "orders").mkdir()
        done = imported("orders", old * 3 + new)
        assert (done.returncode, done.stdout) == (0, f"{tmp_path}/file.jsonl: 4 records are added\n")
        assert f"topicfs: {tmp_path}/file.jsonl: 3 of 4 records {reason}" in done.stderr
        assert "retention.ms=-1, written to topics/orders/config, keeps them" in done.stderr
        assert mount.said().count(reason) == 1
        assert imported("orders", new).stderr == imported("orders", old * 3 + new).stderr == ""
        with (mount / "orders-0" / "log.jsonl").open("ab", buffering=0) as file:
            for _ in range(3):
                assert file.write(new + old) == len(new + old)
        append(mount / "topics" / "orders" / "in.jsonl", old)
        assert [f"{number} records {reason}" in mount.said() for number in ("1 of 2", "1 of 1")] == [True] * 2
        assert mount.said().count(reason) == 3
        # Where no age or another time decides, nothing is lost.
        for topic, setting in (
            ("kept", "retention.ms=-1"),
            ("keyed", "cleanup.policy="),
            ("dated", "message.timestamp.type=LogAppendTime"),
        ):
            (mount / "topics" / topic).mkdir()
            (mount / "topics" / topic / "config").write_text(f"{setting}\n")
            append(mount / f"{topic}-0" / "log.jsonl", old)
            assert imported(topic, old).stderr == ""
        assert mount.said().count("are older than") == 3
        (mount / "topics" / "past").mkdir()
        append(mount / "past-0" / "log.jsonl", old)
        assert len(records(mount / "past-0" / "log.jsonl")) == 1
        mount.stop()
        mount.start()
        eventually(lambda: not records(mount / "past-0" / "log.jsonl"), "retention")
        assert len(records(mount / "orders-0" / "log.jsonl")) == 12
