"""A real process that appends and is killed, several times over: everything it acknowledged is there."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from directory_check import check_directory
from partition_opening import CLEAN, open_partition

from topicfs.engine.partition.loading import Known

ROOT = Path(__file__).parents[2]
SETTINGS = {"segment_bytes": 20_000, "index_interval_bytes": 300}


@pytest.mark.parametrize("seed", [1, 2])
def test_everything_that_a_killed_process_acknowledged_is_there(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    directory = tmp_path / "t-0"
    directory.mkdir()
    end = point = 0
    for _ in range(3):
        command = [
            sys.executable,
            str(Path(__file__).with_name("killed_appender.py")),
            str(directory),
            str(point),
        ]
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT)},
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            begun = False
            for _ in range(chance.randrange(50, 300)):
                line = process.stdout.readline()
                assert line, process.stderr.read()
                first, last, told = map(int, line.split())
                # A process that was killed may have appended what it had no time to tell.
                assert first == end if begun else first >= end
                end, point, begun = last, told, True
            process.kill()
            for line in process.stdout.read().splitlines(keepends=True):
                if line.endswith("\n"):
                    _, end, point = map(int, line.split())
        partition = open_partition(directory, Known(recovery_point=point), **SETTINGS)
        assert partition.end_offset >= end
        records = list(partition.records())
        assert [record.offset for record in records] == list(range(partition.end_offset))
        assert all(record.value == b"value %d" % record.offset for record in records)
        assert partition.log.producers.producers[7].last_sequence == partition.end_offset - 1
        partition.log.abandon()
    partition = open_partition(directory, Known(), **SETTINGS)
    end = partition.end_offset
    partition.close()
    check_directory(directory)
    partition = open_partition(directory, CLEAN, **SETTINGS)
    assert partition.end_offset == end
    partition.close()
