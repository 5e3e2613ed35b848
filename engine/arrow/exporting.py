"""Records of a topic as files for other programs: Parquet, and lines as kcat -J writes them.

    {"topic":"orders","partition":0,"offset":7,"tstype":"create","ts":1700000000000,"headers":["trace","a1"],
     "key":"k","payload":"v"}

A line of kcat is JSON but for one thing, which is kept: bytes that are not UTF-8 stand there as they are. A null key,
payload or value of a header is null, and a record without headers has no member `headers`. kcat's member `broker` is
left out: there is none. `engine/column_files/kcat.py` reads such lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from json.encoder import encode_basestring
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from topicfs.engine.arrow.reader import record_batches
from topicfs.engine.parquet.schema import SCHEMA, TABLE_SCHEMA
from topicfs.engine.unlocked.offset_range import OffsetRange
from topicfs.engine.unlocked.place import Place
from topicfs.engine.unlocked.planning import partitions_of, range_of

_KINDS: Final = ("create", "logappend")
"""kcat's words for the types of timestamps, by their numbers."""

_DIFFERENCES: Final = "DELTA_BINARY_PACKED"


def parts_of(place: Place, topic: str, spans: Mapping[int, tuple[int, int]]) -> list[OffsetRange]:
    """Return what has to be read of a topic: from the first to before the second offset of some partitions."""
    found = []
    for partition in partitions_of(place, topic):
        first, end = spans.get(partition.number, (0, 0))
        first, end = max(first, partition.bounds.start), min(end, partition.bounds.end)
        if first < end:
            found.append(range_of(partition, first, end))
    return found


def parquet_rows(parts: Iterable[OffsetRange], file: BinaryIO) -> Iterator[int]:
    """Write the records as one Parquet file, with the columns of `topicfs.arrow`. Yield how many each step wrote."""
    with pq.ParquetWriter(
        file,
        TABLE_SCHEMA,
        compression="zstd",
        use_dictionary=["topic", "partition", "key", "headers.list.element.key"],
        column_encoding={"offset": _DIFFERENCES, "timestamp": _DIFFERENCES},
    ) as writer:
        for batch in record_batches(parts, TABLE_SCHEMA):
            writer.write_batch(batch)
            yield batch.num_rows


def kcat_lines(parts: Iterable[OffsetRange]) -> Iterator[bytes]:
    """Yield the records as lines of kcat, some lines at a time.

    This is Python for each record: 1.2 us of a processor for records of 100 bytes without headers."""
    for batch in record_batches(parts, SCHEMA):
        yield b"".join(_lines(batch))


def _lines(batch: pa.RecordBatch) -> Iterator[bytes]:
    columns = {name: batch.column(name) for name in batch.schema.names}
    milliseconds = pc.divide(columns["timestamp"].cast(pa.int64()), 1000).to_pylist()
    headers = columns["headers"]
    all_headers = [None] * batch.num_rows if headers.null_count == batch.num_rows else headers.to_pylist()
    topic = _text(batch.column("topic")[0].as_py().encode()) if batch.num_rows else ""
    for number, offset, kind, ms, pairs, key, payload in zip(
        columns["partition"].to_pylist(),
        columns["offset"].to_pylist(),
        columns["timestampType"].to_pylist(),
        milliseconds,
        all_headers,
        columns["key"].to_pylist(),
        columns["value"].to_pylist(),
        strict=True,
    ):
        shown = ""
        if pairs:
            words = (_text(word) for pair in pairs for word in (pair["key"].encode(), pair["value"]))
            shown = f'"headers":[{",".join(words)}],'
        yield (
            f'{{"topic":{topic},"partition":{number},"offset":{offset},"tstype":"{_KINDS[kind]}","ts":{ms},{shown}'
            f'"key":{_text(key)},"payload":{_text(payload)}}}\n'
        ).encode("utf-8", "surrogateescape")


def _text(value: bytes | None) -> str:
    return "null" if value is None else encode_basestring(value.decode("utf-8", "surrogateescape"))
