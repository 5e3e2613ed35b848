"""Importing any rows as a new topic, with many machines. Its segments and indexes are byte for byte those of
appends.

Two rounds of tasks work in BACKING/staging. The log is locked during that time, so that no daemon opens it:

    1. tasks over the rows    each row goes to the partition that it names, else to that of its key; each task builds
                              record batches, a file for each partition. Then the number of records in each is known
    2. tasks over segments    neighbouring files become one segment: the batches get their offsets, which no checksum
                              covers, and the indexes are written

Within a partition records have the order of the frame: task by task, row by row. A sorted frame stays sorted.

A row that cannot be taken stops the import; or it is put aside, if there is a directory for such rows.

    staging/<topic>/import/       work; removed at the next start, or by the next import
    staging/<topic>/publishing/   everything is complete and on disk: the rename to this name is the commit. Then each
                                  directory in it is renamed to logs/<topic>-<n>. If that was interrupted, the same
                                  command completes it
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns
from topicfs.engine.column_files.rows import rows_of
from topicfs.engine.errors import (
    EngineError,
    InvalidRecordError,
    InvalidSettingError,
    PartitionExistsError,
    RecordTooLargeError,
)
from topicfs.engine.files.atomic import sync_directory, sync_file
from topicfs.engine.files.listing import Listing
from topicfs.engine.files.lock import DirectoryLock
from topicfs.engine.files.metadata import PartitionMetadata, random_uuid
from topicfs.engine.files.place import refuse_unless_store
from topicfs.engine.format.paths import (
    IMPORTING,
    LEADER_EPOCHS,
    LOG_SUFFIX,
    LOGS,
    PUBLISHING,
    STAGING,
    TOPICS,
    file_of,
    partition_directory,
    validate_topic,
)
from topicfs.engine.inbox.routing import by_partition, choose
from topicfs.engine.inbox.rows import NO_PARTITION
from topicfs.engine.kernels import encode as encoding
from topicfs.engine.kernels.scan import BASE_OFFSET, COUNT, LAST_OFFSET, LEADER_EPOCH, POSITION
from topicfs.engine.partition.chain import segment_settings
from topicfs.engine.partition.epochs import LeaderEpochs
from topicfs.engine.partition.validate import batch_limit, first_refused, shape_for
from topicfs.engine.record import MAX_INT32, TimestampType, now_ms
from topicfs.engine.segment.descriptors import Descriptors
from topicfs.engine.segment.segment import Segment
from topicfs.engine.settings.configuration import Configuration
from topicfs.engine.settings.topic import TopicSettings
from topicfs.engine.spark.jobs.rejects import Aside, Rejects, marked, refusal_in
from topicfs.engine.spark.jobs.sources import Sources
from topicfs.engine.spark.jobs.spread import map_in_arrow, spread
from topicfs.engine.spark.jobs.taking import FILE, PLACE_NAMES, REFUSED
from topicfs.engine.spark.session import failures
from topicfs.engine.spark.writer import check_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EPOCH: Final = 0
_PIECES: Final[pa.Schema] = pa.schema(
    [
        ("partition", pa.int32()),
        ("task", pa.int32()),
        ("number", pa.int32()),
        ("path", pa.string()),
        ("bytes", pa.int64()),
        ("records", pa.int64()),
    ]
)
_SEGMENTS: Final[pa.Schema] = pa.schema([("bytes", pa.int64()), ("records", pa.int64())])


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import.

    read                       number of rows that were read
    rejected                   number of them that were put aside
    records, bytes, segments   totals of all partitions
    partitions                 number of partitions
    """

    read: int
    rejected: int
    records: int
    bytes: int
    segments: int
    partitions: int


@dataclass(frozen=True, slots=True)
class ImportPiece:
    """A file of record batches that one task made, which have no offsets yet; or of rows that it put aside: then the
    partition is NO_PARTITION."""

    partition: int
    task: int
    number: int
    path: str
    bytes: int
    records: int


@dataclass(frozen=True, slots=True)
class Output:
    """A segment that has to be made.

    base    its base offset
    pieces  the files that become the segment, in order
    """

    directory: Path
    partition: int
    base: int
    pieces: tuple[ImportPiece, ...]


