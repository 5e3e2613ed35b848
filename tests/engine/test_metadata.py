"""Ids and markers: KAFKA_FORMAT 1.1, 1.3, 1.5, and KAFKA_CASES F (partition.metadata, clean-shutdown file).

Not here, but with the store and the partition, which call these at the right moment (N): the marker only
where all logs finished loading, the topic id flushed before the first append, on close and before a rename.
"""

from __future__ import annotations

import base64
import logging
import os
from pathlib import Path

import pytest

from topicfs.engine.errors import CorruptCheckpointError, InconsistentTopicIdError, InvalidNameError
from topicfs.engine.files import metadata
from topicfs.engine.files.metadata import (
    CleanShutdown,
    MetaProperties,
    PartitionMetadata,
    parse_uuid,
    random_uuid,
)
from topicfs.engine.files.properties import read_properties

ID = "Q1Rz8vWkS3yTb0nNfXk4Ag"
OTHER = "-Q1Rz8vWkS3yTb0nNfXk4A"
ZERO = "A" * 22


def clock() -> int:
    return 0


# -- ids --------------------------------------------------------------------------------------------


def test_random_uuid_has_22_characters_and_never_starts_with_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fixed:
        def __init__(self, first: int) -> None:
            self.bytes = bytes([first]) + bytes(range(15))

    # 0xF8 begins with the six bits of '-', 0xFC with those of '_'.
    answers = iter([Fixed(0xF8), Fixed(0xFB), Fixed(0xFC)])
    monkeypatch.setattr(metadata.uuid, "uuid4", lambda: next(answers))
    text = random_uuid()
    assert text.startswith("_")
    assert len(text) == 22
    assert base64.urlsafe_b64decode(text + "==") == bytes([0xFC]) + bytes(range(15))


def test_random_uuid_is_new_each_time_and_not_reserved() -> None:
    made = {random_uuid() for _ in range(1000)}
    assert len(made) == 1000
    assert not any(text.startswith(("-", "A" * 10)) for text in made)
    assert all(parse_uuid(text) == text for text in made)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        ID[:-1],
        ID + "A",
        ID + "==",
        ID[:-1] + "+",
        ID[:-1] + "/",
        ID[:-1] + " ",
        ID[:-1] + "é",
        ID + "\n",
    ],
)
def test_other_text_is_no_uuid(text: str) -> None:
    assert parse_uuid(text) is None


def test_spare_bits_of_the_last_character_do_not_make_another_uuid() -> None:
    assert parse_uuid(ID[:-1] + "h") == ID
    assert parse_uuid(OTHER) == OTHER


# -- partition.metadata -----------------------------------------------------------------------------


def test_recorded_topic_id_is_written_by_the_flush_and_read_back(tmp_path: Path) -> None:
    file = PartitionMetadata.load(tmp_path)
    assert file.topic_id is None
    file.record(ID)
    assert file.topic_id == ID
    assert not (tmp_path / "partition.metadata").exists()
    file.maybe_flush()
    assert (tmp_path / "partition.metadata").read_bytes() == f"version: 0\ntopic_id: {ID}".encode()
    assert PartitionMetadata.load(tmp_path).topic_id == ID


def test_flush_without_a_pending_id_writes_no_file(tmp_path: Path) -> None:
    PartitionMetadata.load(tmp_path).maybe_flush()
    assert list(tmp_path.iterdir()) == []
    file = PartitionMetadata.load(tmp_path)
    file.record(ID)
    file.maybe_flush()
    file.path.unlink()
    file.record(ID)
    file.maybe_flush()
    assert list(tmp_path.iterdir()) == []


def test_second_record_with_the_same_id_is_fine_and_with_another_is_not(tmp_path: Path) -> None:
    file = PartitionMetadata.load(tmp_path)
    file.record(ID)
    file.record(ID)
    with pytest.raises(InconsistentTopicIdError, match=f"expected topic id {OTHER}, found {ID}"):
        file.record(OTHER)
    file.maybe_flush()
    reopened = PartitionMetadata.load(tmp_path)
    reopened.record(ID)
    with pytest.raises(InconsistentTopicIdError):
        reopened.record(OTHER)
    assert PartitionMetadata.load(tmp_path).topic_id == ID


