"""Segments with messages of the formats 0 and 1, which Kafka before 0.11 wrote, are refused and kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from old_messages import CODECS, backing, batch_at, old_messages

import topicfs
from topicfs import Store
from topicfs.engine.errors import ClosedError, OldFormatError
from topicfs.engine.format.paths import log_file

OLD = [(magic, codec) for magic in (0, 1) for codec in CODECS if (magic, codec) != (0, "lz4")]
"""What aiokafka builds."""


@pytest.mark.parametrize(("magic", "codec"), OLD)
@pytest.mark.parametrize("before", [b"", batch_at(0, b"before")], ids=["first", "behind a batch"])
def test_old_messages_are_recognised_before_anything_is_cut_off(
    tmp_path: Path, before: bytes, magic: int, codec: str
) -> None:
    data = before + old_messages(magic, 1, 10, codec)
    log = backing(tmp_path, (0, data), clean=False) / log_file(0)
    words = f"{log}: expected record batches, found a message of format {magic}.* at position {len(before)}"
    for read_only in (True, False):
        with (
            Store.open(tmp_path / "backing", read_only=read_only) as store,
            pytest.raises(ClosedError, match=words),
        ):
            store.partition("old", 0)
        assert log.read_bytes() == data


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_an_old_message_that_is_cut_short_or_damaged_behind_a_batch_is_damage_as_any(
    tmp_path: Path, cut: int
) -> None:
    message = old_messages(1, 1, 1)
    for wrong in (
        message[:-cut],
        message[:-cut] + bytes([message[-cut] ^ 1]) + message[len(message) - cut + 1 :],
    ):
        place = tmp_path / str(len(wrong))
        log = backing(place, (0, batch_at(0, b"kept") + wrong), clean=False) / log_file(0)
        with Store.open(place / "backing") as store:
            assert [record.value for record in store.partition("old", 0).records()] == [b"kept"]
        assert log.read_bytes() == batch_at(0, b"kept")


@pytest.mark.parametrize("newer", [(), ((20, batch_at(20, b"v")),)], ids=["alone", "before a newer segment"])
def test_readers_without_a_mount_refuse_old_messages_too(
    tmp_path: Path, newer: tuple[tuple[int, bytes], ...]
) -> None:
    backing(tmp_path, (0, old_messages(1, 0, 20)), *newer, clean=True)
    with pytest.raises(OldFormatError, match="a message of format 1"):
        topicfs.arrow(str(tmp_path / "backing"), "old").read_all()
    if newer:
        assert len(topicfs.arrow(str(tmp_path / "backing"), "old", start=20).read_all()) == 1
