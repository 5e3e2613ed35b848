"""Cases of POSIX for files and directories, as pjdfstest has them, in an inbox beside an ordinary file system.

Each case is run in a directory of both and says what came of it. Both must say the same, but for what `OTHERWISE` lists
with its reason: a new difference fails, and so does one that is gone. What an append-only log says of the same calls is
O1 to O6 in `fs/SEMANTICS.md`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from daemon_mount import DaemonMount
from inboxes import Topic

pytest_plugins = ["shared_mount"]

Case = Callable[[Path], Any]
LONG = "n" * 255


def told(call: Callable[[], Any]) -> Any:
    """What a call gives, or the name of its error."""
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def file(place: Path, name: str = "f", data: bytes = b"12345") -> Path:
    (place / name).write_bytes(data)
    return place / name


def directory(place: Path, name: str = "d") -> Path:
    (place / name).mkdir()
    return place / name


def opened(path: Path, flags: int, then: Callable[[int], Any] = lambda _: "opened") -> Any:
    """What comes of an open, and of what is done with the descriptor."""

    def call() -> Any:
        descriptor = os.open(path, flags, 0o644)
        try:
            return told(lambda: then(descriptor))
        finally:
            os.close(descriptor)

    return told(call)


def each(*calls: Callable[[], Any]) -> list[Any]:
    return [told(call) for call in calls]


# -- open -----------------------------------------------------------------------------------------------


def open_flags(place: Path) -> Any:
    there, missing, d = file(place), place / "missing", directory(place)
    return [
        opened(missing, os.O_RDONLY),
        opened(missing, os.O_WRONLY),
        opened(there, os.O_WRONLY | os.O_CREAT | os.O_EXCL),
        opened(there, os.O_RDONLY | os.O_DIRECTORY),
        opened(d, os.O_WRONLY),
        opened(d, os.O_RDWR | os.O_CREAT),
        opened(d, os.O_RDONLY | os.O_DIRECTORY),
        opened(there / "below", os.O_RDONLY),
        opened(missing / "below", os.O_WRONLY | os.O_CREAT),
        opened(place / "new", os.O_WRONLY | os.O_CREAT, lambda f: os.fstat(f).st_size),
        opened(there, os.O_WRONLY | os.O_TRUNC, lambda f: os.fstat(f).st_size),
    ]


def open_modes(place: Path) -> Any:
    there = file(place)
    return [
        opened(there, os.O_RDONLY, lambda f: os.write(f, b"x")),
        opened(there, os.O_WRONLY, lambda f: os.read(f, 1)),
        opened(there, os.O_RDWR, lambda f: (os.read(f, 2), os.write(f, b"XY"), os.pread(f, 9, 0))),
        opened(
            there, os.O_WRONLY | os.O_APPEND, lambda f: (os.write(f, b"end"), os.lseek(f, 0, os.SEEK_CUR))
        ),
        there.read_bytes(),
        opened(
            there,
            os.O_RDWR | os.O_APPEND,
            lambda f: (os.lseek(f, 0, 0), os.write(f, b"!"), os.pread(f, 99, 0)),
        ),
        opened(there, os.O_RDONLY, lambda f: os.ftruncate(f, 0)),
    ]


def temporary_files(place: Path) -> Any:
    return opened(place, os.O_TMPFILE | os.O_RDWR)


# -- writing --------------------------------------------------------------------------------------------


def holes(place: Path) -> Any:
    there = file(place)
    return [
        opened(there, os.O_RDWR, lambda f: (os.pwrite(f, b"z", 9000), os.fstat(f).st_size)),
        there.read_bytes() == b"12345" + bytes(8995) + b"z",
        opened(
            there,
            os.O_RDONLY,
            lambda f: (os.pread(f, 10, 9000), os.pread(f, 10, 9001), os.pread(f, 1, 1 << 40)),
        ),
        opened(there, os.O_RDONLY, lambda f: os.lseek(f, -1, os.SEEK_SET)),
        opened(there, os.O_RDONLY, lambda f: os.lseek(f, 0, os.SEEK_END)),
    ]


def truncating(place: Path) -> Any:
    there, d = file(place), directory(place)
    return [
        *each(
            lambda: os.truncate(there, 3),
            there.read_bytes,
            lambda: os.truncate(there, 6),
            there.read_bytes,
            lambda: os.truncate(there, -1),
            lambda: os.truncate(d, 0),
            lambda: os.truncate(place / "missing", 0),
            lambda: os.truncate(there / "below", 0),
        ),
        opened(there, os.O_WRONLY, lambda f: (os.ftruncate(f, 100), os.fstat(f).st_size)),
        opened(there, os.O_WRONLY, lambda f: os.ftruncate(f, -1)),
    ]


def beyond_the_largest_size(place: Path) -> Any:
    """Which is no fault of the disk: a warning in the daemon's log would fail the test."""
    there = file(place)
    return [
        opened(there, os.O_RDWR, lambda f: os.pwrite(f, b"x", (1 << 63) - 10)),
        told(lambda: os.truncate(there, (1 << 63) - 1)),
        opened(there, os.O_RDWR, lambda f: os.ftruncate(f, (1 << 63) - 1)),
        opened(there, os.O_RDWR, lambda f: os.pwrite(f, b"x", 1 << 50)),
    ]


