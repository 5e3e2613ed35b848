"""What lies in an inbox, by its name: scratch, a batch of files, or a file.

    .x  _x                      scratch, and all below it: nobody looks at it but who made it
    _temporary/…                scratch of a Spark job: its names of data are looked at, so that it fails early
    x.jsonl                     a file that is appended as it is renamed here
    q1-7/                       a batch: all its files are appended when `_SUCCESS` is made in it
    q1-7/part-00000-…-c000.txt  data of the batch
    q1-7/partition=3/x.txt      data of the batch, for one partition: what partitionBy("partition") makes

Two levels know the names `_temporary`, `_SUCCESS` and `_spark_metadata`: the inbox itself, and a batch.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

from topicfs.engine.inbox.staging import Parts
from topicfs.engine.record import MAX_INT32

TEMPORARY: Final = "_temporary"
SUCCESS: Final = "_SUCCESS"
MANIFEST: Final = "_spark_metadata"
LONGEST: Final = 200
"""Bytes of a batch's or file's name: as much as leaves room for what is made of it."""

PART: Final = re.compile(
    r"part-(?P<part>\d{1,9})(?:-(?P<job>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}))?(?:-c(?P<file>\d{1,9}))?\..*",
    re.DOTALL,
)
_PARTITION: Final = re.compile(r"partition=(\d{1,10})")


class PathKind(Enum):
    """What a name in an inbox is."""

    SCRATCH = auto()
    WORK = auto()
    SUCCESS = auto()
    MANIFEST = auto()
    TOP = auto()
    DATA = auto()


def kind_of(parts: Parts) -> PathKind:
    """What the name of a path is; TOP is a batch's directory, or a file beside those."""
    for depth, name in enumerate(parts):
        if name == MANIFEST and depth <= 1:
            return PathKind.MANIFEST
        if name == TEMPORARY and depth <= 1:
            return PathKind.WORK
        if name == SUCCESS and depth == len(parts) - 1 <= 1:
            return PathKind.SUCCESS
        if is_hidden(name):
            return PathKind.SCRATCH
    return PathKind.TOP if len(parts) == 1 else PathKind.DATA


def is_hidden(name: str) -> bool:
    """Whether Spark takes it for no data."""
    return name.startswith((".", "_"))


def batch_of(parts: Parts) -> Parts:
    """The directory of the job that writes this path under `_temporary`: a batch's, or the inbox itself."""
    return parts[: parts.index(TEMPORARY)]


def job_of(name: str) -> str | None:
    """The job that Spark's name of a file tells."""
    found = PART.fullmatch(name)
    return None if found is None else found["job"]


def partition_of(name: str) -> int | None:
    """The partition that a directory's name tells."""
    found = _PARTITION.fullmatch(name)
    number = None if found is None else int(found[1])
    return number if number is None or number <= MAX_INT32 else None
