"""`fs/SEMANTICS.md`: appending, durability."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_mount import (
    DaemonMount,
    append,
    delete,
    eventually,
    fill,
    full_disk,
    opened,
    own_mount,
    refused,
    write_all,
)
from patience import promptly

pytest_plugins = ["shared_mount"]

APPEND = os.O_WRONLY | os.O_APPEND
VIEWS = ("log.txt", "offset/0-.txt", "time/last-1h.txt", f"segments/{0:020}.txt", "current.txt")


def shell(command: str, partition: Path) -> bytes:
    """What bash says, in the partition's directory."""
    done = subprocess.run(["bash", "-c", command], cwd=partition, capture_output=True, check=True)
    assert done.stderr == b""
    return done.stdout


def read(partition: Path) -> bytes:
    return (partition / "log.txt").read_bytes()


def test_appending(mount: DaemonMount) -> None:
    """A1. `>>` appends to `log.<fmt>` and to `topics/<topic>/in.<fmt>`: each line is a record."""
    partition = mount.new()
    shell("echo one >> log.txt; printf 'k\\ttwo\\n' >> log.tsv", partition)
    shell("""echo '{"value":"three"}' >> log.jsonl""", partition)
    topic, _, number = partition.name.rpartition("-")
    line = json.dumps({"value": "four", "partition": int(number)})
    append(mount / f"topics/{topic}/in.jsonl", line.encode() + b"\n")
    assert read(partition) == b"one\ntwo\nthree\nfour\n"
    assert mount.status(partition)["end_offset"] == 4
    numbers = range(200)
    for number in numbers:
        append(partition / "log.txt", b"%d" % number if number % 2 else b"%d\n" % number)
    assert read(partition).split()[4:] == [b"%d" % number for number in numbers]


def test_positions_are_ignored(mount: DaemonMount) -> None:
    """A2. The kernel's position is ignored: pwrite, and a write after O_APPEND was taken off the
    descriptor, append too.
    """
    partition = mount.new()
    with opened(partition / "log.txt", APPEND) as file:
        os.pwrite(file, b"one\n", 1000)
        os.pwrite(file, b"two\n", 0)
        fcntl.fcntl(file, fcntl.F_SETFL, 0)
        os.lseek(file, 0, os.SEEK_SET)
        os.write(file, b"three\n")
        os.pwrite(file, b"four\n", 2)
    assert read(partition) == b"one\ntwo\nthree\nfour\n"


@pytest.mark.busy
def test_several_writers(mount: DaemonMount) -> None:
    """A3. Lines of several writers never mix within a line, and lie in a partition in the order in which their
    write(2)s were accepted: whatever the format, through `log.<fmt>` or `in.<fmt>`, and whoever closes first.
    """
    partition = mount.new("several")
    topic = mount / "topics/several"
    names = ["log.txt", "log.txt", "log.tsv", "log.jsonl", topic / "in.txt", topic / "in.jsonl"]
    spelled = {".txt": "%d\n", ".tsv": "k\t%d\n", ".jsonl": '{"value":"%d"}\n'}
    files = [(os.open(partition / name, APPEND), spelled[Path(name).suffix]) for name in names]
    for at in range(60):
        file, line = files[at * 7 % len(files)]
        os.write(file, (line % at).encode())
    for file, _ in reversed(files):
        os.close(file)
    assert read(partition) == b"".join(b"%d\n" % at for at in range(60))
    partition = mount.new()

    def write(name: int) -> None:
        data = b"".join(b"%d %05d %s\n" % (name, at, b"x" * (at % 300)) for at in range(2000))
        with opened(partition / "log.txt", APPEND) as file:
            for start in range(0, len(data), 777 + name):
                write_all(file, data[start : start + 777 + name])

    writers = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found: dict[bytes, list[int]] = {}
    for line in read(partition).splitlines():
        name, at, rest = line.split(b" ")
        assert rest == b"x" * (int(at) % 300)
        found.setdefault(name, []).append(int(at))
    assert found == {b"%d" % name: list(range(2000)) for name in range(4)}


