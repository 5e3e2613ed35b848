"""`fs/SEMANTICS.md`: reading, committed records only, what never changes under a reader."""

from __future__ import annotations

import mmap
import os
import random
import subprocess
from pathlib import Path

import pytest
from daemon_mount import DaemonMount, append, eventually, opened

pytest_plugins = ["shared_mount"]

FORMATS = ("txt", "tsv", "jsonl")


def letters(mount: DaemonMount, segments: int = 3) -> Path:
    """A partition with two records in each segment: a, b | c, d | …, the last segment active."""
    partition = mount.new()
    for at in range(segments):
        if at:
            mount.steer("roll", partition)
        append(partition / "log.txt", b"%c\n%c\n" % (97 + 2 * at, 98 + 2 * at))
    return partition


def text(partition: Path, name: str = "log.txt") -> str:
    return (partition / name).read_text().replace("\n", "")


# -- reading ------------------------------------------------------------------------------------------


def test_reads_at_any_position(mount: DaemonMount) -> None:
    """R1. A read gives the bytes from its position on, whatever was read before, and fewer than asked only
    at the end.
    """
    partition = mount.new("small")
    append(partition / "log.txt", b"".join(b"%d\n" % n for n in range(5000)))
    chance = random.Random(1)
    for name in ("log.txt", "log.jsonl", "offset/100-4000.tsv", f"segments/{0:020}.txt"):
        whole = (partition / name).read_bytes()
        with opened(partition / name) as file:
            for _ in range(100):
                position, length = (
                    chance.randrange(len(whole) + 10),
                    chance.choice((1, 7, 4096, 70000, 300000)),
                )
                assert os.pread(file, length, position) == whole[position : position + length]


def test_a_growing_log(mount: DaemonMount) -> None:
    """R2. `log.<fmt>` is all records from the start offset on; it grows while it is open, and a reader at
    its end gets the new bytes from there.
    """
    partition = letters(mount)
    mount.steer("raise_start", partition, 1)
    with (partition / "log.txt").open("rb", buffering=0) as log:
        assert log.read(100) == b"b\nc\nd\ne\nf\n"
        assert log.read(100) == b""
        append(partition / "log.txt", b"g\n")
        mount.steer("roll", partition)
        append(partition / "log.tsv", b"k\th\n")
        assert log.read(100) == b"g\nh\n"
        assert log.read(100) == b""


def test_follow(mount: DaemonMount) -> None:
    """R3. `follow.<fmt>` gives the records that come after it was opened; the position in it is the count
    of bytes read.
    """
    partition = letters(mount)
    with opened(partition / "follow.txt") as file:
        append(partition / "log.txt", b"one\n")
        assert os.read(file, 100) == b"one\n"
        assert os.lseek(file, 0, os.SEEK_CUR) == 4
        mount.steer("roll", partition)
        append(partition / "log.txt", b"two\n")
        assert os.read(file, 2) == b"tw"
        assert os.read(file, 100) == b"o\n"


def test_reading_what_one_writes(mount: DaemonMount) -> None:
    """R4. A file opened for reading and writing reads like one that was opened for reading."""
    partition = letters(mount)
    with opened(partition / "log.txt", os.O_RDWR | os.O_APPEND) as file:
        os.write(file, b"g\n")
        os.fsync(file)
        assert os.pread(file, 100, 0) == b"a\nb\nc\nd\ne\nf\ng\n"
        assert os.pread(file, 100, 12) == b"g\n"


def test_seeking(mount: DaemonMount) -> None:
    """R5. `seek` to the end goes to the size; a hole is never reported."""
    partition = letters(mount)
    with opened(partition / "log.txt") as file:
        assert os.lseek(file, 0, os.SEEK_END) == 12
        assert os.lseek(file, 0, os.SEEK_HOLE) == 12
        assert os.lseek(file, 5, os.SEEK_DATA) == 5


def test_mappings(mount: DaemonMount) -> None:
    """R6. Private mappings work on every view, and shared read-only mappings on segments that are final;
    each shows the bytes of the very descriptor that was mapped, whatever others map.
    """
    partition = letters(mount)
    for name in ("log.txt", "offset/0-3.tsv", f"segments/{4:020}.txt", "status.json"):
        with (
            opened(partition / name) as file,
            mmap.mmap(file, 0, mmap.MAP_PRIVATE, mmap.PROT_READ) as seen,
        ):
            assert seen[:] == os.pread(file, 1 << 16, 0)
    for name in (f"sealed/txt/{2:020}.txt", f"segments/{2:020}.txt"):
        with opened(partition / name) as file, mmap.mmap(file, 4, mmap.MAP_SHARED, mmap.PROT_READ) as seen:
            assert seen[:] == b"c\nd\n"
    with (
        opened(partition / "offset/-2.txt") as first,
        mmap.mmap(first, 4, mmap.MAP_PRIVATE, mmap.PROT_READ) as seen,
    ):
        before = seen[:]
        append(partition / "log.txt", b"x\ny\n")
        with (
            opened(partition / "offset/-2.txt") as second,
            mmap.mmap(second, 4, mmap.MAP_PRIVATE, mmap.PROT_READ) as other,
        ):
            assert other[:] == b"x\ny\n"
            assert seen[:] == before == os.pread(first, 4, 0)


