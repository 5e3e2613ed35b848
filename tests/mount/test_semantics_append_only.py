"""`fs/SEMANTICS.md`: append-only."""

from __future__ import annotations

import errno
import os
import stat
import subprocess

from daemon_mount import DaemonMount, opened, refused
from entries import commands, everything, files, letters, read, writable

pytest_plugins = ["shared_mount"]

APPEND = os.O_WRONLY | os.O_APPEND


def test_truncation(mount: DaemonMount) -> None:
    """O1. `>` and truncate, to any length, are EPERM and change nothing; of `config` and `start` see W1."""
    partition = letters(mount)
    for path in files(mount, partition) + writable(mount, partition):
        for flags in (
            os.O_WRONLY | os.O_TRUNC,
            os.O_RDONLY | os.O_TRUNC,
            APPEND | os.O_TRUNC,
            os.O_RDWR | os.O_TRUNC,
        ):
            with refused(errno.EPERM):
                os.open(path, flags)
        for length in (0, 3, 1 << 20):
            with refused(errno.EPERM):
                os.truncate(path, length)
    with opened(partition / "log.txt", APPEND) as file, refused(errno.EPERM):
        os.ftruncate(file, 0)
    assert subprocess.run(
        ["sh", "-c", "echo x > log.txt"], cwd=partition, capture_output=True, check=False
    ).returncode
    assert read(partition) == b"a\nb\nc\n"


def test_overwriting(mount: DaemonMount) -> None:
    """O2. Opening for writing without O_APPEND is EPERM, also of a log that can be appended to."""
    partition = letters(mount)
    for path in writable(mount, partition):
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_CREAT):
            with refused(errno.EPERM):
                os.open(path, flags)
    assert read(partition) == b"a\nb\nc\n"


def test_names_stay(mount: DaemonMount) -> None:
    """O3. rm, mv, and making files, links and devices are EPERM and change nothing; `rm -r` of a partition
    is refused before anything is gone.
    """
    partition = letters(mount)
    for path in files(mount, partition) + writable(mount, partition) + commands(mount, partition):
        for refusal in (
            lambda path=path: os.unlink(path),
            lambda path=path: os.rename(path, path.with_name("other")),
            lambda path=path: os.rename(
                path, mount / ("metrics" if path.name == "README.txt" else "README.txt")
            ),
            lambda path=path: os.link(path, partition / "link"),
        ):
            with refused(errno.EPERM):
                refusal()
    for directory in (
        partition,
        partition / "offset",
        partition / "sealed/txt",
        mount / "topics",
        mount.path,
    ):
        new = directory / "new.txt"
        with refused(errno.EPERM):
            os.open(new, APPEND | os.O_CREAT, 0o644)
        with refused(errno.EPERM):
            os.symlink("log.txt", new)
        with refused(errno.EPERM):
            os.mkfifo(new)
        with refused(errno.EPERM):
            os.mknod(new, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    with refused(errno.EPERM):
        os.unlink(partition / "current.txt")
    with refused(errno.EPERM):
        os.rename(partition, mount / "plain-7777")
    done = subprocess.run(["rm", "-r", partition], capture_output=True, check=False)
    assert done.returncode
    assert b"Operation not permitted" in done.stderr
    assert read(partition) == b"a\nb\nc\n"


def test_attributes_stay(mount: DaemonMount) -> None:
    """O4. chmod, chown and touch are EPERM; setting or removing an extended attribute is ENOTSUP, but for those of G3
    and G4.
    """
    partition = letters(mount)
    for path in everything(mount, partition):
        before = path.stat()
        with refused(errno.EPERM):
            os.chmod(path, 0o600)
        with refused(errno.EPERM):
            os.chown(path, 1, 1)
        with refused(errno.EPERM):
            os.utime(path)
        with refused(errno.EPERM):
            os.utime(path, ns=(1, 1))
        with refused(errno.ENOTSUP):
            os.setxattr(path, "user.topicfs.first_offset", b"1")
        with refused(errno.ENOTSUP):
            os.removexattr(path, "user.topicfs.first_offset")
        assert (path.stat().st_mode, path.stat().st_uid) == (before.st_mode, before.st_uid)


def test_files_that_are_only_read_or_only_written(mount: DaemonMount) -> None:
    """O5. Every file but `log.<fmt>`, `in.<fmt>`, `config`, `start` and `epoch` is EPERM when it is opened
    for writing; `in.<fmt>` is EPERM when it is opened for reading.
    """
    partition = letters(mount)
    for path in files(mount, partition):
        for flags in (APPEND, os.O_RDWR | os.O_APPEND, os.O_WRONLY, APPEND | os.O_CREAT):
            with refused(errno.EPERM):
                os.open(path, flags)
    with refused(errno.EPERM):
        os.open(partition / "current.txt", APPEND)
    for path in writable(mount, partition)[3:]:
        for flags in (os.O_RDONLY, os.O_RDWR | os.O_APPEND):
            with refused(errno.EPERM):
                os.open(path, flags)


def test_other_directories(mount: DaemonMount) -> None:
    """O6. Directories are made in the root, in `topics`, `transactions`, `producers` and `groups` only, and only
    partitions, topics, transactions, producers, groups and their members are removed: mkdir or rmdir of any other
    directory is EPERM.
    """
    partition = letters(mount)
    topic = mount / "topics" / partition.name.rpartition("-")[0]
    for directory in (partition, partition / "offset", partition / "time", partition / "segments", topic):
        with refused(errno.EPERM):
            os.mkdir(directory / "new-0")
    views = partition / "views"
    inner = [
        views / name for name in ("offset", "time", "segments", "sealed", "sealed/txt", "time/2030-01-01")
    ]
    for directory in (*inner, views, topic / "views", mount / "topics", mount / "producers"):
        with refused(errno.EPERM):
            os.rmdir(directory)
    assert read(partition) == b"a\nb\nc\n"