def test_forks_in_mid_line(mount: DaemonMount) -> None:
    """A4. A last line without a newline is appended when the last descriptor closes, not when a duplicate
    or a forked child's copy closes; what is written through a file that is opened after that close comes behind it.
    """
    partition = mount.new()
    # Each `( … )` and each `cat` is a fork with the descriptor, whose end makes the kernel flush.
    script = "exec 3>>log.txt; printf a >&3; ( : ) ; printf b >&3; ( printf c >&3 ) ; cat /dev/null >&3; echo d >&3"
    shell(script, partition)
    assert read(partition) == b"abcd\n"
    shell("{ printf 'e'; /bin/true; ( printf 'f' ); printf 'g\\nh'; } >> log.txt", partition)
    eventually(lambda: read(partition) == b"abcd\nefg\nh\n", "the last line")
    file = os.open(partition / "log.txt", APPEND)
    os.write(file, b"i")
    os.close(os.dup(file))
    time.sleep(0.15)  # longer than a reader waits for a close that is under way
    assert read(partition).endswith(b"h\n")
    os.close(file)
    assert read(partition).endswith(b"h\ni\n")
    assert mount.status(partition)["end_offset"] == 4


def test_empty_lines_and_empty_writes(mount: DaemonMount) -> None:
    """A5. An empty line is a record with an empty value in `txt`; a write of no bytes appends nothing."""
    partition = mount.new()
    shell(
        ": >> log.txt; printf '' >> log.txt; touch /dev/null; echo >> log.txt; printf '\\n\\n' >> log.txt",
        partition,
    )
    assert read(partition) == b"\n\n\n"
    with opened(partition / "log.txt", APPEND) as file:
        os.write(file, b"")
    assert mount.status(partition)["end_offset"] == 3
    assert (partition / "offset/0").read_bytes() == b""
    assert json.loads((partition / "offset/0-0.jsonl").read_bytes())["value"] == ""


def test_one_reads_what_one_wrote(mount: DaemonMount) -> None:
    """A6. After close, or fsync, every view shows the records; `printf x >> log.txt; cat log.txt` always
    shows x.
    """
    partition = mount.new()
    script = "for i in $(seq 50); do printf $i >> log.txt; cat log.txt | tail -n1; stat -c %s log.txt >/dev/null; done"
    assert shell(script, partition).split() == [b"%d" % i for i in range(1, 51)]
    whole = b"".join(b"%d\n" % i for i in range(1, 51))
    for name in VIEWS:
        assert (partition / name).read_bytes() == whole, name
    with opened(partition / "log.txt", APPEND) as file:
        for at in range(10):
            os.write(file, b"line %d\npart" % at if not at else b"\nline %d\npart" % at)
            os.fsync(file)
            for name in VIEWS:
                assert (partition / name).read_bytes().endswith(b"\nline %d\n" % at), name


@pytest.mark.busy
def test_lingering_lines(mount: DaemonMount, tmp_path: Path) -> None:
    """A7. Whole lines show when the write(2) that brings them returns, if it is the first of its open file, or if
    nothing was appended for `linger.ms`. Those that come faster may gather, up to `batch.size`; they show
    within `linger.ms`, whatever the clock is set to.
    """
    partition = mount.new()
    for at in range(20):
        with opened(partition / "log.txt", APPEND) as file:
            os.write(file, b"%d\n" % at)
            assert read(partition).endswith(b"%d\n" % at)
    with opened(partition / "log.txt", APPEND) as file:
        os.write(file, b"first\n")
        for at in range(3):
            time.sleep(0.03)  # longer than the shared mount lingers
            os.write(file, b"alone %d\n" % at)
            assert read(partition).endswith(b"alone %d\n" % at)
        numbers = iter(range(100))

        def write() -> None:
            line = b"%d\n" % next(numbers)
            os.write(file, line)
            eventually(lambda: read(partition).endswith(line), "the line")

        # The shared mount lingers for 20 ms; the rest is what a busy machine may take.
        for _ in range(3):
            promptly(0.5, write)
    with own_mount(tmp_path, "-o", "linger.ms=1000") as own:
        partition = own.new()
        with opened(partition / "log.txt", APPEND) as file:
            os.write(file, b"first\n")
            for set_by in (-3_600_000, 7_200_000):
                lines = b"in time\nsees it set\n"
                for line in lines.splitlines(keepends=True):
                    os.write(file, line)
                    own.steer("set_clock", partition, set_by)
                eventually(lambda lines=lines: read(partition).endswith(lines), "the lines")