# -- committed records only ---------------------------------------------------------------------------


def test_open_transactions(mount: DaemonMount) -> None:
    """C1. No view shows a record of an open transaction, nor any record behind its first one, until it is
    decided.
    """
    partition = letters(mount)
    with opened(partition / "follow.txt") as follow, opened(partition / "log.txt") as log:
        mount.steer("write", partition, 1, 0, [b"open"])
        append(partition / "log.txt", b"behind\n")
        assert text(partition) == "abcdef"
        assert os.pread(log, 100, 12) == b""
        assert (partition / "log.txt").stat().st_size == 12
        assert not (partition / "offset/6").exists()
        assert not (partition / "offset/7").exists()
        for name in ("offset/0-.txt", "offset/-9.txt", "time/last-1h.txt"):
            assert text(partition, name) == "abcdef", name
        assert text(partition, "current.txt") == "ef"
        mount.steer("end", partition, 1, True)
        assert text(partition) == "abcdefopenbehind"
        assert os.read(follow, 100) == b"open\nbehind\n"


def test_aborted_and_committed_transactions(mount: DaemonMount) -> None:
    """C2. Records of an aborted transaction never show, and those of a committed one show together."""
    partition = mount.new()
    mount.steer("write", partition, 1, 0, [b"a1"])
    mount.steer("write", partition, 2, 0, [b"c1"])
    mount.steer("write", partition, 1, 1, [b"a2"])
    mount.steer("roll", partition)
    mount.steer("write", partition, 2, 1, [b"c2"])
    mount.steer("end", partition, 2, True)
    assert text(partition) == ""
    mount.steer("end", partition, 1, False)
    assert text(partition) == "c1c2"
    assert not (partition / "offset/0").exists()
    assert text(partition, "offset/0-3.txt") == "c1c2"
    assert text(partition, f"sealed/txt/{0:020}.txt") == "c1"
    assert text(partition, "time/last-1h.txt") == "c1c2"


def test_markers(mount: DaemonMount) -> None:
    """C3. Transaction markers show in no view but `segments/<base>.log`; their offsets are missing."""
    partition = letters(mount, 1)
    before = (partition / f"segments/{0:020}.log").stat().st_size
    mount.steer("write", partition, 1, 0, [b"t"])
    mount.steer("end", partition, 1, True)
    append(partition / "log.txt", b"z\n")
    assert text(partition) == "abtz"
    assert not (partition / "offset/3").exists()
    assert (partition / "offset/4").read_bytes() == b"z"
    assert (partition / f"segments/{0:020}.log").stat().st_size > before + 61 * 3


# -- what never changes under a reader ----------------------------------------------------------------


