"""The check of what topicfs keeps beside the logs: what is staged, ids of topics, deletions, keys, Parquet tables."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from topicfs.engine.errors import CorruptError, EngineError
from topicfs.engine.files.atomic import read_bounded
from topicfs.engine.files.metadata import parse_uuid
from topicfs.engine.format.paths import (
    COMMITTED,
    CREATED_TOPICS,
    DELETED,
    DELETION_RECORD,
    JOURNAL,
    KEYS_CHECKPOINT,
    LINKED_TOPICS,
    PARQUET_LIST,
    PARQUET_SUFFIX,
    PRODUCERS,
    STAGING,
    TRANSACTIONS,
    UNDECIDED,
    log_file,
    made_of,
)
from topicfs.engine.inbox.committed_names import is_written
from topicfs.engine.inbox.joint_journal import JointJournal, journals
from topicfs.engine.inbox.journal import Journal
from topicfs.engine.keys.checkpoint import decode
from topicfs.engine.keys.index import MOST_BYTES
from topicfs.engine.linked.topics import LinkedTopics
from topicfs.engine.parquet.table import TableFile, listed_in
from topicfs.engine.store.deletion import Deletion
from topicfs.engine.verify.batches import Gathered
from topicfs.engine.verify.finding import Finding, Kind, Severity
from topicfs.engine.verify.partition import PartitionReport
from topicfs.engine.verify.segment import SegmentReport

_MOST_BYTES: Final = 64 << 20
_OTHER_ROWS: Final = (
    "queries of the table give other rows than the log has; remove the file, and it is made anew"
)
_MADE_ANEW: Final = "no record is lost; the table's files are made anew"


def _finding(
    severity: Severity, kind: Kind, path: Path, at: str, expected: str, found: str, effect: str
) -> Finding:
    return Finding(severity, kind, path, at, expected, found, effect)


def store(backing: Path) -> Iterator[Finding]:
    """Check the files of a store that belong to no partition."""
    yield from _created(backing / CREATED_TOPICS)
    yield from _linked(backing)
    for topic in _directories(backing / STAGING):
        yield from _journal(Journal(topic / JOURNAL))
        yield from _committed(topic / COMMITTED)
    for journal in journals(backing):
        yield from _journal(journal)
    for kind in (TRANSACTIONS, PRODUCERS):
        yield from _staged(backing / kind / UNDECIDED)
    for place in _directories(backing / DELETED):
        yield from _deletion(place)


def _directories(path: Path) -> list[Path]:
    try:
        return sorted(each for each in path.iterdir() if each.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _created(path: Path) -> Iterator[Finding]:
    try:
        text = read_bounded(path, _MOST_BYTES).decode("ascii", "replace")
        # A last line without its end was being written in a crash: its topic was not made, and the next id replaces it.
        lines = text.rpartition("\n")[0].splitlines()
    except FileNotFoundError:
        return
    except (CorruptError, RecursionError, OSError) as error:
        lines, effect = [], "topics count as not made here, and their records are kept for ever"
        yield _finding(
            Severity.REPAIRABLE, Kind.CREATED_TOPICS, path, "", "the ids of topics", str(error), effect
        )
    for number, line in enumerate(lines, start=1):
        if line.strip() and parse_uuid(line.strip()) is None:
            effect = "a topic may count as not made here, and its records are kept for ever"
            yield _finding(
                Severity.NOTE,
                Kind.CREATED_TOPICS,
                path,
                f"line {number}",
                "the id of a topic",
                repr(line[:80]),
                effect,
            )


def _linked(backing: Path) -> Iterator[Finding]:
    try:
        LinkedTopics.load(backing)
    except (CorruptError, OSError) as error:
        effect = "the store cannot be opened; without the file its linked topics are ordinary ones"
        path = backing / LINKED_TOPICS
        yield _finding(Severity.DAMAGE, Kind.LINKED_TOPICS, path, "", "the linked topics", str(error), effect)


def _journal(journal: Journal | JointJournal) -> Iterator[Finding]:
    try:
        journal.read()
    except (CorruptError, RecursionError, OSError) as error:
        effect = "nobody can tell whether the commit that was under way took place; the inbox refuses others"
        yield _finding(
            Severity.DAMAGE, Kind.STAGING, journal.path, "", "a commit under way", str(error), effect
        )


def _committed(path: Path) -> Iterator[Finding]:
    try:
        lines = read_bounded(path, _MOST_BYTES).split(b"\n")
    except FileNotFoundError:
        return
    except (CorruptError, RecursionError, OSError) as error:
        effect = "a batch that was committed before may be appended again"
        yield _finding(
            Severity.DAMAGE, Kind.STAGING, path, "", "the names of committed batches", str(error), effect
        )
        return
    for number, line in enumerate(lines[:-1], start=1):
        if not is_written(line):
            effect = "if the batch of this line comes again, it is appended again"
            yield _finding(
                Severity.DAMAGE,
                Kind.STAGING,
                path,
                f"line {number}",
                "the name of a batch",
                repr(line[:80]),
                effect,
            )
    if lines[-1]:
        effect = "nothing is lost; the commit is noted beside, and its name is added again"
        yield _finding(Severity.NOTE, Kind.STAGING, path, "", "whole lines", "one without its end", effect)


def _staged(directory: Path) -> Iterator[Finding]:
    """Check the files that wait to be appended, of a transaction or a named producer: what else lies there stops it."""
    try:
        entries = sorted(directory.rglob("*"))
    except OSError as error:
        effect = "what waits there cannot be committed"
        yield _finding(Severity.DAMAGE, Kind.STAGING, directory, "", "a directory", str(error), effect)
        return
    for path in entries:
        with contextlib.suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                effect = "it is not followed or read, and what it lies in cannot be committed: remove it"
                expected, found = "a file or a directory", stat.filemode(mode)
                yield _finding(Severity.NOTE, Kind.STAGING, path, "", expected, found, effect)


def keys(views: Path | None) -> Iterator[Finding]:
    """Check the checkpoint of a partition's keys."""
    if views is None:
        return
    path = views / KEYS_CHECKPOINT
    effect = "no key is lost; the index of keys is made anew, of the whole log"
    try:
        is_whole = decode(read_bounded(path, MOST_BYTES)) is not None
    except FileNotFoundError:
        return
    except (CorruptError, OSError, ValueError, struct.error) as error:
        yield _finding(Severity.REPAIRABLE, Kind.KEYS, path, "", "a table of keys", str(error), effect)
        return
    if not is_whole:
        found = "another head or checksum"
        yield _finding(Severity.REPAIRABLE, Kind.KEYS, path, "", "a table of keys", found, effect)


