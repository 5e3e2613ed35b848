"""The errors that pjdfstest asks every call for, in the append-only tree beside an ordinary file system.

The tree makes no files, so that the suite itself cannot run in it. Each call is tried here on the same paths in both,
and has to end with the same error: what an append-only log refuses by itself, O1 to O6 in `fs/SEMANTICS.md`, comes
behind that. What another user and a read-only mount are told is below.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_mount import DaemonMount, opened, own_mount, refused
from entries import letters, read
from test_hostile_users import as_nobody

pytest_plugins = ["shared_mount"]

Call = Callable[[str], Any]
LIBC = ctypes.CDLL(None, use_errno=True)
APPEND = os.O_WRONLY | os.O_APPEND
LONG = "n" * 256
TOO_LONG = "/".join(["n" * 200] * 30)
"""More than PATH_MAX, also without its last name."""


def told(call: Callable[[], Any]) -> str:
    """The name of the error of a call, or that there is none."""
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


def all_told(calls: dict[str, Call], path: str) -> dict[str, str]:
    """What each call on a path gives."""
    return {name: told(lambda call=call: call(path)) for name, call in calls.items()}


def open_and_close(path: str, flags: int) -> None:
    os.close(os.open(path, flags, 0o644))


MAKING: dict[str, Call] = {
    "open and create": lambda path: open_and_close(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT),
    "open, create alone": lambda path: open_and_close(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL),
    "mkdir": os.mkdir,
    "symlink": lambda path: os.symlink("target", path),
    "mkfifo": os.mkfifo,
    "mknod": lambda path: os.mknod(path, stat.S_IFREG | 0o644),
    "link to it": lambda path: os.link(f"{os.path.dirname(path)}/log.txt", path),
}  # fmt: skip
"""Calls that make a name. On a disk they do well where it is free."""

USING: dict[str, Call] = {
    "open to read": lambda path: open_and_close(path, os.O_RDONLY),
    "open to append": lambda path: open_and_close(path, os.O_WRONLY | os.O_APPEND),
    "open a directory": lambda path: open_and_close(path, os.O_RDONLY | os.O_DIRECTORY),
    "open a path": lambda path: open_and_close(path, os.O_PATH),
    "stat": os.stat,
    "lstat": os.lstat,
    "statvfs": os.statvfs,
    "list": os.listdir,
    "readlink": os.readlink,
    "getxattr": lambda path: os.getxattr(path, "user.none"),
    "listxattr": os.listxattr,
    "unlink": os.unlink,
    "rmdir": os.rmdir,
    "truncate": lambda path: os.truncate(path, 0),
    "truncate to less than nothing": lambda path: os.truncate(path, -1),
    "chmod": lambda path: os.chmod(path, 0o600),
    "chown": lambda path: os.chown(path, 1, 1),
    "lchown": lambda path: os.lchown(path, 1, 1),
    "utime": os.utime,
    "utime of a link": lambda path: os.utime(path, follow_symlinks=False),
    "rename": lambda path: os.rename(path, f"{path}x"),
    "link of it": lambda path: os.link(path, f"{path}x"),
}
"""Calls that want what they are given."""

NOWHERE = (
    "missing/below",
    "missing/../log.txt",
    "log.txt/below",
    "log.txt/",
    "log.txt/.",
    f"{LONG}/below",
    LONG,
    TOO_LONG,
)
"""Paths that lead nowhere, below a directory with a file `log.txt`."""


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A directory of a disk with what the calls look for in a partition."""
    (tmp_path / "log.txt").write_bytes(b"a\nb\nc\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "link.txt").symlink_to("log.txt")
    return tmp_path


@pytest.mark.parametrize("path", NOWHERE, ids=lambda path: path[:20])
def test_a_path_that_leads_nowhere_is_told_as_on_a_disk(mount: DaemonMount, disk: Path, path: str) -> None:
    """ENOENT, ENOTDIR, ENAMETOOLONG, EISDIR and EINVAL, of each call."""
    partition = letters(mount)
    calls = USING | MAKING
    assert all_told(calls, f"{partition}/{path}") == all_told(calls, f"{disk}/{path}")
    assert read(partition) == b"a\nb\nc\n"


def test_a_name_that_is_missing_is_told_as_on_a_disk(mount: DaemonMount, disk: Path) -> None:
    """In each directory that programs use, ENOENT, of each call that makes nothing."""
    partition = letters(mount)
    topic = mount / "topics" / partition.name.rpartition("-")[0]
    directories = [
        partition,
        partition / "offset",
        partition / "segments",
        mount.path,
        topic,
        topic / "inbox",
    ]
    directories += [mount / name for name in ("topics", "groups", "transactions", "producers")]
    expected = all_told(USING, f"{disk}/missing")
    assert set(expected.values()) == {"ENOENT", "EINVAL"}
    for directory in directories:
        assert all_told(USING, f"{directory}/missing") == expected, directory


def ends(place: Path, inner: str, link: str) -> dict[str, str]:
    """What comes of calls on names that are there, each of another kind than the call wants."""
    log, directory, led = f"{place}/log.txt", f"{place}/{inner}", f"{place}/{link}"
    calls: dict[str, Callable[[], Any]] = {
        f"{name}, over a {kind}": lambda call=call, path=path: call(path)
        for name, call in MAKING.items()
        if name != "open and create"
        for kind, path in (("file", log), ("directory", directory), ("link", led))
    }
    calls |= {
        "rmdir of a file": lambda: os.rmdir(log),
        "rmdir of a link": lambda: os.rmdir(led),
        "list a file": lambda: os.listdir(log),
        "open a file as a directory": lambda: open_and_close(log, os.O_RDONLY | os.O_DIRECTORY),
        "create a directory": lambda: open_and_close(directory, os.O_RDONLY | os.O_CREAT),
        "open a directory to append": lambda: open_and_close(directory, os.O_WRONLY | os.O_APPEND),
        "read a directory": lambda: _with(directory, os.O_RDONLY, lambda file: os.read(file, 10)),
        "unlink a directory": lambda: os.unlink(directory),
        "truncate a directory": lambda: os.truncate(directory, 0),
        "readlink of a file": lambda: os.readlink(log),
        "readlink of a directory": lambda: os.readlink(directory),
        "open a link, following none": lambda: open_and_close(led, os.O_RDONLY | os.O_NOFOLLOW),
        "truncate to less than nothing": lambda: os.truncate(log, -1),
        "a file over a directory": lambda: os.rename(log, directory),
        "a directory over a file": lambda: os.rename(directory, log),
        "a directory into itself": lambda: os.rename(directory, f"{directory}/below"),
        "rmdir of .": lambda: os.rmdir(f"{directory}/."),
        "rmdir of ..": lambda: os.rmdir(f"{directory}/.."),
        "unlink of .": lambda: os.unlink(f"{directory}/."),
        "rename of .": lambda: os.rename(f"{directory}/.", f"{place}/other"),
        "rename to ..": lambda: os.rename(directory, f"{directory}/.."),
        "a file renamed to itself": lambda: os.rename(log, log),
        "execute a file": lambda: os.execv(log, [log]),
        "execute a directory": lambda: os.execv(directory, [directory]),
        "read what is open to append": lambda: _with(log, APPEND, lambda file: os.read(file, 1)),
        "append to what is open to read": lambda: _with(log, os.O_RDONLY, lambda file: os.write(file, b"x\n")),
        "cut what is open to read": lambda: _with(log, os.O_RDONLY, lambda file: os.ftruncate(file, 0)),
        "cut to less than nothing": lambda: _with(log, APPEND, lambda file: os.ftruncate(file, -1)),
        "read before the beginning": lambda: _with(log, os.O_RDONLY, lambda file: os.pread(file, 1, -1)),
        "seek before the beginning": lambda: _with(log, os.O_RDONLY, lambda file: os.lseek(file, -1, 0)),
        "seek data behind the end": lambda: _with(log, os.O_RDONLY, lambda file: os.lseek(file, 7, os.SEEK_DATA)),
        "seek a hole behind the end": lambda: _with(log, os.O_RDONLY, lambda file: os.lseek(file, 7, os.SEEK_HOLE)),
        "send into what is open to append": lambda: _with(
            log, APPEND, lambda file: _with(log, os.O_RDONLY, lambda other: os.sendfile(file, other, 0, 2))
        ),
        "copy a range into it": lambda: _with(
            log, APPEND, lambda file: _with(log, os.O_RDONLY, lambda other: os.copy_file_range(other, file, 2))
        ),
        "write more pieces than IOV_MAX": lambda: _with(log, APPEND, lambda file: os.writev(file, [b"x\n"] * 1025)),
    }  # fmt: skip
    return {name: told(call) for name, call in calls.items()}


def _with(path: str, flags: int, then: Callable[[int], Any]) -> Any:
    with opened(Path(path), flags) as file:
        return then(file)


def test_a_name_of_another_kind_is_told_as_on_a_disk(mount: DaemonMount, disk: Path) -> None:
    """EEXIST, EISDIR, ENOTDIR, ELOOP, EINVAL, ENOTEMPTY, EBUSY, EACCES, EBADF and ENXIO."""
    partition = letters(mount)
    assert ends(partition, "views", "current.txt") == ends(disk, "inner", "link.txt")
    assert read(partition) == b"a\nb\nc\n"


def test_nothing_is_renamed_or_linked_across_the_mount(mount: DaemonMount, disk: Path) -> None:
    """EXDEV, into the tree and out of it."""
    partition = letters(mount)
    for call in (os.rename, os.link):
        for source, target in ((disk / "log.txt", partition / "new"), (partition / "log.txt", disk / "new")):
            with refused(errno.EXDEV):
                call(source, target)
    assert read(partition) == (disk / "log.txt").read_bytes() == b"a\nb\nc\n"


@pytest.fixture
def half() -> Iterator[int]:
    """The address of a page that can be read, behind which is one that cannot."""
    page = mmap.PAGESIZE
    with mmap.mmap(-1, 2 * page) as memory:
        held = ctypes.c_char.from_buffer(memory)
        address = ctypes.addressof(held)
        protect = LIBC.mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        assert protect(address + page, page, 0) == 0
        yield address
        assert protect(address + page, page, mmap.PROT_READ | mmap.PROT_WRITE) == 0
        del held


def by_address(call: str, file: int, address: int, size: int) -> int | str:
    """What read(2) or write(2) gives for bytes at an address."""
    done = getattr(LIBC, call)(file, ctypes.c_void_p(address), ctypes.c_size_t(size))
    return done if done >= 0 else errno.errorcode[ctypes.get_errno()]


@pytest.mark.parametrize("name", ["log.txt", f"segments/{2:020}.txt", "offset/0-2.txt", "status.json"])
def test_reading_to_an_address_that_cannot_be_written_is_efault(
    mount: DaemonMount, half: int, name: str
) -> None:
    with opened(letters(mount) / name) as file:
        assert by_address("read", file, half + mmap.PAGESIZE, 2) == "EFAULT"
        assert by_address("read", file, 1, 2) == "EFAULT"
        assert os.pread(file, 1 << 20, 0) == read_whole(file)


def read_whole(file: int) -> bytes:
    """All of it, a few bytes at a time."""
    return b"".join(os.pread(file, 7, at) for at in range(0, os.fstat(file).st_size, 7))


def test_appending_from_an_address_that_cannot_be_read_appends_what_can(
    mount: DaemonMount, half: int
) -> None:
    """EFAULT where nothing can be read. Else a short write, as on a disk, of which whole lines are appended."""
    partition = letters(mount)
    end = half + mmap.PAGESIZE
    ctypes.memmove(end - 6, b"x1\nx2\n", 6)
    with opened(partition / "log.txt", APPEND) as file:
        for address in (end, 1):
            assert by_address("write", file, address, 12) == "EFAULT"
        assert by_address("write", file, end - 6, 12) == 6
    assert read(partition) == b"a\nb\nc\nx1\nx2\n"


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A place that every user can get to; pytest's own are root's alone."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        yield place


def test_another_user_is_told_as_on_a_disk(open_place: Path) -> None:
    """EACCES and EPERM, of each call: in a tree that others may only read, and in one that is closed to them."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    disk, mount = open_place / "disk", DaemonMount(open_place)
    (disk / "inner").mkdir(parents=True)
    (disk / "log.txt").write_bytes(b"a\nb\nc\n")
    for mode, expected in ((0o755, {"EACCES", "EPERM", "done"}), (0o700, {"EACCES"})):
        mount.backing.chmod(mode)
        disk.chmod(mode)
        with own_mount(open_place, "--allow-other") as mount:
            partition = mount / "plain-0" if (mount / "plain-0").exists() else letters(mount)
            with as_nobody():
                found = of_another_user(partition, "views")
                assert found == of_another_user(disk, "inner")
            assert expected <= set(found.values())
            assert read(partition) == b"a\nb\nc\n"
    assert set(found.values()) == expected


FOR_FILES = ("open to append", "readlink", "truncate", "unlink")
FOR_DIRECTORIES = ("open a directory", "list", "readlink", "rmdir")
FOR_ALL = (
    "open to read", "stat", "statvfs", "listxattr", "chmod", "chown", "lchown", "utime", "utime of a link", "rename",
    "link of it",
)  # fmt: skip


def of_another_user(place: Path, inner: str) -> dict[str, str]:
    """What calls on a file, on a directory and on a new name give."""
    found = {}
    for path, chosen in (("log.txt", FOR_FILES), (inner, FOR_DIRECTORIES)):
        calls = {f"{name} of {kind_of(path)}": USING[name] for name in chosen + FOR_ALL}
        found |= all_told(calls, f"{place}/{path}")
    return found | all_told({name: MAKING[name] for name in set(MAKING) - {"link to it"}}, f"{place}/new")


def kind_of(path: str) -> str:
    return "a file" if path == "log.txt" else "a directory"


def test_a_read_only_mount_tells_each_call_that_would_change_it(open_place: Path) -> None:
    """EROFS, of names that are there and of new ones, but where the name itself is wrong."""
    with own_mount(open_place) as mount:
        partition = letters(mount)
    with own_mount(open_place, "--read-only") as mount:
        log, new, views = (str(partition / name) for name in ("log.txt", "new", "views"))
        changing = (
            "truncate",
            "chmod",
            "chown",
            "lchown",
            "utime",
            "utime of a link",
            "unlink",
            "rename",
            "open to append",
        )
        for name in changing:
            assert told(lambda name=name: USING[name](log)) == "EROFS", name
        for name in set(MAKING) - {"link to it"}:
            assert told(lambda name=name: MAKING[name](new)) == "EROFS", name
            assert told(lambda name=name: MAKING[name](views)) in ("EEXIST", "EISDIR"), name
        assert told(lambda: os.link(log, new)) == "EROFS"
        assert told(lambda: os.rmdir(views)) == "EROFS"
        assert told(lambda: os.setxattr(log, "user.x", b"")) == "EROFS"
        assert told(lambda: os.removexattr(log, "user.x")) == "EROFS"
        assert told(lambda: os.mkdir(f"{log}/below")) == "ENOTDIR"
        assert told(lambda: os.mkdir(f"{partition}/{LONG}")) == "ENAMETOOLONG"
        assert read(partition) == b"a\nb\nc\n"
