"""The daemon with the real file system: what it was given is there again after every kind of stop."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest
from conftest import PATIENCE_S, Place, eventually

from mountd import mounts


def append(place: Place, text: str) -> None:
    with open(place.mount / "t-0" / "log.txt", "a") as log:
        log.write(text)


def shown(place: Place) -> str:
    return (place.mount / "t-0" / "log.txt").read_text()


def test_records_are_there_again_after_umount(real_place: Place) -> None:
    real_place.up()
    (real_place.mount / "t-0").mkdir()
    append(real_place, "one\ntwo\n")
    real_place.down()
    real_place.up()
    assert shown(real_place) == "one\ntwo\n"
    real_place.down()


def test_umount_appends_what_open_files_still_hold(real_place: Place) -> None:
    real_place.up("-o", "linger.ms=60000")
    (real_place.mount / "t-0").mkdir()
    opened = os.open(real_place.mount / "t-0" / "log.txt", os.O_WRONLY | os.O_APPEND)
    os.write(opened, b"whole\nunfinished")
    real_place.down()
    with pytest.raises(OSError, match="not connected"):
        os.close(opened)
    assert real_place.values() == [b"whole", b"unfinished"]


def test_closed_files_records_survive_a_kill(real_place: Place) -> None:
    process = real_place.up("-o", "linger.ms=60000")
    (real_place.mount / "t-0").mkdir()
    append(real_place, "one\n")
    os.kill(process, signal.SIGKILL)
    eventually(lambda: mounts.is_dead(real_place.mount), "dead mount")
    real_place.up()
    assert shown(real_place) == "one\n"
    real_place.down()


def test_lines_show_within_the_linger_time_while_the_file_is_open(real_place: Place) -> None:
    real_place.up("-o", "linger.ms=10")
    (real_place.mount / "t-0").mkdir()
    opened = os.open(real_place.mount / "t-0" / "log.txt", os.O_WRONLY | os.O_APPEND)
    os.write(opened, b"early\n")
    eventually(lambda: shown(real_place) == "early\n", "the line")
    os.close(opened)
    real_place.down()


def test_umount_releases_a_follower(real_place: Place) -> None:
    real_place.up()
    (real_place.mount / "t-0").mkdir()
    follower = subprocess.Popen(["cat", real_place.mount / "t-0" / "follow.txt"], stderr=subprocess.PIPE)
    time.sleep(0.3)
    assert follower.poll() is None
    before = time.monotonic()
    real_place.down()
    follower.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - before < 10


def test_reads_and_writes_are_counted(real_place: Place) -> None:
    real_place.up()
    (real_place.mount / "t-0").mkdir()
    append(real_place, "four\n")
    assert shown(real_place) == "four\n"
    metrics = (real_place.mount / "metrics").read_text()
    assert "topicfs_written_bytes_total 5.0" in metrics
    assert "topicfs_read_bytes_total 5.0" in metrics
    assert 'topicfs_partition_end_offset{partition="0",topic="t"} 1.0' in metrics
    real_place.down()


def test_nothing_unexpected_is_logged(real_place: Place) -> None:
    real_place.up()
    (real_place.mount / "t-0").mkdir()
    append(real_place, "one\n")
    shown(real_place)
    real_place.down()
    alarms = [line for line in real_place.log.splitlines() if " INFO " not in line]
    assert alarms == []