def test_flush_that_failed_is_tried_again(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    file = PartitionMetadata.load(directory)
    file.record(ID)
    with pytest.raises(FileNotFoundError):
        file.maybe_flush()
    directory.mkdir()
    file.maybe_flush()
    assert PartitionMetadata.load(directory).topic_id == ID


@pytest.mark.parametrize("topic_id", ["", "orders", ZERO])
def test_topic_id_that_is_none_is_not_recorded(tmp_path: Path, topic_id: str) -> None:
    file = PartitionMetadata.load(tmp_path)
    with pytest.raises(InvalidNameError, match=f"found '{topic_id}'"):
        file.record(topic_id)
    assert file.topic_id is None


@pytest.mark.parametrize(
    "content",
    [
        f"version: 0\ntopic_id: {ID}",
        f"version: 0\ntopic_id: {ID}\n",
        f"version:  1\r\ntopic_id:\t{ID}\r\nmore",
    ],
)
def test_file_is_read_with_any_line_end_and_newer_version(tmp_path: Path, content: str) -> None:
    (tmp_path / "partition.metadata").write_text(content, newline="")
    assert PartitionMetadata.load(tmp_path).topic_id == ID


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", 1),
        (b"\0" * 60, 1),
        (b"version:0\ntopic_id: x", 1),
        (b"topic_id: x\nversion: 0", 1),
        (f"version: -1\ntopic_id: {ID}".encode(), 1),
        (f"version: x\ntopic_id: {ID}".encode(), 1),
        (b"version: 0", 2),
        (b"version: 0\n\n", 2),
        (b"version: 0\ntopic_id: orders", 2),
        (f"version: 0\ntopic_id: {ID} : {ID}".encode(), 2),
        (f"version: 0\ntopic_id: {ZERO}".encode(), 2),
        (b"version: 0\ntopic_id: \xff", 2),
    ],
)
def test_malformed_file_is_refused_with_path_and_line(tmp_path: Path, content: bytes, line: int) -> None:
    (tmp_path / "partition.metadata").write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match=rf"partition\.metadata: line {line}: expected .* found"):
        PartitionMetadata.load(tmp_path)


def test_file_above_the_bound_is_refused(tmp_path: Path) -> None:
    (tmp_path / "partition.metadata").write_bytes(b"x" * (metadata.MAX_BYTES + 1))
    with pytest.raises(CorruptCheckpointError, match="at most"):
        PartitionMetadata.load(tmp_path)


# -- meta.properties --------------------------------------------------------------------------------


