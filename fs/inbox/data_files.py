"""Files of lines or columns in an inbox, and the records that they hold."""

from __future__ import annotations

import importlib.util
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import InvalidRecordError, RecordTooLargeError
from topicfs.engine.inbox.content import Content
from topicfs.engine.inbox.inbox import Chunk
from topicfs.engine.inbox.routing import by_partition, choose
from topicfs.engine.inbox.rows import NO_PARTITION, UNDATED, Rows
from topicfs.engine.partition.validate import batch_limit, first_refused
from topicfs.engine.record import Clock
from topicfs.engine.settings.topic import TopicSettings
from topicfs.engine.staging.staging import Parts, Staging
from topicfs.engine.store.store import Store
from topicfs.fs.appending.targets import LINE_FRAME, LINE_GROWTH
from topicfs.fs.errors import BadInputError, NotSupportedError
from topicfs.fs.formats import FORMATS, Format, InputError
from topicfs.fs.inbox.claims import Claims, Writing
from topicfs.fs.inbox.paths import PART, PathKind, job_of, kind_of, partition_of

_NEWLINE: Final = 10


class ColumnFormat(StrEnum):
    """A format of columns, by the suffix of its files."""

    ARROW = "arrow"
    PARQUET = "parquet"


_LINES: Final = {**FORMATS, "json": Format.JSONL}
_ALL: Final[dict[str, Format | ColumnFormat]] = {**_LINES, **{each.value: each for each in ColumnFormat}}


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of records.

    parts      the path in the inbox
    name       the name in messages
    format     the format of its lines or columns
    zipped     whether it is compressed by gzip, as lines may be
    partition  the partition of all records that name none; NO_PARTITION if they are routed
    """

    parts: Parts
    name: str
    format: Format | ColumnFormat
    zipped: bool
    partition: int

    @classmethod
    def of(cls, parts: Parts, named: Parts | None = None) -> DataFile:
        """Make it from a path, or from the path that it is to have. BadInputError if that is no name of records."""
        named = parts if named is None else named
        name = named[-1]
        stem, dot, suffix = name.rpartition(".")
        zipped = dot == "." and suffix == "gz"
        if zipped:
            suffix = stem.rpartition(".")[2]
        fmt = _LINES.get(suffix) if zipped else _ALL.get(suffix)
        if fmt is None or not dot:
            raise BadInputError(
                f"{'/'.join(named)}: expected a name that ends in .txt, .tsv, .jsonl or .json, or these and .gz, or in "
                ".arrow or .parquet: an inbox takes lines and columns, from Spark those of its formats text, json and "
                "parquet"
            )
        if isinstance(fmt, ColumnFormat) and importlib.util.find_spec("pyarrow") is None:
            raise BadInputError(f"{'/'.join(named)}: .{fmt} files need pyarrow: pip install 'topicfs[spark]'")
        partition = partition_of(named[1]) if len(named) == 3 else None
        return cls(parts, "/".join(named), fmt, zipped, NO_PARTITION if partition is None else partition)

    @property
    def order(self) -> tuple[object, ...]:
        """Return the sort key: Spark's files by the numbers of their part and file, then all others by name."""
        found = PART.fullmatch(self.parts[-1])
        if found is None:
            return 1, 0, 0, self.parts
        return 0, int(found["part"]), int(found["file"] or 0), self.parts


def check_closed(staging: Staging, claims: Claims, files: Iterable[DataFile], own: Writing | None) -> None:
    """Refuse what is no regular file, and what is still being written by others than `own`."""
    for file in files:
        check_one_closed(staging, claims, file.parts, file.name, own)


def check_one_closed(staging: Staging, claims: Claims, parts: Parts, name: str, own: Writing | None) -> None:
    """Refuse one file as `check_closed` does."""
    status = staging.status(parts)
    if not stat.S_ISREG(status.st_mode):
        raise NotSupportedError(f"{name}: expected a regular file; nothing is appended")
    claims.await_closed((status.st_dev, status.st_ino), own, name)


def data_files(staging: Staging, batch: Parts) -> list[DataFile]:
    """Return the files of a batch's directory, or those that jobs have put into the inbox itself, in the order in which
    they are appended."""
    if batch:
        found = [parts for parts in staging.files(batch) if kind_of(parts) is PathKind.DATA]
    else:
        found = [(name,) for name in staging.names(()) if _is_of_a_job(staging, (name,))]
    return sorted(map(DataFile.of, found), key=lambda file: file.order)


def _is_of_a_job(staging: Staging, parts: Parts) -> bool:
    return job_of(parts[-1]) is not None and not staging.is_directory(parts)


# -- records ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Topic:
    """What the records of a file are checked and routed by.

    settings  the topic's settings
    numbers   the numbers of its partitions, in order
    turns     a counter that says which partition is next for records without a key
    clock     gives the time
    count     how many partitions the cluster has of which some are here; None where keys go to those that are here
    """

    settings: TopicSettings
    numbers: list[int]
    turns: Iterator[int]
    clock: Clock
    count: int | None = None

    @classmethod
    def of(cls, store: Store, topic: str, turns: Iterator[int]) -> Topic:
        """Return what a topic of a store is now; where a group of daemons divides it, once it has."""
        store.links.await_division(topic)
        numbers, count = store.links.targets(topic)
        return cls(store.topic_settings(topic), numbers, turns, store.clock, count)