def test_partitions_by_key(mount: DaemonMount) -> None:
    """A8. `in.<fmt>` sends a record with a key to the partition that Kafka's default partitioner chooses of those that
    are here, and lines without keys to one partition after the other. Where a broker's directory has only some of a
    topic's partitions, name them: A9.
    """
    (mount / "topics/keyed").mkdir()
    for number in (1, 2, 3):
        (mount / f"keyed-{number}").mkdir()
    # Utils.murmur2 & 0x7fffffff % 4 of Kafka's own test vectors: "21" -973932308, "foobar" -790332482,
    # "a-little-bit-long-string" -985981536, "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8" -58897971.
    hashes = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536}
    hashes["lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8"] = -58897971
    append(
        mount / "topics/keyed/in.tsv", b"".join(b"%s\t%s\n" % (key.encode(), key.encode()) for key in hashes)
    )
    for key, value in hashes.items():
        assert key.encode() + b"\n" in read(mount / f"keyed-{(value & 0x7FFFFFFF) % 4}")
    before = [len(read(mount / f"keyed-{number}")) for number in range(4)]
    for _ in range(8):
        append(mount / "topics/keyed/in.txt", b"no key\n")
    assert [len(read(mount / f"keyed-{number}")) for number in range(4)] == [size + 14 for size in before]
    delete(mount / "topics/keyed")
    (mount / "topics/keyed").mkdir()
    (mount / "keyed-7").mkdir()
    append(
        mount / "topics/keyed/in.tsv", b"21\teven\nlkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8\todd\n"
    )
    assert [read(mount / f"keyed-{number}") for number in (0, 7)] == [b"even\n", b"odd\n"]
    delete(mount / "topics/keyed")


