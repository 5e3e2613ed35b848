"""The index of a partition's keys: beside a dictionary, over damage and transactions, and from a checkpoint."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_view_cache import MemoryViewCache
from partition_opening import CLEAN, crashing, open_partition

from topicfs.engine.errors import CorruptError
from topicfs.engine.format.paths import KEYS_CHECKPOINT
from topicfs.engine.keys.index import KeyIndex
from topicfs.engine.keys.listing import KeyListing
from topicfs.engine.keys.table import LEAST_SLOTS
from topicfs.engine.partition.partition import Partition, Producer
from topicfs.engine.record import Record

Pairs = list[tuple[bytes, bytes | None]]


def compacted(place: Path, **more: object) -> Partition:
    return open_partition(place / "t-0", CLEAN, cleanup_policy="compact", **more)


def put(partition: Partition, pairs: Pairs) -> None:
    partition.append([Record(value, key) for key, value in pairs])


def listed(index: KeyIndex, step: int = 10**9) -> dict[bytes, int]:
    """The live keys, a page of `step` names at a time."""
    listing, found, position, more = KeyListing(index), {}, 0, True
    try:
        while more:
            more = False
            for count, (key, offset, behind) in enumerate(listing.keys(position)):
                if count == step:
                    more = True
                    break
                assert key not in found
                found[key], position = offset, behind
    finally:
        listing.close()
    return found


def check(index: KeyIndex, model: dict[bytes, bytes | None]) -> None:
    live = {key: value for key, value in model.items() if value is not None}
    for key, value in model.items():
        record = index.record(key)
        assert (None if record is None else record.value) == value
    assert index.record(b"never set") is None
    assert index.live == len(live)
    offsets = listed(index, 3)
    assert set(offsets) == set(live)
    assert all(offset == index.find(key) for key, offset in offsets.items())


keys = st.binary(max_size=3)
values = st.none() | st.binary(max_size=20)


@settings(deadline=None)
@given(steps=st.lists(st.lists(st.tuples(keys, values), min_size=1, max_size=30), max_size=12), at=st.data())
def test_every_key_has_its_last_value_whenever_it_is_asked_and_however_the_mount_ends(
    steps: list[Pairs], at: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place, cache = tmp_path_factory.mktemp("keys"), MemoryViewCache()
    model: dict[bytes, bytes | None] = {}
    partition = compacted(place)
    index = KeyIndex(partition, cache)
    for pairs in steps:
        put(partition, pairs)
        model.update(pairs)
        match at.draw(st.sampled_from(["go on", "look", "save", "stop", "crash"])):
            case "look":
                check(index, model)
            case "save":
                index.catch_up()
                index.save()
            case "stop":
                index.catch_up()
                index.save()
                partition.close()
                partition = compacted(place)
                index = KeyIndex(partition, cache)
            case "crash":
                with crashing(partition):
                    pass
                partition = open_partition(place / "t-0", cleanup_policy="compact")
                index = KeyIndex(partition, cache)
    check(index, model)
    partition.close()


def test_a_large_table_takes_24_bytes_a_key_at_most(tmp_path: Path) -> None:
    partition = compacted(tmp_path, segment_bytes=1 << 24)
    index = KeyIndex(partition, MemoryViewCache())
    most = 0.0
    for first in range(0, 40_000, 2000):
        put(partition, [(b"key %d" % number, b"v") for number in range(first, first + 2000)])
        assert index.live == first + 2000
        most = max(most, index.table.nbytes / (first + 2000)) if first > LEAST_SLOTS else most
    assert 18 < most <= 24.1
    assert len(listed(index)) == 40_000
    partition.close()


def test_tombstones_and_what_retention_removed_give_their_room_back(tmp_path: Path) -> None:
    partition = compacted(tmp_path, segment_bytes=1 << 20)
    index = KeyIndex(partition, MemoryViewCache())
    for turn in range(20):
        put(partition, [(b"%d %d" % (turn, number), b"v") for number in range(500)])
        put(partition, [(b"%d %d" % (turn, number), None) for number in range(500)])
        assert index.live == 0
    assert index.table.slots.size // 2 <= 2 * LEAST_SLOTS
    assert listed(index) == {}
    partition.close()


def test_open_and_aborted_transactions_do_not_show(tmp_path: Path) -> None:
    partition = compacted(tmp_path)
    index = KeyIndex(partition, MemoryViewCache())
    put(partition, [(b"a", b"1"), (b"b", b"1")])
    partition.append(Record(b"2", b"a"), Producer(7, 0, 0, transactional=True))
    put(partition, [(b"b", b"2")])
    assert (index.find(b"a"), index.find(b"b")) == (0, 1)
    assert (index.last_undecided(b"a"), index.last_undecided(b"b"), index.last_undecided(b"c")) == (
        2,
        3,
        None,
    )
    partition.end_transaction(7, 0, commit=False)
    assert (index.find(b"a"), index.find(b"b")) == (0, 3)
    partition.append(Record(b"3", b"a"), Producer(7, 0, 1, transactional=True))
    partition.end_transaction(7, 0, commit=True)
    assert index.find(b"a") == 5
    assert listed(index) == {b"a": 5, b"b": 3}
    partition.close()


def test_a_listing_is_of_one_moment_whatever_is_set_and_removed_meanwhile(tmp_path: Path) -> None:
    partition = compacted(tmp_path)
    index = KeyIndex(partition, MemoryViewCache())
    names = [b"k%03d" % number for number in range(300)]
    put(partition, [(name, b"v") for name in names])
    listing, found, position, changes = KeyListing(index), [], 0, random.Random(5)
    while True:
        page = [each for each, _ in zip(listing.keys(position), range(7), strict=False)]
        if not page:
            break
        found += [key for key, _, _ in page]
        position = page[-1][2]
        put(partition, [(changes.choice(names), changes.choice((None, b"w"))), (b"new %d" % position, b"x")])
        index.catch_up()
    listing.close()
    assert found == names
    partition.close()


def test_behind_a_clean_stop_nothing_is_read_again_and_behind_a_crash_only_the_tail(tmp_path: Path) -> None:
    cache = MemoryViewCache()
    partition = compacted(tmp_path)
    put(partition, [(b"k%d" % number, b"v") for number in range(200)])
    index = KeyIndex(partition, cache)
    index.catch_up()
    assert index.read == 200
    assert index.save()
    assert not index.save()
    partition.close()
    partition = compacted(tmp_path)
    index = KeyIndex(partition, cache)
    index.catch_up()
    assert index.read == 0
    assert len(listed(index)) == 200
    with crashing(partition):
        put(partition, [(b"new", b"v")])
    partition = open_partition(tmp_path / "t-0", cleanup_policy="compact")
    index = KeyIndex(partition, cache)
    index.catch_up()
    assert index.read == 1
    assert index.find(b"new") == 200
    partition.close()


def test_damage_of_a_checkpoint_is_noticed_and_it_is_made_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = MemoryViewCache()
    partition = compacted(tmp_path)
    put(partition, [(b"k%d" % number, b"v") for number in range(20)])
    index = KeyIndex(partition, cache)
    index.catch_up()
    index.save()
    name = ("t-0", KEYS_CHECKPOINT)
    whole = cache.kept[name]
    for at in (0, 9, 40, len(whole) // 2, len(whole) - 1):
        cache.kept[name] = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        again = KeyIndex(partition, cache)
        assert len(listed(again)) == 20
        assert again.read == 20
        assert name not in cache.kept
    for cut in (b"", whole[:30], whole[:-1]):
        cache.kept[name] = cut
        assert len(listed(KeyIndex(partition, cache))) == 20
    # The checksum does not tell what somebody has written on purpose: more witnesses or slots than there are.
    slots = len(whole) - 16 - 16 * LEAST_SLOTS
    for at in (56, slots):
        for number in (-1, 2**40, 2**63 - 1):
            made = whole[:at] + struct.pack("<q", number) + whole[at + 8 : -8]
            cache.kept[name] = made + struct.pack("<Q", google_crc32c.value(made))
            assert len(listed(KeyIndex(partition, cache))) == 20
    assert "is made anew: it is damaged" in caplog.text
    cache.kept[name] = whole
    again = KeyIndex(partition, cache)
    again.catch_up()
    assert again.read == 0
    partition.close()


def test_a_checkpoint_of_a_log_that_was_cut_and_grew_again_is_not_believed(tmp_path: Path) -> None:
    cache = MemoryViewCache()
    partition = compacted(tmp_path)
    for number in range(20):
        put(partition, [(b"k%d" % number, b"v")])
    index = KeyIndex(partition, cache)
    index.catch_up()
    index.save()
    partition.truncate_to(15)
    assert set(listed(index)) == {b"k%d" % number for number in range(15)}
    for number in range(10):
        put(partition, [(b"other %d" % number, b"v")])
    assert index.find(b"k17") is None
    partition.close()
    partition = compacted(tmp_path)
    again = KeyIndex(partition, cache)
    assert again.find(b"k17") is None
    assert again.find(b"other 2") == 17
    assert again.read >= 25
    partition.close()


def test_behind_damage_only_keys_that_are_known_for_sure_are_answered(tmp_path: Path) -> None:
    partition = compacted(tmp_path, segment_bytes=1 << 16)
    for number in range(6):
        put(partition, [(b"k%d" % number, b"v" * 50)])
    partition.close()
    log = tmp_path / "t-0" / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    size = len(data) // 6
    data[3 * size + 80] ^= 1
    log.write_bytes(data)
    partition = compacted(tmp_path, segment_bytes=1 << 16)
    index = KeyIndex(partition, MemoryViewCache())
    assert (index.find(b"k4"), index.find(b"k5")) == (4, 5)
    for key in (b"k0", b"k3", b"never set"):
        with pytest.raises(CorruptError, match="below offset 4 cannot be read"):
            index.find(key)
    assert not index.save()
    partition.close()


def test_a_compressed_log_gives_the_same_keys(tmp_path: Path) -> None:
    partition = compacted(tmp_path, compression_type="zstd", segment_bytes=1 << 16)
    put(partition, [(b"k%d" % (number % 40), b"v%d" % number) for number in range(100)])
    index = KeyIndex(partition, MemoryViewCache())
    assert index.live == 40
    assert index.find(b"k7") == 87
    assert np.all(np.diff(list(listed(index).values())) > 0)
    partition.close()


def test_a_key_that_is_set_anew_and_compacted_while_it_is_read_is_there(tmp_path: Path) -> None:
    partition = compacted(tmp_path)
    put(partition, [(b"k", b"old"), (b"other", b"o")])
    index, asked = KeyIndex(partition, MemoryViewCache()), list[int]()

    def read(offset: int) -> Record | None:
        asked.append(offset)
        if len(asked) == 1:
            put(partition, [(b"k", b"new")])
            return None  # as if the cleaner had been here
        return partition.record(offset)

    found = index.record(b"k", read)
    assert found is not None
    assert (found.value, asked) == (b"new", [0, 2])
    assert index.record(b"k", lambda _: None) is None
    partition.close()
