"""The daemon with the real file system: what it was given is there again after every kind of stop."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from daemon_place import Place
from patience import PATIENCE_S, eventually

from topicfs.engine.jobs import Jobs
from topicfs.engine.record import Record
from topicfs.engine.store.store import Store
from topicfs.mountd import mounts
from topicfs.mountd.assembly import CountedFileSystem
from topicfs.mountd.metrics import Metrics


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
    real_place.down("--force")
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


@pytest.mark.busy
def test_lines_show_within_the_linger_time_while_the_file_is_open(real_place: Place) -> None:
    real_place.up("-o", "linger.ms=10")
    (real_place.mount / "t-0").mkdir()
    opened = os.open(real_place.mount / "t-0" / "log.txt", os.O_WRONLY | os.O_APPEND)
    os.write(opened, b"early\n")
    eventually(lambda: shown(real_place) == "early\n", "the line")
    os.close(opened)
    real_place.down()


@pytest.mark.busy
def test_umount_releases_a_follower(real_place: Place) -> None:
    real_place.up()
    (real_place.mount / "t-0").mkdir()
    follower = subprocess.Popen(["cat", real_place.mount / "t-0" / "follow.txt"], stderr=subprocess.PIPE)
    time.sleep(0.3)
    assert follower.poll() is None
    real_place.down("--force")
    follower.communicate(timeout=PATIENCE_S)


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


def counted(place: Place, name: str) -> float:
    """What a counter says, 0 where it does not count yet."""
    lines = (place.mount / "metrics").read_text().splitlines()
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def test_topics_keep_in_shape_by_themselves(real_place: Place) -> None:
    with Store.open(real_place.backing, create=True) as store:
        small = {"internal.segment.bytes": "1000", "min.cleanable.dirty.ratio": "0"}
        keys = store.create("keys", overrides={**small, "cleanup.policy": "compact"})
        lines = store.create("lines", overrides={**small, "retention.bytes": "3000"})
        for _ in range(20):
            keys.append([Record(b"value", b"key %d" % key) for key in range(10)])
            lines.append_lines(b"a line\n" * 50)
    real_place.up(
        *("-o", "log.cleaner.backoff.ms=50", "-o", "log.initial.task.delay.ms=100"),
        *("-o", "log.retention.check.interval.ms=1000"),
    )
    logs = real_place.backing / "logs"

    def size(partition: str) -> int:
        total = 0
        for path in (logs / partition).glob("*.log"):
            with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                total += path.stat().st_size
        return total

    eventually(lambda: size("lines-0") <= 4000, "retention")
    eventually(lambda: size("keys-0") <= 1500, "compaction")
    checkpoint = logs / "cleaner-offset-checkpoint"
    # A clean ends with these, some time after the last of its files has its name.
    eventually(lambda: checkpoint.exists() and "\nkeys 0 " in checkpoint.read_text(), "its checkpoint")
    cleans = 'topicfs_cleaner_cleans_total{thread="cleaner-0"} '
    eventually(lambda: counted(real_place, cleans) >= 1, "its count")
    real_place.down()
    assert real_place.stopped_clean
    alarms = [line for line in real_place.log.splitlines() if " INFO " not in line]
    assert alarms == []


def test_it_is_found_out_how_early_records_are(real_place: Place) -> None:
    with Store.open(real_place.backing, create=True) as store:
        partition = store.create("t", overrides={"internal.segment.bytes": "1000"})
        for _ in range(5):
            partition.append_lines(b"a line\n" * 50)
        sealed = len(partition.log.chain.segments) - 1
    real_place.up()
    shown(real_place)
    views = real_place.backing / "views" / "t-0"
    eventually(lambda: len([*views.glob("*.earliest")]) == sealed > 2, "the files")
    metrics = (real_place.mount / "metrics").read_text()
    assert 'topicfs_job_healthy{job="earliest timestamps"} 1.0' in metrics
    os.setxattr(real_place.mount, "user.topicfs.delete", b"t-0")
    real_place.down()
    alarms = [line for line in real_place.log.splitlines() if " INFO " not in line]
    assert alarms == []


def test_metrics_count_calls_that_failed(real_place: Place) -> None:
    real_place.up()
    (real_place.mount / "t-0").mkdir()
    for _ in range(3):
        with pytest.raises(PermissionError):
            (real_place.mount / "t-0" / "log.txt").unlink()
    assert 'topicfs_errors_total{errno="EPERM"} 3.0' in (real_place.mount / "metrics").read_text()
    real_place.down()


def test_size_maps_go_with_their_partition_and_segment(tmp_path: Path) -> None:
    with Store.open(tmp_path, create=True) as store:
        files = CountedFileSystem(store, Metrics(store, Jobs([]), dict))
        for number in (0, 1):
            partition = store.create("t", number)
            for value in (b"one", b"two"):
                partition.append(Record(value))
                partition.roll()
            files.getattr(f"/t-{number}/log.txt", None)
        files.keep_maps()
        maps = [f"t-{number}/{base:020d}.txt.map" for number in (0, 1) for base in (0, 1)]
        assert kept(tmp_path) == maps
        files.setxattr("/", "user.topicfs.delete", b"t-1", 0)
        (store.logs / "t-0" / f"{0:020d}.log").rename(tmp_path / "elsewhere")
        files.sweep_maps()
        assert kept(tmp_path) == maps[1:2]
        assert os.listdir(tmp_path / "views") == ["t-0"]
        (tmp_path / "elsewhere").rename(store.logs / "t-0" / f"{0:020d}.log")
        files.close()


def test_a_read_only_mount_does_no_upkeep_beside_the_calls(tmp_path: Path) -> None:
    names = {}
    for read_only in (False, True):
        with Store.open(tmp_path, create=not read_only, read_only=read_only) as store:
            files = CountedFileSystem(store, Metrics(store, Jobs([]), dict))
            names[read_only] = [job.name for job in (*store.upkeep.jobs(), *files.jobs())]
            files.close()
    assert names[True] == [
        "read-ahead",
        "following",
        "size maps",
        "indexes of keys",
        "removal of old size maps",
    ]
    assert {"retention", "linger", "size maps", "Parquet files"} < set(names[False])


def kept(backing: Path) -> list[str]:
    """The size maps under a backing directory."""
    views = backing / "views"
    return sorted(str(path.relative_to(views)) for path in views.rglob("*.map"))
