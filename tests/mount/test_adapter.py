"""The adapter on real mounts of a small file system in memory.

`access` is never asked, since the kernel checks permissions itself, and locks stay in the kernel: nothing to test.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import Mount, missing, mounted
from memory_files import MTIME_NS, Small, Stillborn
from nothing import Nothing
from patience import PATIENCE_S, promptly

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    with mounted(Small, tmp_path) as mount:
        yield mount


@contextlib.contextmanager
def fails_with(number: int) -> Iterator[None]:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - its errno is checked
        yield
    assert errno.errorcode[caught.value.errno or 0] == errno.errorcode[number]


def calls(mount: Mount) -> list[str]:
    return (mount / "calls").read_text().splitlines()


def eventually(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> bool:
    """Whether it comes true: what a close or an unmount sets off happens after it."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


# -- attributes ---------------------------------------------------------------------------------------------


def test_stat_shows_what_the_operations_say(mount: Mount) -> None:
    (mount / "file").write_bytes(b"x" * 1000)
    found = (mount / "file").stat()
    assert (found.st_size, found.st_blocks, found.st_nlink) == (1000, 2, 1)
    assert (found.st_uid, found.st_gid) == (11, 12)
    assert found.st_mtime_ns == found.st_ctime_ns == MTIME_NS
    assert stat.S_ISREG(found.st_mode)
    assert 100 < found.st_ino < 200


def test_programs_are_told_to_use_buffers_as_large_as_a_request(mount: Mount) -> None:
    assert (mount / "calls").stat().st_blksize == 1 << 20


def test_the_size_of_a_growing_file_is_never_stale(mount: Mount) -> None:
    sizes = [os.stat(mount / "growing").st_size for _ in range(20)]
    assert all(later > earlier for earlier, later in itertools.pairwise(sizes))


def test_a_name_that_was_missing_shows_as_soon_as_it_is_there(mount: Mount) -> None:
    assert not (mount / "new").exists()
    (mount / "other").touch()
    (mount / "other").rename(mount / "new")
    assert (mount / "new").exists()
    before = len([call for call in calls(mount) if call.startswith("getattr /.none")])
    for _ in range(3):
        assert not (mount / ".none").exists()
    assert len([call for call in calls(mount) if call.startswith("getattr /.none")]) == before + 3


def test_times_are_passed_on_and_those_that_stay_are_none(mount: Mount) -> None:
    (mount / "file").touch()
    os.utime(mount / "file", ns=(5, 1_000_000_007))
    assert "utimens /file 5 1000000007" in calls(mount)
    start = time.time_ns()
    subprocess.run(["touch", "-m", mount / "file"], check=True)
    accessed, modified = [call for call in calls(mount) if call.startswith("utimens")][-1].split()[2:]
    assert accessed == "None"
    assert start <= int(modified) <= time.time_ns()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_an_owner_that_stays_is_minus_one(mount: Mount) -> None:
    (mount / "file").touch()
    os.chown(mount / "file", 5, -1)
    assert "chown /file 5 -1" in calls(mount)


def test_modes_are_passed_on(mount: Mount) -> None:
    (mount / "file").touch()
    (mount / "file").chmod(0o604)
    assert stat.S_IMODE((mount / "file").stat().st_mode) == 0o604


def test_statvfs_shows_what_the_operations_say(mount: Mount) -> None:
    found = os.statvfs(mount.path)
    assert (found.f_bsize, found.f_frsize, found.f_blocks, found.f_bfree, found.f_bavail) == (
        4096,
        4096,
        1000,
        500,
        400,
    )
    assert (found.f_files, found.f_ffree, found.f_namemax) == (90, 80, 200)


def _open_to_all(place: Path) -> Path:
    place.chmod(0o755)
    return place


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_permissions_are_enforced_by_the_kernel() -> None:
    # A stranger does not get into pytest's own directories.
    with (
        tempfile.TemporaryDirectory() as name,
        mounted(Small, _open_to_all(Path(name)), allow_other=True) as mount,
    ):

        def by_a_stranger(name: str) -> int:
            words = ["setpriv", "--reuid=65534", "--clear-groups", "cat", mount / name]
            return subprocess.run(words, check=False, capture_output=True).returncode

        assert by_a_stranger("calls") == 0
        assert by_a_stranger("secret") == 1
        assert "open /secret 0" not in calls(mount)


