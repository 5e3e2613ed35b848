"""`fs/SEMANTICS.md`: sealed segments as Parquet files."""

from __future__ import annotations

import base64
import errno
import json
import os
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from daemon_mount import DaemonMount, append, eventually, opened, own_mount, refused
from shell import output

pytest_plugins = ["shared_mount"]

BASE = f"{0:020d}"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
QUICK = {
    "log.parquet.enable": "true",
    "log.cleaner.backoff.ms": 20,
    "log.cleaner.min.cleanable.ratio": 0,
    "log.segment.delete.delay.ms": 0,
}


def options(**more: object) -> list[str]:
    return [word for name, value in (QUICK | more).items() for word in ("-o", f"{name}={value}")]


def topic_of(mount: DaemonMount, partition: Path) -> Path:
    return mount / "topics" / partition.name.rpartition("-")[0]


def configure(mount: DaemonMount, partition: Path, line: str) -> None:
    (topic_of(mount, partition) / "config").write_text(f"{line}\n")


def table(mount: DaemonMount, partition: Path) -> Path:
    return topic_of(mount, partition) / f"table/partition={partition.name.rpartition('-')[2]}"


def segment(mount: DaemonMount, partition: Path, lines: str, suffix: str = "tsv") -> None:
    append(partition / f"log.{suffix}", lines.encode())
    mount.steer("roll", partition)


def names(directory: Path) -> list[str]:
    return os.listdir(directory)


def made(directory: Path, *bases: int) -> None:
    """Wait until exactly these segments have files."""
    wanted = [f"{base:020d}.parquet" for base in bases]
    eventually(lambda: names(directory) == wanted, f"{wanted} in {directory}")


def compact_made(directory: Path, *spans: tuple[int, int]) -> None:
    """The same of a compacted topic, whose names have both ends."""
    wanted = [f"{base:020d}-{end:020d}.parquet" for base, end in spans]
    eventually(lambda: names(directory) == wanted, f"{wanted} in {directory}")


def rest(descriptor: int, size: int) -> bytes:
    return b"".join(iter_parts(descriptor, size))


def iter_parts(descriptor: int, size: int) -> list[bytes]:
    return [os.pread(descriptor, 1 << 16, position) for position in range(0, size, 1 << 16)]


def kept(file: Path) -> tuple[int, ...]:
    """What stat says of a file, without the device: the kernel numbers each mount anew, as others come and go."""
    found = file.stat()
    return (
        *(found.st_mode, found.st_ino, found.st_nlink, found.st_uid, found.st_gid, found.st_size),
        *(found.st_blocks, found.st_mtime_ns, found.st_ctime_ns),
    )


