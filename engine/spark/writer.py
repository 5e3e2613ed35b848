"""Writing rows into topics: batch queries and streams. Each batch is appended once, whatever is retried.

Columns are those of Spark's Kafka sink: value, and optionally key, headers, topic, partition; and also timestamp.
Value and key are text or bytes. As in Kafka's sink, other columns are not written. Options: `path`, `topic` for all
rows, which outranks the column, and for batch queries `batch`, a name: data written under one name is appended once,
even by another job. A stream's batches are named by its query and number. Options that only say how to reach a broker
are ignored, and so is `includeHeaders`: a column of headers is always written.

Tasks put their rows into the topic's inbox as files of Arrow, each task into files of its own that nobody reads yet.
When all tasks are done the driver renames the files of the successful tasks, and the inbox commits them: all or
nothing, also where the rows of one batch go to several topics, whose inboxes commit them in one transaction. Topics
that mirror a Kafka cluster's and others cannot be in one transaction: a batch of both is an error.

A log that a daemon has open is written through its mount, which is then the path, and must be visible to all tasks.
Otherwise the driver opens the log for the time of the commit.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.taskcontext import TaskContext

from topicfs.engine.errors import (
    ClosedError,
    InvalidNameError,
    InvalidRecordError,
    InvalidSettingError,
    StoreLockedError,
    UnknownPartitionError,
)
from topicfs.engine.format.paths import INBOX, STAGING, validate_topic
from topicfs.engine.spark.options import refuse_of_kafka
from topicfs.engine.unlocked.place import ENDED, Place, place_of, shown_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,179}")
_OPTIONS: Final = ("path", "topic", "batch")
_IGNORED: Final = ("checkpointlocation", "queryname", "includeheaders")
"""Spark's own options, and the one of Kafka's sink that changes nothing here."""
_SUFFIX: Final = ".arrow"
_TOGETHER: Final = "_topics"
"""The file in a batch's directory that names the topics whose batches of that name are committed together."""

_BUFFER: Final = 1 << 20
MOST_BYTES: Final = 64 << 20
"""Bytes of rows in one batch, about: an inbox takes up to 256 MiB. Spark's own limit is a number of rows, however large
they are."""

_TYPES: Final = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp", "timestamp_ntz"),
    "headers": ("array<struct<key:string,value:binary>>",),
}


class Staged(WriterCommitMessage):
    """The files that a task has put into inboxes.

    name   name of the batch
    part   number of the task, by which the files are ordered
    files  the file in each topic's inbox
    """

    def __init__(self, name: str, part: int, files: dict[str, str]) -> None:
        self.name = name
        self.part = part
        self.files = files


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """The place where rows are written.

    path   a backing directory, or a mount of one
    topic  topic of all rows; None if every row names its own
    """

    path: str
    topic: str | None

    @property
    def place(self) -> Place:
        """Return the log. It is looked up when it is needed: Spark makes the writer anew for a commit and for an abort,
        also if the daemon has ended in between."""
        return place_of(self.path)

    @property
    def inboxes(self) -> SinkInboxes:
        """Return the inboxes that rows are written to."""
        place = self.place
        if place.mount is None and place.others:
            raise InvalidNameError(
                f"path {self.path}: expected one store to write to, found several: give a daemon's mount"
            )
        return ClosedInboxes(place.backing) if place.mount is None else MountedInboxes(place.mount)


def target_of(options: Mapping[str, str], schema: StructType) -> WriteTarget:
    """Return the target of a query. InvalidSettingError for wrong options and columns."""
    lower = {name.lower(): value for name, value in options.items()}
    refuse_of_kafka(lower)
    for name in lower:
        if name not in (*_OPTIONS, *_IGNORED) and not name.startswith("kafka."):
            raise InvalidSettingError(f"option {name}: expected one of {', '.join(_OPTIONS)}")
    if not lower.get("path"):
        raise InvalidSettingError(
            "option path: expected a backing directory or a mount of topicfs, found none"
        )
    topic = lower.get("topic")
    check_columns(schema, topic, others=True)
    if topic is not None:
        topic = topic.strip()
        validate_topic(topic)
    return WriteTarget(lower["path"], topic)