def preallocating(place: Path) -> Any:
    return opened(file(place), os.O_RDWR, lambda f: os.posix_fallocate(f, 0, 100))


# -- names ----------------------------------------------------------------------------------------------


def unlinking(place: Path) -> Any:
    there, d = file(place), directory(place)

    def after(descriptor: int) -> Any:
        os.unlink(there)
        return (
            os.pread(descriptor, 9, 0),
            os.pwrite(descriptor, b"x", 0),
            os.pread(descriptor, 9, 0),
            there.exists(),
        )

    return [
        told(lambda: os.unlink(place / "missing")),
        told(lambda: os.unlink(there / "below")),
        told(lambda: os.unlink(d)),
        opened(there, os.O_RDWR, after),
        told(lambda: os.unlink(there)),
    ]


def links_after_unlink(place: Path) -> Any:
    there = file(place)
    return opened(there, os.O_RDONLY, lambda f: (os.unlink(there), os.fstat(f).st_nlink)[1])


def making_directories(place: Path) -> Any:
    there, d = file(place), directory(place)
    return each(
        lambda: os.mkdir(d),
        lambda: os.mkdir(there),
        lambda: os.mkdir(there / "below"),
        lambda: os.mkdir(place / "missing" / "below"),
        lambda: os.mkdir(d / "deep"),
        lambda: stat.S_ISDIR(os.stat(d / "deep").st_mode),
        lambda: sorted(os.listdir(place)),
    )


def removing_directories(place: Path) -> Any:
    there, d = file(place), directory(place)
    (d / "deep").mkdir()
    return each(
        lambda: os.rmdir(d),
        lambda: os.rmdir(there),
        lambda: os.rmdir(place / "missing"),
        lambda: os.rmdir(there / "below"),
        lambda: os.rmdir(f"{d}/."),
        lambda: os.rmdir(f"{d}/deep/.."),
        lambda: os.rmdir(d / "deep"),
        lambda: os.rmdir(d),
        d.exists,
    )


def renaming_files(place: Path) -> Any:
    a, b, d = file(place, "a", b"a"), file(place, "b", b"bb"), directory(place)
    number = a.stat().st_ino
    return each(
        lambda: os.rename(place / "missing", place / "c"),
        lambda: os.rename(a, d),
        lambda: os.rename(d, a),
        lambda: os.rename(a, a / "below"),
        lambda: os.rename(a, place / "missing" / "a"),
        lambda: os.rename(a, a),
        lambda: os.rename(a, b),
        lambda: (b.read_bytes(), b.stat().st_ino == number, a.exists()),
        lambda: os.rename(b, d / "b"),
        lambda: (sorted(os.listdir(place)), (d / "b").read_bytes()),
    )


def renaming_over_what_is_open(place: Path) -> Any:
    a, b = file(place, "a", b"a"), file(place, "b", b"bb")
    return opened(b, os.O_RDONLY, lambda f: (os.rename(a, b), os.pread(f, 9, 0), b.read_bytes()))


def renaming_directories(place: Path) -> Any:
    d, e = directory(place, "d"), directory(place, "e")
    (d / "deep").mkdir()
    (e / "held").mkdir()
    return each(
        lambda: os.rename(d, d / "deep" / "d"),
        lambda: os.rename(d, e),
        lambda: os.rename(f"{d}/.", place / "x"),
        lambda: os.rmdir(e / "held"),
        lambda: os.rename(d, e),
        lambda: (sorted(os.listdir(place)), sorted(os.listdir(e))),
    )


def names(place: Path) -> Any:
    unusual = ("a b", "größe", "\U0001f600", "new\nline", "-f", "a%2Fb", "*", "x" * 200)
    for name in unusual:
        file(place, name)
    return sorted(os.listdir(place)) == sorted(unusual), [(place / name).read_bytes() for name in unusual]


