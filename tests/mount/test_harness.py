"""The harness itself: what it must not let pass."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest
from harness import missing, mounted
from memory_files import Small

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def test_the_watchdog_ends_a_mount_that_hangs_and_says_where_it_was(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match=r"the mount hung(.|\n)*memory_files\.py"),
        mounted(Small, tmp_path, limit_s=3) as mount,
    ):
        subprocess.run(["cat", mount / "blocked/wait"], check=False)
    assert not os.path.ismount(tmp_path / "mnt")


def test_a_warning_that_was_not_expected_fails_the_test(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="a bug"), mounted(Small, tmp_path) as mount:
        assert not os.access(mount / "wrong/bug", os.F_OK)


def test_nothing_stays_mounted_when_a_file_is_still_open(tmp_path: Path) -> None:
    with mounted(Small, tmp_path) as mount:
        descriptor = os.open(mount / "direct", os.O_CREAT | os.O_WRONLY)
        # Its owner goes on: the harness unmounts lazily, and the process must be told to end.
        threading.Timer(3, os.close, (descriptor,)).start()
    assert not os.path.ismount(tmp_path / "mnt")
