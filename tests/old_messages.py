"""Segments of the message formats 0 and 1, which Kafka wrote before 0.11, as aiokafka builds them."""

from __future__ import annotations

import struct
from pathlib import Path

from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from topicfs import Record, Store
from topicfs.engine import batch as batches
from topicfs.engine.format.paths import index_file, log_file, time_index_file
from topicfs.engine.kernels.encode import stamp

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3}


def old_messages(magic: int, base: int = 0, count: int = 10, codec: str = "none") -> bytes:
    """Some messages from an offset on; with a codec in one wrapper message."""
    builder = LegacyRecordBatchBuilder(magic, CODECS[codec], 1 << 20)
    for number in range(count):
        first = 0 if CODECS[codec] else base
        builder.append(
            first + number,
            timestamp=1_400_000_000_000 + number,
            key=b"k%d" % number,
            value=b"value %d" % number,
        )
    data = bytearray(builder.build())
    if CODECS[codec]:
        data[:8] = struct.pack(">q", base + count - 1)  # a wrapper has the offset of its last message
    return bytes(data)


def batch_at(offset: int, *values: bytes) -> bytes:
    """A record batch of these values."""
    made = batches.from_records([Record(value) for value in values], 0).data
    stamp(made, 0, offset, 0)
    return made.tobytes()


def backing(place: Path, *segments: tuple[int, bytes], clean: bool) -> Path:
    """A log directory as a broker leaves it, with a topic of our own beside one that has these segments. Gives the
    directory of its partition."""
    with Store.open(place / "backing", create=True) as store:
        store.create("new", 0).append([Record(b"x")])
    logs = place / "backing" / "logs"
    partition = logs / "old-0"
    partition.mkdir()
    for base, data in segments:
        (partition / log_file(base)).write_bytes(data)
        for index in (index_file, time_index_file):
            (partition / index(base)).touch()
    if clean:
        (logs / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')
        (logs / "recovery-point-offset-checkpoint").write_text("0\n2\nnew 0 1\nold 0 20\n")
    else:
        (logs / ".kafka_cleanshutdown").unlink(missing_ok=True)
    return partition
