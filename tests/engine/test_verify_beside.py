"""The check of what topicfs keeps beside the logs: commits, ids, deletions, Parquet files, early timestamps."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from topicfs import Record, Store
from topicfs.engine.keys.checkpoint import Checkpoint, encode
from topicfs.engine.keys.table import KeyTable
from topicfs.engine.linked.topics import LinkedTopic
from topicfs.engine.min_timestamps.build import build
from topicfs.engine.min_timestamps.file import MinTimestamps, write
from topicfs.engine.parquet.table import Tables
from topicfs.engine.parquet.upkeep import TableUpkeep
from topicfs.engine.verify.finding import Finding, Kind, Severity
from topicfs.engine.verify.run import Check

NOW = 1_700_000_000_000


@pytest.fixture(autouse=True)
def _nobody_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second look has to wait for somebody who is just writing."""
    monkeypatch.setattr("topicfs.engine.verify.finding.PAUSE_S", 0.0)


@pytest.fixture
def backing(tmp_path: Path) -> Path:
    """A store with two sealed segments, a Parquet file and a file of early timestamps for each, a deletion, and a
    linked topic."""
    place = tmp_path / "store"
    with Store.open(place, clock=lambda: NOW, create=True) as store:
        partition = store.create("t", 0, overrides={"parquet.enable": "true"})
        for number in range(2):
            partition.append([Record(b"%d" % each, b"k", NOW + number) for each in range(10)])
            partition.roll()
        TableUpkeep(Tables(place / "views"), lambda: NOW).bring_up_to_date(partition, lambda: False)
        for segment in partition.log.snapshot.segments.non_active:
            noted = build(segment, segment.base_offset + 10, lambda: False)
            assert noted is not None
            write(early(place, segment.base_offset), noted)
        store.create("gone", 0).append(Record(b"x"))
        store.delete_topic("gone")
        store.links.link(LinkedTopic("J6pgF__USIy1e43ss1bohg", "linked", "a cluster"), (0,))
    staging = place / "staging" / "t"
    staging.mkdir(parents=True, exist_ok=True)
    (staging / "committed").write_text('["a", "1"]\n"b"\n')
    journal = {"state": "appending", "name": "c", "partitions": [0], "sources": [["c"]], "content": None}
    (staging / "journal").write_text(json.dumps(journal))
    open_one = place / "transactions" / "open" / "a"
    open_one.mkdir(parents=True)
    (open_one / "t-0.txt").write_text("x\n")
    (place / "views" / "t-0" / "keys.checkpoint").write_bytes(encode(Checkpoint(KeyTable.create(0), 0, [])))
    return place


def early(place: Path, base: int) -> Path:
    log = place / "logs" / "t-0" / f"{base:020d}.log"
    status = log.stat()
    name = f"{base:020d}.{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}.earliest"
    return place / "views" / "t-0" / name


def found(backing: Path) -> list[Finding]:
    return list(Check(backing, lambda _: True, growing=False).findings())


def test_nothing_is_found_where_all_is_as_it_was_written(backing: Path) -> None:
    assert len(list((backing / "deleted").iterdir())) == 1
    assert len(list((backing / "views" / "t-0").glob("*.parquet"))) == 2
    assert len(list((backing / "views" / "t-0").glob("*.earliest"))) == 2
    assert found(backing) == []


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def too_late(path: Path) -> None:
    write(path, MinTimestamps(0, 10, ((NOW + 1, 0),)))


def other_rows(path: Path) -> None:
    rows = pq.read_table(path).slice(0, 9)
    pq.write_table(rows, path)
    listed = path.with_name("parquet.list")
    content = json.loads(listed.read_bytes())
    content["files"][0]["size"] = path.stat().st_size
    listed.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("pattern", "harm", "kind", "severity"),
    [
        ("created-topics", lambda path: path.write_text("nonsense\n"), Kind.CREATED_TOPICS, Severity.NOTE),
        ("linked-topics", lambda path: path.write_text("nonsense\n"), Kind.LINKED_TOPICS, Severity.DAMAGE),
        ("staging/t/journal", lambda path: path.write_text("{"), Kind.STAGING, Severity.DAMAGE),
        ("staging/t/journal", lambda path: path.write_text("[" * 100_000), Kind.STAGING, Severity.DAMAGE),
        ("staging/t/committed", lambda path: path.write_text("x\n"), Kind.STAGING, Severity.DAMAGE),
        ("staging/t/committed", lambda path: path.write_text('"a"\n"b'), Kind.STAGING, Severity.NOTE),
        ("deleted/*/deletion.json", lambda path: path.write_text("{}"), Kind.DELETION, Severity.DAMAGE),
        (
            "transactions/open/a/t-0.txt",
            lambda path: (path.unlink(), path.symlink_to("/etc/passwd")),
            Kind.STAGING,
            Severity.NOTE,
        ),
        (
            "views/t-0/keys.checkpoint",
            lambda path: path.write_bytes(b"x" * 20),
            Kind.KEYS,
            Severity.REPAIRABLE,
        ),
        ("views/t-0/keys.checkpoint", flipped, Kind.KEYS, Severity.REPAIRABLE),
        ("views/t-0/*.earliest", flipped, Kind.MIN_TIMESTAMPS, Severity.REPAIRABLE),
        ("views/t-0/*.earliest", too_late, Kind.MIN_TIMESTAMPS, Severity.DAMAGE),
        ("views/t-0/*.parquet", lambda path: path.unlink(), Kind.PARQUET, Severity.REPAIRABLE),
        ("views/t-0/*.parquet", lambda path: os.truncate(path, 5), Kind.PARQUET, Severity.REPAIRABLE),
        (
            "views/t-0/*.parquet",
            lambda path: path.write_bytes(bytes(path.stat().st_size)),
            Kind.PARQUET,
            Severity.REPAIRABLE,
        ),
        ("views/t-0/*.parquet", other_rows, Kind.PARQUET, Severity.DAMAGE),
        ("views/t-0/parquet.list", lambda path: path.write_text("{"), Kind.PARQUET, Severity.REPAIRABLE),
    ],
)
def test_what_is_wrong_beside_the_logs_is_found_in_its_file(
    backing: Path, pattern: str, harm: Callable[[Path], object], kind: Kind, severity: Severity
) -> None:
    path = sorted(backing.glob(pattern))[0]
    harm(path)
    assert {(each.file, each.kind, each.severity) for each in found(backing)} == {(path, kind, severity)}


def test_a_table_that_says_other_numbers_of_records_than_the_log_is_damage(backing: Path) -> None:
    listed = backing / "views" / "t-0" / "parquet.list"
    content = json.loads(listed.read_bytes())
    content["files"][1]["records"] = 7
    listed.write_text(json.dumps(content))
    assert {(each.kind, each.severity) for each in found(backing)} == {(Kind.PARQUET, Severity.DAMAGE)}
    assert listed in {each.file for each in found(backing)}
