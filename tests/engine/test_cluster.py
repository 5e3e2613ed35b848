"""A cluster's metadata log, made byte by byte: what its records say, and what is not believed."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_metadata import (
    ABORT,
    BEGIN,
    END,
    IDS,
    NO_OP,
    changed,
    frame,
    partition,
    removed,
    setting,
    shown,
    text,
    topic,
    uvarint,
    write,
)
from hypothesis import given
from hypothesis import strategies as st
from partition_opening import open_partition

from topicfs import Record
from topicfs.engine import batch as batches
from topicfs.engine.cluster.image import Cluster, Image
from topicfs.engine.cluster.reading import read_cluster
from topicfs.engine.cluster.records import (
    CorruptRecordError,
    PartitionChangeRecord,
    PartitionRecord,
    RemovedRecord,
    SettingRecord,
    TopicRecord,
    Transaction,
    read,
)
from topicfs.engine.format.batch_header import CONTROL
from topicfs.engine.format.paths import METADATA_LOG
from topicfs.engine.kernels import encode as encoding

OF_TOPIC, OF_BROKER = 2, 4
NOT_BELIEVED = Cluster(is_believed=False)


def write_snapshot(directory: Path, end: int, *values: bytes, epoch: int = 1) -> Path:
    """A snapshot, as a broker has it: its last batch is a control batch, whose record says that this is the end."""
    records = batches.from_records([Record(value) for value in values], 0).data
    encoding.stamp(records, 0, 0, 1)
    footer = batches.from_records([Record(b"\0\0\0", key=b"\0\0\0\4")], 0).data
    encoding.restamp(footer, 0, footer.size, CONTROL, 0)
    encoding.stamp(footer, 0, len(values), 1)
    path = directory / f"{end:020d}-{epoch:010d}.checkpoint"
    path.write_bytes(records.tobytes() + footer.tobytes())
    return path


def described(cluster: Cluster) -> dict[str, tuple[int, dict[str, str]]]:
    return {name: (each.partitions, dict(each.settings)) for name, each in cluster.topics.items()}


def test_records_are_read() -> None:
    assert read(topic("a")) == TopicRecord("a", shown("a"))
    assert read(partition("b", 7)) == PartitionRecord(7, shown("b"), 0)
    assert read(changed("b", 7, 3)) == PartitionChangeRecord(7, shown("b"), 3)
    assert read(changed("b", 7, None)) == PartitionChangeRecord(7, shown("b"), None)
    assert read(setting(2, "a", "retention.ms", "5")) == SettingRecord(2, "a", "retention.ms", "5")
    assert read(setting(4, "", "x", None)) == SettingRecord(4, "", "x", None)
    assert read(removed("c")) == RemovedRecord(shown("c"))
    assert [read(each) for each in (BEGIN, END, ABORT)] == [Transaction(23), Transaction(24), Transaction(25)]
    assert read(NO_OP) is None


@pytest.mark.parametrize(
    "value",
    [topic("a"), partition("a", 1), changed("a", 1, 300), setting(2, "größe", "b", "c"), removed("a")],
)
def test_every_length_is_checked(value: bytes) -> None:
    for size in range(len(value) - (16 if value[1] == 3 else 1)):
        with pytest.raises(CorruptRecordError):
            read(value[:size])


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x02" + topic("a")[1:],  # another frame version
        b"\x01\xff\xff\xff\xff\xff\x01",  # a number without an end
        frame(2, text(None), IDS["a"]),
        frame(2, b"\x05\xff\xff\xff\xff", IDS["a"]),
        frame(4, b"\x02", text("a"), text("b"), uvarint(0xFFFFFFF)),
    ],
)
def test_malformed_records_are_refused(value: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        read(value)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(value: bytes) -> None:
    for prefix in (b"", b"\x01\x02\x00", b"\x01\x04\x00"):
        try:
            found = read(prefix + value)
        except CorruptRecordError:
            continue
        if found is not None:
            Image().apply_all([found])


def test_topics_partitions_and_settings_are_applied_in_order(tmp_path: Path) -> None:
    write(
        tmp_path,
        NO_OP,
        topic("a"),
        partition("a", 0),
        partition("a", 1),
        partition("a", 1),
        setting(OF_TOPIC, "a", "cleanup.policy", "compact"),
        setting(OF_TOPIC, "a", "retention.ms", "1"),
        setting(OF_TOPIC, "a", "retention.ms", None),
        topic("b"),
        setting(OF_TOPIC, "b", "retention.ms", "5"),
        removed("b"),
        partition("b", 3),
        setting(OF_BROKER, "", "log.retention.ms", "1"),
        setting(OF_BROKER, "", "log.retention.bytes", "2"),
        setting(OF_BROKER, "7", "log.retention.ms", "3"),
        setting(OF_BROKER, "8", "log.retention.ms", "4"),
    )
    cluster = read_cluster(tmp_path, 7)
    assert described(cluster) == {"a": (2, {"cleanup.policy": "compact"})}
    assert cluster.topics["a"].topic_id == shown("a")
    assert cluster.settings == {"log.retention.ms": "3", "log.retention.bytes": "2"}
    assert read_cluster(tmp_path, None).settings == {"log.retention.ms": "1", "log.retention.bytes": "2"}


def test_a_topic_that_is_made_again_has_nothing_of_the_first(tmp_path: Path) -> None:
    again = frame(2, text("a"), IDS["c"])
    write(
        tmp_path,
        topic("a"),
        partition("a", 0),
        setting(OF_TOPIC, "a", "retention.ms", "1"),
        removed("a"),
        again,
    )
    cluster = read_cluster(tmp_path, 1)
    assert described(cluster) == {"a": (0, {})}
    assert cluster.topics["a"].topic_id == shown("c")


def test_records_of_a_transaction_count_when_it_ends(tmp_path: Path) -> None:
    write(tmp_path, BEGIN, topic("a"), END, BEGIN, topic("b"), ABORT, BEGIN, topic("c"))
    assert set(read_cluster(tmp_path, 1).topics) == {"a"}


def test_the_newest_snapshot_comes_first_and_then_what_is_behind_it(tmp_path: Path) -> None:
    directory = write(tmp_path, setting(OF_TOPIC, "a", "retention.ms", "9"), topic("b"), start=100)
    assert read_cluster(tmp_path, 1) == NOT_BELIEVED, "what is below is not known"
    write_snapshot(directory, 50, topic("c"))
    assert read_cluster(tmp_path, 1) == NOT_BELIEVED, "there is a gap"
    write_snapshot(directory, 101, topic("a"), setting(OF_TOPIC, "a", "retention.ms", "8"))
    assert described(read_cluster(tmp_path, 1)) == {"a": (0, {"retention.ms": "8"}), "b": (0, {})}
    damaged = write_snapshot(directory, 102, topic("c"), epoch=2)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert set(read_cluster(tmp_path, 1).topics) == {"a", "b"}, "the one before does as well"
    (directory / "00000000000000000103-0000000001.checkpoint.part").write_bytes(b"")
    assert set(read_cluster(tmp_path, 1).topics) == {"a", "b"}


def test_half_a_batch_at_the_end_is_passed_over_and_damage_is_not_believed(tmp_path: Path) -> None:
    directory = write(tmp_path, topic("a"), topic("b"))
    path = directory / "00000000000000000000.log"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40])
    assert set(read_cluster(tmp_path, 1).topics) == {"a", "b"}
    path.write_bytes(whole[:-5] + b"\xff" + whole[-4:])
    assert read_cluster(tmp_path, 1) == NOT_BELIEVED


def test_a_segment_that_is_missing_or_short_is_not_believed(tmp_path: Path) -> None:
    """It might have the setting that keeps a topic's records."""
    directory = write(tmp_path, topic("a"), setting(OF_TOPIC, "a", "retention.ms", "9"))
    first = directory / "00000000000000000000.log"
    short = len(first.read_bytes())
    with open_partition(directory, segment_bytes=1 << 20) as log:
        log.append(Record(setting(OF_TOPIC, "a", "retention.ms", "-1")))
        log.roll()
        log.append(Record(topic("b")))
    assert described(read_cluster(tmp_path, 1)) == {"a": (0, {"retention.ms": "-1"}), "b": (0, {})}
    whole = first.read_bytes()
    first.write_bytes(whole[:short])
    assert read_cluster(tmp_path, 1) == NOT_BELIEVED
    write_snapshot(directory, 2, topic("a"))
    assert read_cluster(tmp_path, 1) == NOT_BELIEVED, "nor where it begins behind a snapshot"
    write_snapshot(directory, 3, topic("c"))
    assert set(read_cluster(tmp_path, 1).topics) == {"b", "c"}, "what the snapshot has is not missed"


