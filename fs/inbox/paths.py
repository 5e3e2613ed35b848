"""What an entry of an inbox is, by its name: scratch, a batch of files, or a file.

    .x  _x                      scratch, with all below it: only the program that made it looks at it
    _temporary/…                scratch of a Spark job: names of data files are checked, so that it fails early
    x.jsonl                     a file that is appended as it is renamed to this name
    q1-7/                       a batch: all its files are appended when `_SUCCESS` is made in it
    q1-7/part-00000-…-c000.txt  data of the batch
    q1-7/partition=3/x.txt      data of the batch, for one partition: what partitionBy("partition") makes
    q1-7/_topics                scratch, save that `_SUCCESS` commits the batch together with those of its name in the
                                inboxes of the topics in it, a line each

The names `_temporary`, `_SUCCESS` and `_spark_metadata` have a meaning on two levels: in the inbox itself, and in a
batch.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

from topicfs.engine.record import MAX_INT32
from topicfs.engine.staging.staging import HIDDEN, Parts

TEMPORARY: Final = "_temporary"
SUCCESS: Final = "_SUCCESS"
MANIFEST: Final = "_spark_metadata"
TOPICS: Final = "_topics"
LONGEST: Final = 200
"""Bytes of the name of a batch or a file, at most. It leaves room for the names that are derived from it."""

PART: Final = re.compile(
    r"part-(?P<part>\d{1,9})(?:-(?P<job>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}))?(?:-c(?P<file>\d{1,9}))?\..*",
    re.DOTALL,
)
_PARTITION: Final = re.compile(r"partition=(\d{1,10})")


class PathKind(Enum):
    """What a name in an inbox stands for."""

    SCRATCH = auto()
    WORK = auto()
    SUCCESS = auto()
    MANIFEST = auto()
    TOP = auto()
    DATA = auto()


def kind_of(parts: Parts) -> PathKind:
    """Return what a path stands for. TOP is the directory of a batch, or a file beside such directories."""
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
    """Tell whether Spark does not count a file of this name as data."""
    return name.startswith(HIDDEN)


def batch_of(parts: Parts) -> Parts:
    """Return the directory of the job that writes this path under `_temporary`: a batch's, or the inbox itself."""
    return parts[: parts.index(TEMPORARY)]


def job_of(name: str) -> str | None:
    """Return the id of the job in a file name that Spark gave; None if there is none."""
    found = PART.fullmatch(name)
    return None if found is None else found["job"]


def partition_of(name: str) -> int | None:
    """Return the partition that a directory's name gives; None if it gives none."""
    found = _PARTITION.fullmatch(name)
    number = None if found is None else int(found[1])
    return number if number is None or number <= MAX_INT32 else None
