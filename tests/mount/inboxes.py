"""Topics with an inbox, and what writes into it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from daemon_mount import DaemonMount
from shell import output

TOPICS = (f"in{number}" for number in range(1000))


def parquet(dictionary: bool = True, **columns: object) -> bytes:
    """A Parquet file."""
    made, table = io.BytesIO(), pa.table(columns)
    pq.write_table(table, made, compression="zstd", use_dictionary=dictionary, write_statistics=dictionary)
    return made.getvalue()


def arrow(**columns: object) -> bytes:
    """A file of Arrow."""
    made = io.BytesIO()
    table = pa.table(columns)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(made, table.schema, options=options) as writer:
        writer.write_table(table)
    return made.getvalue()


class Topic:
    """A topic of the test's own, with two partitions."""

    def __init__(self, mount: DaemonMount, name: str | None = None) -> None:
        self.mount = mount
        self.name = next(TOPICS) if name is None else name
        self.inbox = mount / "topics" / self.name / "inbox"
        for number in (0, 1):
            (mount / f"{self.name}-{number}").mkdir(exist_ok=True)

    def configure(self, line: str) -> None:
        (self.inbox.parent / "config").write_text(f"{line}\n")

    def partition(self, number: int = 0) -> Path:
        return self.mount / f"{self.name}-{number}"

    def records(self) -> list[dict[str, Any]]:
        """What both partitions show."""
        return [
            json.loads(line)
            for number in (0, 1)
            for line in (self.partition(number) / "log.jsonl").read_text().splitlines()
        ]

    def values(self) -> list[str]:
        """All values, sorted."""
        return sorted(record["value"] for record in self.records())

    def batch(self, name: str, **files: str) -> Path:
        """A directory with text files, ready to be committed."""
        directory = self.inbox / name
        directory.mkdir()
        for stem, text in files.items():
            (directory / f"{stem}.txt").write_text(text)
        return directory


def commit(directory: Path) -> None:
    (directory / "_SUCCESS").touch()


def spark_job(directory: Path, job: str, parts: int = 2, commits: bool = True) -> None:
    """What Spark does to write text into a directory, as far as `_SUCCESS`: SPARK.md §3.1."""
    scratch = directory / "_temporary" / "0"
    (scratch / "_temporary").mkdir(parents=True, exist_ok=True)
    for part in range(parts):
        attempt = scratch / "_temporary" / f"attempt_1_{part}"
        attempt.mkdir()
        name = f"part-{part:05}-{job}-c000.txt"
        (attempt / name).write_text(f"{part} of {job[-1]}\n")
        (attempt / f".{name}.crc").write_bytes(b"crc!")
        attempt.rename(scratch / f"task_1_{part}")
    if not commits:
        return
    for task in scratch.glob("task_*"):
        for file in task.iterdir():
            file.rename(directory / file.name)
    output(f"rm -r {directory}/_temporary", directory)
    commit(directory)
