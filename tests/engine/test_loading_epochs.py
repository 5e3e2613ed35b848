"""Opening a partition's directory: its leader epochs, and its topic id, after a clean stop and after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from directory_check import bases, path_of
from partition_opening import CLEAN, open_partition
from test_loading import fill

from topicfs.engine.errors import CorruptCheckpointError
from topicfs.engine.partition.loading import Known
from topicfs.engine.partition.partition import Partition


def lead_three_epochs(directory: Path) -> Partition:
    partition = open_partition(directory)
    for epoch in (0, 1, 4):
        partition.log.become_leader(epoch)
        fill(partition, 20)
    return partition


def test_lost_epochs_are_learnt_from_recovered_batches(tmp_path: Path) -> None:
    partition = lead_three_epochs(tmp_path / "t-0")
    partition.log.abandon()
    (tmp_path / "t-0" / "leader-epoch-checkpoint").unlink()
    partition = open_partition(tmp_path / "t-0")
    assert partition.log.epochs.entries == ((0, 0), (1, 20), (4, 40))
    assert partition.log.leader_epoch == 4
    partition.close()


def test_an_epoch_that_began_before_the_recovered_segment_keeps_its_beginning(tmp_path: Path) -> None:
    """regression: it began where the segment begins that was recovered first, and a replica asks for it"""
    partition = open_partition(tmp_path / "t-0")
    for epoch in (0, 4, 9):
        partition.log.become_leader(epoch)
        fill(partition, 20)
        partition.roll()
        fill(partition, 20)
    partition.flush()
    known = Known(recovery_point=60)
    for _ in range(2):
        partition.log.abandon()
        partition = open_partition(tmp_path / "t-0", known)
        assert partition.log.epochs.entries == ((0, 0), (4, 40), (9, 80))
    partition.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "damage", [b"\xff\xfe", b"0\n2\n0 0\n", b"9\n0\n", b"0\n2\n5 5\n4 4\n", b"0\n1\n0 x\n"]
)
def test_a_damaged_epoch_file_is_rebuilt_from_all_batches(tmp_path: Path, damage: bytes, clean: bool) -> None:
    partition = lead_three_epochs(tmp_path / "t-0")
    partition.close()
    (tmp_path / "t-0" / "leader-epoch-checkpoint").write_bytes(damage)
    partition = open_partition(tmp_path / "t-0", Known(clean=clean, recovery_point=60))
    assert partition.log.epochs.entries == ((0, 0), (1, 20), (4, 40))
    partition.close()


def test_epochs_from_the_end_on_are_removed(tmp_path: Path) -> None:
    partition = lead_three_epochs(tmp_path / "t-0")
    partition.log.become_leader(9)
    partition.close()
    assert (tmp_path / "t-0" / "leader-epoch-checkpoint").read_text().endswith("9 60\n")
    partition = open_partition(tmp_path / "t-0", CLEAN)
    assert partition.log.epochs.entries == ((0, 0), (1, 20), (4, 40))
    partition.close()


def test_epochs_below_the_start_offset_give_way_to_one_that_begins_there(tmp_path: Path) -> None:
    partition = lead_three_epochs(tmp_path / "t-0")
    partition.close()
    partition = open_partition(tmp_path / "t-0", Known(clean=True, start=25))
    assert partition.log.epochs.entries == ((1, 25), (4, 40))
    partition.close()


def test_the_topic_id_is_known_again(tmp_path: Path) -> None:
    partition = open_partition(tmp_path / "t-0")
    partition.log.metadata.record("6nvQZvMFS0iPlCsFQmrGpQ")
    fill(partition, 1)
    partition.log.abandon()
    partition = open_partition(tmp_path / "t-0")
    assert partition.topic_id == "6nvQZvMFS0iPlCsFQmrGpQ"
    partition.close()


def test_a_damaged_topic_id_is_an_error(tmp_path: Path) -> None:
    open_partition(tmp_path / "t-0").close()
    (tmp_path / "t-0" / "partition.metadata").write_bytes(b"version: x\n")
    with pytest.raises(CorruptCheckpointError, match=r"partition\.metadata"):
        open_partition(tmp_path / "t-0")


def test_a_segment_that_is_recovered_by_itself_leaves_the_epochs_behind_it(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    partition = open_partition(directory)
    for epoch in range(4):
        partition.log.become_leader(epoch)
        fill(partition, 15)
    epochs = partition.log.epochs.entries
    assert len(epochs) == 4
    partition.close()
    for base in bases(directory)[:-1]:
        path_of(directory, base, ".index").unlink()
        again = open_partition(directory, Known(clean=True, recovery_point=60))
        assert again.log.epochs.entries == epochs
        again.close()
    assert open_partition(directory, CLEAN).log.epochs.entries == epochs
