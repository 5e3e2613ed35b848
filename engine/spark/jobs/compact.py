"""Compaction of logs that are too large for one machine: Spark finds the last record of each key, and its tasks
rewrite the segments with the cleaner's own code.

    1. the driver     holds the log, so that no daemon opens it, and forms groups of segments as the cleaner does
    2. a task a group finds which transactions the group leaves pending; with several groups only (see
                      engine.cleaner.distributed)
    3. tasks          find the offset of each key's last committed record; each offset is sent to its group
    4. a task a group writes the group's new segments, in BACKING/staging, from its old ones and those offsets
    5. the driver     puts them in place, group by group, as the cleaner does

Whatever a task does, the log does not change before the last step: each attempt writes into its own directory, and the
driver uses only attempts that Spark reports as successful. Files of failed or duplicate attempts, or of a killed job,
are ignored. The result is the same as that of a clean of the complete log with a map of any size. All new segments of a
partition exist before the first one is put in place: that much space is needed.

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
from topicfs.engine.partition.cutting import split_overflowing
from topicfs.engine.record import Clock, now_ms
from topicfs.engine.spark import register
from topicfs.engine.spark.jobs.spread import map_in_arrow, spread
from topicfs.engine.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_GATHERED: Final = 1 << 18
"""Offsets that a task collects before it sends them on, sorted by groups."""

_PASSAGES: Final[pa.Schema] = pa.schema(
    [("group", pa.int32()), ("pending", pa.list_(pa.int64())), ("ended", pa.list_(pa.int64()))]
)
_OF_GROUPS: Final[pa.Schema] = pa.schema(
    [("group", pa.int32()), ("last", pa.binary()), ("portion", pa.binary())]
)
"""The rows for the task of a group: one has its portion, the others have offsets, uint32 from the group's start."""

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
    """Compact all partitions of these topics, up to their active segments. `everything` first seals the active ones.
    Return the result for each partition. StoreLockedError if somebody has the log open."""
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
    start = log.snapshot.segments.first.base_offset
    # As in the cleaner: complete segments only, and none that reaches above the stable offset.
    last = log.snapshot.segments.floor(min(log.snapshot.active_base, log.snapshot.stable))
    end = start if last is None else last.base_offset
    if start >= end:
        return Cleaned(start)
    with store.cleaning.paused(key), _workplace(store.backing / STAGING / key[0] / COMPACTING) as place:
        # A task could not do this, because it changes nothing in the log.
        split_overflowing(log, log.snapshot.segments.non_active)
        work = Work.take(log, end, lambda: None)
        groups = work.groups(work.sources)
        lie = stretches(work, groups)
        shares = portions(work, lie, _passages(spark, lie[:-1]), store.clock())
        # Records below the start offset count as removed.
        offsets = _last_offsets(spark, store.backing, key, min(max(start, log.snapshot.start), end), end)
        made = _rewritten(spark, offsets, shares, place)
        after = sum(take(work, group, each) for group, each in zip(groups, made, strict=True))
        store.cleaning.offsets.put(key, end)
    return Cleaned.of(sum((each.counts for each in made), RewriteCounts()), end, len(work.sources), after)


@contextlib.contextmanager
def _workplace(directory: Path) -> Iterator[Path]:
    """Yield a directory for the attempts of one job. Files of other jobs are removed: only one job can hold the log.
    A running attempt of another job cannot write into this job's directory."""
    shutil.rmtree(directory, ignore_errors=True)
    place = directory / uuid.uuid4().hex
    place.mkdir(parents=True)
    try:
        yield place
    finally:
        shutil.rmtree(directory, ignore_errors=True)


# -- transactions -------------------------------------------------------------------------------------


def _passages(spark: SparkSession, lie: Sequence[Stretch]) -> list[Passage]:
    """Return the passages of groups, in their order."""
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
    """Return the last offset of each key."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - only here

    topic, number = key
    log = (
        spark.read.format("topicfs")
        .option("path", str(backing))
        .option("assign", f'{{"{topic}":[{number}]}}')
        .option("startingOffsets", f'{{"{topic}":{{"{number}":{start}}}}}')
        .option("endingOffsets", f'{{"{topic}":{{"{number}":{end}}}}}')
        # Lost data must be an error here: records that a task does not see would count as outdated.
        .schema("offset bigint, key binary")
        .load()
    )
    return log.where(f.col("key").isNotNull()).groupBy("key").agg(f.max("offset").alias("offset"))


@dataclass(frozen=True, slots=True)
class _ToGroups:
    """Sends offsets to the groups that they lie in.

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
    """Return the result of each group, in their order."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    starts = np.array([share.stretch.start for share in shares], np.int64)
    offsets = map_in_arrow(last.select("offset"), _ToGroups(starts), _OF_GROUPS)
    # A group of which nothing stays also has a portion, and so a task.
    told = spark.createDataFrame(
        [(group, None, pickle.dumps(share)) for group, share in enumerate(shares)],
        from_arrow_schema(_OF_GROUPS),
    )
    # Partition by the group's number itself: hashed numbers could bring several groups into one task. Spark also does
    # not join such tasks, even if their input is small.
    parts = offsets.union(told).repartitionById(len(shares), "group")
    rows = map_in_arrow(parts, Rewriting(place), _REWRITTEN).collect()
    return [
        Rewritten(Path(row["directory"]), tuple(row["bases"]), RewriteCounts(*row["counts"]))
        for row in sorted(rows, key=lambda row: row["group"])
    ]


@dataclass(frozen=True, slots=True)
class Rewriting:
    """The work of the tasks that rewrite groups. Each call is an attempt, in its own directory.

    place  parent of these directories. It is not created here: so an attempt of a finished job fails
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
