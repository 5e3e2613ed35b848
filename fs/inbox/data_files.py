"""Files of lines in an inbox, and the records that they hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.table import Bytes, Ints
from topicfs.engine.errors import RecordTooLargeError
from topicfs.engine.inbox.content import Content
from topicfs.engine.inbox.inbox import Chunk
from topicfs.engine.inbox.routing import NO_PARTITION, choose, first_refused
from topicfs.engine.inbox.staging import Parts, Staging
from topicfs.engine.partition.validate import batch_limit
from topicfs.engine.record import Clock
from topicfs.engine.settings.topic import TopicSettings
from topicfs.fs.appending.targets import LINE_FRAME, LINE_GROWTH
from topicfs.fs.errors import BadInputError
from topicfs.fs.formats import FORMATS, Format
from topicfs.fs.inbox.paths import PART, PathKind, job_of, kind_of, partition_of

_NEWLINE: Final = 10
_SUFFIXES: Final = {**FORMATS, "json": Format.JSONL}


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of records.

    parts      the path in the inbox
    name       the name in messages
    format     the format of the lines
    zipped     whether it is compressed by gzip
    partition  the partition of all records that name none; NO_PARTITION if they are routed
    """

    parts: Parts
    name: str
    format: Format
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
        fmt = _SUFFIXES.get(suffix)
        if fmt is None or not dot:
            raise BadInputError(
                f"{'/'.join(named)}: expected a name that ends in .txt, .tsv, .jsonl or .json, or these and .gz: an "
                "inbox takes lines, from Spark those of its formats text and json"
            )
        partition = partition_of(named[1]) if len(named) == 3 else None
        return cls(parts, "/".join(named), fmt, zipped, NO_PARTITION if partition is None else partition)

    @property
    def kind(self) -> str:
        """Return a key that is the same for files in which equal lines mean the same."""
        return f"{self.format.suffix}:{self.partition}"

    @property
    def order(self) -> tuple[object, ...]:
        """Return the sort key: Spark's files by the numbers of their part and file, then all others by name."""
        found = PART.fullmatch(self.parts[-1])
        if found is None:
            return 1, 0, 0, self.parts
        return 0, int(found["part"]), int(found["file"] or 0), self.parts


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
    """

    settings: TopicSettings
    numbers: list[int]
    turns: Iterator[int]
    clock: Clock


def chunks(
    staging: Staging, files: Iterable[DataFile], topic: Topic, content: Content | None = None
) -> Iterator[Chunk]:
    """Read all records, in order, with the partition of each. An error names the file and the line. The lines are added
    to `content`."""
    for file in files:
        passed = 0
        for lines in _whole_lines(staging, file, topic):
            if content is not None:
                content.add(lines, file.kind)
            try:
                yield from _routed(lines, file, topic)
            except _LineError as error:
                raise error.at(file.name, passed) from None
            passed += int(np.count_nonzero(lines == _NEWLINE))


def content_of(staging: Staging, files: Iterable[DataFile], topic: Topic) -> Content:
    """Read what the files hold, whether it could be appended or not."""
    content = Content()
    for file in files:
        for lines in _whole_lines(staging, file, topic):
            content.add(lines, file.kind)
    return content


class _LineError(Exception):
    """A record is refused: the number of its line, from 0 on, and the reason."""

    def __init__(self, line: int, reason: Exception) -> None:
        super().__init__(line, reason)
        self.line = line
        self.reason = reason

    def at(self, file: str, passed: int) -> Exception:
        """Return an error of the same kind that names the file and the line."""
        kind = RecordTooLargeError if isinstance(self.reason, RecordTooLargeError) else BadInputError
        return kind(f"{file}: line {passed + self.line + 1}: {self.reason}")


def _whole_lines(staging: Staging, file: DataFile, topic: Topic) -> Iterator[Bytes]:
    """Read a file's lines, some at a time. The last line gets a newline if it has none in the file."""
    limit = LINE_GROWTH * batch_limit(topic.settings)
    rest: list[Bytes] = []
    last: Bytes | None = None
    for block in staging.blocks(file.parts, file.zipped):
        if last is not None:
            end = _behind_last(last)
            if end:
                yield np.concatenate([*rest, last[:end]])
                rest = []
            rest.append(last[end:])
            if sum(part.size for part in rest) > limit + LINE_FRAME:
                raise RecordTooLargeError(f"{file.name}: a line goes beyond {limit + LINE_FRAME} bytes")
        last = block
    if last is not None:
        newline = last[:0] if last[-1] == _NEWLINE else np.full(1, _NEWLINE, np.uint8)
        yield np.concatenate([*rest, last, newline])


def _behind_last(block: Bytes) -> int:
    """Return the position behind the last newline, or 0 if there is none."""
    found = np.flatnonzero(block == _NEWLINE)
    return int(found[-1]) + 1 if found.size else 0


def _routed(lines: Bytes, file: DataFile, topic: Topic) -> Iterator[Chunk]:
    now = topic.clock()
    parsed = file.format.parse(lines, now)
    columns = parsed.columns
    refused, refusal = first_refused(columns, topic.settings, now)
    if refusal is not None:
        raise _LineError(refused, refusal)
    if parsed.error is not None:
        raise _LineError(
            parsed.error.line - 1, BadInputError(f"byte {parsed.error.position}: {parsed.error.reason}")
        )
    named = parsed.partitions
    if file.partition != NO_PARTITION:
        named = np.where(named == NO_PARTITION, np.int32(file.partition), named)
    keyless = topic.numbers[next(topic.turns) % len(topic.numbers)]
    chosen, known, unknown = choose(columns, named, topic.numbers, keyless)
    if unknown is not None:
        raise _LineError(known, unknown)
    yield from _by_partition(columns, chosen)


def _by_partition(columns: Columns, chosen: Ints) -> Iterator[Chunk]:
    present = np.unique(chosen).tolist()
    for number in present:
        if len(present) == 1:
            yield number, columns
        else:
            yield number, columns.take(np.flatnonzero(chosen == number))
