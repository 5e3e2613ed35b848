"""Streaming queries. An offset of the stream has the form of Kafka's source, and the ids of the topics:

    {"orders":{"0":23},"orders@<id>":{}}        the next offset to be read

No topic has an @ in its name. Kafka's source, and we, take an offset with and without ids, so that a checkpoint can
be handed over both ways. A topic whose id is not known, in the offset or in its directory, is not compared. In the
same form the latest offset of a query's progress tells how many bytes wait: Spark asks a source in Python for no
metrics, see `behind`.

Where a query begins, such as at the latest offsets, Spark does not keep, and asks again if it is stopped before its
first batch is committed. The planned end of that batch then comes from the checkpoint. So it tells where the batch
begins, and what it tells counts:

    "@begin":{}                                 in the offset where a query begins
    "@from={\"orders\":{\"0\":5}}":{}           in the end of its first batch

A partition that is created while a stream runs is read from its beginning. When a query restarts, the planned
records are read again, and they are the same: only offsets below the stable one are planned, and those do not
change. Compaction may have removed outdated records by then, as it may have done before the first read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from topicfs.engine.errors import ClosedError, InvalidNameError, InvalidSettingError, OffsetOutOfRangeError
from topicfs.engine.spark.acknowledge import SentToWorkers
from topicfs.engine.spark.behind import BYTES_BEHIND
from topicfs.engine.spark.options import Key, Options
from topicfs.engine.spark.ranges import checked, chosen, resolved, size, tasks
from topicfs.engine.spark.reader import ReadTask, read
from topicfs.engine.unlocked.partitions import Tails, TopicPartition, found, while_files_change
from topicfs.engine.unlocked.place import Place, place_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Json = dict[str, dict[str, int]]

_BEGIN: Final = "@begin"
_FROM: Final = "@from="


@dataclass(frozen=True, slots=True)
class Position:
    """A position of the stream.

    offsets  next offset of each partition
    ids      ids of the topics that have one
    begins   where the batch that ends here begins, if it is the first of a query: the query's beginning is itself such
             an end. None for any other
    """

    offsets: dict[Key, int]
    ids: dict[str, str]
    begins: dict[Key, int] | None = None

    @classmethod
    def of(cls, found: Json) -> Position:
        """Return the position in an offset of Spark's checkpoint."""
        offsets = _offsets_of(found)
        ids = dict(name.split("@", 1) for name in found if "@" in name and not name.startswith("@"))
        told = [name.removeprefix(_FROM) for name in found if name.startswith(_FROM)]
        if told:
            return cls(offsets, ids, _offsets_of(json.loads(told[0])))
        return cls(offsets, ids, offsets if _BEGIN in found else None)

    def json(self) -> Json:
        """Return the form in Spark's checkpoint. Ids of topics without a partition in it are left out."""
        found = _json_of(self.offsets)
        ids: Json = {f"{topic}@{self.ids[topic]}": {} for topic in found if topic in self.ids}
        if self.begins is None:
            return found | ids
        begins = json.dumps(_json_of(self.begins), separators=(",", ":"))
        return found | ids | {_BEGIN if self.begins == self.offsets else f"{_FROM}{begins}": {}}

    @property
    def is_begin(self) -> bool:
        """Whether a query begins here."""
        return self.begins == self.offsets

    def made_again(self, present: dict[str, str]) -> set[str]:
        """Return the topics whose present ids are others."""
        return {topic for topic, known in self.ids.items() if present.get(topic, known) != known}

    def offsets_in(self, present: dict[str, str]) -> dict[Key, int]:
        """Return the offsets of topics that were not made again: the others are new to the stream."""
        again = self.made_again(present)
        return {key: offset for key, offset in self.offsets.items() if key[0] not in again}


