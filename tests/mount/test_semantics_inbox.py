"""`fs/SEMANTICS.md`: the inbox."""

from __future__ import annotations

import errno
import gzip
import json
import mmap
import os
import stat
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from daemon_mount import (
    DaemonMount,
    append,
    delete,
    eventually,
    opened,
    own_mount,
    refused,
    undelete,
    write_all,
)
from inboxes import Topic, arrow, commit, parquet, spark_job
from shell import output, run

pytest_plugins = ["shared_mount"]

DAY = 86_400_000
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
JOB, OTHER = str(uuid.UUID(int=7)), str(uuid.UUID(int=8))


def test_a_batch(mount: DaemonMount) -> None:
    """I1. All files of a batch are appended when `_SUCCESS` is made in its directory, or touched or opened for
    writing where it is there; the call returns when all of it is on disk and shows, and an error means that
    nothing was appended.
    """
    topic = Topic(mount)
    batch = topic.batch("b1", one="a\nb\n", two="c\n")
    assert topic.values() == []
    with opened(batch / "_SUCCESS", os.O_WRONLY | os.O_CREAT):
        assert topic.values() == ["a", "b", "c"]
    staged = mount.backing / "staging" / topic.name / "inbox" / "b2"
    batch = topic.batch("b2", one="d\n")
    (staged / "_SUCCESS").touch()
    # As Spark does it where an earlier job has left the file.
    with opened(batch / "_SUCCESS", os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
        assert topic.values() == ["a", "b", "c", "d"]
    batch = topic.batch("b3", one="e\n")
    (batch / "bad.jsonl").write_text("no json\n")
    with refused(errno.EINVAL):
        commit(batch)
    assert topic.values() == ["a", "b", "c", "d"]
    assert not (batch / "_SUCCESS").exists()


def test_a_file(mount: DaemonMount, tmp_path: Path) -> None:
    """I2. A file is appended when it is renamed to a name in `inbox` from one that begins with `.` or `_`;
    `mv` brings it from another file system in the same way, and its close(2) gives the error.
    """
    topic = Topic(mount)
    for hidden in (".x", "_x"):
        (topic.inbox / hidden).write_text(f"from {hidden}\n")
        (topic.inbox / hidden).rename(topic.inbox / "x.txt")
    assert topic.values() == ["from .x", "from _x"]
    assert os.listdir(topic.inbox) == []
    elsewhere = tmp_path / "y.tsv"
    elsewhere.write_text("k\tfrom elsewhere\n")
    assert output(f"mv {elsewhere} {topic.inbox}/", tmp_path) == b""
    assert topic.values() == ["from .x", "from _x", "from elsewhere"]
    assert not elsewhere.exists()
    (elsewhere).write_text("no tab\n")
    done = run(f"mv {elsewhere} {topic.inbox}/", tmp_path)
    assert done.returncode
    assert b"Invalid argument" in done.stderr
    assert elsewhere.read_text() == "no tab\n"
    (topic.inbox / ".bad").write_text("no tab\n")
    with refused(errno.EINVAL):
        (topic.inbox / ".bad").rename(topic.inbox / "bad.tsv")
    # The kernel tells the daemon a little later that a file is no longer open, and only then what was refused goes.
    eventually(lambda: os.listdir(topic.inbox) == [".bad"], "what was refused is gone")
    assert len(topic.values()) == 3


def test_a_plain_copy(mount: DaemonMount, tmp_path: Path) -> None:
    """I3. A plain copy to a name in `inbox` that does not begin with `.` or `_` is EPERM, at open or at
    close(2), and nothing is appended: whether all of it has come could not be known. Files of Arrow and of
    Parquet tell that by their end: `cp` appends one, and its close(2) gives the error. While one is copied nobody
    else can open its name for writing, EBUSY; once its close was refused the name is free.
    """
    topic = Topic(mount)
    (tmp_path / "x.txt").write_text("a\n")
    done = run(f"cp x.txt {topic.inbox}/", tmp_path)
    assert done.returncode
    assert b"Operation not permitted" in done.stderr
    assert run(f"echo a > {topic.inbox}/y.txt", tmp_path).returncode
    with refused(errno.EPERM):
        (topic.inbox / "z.txt").write_text("a\n")
    # One that was killed in the middle looks the same.
    subprocess.run(
        ["bash", "-c", f"set -C; exec 3> {topic.inbox}/k.txt; echo a >&3; kill -9 $$"],
        stderr=subprocess.DEVNULL,
        check=False,
    )
    eventually(lambda: os.listdir(topic.inbox) == [], "what was copied is gone")
    for name, data in (("x.parquet", parquet(value=["p"])), ("x.arrow", arrow(value=["a"]))):
        (tmp_path / name).write_bytes(data[:-1])
        assert b"Operation not permitted" in run(f"cp {name} {topic.inbox}/", tmp_path).stderr
        (tmp_path / name).write_bytes(
            parquet(colour=["blue"]) if name == "x.parquet" else arrow(colour=["blue"])
        )
        assert b"Invalid argument" in run(f"cp {name} {topic.inbox}/", tmp_path).stderr
        # What is written out of order may have its end before the rest, and a shell does not look at close(2).
        with (
            refused(errno.EPERM),
            opened(topic.inbox / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor,
        ):
            os.pwrite(descriptor, data[100:], 100)
            os.pwrite(descriptor, data[:100], 0)
            os.close(os.dup(descriptor))
        (tmp_path / name).write_bytes(data)
        assert run(f"cat {name} > {topic.inbox}/{name}", tmp_path).returncode
        with (
            refused(errno.EPERM),
            opened(topic.inbox / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor,
        ):
            for other in (os.O_WRONLY, os.O_RDWR | os.O_TRUNC):
                with refused(errno.EBUSY):
                    os.open(topic.inbox / name, other)
            with refused(errno.EBUSY):
                os.truncate(topic.inbox / name, 0)
            os.write(descriptor, data[:-1])
    assert topic.values() == []
    assert output(f"cp x.parquet x.arrow {topic.inbox}/", tmp_path) == b""
    assert topic.values() == ["a", "p"]
    assert os.listdir(topic.inbox) == []


def test_names_of_files(mount: DaemonMount) -> None:
    """I4. Names end in `.txt`, `.tsv`, `.jsonl` or `.json`, or in one of these and `.gz`, or in `.arrow` or
    `.parquet`; any other is EINVAL when a file gets it, and so are the last two where pyarrow is not
    installed. Lines are those of `in.<fmt>`, save that a last line needs no newline.
    """
    topic = Topic(mount)
    batch = topic.batch("b", a="txt\n\nlast")
    (batch / "b.tsv").write_text("k\ttsv")
    (batch / "c.jsonl").write_text('{"key":"k","value":"jsonl","timestamp":5,"headers":[]}\n')
    (batch / "d.json").write_text('{"value":"json"}')
    (batch / "e.txt.gz").write_bytes(gzip.compress(b"gz\n"))
    (batch / "f.json.gz").write_bytes(gzip.compress(b'{"value":"json.gz"}\n'))
    (batch / "g.txt").touch()
    (batch / "h.snappy.parquet").write_bytes(parquet(value=["parquet"], key=["k"]))
    (batch / "i.arrow").write_bytes(arrow(value=[b"arrow"]))
    for name in ("x.csv", "x.orc", "x", "x.gz", "x.parquet.gz"):
        with refused(errno.EINVAL):
            (batch / name).write_text("x")
        with refused(errno.EINVAL):
            (batch / "a.txt").rename(batch / name)
    commit(batch)
    assert topic.values() == sorted(
        ["txt", "", "last", "tsv", "jsonl", "json", "gz", "json.gz", "parquet", "arrow"]
    )
    found = {record["value"]: record for record in topic.records()}
    assert found["tsv"]["key"] == found["jsonl"]["key"] == found["parquet"]["key"] == "k"
    assert found["jsonl"]["timestamp"] == 5
    batch = topic.batch("c")
    (batch / "x.txt.gz").write_bytes(b"not gzip at all")
    with refused(errno.EINVAL):
        commit(batch)


def test_order_and_partitions(mount: DaemonMount) -> None:
    """I5. Files are taken in the order of the part and file numbers in their names as Spark gives them, then
    by name; records go where `in.<fmt>` sends them, keyless ones a run of lines or rows at a time, and those
    of files in `partition=<n>` to that partition.
    """
    topic = Topic(mount)
    batch = topic.batch("b", b="6\n", a="5\n")
    numbers = [(10, 0), (2, 11), (2, 2), (0, 0)]
    for value, (part, file) in zip("4321", numbers, strict=True):
        name = f"part-{part:05}-{uuid.uuid4()}-c{file:03}.json"
        (batch / name).write_text(json.dumps({"key": "same", "value": value}))
    (batch / "partition=1").mkdir()
    (batch / "partition=1" / "c.txt").write_text("here\n")
    (batch / "c.jsonl").write_text('{"partition":1,"value":"named"}\n{"partition":0,"value":"too"}\n')
    commit(batch)
    keyed = [record for record in topic.records() if record["key"] == "same"]
    assert [record["value"] for record in keyed] == ["1", "2", "3", "4"]
    append(topic.inbox.parent / "in.jsonl", b'{"key":"same","value":"in"}\n')
    assert {r["partition"] for r in topic.records() if r["key"] == "same"} == {keyed[0]["partition"]}
    where = {record["value"]: record["partition"] for record in topic.records()}
    assert (where["here"], where["named"], where["too"]) == (1, 1, 0)
    for name, text in (("c", '{"partition":2,"value":"x"}\n'), ("d", "")):
        batch = topic.batch(name)
        (batch / "x.jsonl").write_text(text)
        if not text:
            (batch / "partition=2").mkdir()
            (batch / "partition=2" / "x.txt").write_text("x\n")
        with refused(errno.EINVAL):
            commit(batch)
    runs = Topic(mount)
    batch = runs.batch("b", x="".join(f"{number:07}\n" for number in range(400_000)))
    commit(batch)
    for number in (0, 1):
        values = (runs.partition(number) / "log.txt").read_text().split()
        assert len(values) > 100_000
        assert values == sorted(values)
    assert len(runs.values()) == 400_000


def test_isolation(mount: DaemonMount) -> None:
    """I6. In each partition a batch shows all at once, and until it does, nothing that was appended behind
    its first record shows either.
    """
    topic = Topic(mount)
    batch = topic.batch("b")
    with (batch / "x.jsonl").open("w") as file:
        for number in range(60_000):
            file.write(json.dumps({"value": "x" * 100, "partition": number % 2}) + "\n")
    seen: set[tuple[int, int]] = set()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            for number in (0, 1):
                found = (topic.partition(number) / "log.txt").read_bytes().count(b"\n")
                seen.add((number, found))

    reader = threading.Thread(target=look)
    reader.start()
    try:
        commit(batch)
        eventually(lambda: {(0, 30_000), (1, 30_000)} <= seen, "both partitions show it")
    finally:
        stop.set()
        reader.join()
    assert {count for _, count in seen} <= {0, 30_000}


def test_known_names(mount: DaemonMount, tmp_path: Path) -> None:
    """I7. A batch whose name was committed before, and that holds the same records again or none, is taken
    and discarded: every call does well, save for the mkdir of I17, and nothing is appended. Its files may be
    others, in another order or format, or compressed; of what a version before this one has committed only
    the name is compared. So is a file of the same name, size, modification time and content. The newest
    10,000 names of a topic are remembered, over restarts, until the topic is deleted.
    """
    with own_mount(tmp_path) as served:
        topic = Topic(served, "t")
        batch = topic.batch("q1-7", x="a\nb\n", y="c\n")
        commit(batch)
        # As Spark's overwrite does it.
        for files in ({"z": "b\nc\na"}, {"x": "a\n", "y": "c\n", "z": "b\n", "empty": ""}, {}):
            with refused(errno.ENOTEMPTY):
                os.rmdir(batch)
            for name in os.listdir(batch):
                (batch / name).unlink()
            batch.rmdir()
            topic.batch("q1-7", **files)
            commit(batch)
            assert os.listdir(batch) == ["_SUCCESS"]
        # And its append.
        (batch / "z.txt.gz").write_bytes(gzip.compress(b"c\nb\na\n"))
        with opened(batch / "_SUCCESS", os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
            pass
        for name, data in (
            ("x.parquet", parquet(value=["c", "a", "b"])),
            ("x.arrow", arrow(value=["b", "c", "a"])),
        ):
            (batch / name).write_bytes(data)
            commit(batch)
        (batch / "y.jsonl").write_text('{"value":"b"}\n{"value":"a"}')
        (batch / "x.parquet").write_bytes(parquet(value=["c"]))
        commit(batch)
        assert topic.values() == ["a", "b", "c"]
        (tmp_path / "x.txt").write_text("file\n")
        for _ in range(2):
            assert (
                output(f"cp -p {tmp_path}/x.txt {tmp_path}/y.txt; mv -f y.txt {topic.inbox}/", tmp_path)
                == b""
            )
        assert topic.values() == ["a", "b", "c", "file"]
        os.utime(tmp_path / "x.txt", ns=(5, 5))
        assert output(f"cp -p {tmp_path}/x.txt {tmp_path}/y.txt; mv -f y.txt {topic.inbox}/", tmp_path) == b""
        assert topic.values() == ["a", "b", "c", "file", "file"]
        assert served.stop() == 0
        with (served.backing / "staging/t/committed").open("a") as names:
            names.write('["batch:old", "3:00000000000000000000000000000000"]\n')
        served.start()
        (batch / "w.txt").write_text("a\nb\nc\n")
        commit(batch)
        commit(topic.batch("old", x="whatever\n"))
        assert topic.values() == ["a", "b", "c", "file", "file"]
        delete(served / "topics/t")
        topic = Topic(served, "t")
        commit(topic.batch("q1-7", x="new\n"))
        assert topic.values() == ["new"]


def test_bad_lines(mount: DaemonMount) -> None:
    """I8. A bad line or row in any file of a batch refuses it: EINVAL, or EMSGSIZE where a record is too
    large, and the reason with file and line or row is in the log and in the `status.json` of the topic's
    partitions. The files stay; when they are mended, making `_SUCCESS` commits them.
    """
    topic = Topic(mount)
    topic.configure("max.message.bytes=1000")
    batch = topic.batch("bad", a="good\n")
    (batch / "b.jsonl").write_text('{"value":"good"}\n{"value":"good"}\n{"value":3}\n')
    with refused(errno.EINVAL):
        commit(batch)
    words = "bad/b.jsonl: line 3: byte 10: expected a string or null"
    assert words in mount.said()
    for number in (0, 1):
        assert words in mount.status(topic.partition(number))["last_refusal"]["reason"]
    (batch / "b.jsonl").write_text('{"value":"good"}\n{"value":"%s"}\n' % ("x" * 2000))
    with refused(errno.EMSGSIZE):
        commit(batch)
    assert "bad/b.jsonl: line 2: " in mount.status(topic.partition())["last_refusal"]["reason"]
    (batch / "b.jsonl").unlink()
    for name, write in (("b.parquet", parquet), ("b.arrow", arrow)):
        for wrong, number, words in (
            (
                {"value": ["x", "y", "z"], "partition": [0, 1, 2]},
                errno.EINVAL,
                "row 3: partition 2 is not one of",
            ),
            ({"value": ["x", "x" * 2000]}, errno.EMSGSIZE, "row 2: a record exceeds"),
        ):
            (batch / name).write_bytes(write(**wrong))
            with refused(number):
                commit(batch)
            assert f"bad/{name}: {words}" in mount.status(topic.partition())["last_refusal"]["reason"]
        (batch / name).unlink()
    assert topic.values() == []
    assert sorted(os.listdir(batch)) == ["a.txt"]
    (batch / "b.jsonl").write_text('{"value":"mended"}\n')
    commit(batch)
    assert topic.values() == ["good", "mended"]
    topic.configure("cleanup.policy=compact")
    keyless = topic.batch("keyless", a="no key\n")
    with refused(errno.EINVAL):
        commit(keyless)


def test_scratch(mount: DaemonMount) -> None:
    """I9. Names that begin with `.` or `_`, and batches until they are committed, are files as on any disk:
    mkdir, create, write anywhere, truncate, rename of files and directories, unlink, rmdir with ENOTEMPTY,
    read; chmod, chown and touch do well. `inbox` itself cannot be removed.
    """
    topic = Topic(mount)
    (topic.inbox / "b").mkdir()
    for place in (topic.inbox / ".scratch", topic.inbox / "b" / "_temporary"):
        deep = place / "0" / "task"
        deep.mkdir(parents=True)
        file = deep / "x.txt"
        with opened(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as descriptor:
            os.close(os.dup(descriptor))
            os.pwrite(descriptor, b"behind", 6)
            os.pwrite(descriptor, b"before", 0)
            assert os.fstat(descriptor).st_size == 12
            assert os.pread(descriptor, 100, 0) == b"beforebehind"
            os.ftruncate(descriptor, 9)
            os.fsync(descriptor)
        assert file.stat().st_size == 9
        append(file, b"appended")
        assert file.read_bytes() == b"beforebehappended"
        os.truncate(file, 6)
        file.chmod(0o600)
        os.chown(file, os.getuid(), os.getgid())
        os.utime(file, ns=(7_000, 7_000))
        assert file.stat().st_mtime_ns == 7_000
        (topic.inbox / "_other").mkdir()
        for refusal in (os.rmdir, lambda path: os.rename(topic.inbox / "_other", path)):
            with refused(errno.ENOTEMPTY):
                refusal(deep)
        (topic.inbox / "_other").rmdir()
        number = file.stat().st_ino
        deep.rename(place / "0" / "done")
        moved = place / "0" / "done" / "x.txt"
        assert moved.read_bytes() == b"before"
        assert moved.stat().st_ino == number
        assert not deep.exists()
        big = os.urandom(3 << 20)
        with opened(place / "big.txt", os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
            write_all(descriptor, big)
        with refused(errno.EEXIST):
            os.open(place / "big.txt", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        assert (place / "big.txt").read_bytes() == big
        assert sorted(os.listdir(place)) == ["0", "big.txt"]
        with opened(place / "big.txt") as descriptor:
            (place / "big.txt").unlink()
            assert os.pread(descriptor, 10, 0) == big[:10]
        moved.unlink()
        os.removedirs(moved.parent) if place.name == ".scratch" else os.rmdir(moved.parent)
    with refused(errno.EPERM):
        os.rmdir(topic.inbox)
    with refused(errno.EPERM):
        os.rename(topic.inbox / "b", topic.partition() / "b")
    with refused(errno.EPERM):
        os.rename(topic.partition() / "log.txt", topic.inbox / "log.txt")
    with refused(errno.EXDEV):
        os.rename(topic.inbox / "b", Topic(mount).inbox / "b")
    assert output("rm -r b", topic.inbox) == b""
    assert topic.values() == []


def test_after_a_commit(mount: DaemonMount) -> None:
    """I10. When a batch is committed its files are gone, and their space is free; `inbox` lists what is not
    committed.
    """
    topic = Topic(mount)
    staged = mount.backing / "staging" / topic.name
    batch = topic.batch("b", x="x" * 100 + "\n" + "y\n" * 1_000_000)
    topic.batch("c", x="pending\n")
    used = sum(file.stat().st_size for file in staged.rglob("*"))
    assert sorted(os.listdir(topic.inbox)) == ["b", "c"]
    commit(batch)
    assert os.listdir(topic.inbox) == ["c"]
    assert os.listdir(batch) == ["_SUCCESS"]
    assert sum(file.stat().st_size for file in staged.rglob("*")) < used - 2_000_000
    # Names that the kernel remembers do not stand in the way.
    (batch / "x.txt").write_text("again\n")
    assert (batch / "x.txt").read_text() == "again\n"


# Steps, behind a new producer and Ongoing: note, two appends, PrepareCommit; two markers, name, files, note, its end.
@pytest.mark.parametrize("step", range(2, 12))
def test_crashes(tmp_path: Path, step: int) -> None:
    """I11. After `kill -9` of the daemon at any step of a commit all of the batch is there or nothing, before
    anybody can read; committed again under its name, it is there once.
    """
    served = DaemonMount(tmp_path)
    try:
        served.start()
        with served.watched():
            topic = Topic(served, "t")
            batch = topic.batch("b")
            (batch / "x.jsonl").write_text('{"partition":0,"value":"a"}\n{"partition":1,"value":"b"}\n')
            served.steer("die_in_commit", topic.partition(), step)
            with refused(errno.ECONNABORTED, errno.ENOTCONN):
                commit(batch)
            served.process.wait()
            served.process = None
            served.start()
            expected = ["a", "b"] if step > 5 else []
            assert topic.values() == expected
            assert os.listdir(topic.inbox) == ([] if expected else ["b"])
            if not batch.exists():
                batch.mkdir()
            (batch / "x.jsonl").write_text('{"partition":0,"value":"a"}\n{"partition":1,"value":"b"}\n')
            commit(batch)
            assert topic.values() == ["a", "b"]
            append(topic.partition() / "log.txt", b"c\n")
            assert topic.values() == ["a", "b", "c"]
        assert served.stop() == 0
        assert served.alarms() == []
    finally:
        served.clear()


def test_jobs_without_a_batch(mount: DaemonMount) -> None:
    """I12. Files that a Spark job puts into `inbox` itself, without a batch's directory, are appended when
    `inbox/_SUCCESS` is made, and known by the job in their names.
    """
    topic = Topic(mount)
    spark_job(topic.inbox, JOB)
    assert topic.values() == ["0 of 7", "1 of 7"]
    assert os.listdir(topic.inbox) == []
    spark_job(topic.inbox, JOB)
    assert topic.values() == ["0 of 7", "1 of 7"]
    spark_job(topic.inbox, OTHER)
    assert topic.values() == ["0 of 7", "0 of 8", "1 of 7", "1 of 8"]


def test_two_jobs(mount: DaemonMount) -> None:
    """I13. Two Spark jobs in one directory are EBUSY, and neither is committed, whoever of the two makes
    `_SUCCESS`.
    """
    topic = Topic(mount)
    (topic.inbox / "b").mkdir()
    for directory in (topic.inbox, topic.inbox / "b"):
        one, other = str(uuid.uuid4()), str(uuid.uuid4())
        spark_job(directory, one, commits=False)
        with refused(errno.EBUSY):
            (directory / "_temporary" / "0" / f"part-00000-{other}-c000.txt").write_text("x\n")
        assert "write into one directory" in mount.said()
        for task in (directory / "_temporary" / "0").glob("task_*"):
            for file in task.iterdir():
                file.rename(directory / file.name)
        with refused(errno.EBUSY):
            commit(directory)
        output(f"rm -r {directory}/_temporary {directory}/part-*", directory)
        spark_job(directory, str(uuid.uuid4()))
    assert len(topic.values()) == 4


def test_what_spark_has_and_an_inbox_has_not(mount: DaemonMount) -> None:
    """I14. `_spark_metadata`, which the sink of a stream makes, is EPERM; a directory of partitionBy is EINVAL
    unless it is `partition=<n>` in a batch; any other directory in a batch is EPERM.
    """
    topic = Topic(mount)
    batch = topic.batch("b")
    (batch / "_temporary").mkdir()
    (topic.inbox / "_temporary").mkdir()
    for directory in (topic.inbox, batch):
        with refused(errno.EPERM):
            (directory / "_spark_metadata").mkdir()
        for name in ("day=1", "partition=x", "key=a"):
            for place in (directory, directory / "_temporary"):
                with refused(errno.EINVAL):
                    (place / name).mkdir()
    with refused(errno.EINVAL):
        (topic.inbox / "_temporary" / "partition=1").mkdir()
    (batch / "_temporary" / "partition=1").mkdir()
    (batch / "_temporary" / "partition=1").rename(batch / "partition=1")
    with refused(errno.EPERM):
        (batch / "sub").mkdir()


def test_leftovers(tmp_path: Path) -> None:
    """I15. What is not committed stays over a restart, since its writer may have outlived the daemon; seven
    days after its last change it is removed, and with its topic at once, with which it can be taken back. A
    clock that is set while the mount is there changes nothing of that time; what lies there at a start is as
    old as its date says.
    """
    with own_mount(tmp_path) as served:
        topic = Topic(served, "t")
        batch = topic.batch("b", x="a\n")
        spark_job(batch, JOB, commits=False)
        served.kill()
        served.start()
        assert len(list(batch.rglob("part-*"))) == 2
        assert served.steer("sweep_inboxes", topic.partition(), 0) == 0
        for set_by in (8 * DAY, -16 * DAY, 8 * DAY):
            served.steer("set_clock", topic.partition(), set_by)
            assert served.steer("sweep_inboxes", topic.partition(), 60_000) == 0
        assert served.steer("sweep_inboxes", topic.partition(), 6 * DAY) == 0
        assert len(list(batch.rglob("part-*"))) == 2
        assert served.steer("sweep_inboxes", topic.partition(), 7 * DAY + 60_000) == 1
        assert os.listdir(topic.inbox) == []
        topic.batch("c", x="a\n")
        delete(served / "topics/t")
        assert list((served.backing / "staging").iterdir()) == []
        undelete(served / "topics/t")
        assert (topic.inbox / "c/x.txt").read_text() == "a\n"


def test_other_lines_under_a_known_name(tmp_path: Path) -> None:
    """I16. A batch with other records under a name that was committed before is EEXIST: nothing is appended,
    its files stay, and the reason is in the log and in the `status.json` of the topic's partitions.
    """
    with own_mount(tmp_path) as served:
        topic = Topic(served, "t")
        commit(topic.batch("q", x="a\nb\n"))
        batch = topic.inbox / "q"
        others = ("a\nc\n", "a\n", "a\nb\nb\n", "a\na\n", "ab\n\n")
        for other in others:
            (batch / "x.txt").write_text(other)
            with refused(errno.EEXIST):
                commit(batch)
            assert b"File exists" in run(f"touch {batch}/_SUCCESS", tmp_path).stderr
            for number in (0, 1):
                reason = served.status(topic.partition(number))["last_refusal"]["reason"]
                assert "batch:q was committed before with other records" in reason
            assert "batch:q was committed before with other records" in served.said()
            assert (batch / "x.txt").read_text() == other
            assert os.listdir(topic.inbox) == ["q"]
        (batch / "x.txt").unlink()
        for name in ("x.tsv", "partition=1/x.txt"):
            # Equal bytes that mean another thing.
            (batch / name).parent.mkdir(exist_ok=True)
            (batch / name).write_text("a\nb\n" if name.endswith("txt") else "a\tb\n")
            with refused(errno.EEXIST):
                commit(batch)
            (batch / name).unlink()
        (batch / "partition=1").rmdir()
        assert topic.values() == ["a", "b"]
        served.kill()
        served.start()
        (batch / "x.txt").write_text("c\n")
        with refused(errno.EEXIST):
            commit(batch)
        assert served.steer("sweep_inboxes", topic.partition(), DAY) == 0
        assert (batch / "x.txt").read_text() == "c\n"
        (batch / "_SUCCESS").unlink()
        batch.rename(topic.inbox / "r")
        commit(topic.inbox / "r")
        assert topic.values() == ["a", "b", "c"]


def test_a_batch_that_comes_again_by_a_rename(mount: DaemonMount, tmp_path: Path) -> None:
    """I17. The emptied directory of a committed batch is there for ten minutes more, with `_SUCCESS` in
    it, and is not listed; a directory that is renamed to its name takes its place, also where `mv`
    would put it into that one. For mkdir(2) of that name the kernel itself says EEXIST, and
    `cp -r work inbox/q` would put `work` into it, which is EPERM; `mkdir -p`, `cp -rT work inbox/q`, and
    both behind `rm -rf inbox/q`, do well.
    """
    topic = Topic(mount)
    commit(topic.batch("q", x="a\n"))
    (tmp_path / "work").mkdir()
    batch, work = topic.inbox / "q", topic.inbox / ".work"

    def put(text: str) -> None:
        work.mkdir()
        (work / "x.txt").write_text(text)

    for move in (
        lambda: os.rename(work, batch),
        lambda: output("mv .work q", topic.inbox),
        lambda: output("mv -T .work q", topic.inbox),
        lambda: os.rename(work / "x.txt", batch / "x.txt"),
        lambda: output("mkdir -p q; cp .work/x.txt q", topic.inbox),
        lambda: output("cp -r .work/. q", topic.inbox),
        lambda: output("cp -rT .work q", topic.inbox),
        lambda: output("rm -rf q; mkdir q; cp .work/x.txt q", topic.inbox),
        lambda: output("rm -rf q; cp -r .work q", topic.inbox),
    ):
        assert os.listdir(topic.inbox) == []
        assert os.listdir(batch) == ["_SUCCESS"]
        put("a\n")
        move()
        assert os.listdir(batch)[-1] == "x.txt"
        commit(batch)
        assert topic.values() == ["a"]
        output("rm -rf .work", topic.inbox)
        with refused(errno.EEXIST):
            batch.mkdir()
        assert b"q/work': Operation not permitted" in run(f"cp -r {tmp_path}/work q", topic.inbox).stderr
    put("b\n")
    output("mv .work q", topic.inbox)
    with refused(errno.EEXIST):
        commit(batch)
    put("c\n")
    with refused(errno.ENOTEMPTY):
        work.rename(batch)
    output("rm -r q; mv .work q", topic.inbox)
    assert (batch / "x.txt").read_text() == "c\n"
    (batch / "x.txt").write_text("a\n")
    commit(batch)
    assert topic.values() == ["a"]


@contextmanager
def letting_go(mount: DaemonMount, topic: Topic) -> Iterator[None]:
    """Commits that are held go on in the end."""
    try:
        yield
    finally:
        mount.steer("release_commits", topic.partition())


def test_files_that_are_not_closed(mount: DaemonMount, tmp_path: Path) -> None:
    """I18. A file that is open for writing, or mapped so, is not appended: what asks for it is EBUSY,
    and nothing is appended. So is a change of a batch while it is committed.
    """
    topic = Topic(mount)
    batch = topic.batch("b", x="whole\n")
    hidden = topic.inbox / ".hidden"
    hidden.write_text("hidden\n")

    def refuse() -> None:
        with refused(errno.EBUSY):
            commit(batch)
        assert "b/x.txt is open for writing" in mount.status(topic.partition())["last_refusal"]["reason"]
        with refused(errno.EBUSY):
            hidden.rename(topic.inbox / "y.txt")
        assert topic.values() == []

    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND):
        with opened(batch / "x.txt", flags), opened(hidden, flags):
            refuse()
    pages = []
    for file in (batch / "x.txt", hidden):
        with opened(file, os.O_RDWR) as descriptor:
            pages.append(mmap.mmap(descriptor, 0))
            pages[-1][0:1] = b"W"
    refuse()
    for page in pages:
        page.close()
    # As in a shell: a forked child's close is not the last one.
    with opened(batch / "x.txt", os.O_WRONLY) as descriptor, opened(hidden, os.O_WRONLY):
        subprocess.run(["true"], pass_fds=[descriptor], check=True)
        refuse()
    with opened(batch / "x.txt"):
        commit(batch)
    hidden.rename(topic.inbox / "y.txt")
    assert topic.values() == ["Whole", "Widden"]
    batch = topic.batch("slow", x="slow\n")
    # An earlier one, which is touched again: while a file is made, the kernel lets nobody change its directory.
    (mount.backing / "staging" / topic.name / "inbox" / "slow" / "_SUCCESS").touch()
    mount.steer("hold_commits", topic.partition())
    with ThreadPoolExecutor() as pool, letting_go(mount, topic):
        done = pool.submit(commit, batch)
        eventually(lambda: mount.steer("commits_under_way", topic.partition()), "it has begun")
        late = topic.inbox / ".late.txt"
        late.write_text("late\n")
        for change in (
            lambda: (batch / "x.txt").write_text("other\n"),
            lambda: os.truncate(batch / "x.txt", 0),
            (batch / "x.txt").unlink,
            (batch / "z.txt").touch,
            lambda: late.rename(batch / "late.txt"),
        ):
            with refused(errno.EBUSY):
                change()
    done.result()
    assert topic.values() == ["Whole", "Widden", "slow"]
    assert late.read_text() == "late\n"


def test_what_is_no_file(mount: DaemonMount, tmp_path: Path) -> None:
    """I19. No symbolic link, FIFO or device that somebody puts under BACKING/staging is followed or
    read: opening it is EPERM, and so is committing a batch that holds it.
    """
    topic = Topic(mount)
    secret = tmp_path / "secret.txt"
    secret.write_text("secret\n")
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "x.txt").write_text("secret\n")
    topic.batch("b", x="x\n")
    staged = mount.backing / "staging" / topic.name / "inbox"
    plants = {
        "a link": lambda path: path.symlink_to(secret),
        "a link to a directory": lambda path: path.symlink_to(tmp_path / "directory"),
        "a FIFO": os.mkfifo,
        "a device": lambda path: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5)),
    }
    for kind, plant in plants.items():
        for place in (staged / "b" / "y.txt", staged / ".y", staged / "c"):
            if kind == "a device" and os.getuid():
                continue
            plant(place)
            shown = topic.inbox / place.relative_to(staged)
            for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_TRUNC):
                with refused(errno.EPERM):
                    os.open(shown, flags)
            with refused(errno.EPERM):
                os.truncate(shown, 0)
            with refused(errno.ENOTDIR):
                os.listdir(shown)
            with refused(errno.ENOTDIR):
                (shown / "x.txt").touch()
            with refused(errno.EPERM):
                commit(topic.inbox / "b") if "b" in shown.parts else os.rename(shown, topic.inbox / "y.txt")
            shown.unlink()
    assert topic.values() == []
    assert secret.read_text() == "secret\n"
    assert os.listdir(tmp_path / "directory") == ["x.txt"]
    commit(topic.inbox / "b")
    assert topic.values() == ["x"]


@pytest.mark.parametrize("by_command", [False, True], ids=["SIGTERM", "umount --force"])
def test_a_commit_while_the_mount_goes_away(tmp_path: Path, by_command: bool) -> None:
    """I20. A commit that has begun when the daemon is told to unmount is brought to its end, and its
    caller hears so; one that is asked for later is ESHUTDOWN, or fails with the mount, and nothing is
    appended.
    """
    served = DaemonMount(tmp_path)
    try:
        served.start()
        with served.watched():
            topic = Topic(served, "t")
            batches = [topic.batch(name, x=f"{name}\n") for name in ("touched", "created", "late")]
            (topic.inbox / ".renamed").write_text("renamed\n")
            (tmp_path / "moved.txt").write_text("moved\n")
            served.steer("hold_commits", topic.partition())
            asked: list[list[str | Path]] = [
                ["touch", batches[0] / "_SUCCESS"],
                ["bash", "-c", f"echo > {batches[1]}/_SUCCESS"],
                ["mv", tmp_path / "moved.txt", topic.inbox],
                # The last: while a file is renamed, the kernel lets nobody else change the directory.
                ["mv", topic.inbox / ".renamed", topic.inbox / "renamed.txt"],
            ]
            pool, running = ThreadPoolExecutor(len(asked) + 1), []
            for words in asked:
                running.append(pool.submit(subprocess.run, words, capture_output=True, check=False))
                eventually(
                    lambda: served.steer("commits_under_way", topic.partition()) == len(running),
                    "it has begun",
                )
            plain = served.umount()
            assert (plain.returncode, "nothing was done, as it is in use by" in plain.stderr) == (1, True)
            if by_command:
                ending = pool.submit(served.umount, "--force")
            else:
                served.process.terminate()
            eventually(lambda: served.steer("commits_end", topic.partition()), "it is told")
            with refused(errno.ESHUTDOWN):
                commit(batches[2])
            served.steer("release_commits", topic.partition())
            results = [each.result() for each in running]
            assert [(each.returncode, each.stderr) for each in results] == [(0, b"")] * len(asked)
            if by_command:
                assert ending.result().returncode == 0
            else:
                assert served.process.wait() == 0
                served.process = None
            pool.shutdown()
            served.start()
            assert topic.values() == ["created", "moved", "renamed", "touched"]
            assert os.listdir(topic.inbox) == ["late"]
            commit(topic.inbox / "late")
            assert len(topic.values()) == 5
        assert served.stop() == 0
        assert served.alarms() == []
    finally:
        served.clear()


def test_a_batch_without_files(mount: DaemonMount) -> None:
    """I21. A batch without any file of records is ENODATA, with the reason in the log and in the `status.json` of
    the topic's partitions, unless its name was committed before: nothing is appended, and its name stays free. An
    empty file is a file of records. So is `inbox/_SUCCESS` made or opened for writing where no job has put a file.
    """
    topic = Topic(mount)
    batch = topic.batch("b")
    staged = mount.backing / "staging" / topic.name / "inbox"

    def refuse(directory: Path, shown: str) -> None:
        """No way to make or open `_SUCCESS` does well there."""
        for flags in (os.O_WRONLY | os.O_CREAT | os.O_EXCL, os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
            with refused(errno.ENODATA):
                os.open(directory / "_SUCCESS", flags)
            assert not (directory / "_SUCCESS").exists()
        assert b"No data available" in run(f"touch {directory}/_SUCCESS", directory).stderr
        words = f"{shown}: expected files of records, found none"
        assert words in mount.said()
        for number in (0, 1):
            assert words in mount.status(topic.partition(number))["last_refusal"]["reason"]

    refuse(batch, "b")
    # As a Spark job whose executors have written elsewhere: nothing but hidden names, and an empty `_temporary`.
    (batch / "_temporary").mkdir()
    (batch / ".part-00000.txt.crc").touch()
    (batch / "partition=1").mkdir()
    refuse(batch, "b")
    refuse(topic.inbox, "inbox")
    (staged / "b" / "_SUCCESS").touch()
    (staged / "_SUCCESS").touch()
    for directory in (batch, topic.inbox):
        with refused(errno.ENODATA):
            os.open(directory / "_SUCCESS", os.O_WRONLY | os.O_TRUNC)
    (staged / "b" / "_SUCCESS").unlink()
    assert topic.values() == []
    assert os.listdir(topic.inbox) == ["b"]
    # The run that has its files is taken under the same name.
    output("rm -r b", topic.inbox)
    commit(topic.batch("b", x="a\n"))
    assert topic.values() == ["a"]
    commit(topic.inbox / "b")
    commit(topic.batch("empty", x=""))
    assert os.listdir(topic.inbox) == []
    spark_job(topic.inbox, JOB)
    # touch(1) sets the times of what it has made, while another batch waits.
    topic.batch("waits", x="w\n")
    spark_job(topic.inbox, OTHER, commits=False)
    for task in (topic.inbox / "_temporary" / "0").glob("task_*"):
        for file in task.iterdir():
            file.rename(topic.inbox / file.name)
    (staged / "_SUCCESS").unlink()
    assert output("touch _SUCCESS", topic.inbox) == b""
    assert topic.values() == ["0 of 7", "0 of 8", "1 of 7", "1 of 8", "a"]


def test_batches_that_wait(mount: DaemonMount) -> None:
    """I22. What lies in an inbox and is not committed is told, with the number of its files and the time of the last
    change in it: in the `status.json` of the topic's partitions under `inbox`, the twenty that were left alone for
    the longest by their names, in `metrics`, and by `topicfs plan`.
    """
    topic = Topic(mount)
    nothing = {"batches": 0, "files": 0, "oldest": []}
    assert mount.status(topic.partition())["inbox"] == nothing
    # A job of `mapreduce.fileoutputcommitter.marksuccessfuljobs=false`.
    batch = topic.batch("b", x="a\n", y="b\n")
    topic.batch("refused")
    with refused(errno.ENODATA):
        commit(topic.inbox / "refused")
    for number in (0, 1):
        found = mount.status(topic.partition(number))["inbox"]
        assert (found["batches"], found["files"]) == (2, 2)
        waiting = {each["directory"]: each for each in found["oldest"]}
        assert (waiting["b"]["files"], waiting["refused"]["files"]) == (2, 0)
        assert abs(waiting["b"]["since_ms"] / 1000 - (batch / "y.txt").stat().st_ctime) < 1
    metrics = (mount / "metrics").read_text()
    assert f'topicfs_inbox_waiting_files{{topic="{topic.name}"}} 2.0' in metrics
    said = output(f"{Path(sys.executable).with_name('topicfs')} plan {mount.path}", mount.path).decode()
    (line,) = (line for line in said.splitlines() if line.startswith(f"{topic.name}: not appended"))
    assert "b (2 files, since 20" in line
    assert "refused (0 files" in line
    commit(batch)
    (topic.inbox / "refused").rmdir()
    assert mount.status(topic.partition())["inbox"] == nothing
    assert f'"{topic.name}"}}' not in "".join(
        line for line in (mount / "metrics").read_text().splitlines(True) if "inbox" in line
    )
