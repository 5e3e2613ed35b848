"""The four codecs: KAFKA_FORMAT 2.5, and of KAFKA_CASES A *CompressionTest and of the LZ4 tests testNotSupported,
testHeaderPrematureEnd, testBadFrameChecksum, testBadBlockSize and the flag of incompressible blocks.

Levels out of range are refused by the settings (test_settings). Dependent LZ4 blocks are read here, though
Kafka refuses them: a reader may take more than a writer gives, and what is written never has them.
"""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
import zlib

import cramjam
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_batches import CODECS, array

from topicfs.engine.batch.compression import compress, decompress
from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.record import Codec

COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
EACH = pytest.mark.parametrize("codec", COMPRESSED, ids=lambda codec: codec.name.lower())
NOISE = np.random.default_rng(7).integers(0, 256, 200_000, np.uint8).tobytes()
WORDS = b" ".join(np.random.default_rng(8).choice([b"offset", b"batch", b"log", b"segment", b"a"], 30_000))
TEXT = b"".join(b"line %d of a text that repeats itself\n" % i for i in range(5000))


def pressed(codec: Codec, data: bytes, level: int | None = None) -> bytes:
    return compress(codec, array(data), level).tobytes()


def unpressed(codec: Codec, stream: bytes, limit: int = 1 << 20) -> bytes:
    return decompress(codec, array(stream), limit).tobytes()


def refused(codec: Codec, stream: bytes, reason: str | None = None, limit: int = 1 << 20) -> None:
    with pytest.raises(CorruptBatchError, match=reason or codec.name.lower()):
        decompress(codec, array(stream), limit)


# -- round trips ------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
@pytest.mark.parametrize("data", [b"", b"x", b"small", bytes(300_000), TEXT, NOISE, TEXT + NOISE])
def test_what_is_compressed_is_read_back(codec: Codec, data: bytes) -> None:
    assert unpressed(codec, pressed(codec, data)) == data


@given(CODECS, st.binary(max_size=1000))
def test_any_bytes_are_read_back(codec: Codec, data: bytes) -> None:
    assert unpressed(codec, pressed(codec, data)) == data


@EACH
def test_text_becomes_smaller(codec: Codec) -> None:
    assert len(pressed(codec, TEXT)) < len(TEXT) // 4


@pytest.mark.parametrize(
    ("codec", "level"),
    [
        *((Codec.GZIP, level) for level in (-1, 1, 9)),
        *((Codec.LZ4, level) for level in (1, 8, 9, 10, 17)),
        *((Codec.ZSTD, level) for level in (-131072, -1, 1, 3, 19, 22)),
        *((codec, None) for codec in Codec),
    ],
)
def test_every_level_that_settings_allow_is_read_back(codec: Codec, level: int | None) -> None:
    data = TEXT[:20_000]
    assert unpressed(codec, pressed(codec, data, level)) == data


@pytest.mark.parametrize(("codec", "level"), [(Codec.GZIP, -1), (Codec.LZ4, 9), (Codec.ZSTD, 3)])
def test_no_level_is_the_default_level(codec: Codec, level: int) -> None:
    assert pressed(codec, TEXT) == pressed(codec, TEXT, level)


def test_higher_levels_give_smaller_streams() -> None:
    # Kafka's default for LZ4, 9, is its fast compressor, whose streams are larger than those of level 2.
    levels = {Codec.GZIP: (1, 9), Codec.LZ4: (9, 2, 3, 12), Codec.ZSTD: (-50, 3, 19)}
    for codec, rising in levels.items():
        sizes = [len(pressed(codec, WORDS, level)) for level in rising]
        assert sizes == sorted(sizes, reverse=True)
        assert len(set(sizes)) == len(sizes), f"{codec.name}: {sizes}"


