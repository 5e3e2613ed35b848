"""The four codecs, in the framing that Kafka uses.

    gzip    one RFC 1952 member
    snappy  xerial stream: 82 "SNAPPY" 00, int32 version 1, int32 least compatible version 1, then blocks of
            int32 compressed length and a raw snappy block of at most 32 KiB; a single raw block is read too
    lz4     LZ4 frame with independent 64 KiB blocks; no checksums at the default level, block checksums at others
    zstd    standard frame, usually without its content size

A stream does not state its decompressed size, or may state a false one. So the output goes into a buffer that grows
up to a limit: the memory depends on the bytes that were really decompressed, never on a number in the stream.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import cramjam
import numpy as np
import numpy.typing as npt

from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.record import Codec

Bytes = npt.NDArray[np.uint8]

DECOMPRESSED_LIMIT: Final = 256 << 20
"""The largest decompressed batch. Producers limit a batch before they compress it."""

_SMALLEST_GUESS: Final = 64 << 10
_BUFFER_TOO_SMALL: Final = "failed to write whole buffer"

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 << 10

# Magic, flags (version 1, independent blocks), largest block 64 KiB, second byte of xxh32 of those two.
_LZ4_HEADER: Final = bytes.fromhex("04224d18 60 40 82")
_LZ4_FLAGS: Final = 4
_LZ4_INDEPENDENT: Final = 0x20
_LZ4_BLOCK: Final = 64 << 10
_LZ4_STORED: Final = 1 << 31
_LZ4_FAST_LEVEL: Final = 9
_LZ4_HIGHEST_LEVEL: Final = 12

DEFAULT_LEVELS: Final = {Codec.GZIP: -1, Codec.LZ4: _LZ4_FAST_LEVEL, Codec.ZSTD: 3}


def compress(codec: Codec, data: Bytes, level: int | None = None) -> Bytes:
    """Return the compressed data. `level` is as in `compression.<codec>.level`, None for its default."""
    if level is None:
        level = DEFAULT_LEVELS.get(codec, 0)
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return _array(cramjam.gzip.compress(data, None if level < 0 else level))
        case Codec.SNAPPY:
            return _compress_snappy(data)
        case Codec.LZ4:
            return _compress_lz4(data, level)
        case Codec.ZSTD:
            return _array(cramjam.zstd.compress(data, level))


def decompress(codec: Codec, stream: Bytes, limit: int = DECOMPRESSED_LIMIT) -> Bytes:
    """Return the decompressed stream. CorruptBatchError if it is damaged or becomes larger than `limit`."""
    match codec:
        case Codec.NONE:
            return stream
        case Codec.GZIP:
            return _grow(cramjam.gzip.decompress_into, codec, stream, limit)
        case Codec.SNAPPY:
            return _decompress_snappy(stream, limit)
        case Codec.LZ4:
            if stream.size > _LZ4_FLAGS and not stream[_LZ4_FLAGS] & _LZ4_INDEPENDENT:
                raise CorruptBatchError("lz4 stream has dependent blocks, which Kafka does not read")
            return _grow(cramjam.lz4.decompress_into, codec, stream, limit)
        case Codec.ZSTD:
            return _grow(cramjam.zstd.decompress_into, codec, stream, limit)


def _array(buffer: Any) -> Bytes:
    return np.frombuffer(buffer, np.uint8)


def _grow(decompress_into: Callable[[Bytes, Bytes], int], codec: Codec, stream: Bytes, limit: int) -> Bytes:
    size = min(limit, max(_SMALLEST_GUESS, 4 * stream.size))
    while True:
        out = np.empty(size, np.uint8)
        try:
            return out[: decompress_into(stream, out)]
        except cramjam.DecompressionError as error:
            if _BUFFER_TOO_SMALL not in str(error):
                raise CorruptBatchError(
                    f"{codec.name.lower()} stream of {stream.size} bytes is damaged: {error}"
                ) from error
            if size >= limit:
                raise CorruptBatchError(
                    f"{codec.name.lower()} stream of {stream.size} bytes becomes more than {limit} bytes"
                ) from error
        size = min(limit, 4 * size)


def _compress_snappy(data: Bytes) -> Bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, data.size, _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
        parts += (struct.pack(">i", len(block)), block)
    return _array(b"".join(parts))


def _decompress_snappy(stream: Bytes, limit: int) -> Bytes:
    if stream[: len(_XERIAL_MAGIC)].tobytes() != _XERIAL_MAGIC:
        return _snappy_blocks(lambda: (stream,), limit)
    if stream.size < len(_XERIAL_HEADER):
        raise CorruptBatchError(
            f"snappy stream of {stream.size} bytes ends inside its header of {len(_XERIAL_HEADER)}"
        )
    return _snappy_blocks(lambda: _xerial_blocks(stream), limit)


def _xerial_blocks(stream: Bytes) -> Iterator[Bytes]:
    position = len(_XERIAL_HEADER)
    while position < stream.size:
        if position + 4 > stream.size:
            raise CorruptBatchError(f"snappy stream ends inside a block's length, at byte {position}")
        length = int.from_bytes(stream[position : position + 4].tobytes(), "big", signed=True)
        position += 4
        if not 0 < length <= stream.size - position:
            raise CorruptBatchError(
                f"snappy block at byte {position} is {length} bytes long, {stream.size - position} are left"
            )
        yield stream[position : position + length]
        position += length


def _snappy_blocks(blocks: Callable[[], Iterable[Bytes]], limit: int) -> Bytes:
    """Decompress raw blocks one after the other. A block's stated length is trusted only as far as a block of its
    size can reach: snappy gives at most 64 bytes for 3.

    The blocks are read twice instead of being listed: a list of tiny blocks would take thirty times their bytes."""
    try:
        size = 0
        for block in blocks():
            length = cramjam.snappy.decompress_raw_len(block)
            if length > 32 * block.size:
                raise CorruptBatchError(f"snappy block of {block.size} bytes claims to hold {length}")
            size += length
            if size > limit:
                raise CorruptBatchError(f"snappy stream becomes more than {limit} bytes")
        out = np.empty(size, np.uint8)
        position = 0
        for block in blocks():
            length = cramjam.snappy.decompress_raw_len(block)
            if length:
                cramjam.snappy.decompress_raw_into(block, out[position : position + length])
            position += length
    except cramjam.DecompressionError as error:
        raise CorruptBatchError(f"snappy stream is damaged: {error}") from error
    return out


def _compress_lz4(data: Bytes, level: int) -> Bytes:
    # cramjam's plain call makes dependent blocks, which Kafka refuses to read. Its compressor object can make
    # independent ones and uses the level, but adds block checksums. Its single blocks have the fast level only.
    if level != _LZ4_FAST_LEVEL:
        compressor = cramjam.lz4.Compressor(
            level=min(level, _LZ4_HIGHEST_LEVEL), content_checksum=False, block_linked=False
        )
        compressor.compress(data.tobytes())
        return _array(bytes(compressor.finish()))
    parts = [_LZ4_HEADER]
    for start in range(0, data.size, _LZ4_BLOCK):
        plain = data[start : start + _LZ4_BLOCK]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < plain.size:
            parts += (struct.pack("<I", len(block)), block)
        else:
            parts += (struct.pack("<I", plain.size | _LZ4_STORED), plain.tobytes())
    parts.append(struct.pack("<I", 0))
    return _array(b"".join(parts))
