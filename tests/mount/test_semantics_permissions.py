"""`fs/SEMANTICS.md`: permissions."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_mount import DaemonMount, own_mount
from entries import commands, everything, files, letters, read, writable

pytest_plugins = ["shared_mount"]

NOBODY = 65534


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A place that every user can get to; pytest's own are root's alone."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        yield place


def as_nobody(*command: str | Path) -> subprocess.CompletedProcess[bytes]:
    """What another user gets from a command."""
    return subprocess.run(
        ["env", "LC_ALL=C", *command],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        check=False,
    )


def test_permission_bits(open_place: Path) -> None:
    """P1. Owner, group and permission bits are those of BACKING: what it does not allow, no file allows;
    with `--allow-other` the kernel enforces it, without it only the daemon's own user comes in.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    place = open_place
    mount = DaemonMount(place)
    mount.backing.chmod(0o750)
    os.chown(mount.backing, 0, NOBODY)
    with own_mount(place, "--allow-other"):
        partition = letters(mount)
        for path in everything(mount, partition):
            status = path.stat()
            assert (status.st_uid, status.st_gid) == (0, NOBODY)
            assert status.st_mode & 0o7777 & ~0o750 == 0
        assert as_nobody("cat", partition / "log.txt").stdout == b"a\nb\nc\n"
        for command in (
            "echo x >> log.txt",
            "rmdir .",
            "mkdir ../new-0",
            "echo x >> ../topics/plain/in.txt",
            "echo 1 > start",
        ):
            done = as_nobody("sh", "-c", f"cd {partition} && {command}")
            assert done.returncode, command
        assert b"Permission denied" in as_nobody("sh", "-c", f"echo x >> {partition}/log.txt").stderr
        assert read(partition) == b"a\nb\nc\n"


def test_bits_of_files(mount: DaemonMount) -> None:
    """P2. Files that can only be read have no write bits, `in.<fmt>` has no read bits."""
    partition = letters(mount)
    for path in files(mount, partition):
        assert path.stat().st_mode & 0o222 == 0
        assert path.stat().st_mode & 0o444
        assert os.access(path, os.R_OK)
        assert not os.access(path, os.W_OK)
    for path in commands(mount, partition):
        assert path.stat().st_mode & 0o666
        assert os.access(path, os.R_OK | os.W_OK)
    for path in writable(mount, partition)[3:]:
        assert path.stat().st_mode & 0o444 == 0
        assert path.stat().st_mode & 0o222
        assert os.access(path, os.W_OK)
        assert not os.access(path, os.R_OK)


def test_other_users(open_place: Path) -> None:
    """P3. Other users have no access unless the mount was made with `--allow-other`; then the permission
    bits decide.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    mount = DaemonMount(open_place)
    mount.backing.chmod(0o755)
    with own_mount(open_place):
        partition = letters(mount)
        done = as_nobody("cat", partition / "log.txt")
        assert done.returncode
        assert b"Permission denied" in done.stderr
    with own_mount(open_place, "--allow-other"):
        assert as_nobody("cat", partition / "log.txt").stdout == b"a\nb\nc\n"
        assert as_nobody("sh", "-c", f"echo x >> {partition}/log.txt").returncode


def test_umask(mount: DaemonMount) -> None:
    """P4. The modes given to mkdir, and the umask, change nothing."""
    first = mount.new()
    before = os.umask(0o077)
    try:
        second = mount.new()
        os.mkdir(mount / "topics/masked", 0o700)
    finally:
        os.umask(before)
    assert first.stat().st_mode == second.stat().st_mode == (mount / "topics/masked").stat().st_mode
    os.rmdir(mount / "topics/masked")