def import_files(
    spark: SparkSession,
    sources: Sources,
    backing: Path,
    topic: str,
    partitions: int,
    overrides: Mapping[str, str] | None = None,
    rejects: Path | None = None,
) -> Imported:
    """Make a topic from files, as `import_rows` does. InvalidRecordError, with file and line, for the first row found
    that cannot be taken; or, where a directory is given for such rows, they are written there."""
    aside = None if rejects is None else Rejects.into(rejects, sources)
    try:
        return import_rows(spark, sources.rows, backing, topic, partitions, overrides, aside)
    except failures() as error:
        raise refusal_in(error, sources) or error from None


def import_rows(
    spark: SparkSession,
    rows: DataFrame,
    backing: Path,
    topic: str,
    partitions: int,
    overrides: Mapping[str, str] | None = None,
    rejects: Rejects | None = None,
) -> Imported:
    """Make a topic from the rows of a frame, whose columns are those of the data source's writer, and those of a place
    where the rows are of files. PartitionExistsError if the topic exists, StoreLockedError if somebody has the log
    open. Rows that cannot be taken fail a task, unless there are `rejects` for them."""
    check_columns(rows.drop(*PLACE_NAMES).schema, topic, others=False)
    validate_topic(topic)
    if partitions < 1:
        raise InvalidSettingError(f"partitions of topic {topic}: expected at least 1, found {partitions}")
    refuse_unless_store(backing)
    for name in (TOPICS, STAGING):
        (backing / name).mkdir(exist_ok=True)
    lock = DirectoryLock.acquire(backing / LOGS)
    try:
        if _publish(backing, topic):
            raise PartitionExistsError(
                f"topic {topic}: an import that was broken off is completed now; nothing else is done"
            )
        return _import(spark, rows, backing, topic, partitions, overrides or {}, rejects)
    finally:
        lock.release()


def _import(
    spark: SparkSession,
    rows: DataFrame,
    backing: Path,
    topic: str,
    partitions: int,
    overrides: Mapping[str, str],
    rejects: Rejects | None,
) -> Imported:
    if any(name == topic for name, _ in Listing.of(backing / LOGS).partitions):
        raise PartitionExistsError(
            f"{backing / LOGS}: topic {topic} exists; rows are imported into a new topic only"
        )
    configuration = Configuration.load(backing, {}, now_ms)
    settings = configuration.check(topic, overrides)
    work = backing / STAGING / topic / IMPORTING
    shutil.rmtree(work, ignore_errors=True)
    for number in range(partitions):
        (work / "pieces" / str(number)).mkdir(parents=True)
        (work / LOGS / partition_directory(topic, number)).mkdir(parents=True)
    try:
        every = _staged(rows, work, partitions, settings, rejects is not None)
        pieces = [piece for piece in every if piece.partition != NO_PARTITION]
        aside = [piece for piece in every if piece.partition == NO_PARTITION]
        outputs = list(_outputs(work / LOGS, topic, partitions, pieces, settings))
        made = spread(spark, outputs, _Segments(settings), _SEGMENTS).collect()
        records, rejected = sum(row["records"] for row in made), sum(piece.records for piece in aside)
        if rejects is not None:
            rejects.write([Path(piece.path) for piece in aside])
        shutil.rmtree(work / "pieces")
        topic_id = random_uuid()
        _finish(work / LOGS, topic, partitions, topic_id)
        configuration.note_created(topic_id)
        configuration.set_topic(topic, overrides)
        (work / LOGS).rename(work.with_name(PUBLISHING))
        sync_directory(work.parent)
        _publish(backing, topic)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    size = sum(row["bytes"] for row in made)
    return Imported(records + rejected, rejected, records, size, len(made), partitions)


# -- rows into batches --------------------------------------------------------------------------------