def test_a_snapshot_without_its_end_is_not_believed(tmp_path: Path) -> None:
    directory = write(tmp_path, topic("a"), start=100)
    snapshot = write_snapshot(directory, 100, topic("b"))
    assert set(read_cluster(tmp_path, 1).topics) == {"a", "b"}
    whole = snapshot.read_bytes()
    for end in range(len(whole)):
        snapshot.write_bytes(whole[:end])
        assert read_cluster(tmp_path, 1) == NOT_BELIEVED


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 10**20 - 1])
def test_a_snapshot_of_an_offset_that_cannot_be_is_not_believed(tmp_path: Path, number: int) -> None:
    directory = write(tmp_path, topic("a"))
    write_snapshot(directory, number, topic("b"))
    assert set(read_cluster(tmp_path, 1).topics) == ({"b"} if number < 2**63 else set())


def test_without_a_metadata_log_nothing_is_known(tmp_path: Path) -> None:
    assert read_cluster(tmp_path, 1) == Cluster()
    (tmp_path / METADATA_LOG).mkdir()
    assert read_cluster(tmp_path, 1) == NOT_BELIEVED


def test_reading_changes_nothing(tmp_path: Path) -> None:
    directory = write(tmp_path, topic("a"), topic("b"))
    write_snapshot(directory, 1, topic("a"))
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ctime_ns) for path in tmp_path.rglob("*")}
    read_cluster(tmp_path, 1)
    assert {
        path: (path.stat().st_mtime_ns, path.stat().st_ctime_ns) for path in tmp_path.rglob("*")
    } == before
