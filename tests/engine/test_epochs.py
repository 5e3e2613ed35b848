"""Leader epochs: KAFKA_FORMAT 3.7, and the leader-epoch lines of KAFKA_CASES F.

Not here: offset checkpoints, partition.metadata and the clean-shutdown file (F), which are the store's.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from topicfs.engine.errors import CorruptCheckpointError
from topicfs.engine.partition.epochs import LeaderEpochs

Pairs = list[tuple[int, int]]
THREE: Pairs = [(2, 6), (3, 8), (4, 11)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leader-epoch-checkpoint"


def epochs_with(path: Path, pairs: Pairs) -> LeaderEpochs:
    epochs = LeaderEpochs.open(path)
    for epoch, start_offset in pairs:
        epochs.assign(epoch, start_offset)
    return epochs


def test_open_creates_an_empty_file(path: Path) -> None:
    epochs = LeaderEpochs.open(path)
    assert path.read_bytes() == b""
    assert epochs.entries == ()
    assert epochs.latest_epoch is None


def test_open_leaves_the_time_of_an_existing_file(path: Path) -> None:
    path.touch()
    os.utime(path, (1000, 1000))
    LeaderEpochs.open(path)
    assert path.stat().st_mtime == 1000


def test_assign_writes_the_file_at_once(path: Path) -> None:
    assert epochs_with(path, [(0, 0)]).assign(2, 6)
    assert path.read_bytes() == b"0\n2\n0 0\n2 6\n"


@pytest.mark.parametrize(
    ("pairs", "left"),
    [
        pytest.param([(2, 6), (2, 6)], [(2, 6)], id="same epoch and offset"),
        pytest.param([(2, 6), (2, 9)], [(2, 6)], id="same epoch, larger offset"),
        pytest.param([(2, 6), (2, 4)], [(2, 4)], id="same epoch, smaller offset"),
        pytest.param([(2, 6), (3, 6)], [(3, 6)], id="higher epoch, same offset"),
        pytest.param([(1, 5), (2, 6), (3, 7), (2, 8)], [(1, 5), (2, 8)], id="lower epoch, higher offset"),
        pytest.param([(2, 6), (3, 8), (4, 7)], [(2, 6), (4, 7)], id="higher epoch, lower offset"),
        pytest.param([(2, 6), (3, 8), (4, 11), (1, 5)], [(1, 5)], id="lower epoch, lower offset"),
        pytest.param([(2, 6), (3, 8), (3, 6)], [(3, 6)], id="same epoch, offset of the one before"),
        pytest.param([(5, 0), (0, 9)], [(0, 9)], id="epoch 0 after a higher one"),
    ],
)
def test_assign_removes_what_contradicts_it(path: Path, pairs: Pairs, left: Pairs) -> None:
    assert list(epochs_with(path, pairs).entries) == left
    assert list(LeaderEpochs.open(path).entries) == left


def test_assign_of_what_is_known_writes_nothing(path: Path) -> None:
    epochs = epochs_with(path, [(2, 6)])
    path.unlink()
    assert not epochs.assign(2, 6)
    assert not epochs.assign(2, 9)
    assert not path.exists()


def test_assign_all_equals_single_assigns_and_writes_once(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [(1, 5), (1, 6), (2, 7), (5, 9), (3, 9), (3, 12), (4, 12)]
    expected = epochs_with(tmp_path / "other", pairs).entries
    written = []
    epochs = LeaderEpochs.open(path)
    monkeypatch.setattr(
        "topicfs.engine.partition.epochs.write_lines", lambda _, lines: written.append(list(lines))
    )
    assert epochs.assign_all(pairs)
    assert epochs.entries == expected
    assert written == [[f"{epoch} {start}" for epoch, start in expected]]


@pytest.mark.parametrize("pair", [(-1, 0), (0, -1)])
def test_assign_refuses_negative_numbers_and_changes_nothing(path: Path, pair: tuple[int, int]) -> None:
    epochs = epochs_with(path, [(2, 6)])
    with pytest.raises(ValueError, match="at least 0"):
        epochs.assign_all([(3, 7), pair])
    assert epochs.entries == ((2, 6),)


def test_assign_that_cannot_be_written_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epochs = epochs_with(path, [(2, 6)])

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("topicfs.engine.partition.epochs.write_lines", fail)
    with pytest.raises(OSError, match="disk full"):
        epochs.assign(3, 8)
    assert epochs.entries == ((2, 6),)


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        pytest.param(7, (7, 99), id="latest ends at the log's end"),
        pytest.param(4, (4, 20), id="older ends where the next begins"),
        pytest.param(3, (2, 11), id="unknown between gives the one below"),
        pytest.param(6, (4, 20), id="unknown before the latest"),
        pytest.param(1, (1, 6), id="below the first gives itself and the first start"),
        pytest.param(8, (-1, -1), id="above the latest"),
        pytest.param(-1, (-1, -1), id="undefined"),
    ],
)
def test_end_offset_of_an_epoch(path: Path, epoch: int, expected: tuple[int, int]) -> None:
    assert epochs_with(path, [(2, 6), (4, 11), (7, 20)]).end_offset_for(epoch, 99) == expected


@pytest.mark.parametrize("epoch", [-1, 0, 5])
def test_end_offset_is_unknown_without_entries(path: Path, epoch: int) -> None:
    assert LeaderEpochs.open(path).end_offset_for(epoch, 99) == (-1, -1)


@pytest.mark.parametrize(
    ("offset", "epoch"), [(0, None), (5, None), (6, 2), (7, 2), (8, 3), (10, 3), (11, 4), (1000, 4)]
)
def test_epoch_of_an_offset_is_that_of_the_last_entry_at_or_below(
    path: Path, offset: int, epoch: int | None
) -> None:
    assert epochs_with(path, THREE).epoch_for_offset(offset) == epoch


@pytest.mark.parametrize(
    ("end_offset", "left"),
    [(8, [(2, 6)]), (9, [(2, 6), (3, 8)]), (11, THREE[:2]), (12, THREE), (6, []), (0, []), (-1, THREE)],
)
def test_truncation_from_the_end(path: Path, end_offset: int, left: Pairs) -> None:
    epochs = epochs_with(path, THREE)
    epochs.truncate_from_end(end_offset)
    assert list(epochs.entries) == left


@pytest.mark.parametrize(
    ("start_offset", "left"),
    [
        (8, [(3, 8), (4, 11)]),
        (9, [(3, 9), (4, 11)]),
        (11, [(4, 11)]),
        (15, [(4, 15)]),
        (7, [(2, 7), (3, 8), (4, 11)]),
        (1, THREE),
        (6, THREE),
        (-1, THREE),
    ],
)
def test_truncation_from_the_start(path: Path, start_offset: int, left: Pairs) -> None:
    epochs = epochs_with(path, THREE)
    epochs.truncate_from_start(start_offset)
    assert list(epochs.entries) == left


def test_truncations_are_written_by_flush(path: Path) -> None:
    epochs = epochs_with(path, THREE)
    epochs.truncate_from_end(11)
    epochs.truncate_from_start(7)
    assert epochs.dirty
    assert list(LeaderEpochs.open(path).entries) == THREE
    epochs.flush()
    assert not epochs.dirty
    assert list(LeaderEpochs.open(path).entries) == [(2, 7), (3, 8)]


def test_truncation_that_changes_nothing_needs_no_flush(path: Path) -> None:
    epochs = epochs_with(path, THREE)
    epochs.truncate_from_end(-1)
    epochs.truncate_from_end(12)
    epochs.truncate_from_start(6)
    assert not epochs.dirty
    path.unlink()
    epochs.flush()
    assert not path.exists()


def test_assign_also_writes_what_a_truncation_left(path: Path) -> None:
    epochs = epochs_with(path, THREE)
    epochs.truncate_from_end(9)
    epochs.assign(5, 9)
    assert not epochs.dirty
    assert list(LeaderEpochs.open(path).entries) == [(2, 6), (3, 8), (5, 9)]


def test_flush_into_a_vanished_directory_is_no_error(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    directory.mkdir()
    epochs = epochs_with(directory / "leader-epoch-checkpoint", THREE)
    epochs.truncate_from_end(9)
    directory.rename(tmp_path / "elsewhere")
    epochs.flush()
    assert epochs.dirty
    assert not directory.exists()


def test_entries_survive_reopening(path: Path) -> None:
    epochs_with(path, THREE)
    reopened = LeaderEpochs.open(path)
    assert list(reopened.entries) == THREE
    assert reopened.latest_epoch == 4


def test_clear_leaves_nothing_also_on_disk(path: Path) -> None:
    epochs = epochs_with(path, THREE)
    epochs.clear()
    assert epochs.entries == ()
    assert epochs.latest_epoch is None
    assert LeaderEpochs.open(path).entries == ()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"0\n1\n2\n", id="one field"),
        pytest.param(b"0\n1\n2 6 9\n", id="three fields"),
        pytest.param(b"0\n1\ntwo 6\n", id="no number"),
        pytest.param(b"0\n1\n-1 6\n", id="negative epoch"),
        pytest.param(b"0\n1\n2 -6\n", id="negative start"),
        pytest.param(b"0\n1\n2147483648 6\n", id="epoch beyond 31 bits"),
        pytest.param(b"0\n1\n2 9223372036854775808\n", id="offset beyond 63 bits"),
        pytest.param(b"0\n2\n2 6\n2 8\n", id="epoch twice"),
        pytest.param(b"0\n2\n3 6\n2 8\n", id="epochs fall"),
        pytest.param(b"0\n2\n2 6\n3 6\n", id="start twice"),
        pytest.param(b"0\n2\n2 6\n3 5\n", id="starts fall"),
        pytest.param(b"0\n2\n2 6\n", id="fewer entries than declared"),
        pytest.param(b"1\n0\n", id="other version"),
    ],
)
def test_malformed_file_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match="leader-epoch-checkpoint"):
        LeaderEpochs.open(path)
    assert path.read_bytes() == content