@pytest.mark.parametrize("level", [1, 2, 8, 10, 12, 17])
def test_lz4_blocks_are_independent_at_every_level(level: int) -> None:
    stream = pressed(Codec.LZ4, TEXT + NOISE, level)
    flags, block_size = stream[4], stream[5]
    assert stream[:4].hex() == "04224d18"
    assert flags >> 6 == 1
    assert flags & 0x20, "Kafka refuses dependent blocks"
    assert not flags & 0x0F
    assert block_size == 0x40
    at, number, tail = 7, 0, 4 if flags & 0x10 else 0
    while word := struct.unpack_from("<I", stream, at)[0]:
        at += 4 + (word & 0x7FFFFFFF) + tail
        number += 1
    assert at + 4 == len(stream)
    assert number == -(-len(TEXT + NOISE) // 65536)


# -- framing ----------------------------------------------------------------------------------------


def test_gzip_is_one_member_without_name_and_time() -> None:
    stream = pressed(Codec.GZIP, TEXT)
    assert stream[:4] == b"\x1f\x8b\x08\x00"
    assert stream[4:8] == bytes(4)
    member = zlib.decompressobj(wbits=31)
    assert member.decompress(stream) == TEXT
    assert member.eof
    assert member.unused_data == b""


def test_snappy_is_a_xerial_stream_of_blocks_of_32_kib() -> None:
    stream = pressed(Codec.SNAPPY, TEXT)
    assert stream[:16].hex() == "82534e41505059000000000100000001"
    at, sizes, found = 16, [], b""
    while at < len(stream):
        (length,) = struct.unpack_from(">i", stream, at)
        plain = bytes(cramjam.snappy.decompress_raw(stream[at + 4 : at + 4 + length]))
        sizes.append(len(plain))
        found += plain
        at += 4 + length
    assert found == TEXT
    assert set(sizes[:-1]) == {32768}
    assert 0 < sizes[-1] <= 32768


def test_lz4_is_a_frame_of_independent_blocks_of_64_kib_without_checksums() -> None:
    data = TEXT + NOISE
    stream = pressed(Codec.LZ4, data)
    assert stream[:7].hex() == "04224d18604082"
    at, stored, found = 7, [], b""
    while word := struct.unpack_from("<I", stream, at)[0]:
        length = word & 0x7FFFFFFF
        block = stream[at + 4 : at + 4 + length]
        stored.append(bool(word >> 31))
        if not word >> 31:
            block = bytes(cramjam.lz4.decompress_block(block, output_len=65536))
        assert len(block) == min(65536, len(data) - len(found))
        found += block
        at += 4 + length
    assert at + 4 == len(stream)
    assert found == data
    assert set(stored) == {False, True}, "incompressible blocks are stored as they are"


def test_zstd_is_a_standard_frame() -> None:
    stream = pressed(Codec.ZSTD, TEXT)
    assert stream[:4].hex() == "28b52ffd"
    assert bytes(cramjam.zstd.decompress(stream)) == TEXT


def test_snappy_without_xerial_framing_is_read() -> None:
    assert unpressed(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT


def test_zstd_without_its_content_size_is_read() -> None:
    compressor = cramjam.zstd.Compressor()
    compressor.compress(TEXT)
    assert unpressed(Codec.ZSTD, bytes(compressor.finish())) == TEXT


@EACH
def test_a_stream_in_memory_that_cannot_be_written_is_read(codec: Codec) -> None:
    stream = array(pressed(codec, TEXT))
    assert not stream.flags.writeable
    assert decompress(codec, stream).tobytes() == TEXT


# -- damage -----------------------------------------------------------------------------------------


@EACH
def test_a_stream_that_is_cut_anywhere_gives_no_whole_content(codec: Codec) -> None:
    stream = pressed(codec, TEXT[:500])
    for cut in range(len(stream)):
        if codec is Codec.SNAPPY and cut in (0, 16):
            assert unpressed(codec, stream[:cut]) == b"", "no block at all holds nothing"
        else:
            refused(codec, stream[:cut])


@EACH
def test_garbage_behind_a_stream_is_refused(codec: Codec) -> None:
    refused(codec, pressed(codec, TEXT) + b"garbage")


@given(st.sampled_from(COMPRESSED), st.binary(max_size=300))
def test_random_bytes_are_refused_or_read_without_another_error(codec: Codec, data: bytes) -> None:
    with contextlib.suppress(CorruptBatchError):
        assert len(unpressed(codec, data, 100_000)) <= 100_000


@pytest.mark.parametrize(
    ("blocks", "reason"),
    [
        (struct.pack(">i", -1), "block at byte 20 is -1 bytes long"),
        (struct.pack(">i", -(2**31)), "is -2147483648 bytes long"),
        (struct.pack(">i", 0), "block at byte 20 is 0 bytes long"),
        (struct.pack(">i", 5) + b"abcd", "is 5 bytes long, 4 are left"),
        (struct.pack(">i", 2**31 - 1) + b"abcd", "is 2147483647 bytes long, 4 are left"),
        (b"\0\0\0", "ends inside a block's length, at byte 16"),
        (struct.pack(">i", 5) + b"\xff\xff\xff\xff\x0f", "block of 5 bytes claims to hold 4294967295"),
        (struct.pack(">i", 6) + b"\xff\xff\xff\xff\xff\x0f", "snappy stream is damaged"),
        (struct.pack(">i", 4) + b"\x04abc", "snappy stream is damaged"),
    ],
)
def test_a_damaged_snappy_block_is_refused(blocks: bytes, reason: str) -> None:
    refused(Codec.SNAPPY, bytes.fromhex("82534e41505059000000000100000001") + blocks, reason)


def test_a_snappy_stream_that_ends_inside_its_header_is_refused() -> None:
    header = bytes.fromhex("82534e41505059000000000100000001")
    for size in range(8, 16):
        refused(Codec.SNAPPY, header[:size], f"stream of {size} bytes ends inside its header of 16")


def xxh32(data: bytes) -> int:
    """xxh32 with seed 0, of fewer than 16 bytes: the checksum of an LZ4 frame's header."""
    primes = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    mask = 0xFFFFFFFF

    def turned(value: int, bits: int) -> int:
        return ((value << bits) | (value >> (32 - bits))) & mask

    value = (primes[4] + len(data)) & mask
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little")
        value = turned((value + word * primes[2]) & mask, 17) * primes[3] & mask
    for byte in data[whole:]:
        value = turned((value + byte * primes[4]) & mask, 11) * primes[0] & mask
    value = (value ^ value >> 15) * primes[1] & mask
    value = (value ^ value >> 13) * primes[2] & mask
    return value ^ value >> 16


BLOCKS = pressed(Codec.LZ4, TEXT[:500])[7:]


def lz4_frame(flags: int = 0x60, block_size: int = 0x40, extra: bytes = b"", blocks: bytes = BLOCKS) -> bytes:
    descriptor = bytes([flags, block_size]) + extra
    return b"\x04\x22\x4d\x18" + descriptor + bytes([xxh32(descriptor) >> 8 & 0xFF]) + blocks


def stored(data: bytes) -> bytes:
    return struct.pack("<I", len(data) | 1 << 31) + data + bytes(4)


@pytest.mark.parametrize(
    ("stream", "content"),
    [
        (lz4_frame(), TEXT[:500]),
        (lz4_frame(block_size=0x70), TEXT[:500]),
        (lz4_frame(0x68, extra=struct.pack("<Q", 500)), TEXT[:500]),
        (lz4_frame(blocks=stored(b"as it is")), b"as it is"),
        (lz4_frame(blocks=stored(bytes(65536))), bytes(65536)),
    ],
)
def test_an_lz4_frame_of_another_writer_is_read(stream: bytes, content: bytes) -> None:
    assert unpressed(Codec.LZ4, stream) == content


@pytest.mark.parametrize(
    "stream",
    [
        b"\x05" + lz4_frame()[1:],
        b"",
        *(lz4_frame()[:size] for size in range(1, 7)),
        lz4_frame()[:6] + b"\x83" + BLOCKS,
        lz4_frame(0x20),
        lz4_frame(0xA0),
        lz4_frame(0x62),
        lz4_frame(block_size=0x30),
        lz4_frame(block_size=0xC0),
        lz4_frame(block_size=0x41),
        lz4_frame(0x68, extra=struct.pack("<Q", 499)),
        lz4_frame(0x68, extra=struct.pack("<Q", 2**63)),
        lz4_frame(0x70, blocks=BLOCKS[:-4] + b"abcd" + bytes(4)),
        lz4_frame(0x64, blocks=BLOCKS + b"abcd"),
        lz4_frame(blocks=stored(bytes(65537))),
        lz4_frame(block_size=0x70, blocks=struct.pack("<I", 0x7FFFFFFF)),
        lz4_frame(blocks=struct.pack("<I", 0xFFFFFFFF)),
        struct.pack("<I", 0x184C2102) + BLOCKS,
        struct.pack("<II", 0x184D2A50, 0xFFFFFFFF),
    ],
)
def test_a_damaged_lz4_frame_is_refused(stream: bytes) -> None:
    refused(Codec.LZ4, stream, "lz4 stream of [0-9]+ bytes is damaged")


# -- bombs ------------------------------------------------------------------------------------------


BOMBS = {codec: pressed(codec, bytes(4 << 20)) for codec in COMPRESSED}


@EACH
def test_a_stream_that_becomes_more_than_the_limit_is_refused(codec: Codec) -> None:
    refused(codec, BOMBS[codec], "more than 1048576")


@EACH
def test_a_stream_that_becomes_exactly_the_limit_is_read(codec: Codec) -> None:
    stream = pressed(codec, TEXT)
    assert unpressed(codec, stream, len(TEXT)) == TEXT
    refused(codec, stream, f"more than {len(TEXT) - 1}", len(TEXT) - 1)


@EACH
@pytest.mark.parametrize("limit", [0, 1, 100])
def test_a_tiny_limit_is_kept(codec: Codec, limit: int) -> None:
    refused(codec, BOMBS[codec], limit=limit)


@EACH
def test_a_bomb_takes_no_more_memory_than_the_limit_allows(codec: Codec) -> None:
    limit = 1 << 20
    tracemalloc.start()
    try:
        refused(codec, BOMBS[codec], limit=limit)
        # Each attempt's buffer is four times the one before it.
        assert tracemalloc.get_traced_memory()[1] < 2 * limit
    finally:
        tracemalloc.stop()


def test_many_bare_snappy_blocks_take_memory_for_what_they_hold() -> None:
    header = bytes.fromhex("82534e41505059000000000100000001")
    stream = array(header + (struct.pack(">i", 1) + b"\0") * 20_000)
    tracemalloc.start()
    try:
        assert decompress(Codec.SNAPPY, stream).size == 0
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("window", range(0, 256, 8))
def test_a_zstd_frame_that_asks_for_a_large_window_is_read_or_refused(window: int) -> None:
    # Frame header: no content size, window of 2^(10 + window / 8) bytes; then one empty last block.
    stream = b"\x28\xb5\x2f\xfd\x00" + bytes([window]) + b"\x01\x00\x00"
    if window >> 3 <= 11:
        assert unpressed(Codec.ZSTD, stream) == b""
    elif window >> 3 > 17:
        refused(Codec.ZSTD, stream, "too much memory")


def test_an_lz4_frame_with_dependent_blocks_is_refused_as_kafka_refuses_it() -> None:
    linked = np.frombuffer(cramjam.lz4.compress(b"abc" * 100_000), np.uint8)
    with pytest.raises(CorruptBatchError, match="dependent blocks"):
        decompress(Codec.LZ4, linked)