def test_positions_in_a_segment(mount: DaemonMount) -> None:
    """S1. Within a segment's file byte positions are final once shown."""
    partition = mount.new()
    file = partition / f"segments/{0:020}.jsonl"
    seen = b""
    for step in range(6):
        if step % 2:
            mount.steer("write", partition, 1, step // 2, [b"t%d" % step])
            append(partition / "log.txt", b"held back\n")
            mount.steer("end", partition, 1, step != 3)
        else:
            append(partition / "log.txt", b"step %d\n" % step)
        now = file.read_bytes()
        assert now.startswith(seen)
        assert len(now) > len(seen)
        seen = now
    mount.steer("raise_start", partition, 3)
    mount.steer("roll", partition)
    assert file.read_bytes() == seen


def test_sealed_files(tmp_path: Path) -> None:
    """S2. A file under `sealed` never changes, save by compaction: bytes, size, mtime and inode stay, also over a
    restart.
    """
    mount = DaemonMount(tmp_path)
    try:
        mount.start()
        with mount.watched():
            partition = letters(mount)
            files = [
                partition / f"sealed/{suffix}/{base:020}.{suffix}" for suffix in FORMATS for base in (0, 2)
            ]

            def all_of_it() -> list[tuple[bytes, int, int, int]]:
                stats = [file.stat() for file in files]
                return [
                    (file.read_bytes(), stat.st_size, stat.st_mtime_ns, stat.st_ino)
                    for file, stat in zip(files, stats, strict=True)
                ]

            before = all_of_it()
            append(partition / "log.txt", b"more\n")
            mount.steer("roll", partition)
            mount.steer("raise_start", partition, 1)
            assert all_of_it() == before
        assert mount.stop() == 0
        mount.start()
        with mount.watched():
            assert all_of_it() == before
        assert mount.stop() == 0
        assert mount.alarms() == []
    finally:
        mount.clear()


@pytest.mark.parametrize(
    "name",
    [
        f"segments/{0:020}.log",
        "log.txt",
        "offset/1-4.txt",
        "offset/1-.txt",
        "time/last-1h.txt",
        f"segments/{0:020}.txt",
        "offset/1",
    ],
)
def test_removal_under_an_open_file(mount: DaemonMount, name: str) -> None:
    """S3. An open file gives every record that it was opened on and has not read past, though its segment was
    removed meanwhile."""
    partition = letters(mount)
    whole = (partition / name).read_bytes()
    with opened(partition / name) as file:
        mount.steer("raise_start", partition, 5)
        assert f"{0:020}.txt" not in os.listdir(partition / "segments")
        assert f"{2:020}.txt" not in os.listdir(partition / "segments")
        if name == "log.txt":
            # A handle whose first read is at byte 0 would begin at the first record that still exists.
            assert os.pread(file, 100, 2) == whole[2:]
        else:
            assert os.pread(file, 100, 0) == whole


def test_a_held_log_keeps_its_origin(mount: DaemonMount) -> None:
    """S4. While anyone holds `log.<fmt>` open, its size never shrinks and its positions go on counting,
    whatever is removed at its beginning.
    """
    partition = letters(mount)
    with opened(partition / "log.txt") as file:
        assert os.pread(file, 2, 0) == b"a\n"
        mount.steer("raise_start", partition, 4)
        assert os.fstat(file).st_size == (partition / "log.txt").stat().st_size == 12
        append(partition / "log.txt", b"g\n")
        assert os.fstat(file).st_size == 14
        assert os.pread(file, 100, 8) == b"e\nf\ng\n"
        with subprocess.Popen(["tail", "-n1", "-f", partition / "log.txt"], stdout=-1, stderr=-1) as tail:
            assert tail.stdout is not None
            assert tail.stdout.readline() == b"g\n"
            mount.steer("roll", partition)
            mount.steer("raise_start", partition, 7)
            append(partition / "log.txt", b"h\n")
            assert tail.stdout.readline() == b"h\n"
            tail.terminate()
            assert tail.stderr is not None
            assert tail.stderr.read() == b""


def test_a_new_reader_of_a_held_log(mount: DaemonMount) -> None:
    """S5. A reader that opens such a log anew and reads from byte 0 begins at the first record that exists."""
    partition = letters(mount)
    with opened(partition / "log.txt") as holder:
        os.pread(holder, 1, 0)
        mount.steer("raise_start", partition, 3)
        assert text(partition) == "def"
        with opened(partition / "log.txt") as file:
            assert os.read(file, 3) == b"d\ne"
            assert os.read(file, 100) == b"\nf\n"


def test_an_unheld_log_begins_at_the_start_offset(mount: DaemonMount) -> None:
    """S6. With nobody holding it, `log.<fmt>` begins at the start offset and its size is counted from
    there.
    """
    partition = letters(mount)
    mount.steer("raise_start", partition, 3)
    eventually(lambda: mount.status(partition)["open_logs"] == 0, "the last close")
    assert (partition / "log.txt").stat().st_size == 6
    assert text(partition) == "def"


def test_open_ranges(mount: DaemonMount) -> None:
    """S7. A range whose last record is there never changes while it is open, nor do `-<N>` and times with
    an end; other ranges grow, up to their end.
    """
    partition = letters(mount)
    with (
        opened(partition / "offset/1-3.txt") as ended,
        opened(partition / "offset/1-6.txt") as bounded,
        opened(partition / "offset/-2.txt") as last,
        opened(partition / "time/--2099-01-01.txt") as until,
        opened(partition / "offset/5-.txt") as growing,
        opened(partition / "time/last-1h.txt") as recent,
    ):
        append(partition / "log.txt", b"g\nh\n")
        assert os.pread(last, 100, 0) == b"e\nf\n"
        assert os.pread(until, 100, 0) == b"a\nb\nc\nd\ne\nf\n"
        assert os.pread(ended, 100, 0) == b"b\nc\nd\n"
        assert os.pread(bounded, 100, 0) == b"b\nc\nd\ne\nf\ng\n"
        assert os.pread(growing, 100, 0) == b"f\ng\nh\n"
        assert os.pread(recent, 100, 12) == b"g\nh\n"


def test_generated_files(mount: DaemonMount) -> None:
    """S8. `status.json`, `metrics`, `config` and `start` are made when they are opened and do not change
    until they are closed.
    """
    partition = letters(mount)
    topic = mount / "topics" / partition.name.rpartition("-")[0]
    for path in (partition / "status.json", mount / "metrics", topic / "config", partition / "start"):
        before = path.read_bytes()
        with opened(path) as file:
            first = os.pread(file, 1, 0)
            append(partition / "log.txt", b"more\n")
            if path.name == "start":
                append(path, b"1\n")
                assert path.read_bytes() == b"1\n"
            rest = os.pread(file, 1 << 20, 1)
        assert len(first + rest) == len(before) or path.name == "metrics"
        if path.name in {"status.json", "start"}:
            assert first + rest == before
            assert path.read_bytes() != before
