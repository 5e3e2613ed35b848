"""What the generic tests of xfstests ask of every file system: reads, mappings, listings and times that agree with each
other, whichever way a program comes. Of ordinary files, where a mount offers them, and of the append-only tree.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from daemon_mount import DaemonMount, append, opened, refused
from entries import commands, files, letters, read, writable
from inboxes import Topic
from patience import ended

pytest_plugins = ["shared_mount"]

LIBC = ctypes.CDLL(None, use_errno=True)
PAGE = mmap.PAGESIZE
NAMES = itertools.count()
PLACES = ("inbox", "batch", "transaction", "producer")


@pytest.fixture(params=PLACES)
def file(mount: DaemonMount, request: pytest.FixtureRequest) -> Path:
    """The path of a new file, in each place in which programs have ordinary files."""
    name = f"files{next(NAMES)}"
    topic = Topic(mount)
    match request.param:
        case "inbox":
            return topic.inbox / ".file"
        case "batch":
            (topic.inbox / name).mkdir()
            return topic.inbox / name / "part.txt"
        case "transaction":
            (mount / "transactions" / name).mkdir()
            return mount / "transactions" / name / ".file"
        case _:
            (mount / "producers" / name).mkdir()
            return mount / "producers" / name / topic.partition().name / ".file"


# -- ways to the same bytes -------------------------------------------------------------------------------


@contextmanager
def mapped(file: int, size: int) -> Iterator[mmap.mmap]:
    """A shared mapping that can be written."""
    with mmap.mmap(file, size) as mapping:
        yield mapping


def test_direct_and_buffered_calls_and_mappings_see_one_file(file: Path) -> None:
    """What one of them writes all others read at once."""
    size = 64 * PAGE
    with opened(file, os.O_RDWR | os.O_CREAT) as buffered, opened(file, os.O_RDWR | os.O_DIRECT) as direct:
        os.ftruncate(buffered, size)
        with mapped(buffered, size) as here, mapped(direct, size) as there, mmap.mmap(-1, PAGE) as aligned:
            writers: dict[str, Callable[[bytes, int], object]] = {
                "write": lambda data, at: os.pwrite(buffered, data, at),
                "direct write": lambda data, at: (
                    aligned.seek(0),
                    aligned.write(data),
                    os.pwritev(direct, [aligned], at),
                ),
                "mapping": lambda data, at: here.__setitem__(slice(at, at + PAGE), data),
                "other mapping": lambda data, at: there.__setitem__(slice(at, at + PAGE), data),
            }
            for turn, (name, write) in enumerate(list(writers.items()) * 4):
                data, at = bytes([65 + turn]) * PAGE, turn % 5 * 7 * PAGE
                write(data, at)
                os.preadv(direct, [aligned], at)
                seen = (os.pread(buffered, PAGE, at), aligned[:], here[at : at + PAGE], there[at : at + PAGE])
                assert seen == (data,) * 4, (name, turn)
        os.ftruncate(buffered, 3)
        assert os.pread(buffered, 9, 0) == file.read_bytes()
        assert os.fstat(direct).st_size == 3


def test_a_file_is_written_from_a_mapping_of_itself_and_read_into_one(file: Path) -> None:
    """The kernel then asks the daemon for a page in the middle of a write: neither waits for the other."""
    with opened(file, os.O_RDWR | os.O_CREAT) as descriptor:
        os.write(descriptor, b"0123456789" * 1000)
        with mapped(descriptor, 10_000) as mapping:
            assert os.pwrite(descriptor, memoryview(mapping)[5000:9000], 100) == 4000
            assert os.preadv(descriptor, [memoryview(mapping)[8000:9000]], 0) == 1000
            assert mapping[8000:9000] == mapping[:1000] == os.pread(descriptor, 1000, 0)
        assert os.pread(descriptor, 10, 100) == b"0123456789"


def test_a_log_is_appended_from_a_mapping_of_itself(mount: DaemonMount) -> None:
    """As above, of a file that the daemon answers each read of."""
    partition = letters(mount)
    lines = b"".join(b"%08d\n" % number for number in range(5000))
    append(partition / "log.txt", lines)
    whole = read(partition)
    with (
        opened(partition / "log.txt", os.O_RDWR | os.O_APPEND) as log,
        mmap.mmap(log, len(whole), flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as mapping,
    ):
        written = 0
        while written < len(whole):
            written += os.write(log, memoryview(mapping)[written:])
    assert read(partition) == whole * 2


def test_no_shared_mapping_writes_into_a_log(mount: DaemonMount) -> None:
    partition = letters(mount)
    with opened(partition / "log.txt", os.O_RDWR | os.O_APPEND) as log, refused(errno.ENODEV, errno.EACCES):
        mmap.mmap(log, 6)
    with opened(partition / f"segments/{0:020}.txt") as segment, refused(errno.EACCES):
        mmap.mmap(segment, 4)
    assert read(partition) == b"a\nb\nc\n"


def test_the_ways_to_append_append_once(mount: DaemonMount) -> None:
    """writev of many pieces is one write; a position, O_DIRECT and RWF_APPEND change nothing of it."""
    partition = letters(mount)
    expected = read(partition)
    for flags in (os.O_WRONLY, os.O_RDWR | os.O_DIRECT, os.O_WRONLY | os.O_SYNC):
        with opened(partition / "log.txt", flags | os.O_APPEND) as log:
            for pieces, how in (
                ([b"one ", b"line", b"\n"], os.writev),
                ([b"x\n"] * 1024, os.writev),
                ([b"at\n"], lambda log, given: os.pwritev(log, given, 1)),
                ([b"there\n"], lambda log, given: os.pwritev(log, given, 0, os.RWF_APPEND)),
                ([b"", b"\n", b""], os.writev),
            ):
                whole = b"".join(pieces)
                assert how(log, pieces) == len(whole)
                expected += whole
            os.fsync(log)
            assert os.stat(partition / "log.txt").st_size == len(expected)
            assert read(partition) == expected


# -- reading ------------------------------------------------------------------------------------------------

FAR = (1 << 31, 1 << 32, 1 << 40, (1 << 62) - 1, 1 << 62, (1 << 62) + 1, (1 << 63) - 5000)


def test_far_behind_the_end_there_is_nothing_to_read(mount: DaemonMount) -> None:
    """Of every kind of file, whether it is read or not before: at no position does a file begin again."""
    partition = letters(mount, "far")
    topic = mount / "topics" / partition.name.rpartition("-")[0]
    ordinary = Topic(mount).inbox / ".file"
    ordinary.write_bytes(b"abc")
    kinds = [path for path in files(mount, partition) if not path.name.startswith("follow")]
    kinds += [*commands(mount, partition), ordinary, topic / "log.jsonl", partition / "log.tsv"]
    kinds += [path for path in writable(mount, partition) if path.name.startswith("log")]
    for path in kinds:
        for how in (os.O_RDONLY, os.O_RDONLY | os.O_DIRECT):
            with opened(path, how) as descriptor:
                for _ in range(2):
                    assert [os.pread(descriptor, 4096, at) for at in FAR] == [b""] * len(FAR), path
                    assert os.pread(descriptor, 1, 0) == path.read_bytes()[:1]


def test_what_the_kernel_copies_is_what_a_program_reads(mount: DaemonMount, file: Path) -> None:
    """copy_file_range within the mount, from behind the end too, and sendfile."""
    partition = letters(mount, "small")
    append(partition / "log.txt", b"".join(b"%d\n" % number for number in range(3000)))
    for name in (
        "log.txt",
        "log.jsonl",
        f"segments/{0:020}.txt",
        f"segments/{0:020}.log",
        "offset/5-900.tsv",
    ):
        whole = (partition / name).read_bytes()
        for call in (os.copy_file_range, _send):
            with opened(partition / name) as source, opened(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as to:
                assert os.fstat(source).st_size == len(whole)
                copied = 0
                while done := call(source, to, len(whole), copied):
                    copied += done
                assert call(source, to, 100, len(whole) + 10) == 0
            assert file.read_bytes() == whole, (name, call)


def _send(source: int, to: int, count: int, at: int) -> int:
    return os.sendfile(to, source, at, count)


def test_the_length_of_an_attribute_is_told_and_checked(mount: DaemonMount) -> None:
    """ERANGE where it has no room, by getxattr(2) and listxattr(2)."""
    path = os.fsencode(letters(mount) / "log.txt")
    name, room = b"user.topicfs.next_offset", ctypes.create_string_buffer(200)
    assert LIBC.getxattr(path, name, room, 0) == 1
    assert LIBC.getxattr(path, name, room, 1) == 1
    assert room.value == b"3"
    length = LIBC.listxattr(path, room, 0)
    assert LIBC.listxattr(path, room, length) == length
    assert name in room.raw[:length].split(b"\0")
    assert LIBC.listxattr(path, room, length - 1) == -1
    assert ctypes.get_errno() == errno.ERANGE


# -- listing ------------------------------------------------------------------------------------------------


@contextmanager
def directory(path: Path) -> Iterator[int]:
    """A stream of readdir(3)."""
    LIBC.opendir.restype = LIBC.readdir.restype = ctypes.c_void_p
    LIBC.readdir.argtypes = LIBC.telldir.argtypes = LIBC.closedir.argtypes = [ctypes.c_void_p]
    LIBC.rewinddir.argtypes = [ctypes.c_void_p]
    LIBC.telldir.restype = ctypes.c_long
    LIBC.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
    stream = LIBC.opendir(os.fsencode(path))
    assert stream
    try:
        yield stream
    finally:
        LIBC.closedir(stream)


def next_name(stream: int) -> bytes | None:
    """The next name; None at the end."""
    entry = LIBC.readdir(stream)
    return ctypes.string_at(entry + 19) if entry else None


def all_names(stream: int) -> list[bytes]:
    return list(iter(lambda: next_name(stream), None))


def listed(mount: DaemonMount) -> list[Path]:
    """Directories of each kind, some with hundreds of names."""
    partition = letters(mount)
    inbox = Topic(mount).inbox
    for number in range(400):
        (inbox / f".n{number}").touch()
    keyed = mount.new("compacted")
    append(keyed / "log.tsv", b"".join(b"k%d\tv\n" % number for number in range(400)))
    return [mount.path, mount / "topics", partition, partition / "segments", inbox, keyed / "keys"]


def test_a_listing_goes_on_from_each_of_its_positions(mount: DaemonMount) -> None:
    """telldir, seekdir and rewinddir; at a position that is none there is an end, or some name, and no harm."""
    for path in listed(mount):
        with directory(path) as stream:
            told, names = [], []
            while True:
                told.append(LIBC.telldir(stream))
                name = next_name(stream)
                if name is None:
                    break
                names.append(name)
            assert sorted({*names} - {b".", b".."}) == sorted(os.listdir(os.fsencode(path)))
            assert len(names) == len(set(names))
            for at in {0, 1, 2, len(names) // 2, len(names) - 1, len(names)}:
                LIBC.seekdir(stream, told[at])
                assert all_names(stream) == names[at:], (path, at)
            for nonsense in (told[-1] + 1, 1 << 31, (1 << 48) + 3, 1 << 62):
                LIBC.seekdir(stream, nonsense)
                assert len(all_names(stream)) <= len(names)
            LIBC.rewinddir(stream)
            assert all_names(stream) == names


def test_what_stays_is_listed_once_while_others_come_and_go(mount: DaemonMount) -> None:
    """Names that were there all the time are in every listing, whatever is made, renamed and removed beside them."""
    inbox = Topic(mount).inbox
    staying = {f".stays{number}" for number in range(300)}
    for name in staying:
        (inbox / name).touch()
    is_over = threading.Event()

    def churn(own: str) -> None:
        while not is_over.is_set():
            for number in range(20):
                (inbox / f".{own}{number}").touch()
            for number in range(20):
                (inbox / f".{own}{number}").rename(inbox / f".{own}{number}-moved")
                (inbox / f".{own}{number}-moved").unlink()

    others = [threading.Thread(target=churn, args=(own,), daemon=True) for own in "ab"]
    for other in others:
        other.start()
    try:
        for _ in range(30):
            names = os.listdir(inbox)
            assert len(names) == len(set(names))
            assert staying <= set(names)
    finally:
        is_over.set()
        ended(*others)


# -- names and times ----------------------------------------------------------------------------------------

RENAMEAT2 = {"x86_64": 316, "aarch64": 276}
EXCHANGE, NOREPLACE, WHITEOUT = 2, 1, 4


def test_a_rename_that_may_not_replace_replaces_nothing(mount: DaemonMount) -> None:
    """renameat2(2) with a flag is EINVAL, as libfuse 2 has none; `mv -n` does without."""
    number = RENAMEAT2.get(os.uname().machine)
    if number is None:
        pytest.skip("the number of renameat2 is not known here")
    place = Topic(mount).inbox / ".place"
    place.mkdir()
    (place / "a").write_bytes(b"a")
    (place / "b").write_bytes(b"b")
    a, b, c = (os.fsencode(place / name) for name in "abc")
    for flag in (NOREPLACE, EXCHANGE, WHITEOUT):
        for target in (b, c):
            assert LIBC.syscall(number, -100, a, -100, target, flag) == -1
            assert ctypes.get_errno() in (errno.EINVAL, errno.EEXIST, errno.ENOENT), flag
    subprocess.run([shutil.which("mv") or "mv", "-n", a, b], check=False, capture_output=True)
    assert [(place / name).read_bytes() for name in "ab"] == [b"a", b"b"]
    subprocess.run([shutil.which("mv") or "mv", "-n", a, c], check=True)
    assert sorted(os.listdir(place)) == ["b", "c"]


def test_times_are_kept_to_the_nanosecond_in_any_century(file: Path) -> None:
    """Also before 1970."""
    file.touch()
    for time_ns in (
        0,
        -1,
        -5_000_000_001,
        -(10**18),
        2_147_483_648 * 10**9 + 1,
        4_294_967_296 * 10**9 + 999_999_999,
    ):
        os.utime(file, ns=(time_ns, time_ns))
        assert file.stat().st_mtime_ns == time_ns


def test_what_changes_a_file_changes_its_time(file: Path) -> None:
    """write, truncate to more and to less, a mapping that is written and synced; reading and fsync do not."""
    file.write_bytes(bytes(PAGE))

    def after(path: Path, change: Callable[[], object]) -> bool:
        os.utime(path, ns=(10**9, 10**9))
        change()
        return path.stat().st_mtime_ns > 10**18

    with opened(file, os.O_RDWR) as descriptor, mapped(descriptor, PAGE) as mapping:
        assert after(file, lambda: os.pwrite(descriptor, b"x", 0))
        assert after(file, lambda: os.ftruncate(descriptor, 2 * PAGE))
        assert after(file, lambda: os.truncate(file, PAGE))
        assert after(file, lambda: (mapping.__setitem__(0, 7), mapping.flush()))
        assert not after(file, lambda: (os.pread(descriptor, 1, 0), os.fsync(descriptor)))


def test_names_that_come_move_and_go_change_the_time_of_their_directory(file: Path) -> None:
    place, other = file.parent, file.with_name(".other")
    for change in (other.touch, lambda: other.rename(file), file.unlink):
        before = place.stat().st_mtime_ns
        time.sleep(0.02)  # a kernel's clock for files goes on by ticks, of up to 10 ms
        change()
        assert place.stat().st_mtime_ns > before