def _deletion(place: Path) -> Iterator[Finding]:
    path = place / DELETION_RECORD
    try:
        Deletion.from_json(place.name, read_bounded(path, _MOST_BYTES))
    except FileNotFoundError:
        return  # it was being made, or removed
    except (CorruptError, RecursionError, OSError) as error:
        effect = "this deletion cannot be taken back"
        yield _finding(
            Severity.DAMAGE, Kind.DELETION, path, "", "the record of a deletion", str(error), effect
        )


# -- Parquet ------------------------------------------------------------------------------------------


def table(report: PartitionReport, segments: Sequence[SegmentReport]) -> Iterator[Finding]:
    """Check the Parquet files of a partition's table: those that were made from the segments as they are now."""
    views = report.piece.views
    if views is None or not (views / PARQUET_LIST).exists():
        return
    path = views / PARQUET_LIST
    try:
        json.loads(read_bounded(path, _MOST_BYTES))["files"]
        present = listed_in(views)
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError, RecursionError, CorruptError, OSError) as error:
        yield _finding(
            Severity.REPAIRABLE, Kind.PARQUET, path, "", "the list of a table", repr(error), _MADE_ANEW
        )
        return
    if present.topic_id != report.topic_id:
        return  # the table of an earlier topic of this name, which nobody is shown
    # Compaction and retention remove files; the first segment may begin with records below the start offset.
    known = {each.piece.base: each.gathered for each in segments[1:] if _all_visible(each.gathered)}
    reader = _reader()
    for file in present.files:
        if not _is_current(report.piece.directory, file):
            continue
        yield from _table_file(views / file.name, file, reader)
        gathered = known.get(file.base_offset)
        if gathered is not None and gathered.records != file.records:
            yield _finding(
                Severity.DAMAGE,
                Kind.PARQUET,
                path,
                file.name,
                f"{gathered.records} records, as the segment has",
                str(file.records),
                _OTHER_ROWS,
            )


def _all_visible(gathered: Gathered) -> bool:
    """Whether readers get all records of a segment: it is undamaged, and no transaction may have been aborted in it."""
    return (
        gathered.is_end_known
        and gathered.producers is not None
        and not any(batch.is_transactional for batch, _ in gathered.producers)
    )


def _reader() -> Callable[[Path], tuple[int, int, int]] | None:
    """Return what reads the footer of a Parquet file; None where the packages for it are not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        return None
    from topicfs.engine.parquet.footer import rows_in  # noqa: PLC0415 - needs pyarrow

    return rows_in


def _is_current(directory: Path, file: TableFile) -> bool:
    try:
        status = os.stat(directory / log_file(file.base_offset))
    except (OSError, EngineError):
        return False
    return made_of(file.base_offset, status, PARQUET_SUFFIX) == file.name


def _table_file(
    path: Path, file: TableFile, reader: Callable[[Path], tuple[int, int, int]] | None
) -> Iterator[Finding]:
    if not file.records:
        return
    try:
        size = path.stat().st_size
        if size != file.size:
            yield _finding(
                Severity.REPAIRABLE, Kind.PARQUET, path, "", f"{file.size} bytes", str(size), _MADE_ANEW
            )
        elif reader is not None:
            rows, first, last = reader(path)
            if rows != file.records or first < file.base_offset or last >= file.next_offset:
                yield _finding(
                    Severity.DAMAGE,
                    Kind.PARQUET,
                    path,
                    "",
                    f"{file.records} rows with offsets from {file.base_offset} to {file.next_offset - 1}",
                    f"{rows} rows from {first} to {last}",
                    _OTHER_ROWS,
                )
    except FileNotFoundError:
        if path.parent.exists():
            yield _finding(Severity.REPAIRABLE, Kind.PARQUET, path, "", "a file", "none", _MADE_ANEW)
    except (OSError, ValueError) as error:
        yield _finding(Severity.REPAIRABLE, Kind.PARQUET, path, "", "a Parquet file", str(error), _MADE_ANEW)
