"""`fs/SEMANTICS.md`: waiting; sizes, times, inodes and extended attributes; limits of libfuse 2."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import select
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from daemon_mount import ROOT, DaemonMount, append, delete, eventually, opened, refused, write_all
from patience import PATIENCE_S, promptly
from shell import output

pytest_plugins = ["shared_mount"]
pytestmark = pytest.mark.busy

APPEND = os.O_WRONLY | os.O_APPEND
GONE = {errno.ENOTCONN, errno.ECONNABORTED}


def letters(mount: DaemonMount) -> Path:
    """A partition with a and b in a sealed segment, c in the active one."""
    partition = mount.new()
    append(partition / "log.tsv", b"k\ta\nl\tb\n")
    mount.steer("roll", partition)
    append(partition / "log.tsv", b"m\tc\n")
    return partition


def holds_open(process: int, name: str) -> bool:
    """Whether a process has a file of this name open. While it starts, it closes others."""
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):
            if os.readlink(descriptor).endswith(name):
                return True
    return False


@contextmanager
def following(partition: Path, command: str = "cat") -> Iterator[subprocess.Popen[bytes]]:
    """A program that has read one record of `follow.txt`, and waits for the next."""
    process = subprocess.Popen(
        [command, partition / "follow.txt"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        eventually(lambda: holds_open(process.pid, "follow.txt"), "the open file")
        append(partition / "log.txt", b"first\n")
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        assert process.poll() is None
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[DaemonMount]:
    """A mount of the test's own, for what ends it."""
    served = DaemonMount(tmp_path)
    try:
        served.start()
        with served.watched():
            yield served
    finally:
        served.clear()


# -- waiting ------------------------------------------------------------------------------------------


def test_only_follow_waits(mount: DaemonMount) -> None:
    """B1. Only `follow.<fmt>` waits: at its end a read blocks until records come; every other read at the
    end gives no bytes.
    """
    partition = letters(mount)
    names = [
        "log.txt",
        "current.txt",
        "offset/0-.txt",
        "offset/-1.txt",
        "time/last-1h.txt",
        f"segments/{2:020}.txt",
    ]
    for name in names:
        with opened(partition / name) as file:
            assert os.pread(file, 100, 1 << 20) == b""
    with following(partition) as process:
        time.sleep(0.7)
        assert process.poll() is None
        append(partition / "log.txt", b"second\n")
        assert process.stdout is not None
        assert process.stdout.readline() == b"second\n"


def test_signals_end_a_wait(mount: DaemonMount) -> None:
    """B2. A blocked read ends within a second after a signal such as Ctrl-C."""
    partition = letters(mount)

    def end(number: signal.Signals) -> float:
        with following(partition) as process:
            began = time.monotonic()
            process.send_signal(number)
            assert process.wait(PATIENCE_S) == -number
            return time.monotonic() - began

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        promptly(1, lambda number=number: end(number))


def test_the_end_of_the_mount_ends_a_wait(own: DaemonMount) -> None:
    """B3. Blocked reads end when the mount is taken away, and when the daemon is killed; afterwards every
    call fails at once.
    """
    partition = letters(own)
    with following(partition) as process:
        assert own.stop() == 0
        process.wait(PATIENCE_S)
    own.start()
    held = os.open(partition / "log.txt", os.O_RDONLY)
    with following(partition) as process:
        own.kill()
        process.wait(PATIENCE_S)
        assert process.returncode

    def close() -> None:
        os.close(held)

    for call in (
        lambda: os.pread(held, 1, 0),
        lambda: os.stat(partition / "log.txt"),
        lambda: os.listdir(own.path),
        lambda: os.open(partition / "log.txt", APPEND),
        close,
    ):

        def fails(call: Callable[[], object] = call) -> None:
            with pytest.raises(OSError) as caught:  # noqa: PT011 - the errno is looked at
                call()
            assert caught.value.errno in GONE

        # A descriptor can be closed once only.
        promptly(1, fails, tries=10 if call is not close else 1)