# -- extended attributes ------------------------------------------------------------------------------------


def test_extended_attributes_come_and_go(mount: Mount) -> None:
    file = mount / "file"
    file.touch()
    os.setxattr(file, "user.topicfs.first_offset", b"5")
    os.setxattr(file, "user.empty", b"")
    assert os.getxattr(file, "user.topicfs.first_offset") == b"5"
    assert os.getxattr(file, "user.empty") == b""
    assert sorted(os.listxattr(file)) == ["user.empty", "user.topicfs.first_offset"]
    os.removexattr(file, "user.empty")
    assert os.listxattr(file) == ["user.topicfs.first_offset"]
    with fails_with(errno.ENODATA):
        os.getxattr(file, "user.other")


def test_attributes_that_the_kernel_asks_for_do_not_reach_the_operations(mount: Mount) -> None:
    with (mount / "file").open("wb") as stream:
        stream.write(b"x")
    with fails_with(errno.ENOTSUP):
        os.getxattr(mount / "file", "security.selinux")
    assert not [call for call in calls(mount) if call.startswith("getxattr")]


# -- names --------------------------------------------------------------------------------------------------


def test_a_directory_is_listed_by_one_call(mount: Mount) -> None:
    (mount / "folder").mkdir()
    (mount / "file").touch()
    assert {"folder", "file"} < set(os.listdir(mount.path))
    assert calls(mount).count("readdir /") == 1


def test_listing_gives_the_order_of_the_operations_also_of_many_names(mount: Mount) -> None:
    (mount / "many").mkdir()
    names = [f"{number * 79 % 300:03d}" for number in range(300)]
    for name in names:
        (mount / "many" / name).touch()
    assert os.listdir(mount / "many") == names


def test_directories_are_made_moved_and_removed(mount: Mount) -> None:
    (mount / "one").mkdir()
    (mount / "one/two").mkdir()
    with fails_with(errno.ENOTEMPTY):
        (mount / "one").rmdir()
    with fails_with(errno.EEXIST):
        (mount / "one").mkdir()
    (mount / "one").rename(mount / "three")
    (mount / "three/two").rmdir()
    (mount / "three").rmdir()
    assert not (mount / "three").exists()


def test_a_link_leads_to_its_target(mount: Mount) -> None:
    (mount / "file").write_bytes(b"here")
    (mount / "link").symlink_to("file")
    assert os.readlink(mount / "link") == "file"
    assert (mount / "link").read_bytes() == b"here"


def test_names_of_any_bytes_come_back_unchanged(mount: Mount) -> None:
    for name in (b"caf\xc3\xa9", b"\xff\xfe", b"a b\nc"):
        path = os.fsencode(mount.path) + b"/" + name
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        assert name in os.listdir(os.fsencode(mount.path))
        os.stat(path)


# -- reading ------------------------------------------------------------------------------------------------


def test_reading_gives_the_bytes_at_any_position(mount: Mount) -> None:
    data = os.urandom(1 << 20)
    for name in ("file", "direct"):
        (mount / name).write_bytes(data)
        descriptor = os.open(mount / name, os.O_RDONLY)
        for position, size in ((0, 10), (4095, 3), (131_071, 200_000), (1_048_570, 100), (2_000_000, 5)):
            assert os.pread(descriptor, size, position) == data[position : position + size]
        os.close(descriptor)
        assert (mount / name).read_bytes() == data


def test_large_reads_and_writes_come_as_requests_of_a_mebibyte(mount: Mount) -> None:
    # At the start of a page: a request holds 256 of them, and other buffers lie across one more.
    with mmap.mmap(-1, 4 << 20) as data:
        descriptor = os.open(mount / "direct", os.O_RDWR | os.O_CREAT)
        assert os.write(descriptor, data) == os.preadv(descriptor, [data], 0) == 4 << 20
        os.close(descriptor)
    assert calls(mount).count("write /direct 1048576") == 4
    assert (
        len([call for call in calls(mount) if call.startswith("read /direct") and call.endswith(" 1048576")])
        == 4
    )