def check_columns(schema: StructType, topic: str | None, others: bool) -> None:
    """Raise InvalidSettingError if a column that is written has a wrong type, if nothing names the topic, or if there
    are columns that are not written, unless `others` is true. A name that differs from that of a written column by its
    case only is refused in any case: the column would be left out without a word."""
    for column in schema.fields:
        name, kind = column.name, column.dataType.simpleString()
        # Types are compared by their names: it does not matter whether a part may be null.
        if (name.lower() in _TYPES or not others) and kind not in _TYPES.get(name, ()):
            ours = ", ".join(f"{name} {' or '.join(kinds)}" for name, kinds in _TYPES.items())
            raise InvalidSettingError(f"column {name} {kind}: expected columns among {ours}")
    names = schema.fieldNames()
    if "value" not in names:
        raise InvalidSettingError(f"expected a column value, found {', '.join(names)}")
    if topic is None and "topic" not in names:
        raise InvalidSettingError("expected the option topic or a column topic, found neither")


def batch_name_of(options: Mapping[str, str]) -> str:
    """Return the name of a batch query's batch: the given one, or a unique one."""
    given = {name.lower(): value for name, value in options.items()}.get("batch")
    if given is None:
        return f"spark-{uuid.uuid4()}"
    if _NAME.fullmatch(given) is None:
        raise InvalidSettingError(
            f"option batch: expected up to 180 letters, digits, '.', '_' and '-', found {given!r}"
        )
    return given


def refuse_overwriting(overwrite: bool) -> None:
    """Raise InvalidSettingError if a query asks to overwrite. A log can only be appended to."""
    if overwrite:
        raise InvalidSettingError("mode overwrite (complete): a log can only be appended to")


# -- tasks --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Files:
    """The files that a task writes, one for each topic."""

    inboxes: SinkInboxes
    name: str
    part: int
    paths: dict[str, Path] = field(default_factory=dict)
    sinks: dict[str, Sink] = field(default_factory=dict)

    def add(self, topic: str, rows: pa.RecordBatch) -> None:
        sink = self.sinks.get(topic)
        if sink is None:
            validate_topic(topic)
            directory = self.inboxes.directory(topic, self.name)
            self.paths[topic] = path = directory / f".part-{self.part:05d}-{uuid.uuid4()}{_SUFFIX}"
            with self.inboxes.served():
                sink = self.sinks[topic] = Sink(path.open("xb", buffering=_BUFFER), rows.schema)
        with self.inboxes.served():
            sink.add(rows)

    def close(self) -> None:
        for sink in self.sinks.values():
            with self.inboxes.served():
                sink.close()

    def discard(self) -> None:
        for path in self.paths.values():
            with contextlib.suppress(OSError):
                path.unlink()


def stage(target: WriteTarget, name: str, part: int, batches: Iterator[pa.RecordBatch]) -> Staged:
    """Put a task's rows into inboxes. If that fails, nothing is left there."""
    files = _Files(target.inboxes, name, part)
    try:
        for rows in batches:
            for topic, chosen in _by_topic(rows, target.topic):
                files.add(topic, chosen)
        files.close()
    except BaseException:
        files.discard()
        raise
    return Staged(name, part, {topic: path.name for topic, path in files.paths.items()})


