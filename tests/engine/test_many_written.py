"""Thousands of partitions that are appended to, in a process that may have few files open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from patience import PATIENCE_S

from topicfs import Store

PARTITIONS = 2000

APPENDS = """
import os, resource, sys
from unittest import mock
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1024))
from topicfs import Store
from topicfs.engine.record import Record
with mock.patch("os.fsync"), mock.patch("os.fdatasync"):
    store = Store.open(sys.argv[1], create=True, settings={"log.index.interval.bytes": "0"})
    count = int(sys.argv[2])
    partitions = store.create_topic("t", count)
    most = 0
    for turn in range(3):
        for partition in partitions:
            partition.append(Record(b"%d" % turn))
            partition.append(Record(b"again"))
            if partition.number % 100 == 0:
                most = max(most, len(os.listdir("/proc/self/fd")))
    for partition in partitions[::97]:
        assert [record.value for record in partition.records()] == [b"0", b"again", b"1", b"again", b"2", b"again"]
    store.close()
print(most, os.path.exists(sys.argv[1] + "/logs/.kafka_cleanshutdown"))
"""


def test_more_partitions_are_written_than_files_may_be_open(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", APPENDS, str(tmp_path), str(PARTITIONS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=5 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    most, clean = done.stdout.split()
    assert int(most) <= 1024 - 192
    assert clean == "True"
    with Store.open(tmp_path) as store:
        assert store.stopped_clean
        for number in range(0, PARTITIONS, 131):
            values = [record.value for record in store.partition("t", number).records()]
            assert values == [b"0", b"again", b"1", b"again", b"2", b"again"]


def test_a_start_with_too_few_says_so(tmp_path: Path) -> None:
    script = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))\n"
    script += "from topicfs import Store; import sys; Store.open(sys.argv[1], create=True)"
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode != 0
    assert "the limit of open files is 100, expected at least 256" in done.stderr