def as_jsonl(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a file as jsonl has it, without the partition."""
    found: dict[str, Any] = {
        "topic": row["topic"],
        "offset": row["offset"],
        "timestamp": (row["timestamp"] - EPOCH) // timedelta(milliseconds=1),
    }
    for name in ("key", "value"):
        found |= as_text(name, row[name])
    found["headers"] = [
        {"key": header["key"], **as_text("value", header["value"])} for header in row["headers"] or ()
    ]
    return found


def as_text(name: str, data: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        assert data is not None
        return {f"{name}_base64": base64.b64encode(data).decode()}


def test_where_they_are(mount: DaemonMount) -> None:
    """Q1. With `parquet.enable=true` a topic has `table/partition=<n>/<base>.parquet` and its partitions
    `sealed/parquet/<base>.parquet`, the same bytes; without it neither directory is there, and what was made is
    removed.
    """
    partition = mount.new("where")
    topic, sealed = topic_of(mount, partition), partition / "sealed"
    segment(mount, partition, "k\tv\n")
    assert "table" not in names(topic)
    assert "parquet" not in names(sealed)
    for path in (topic / "table", topic / "table/partition=0", sealed / "parquet"):
        with refused(errno.ENOENT):
            path.stat()
    configure(mount, partition, "parquet.enable=true")
    assert "table" in names(topic)
    assert names(topic / "table") == ["partition=0"]
    assert names(sealed) == ["txt", "tsv", "jsonl", "parquet"]
    made(sealed / "parquet", 0)
    file = f"{BASE}.parquet"
    assert names(topic / "table/partition=0") == [file]
    assert (sealed / "parquet" / file).read_bytes() == (topic / "table/partition=0" / file).read_bytes()
    configure(mount, partition, "parquet.enable=false")
    assert "table" not in names(topic)
    assert "parquet" not in names(sealed)
    mount.await_releases()
    with refused(errno.ENOENT):
        (sealed / "parquet" / file).stat()
    views = mount.backing / "views" / partition.name
    eventually(lambda: not list(views.glob("*parquet*")), "the removal of what was made")


def test_when_they_are_there(tmp_path: Path) -> None:
    """Q2. A Parquet file is listed, in the order of offsets, when it is whole: one for each segment that can change no
    more and has a visible record. After `kill -9` of the daemon it is the same, or not there yet.
    """
    place = DaemonMount(tmp_path)
    try:
        place.start(*options())
        partition = place.new("orders")
        parquet = partition / "sealed/parquet"
        segment(place, partition, "k\tv\n" * 3)
        place.steer("write", partition, 1, 0, [b"hidden"])
        place.steer("end", partition, 1, False)
        place.steer("roll", partition)
        segment(place, partition, "k\tv\n" * 2)
        place.steer("write", partition, 2, 0, [b"undecided"])
        segment(place, partition, "k\tv\n")
        append(partition / "log.tsv", b"k\tactive\n")
        made(parquet, 0, 5)
        assert [pq.read_table(parquet / name).num_rows for name in names(parquet)] == [3, 2]
        place.steer("end", partition, 2, True)
        made(parquet, 0, 5, 7)
        before = {name: ((parquet / name).read_bytes(), kept(parquet / name)) for name in names(parquet)}
        segment(place, partition, "k\tv\n" * 100_000)
        time.sleep(0.9)
        place.kill()
        place.clear()
        place.start(*options())
        listed = names(parquet)
        assert listed[:3] == [*before]
        for name, (data, status) in before.items():
            assert (parquet / name).read_bytes() == data
            assert kept(parquet / name) == status
        made(parquet, 0, 5, 7, 9)
        assert pq.read_table(parquet / names(parquet)[3]).num_rows == 100_001
        assert place.stop() == 0
    finally:
        place.clear()


def test_what_is_in_them(mount: DaemonMount) -> None:
    """Q3. Its rows are the records that `sealed/jsonl` shows, with the columns of jsonl but for `partition`, which is
    in the path: `key`, `value` and the headers' values are binary, `timestamp` is in UTC, `headers` is null where there
    are none.
    """
    partition = mount.new("content")
    configure(mount, partition, "parquet.enable=true")
    now = int(time.time() * 1000)
    rows = [
        {"key": "k", "value": "v", "timestamp": now},
        {"key": None, "value": None, "timestamp": now - 5},
        {"key": "", "value": "", "headers": [{"key": "h", "value": "x"}, {"key": "h", "value": None}]},
        {"key_base64": "/w==", "value_base64": "AP8=", "headers": [{"key": "é", "value_base64": "/w=="}]},
    ]
    segment(mount, partition, "".join(f"{json.dumps(row)}\n" for row in rows), "jsonl")
    made(partition / "sealed/parquet", 0)
    found = pq.read_table(partition / f"sealed/parquet/{BASE}.parquet")
    assert {field.name: str(field.type) for field in found.schema} == {
        "topic": "string",
        "offset": "int64",
        "timestamp": "timestamp[us, tz=UTC]",
        "key": "binary",
        "value": "binary",
        "headers": "list<element: struct<key: string, value: binary>>",
    }
    shown = [
        json.loads(line) for line in (partition / f"sealed/jsonl/{BASE}.jsonl").read_bytes().splitlines()
    ]
    listed = found.to_pylist()
    assert [as_jsonl(row) | {"partition": 0} for row in listed] == shown
    assert (listed[1]["key"], listed[1]["value"], listed[1]["headers"]) == (None, None, None)
    assert (listed[3]["key"], listed[3]["value"]) == (b"\xff", b"\0\xff")
    # The inbox of another topic makes equal records of them: I23.
    copied = mount.new("copied")
    output(f"cp {table(mount, partition)}/*.parquet {topic_of(mount, copied)}/inbox/", mount.path)
    again = [json.loads(line) for line in (copied / "log.jsonl").read_bytes().splitlines()]
    assert [record | {"topic": shown[0]["topic"]} for record in again] == shown


def test_what_a_filter_reads(mount: DaemonMount) -> None:
    """Q4. Each row group has the range of its offsets and timestamps, so that a filter on them reads a small part of a
    file.
    """
    partition = mount.new("large")
    configure(mount, partition, "parquet.enable=true")
    lines = "".join(f"k{number}\t{os.urandom(20).hex()}\n" for number in range(400_000))
    segment(mount, partition, lines)
    made(partition / "sealed/parquet", 0)
    file = partition / f"sealed/parquet/{BASE}.parquet"
    metadata = pq.ParquetFile(file).metadata
    ranges = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
        assert columns["timestamp"].statistics.has_min_max
        ranges.append((columns["offset"].statistics.min, columns["offset"].statistics.max))
    assert len(ranges) >= 3
    assert ranges[0][0] == 0
    assert ranges[-1][1] == 399_999
    assert all(before[1] + 1 == after[0] for before, after in pairwise(ranges))
    (fragment,) = ds.dataset(file).get_fragments(filter=ds.field("offset") == 200_000)
    assert len(fragment.split_by_row_group(ds.field("offset") == 200_000)) == 1


def test_what_stat_tells(tmp_path: Path) -> None:
    """Q5. It can only be read; its size is exact, it has the mtime of its segment's `.log` and the extended attributes
    of a segment's file, and its inode stays over a restart; `.NAME.crc` and `_spark_metadata` are ENOENT.
    """
    with own_mount(tmp_path, *options()) as mount:
        partition = mount.new("orders")
        segment(mount, partition, "k\tv\n")
        directory = table(mount, partition)
        made(directory, 0)
        file, log = directory / f"{BASE}.parquet", partition / f"segments/{BASE}.log"
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND):
            with refused(errno.EPERM):
                os.open(file, flags)
        with refused(errno.EPERM):
            file.unlink()
        status = file.stat()
        assert status.st_size == len(file.read_bytes())
        assert status.st_mtime_ns == log.stat().st_mtime_ns
        assert status.st_ino != (partition / f"sealed/parquet/{BASE}.parquet").stat().st_ino
        attributes = {name: os.getxattr(file, name) for name in os.listxattr(file)}
        assert attributes == {name: os.getxattr(log, name) for name in os.listxattr(log)} or attributes == {
            name: os.getxattr(partition / f"sealed/txt/{BASE}.txt", name)
            for name in os.listxattr(partition / f"sealed/txt/{BASE}.txt")
        }
        for name in (
            f".{BASE}.parquet.crc",
            "_spark_metadata",
            f"{1:020d}.parquet",
            f"{BASE}.parquet.tmp",
            "0",
        ):
            with refused(errno.ENOENT):
                (directory / name).stat()
        for name in ("partition=1", "partition=00", "partition=+0", "partition=", "_spark_metadata"):
            with refused(errno.ENOENT):
                (directory.parent / name).stat()
        before = kept(file)
        assert mount.stop() == 0
        mount.start(*options())
        assert kept(file) == before


def test_compaction(tmp_path: Path) -> None:
    """Q6. A compaction replaces a partition's table as a whole: it is the one before until all new files are there,
    which have other inodes, and whoever has a file open reads on in the old one.
    """
    with own_mount(tmp_path, *options()) as mount:
        partition = mount.new("keys")
        configure(mount, partition, "cleanup.policy=compact\nmin.compaction.lag.ms=3600000")
        for number in range(3):
            lines = "".join(f"k{key}\tround {number} {os.urandom(100).hex()}\n" for key in range(2000))
            segment(mount, partition, lines)
        append(partition / "log.tsv", b"last\tone\n")
        directory = table(mount, partition)
        compact_made(directory, (0, 2000), (2000, 4000), (4000, 6000))
        file = directory / f"{BASE}-{2000:020d}.parquet"
        status, whole = file.stat(), file.read_bytes()
        with opened(file) as handle:
            start = os.pread(handle, 4096, 0)
            configure(mount, partition, "min.compaction.lag.ms=0")
            seen = set()

            def replaced() -> bool:
                listed = names(directory)
                seen.add(tuple(listed))
                return len(listed) == 1

            eventually(replaced, "a table of what is left")
            compact_made(directory, (0, 6000))
            after = directory / f"{BASE}-{6000:020d}.parquet"
            three = tuple(f"{base:020d}-{base + 2000:020d}.parquet" for base in (0, 2000, 4000))
            assert seen <= {(after.name,), three}
            assert start + rest(handle, len(whole))[4096:] == whole
            new = pq.read_table(after)
            assert new.column("offset").to_pylist() == [*range(4000, 6000)]
            assert start + rest(handle, len(whole))[4096:] == whole
        assert after.stat().st_ino != status.st_ino
        assert pq.read_table(after).num_rows == 2000
        assert after.stat().st_size == len(after.read_bytes())


def test_retention(mount: DaemonMount) -> None:
    """Q7. What retention removes is gone from the table at once; who has the file open reads on."""
    partition = mount.new("short")
    configure(mount, partition, "parquet.enable=true")
    for number in range(3):
        segment(mount, partition, f"k\tvalue {number}\n")
    directory = table(mount, partition)
    made(directory, 0, 1, 2)
    file = directory / f"{BASE}.parquet"
    whole = file.read_bytes()
    with opened(file) as handle:
        mount.steer("raise_start", partition, 1)
        assert names(directory) == [f"{base:020d}.parquet" for base in (1, 2)]
        stored = mount.backing / "views" / partition.name
        eventually(lambda: len([*stored.glob("*.parquet")]) == 2, "the removal of the file")
        assert os.pread(handle, 1 << 20, 0) == whole
    assert pq.read_table(directory).column("offset").to_pylist() == [1, 2]


def test_a_damaged_segment(tmp_path: Path) -> None:
    """Q8. Of a segment that cannot be read there is no file; `status.json` says why, `metrics` counts it, and the
    others are there.
    """
    with own_mount(tmp_path, "-o", "log.parquet.enable=false") as mount:
        mount.expect("no Parquet file of segment 1: ")
        mount.expect("reads by time do not skip segment 1: ")
        partition = mount.new("orders")
        for number in range(3):
            segment(mount, partition, f"k\tvalue {number}\n")
        log = Path(mount.steer("files", partition)) / f"{1:020d}.log"
        data = log.read_bytes()
        log.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        assert mount.status(partition)["parquet"] is None
        configure(mount, partition, "parquet.enable=true")
        made(table(mount, partition), 0, 2)
        status = mount.status(partition)["parquet"]
        assert (status["files"], status["next_offset"]) == (2, 3)
        assert status["error"].startswith("segment 1: ")
        metrics = (mount / "metrics").read_text().splitlines()
        assert 'topicfs_parquet_failing{partition="orders-0"} 1.0' in metrics
        assert "topicfs_parquet_files_total 2.0" in metrics


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_other_readers(tmp_path: Path, policy: str) -> None:
    """Q9. pyarrow, pandas, Polars and DuckDB read `topics/<topic>/table` as it stands, with `partition` as a column."""
    with own_mount(
        tmp_path, *options(**{"log.cleanup.policy": policy, "log.cleaner.enable": "false"})
    ) as mount:
        topic = mount / "topics/orders"
        topic.mkdir()
        (mount / "orders-1").mkdir()
        wanted = []
        for number in range(2):
            for part in range(2):
                lines = "".join(f"{number}.{part}.{key}\tvalue {key}\n" for key in range(100))
                segment(mount, mount / f"orders-{number}", lines)
            if policy == "compact":
                compact_made(topic / f"table/partition={number}", (0, 100), (100, 200))
            else:
                made(topic / f"table/partition={number}", 0, 100)
            for part in range(2):
                wanted += [
                    (number, part * 100 + key, f"{number}.{part}.{key}".encode(), f"value {key}".encode())
                    for key in range(100)
                ]
        place = topic / "table"
        columns = ["partition", "offset", "key", "value"]

        def rows(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
            return sorted(tuple(row[name] for name in columns) for row in found)

        assert rows(pq.read_table(place).to_pylist()) == wanted
        assert rows(pd.read_parquet(place).to_dict("records")) == wanted
        assert rows(pl.read_parquet(place).to_dicts()) == wanted
        few = pl.scan_parquet(place).filter(pl.col("offset") >= 150, pl.col("partition") == 1)
        assert few.select(pl.len()).collect().item() == 50
        query = f"SELECT partition, \"offset\", key, value FROM '{place}/*/*.parquet' ORDER BY 1, 2"
        assert duckdb.sql(query).fetchall() == wanted
        decoded = (
            f"SELECT max(decode(value)) FROM '{place}/*/*.parquet' WHERE \"offset\" < 50 AND partition = 0"
        )
        assert duckdb.sql(decoded).fetchall() == [("value 9",)]