def test_a_file_that_is_direct_is_read_past_its_size_and_another_is_not(mount: Mount) -> None:
    assert (mount / "threads").stat().st_size == 0
    descriptor = os.open(mount / "threads", os.O_RDONLY)
    assert os.read(descriptor, 100)
    os.close(descriptor)


def test_pages_are_kept_for_the_next_open_only_where_the_operations_say_so(mount: Mount) -> None:
    reads = {}
    for name in ("keep", "drop"):
        (mount / name).write_bytes(bytes(10_000))
        for _ in range(2):
            (mount / name).read_bytes()
        reads[name] = len([call for call in calls(mount) if call.startswith(f"read /{name} 0")])
    # Written through the page cache, so even the first read of what is kept asks for nothing.
    assert reads == {"drop": 2, "keep": 0}


def test_a_removed_file_stays_readable_while_it_is_open_and_leaves_no_trace(mount: Mount) -> None:
    (mount / "direct").write_bytes(b"still here")
    with (mount / "direct").open("rb", buffering=0) as stream:
        (mount / "direct").unlink()
        assert not [name for name in os.listdir(mount.path) if "direct" in name or name.startswith(".fuse")]
        assert stream.read(100) == b"still here"
        # libfuse 2 finds attributes by path alone, so this is beyond it.
        with fails_with(errno.ENOENT):
            os.fstat(stream.fileno())


# -- reads that wait ----------------------------------------------------------------------------------------


def _reader(mount: Mount) -> subprocess.Popen[bytes]:
    reader = subprocess.Popen(["cat", mount / "blocked/wait"], stdout=subprocess.PIPE)
    assert eventually(lambda: any(call.startswith("read /blocked/wait") for call in calls(mount)))
    return reader


@pytest.mark.busy
def test_a_read_that_waits_ends_with_ctrl_c(mount: Mount) -> None:
    def interrupt() -> float:
        with _reader(mount) as reader:
            start = time.monotonic()
            reader.send_signal(signal.SIGINT)
            assert reader.wait(PATIENCE_S) == -signal.SIGINT
            return time.monotonic() - start

    promptly(1.5, interrupt)


@pytest.mark.busy
def test_a_read_that_waits_goes_on_by_itself_when_there_is_something(mount: Mount) -> None:
    with _reader(mount) as reader:
        time.sleep(1)
        (mount / "go").touch()
        assert reader.wait(PATIENCE_S) == 0


@pytest.mark.busy
def test_a_read_that_waits_holds_up_nothing_above_it(mount: Mount) -> None:
    with _reader(mount) as reader:
        names = iter(range(100))

        def move() -> float:
            name = f"moved-{next(names)}"
            (mount / "blocked").rename(mount / name)
            start = time.monotonic()
            (mount / name).rename(mount / "blocked")
            return time.monotonic() - start

        promptly(0.2, move)
        reader.terminate()


@pytest.mark.busy
def test_the_death_of_the_daemon_releases_a_read_that_waits(mount: Mount) -> None:
    with _reader(mount) as reader:
        mount.kill()
        assert reader.wait(PATIENCE_S) == 1


@pytest.mark.busy
def test_unmounting_lazily_and_a_signal_release_a_read_that_waits(mount: Mount) -> None:
    with _reader(mount) as reader:
        os.kill(mount.pid, signal.SIGTERM)
        assert reader.wait(PATIENCE_S) == 1
        mount.process.join(PATIENCE_S)
        assert mount.process.exitcode == 0


# -- writing ------------------------------------------------------------------------------------------------


def test_an_append_arrives_with_its_flags_and_each_close_of_a_descriptor_flushes(mount: Mount) -> None:
    descriptor = os.open(mount / "append", os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, b"line\n")
    os.fsync(descriptor)
    os.fdatasync(descriptor)
    os.close(os.dup(descriptor))
    os.close(descriptor)
    assert eventually(lambda: "release /append" in calls(mount))
    flags = os.O_WRONLY | os.O_APPEND
    expected = [f"open /append {flags}", "write /append 5", "fsync /append False", "fsync /append True"]
    expected += ["flush /append", "flush /append", "release /append"]
    asked = [
        call for call in calls(mount) if call.split()[0] in {"open", "write", "fsync", "flush", "release"}
    ]
    assert [call for call in asked if "/append" in call] == expected