def test_waiting_holds_up_nobody(mount: DaemonMount) -> None:
    """B4. A blocked reader holds up nobody else: neither other readers, nor writers, nor rmdir."""
    partition, other = letters(mount), mount.new()
    with following(partition), following(partition), following(partition, "cat"):

        def work() -> None:
            for _ in range(20):
                append(partition / "log.txt", b"x\n")
                assert (partition / "log.txt").read_bytes().endswith(b"x\n")
                os.listdir(partition)
            (mount / "topics/passing").mkdir()
            (mount / "topics/passing").rmdir()

        promptly(5, work)
        other.rmdir()


def test_a_dead_mount_is_cleared_away(own: DaemonMount) -> None:
    """B5. The next `topicfs mount` clears a dead mount away."""
    partition = letters(own)
    own.kill()
    assert own.is_mounted
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the errno is looked at
        os.listdir(own.path)
    assert caught.value.errno in GONE
    own.start()
    assert (partition / "log.txt").read_bytes() == b"a\nb\nc\n"
    assert own.stop() == 0
    assert not own.is_mounted


def test_locks(mount: DaemonMount) -> None:
    """B6. flock and fcntl locks work between processes of one machine, and do not stop anybody from
    appending.
    """
    partition = letters(mount)
    for command in ("flock", "lockf"):
        with opened(partition / "log.txt", APPEND) as mine, opened(partition / "log.txt", APPEND) as other:
            getattr(fcntl, command)(mine, fcntl.LOCK_EX)
            program = (
                f"import fcntl,sys; fcntl.{command}(open(sys.argv[1],'ab'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
            )
            done = subprocess.run(
                ["python3", "-c", program, partition / "log.txt"], capture_output=True, check=False
            )
            assert b"BlockingIOError" in done.stderr
            os.write(other, b"in spite of it\n")
            os.fsync(other)
            assert (partition / "log.txt").read_bytes().endswith(b"in spite of it\n")