class TopicStreamReader(SentToWorkers, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one streaming query. It lives as long as the query, in one process.

    options   options of the query
    schema    columns that the query needs
    _tails    known end of each partition
    _first    where a new query begins, once Spark has asked
    _target   where a query that reads what is available now ends
    _latest   ends of the partitions for the query's progress, once they were looked at
    _place    place of the log when it was last found
    _begun_s  time when a micro-batch last had enough to begin, or had waited enough; None before the first
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._tails: Tails = {}
        self._first: Position | None = None
        self._target: Position | None = None
        self._latest: Json | None = None
        self._place: Place | None = None
        self._begun_s: float | None = None

    def _log(self) -> Place:
        """Return the place of the log. While a daemon restarts, its mount point is dead, and then an empty directory
        for a moment. The files are still where they were."""
        try:
            self._place = place_of(self.options.path)
        except (ClosedError, InvalidNameError):
            if self._place is None:
                raise
            return replace(self._place, mount=None)
        return self._place

    def _look(self, list_files: bool = False) -> dict[Key, TopicPartition]:
        """Return the present partitions that the query reads."""
        place = self._log()
        keys = chosen(place, self.options, missing_ok=not self.options.fail_on_data_loss)
        return found(place, keys, self._tails, list_files)

    # -- offsets --------------------------------------------------------------------------------------

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's names, here and below
        """Return the offsets where a new query begins."""
        if self._first is None:
            options, partitions = self.options, self._look(list_files=True)
            offsets = resolved(partitions, options.starting, "startingOffsets", options.late_is_latest)
            self._first = Position(offsets, _ids(partitions.values()), offsets)
        return self._first.json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch: `maxOffsetsPerTrigger` offsets, or none."""
        most = self.options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember the present ends of all partitions."""
        self._target = _ends(self._look())

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        """Return the end of the next micro-batch, which begins at `start`."""
        present, position = self._look(), Position.of(start)
        seen = _ends(present)
        if self.options.fail_on_data_loss:
            _refuse_lost(position, seen)
        ends = seen if self._target is None else self._target
        begun = position.offsets_in(ends.ids)
        # Offsets of deleted partitions are dropped. Partitions that the target does not know wait.
        latest = {key: max(end, begun.get(key, 0)) for key, end in ends.offsets.items()}
        starts = {key: present[key].bounds.start for key in latest if key not in begun and key in present}
        if self._waits(begun, starts, latest):
            self._latest = _reported(seen, present, begun)
            return start
        if isinstance(limit, ReadMaxRows):
            latest = _limited(begun, latest, starts, limit.max_rows)
        elif not isinstance(limit, ReadAllAvailable):
            raise InvalidSettingError(f"limit of a micro-batch: expected one in offsets, found {limit}")
        self._latest = _reported(seen, present, latest)
        if Position(latest, ends.ids, position.begins) == position:
            return start  # another text would be another batch to Spark
        return Position(latest, ends.ids, position.offsets if position.is_begin else None).json()

    def reportLatestOffset(self) -> Json:  # noqa: N802
        """Return the ends of all partitions for the query's progress, as `latestOffset` has just seen them."""
        return self._latest or _ends(self._look()).json()

    def _waits(self, begun: dict[Key, int], starts: dict[Key, int], latest: dict[Key, int]) -> bool:
        """Return whether there is too little for a micro-batch yet. Never wait with the first one, or with
        `availableNow`."""
        least, now = self.options.min_offsets, time.monotonic()
        if least is None or self._target is not None:
            return False
        waiting = sum(end - begun.get(key, starts.get(key, 0)) for key, end in latest.items())
        too_soon = self._begun_s is not None and (now - self._begun_s) * 1000 < self.options.max_delay_ms
        if waiting < least and too_soon:
            return True
        self._begun_s = now
        return False

    # -- reading --------------------------------------------------------------------------------------

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """Return the tasks of a micro-batch."""
        ended = Position.of(end)
        begun = Position.of(start).offsets_in(ended.ids) if ended.begins is None else ended.begins
        new = [key for key, offset in ended.offsets.items() if begun.get(key, 0) < offset]
        partitions = found(self._log(), new, self._tails)
        present = _ids(partitions.values())
        if self.options.fail_on_data_loss:
            _refuse_made_again(ended, present)
        planned = ended.offsets_in(present)  # of a topic that was made again since, nothing is left
        missing = sorted(key for key in new if key in planned and key not in partitions)
        if missing and self.options.fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"{missing[0][0]}-{missing[0][1]}: deleted while the stream reads it. failOnDataLoss=false goes on "
                "without it"
            )
        spans = [
            (key, *checked(partition, begun.get(key, 0), planned[key], self.options))
            for key, partition in partitions.items()
            if key in planned
        ]
        return [ReadTask(part) for part in tasks(partitions, spans, self.options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the records of a task."""
        return read(partition.value, self.schema)

    def commit(self, end: Json) -> None:
        """Do nothing: Spark's checkpoint keeps the position of the stream."""

    def stop(self) -> None:
        """Do nothing: no file is open."""


def _offsets_of(found: Json) -> dict[Key, int]:
    return {(topic, int(number)): each for topic, parts in found.items() for number, each in parts.items()}


def _json_of(offsets: dict[Key, int]) -> Json:
    found: Json = {}
    for (topic, number), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(number)] = offset
    return found


def _limited(
    begun: dict[Key, int], latest: dict[Key, int], starts: dict[Key, int], most: int
) -> dict[Key, int]:
    """Return ends so that at most `most` offsets are read, from each partition in proportion to its waiting offsets."""
    begin = {key: begun.get(key, starts.get(key, 0)) for key in latest}
    waiting = {key: end - begin[key] for key, end in latest.items() if end > begin[key]}
    total = sum(waiting.values())
    if total <= most:
        return latest
    shares = {key: most * size // total for key, size in waiting.items()}
    left = most - sum(shares.values())
    for key in sorted(waiting, key=lambda key: (shares[key] * total - most * waiting[key], key))[:left]:
        shares[key] += 1
    # A new partition that gets no share yet is left out, so that it counts as new the next time too.
    return {key: begin[key] + shares.get(key, 0) for key in latest if key in begun or shares.get(key, 0)}


def _ids(partitions: Iterable[TopicPartition]) -> dict[str, str]:
    """Return the ids of topics. The first partition counts: see `ranges.found` for a topic that is just made again."""
    ids: dict[str, str] = {}
    for each in partitions:
        if each.topic_id is not None:
            ids.setdefault(each.topic, each.topic_id)
    return ids


def _ends(partitions: dict[Key, TopicPartition]) -> Position:
    return Position({key: each.bounds.end for key, each in partitions.items()}, _ids(partitions.values()))


def _reported(ends: Position, present: dict[Key, TopicPartition], reached: dict[Key, int]) -> Json:
    """Return the ends, and the bytes of the log from the offsets that are reached up to there."""
    waiting = 0
    for key, end in ends.offsets.items():
        begin = reached.get(key, present[key].bounds.start)
        if begin < end:
            with suppress(FileNotFoundError):  # deleted in the meantime
                waiting += while_files_change(partial(size, present[key].files, begin, end))
    return ends.json() | {f"{BYTES_BEHIND}{waiting}": {}}


def _refuse_lost(begun: Position, ends: Position) -> None:
    _refuse_made_again(begun, ends.ids)
    for (topic, number), offset in begun.offsets.items():
        end = ends.offsets.get((topic, number))
        if end is None or end < offset:
            raise OffsetOutOfRangeError(
                f"{topic}-{number}: expected an end from offset {offset} on, where the stream is, found "
                f"{'no such partition' if end is None else end}: records are lost, or the topic was made anew. "
                "failOnDataLoss=false goes on with what there is"
            )


def _refuse_made_again(known: Position, present: dict[str, str]) -> None:
    for topic in sorted(known.made_again(present)):
        raise OffsetOutOfRangeError(
            f"{topic}: expected the topic with id {known.ids[topic]}, which the stream has read, found one with id "
            f"{present[topic]}: it was deleted and made again, and its offsets mean other records. "
            "failOnDataLoss=false reads the new topic from its start"
        )