def test_create_passes_the_mode_and_opens(mount: Mount) -> None:
    descriptor = os.open(mount / "direct-new", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640)
    assert os.write(descriptor, b"abc") == 3
    os.close(descriptor)
    assert f"create /direct-new {oct(stat.S_IFREG | 0o640)}" in calls(mount)
    assert (mount / "direct-new").read_bytes() == b"abc"


def test_a_write_that_takes_a_part_is_a_short_write(mount: Mount) -> None:
    descriptor = os.open(mount / "append", os.O_WRONLY)
    assert os.write(descriptor, b"good|bad") == 4
    os.close(descriptor)


def test_a_refused_write_gives_its_errno_and_its_reason_is_in_the_log(mount: Mount) -> None:
    descriptor = os.open(mount / "append", os.O_WRONLY)
    with fails_with(errno.EINVAL):
        os.write(descriptor, b"bad")
    os.close(descriptor)
    assert eventually(lambda: "EINVAL: line 1: bad" in mount.said())


def test_an_error_of_flush_is_what_close_gives(mount: Mount) -> None:
    descriptor = os.open(mount / "append", os.O_WRONLY)
    os.write(descriptor, b"unfinished")
    with fails_with(errno.ENOSPC):
        os.close(descriptor)
    mount.expect("flush 'handle ")


def test_truncation_is_asked_and_its_refusal_is_given(mount: Mount) -> None:
    with fails_with(errno.EPERM):
        (mount / "append").open("w")
    with fails_with(errno.EPERM):
        os.truncate(mount / "append", 0)
    with (mount / "file").open("wb") as stream:
        stream.write(b"12345678")
        stream.flush()
        stream.truncate(3)
    assert "truncate /file 3 with handle" in calls(mount) or "truncate  3 with handle" in calls(mount)
    assert (mount / "file").read_bytes() == b"123"


def test_a_read_only_mount_refuses_writers(tmp_path: Path) -> None:
    with mounted(Small, tmp_path, ro=True) as mount:
        with fails_with(errno.EROFS):
            (mount / "append").open("ab")
        with fails_with(errno.EROFS):
            (mount / "folder").mkdir()


# -- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "number", "logged"),
    [
        ("missing", errno.ENOENT, None),
        ("corrupt", errno.EIO, "getattr '/wrong/corrupt': EIO: crc 1, expected 2"),
        ("full", errno.ENOSPC, "ENOSPC"),
        ("bug", errno.EIO, "ZeroDivisionError: a bug"),
        ("interrupt", errno.EIO, "KeyboardInterrupt"),
        ("exit", errno.EIO, "SystemExit: 3"),
    ],
)
def test_every_error_becomes_an_errno_and_the_daemon_lives_on(
    mount: Mount, name: str, number: int, logged: str | None
) -> None:
    with fails_with(number):
        os.stat(mount / "wrong" / name)
    assert (mount / "calls").read_text()
    if logged is not None:
        assert logged in mount.said()
        mount.expect(f"getattr '/wrong/{name}'")
    else:
        assert "/wrong" not in mount.said()


def test_what_the_operations_do_not_have_is_answered_by_libfuse(tmp_path: Path) -> None:
    with mounted(Nothing, tmp_path) as mount:
        with fails_with(errno.ENOSYS):
            (mount / ".link").symlink_to("direct")
        with fails_with(errno.ENOTSUP):
            os.getxattr(mount / "direct", "user.x")
        assert sorted(os.listdir(mount.path)) == ["cached", "direct"]


# -- threads ------------------------------------------------------------------------------------------------


def _stat(path: Path) -> None:
    path.stat()


def _threads(mount: Mount) -> tuple[int, int]:
    with (mount / "threads").open("rb", buffering=0) as stream:
        threads, states = stream.read(100).split()
    return int(threads), int(states)


