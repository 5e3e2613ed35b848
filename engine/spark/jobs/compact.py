"""Compaction of logs with more keys than one machine's memory holds: Spark finds the last record of each key.

The engine's own cleaner writes the segments anew, by its own rules for tombstones, markers and producers: only its
offset map, 24 bytes for each key, is replaced by a bit for each offset. So the result is what a clean of the whole log
with a map of any size would have given. Spark reads the segments beside it; the log is held by this process, so that no
daemon opens it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from engine.batch.table import Bytes
from engine.cleaner.clean import Cleaned, Cleaner, Work
from engine.cleaner.offset_map import OffsetMap
from engine.record import Clock, now_ms
from engine.segment.segment import Segment
from engine.spark import register
from engine.spark.jobs.spread import map_in_arrow
from engine.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STRETCH: Final = 1 << 20
"""Offsets of one row of bits."""

_BITS: Final[pa.Schema] = pa.schema([("stretch", pa.int64()), ("bits", pa.binary())])
_CHUNK: Final = 4 * 1024 * 1024


class LastOffsets(OffsetMap):
    """What is known of each offset, in place of the map of keys: whether its record is its key's last.

    Its table of keys stays empty: no record lies before the first offset of the bits."""

    __slots__ = ()

    @classmethod
    def of(cls, start: int, outdated: Bytes) -> LastOffsets:
        """Of the offsets from `start` on, a bit each: 1 where a later record has the same key."""
        found = cls(2, 1, np.zeros(2, np.int64))
        found.base = start
        found.outdated = outdated
        return found


class _BitsCleaner(Cleaner):
    """A cleaner that is told what is outdated."""

    __slots__ = ()

    def _fill(self, work: Work, dirty: Sequence[Segment], start: int) -> None:
        self.offsets.latest_offset = work.uncleanable - 1


def compact(
    spark: SparkSession,
    backing: Path,
    topics: Collection[str],
    everything: bool = False,
    clock: Clock = now_ms,
) -> dict[str, Cleaned]:
    """Compact all partitions of these topics, up to their active segments; `everything` seals those before. Gives what
    became of each partition. StoreLockedError where somebody has the log open."""
    register(spark)
    done = {}
    with Store.open(backing, clock=clock) as store:
        for topic in topics:
            for number in store.topics().get(topic, ()):
                partition = store.partition(topic, number)
                if everything:
                    partition.roll()
                done[partition.name] = _compact(spark, store, topic, number)
    return done


def _compact(spark: SparkSession, store: Store, topic: str, number: int) -> Cleaned:
    partition, key = store.partition(topic, number), (topic, number)
    log = partition.log
    start = log.chain.segments.first.base_offset
    # As the cleaner: whole segments, and none in which it is not decided yet what counts.
    last = log.chain.segments.floor(min(log.chain.active.base_offset, log.offsets.stable))
    end = start if last is None else last.base_offset
    if start >= end:
        return Cleaned(start)
    with store.cleaning.paused(key):
        outdated = _outdated(_last_offsets(spark, store.backing, topic, number, start, end), start, end)
        cleaner = _BitsCleaner(LastOffsets.of(start, outdated), _CHUNK, lambda _: None)
        cleaned = cleaner.clean(log, start, end, store.clock(), lambda: None)
        store.cleaning.offsets.put(key, cleaned.end_offset)
    return cleaned


def _last_offsets(
    spark: SparkSession, backing: Path, topic: str, number: int, start: int, end: int
) -> DataFrame:
    """The last offset of each key, as rows of bits."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - only here

    log = (
        spark.read.format("topicfs")
        .option("path", str(backing))
        .option("assign", f'{{"{topic}":[{number}]}}')
        .option("startingOffsets", f'{{"{topic}":{{"{number}":{start}}}}}')
        .option("endingOffsets", f'{{"{topic}":{{"{number}":{end}}}}}')
        # What lies below the start offset counts no more than what is not there.
        .option("failOnDataLoss", "false")
        .schema("offset bigint, key binary")
        .load()
    )
    last = log.where(f.col("key").isNotNull()).groupBy("key").agg(f.max("offset").alias("offset"))
    return map_in_arrow(last.select("offset"), _bits, _BITS)


def _bits(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task's offsets as bits, in rows of _STRETCH."""
    stretches: dict[int, Bytes] = {}
    for batch in batches:
        offsets = batch.column(0).to_numpy(zero_copy_only=False)
        for stretch in np.unique(offsets // _STRETCH).tolist():
            bits = stretches.setdefault(stretch, np.zeros(_STRETCH // 8, np.uint8))
            within = offsets[offsets // _STRETCH == stretch] - stretch * _STRETCH
            np.bitwise_or.at(bits, within >> 3, (1 << (within & 7)).astype(np.uint8))
    for stretch, bits in stretches.items():
        yield pa.RecordBatch.from_pylist([{"stretch": stretch, "bits": bits.tobytes()}], _BITS)


def _outdated(last: DataFrame, start: int, end: int) -> Bytes:
    """A bit for each offset from `start` on, 1 for those that are no key's last."""
    first = start // _STRETCH
    bits = np.zeros(((end - 1) // _STRETCH - first + 1) * (_STRETCH // 8), np.uint8)
    for stretch, found in last.toLocalIterator():
        at = (stretch - first) * (_STRETCH // 8)
        bits[at : at + _STRETCH // 8] |= np.frombuffer(found, np.uint8)
    shift = start - first * _STRETCH
    count = end - start
    if shift % 8:
        kept = np.unpackbits(bits, bitorder="little")[shift : shift + count]
        bits = np.packbits(kept, bitorder="little")
    else:
        bits = bits[shift // 8 : shift // 8 + -(-count // 8)]
    return np.invert(bits)
