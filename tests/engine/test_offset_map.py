"""The offset map of a clean: KAFKA_FORMAT 8.4, the lines of KAFKA_CASES P on it, and its hash."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest

from topicfs.engine import batch as batches
from topicfs.engine.cleaner.offset_map import SLOT_BYTES, OffsetMap
from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.kernels import encode as encoding
from topicfs.engine.kernels import hash as hashing
from topicfs.engine.record import Codec, Record

SECRET = bytes(range(16))
NOW = 1_700_000_000_000


def map_of(slots: int, load_factor: float = 1.0) -> OffsetMap:
    return OffsetMap.create(slots * SLOT_BYTES, load_factor, SECRET)


def hash_of(data: bytes, secret: bytes = SECRET) -> bytes:
    halves = hashing.hash_key(np.frombuffer(data, np.uint8), np.frombuffer(secret, np.int64).copy())
    return np.array(halves, np.int64).tobytes()


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
        (7, "a1f1ebbed8dbc153c0b84aa61ff08239"),
        (8, "3b62a9ba6258f5610f83e264f31497b4"),
        (15, "5493e99933b0a8117e08ec0f97cfc3d9"),
        (63, "5150d1772f50834a503e069a973fbd7c"),
    ],
)
def test_the_hash_gives_the_published_vectors_of_siphash_2_4_128(length: int, expected: str) -> None:
    assert hash_of(bytes(range(length))).hex() == expected


def test_the_hash_of_every_length_is_the_published_one() -> None:
    """The digest is of the 64 vectors of the reference, one behind the other."""
    together = b"".join(hash_of(bytes(range(length))) for length in range(64))
    assert hashlib.sha256(together).hexdigest() == (
        "ecfaa9fe47ff788fa834a9863ea2715a2880cd37d2b8c3c194402838428119b9"
    )


def test_another_secret_gives_other_hashes() -> None:
    assert hash_of(b"key") != hash_of(b"key", bytes(16))


def test_what_was_put_is_found_and_nothing_else() -> None:
    offsets = map_of(1000)
    for number in range(900):
        assert offsets.put(b"key %d" % number, 10 * number)
    assert [offsets.get(b"key %d" % number) for number in range(900)] == list(range(0, 9000, 10))
    assert offsets.get(b"key 900") == offsets.get(b"") == -1
    assert offsets.size == 900
    assert offsets.utilization == 0.9


def test_the_empty_key_and_offset_0_are_a_key_and_an_offset() -> None:
    offsets = map_of(10)
    offsets.put(b"", 0)
    assert (offsets.get(b""), offsets.size) == (0, 1)


def test_a_key_that_is_put_again_keeps_the_latest_offset() -> None:
    offsets = map_of(10)
    offsets.put(b"key", 3)
    offsets.put(b"key", 7)
    assert (offsets.get(b"key"), offsets.size, offsets.latest_offset) == (7, 1, 7)


def test_after_clear_nothing_is_found() -> None:
    offsets = map_of(10)
    offsets.put(b"key", 3)
    offsets.clear()
    assert (offsets.get(b"key"), offsets.size, offsets.latest_offset, offsets.utilization) == (-1, 0, -1, 0)
    assert offsets.put(b"key", 4)


def test_a_map_that_expects_few_keys_uses_little_of_its_memory_and_finds_them_all() -> None:
    offsets = map_of(100_000, 0.9)
    for keys in (0, 1, 20, 5000, 10**9):
        offsets.expect(0, keys)
        for number in range(min(keys, 5000)):
            assert offsets.put(b"key %d" % number, number)
        assert offsets.slots.size <= 3 * max(2 * keys, 16)
        assert [offsets.get(b"key %d" % number) for number in range(min(keys, 5000))] == list(
            range(min(keys, 5000))
        )
        assert offsets.utilization == min(keys, 5000) / 100_000
        offsets.clear()
    assert offsets.slots.size == 300_000


def test_a_full_map_takes_no_more_and_still_misses_what_it_has_not() -> None:
    offsets = map_of(10)
    for number in range(10):
        assert offsets.put(b"%d" % number, number)
    assert not offsets.put(b"more", 99)
    assert not offsets.put(b"3", 99), "even a key that it has"
    assert offsets.get(b"more") == -1
    assert (offsets.get(b"3"), offsets.utilization, offsets.latest_offset) == (3, 1.0, 9)


def test_the_load_factor_says_how_many_of_the_slots_are_used() -> None:
    assert map_of(100, 0.9).capacity == 90
    assert OffsetMap.create(128 * 1024 * 1024, 0.9, SECRET).capacity == 5033164


@pytest.mark.parametrize(("memory", "load_factor"), [(0, 0.9), (24, 1.0), (47, 0.9), (48, 0.5), (4800, 1.5)])
def test_a_map_without_room_for_more_than_one_key_is_refused(memory: int, load_factor: float) -> None:
    with pytest.raises(ValueError, match="load factor"):
        OffsetMap.create(memory, load_factor, SECRET)


def test_a_secret_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 16 bytes, found 15"):
        OffsetMap.create(4800, 0.9, bytes(15))


# -- whole batches --------------------------------------------------------------------------------------


def batch(first: int, keys: list[bytes | None], codec: Codec = Codec.NONE) -> bytes:
    made = batches.from_records(
        [Record(b"value", key, NOW) for key in keys], NOW, batches.Shape(codec=codec)
    ).data
    encoding.stamp(made, 0, first, 0)
    return made.tobytes()


def put_all(offsets: OffsetMap, data: bytes, start: int = 0, skipped: tuple[int, ...] = ()) -> bool:
    buffer = np.frombuffer(data, np.uint8)
    table = batches.scan(buffer)
    flags = np.zeros(len(table), np.uint8)
    flags[list(skipped)] = 1
    return offsets.put_batches(buffer, table, flags, start, "x.log")


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_are_put_like_their_records_one_by_one(codec: Codec) -> None:
    chooser = random.Random(7)
    data, expected, offset = b"", {}, 100
    for number in range(40):
        keys = [b"key %d" % chooser.randrange(60) for _ in range(chooser.randrange(1, 30))]
        data += batch(offset, keys, codec if number % 3 else Codec.NONE)
        for key in keys:
            expected[key] = offset
            offset += 1
    offsets = map_of(100)
    assert put_all(offsets, data)
    assert {key: offsets.get(key) for key in expected} == expected
    assert (offsets.size, offsets.latest_offset) == (len(expected), offset - 1)


def test_records_without_key_below_the_start_and_of_skipped_batches_are_not_put() -> None:
    offsets = map_of(100)
    data = batch(0, [b"a", b"b", b"c"]) + batch(3, [None, b"d"]) + batch(5, [b"e"])
    assert put_all(offsets, data, start=1, skipped=(2,))
    assert [offsets.get(key) for key in (b"a", b"b", b"c", b"d", b"e")] == [-1, 1, 2, 4, -1]
    assert offsets.latest_offset == 5


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("room", range(1, 8))
def test_a_map_that_becomes_full_says_how_far_it_came(room: int, codec: Codec) -> None:
    offsets = map_of(room + 1, room / (room + 1) if room > 1 else 0.75)
    assert offsets.capacity == room
    data = batch(0, [b"0", b"1", b"2"], codec) + batch(3, [b"3", None], codec) + batch(5, [b"5", b"6"], codec)
    known = [0, 1, 2, 3, 5, 6]
    full = not put_all(offsets, data)
    assert full == (room < len(known))
    assert offsets.size == min(room, len(known))
    # Behind the last key that fitted, and behind a batch that is wholly in it.
    assert offsets.latest_offset == {1: 0, 2: 1, 3: 2, 4: 4, 5: 5}.get(room, 6)


def test_many_more_keys_than_the_ring_of_waiting_hashes_stop_at_exactly_the_capacity() -> None:
    offsets = map_of(200, 0.5)
    assert not put_all(offsets, batch(0, [b"%d" % number for number in range(300)]))
    assert (offsets.size, offsets.latest_offset) == (100, 99)
    assert [offsets.get(b"%d" % number) for number in (0, 99, 100)] == [0, 99, -1]


def test_a_batch_over_a_huge_range_of_offsets_is_put() -> None:
    offsets = map_of(10)
    assert put_all(offsets, batch(0, [b"a"]) + batch(2**31 + 10, [b"b"]) + batch(2**62, [b"c"]))
    assert [offsets.get(key) for key in (b"a", b"b", b"c")] == [0, 2**31 + 10, 2**62]


def test_a_record_that_breaks_the_format_is_an_error_that_says_where() -> None:
    data = bytearray(batch(0, [b"a"]) + batch(1, [b"b"]))
    size = len(data) // 2
    data[size + 61] = 0x7E  # the length of the second batch's record
    buffer = np.frombuffer(bytes(data), np.uint8)
    table = batches.scan(buffer, check=False)
    with pytest.raises(
        CorruptBatchError, match=rf"x\.log: batch at position {size}, offset 1, record 0 of 1"
    ):
        map_of(10).put_batches(buffer, table, np.zeros(2, np.uint8), 0, "x.log")


@pytest.mark.parametrize("memory", [24 * 4096, 24 * 32 * 8])
def test_an_offset_whose_key_comes_again_is_outdated_as_far_as_the_bitmap_reaches(memory: int) -> None:
    offsets = OffsetMap.create(memory, 0.9, bytes(16))
    first, last = 700, 1700
    offsets.expect(first, last - first)
    keys = [b"%d" % (number % 37) for number in range(first, last)]
    for offset, key in enumerate(keys, first):
        offsets.put(key, offset)
    reach = 8 * offsets.outdated.size
    assert reach >= min(last - first, 8 * (memory // 32))
    bits = np.unpackbits(offsets.outdated, bitorder="little")[: last - first].tolist()
    newest = {key: offset for offset, key in enumerate(keys, first)}
    expected = [int(newest[key] > offset) for offset, key in enumerate(keys, first)]
    assert bits == expected[: len(bits)]