@pytest.mark.busy
def test_waiting_reads_do_not_hold_up_other_calls_and_their_threads_leave_nothing_behind(
    mount: Mount,
) -> None:
    for _ in range(3):
        readers = [subprocess.Popen(["cat", mount / "blocked/wait"]) for _ in range(30)]
        assert eventually(lambda: _threads(mount)[0] > 30)
        promptly(0.3, lambda: _stat(mount / "calls"))
        for reader in readers:
            reader.terminate()
        assert all(reader.wait(PATIENCE_S) == -signal.SIGTERM for reader in readers)
        # libfuse keeps ten idle threads; each one has a state, and nobody else but the main thread.
        assert eventually(lambda: _threads(mount)[0] < 20)
        assert eventually(lambda: _threads(mount)[1] <= 13)


@pytest.mark.busy
def test_calls_from_many_threads_at_once_are_all_answered(mount: Mount) -> None:
    (mount / "direct").write_bytes(os.urandom(300_000))
    expected = (mount / "direct").read_bytes()
    wrong = []

    def ask(number: int) -> None:
        for turn in range(50):
            name = mount / f"direct{number}-{turn}"
            name.write_bytes(expected[number:])
            if name.read_bytes() != expected[number:]:
                wrong.append(name)
            name.unlink()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


_HERE = Path(__file__).parent
_ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{_HERE}:{_HERE.parent.parent}"}


def _python(code: str, mountpoint: Path) -> list[str | Path]:
    return [sys.executable, "-c", code, mountpoint]


# -- life ---------------------------------------------------------------------------------------------------


def test_init_comes_first_and_destroy_last(tmp_path: Path) -> None:
    with mounted(Small, tmp_path) as mount:
        assert "served" in mount.said()
        assert "ended" not in mount.said()
    assert mount.process.exitcode == 0
    assert mount.said().count("ended") == 1


def test_an_error_of_init_ends_the_mount(tmp_path: Path) -> None:
    # The mount may show for a moment.
    with pytest.raises(AssertionError), mounted(Stillborn, tmp_path) as mount:
        mount.process.join(PATIENCE_S)
    assert "ValueError: stillborn" in (tmp_path / "mount.log").read_text()
    assert not os.path.ismount(tmp_path / "mnt")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_unmounts(mount: Mount, number: signal.Signals) -> None:
    os.kill(mount.pid, number)
    mount.process.join(PATIENCE_S)
    assert mount.process.exitcode == 0
    assert not mount.is_mounted


def test_it_can_be_served_by_any_thread(tmp_path: Path) -> None:
    code = """
import sys, threading
from pathlib import Path
from topicfs.fs.fuse.adapter import serve
from memory_files import Small
for _ in range(2):
    thread = threading.Thread(target=serve, args=(Small(), Path(sys.argv[1]), {}))
    thread.start()
    thread.join()
print("alive")
"""
    with subprocess.Popen(_python(code, tmp_path), stdout=subprocess.PIPE, env=_ENVIRONMENT) as process:
        for _ in range(2):
            assert eventually(lambda: os.path.ismount(tmp_path) or process.poll() is not None, 20)
            assert (tmp_path / "calls").exists()
            subprocess.run(["fusermount", "-u", tmp_path], check=True)
        assert process.communicate(timeout=60)[0] == b"alive\n"
    assert process.returncode == 0


def test_the_mount_names_its_kind_and_source(mount: Mount) -> None:
    line = next(
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(mount.path) in line
    )
    assert " - fuse.topicfs topicfs " in line


def test_what_libfuse_says_of_a_mount_that_fails_is_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "busy").mkdir()
    (tmp_path / "busy/file").touch()
    code = """
import sys
from pathlib import Path
from topicfs.fs.fuse.adapter import serve
from topicfs.fs.errors import MountRefusedError
from memory_files import Small
try:
    serve(Small(), Path(sys.argv[1]), {})
except MountRefusedError as error:
    print(error)
"""
    for name, words in (("busy", "not empty"), ("nowhere", "No such file")):
        command = _python(code, tmp_path / name)
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=_ENVIRONMENT)
        assert words in done.stdout
        assert done.stderr == ""