def chunks(
    staging: Staging, files: Iterable[DataFile], topic: Topic, content: Content | None = None
) -> Iterator[Chunk]:
    """Read all records, in order, with the partition of each. An error names the file and the line or row. The records
    are added to `content`."""
    for file in files:
        passed = 0
        for rows, error in _rows(staging, file, topic):
            try:
                routed = _routed(rows, topic)
            except _RefusedError as refused:
                raise _told(file, passed + refused.record, refused.reason) from None
            if content is not None:
                # Behind the check: records that are too large may all point to one value of a dictionary.
                content.add(rows)
            yield from routed
            passed += len(rows)
            if error is not None:
                raise _told(file, passed, BadInputError(f"byte {error.position}: {error.reason}"))


def content_of(staging: Staging, files: Iterable[DataFile], topic: Topic) -> Content:
    """Read what the files hold, whether the topic would take it or not."""
    content, passed = Content(), 0
    for file in files:
        for rows, error in _rows(staging, file, topic):
            content.add(rows)
            passed += len(rows)
            if error is not None:
                raise _told(file, passed, BadInputError(f"byte {error.position}: {error.reason}"))
    return content


def is_whole(staging: Staging, file: DataFile) -> bool:
    """Tell whether a file says by its end that all of it has come. Lines do not."""
    if not isinstance(file.format, ColumnFormat):
        return False
    from topicfs.engine.column_files import files  # noqa: PLC0415 - pyarrow, which an extra brings

    with staging.reading(file.parts) as (opened, size):
        return files.is_whole(file.format, opened, size)


class _RefusedError(Exception):
    """A record is refused: its number, from 0 on, and the reason."""

    def __init__(self, record: int, reason: Exception) -> None:
        super().__init__(record, reason)
        self.record = record
        self.reason = reason


def _told(file: DataFile, record: int, reason: Exception) -> Exception:
    """Return an error of the same kind that names the file and the line or row. Records are numbered from 0 on."""
    kind = RecordTooLargeError if isinstance(reason, RecordTooLargeError) else BadInputError
    return kind(f"{file.name}: {'line' if isinstance(file.format, Format) else 'row'} {record + 1}: {reason}")


def _rows(staging: Staging, file: DataFile, topic: Topic) -> Iterator[tuple[Rows, InputError | None]]:
    """Read a file's records, some at a time, and what is wrong behind them. Those that name no partition are for the
    one of the file."""
    found = _of_lines if isinstance(file.format, Format) else _of_columns
    for rows, error in found(staging, file, topic):
        yield rows if file.partition == NO_PARTITION else rows.sent_to(file.partition), error


def _of_columns(staging: Staging, file: DataFile, _: Topic) -> Iterator[tuple[Rows, None]]:
    from topicfs.engine.column_files import files  # noqa: PLC0415 - pyarrow, which takes 0.3 s and 60 MB

    assert isinstance(file.format, ColumnFormat)
    with staging.reading(file.parts) as (opened, size):
        try:
            for rows in files.rows_in(file.format, opened, size):
                yield rows, None
        except InvalidRecordError as error:
            raise BadInputError(f"{file.name}: {error}") from None


def _of_lines(staging: Staging, file: DataFile, topic: Topic) -> Iterator[tuple[Rows, InputError | None]]:
    assert isinstance(file.format, Format)
    blocks = staging.blocks(file.parts, file.zipped)
    for lines in whole_lines(blocks, LINE_GROWTH * batch_limit(topic.settings) + LINE_FRAME, file.name):
        parsed = file.format.parse(lines, UNDATED)
        yield Rows(parsed.columns, parsed.partitions), parsed.error


def whole_lines(blocks: Iterable[Bytes], most: int, name: str) -> Iterator[Bytes]:
    """Yield the lines of a file's blocks, some at a time. The last line gets a newline if it has none in the file.
    RecordTooLargeError if one has more than `most` bytes."""
    rest: list[Bytes] = []
    last: Bytes | None = None
    for block in blocks:
        if last is not None:
            end = _behind_last(last)
            if end:
                yield np.concatenate([*rest, last[:end]])
                rest = []
            rest.append(last[end:])
            if sum(part.size for part in rest) > most:
                raise RecordTooLargeError(f"{name}: a line goes beyond {most} bytes")
        last = block
    if last is not None:
        newline = last[:0] if last[-1] == _NEWLINE else np.full(1, _NEWLINE, np.uint8)
        yield np.concatenate([*rest, last, newline])


def _behind_last(block: Bytes) -> int:
    """Return the position behind the last newline, or 0 if there is none."""
    found = np.flatnonzero(block == _NEWLINE)
    return int(found[-1]) + 1 if found.size else 0


def _routed(rows: Rows, topic: Topic) -> Iterator[Chunk]:
    """Return the records of each partition, if the topic takes all of them."""
    now = topic.clock()
    columns = rows.dated(now)
    refused, refusal = first_refused(columns, topic.settings, now)
    if refusal is not None:
        raise _RefusedError(refused, refusal)
    keyless = topic.numbers[next(topic.turns) % len(topic.numbers)]
    chosen, known, unknown = choose(columns, rows.partitions, topic.numbers, keyless, topic.count)
    if unknown is not None:
        raise _RefusedError(known, unknown)
    return by_partition(columns, chosen)