def _staged(
    rows: DataFrame, work: Path, partitions: int, settings: TopicSettings, rejects: bool
) -> list[ImportPiece]:
    """Run the first round. Return its pieces, in the order of tasks within each partition."""
    numbers = tuple(range(partitions))

    def each(arriving: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark.taskcontext import TaskContext  # noqa: PLC0415 - in tasks only

        context = TaskContext.get()
        assert context is not None
        aside = Aside(work / "pieces" / f"aside-{context.partitionId()}-{uuid.uuid4()}") if rejects else None
        writers = _Writers(work / "pieces", context.partitionId(), numbers, settings, aside)
        for batch in arriving:
            writers.add(batch)
        yield pa.RecordBatch.from_pylist(writers.finish(), _PIECES)

    frame = map_in_arrow(rows.drop("topic"), each, _PIECES)
    # A retried task writes new files: only the files that a successful attempt reports count.
    return sorted(
        (ImportPiece(*row) for row in frame.collect()),
        key=lambda piece: (piece.partition, piece.task, piece.number),
    )


class _Writers:
    """The files that one task writes.

    task      number of the task
    aside     takes rows that are refused; None if they fail the task
    pieces    finished files
    _turn     counts Arrow batches: records without a key go to the partitions in turn
    """

    def __init__(
        self,
        directory: Path,
        task: int,
        numbers: Sequence[int],
        settings: TopicSettings,
        aside: Aside | None = None,
    ) -> None:
        self.directory = directory
        self.task = task
        self.numbers = numbers
        self.settings = settings
        self.aside = aside
        self.pieces: list[dict[str, Any]] = []
        self._turn = task
        self._open: dict[int, _PieceWriter] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows. Those that were refused when they were read, or are now, are put aside, or fail the task."""
        if REFUSED in rows.schema.names:
            refused = rows.filter(pc.is_valid(rows.column(REFUSED)))
            for row in range(refused.num_rows):
                self._refuse(refused.slice(row, 1), InvalidRecordError(refused.column(REFUSED)[row].as_py()))
            rows = rows.filter(pc.is_null(rows.column(REFUSED)))
        if rows.num_rows:
            self._add_good(rows)

    def _add_good(self, rows: pa.RecordBatch) -> None:
        """Add rows, and where one is refused, each half of them by itself, down to that one."""
        now = now_ms()
        try:
            found = rows_of(rows)
            columns = found.dated(now)
            chosen, _, refusal = choose(
                columns, found.partitions, self.numbers, self.numbers[self._turn % len(self.numbers)]
            )
            if refusal is None:
                _, refusal = first_refused(columns, self.settings, now)
            if refusal is not None:
                raise refusal
        except (InvalidRecordError, RecordTooLargeError) as error:
            if rows.num_rows == 1:
                self._refuse(rows, error)
                return
            half = rows.num_rows // 2
            self._add_good(rows.slice(0, half))
            self._add_good(rows.slice(half))
            return
        self._turn += 1
        for number, taken in by_partition(columns, chosen):
            self._add(number, taken, now)

    def _refuse(self, row: pa.RecordBatch, reason: EngineError) -> None:
        if self.aside is not None:
            self.aside.add(row, str(reason))
        elif FILE in row.schema.names:
            raise InvalidRecordError(f"{marked(row)}{reason}")
        else:
            raise reason

    def _add(self, number: int, columns: Columns, now: int) -> None:
        writer = self._open.get(number)
        if writer is None:
            path = self.directory / str(number) / f"{self.task}-{uuid.uuid4()}"
            writer = self._open[number] = _PieceWriter(path, self.settings, now)
        writer.add(columns)
        if writer.size > self.settings.segment_bytes // 2:
            self._end(number)

    def _end(self, number: int) -> None:
        writer = self._open.pop(number)
        writer.close()
        self.pieces.append(
            {
                "partition": number,
                "task": self.task,
                "number": len(self.pieces),
                "path": str(writer.path),
                "bytes": writer.size,
                "records": writer.records,
            }
        )

    def finish(self) -> list[dict[str, Any]]:
        """Close the open files. Return all pieces, and what was put aside."""
        if self.aside is not None and self.aside.rows:
            self.aside.close()
            size = self.aside.path.stat().st_size
            self.pieces.append(
                {
                    "partition": NO_PARTITION,
                    "task": self.task,
                    "number": len(self.pieces),
                    "path": str(self.aside.path),
                    "bytes": size,
                    "records": self.aside.rows,
                }
            )
        for number in sorted(self._open):
            self._end(number)
        return self.pieces


class _PieceWriter:
    """Writes records into one file."""

    def __init__(self, path: Path, settings: TopicSettings, now: int) -> None:
        self.path = path
        self.size = self.records = 0
        self._shape = shape_for(settings)
        self._append_time = now if settings.message_timestamp_type == TimestampType.LOG_APPEND_TIME else None
        self._builder = batches.BatchBuilder(min(batch_limit(settings), settings.segment_bytes))
        self._file = path.open("xb", buffering=0)

    def add(self, columns: Columns) -> None:
        at = 0
        while at < len(columns):
            at += self._builder.add_columns(columns.rows(at, len(columns)))
            if at < len(columns):
                self._send()

    def _send(self) -> None:
        self.records += self._builder.count
        batch = self._builder.finish(self._shape, self._append_time).data
        self._file.write(memoryview(batch))
        self.size += batch.size

    def close(self) -> None:
        if self._builder.count:
            self._send()
        self._file.close()


# -- batches into segments ----------------------------------------------------------------------------


def _outputs(
    logs: Path, topic: str, partitions: int, pieces: Sequence[ImportPiece], settings: TopicSettings
) -> Iterator[Output]:
    """Yield the segments of each partition: neighbouring pieces together, as far as they fit. A partition has at
    least one segment."""
    for number in range(partitions):
        base = size = records = 0
        group: list[ImportPiece] = []
        directory = logs / partition_directory(topic, number)
        for piece in pieces:
            if piece.partition != number:
                continue
            if group and (size + piece.bytes > settings.segment_bytes or records + piece.records > MAX_INT32):
                yield Output(directory, number, base, tuple(group))
                base, size, records, group = base + records, 0, 0, []
            group.append(piece)
            size, records = size + piece.bytes, records + piece.records
        yield Output(directory, number, base, tuple(group))


@dataclass(frozen=True, slots=True)
class _Segments:
    """The work of the second round."""

    settings: TopicSettings

    def __call__(self, output: Output) -> Iterable[dict[str, Any]]:
        _remove_left(output)
        settings = replace(segment_settings(self.settings), preallocate=False)
        segment = Segment.create(output.directory, output.base, settings, now_ms, Descriptors())
        offset = output.base
        for piece in output.pieces:
            data = np.fromfile(piece.path, np.uint8)
            table = batches.scan(data)
            for row in table:
                at = int(row[POSITION])
                encoding.stamp(data, at, offset, _EPOCH)
                row[LAST_OFFSET] += offset - row[BASE_OFFSET]
                row[BASE_OFFSET] = offset
                row[LEADER_EPOCH] = _EPOCH
                offset += int(row[COUNT])
            segment.append(data, table)
        segment.seal()
        segment.flush()
        yield {"bytes": segment.size, "records": offset - output.base}


def _remove_left(output: Output) -> None:
    """Remove the files of an earlier attempt of this task."""
    for path in output.directory.glob(file_of(output.base, ".*")):
        path.unlink(missing_ok=True)


def _finish(logs: Path, topic: str, partitions: int, topic_id: str) -> None:
    """Write the other files of each partition, set file times that rise with the offsets, and fsync everything."""
    for number in range(partitions):
        directory = logs / partition_directory(topic, number)
        metadata = PartitionMetadata.load(directory)
        metadata.record(topic_id)
        metadata.maybe_flush()
        segments = sorted(directory.glob("*" + LOG_SUFFIX))
        if segments[-1].stat().st_size:
            epochs = LeaderEpochs.open(directory / LEADER_EPOCHS)
            epochs.assign_all([(_EPOCH, 0)])
            epochs.flush()
        # A reader that takes segments in the order of their times then reads them in the order of their offsets.
        latest = now_ms() - len(segments)
        for place, path in enumerate(segments):
            os.utime(path, ns=((latest + place) * 1_000_000,) * 2)
            sync_file(path)
        sync_directory(directory)
    sync_directory(logs)


def _publish(backing: Path, topic: str) -> bool:
    """Move complete partitions to their names in the log. Return whether there were any."""
    ready = backing / STAGING / topic / PUBLISHING
    try:
        names = sorted(os.listdir(ready))
    except FileNotFoundError:
        return False
    for name in names:
        (ready / name).rename(backing / LOGS / name)
    sync_directory(backing / LOGS)
    ready.rmdir()
    return True