def _by_topic(rows: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each topic, with the columns that are written."""
    import pyarrow.compute as pc  # noqa: PLC0415 - in tasks only

    written = rows.select([name for name in rows.schema.names if name in _TYPES and name != "topic"])
    if topic is not None:
        if rows.num_rows:
            yield topic, written
        return
    topics = rows.column("topic")
    if topics.null_count:
        raise InvalidRecordError("expected a topic in each row, or the option topic, found a null topic")
    for each in topics.unique().to_pylist():
        yield each, written.filter(pc.equal(topics, each))


# -- inboxes ------------------------------------------------------------------------------------------


class Sink:
    """An Arrow file that rows are added to."""

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        import pyarrow as pa  # noqa: PLC0415 - in tasks only

        self.file = file
        self.writer = pa.ipc.new_file(file, schema)

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows, no more at once than an inbox takes."""
        if rows.num_rows > 1 and rows.nbytes > MOST_BYTES:
            half = rows.num_rows // 2
            self.add(rows.slice(0, half))
            self.add(rows.slice(half))
        else:
            self.writer.write_batch(rows)

    def close(self) -> None:
        """Complete the file."""
        self.writer.close()
        self.file.close()


class SinkInboxes(Protocol):
    """The inboxes of a log."""

    def directory(self, topic: str, name: str) -> Path:
        """Return the directory of a batch, and create it if it is missing."""

    def served(self) -> contextlib.AbstractContextManager[None]:
        """Run code that writes there. ClosedError if that needs a daemon that has ended."""

    def commit(self, name: str, files: Mapping[str, Sequence[str]]) -> None:
        """Append each topic's files, in this order: those of all topics, or none."""

    def discard(self, name: str, topic: str, file: str) -> None:
        """Remove a file of a batch that was given up."""


def _ended(mount: Path, error: OSError) -> bool:
    """Return whether an error comes from a daemon that has ended: the mount is dead, or nothing is mounted any more, so
    that no topic is found."""
    return error.errno in ENDED or shown_at(mount) is None


@contextlib.contextmanager
def _served(mount: Path, then: str = "") -> Iterator[None]:
    """Run code that needs the daemon. ClosedError if the daemon has ended."""
    try:
        yield
    except OSError as error:
        if not _ended(mount, error):
            raise
        raise ClosedError(
            f"{mount}: the daemon of this mount has ended ({error.strerror}): mount it, and write again{then}"
        ) from error


class MountedInboxes:
    """The inboxes on a daemon's mount: MOUNT/topics/<topic>/inbox/<batch>/part-00000.arrow, then
    _topics and _SUCCESS in the first topic's."""

    def __init__(self, mount: Path) -> None:
        self.mount = mount

    def directory(self, topic: str, name: str) -> Path:
        """See SinkInboxes."""
        made = self.mount / "topics" / topic / "inbox" / name
        try:
            with _served(self.mount):
                made.mkdir(exist_ok=True)
        except FileNotFoundError:
            raise UnknownPartitionError(
                f"{self.mount}: expected a topic {topic} with an inbox, found none: `topicfs create` makes one; tasks "
                "on other machines need the mount as well"
            ) from None
        return made

    def served(self) -> contextlib.AbstractContextManager[None]:
        """See SinkInboxes."""
        return _served(self.mount)

    def commit(self, name: str, files: Mapping[str, Sequence[str]]) -> None:
        """See SinkInboxes."""
        topics = sorted(files)
        words = f"; whether {name} is appended to {', '.join(topics)} is not known before that"
        with _served(self.mount, words):
            for topic in topics:
                self._put(self.directory(topic, name), files[topic])
            first = self.directory(topics[0], name)
            if len(topics) > 1:
                (first / _TOGETHER).write_text("".join(f"{topic}\n" for topic in topics))
            else:
                # An attempt before this one, which had other rows, may have left it.
                (first / _TOGETHER).unlink(missing_ok=True)
            self._commit(first, topics[0])

    def _put(self, directory: Path, staged: Sequence[str]) -> None:
        # These files are left from a commit that stopped before it was final: its tasks do not count.
        for left in os.listdir(directory):
            if left.startswith("part-"):
                (directory / left).unlink()
        for number, file in enumerate(staged):
            (directory / file).rename(directory / f"part-{number:05d}{_SUFFIX}")

    def _commit(self, directory: Path, topic: str) -> None:
        try:
            (directory / "_SUCCESS").touch()
        except OSError as error:
            if _ended(self.mount, error):
                raise
            raise InvalidRecordError(
                f"{directory}: nothing is appended: {self._reason(topic, error)}"
            ) from error

    def _reason(self, topic: str, error: OSError) -> str:
        """Return the reason in words, as the topic's partitions give it."""
        for status in sorted(self.mount.glob(f"{topic}-*/status.json")):
            if status.parent.name.rpartition("-")[0] != topic:
                continue  # "t-2-0" belongs to the topic "t-2"
            with contextlib.suppress(OSError):
                refusal = json.loads(status.read_bytes())["last_refusal"]
                if refusal is not None:
                    return f"{refusal['reason']} ({error.strerror})"
        return str(error)

    def discard(self, name: str, topic: str, file: str) -> None:
        """See SinkInboxes."""
        directory = self.mount / "topics" / topic / "inbox" / name
        with contextlib.suppress(OSError):
            (directory / file).unlink()
            directory.rmdir()


class ClosedInboxes:
    """The inboxes of a log that no daemon has open: BACKING/staging/<topic>/inbox/<batch>/, see
    `topicfs.engine.inbox`.
    """

    def __init__(self, backing: Path) -> None:
        self.backing = backing

    def directory(self, topic: str, name: str) -> Path:
        """See SinkInboxes."""
        made = self._directory(topic, name)
        made.mkdir(parents=True, exist_ok=True)
        return made

    def _directory(self, topic: str, name: str) -> Path:
        return self.backing / STAGING / topic / INBOX / name

    def served(self) -> contextlib.AbstractContextManager[None]:
        """See SinkInboxes."""
        return contextlib.nullcontext()

    def commit(self, name: str, files: Mapping[str, Sequence[str]]) -> None:
        """See SinkInboxes."""
        from topicfs.engine.spark.closed_commit import commit  # noqa: PLC0415 - loads the engine, on the driver only

        try:
            commit(self.backing, name, files)
        except StoreLockedError as error:
            raise StoreLockedError(
                f"{error}: if it is a daemon, give its mount as path, and not {self.backing}; if it is another job, "
                "write again when that is done"
            ) from None

    def discard(self, name: str, topic: str, file: str) -> None:
        """See SinkInboxes."""
        directory = self._directory(topic, name)
        with contextlib.suppress(OSError):
            (directory / file).unlink()
            directory.rmdir()


def _commit(target: WriteTarget, messages: Sequence[WriterCommitMessage | None]) -> None:
    staged = sorted((each for each in messages if isinstance(each, Staged)), key=lambda each: each.part)
    files: dict[str, list[str]] = {}
    for each in staged:
        for topic, file in each.files.items():
            files.setdefault(topic, []).append(file)
    if files:
        target.inboxes.commit(staged[0].name, files)


def _abort(target: WriteTarget, messages: Sequence[WriterCommitMessage | None]) -> None:
    # Without its daemon an inbox keeps the files until it sweeps. The mount is dead then, or nothing is mounted for a
    # moment. An error here would take the place of the one that ended the query.
    with contextlib.suppress(ClosedError, InvalidNameError):
        for each in messages:
            if isinstance(each, Staged):
                for topic, file in each.files.items():
                    target.inboxes.discard(each.name, topic, file)


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "a task writes"
    return context


# -- Spark's writers ----------------------------------------------------------------------------------


class TopicWriter(DataSourceArrowWriter):
    """The writer of one batch query.

    target  the place where its rows are written
    name    name of its batch
    """

    def __init__(self, target: WriteTarget, name: str) -> None:
        self.target = target
        self.name = name

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a task's rows."""
        return stage(self.target, self.name, _task().partitionId(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append the staged rows."""
        _commit(self.target, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the staged rows."""
        _abort(self.target, messages)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """The writer of one streaming query; see TopicWriter."""

    def __init__(self, target: WriteTarget) -> None:
        self.target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a task's rows, under a name that a retry of the batch uses again."""
        context = _task()
        query = context.getLocalProperty("sql.streaming.queryId")
        number = context.getLocalProperty("streaming.sql.batchId")
        return stage(self.target, f"spark-{query}-{number}", context.partitionId(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Append the staged rows."""
        _commit(self.target, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove the staged rows."""
        _abort(self.target, messages)
