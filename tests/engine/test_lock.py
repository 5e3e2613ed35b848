"""The lock of a log directory: `.lock` in KAFKA_FORMAT 1.1, and KAFKA_CASES N "two managers on one dir".

Other processes are real ones here: a POSIX lock does not exclude its own process.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import PATIENCE_S

from topicfs.engine.errors import StoreLockedError
from topicfs.engine.files.lock import DirectoryLock

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "ab")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def other_process_holds(path: Path) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield process.pid
        finally:
            process.kill()


def other_process_can_lock(path: Path) -> bool:
    """A process that only tries: it ends at once, holding nothing."""
    tried = subprocess.run(
        [sys.executable, "-c", HOLD, path],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=PATIENCE_S,
    )
    return tried.returncode == 0


def test_lock_is_an_empty_file_that_stays(tmp_path: Path) -> None:
    lock = DirectoryLock.acquire(tmp_path)
    assert (tmp_path / ".lock").read_bytes() == b""
    lock.release()
    assert (tmp_path / ".lock").read_bytes() == b""


def test_directory_of_another_process_is_refused_and_its_number_is_said(tmp_path: Path) -> None:
    with other_process_holds(tmp_path / ".lock") as process:
        with pytest.raises(StoreLockedError, match=rf"\.lock: expected no owner, found process {process}, "):
            DirectoryLock.acquire(tmp_path)
        with pytest.raises(StoreLockedError):
            DirectoryLock.acquire(tmp_path)
    DirectoryLock.acquire(tmp_path).release()


def test_another_process_is_refused_until_the_release(tmp_path: Path) -> None:
    lock = DirectoryLock.acquire(tmp_path)
    assert not other_process_can_lock(lock.path)
    lock.release()
    assert other_process_can_lock(lock.path)


def test_second_owner_in_this_process_is_refused_and_the_first_stays_locked(tmp_path: Path) -> None:
    lock = DirectoryLock.acquire(tmp_path)
    with pytest.raises(StoreLockedError, match="another Store of this process"):
        DirectoryLock.acquire(tmp_path)
    # An attempt that opened the file and closed it again would have dropped the lock.
    assert not other_process_can_lock(lock.path)
    lock.release()
    DirectoryLock.acquire(tmp_path).release()


@pytest.mark.parametrize("detour", ["symlink", "dots", "relative"])
def test_one_directory_under_another_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, detour: str
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    lock = DirectoryLock.acquire(logs)
    (tmp_path / "link").symlink_to(logs)
    monkeypatch.chdir(tmp_path)
    other = {"symlink": tmp_path / "link", "dots": logs / ".." / "logs", "relative": Path("logs")}[detour]
    with pytest.raises(StoreLockedError):
        DirectoryLock.acquire(other)
    lock.release()


def test_two_directories_have_two_owners(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    locks = [DirectoryLock.acquire(tmp_path / name) for name in "ab"]
    for lock in locks:
        lock.release()


def test_second_release_does_not_free_a_later_owner(tmp_path: Path) -> None:
    first = DirectoryLock.acquire(tmp_path)
    first.release()
    second = DirectoryLock.acquire(tmp_path)
    first.release()
    with pytest.raises(StoreLockedError):
        DirectoryLock.acquire(tmp_path)
    assert not other_process_can_lock(second.path)
    second.release()


def test_refused_attempts_leave_no_descriptor_open(tmp_path: Path) -> None:
    with other_process_holds(tmp_path / ".lock"):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            with pytest.raises(StoreLockedError):
                DirectoryLock.acquire(tmp_path)
        assert len(os.listdir("/proc/self/fd")) == before


def test_other_errors_pass_through_and_leave_nothing_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "lockf", no_locks)
        with pytest.raises(OSError, match="No locks available"):
            DirectoryLock.acquire(tmp_path)
    with pytest.raises(FileNotFoundError):
        DirectoryLock.acquire(tmp_path / "missing")
    DirectoryLock.acquire(tmp_path).release()