def write(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "meta.properties"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_missing_meta_properties_are_generated_once(tmp_path: Path) -> None:
    made = MetaProperties.load_or_create(tmp_path, clock)
    assert (made.version, made.node_id) == (1, 0)
    assert made.cluster_id
    assert made.directory_id
    assert made.cluster_id != made.directory_id
    content = (tmp_path / "meta.properties").read_text()
    assert content == (
        "#\n#Thu Jan 01 00:00:00 UTC 1970\n"
        f"version=1\ncluster.id={made.cluster_id}\nnode.id=0\ndirectory.id={made.directory_id}\n"
    )
    assert MetaProperties.load_or_create(tmp_path, clock) == made
    assert (tmp_path / "meta.properties").read_text() == content


def test_meta_properties_of_a_broker_are_read_and_left_as_they_are(tmp_path: Path) -> None:
    path = write(
        tmp_path, "#", "#a date", f"directory.id={ID}", "node.id=7", "version=1", "cluster.id=my cluster"
    )
    before = path.read_bytes()
    assert MetaProperties.load_or_create(tmp_path, clock) == MetaProperties(1, "my cluster", 7, ID)
    assert path.read_bytes() == before


def test_missing_directory_id_is_generated_and_the_rest_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path, "version=1", "cluster.id=c", "node.id=7", "unknown=kept")
    made = MetaProperties.load_or_create(tmp_path, clock)
    assert (made.cluster_id, made.node_id) == ("c", 7)
    assert read_properties(path) == {
        "version": "1",
        "cluster.id": "c",
        "node.id": "7",
        "unknown": "kept",
        "directory.id": made.directory_id,
    }


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["version=0"], MetaProperties(0, None, None, None)),
        (["version=0", "broker.id=3", "cluster.id=c"], MetaProperties(0, "c", 3, None)),
    ],
)
def test_version_0_is_accepted_with_nothing_mandatory_and_is_not_rewritten(
    tmp_path: Path, lines: list[str], found: MetaProperties
) -> None:
    path = write(tmp_path, *lines)
    before = path.read_bytes()
    assert MetaProperties.load_or_create(tmp_path, clock) == found
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ([], "version"),
        (["version=2", "cluster.id=c", "node.id=1"], "version"),
        (["version=x", "cluster.id=c", "node.id=1"], "version"),
        (["version=1", "node.id=1"], "cluster.id"),
        (["version=1", "cluster.id=c"], "node.id"),
        (["version=1", "cluster.id=c", "broker.id=1"], "node.id"),
        (["version=1", "cluster.id=c", "node.id=-1"], "node.id"),
        (["version=1", "cluster.id=c", "node.id=1_0"], "node.id"),
        (["version=0", "broker.id=x"], "broker.id"),
        (["version=1", "cluster.id=c", "node.id=1", "directory.id=x"], "directory.id"),
        (["version=1", "cluster.id=c", "node.id=1", f"directory.id={ZERO}"], "directory.id"),
    ],
)
def test_wrong_meta_properties_are_refused_with_path_and_name(
    tmp_path: Path, lines: list[str], wrong: str
) -> None:
    path = write(tmp_path, *lines)
    before = path.read_bytes()
    with pytest.raises(CorruptCheckpointError, match=rf"meta\.properties: {wrong}: expected .* found"):
        MetaProperties.load_or_create(tmp_path, clock)
    assert path.read_bytes() == before


# -- the marker of a clean stop ---------------------------------------------------------------------


def test_marker_is_written_and_its_epoch_read_back(tmp_path: Path) -> None:
    marker = CleanShutdown.of(tmp_path)
    assert not marker.exists()
    marker.write(broker_epoch=987)
    assert (tmp_path / ".kafka_cleanshutdown").read_bytes() == b'{"version":0,"brokerEpoch":987}'
    assert marker.exists()
    assert marker.broker_epoch() == 987
    marker.write()
    assert marker.broker_epoch() == -1


def test_missing_marker_has_no_epoch(tmp_path: Path) -> None:
    assert CleanShutdown.of(tmp_path).broker_epoch() is None


def test_unknown_fields_of_the_marker_are_tolerated(tmp_path: Path) -> None:
    marker = CleanShutdown.of(tmp_path)
    marker.path.write_bytes(b'{"version":1,"more":[1,{}],"brokerEpoch":5}\n')
    assert marker.broker_epoch() == 5


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\0", b"\xff", b"{", b"[" * 10_000, b"9" * 5000, b"[]", b"null", b"{}", b'{"brokerEpoch":null}',
     b'{"brokerEpoch":true}', b'{"brokerEpoch":1.5}', b'{"brokerEpoch":9223372036854775808}', b"x" * 100_000],
)  # fmt: skip
def test_unreadable_marker_still_marks_a_clean_stop_without_an_epoch(tmp_path: Path, content: bytes) -> None:
    marker = CleanShutdown.of(tmp_path)
    marker.path.write_bytes(content)
    assert marker.exists()
    assert marker.broker_epoch() is None


def test_unreadable_marker_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    marker = CleanShutdown.of(tmp_path)
    marker.path.write_bytes(b"garbage")
    with caplog.at_level(logging.WARNING):
        marker.broker_epoch()
    assert "expected one line of JSON" in caplog.text


def test_removed_marker_is_gone_durably_and_removing_none_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = CleanShutdown.of(tmp_path)
    marker.write()
    synced = []
    monkeypatch.setattr(
        os,
        "fsync",
        lambda descriptor: synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), marker.exists())),
    )
    marker.remove()
    assert synced == [(str(tmp_path), False)]
    marker.remove()
    assert not marker.exists()
