"""Compaction of logs that are too large for one machine: Spark finds the last record of each key, and its tasks write
the segments anew, by the cleaner's own code.

    1. the driver     holds the log, so that no daemon opens it, and forms groups of segments as the cleaner does
    2. a task a group which transactions the group leaves pending; for several groups only (see engine.cleaner.portion)
    3. tasks          the offset of each key's last record, committed ones only; an offset goes to the group it lies in
    4. a task a group the group's new segments, in BACKING/staging, from its old ones and those offsets
    5. the driver     puts them in place, group by group, as the cleaner does

Whatever a task does, the log stays as it is before the last step: an attempt writes into a directory of its own, and
the driver takes what those attempts told that Spark says were good. One that failed, or was one of two, leaves what
nobody looks at; so does a job that was killed. The result is what a clean of the whole log with a map of any size would
have given. All new segments of a partition are there before the first one takes its place: so much space is needed.

    staging/<topic>/compact/<job>/<attempt>/    removed at the job's end, by the next job, and at the next start
"""

from __future__ import annotations

import contextlib
import pickle
import shutil
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from topicfs.engine.batch.table import Longs
from topicfs.engine.cleaner.clean import Cleaned, Work
from topicfs.engine.cleaner.distributed import (
    Portion,
    Rewritten,
    Stretch,
    passage,
    portions,
    rewritten,
    stretches,
    take,
)
from topicfs.engine.cleaner.rewrite import RewriteCounts
from topicfs.engine.cleaner.transactions import Passage
from topicfs.engine.errors import InvalidSettingError, UnknownPartitionError
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.format.paths import COMPACTING, STAGING
from topicfs.engine.record import Clock, now_ms
from topicfs.engine.spark import register
from topicfs.engine.spark.jobs.spread import map_in_arrow, spread
from topicfs.engine.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_GATHERED: Final = 1 << 18
"""Offsets that a task gathers before it hands them on, sorted by groups."""

_PASSAGES: Final[pa.Schema] = pa.schema(
    [("group", pa.int32()), ("pending", pa.list_(pa.int64())), ("ended", pa.list_(pa.int64()))]
)
_OF_GROUPS: Final[pa.Schema] = pa.schema(
    [("group", pa.int32()), ("last", pa.binary()), ("portion", pa.binary())]
)
"""What goes to the task of a group: in one row its portion, in the others offsets, uint32 from the group's start."""

_REWRITTEN: Final[pa.Schema] = pa.schema(
    [
        ("group", pa.int32()),
        ("directory", pa.string()),
        ("bases", pa.list_(pa.int64())),
        ("counts", pa.list_(pa.int64())),
    ]
)


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
            _refuse_unless_compacted(store, topic)
        for topic in topics:
            for number in store.topics()[topic]:
                partition = store.partition(topic, number)
                if everything:
                    partition.roll()
                done[partition.name] = _compact(spark, store, (topic, number))
    return done


def _refuse_unless_compacted(store: Store, topic: str) -> None:
    if topic not in store.topics():
        raise UnknownPartitionError(f"{store.logs}: expected a topic {topic}, found no partition of it")
    if not store.topic_settings(topic).compact:
        raise InvalidSettingError(
            f"topic {topic}: expected a cleanup.policy with compact, found none: its records without a key would go"
        )


def _compact(spark: SparkSession, store: Store, key: PartitionKey) -> Cleaned:
    log = store.partition(*key).log
    start = log.chain.segments.first.base_offset
    # As the cleaner: whole segments, and none in which it is not decided yet what counts.
    last = log.chain.segments.floor(min(log.chain.active.base_offset, log.offsets.stable))
    end = start if last is None else last.base_offset
    if start >= end:
        return Cleaned(start)
    with store.cleaning.paused(key), _workplace(store.backing / STAGING / key[0] / COMPACTING) as place:
        # A task could not: it changes nothing in the log.
        log.split_overflowing(log.chain.segments.non_active)
        work = Work.take(log, end, lambda: None)
        groups = work.groups(work.sources)
        lie = stretches(work, groups)
        shares = portions(work, lie, _passages(spark, lie[:-1]), store.clock())
        # What lies below the start offset counts no more than what is not there.
        offsets = _last_offsets(spark, store.backing, key, min(max(start, log.offsets.start), end), end)
        made = _rewritten(spark, offsets, shares, place)
        after = sum(take(work, group, each) for group, each in zip(groups, made, strict=True))
        store.cleaning.offsets.put(key, end)
    return Cleaned.of(sum((each.counts for each in made), RewriteCounts()), end, len(work.sources), after)