@pytest.mark.parametrize("end", ["--force", signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_mount_that_is_in_use(own: DaemonMount, end: str | signal.Signals) -> None:
    """B7. `topicfs umount` of a mount that programs use is refused with their names, and changes nothing;
    `--force`, and SIGTERM, SIGINT or SIGHUP to the daemon, take it away from them.
    """
    partition = letters(own)
    final = partition / f"sealed/txt/{0:020}.txt"
    mapping = (
        "import mmap, sys, os; f = os.open(sys.argv[1], 0); m = mmap.mmap(f, 1, mmap.MAP_PRIVATE, mmap.PROT_READ);"
        "m = [m[0], os.closerange(3, 100), m]; print(flush=True); sys.stdin.read()"
    )
    programs = {
        f"working directory {partition}": subprocess.Popen(["sleep", "1000"], cwd=partition),
        str(partition / "follow.txt"): subprocess.Popen(
            ["cat", partition / "follow.txt"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ),
        f"mapping of {final.resolve()}": subprocess.Popen(
            [sys.executable, "-c", mapping, final], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ),
    }
    try:
        *_, mapper = programs.values()
        assert mapper.stdout is not None
        assert mapper.stdout.readline() == b"\n"
        reader = programs[str(partition / "follow.txt")]
        eventually(lambda: holds_open(reader.pid, "follow.txt"), "the open file")
        refused = own.umount()
        assert refused.returncode == 1
        for use, program in programs.items():
            name = Path(f"/proc/{program.pid}/comm").read_text().strip()
            assert f"process {program.pid} ({name}): {use}" in refused.stderr
        assert "--force" in refused.stderr
        # It is as it was: for who uses it, and for others.
        append(partition / "log.txt", b"d\n")
        assert (partition / "log.txt").read_bytes() == b"a\nb\nc\nd\n"
        assert reader.poll() is None
        if isinstance(end, str):
            done = own.umount(end)
            assert done.returncode == 0, done.stderr
            told = done.stderr
        else:
            assert own.process is not None
            own.process.send_signal(end)
            assert own.process.wait(PATIENCE_S) == 0
            told = own.said()
        assert "is taken away from" in told
        assert all(f"process {program.pid} " in told for program in programs.values())
        assert not own.is_mounted
        assert reader.wait(PATIENCE_S) == 1
    finally:
        for program in programs.values():
            with program:
                program.kill()


def test_a_daemon_in_the_foreground(tmp_path: Path) -> None:
    """B8. A daemon with `--foreground` also ends with the process that started it, but under nohup; closing
    its output ends nothing. However it ends in order, no mount and no process is left.
    """
    command = f'PYTHONPATH={ROOT} "$@" {sys.executable} -m topicfs.mountd.cli mount --create --foreground'
    for before, end in (("env", "parent"), ("nohup", "SIGTERM"), ("nohup", "unmounting")):
        outlives = end != "parent"
        served = DaemonMount(tmp_path / end)
        script = f"{command} {served.backing} {served.path} 2>&1 | true"
        with subprocess.Popen(["sh", "-c", script, "sh", before], stdin=subprocess.DEVNULL) as shell:
            eventually(lambda served=served: "by process " in served.said(), "the mount")
            daemon = int(served.said().partition("by process ")[2].split()[0])
            try:
                append(served.new() / "log.txt", b"here\n")
                shell.kill()
                shell.wait()
                if outlives:
                    time.sleep(0.5)
                    os.kill(daemon, signal.SIGHUP)
                    assert (served / "plain-0/log.txt").read_bytes() == b"here\n"
                    if end == "SIGTERM":
                        os.kill(daemon, signal.SIGTERM)
                    else:
                        # regression: libfuse, when it ends, has SIGPIPE end the process
                        subprocess.run(["fusermount", "-u", served.path], check=True)
                eventually(lambda daemon=daemon: not Path(f"/proc/{daemon}/cwd").exists(), "its end")
                assert not served.is_mounted
                assert "stopped cleanly" in served.said()
            finally:
                with suppress(ProcessLookupError):
                    os.kill(daemon, signal.SIGKILL)
                served.clear()


# -- sizes, times, inodes, extended attributes --------------------------------------------------------


def every_file(mount: DaemonMount, partition: Path) -> list[Path]:
    topic = mount / "topics" / partition.name.rpartition("-")[0]
    found = [Path(top) / name for top, _, names in os.walk(partition) for name in names]
    extra = [partition / name for name in ("offset/1-.jsonl", "offset/-2.tsv", "time/last-1h.txt")]
    return [*found, *extra, mount / "README.txt", topic / "config"]


def test_sizes(mount: DaemonMount) -> None:
    """T1. The size of each file is the count of bytes that reading it gives; of `follow.<fmt>` and
    `in.<fmt>` it is 0.
    """
    partition = letters(mount)
    for path in every_file(mount, partition):
        assert path.stat().st_size == len(path.read_bytes()), path
    assert [(partition / f"follow.{suffix}").stat().st_size for suffix in ("txt", "tsv", "jsonl")] == [
        0,
        0,
        0,
    ]
    topic = mount / "topics" / partition.name.rpartition("-")[0]
    assert [(topic / f"in.{suffix}").stat().st_size for suffix in ("txt", "tsv", "jsonl")] == [0, 0, 0]


def test_blocks(mount: DaemonMount) -> None:
    """T2. The count of blocks is the size in units of 512 bytes, rounded up; of directories and links it is 0, and of
    `log.txt` that of its partition's `.log` files, so that `du` tells what is stored.
    """
    partition = mount.new("zipped")
    append(partition / "log.txt", b"a\n")
    mount.steer("roll", partition)
    (mount / "topics/zipped/config").write_text("compression.type=zstd\n")
    append(partition / "log.txt", b"x" * 50_000 + b"\n")
    for path in every_file(mount, partition):
        status = path.stat()
        if path.name != "log.txt":
            assert status.st_blocks == (status.st_size + 511) // 512
    for path in (partition, partition / "views", mount / "topics", mount.path, partition / "views/segments"):
        assert path.lstat().st_blocks == 0
    for name in ("log.jsonl", "segments", "current.txt"):
        assert (partition / name).lstat().st_blocks == 0
    stored = mount.status(partition)["log_bytes"]
    logs = Path(mount.steer("files", partition)).glob("*.log")
    assert stored == sum(path.stat().st_size for path in logs) < 1000
    assert (partition / "log.txt").stat().st_blocks == (stored + 511) // 512
    small = sum((partition / name).stat().st_blocks for name in ("start", "status.json"))
    assert output(f"du -s --block-size=512 {partition}", mount.path).split()[0] == b"%d" % (
        (stored + 511) // 512 + small
    )


def test_times(mount: DaemonMount) -> None:
    """T3. A segment's files have the mtime of its `.log` file: it is not in the future and rises along the
    partition, for which the active one's is that of the segment before it where its own is earlier;
    `log.<fmt>` has the newest; asking changes no time.
    """
    partition = mount.new()
    for at in range(4):
        if at:
            mount.steer("roll", partition)
        append(partition / "log.txt", b"%d\n" % at)
    files = Path(mount.steer("files", partition))
    names = [f"{at:020}" for at in range(4)]
    times = [(partition / f"segments/{name}.txt").stat().st_mtime_ns for name in names]
    assert times == [(files / f"{name}.log").stat().st_mtime_ns for name in names]
    assert times == [(partition / f"segments/{name}.log").stat().st_mtime_ns for name in names]
    assert times[:3] == [(partition / f"sealed/tsv/{name}.tsv").stat().st_mtime_ns for name in names[:3]]
    assert times == sorted(set(times))
    assert times[-1] <= time.time_ns()
    time.sleep(0.02)
    (partition / "log.jsonl").read_bytes()
    assert (partition / "log.jsonl").stat().st_mtime_ns == times[-1]
    assert partition.stat().st_mtime_ns == times[-1]
    # A segment that was sealed within a millisecond is dated behind the one before it, and so may be the newest file.
    os.utime(files / f"{names[2]}.log", ns=(times[-1] + 1000, times[-1] + 1000))
    assert (partition / f"segments/{names[3]}.txt").stat().st_mtime_ns == times[-1] + 1000


def test_inodes(own: DaemonMount) -> None:
    """T4. Inode numbers differ between names and stay the same over a restart; a name that comes to stand
    for other bytes has another one: after compaction, when what was deleted is made again, and of `-<N>`
    and times when they select other records.
    """
    partition = letters(own)
    paths = [*every_file(own, partition), partition, partition / "offset", own / "topics"]
    before = {path: path.lstat().st_ino for path in paths}
    assert len(set(before.values())) == len(set(paths))
    with os.scandir(partition / "segments") as entries:
        assert all(stat.S_ISREG(entry.stat().st_mode) for entry in entries)
    assert own.stop() == 0
    own.start()
    assert {path: path.lstat().st_ino for path in paths} == before
    last = partition / "offset/-2.txt"
    before[last] = last.stat().st_ino
    append(partition / "log.tsv", b"n\td\n")
    assert last.stat().st_ino != before[last]
    own.steer("delete", partition)
    partition.mkdir()
    append(partition / "log.tsv", b"k\ta\nl\tb\n")
    own.steer("roll", partition)
    append(partition / "log.tsv", b"m\tc\n")
    views = [
        path for path in before if path.parent != own.path and partition in path.parents and path.is_file()
    ]
    assert len(views) > 10
    same = [path for path in views if path.stat().st_ino == before[path]]
    assert same == []
    assert own.stop() == 0


def test_extended_attributes(mount: DaemonMount) -> None:
    """T5. Views have `user.topicfs.first_offset` and `user.topicfs.next_offset`, segments' files also
    `user.topicfs.max_timestamp`.
    """
    partition = mount.new("dated")
    # The lines are of 1970: retention would remove them.
    (mount / "topics/dated/config").write_text("retention.ms=-1\n")
    append(partition / "log.jsonl", b'{"value":"a","timestamp":1000}\n{"value":"b","timestamp":900}\n')
    mount.steer("roll", partition)
    append(partition / "log.jsonl", b'{"value":"c","timestamp":2000}\n')

    def attributes(name: str) -> dict[str, str]:
        path = partition / name
        return {n.removeprefix("user.topicfs."): os.getxattr(path, n).decode() for n in os.listxattr(path)}

    first = {"first_offset": "0", "next_offset": "2", "max_timestamp": "1000"}
    for name in (f"segments/{0:020}.tsv", f"sealed/txt/{0:020}.txt"):
        assert attributes(name) == first
    assert attributes("current.txt") == {"first_offset": "2", "next_offset": "3", "max_timestamp": "2000"}
    assert attributes("log.txt") == {"first_offset": "0", "next_offset": "3"}
    assert attributes("offset/1-.txt") == {"first_offset": "1", "next_offset": "3"}
    assert attributes("offset/0-1.txt") == {"first_offset": "0", "next_offset": "2"}
    assert attributes("time/1970-01-01T00:00:01.5--.txt") == {"first_offset": "2", "next_offset": "3"}
    assert attributes("status.json") == {}


def test_statfs(mount: DaemonMount) -> None:
    """T6. statfs tells of the file system under BACKING."""
    ours, theirs = os.statvfs(mount / "topics"), os.statvfs(mount.backing)
    assert (ours.f_blocks, ours.f_frsize, ours.f_files) == (theirs.f_blocks, theirs.f_frsize, theirs.f_files)
    assert abs(ours.f_bavail - theirs.f_bavail) * ours.f_frsize < 1 << 30


def test_sizes_are_never_stale(mount: DaemonMount) -> None:
    """T7. A size is never stale: stat right after an append that was closed shows it."""
    partition = mount.new()
    with opened(partition / "log.txt") as reader:
        for at in range(1, 200):
            append(partition / "log.txt", b"x\n")
            assert (partition / "log.txt").stat().st_size == os.fstat(reader).st_size == 2 * at


def test_the_mount_tells_what_it_shows(mount: DaemonMount, tmp_path: Path) -> None:
    """T8. `user.topicfs.backing` of the mount's root is the path of BACKING, `user.topicfs.log_directories` those of
    all log directories with a zero byte between them, and a partition's directory has `user.topicfs.first_offset` and
    `user.topicfs.next_offset`, as `log.<fmt>` has: for whoever may look into the mount, with `--read-only` too;
    directories list no attributes, so nothing that copies them sets any.
    """
    partition = mount.new()
    append(partition / "log.txt", b"a\nb\nc\n")
    (partition / "start").write_text("1\n")
    own = DaemonMount(tmp_path)
    own.backing = mount.backing
    try:
        own.start("--read-only")
        for shown in (mount, own):
            directory = shown / partition.name
            told = [os.getxattr(directory, f"user.topicfs.{end}_offset") for end in ("first", "next")]
            assert told == [b"1", b"3"]
            assert told == [
                os.getxattr(directory / "log.txt", name) for name in os.listxattr(directory / "log.txt")
            ]
            assert Path(os.fsdecode(os.getxattr(shown.path, "user.topicfs.backing"))) == mount.backing
            logs = os.getxattr(shown.path, "user.topicfs.log_directories")
            assert Path(os.fsdecode(logs)) == mount.backing / "logs"
            assert os.listxattr(shown.path) == os.listxattr(directory) == []
        assert own.stop() == 0
    finally:
        own.clear()


# -- limits of libfuse 2 ------------------------------------------------------------------------------


def test_fstat(mount: DaemonMount) -> None:
    """X1. fstat of an open file tells of what was opened, also when its name is gone or stands for other
    bytes; for a second after that, and while it is open, stat of the name may tell of it too. Of a file of
    a deleted partition fstat is ENOENT or ESTALE, or tells of the file that has its name by then; of a file
    of an inbox that was removed it is ENOENT, while its bytes can be read and written.
    """
    partition = letters(mount)
    sealed = partition / f"sealed/txt/{0:020}.txt"
    with (
        opened(sealed) as file,
        opened(partition / "offset/0") as value,
        opened(partition / "start") as start,
    ):
        mount.steer("raise_start", partition, 2)
        assert os.fstat(file).st_size == 4
        assert os.fstat(value).st_size == 1
        assert sealed.name not in os.listdir(sealed.parent)
        with pytest.raises(FileNotFoundError):
            os.open(sealed, os.O_RDONLY)
        eventually(lambda: not sealed.exists(), "the name to go")
        assert os.fstat(file).st_size == 4
        assert os.fstat(value).st_size == 1
        log = os.open(partition / "log.txt", os.O_RDONLY)
        delete(partition)
        for again in (False, True):
            if again:
                partition.mkdir()
            for each in (file, value):
                with refused(errno.ENOENT, errno.ESTALE):
                    os.fstat(each)
            for each in (start, log):
                if again:
                    assert os.fstat(each).st_size in (0, 2), "of the new one"
                else:
                    with refused(errno.ENOENT):
                        os.fstat(each)
        os.close(log)
    removed = mount / "topics/plain/inbox/.removed"
    with opened(removed, os.O_RDWR | os.O_CREAT) as file:
        os.write(file, b"here")
        removed.unlink()
        with refused(errno.ENOENT):
            os.fstat(file)
        assert os.pwrite(file, b"still", 4) == 5
        assert os.pread(file, 20, 0) == b"herestill"


def test_inotify(mount: DaemonMount) -> None:
    """X2. inotify tells of what is done through the very name that is watched, not of growth that came
    through another one; `tail -f` polls and sees all.
    """
    partition = mount.new()
    library = ctypes.CDLL(None, use_errno=True)
    watch = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    in_modify = 2
    try:
        assert library.inotify_add_watch(watch, bytes(partition / "log.txt"), in_modify) > 0
        append(partition / "log.tsv", b"k\ta\n")
        with pytest.raises(BlockingIOError):
            os.read(watch, 4096)
        with subprocess.Popen(["tail", "-n0", "-f", partition / "log.txt"], stdout=subprocess.PIPE) as tail:
            file = f"/proc/{tail.pid}/fd"
            eventually(
                lambda: any(os.readlink(f"{file}/{fd}").endswith("log.txt") for fd in os.listdir(file)),
                "tail",
            )
            time.sleep(0.1)
            append(partition / "log.tsv", b"k\tb\n")
            assert tail.stdout is not None
            assert tail.stdout.readline() == b"b\n"
            tail.terminate()
        append(partition / "log.txt", b"c\n")
        assert os.read(watch, 4096)
    finally:
        os.close(watch)


def test_poll_says_ready(mount: DaemonMount) -> None:
    """X3. poll and select always say ready, also for a `follow.<fmt>` that would block, and O_NONBLOCK does
    not keep its reads from waiting.
    """
    partition = letters(mount)
    for name in ("log.txt", "follow.txt"):
        with opened(partition / name, os.O_RDONLY | os.O_NONBLOCK) as file:
            # The kernel asks the file in one way for both calls; select(2) takes no descriptor from 1,024 on.
            waiting = select.poll()
            waiting.register(file, select.POLLIN)
            assert waiting.poll(0) == [(file, select.POLLIN)]
    with opened(partition / "follow.txt", os.O_RDONLY | os.O_NONBLOCK) as file:
        later = threading.Timer(0.4, append, (partition / "log.txt", b"later\n"))
        later.start()
        assert os.read(file, 100) == b"later\n"
        later.join()


def test_long_writes_come_in_pieces(mount: DaemonMount) -> None:
    """X4. A write of more than 1 MiB, or 128 KiB with a kernel before 4.20, reaches the daemon in pieces: a refusal in
    a later piece leaves the earlier ones appended, as a short write, and the next write gives the error.
    """
    partition = mount.new()
    good = b'{"value":"' + b"x" * 987 + b'"}\n'
    lines = 1200
    with opened(partition / "log.jsonl", APPEND) as file:
        done = os.write(file, good * lines + b"bad\n" + good)
        assert 1 << 20 <= done <= lines * len(good)
        with pytest.raises(OSError, match="Invalid argument"):
            write_all(file, (good * lines + b"bad\n" + good)[done:])
    assert mount.status(partition)["end_offset"] == lines
    for name, line in (
        ("log.txt", b"x" * 2_000_000 + b"\n"),
        ("log.tsv", b"\r" + b"x" * 1_200_000 + b"\tv\n"),
    ):
        with opened(partition / name, APPEND) as file:
            done = os.write(file, line)
            assert 100_000 < done < len(line)
            with pytest.raises(OSError, match=r"Invalid argument|too long"):
                os.write(file, line[done:])
            write_all(file, line[-4:] if name == "log.txt" else b"k\tv\n")
    assert (partition / "offset" / f"{lines}-.txt").read_bytes() == b"xxx\nv\n"


def test_the_last_close_is_told_to_nobody(mount: DaemonMount) -> None:
    """X5. The last close is told to nobody: where a line that it completes is bad, or the disk fails under it, that
    shows in the log and in `last_refusal` only. That there is no room for it is told before (E6).
    """
    partition = mount.new()
    mount.expect("a last line of 4 bytes is refused")
    file = os.open(partition / "log.jsonl", APPEND)
    os.write(file, b"bad")
    os.close(file)
    eventually(lambda: mount.status(partition)["last_refusal"] is not None, "the refusal")
    assert "a last line of 4 bytes is refused" in mount.said()


def test_access_times(mount: DaemonMount) -> None:
    """X6. Access and change times are modification times."""
    partition = letters(mount)
    for path in every_file(mount, partition):
        status = path.stat()
        assert status.st_atime_ns == status.st_mtime_ns == status.st_ctime_ns


def test_closes_that_bash_does_not_look_at(mount: DaemonMount) -> None:
    """X7. bash does not look at what close(2) gives it for its own `echo` and `printf`: the error of W6 shows
    to other programs only.
    """
    partition = letters(mount)
    for command, failed in (("printf", False), ("/usr/bin/printf", True)):
        done = subprocess.run(["bash", "-c", f"{command} 99 > start"], cwd=partition, check=False)
        assert (done.returncode != 0) is failed
        assert "high watermark 3" in mount.status(partition)["last_refusal"]["reason"]


def test_mappings_of_what_grows(mount: DaemonMount) -> None:
    """X8. A private mapping of a file that grows has the bytes that were there when it was mapped; later ones
    show in a new mapping.
    """
    partition = mount.new()
    append(partition / "log.txt", b"one\n")
    with (
        opened(partition / "log.txt") as file,
        mmap.mmap(file, 4, mmap.MAP_PRIVATE, mmap.PROT_READ) as seen,
    ):
        assert seen[:4] == b"one\n"
        append(partition / "log.txt", b"two\n")
        for _ in range(3):
            assert seen[:4] == b"one\n"
            with mmap.mmap(file, os.fstat(file).st_size, mmap.MAP_PRIVATE, mmap.PROT_READ) as new:
                assert new[:] == b"one\ntwo\n"


def test_mappings_of_a_log_that_begins_elsewhere(mount: DaemonMount, tmp_path: Path) -> None:
    """X9. While somebody holds `log.<fmt>` from before records were removed at its beginning, whoever opens
    it later reads it, but cannot map it or send it by sendfile(2): that is SIGBUS, and EIO. So it is with `config` and
    `start` while somebody has them mapped from before a change.
    """
    partition = letters(mount)
    script = (
        "import mmap, os, sys\n"
        "file = os.open(sys.argv[1], os.O_RDONLY)\n"
        "mmap.mmap(file, 2, mmap.MAP_PRIVATE, mmap.PROT_READ)[:]\n"
    )
    mapping = [sys.executable, "-c", script]
    with opened(partition / "log.txt") as holder, (tmp_path / "out").open("wb") as out:
        assert os.pread(holder, 10, 0) == b"a\nb\nc\n"
        mount.steer("raise_start", partition, 2)
        with opened(partition / "log.txt") as file:
            assert os.pread(file, 10, 0) == b"c\n"
            with refused(errno.EIO):
                os.sendfile(out.fileno(), file, 0, 2)
            assert os.pread(file, 10, 0) == b"c\n"
        assert subprocess.run([*mapping, partition / "log.txt"], check=False).returncode == -signal.SIGBUS
        assert os.pread(holder, 10, 0) == b"a\nb\nc\n"
    eventually(lambda: (partition / "log.txt").stat().st_size == 2, "nobody holds it")
    assert subprocess.run([*mapping, partition / "log.txt"], check=False).returncode == 0
    config = mount / "topics" / partition.name.rpartition("-")[0] / "config"
    for path, change in ((config, b"retention.ms=12345\n"), (partition / "start", b"3\n")):
        with opened(path) as holder:
            before = os.pread(holder, 1 << 16, 0)
            held = mmap.mmap(holder, len(before), mmap.MAP_PRIVATE, mmap.PROT_READ)
            assert held[:] == before
            append(path, change)
            with opened(path) as file, (tmp_path / "out").open("wb") as out:
                after = os.pread(file, 1 << 16, 0)
                assert after not in (b"", before)
                with refused(errno.EIO):
                    os.sendfile(out.fileno(), file, 0, len(after))
            assert subprocess.run([*mapping, path], check=False).returncode == -signal.SIGBUS
            assert held[:] == before
            held.close()
        assert subprocess.run([*mapping, path], check=False).returncode == 0


def test_locks_of_what_became_another_file(mount: DaemonMount) -> None:
    """X10. Locks are of the file that the kernel knows: of a segment, a range or `status.json` whoever
    opens it after its bytes became others locks another one; `log.<fmt>`, `in.<fmt>`, `config` and `start`
    are one for all.
    """
    partition = letters(mount)
    topic = mount / "topics" / partition.name.rpartition("-")[0]
    for path, is_one in (
        (partition / "log.txt", True),
        (topic / "config", True),
        (topic / "in.txt", True),
        (partition / "start", True),
        (partition / "status.json", False),
        (partition / "offset/-2.txt", False),
    ):
        flags = os.O_WRONLY | os.O_APPEND if path.name == "in.txt" else os.O_RDONLY
        with opened(path, flags) as first:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            append(partition / "log.tsv", b"k\tmore\n")
            with opened(path, flags) as second:
                taken = True
                with suppress(BlockingIOError):
                    fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    taken = False
                assert taken is is_one, path


def test_what_a_listing_does_not_tell(mount: DaemonMount) -> None:
    """X11. What readdir(3) itself gives are names, without inode numbers and kinds: for those stat(2) is asked, as
    `ls -i`, `find` and `os.walk` do.
    """
    partition = letters(mount)
    for directory in (partition, partition / "views/segments", mount / "topics"):
        with os.scandir(directory) as entries:
            listed = list(entries)
        assert listed
        assert {entry.inode() for entry in listed} == {0xFFFFFFFF}
        told = {entry.name: entry.stat(follow_symlinks=False) for entry in listed}
        inodes = output("ls -Ui1 | sed 's/^ *//'", directory).decode()
        assert set(inodes.splitlines()) == {f"{found.st_ino} {name}" for name, found in told.items()}
        directories = output("find . -mindepth 1 -maxdepth 1 -type d -printf '%P\\n'", directory).decode()
        assert set(directories.splitlines()) == {
            n for n, found in told.items() if stat.S_ISDIR(found.st_mode)
        }


def test_what_mv_says_of_what_is_malformed(mount: DaemonMount) -> None:
    """X12. mv says "to a subdirectory of itself" of every rename that is EINVAL, also for a malformed line, a name or
    a sequence. What it was is under `last_refusal` in the `status.json` of the partitions concerned, or in
    `transactions/t1.json`.
    """
    partition = mount.new("renamed")
    inbox = mount / "topics" / partition.name.rpartition("-")[0] / "inbox"
    place = mount / "producers/mover" / partition.name
    begun = mount / "transactions/moved"
    (mount / "producers/mover").mkdir()
    begun.mkdir()
    (begun / f"{partition.name}.jsonl").write_text("bad\n")
    for old, new, reason in (
        (inbox / ".x", inbox / "x.jsonl", "expected an object, found 'bad'"),
        (inbox / ".x", inbox / "x.csv", "x.csv"),
        (place / ".x", place / "5.txt", "sequence"),
    ):
        old.write_text("bad\n")
        moved = subprocess.run(["mv", old, new], capture_output=True, check=False)
        assert (moved.returncode, b"subdirectory" in moved.stderr) == (1, True)
        assert reason in mount.status(partition)["last_refusal"]["reason"]
    moved = subprocess.run(["mv", begun, f"{begun}.commit"], capture_output=True, check=False)
    assert (moved.returncode, b"subdirectory" in moved.stderr) == (1, True)
    refusal = json.loads((mount / "transactions/moved.json").read_text())["last_refusal"]
    assert "expected an object, found 'bad'" in refusal["reason"]