def the_longest_name(place: Path) -> Any:
    return told(lambda: file(place, LONG).read_bytes())


def names_that_are_too_long(place: Path) -> Any:
    there, name = file(place), place / (LONG + "n")
    return each(
        lambda: os.open(name, os.O_WRONLY | os.O_CREAT),
        lambda: os.mkdir(name),
        lambda: os.rename(there, name),
        lambda: os.stat(name),
        lambda: os.unlink(name),
    )


def bytes_that_are_no_text(place: Path) -> Any:
    name = os.fsencode(place) + b"/\xff\xfe"
    return opened(Path(os.fsdecode(name)), os.O_WRONLY | os.O_CREAT), os.listdir(os.fsencode(place))


def hard_links(place: Path) -> Any:
    return told(lambda: os.link(file(place), place / "g"))


def symbolic_links(place: Path) -> Any:
    return told(lambda: os.symlink("f", place / "g"))


def fifos(place: Path) -> Any:
    return told(lambda: os.mkfifo(place / "p"))


def reading_links(place: Path) -> Any:
    return each(lambda: os.readlink(file(place)), lambda: os.readlink(place / "missing"))


# -- attributes -----------------------------------------------------------------------------------------


def times(place: Path) -> Any:
    there = file(place)
    os.utime(there, ns=(5_000_000_000, 7_000_000_001))
    before = there.stat().st_mtime_ns
    there.read_bytes()
    return before, there.stat().st_mtime_ns, told(lambda: os.utime(place / "missing"))


def modes(place: Path) -> Any:
    there = file(place)
    there.chmod(0o600)
    return stat.S_IMODE(there.stat().st_mode), told(lambda: os.chmod(place / "missing", 0o600))


def owners(place: Path) -> Any:
    there = file(place)
    return each(
        lambda: os.chown(there, os.getuid(), os.getgid()),
        lambda: os.chown(there, -1, -1),
        lambda: os.chown(place / "missing", -1, -1),
    )


def kinds(place: Path) -> Any:
    there, d = file(place), directory(place)
    return [
        (stat.S_IFMT(path.stat().st_mode), path.stat().st_nlink > 0) for path in (there, d)
    ], there.stat().st_size


def accessing(place: Path) -> Any:
    there = file(place)
    return [os.access(there, how) for how in (os.F_OK, os.R_OK, os.W_OK)], os.access(
        place / "missing", os.F_OK
    )


def listing_while_removing(place: Path) -> Any:
    for number in range(300):
        file(place, f"n{number:03}", b"")
    seen = []
    with os.scandir(place) as entries:
        for entry in entries:
            seen.append(entry.name)
            os.unlink(entry.path)
    return len(seen), len(set(seen)), os.listdir(place)


CASES: list[Case] = [
    open_flags, open_modes, temporary_files, holes, truncating, beyond_the_largest_size, preallocating, unlinking,
    links_after_unlink, making_directories, removing_directories, renaming_files, renaming_over_what_is_open,
    renaming_directories, names, the_longest_name, names_that_are_too_long,
    bytes_that_are_no_text, hard_links, symbolic_links, fifos, reading_links, times, modes, owners,
    kinds, accessing, listing_while_removing,
]  # fmt: skip

OTHERWISE: dict[Case, tuple[Any, str]] = {
    links_after_unlink: ("ENOENT", "libfuse 2 asks for attributes by a name, which is gone: X1"),
    temporary_files: ("ENOTSUP", "libfuse 2 has no O_TMPFILE"),
    hard_links: ("EPERM", "a file of an inbox has one name: its commit removes it"),
    symbolic_links: ("EPERM", "what is committed are files: nothing leads out of an inbox"),
    fifos: ("EPERM", "what is committed are files"),
    modes: ((0o644, "ENOENT"), "the modes are those of BACKING: chmod does well, and changes nothing"),
}
"""What an inbox says otherwise than an ordinary file system, and why."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_an_inbox_says_what_an_ordinary_file_system_says(
    case: Case, mount: DaemonMount, tmp_path: Path
) -> None:
    place = Topic(mount).inbox / ".scratch"
    place.mkdir()
    ordinary = case(tmp_path)
    found = case(place)
    expected, why = OTHERWISE.get(case, (ordinary, ""))
    assert found == expected, why
    assert (found != ordinary) == (case in OTHERWISE), "it is no other any more: take it from the list"