@contextlib.contextmanager
def _workplace(directory: Path) -> Iterator[Path]:
    """A directory for the attempts of one job. What other jobs have left is removed: who has the log is alone. What an
    attempt of theirs still writes is not taken for this job's."""
    shutil.rmtree(directory, ignore_errors=True)
    place = directory / uuid.uuid4().hex
    place.mkdir(parents=True)
    try:
        yield place
    finally:
        shutil.rmtree(directory, ignore_errors=True)


# -- transactions -------------------------------------------------------------------------------------


def _passages(spark: SparkSession, lie: Sequence[Stretch]) -> list[Passage]:
    """Of groups, in their order."""
    if not lie:
        return []

    def work(numbered: tuple[int, Stretch]) -> Iterator[dict[str, Any]]:
        number, stretch = numbered
        found = passage(stretch)
        yield {"group": number, "pending": sorted(found.pending), "ended": sorted(found.ended)}

    rows = spread(spark, list(enumerate(lie)), work, _PASSAGES).collect()
    return [
        Passage(frozenset(row["pending"]), frozenset(row["ended"]))
        for row in sorted(rows, key=lambda row: row["group"])
    ]


# -- keys ---------------------------------------------------------------------------------------------


def _last_offsets(spark: SparkSession, backing: Path, key: PartitionKey, start: int, end: int) -> DataFrame:
    """The last offset of each key."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - only here

    topic, number = key
    log = (
        spark.read.format("topicfs")
        .option("path", str(backing))
        .option("assign", f'{{"{topic}":[{number}]}}')
        .option("startingOffsets", f'{{"{topic}":{{"{number}":{start}}}}}')
        .option("endingOffsets", f'{{"{topic}":{{"{number}":{end}}}}}')
        # It stays an error if data is lost: what a task does not see would count as outdated.
        .schema("offset bigint, key binary")
        .load()
    )
    return log.where(f.col("key").isNotNull()).groupBy("key").agg(f.max("offset").alias("offset"))


@dataclass(frozen=True, slots=True)
class _ToGroups:
    """Offsets on their way to the groups that they lie in.

    starts  first offsets of the groups
    """

    starts: Longs

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        gathered: list[Longs] = []
        for batch in batches:
            gathered.append(batch.column(0).to_numpy(zero_copy_only=False))
            if sum(map(len, gathered)) >= _GATHERED:
                yield self._sorted(np.concatenate(gathered))
                gathered = []
        if gathered:
            yield self._sorted(np.concatenate(gathered))

    def _sorted(self, offsets: Longs) -> pa.RecordBatch:
        offsets.sort()
        places = np.searchsorted(offsets, self.starts)
        rows = [
            {"group": group, "last": (part - self.starts[group]).astype("<u4").tobytes(), "portion": None}
            for group, part in enumerate(np.split(offsets, places[1:]))
            if len(part)
        ]
        return pa.RecordBatch.from_pylist(rows, _OF_GROUPS)


# -- segments -----------------------------------------------------------------------------------------


def _rewritten(
    spark: SparkSession, last: DataFrame, shares: Sequence[Portion], place: Path
) -> list[Rewritten]:
    """What came of each group, in their order."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    starts = np.array([share.stretch.start for share in shares], np.int64)
    offsets = map_in_arrow(last.select("offset"), _ToGroups(starts), _OF_GROUPS)
    # Also a group of which nothing stays has its portion, and so its task.
    told = spark.createDataFrame(
        [(group, None, pickle.dumps(share)) for group, share in enumerate(shares)],
        from_arrow_schema(_OF_GROUPS),
    )
    # By the group's number itself: hashed, several groups would meet in one task. And Spark joins no such tasks, small
    # as what they are sent may be.
    parts = offsets.union(told).repartitionById(len(shares), "group")
    rows = map_in_arrow(parts, Rewriting(place), _REWRITTEN).collect()
    return [
        Rewritten(Path(row["directory"]), tuple(row["bases"]), RewriteCounts(*row["counts"]))
        for row in sorted(rows, key=lambda row: row["group"])
    ]


@dataclass(frozen=True, slots=True)
class Rewriting:
    """The work of the tasks that write groups anew. Each call is an attempt, in a directory of its own.

    place  where these are made. It is not made: an attempt of a job that is over finds it gone
    """

    place: Path

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        last: defaultdict[int, list[Longs]] = defaultdict(list)
        shares: dict[int, Portion] = {}
        for batch in batches:
            for group, offsets, share in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if share is None:
                    last[group].append(np.frombuffer(offsets, "<u4"))
                else:
                    shares[group] = pickle.loads(share)
        for group, portion in shares.items():
            directory = self.place / uuid.uuid4().hex
            directory.mkdir()
            made = rewritten(portion, last.pop(group, ()), directory)
            row = {
                "group": group,
                "directory": str(directory),
                "bases": list(made.bases),
                "counts": list(astuple(made.counts)),
            }
            yield pa.RecordBatch.from_pylist([row], _REWRITTEN)