def test_partitions_by_name(mount: DaemonMount) -> None:
    """A9. `in.jsonl` sends a record that names a `partition` to that one."""
    (mount / "topics/chosen").mkdir()
    (mount / "chosen-1").mkdir()
    lines = [{"key": "foobar", "value": str(at), "partition": at % 2} for at in range(6)]
    append(mount / "topics/chosen/in.jsonl", b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    assert [read(mount / f"chosen-{number}") for number in (0, 1)] == [b"0\n2\n4\n", b"1\n3\n5\n"]
    with opened(mount / "topics/chosen/in.jsonl", APPEND) as file:
        with pytest.raises(OSError) as caught:  # noqa: PT011 - the errno is looked at
            os.write(file, b'{"value":"x","partition":2}\n')
        assert caught.value.errno == errno.EINVAL
    delete(mount / "topics/chosen")


def test_jsonl_as_input(mount: DaemonMount) -> None:
    """A10. In jsonl `timestamp` may be left out and is now then; `offset` and `topic` are ignored; the
    order of members does not matter.
    """
    partition = mount.new()
    before = int(time.time() * 1000)
    given = b'{"value": "v", "topic":"other", "offset" : 77, "key":"k"}\n'
    given += b'{"headers":{"h":"x"},"value":null,"timestamp":5}\n'
    append(partition / "log.jsonl", given)
    first, second = (json.loads(line) for line in (partition / "log.jsonl").read_text().splitlines())
    assert before <= first["timestamp"] <= int(time.time() * 1000)
    topic = partition.name.rpartition("-")[0]
    assert [first[name] for name in ("offset", "topic", "key", "value")] == [0, topic, "k", "v"]
    assert (second["timestamp"], second["value"], second["headers"]) == (
        5,
        None,
        [{"key": "h", "value": "x"}],
    )


def test_any_bytes(mount: DaemonMount) -> None:
    """A11. Bytes of a value may be any but newline in `txt`, NUL too."""
    partition = mount.new()
    values = [bytes([byte, byte]) for byte in range(256) if byte != 10]
    append(partition / "log.txt", b"\n".join(values) + b"\n")
    assert read(partition) == b"\n".join(values) + b"\n"
    assert (partition / "offset/0").read_bytes() == b"\0\0"


# -- durability ---------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Iterator[DaemonMount]:
    """A mount of the test's own, for what ends it."""
    served = DaemonMount(tmp_path)
    try:
        served.start("-o", "linger.ms=60000")
        with served.watched():
            yield served
    finally:
        served.clear()


def test_close_acknowledges(own: DaemonMount) -> None:
    """D1. What close acknowledged is there after `kill -9` of the daemon."""
    partition = own.new()
    append(partition / "log.txt", b"one\ntwo\n")
    shell("( echo three; printf four ) >> log.txt", partition)
    assert read(partition).endswith(b"four\n")
    append(partition / "log.jsonl", b'{"key":"k","value":"five"}\n')
    own.kill()
    own.start()
    assert read(partition) == b"one\ntwo\nthree\nfour\nfive\n"
    assert own.stop() == 0


def test_fsync_persists(mount: DaemonMount) -> None:
    """D2. fsync and fdatasync bring log and index onto the disk: the recovery point is then behind the last
    whole line.
    """
    partition = mount.new("small")
    assert mount.status(partition)["recovery_point"] == 0
    with opened(partition / "log.txt", APPEND) as file:
        os.write(file, b"one\ntwo\nthr")
        os.fsync(file)
        assert mount.status(partition)["recovery_point"] == 2
        os.write(file, b"ee\n" + b"x" * 900 + b"\n" + b"y" * 900 + b"\n")
        os.fdatasync(file)
        assert mount.status(partition)["recovery_point"] == mount.status(partition)["end_offset"] == 5
    append(partition / "log.txt", b"six\n")
    assert mount.status(partition)["recovery_point"] == 5
    with opened(partition / "log.txt") as file:
        os.fsync(file)
    assert mount.status(partition)["recovery_point"] == 6


def test_synchronous_writes_persist(mount: DaemonMount, tmp_path: Path) -> None:
    """D3. A file opened with O_SYNC or O_DSYNC is on disk after each write, whole lines of it. Only the append
    itself needs room: a full disk refuses a write before anything of it is appended.
    """
    for flag in (os.O_SYNC, os.O_DSYNC):
        partition = mount.new()
        with opened(partition / "log.txt", APPEND | flag) as file:
            os.write(file, b"one\ntwo\nthr")
            assert mount.status(partition)["recovery_point"] == 2
            os.write(file, b"ee\n")
            assert mount.status(partition)["recovery_point"] == 3
    with full_disk(tmp_path) as (served, filler):
        served.expect("No space left on device")
        partition = served.new()
        append(partition / "log.txt", b"sealed\n")
        served.steer("roll", partition)
        append(partition / "log.txt", b"begun\n")
        # A file system that is full has no room for a file either; a tmpfs counts those apart.
        fill(filler)
        counts = os.statvfs(served.backing)
        limit = f"remount,nr_inodes={counts.f_files - counts.f_ffree}"
        subprocess.run(["mount", "-o", limit, served.backing], check=True)
        taken = 2
        with opened(partition / "log.txt", APPEND | os.O_SYNC) as file, refused(errno.ENOSPC):
            while True:
                os.write(file, b"x" * 500 + b"\n")
                taken += 1
                assert served.status(partition)["recovery_point"] == taken
        assert taken > 2
        assert read(partition).count(b"\n") == taken
        subprocess.run(["mount", "-o", "remount,nr_inodes=0", served.backing], check=True)
        filler.unlink()


@pytest.mark.busy
@pytest.mark.parametrize("force", [True, False])
def test_taking_the_mount_away_appends_what_is_open(own: DaemonMount, force: bool) -> None:
    """D4. `topicfs umount --force` and a signal that ends the daemon append what open files still hold, also a
    line without its newline.
    """
    partition = own.new()
    file, other = (os.open(partition / name, APPEND) for name in ("log.txt", "log.jsonl"))
    os.write(file, b"one\ntw")
    os.write(other, b'{"value":"three"}')
    assert read(partition) == b"one\n"
    os.write(file, b"o\nfo")
    assert read(partition) == b"one\n"
    if force:
        done = own.umount("--force")
        assert done.returncode == 0, done.stderr
    else:
        assert own.stop() == 0
    for descriptor in (file, other):
        with pytest.raises(OSError, match=r"not connected|abort"):
            os.close(descriptor)
    own.start()
    assert read(partition).startswith(b"one\ntwo\n")
    assert sorted(read(partition).splitlines()) == [b"fo", b"one", b"three", b"two"]
    assert own.stop() == 0


def test_what_was_accepted_has_room(tmp_path: Path) -> None:
    """D5. What write(2) accepted can be appended though the disk is full in the next moment: lines wait only
    where their room is made sure of.
    """
    with full_disk(tmp_path, "24m", "-o", "linger.ms=60000") as (served, filler):
        served.expect("No space left on device")
        partition = served.new()
        with opened(partition / "log.txt", APPEND) as file, opened(partition / "log.txt", APPEND) as tail:
            os.write(file, b"first\n")
            gathered = [b"%06d %s\n" % (at, b"z" * 100) for at in range(500)]
            for line in gathered:
                os.write(file, line)
            os.write(tail, b"unfinished")
            assert read(partition).count(b"\n") < 500
            fill(filler)
            os.fsync(file)
            assert read(partition) == b"first\n" + b"".join(gathered)
        eventually(lambda: read(partition).endswith(b"\nunfinished\n"), "the last line")
        assert served.status(partition)["offline"] is None


def test_failures_are_final(tmp_path: Path) -> None:
    """D6. What write, fsync or close reported as failed is never applied; where it is written again it is there
    once, in the place of that write. What the log has already stays in it where an fsync, or a write of D3, is
    refused by the disk itself, which takes the partition offline, or finds no file descriptor free.
    """
    with full_disk(tmp_path, "24m", "-o", "linger.ms=60000") as (served, filler):
        served.expect("No space left on device")
        partition = served.new()
        with opened(partition / "log.txt", APPEND) as one, opened(partition / "log.txt", APPEND) as other:
            for file in (one, other):
                os.write(file, b"first\n")
            fill(filler)
            lines = b"".join(b"%06d %s\n" % (at, b"z" * 1000) for at in range(20))
            sent = 0
            with pytest.raises(OSError) as caught:  # noqa: PT011, PT012 - one of many writes fails
                for _ in range(1000):
                    sent += os.write(one, lines[sent:] or lines)
                    sent %= len(lines)
            assert caught.value.errno == errno.ENOSPC
            before = read(partition)
            filler.unlink()
            os.write(other, b"other's\n")
            os.fsync(other)
            os.write(one, b"again\n")
            os.fsync(one)
        assert read(partition) == before + b"other's\nagain\n"
        assert served.stop() == 0
        served.start()
        assert read(partition) == before + b"other's\nagain\n"
        for words in ("Input/output error", "not stopped cleanly"):
            served.expect(words)
        served.steer("break_disk", partition)
        with opened(partition / "log.txt", APPEND | os.O_SYNC) as file:
            for _ in range(2):
                with refused(errno.EIO):
                    os.write(file, b"written\n")
        assert served.stop() == 1
        served.start()
        assert read(partition) == before + b"other's\nagain\nwritten\n"


def test_a_disk_that_fails(own: DaemonMount) -> None:
    """D7. Where the disk fails under lines that gathered they stay in front of all that comes later, and are
    tried again until fsync or close tells their writer: then they are gone.
    """
    partition = own.new()
    own.expect("File too large")
    append(partition / "log.txt", b"long\n" * 1_000_000)
    begun = read(partition)
    process = own.process
    assert process is not None
    with opened(partition / "log.txt", APPEND) as one, opened(partition / "log.txt", APPEND) as other:
        for file in (one, other):
            os.write(file, b"first\n")
        os.write(one, b"told of\n")
        os.write(other, b"waits\n")
        log = Path(own.steer("files", partition)) / f"{0:020}.log"
        # What lies beyond this size cannot be written: the one failure of a disk that can be had for the asking.
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (log.stat().st_size, resource.RLIM_INFINITY))
        for call in (lambda: os.write(other, b"x" * 100_000 + b"\n"), lambda: os.fsync(one)):
            with pytest.raises(OSError) as caught:  # noqa: PT011 - the errno is looked at
                call()
            assert caught.value.errno == errno.EFBIG
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        os.fsync(one)
        os.write(one, b"later\n")
        os.fsync(one)
        assert read(partition) == begun + b"first\nfirst\nwaits\nlater\n"
    assert read(partition) == begun + b"first\nfirst\nwaits\nlater\n"
    assert own.stop() == 0
