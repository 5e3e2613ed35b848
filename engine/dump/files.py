"""Which files a path stands for, and who shows each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from topicfs.engine.dump.batches import Batches
from topicfs.engine.dump.entries import (
    show_offset_index,
    show_producers,
    show_time_index,
    show_transaction_index,
)
from topicfs.engine.dump.report import Report
from topicfs.engine.dump.texts import show_epochs, show_meta_properties, show_offsets, show_partition_metadata
from topicfs.engine.dump.wanted import Wanted
from topicfs.engine.errors import CorruptError, InvalidNameError
from topicfs.engine.files.regular import open_regular
from topicfs.engine.format.paths import (
    BOOTSTRAP_SNAPSHOT,
    CLEANER_OFFSETS,
    CONTROLLER_SNAPSHOT_SUFFIX,
    HIGH_WATERMARKS,
    INDEX_SUFFIX,
    LEADER_EPOCHS,
    LOG_STARTS,
    LOG_SUFFIX,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    controller_snapshot,
    offset_before,
    parse_partition_directory,
)
from topicfs.engine.unlocked.place import Place, place_of, shown_at

_ENTRIES: Final[dict[str, Callable[[int, Path, Wanted, Report], None]]] = {
    INDEX_SUFFIX: show_offset_index,
    TIME_INDEX_SUFFIX: show_time_index,
    TRANSACTION_INDEX_SUFFIX: show_transaction_index,
    SNAPSHOT_SUFFIX: show_producers,
}
_TEXTS: Final[dict[str, Callable[[Path, Report], None]]] = {
    LEADER_EPOCHS: show_epochs,
    PARTITION_METADATA: show_partition_metadata,
    META_PROPERTIES: show_meta_properties,
    RECOVERY_POINTS: show_offsets,
    HIGH_WATERMARKS: show_offsets,
    LOG_STARTS: show_offsets,
    CLEANER_OFFSETS: show_offsets,
}


def files_of(paths: Iterable[str]) -> Iterator[Path]:
    """Yield the files that are meant: a file; the files of a partition's directory, which may be in a mount; those of
    the partitions whose names follow a store, a mount or a log directory, or its own where none follow.
    InvalidNameError where there are none."""
    place: Place | None = None
    named = 0
    for text in paths:
        path = Path(text)
        if place is not None and _is_partition(text):
            named += 1
            yield from _in(place.logs_of(text) / text)
            continue
        if place is not None and not named:
            yield from _of_all(place)
        place, named = None, 0
        if not path.is_dir():
            yield path
        elif _is_partition(path.resolve().name):
            name = path.resolve().name
            shown = shown_at(path.resolve().parent)
            yield from _in(path if shown is None else shown.logs_of(name) / name)
        else:
            place = place_of(text, or_logs=True)
    if place is not None and not named:
        yield from _of_all(place)


def show(path: Path, wanted: Wanted, report: Report) -> None:
    """Show a file, and tell what is wrong in it."""
    report.line(f"Dumping {path}", "file", file=str(path))
    try:
        descriptor = open_regular(path, os.O_RDONLY, follow=True)
        try:
            _show(descriptor, path, wanted, report)
        finally:
            os.close(descriptor)
    except (CorruptError, InvalidNameError) as error:
        report.problem(path, "", str(error).removeprefix(f"{path}: "))
    except OSError as error:
        if report.is_broken:
            raise
        report.problem(path, "", error.strerror or str(error))
    report.end_file(path)


def _show(descriptor: int, path: Path, wanted: Wanted, report: Report) -> None:
    name, suffix = path.name, path.suffix
    if name in _TEXTS:
        _TEXTS[name](path, report)
    elif suffix in _ENTRIES:
        _ENTRIES[suffix](descriptor, path, wanted, report)
    elif suffix == LOG_SUFFIX:
        base = offset_before(suffix, name)
        if base is not None:
            report.line(f"Log starting offset: {base}", "log", startOffset=base)
        Batches(descriptor, path, wanted, report).show()
    elif suffix == CONTROLLER_SNAPSHOT_SUFFIX:
        found = controller_snapshot(name)
        if found is not None:
            end, epoch = found
            text = f"Snapshot end offset: {end}, epoch: {epoch}"
            report.line(text, "snapshot", endOffset=end, epoch=epoch)
        elif name == BOOTSTRAP_SNAPSHOT:
            report.line("KRaft bootstrap snapshot", "bootstrap")
        Batches(descriptor, path, wanted, report).show()
    else:
        report.problem(path, "", "not shown, as nothing is known of files with this name")


def _is_known(name: str) -> bool:
    suffix = Path(name).suffix
    if name in _TEXTS or suffix == CONTROLLER_SNAPSHOT_SUFFIX:
        return True
    return (suffix == LOG_SUFFIX or suffix in _ENTRIES) and offset_before(suffix, name) is not None


def _is_partition(name: str) -> bool:
    try:
        parse_partition_directory(name)
    except InvalidNameError:
        return False
    return True


def _of_all(place: Place) -> Iterator[Path]:
    for logs in place.log_directories:
        yield from _in(logs)


def _in(directory: Path) -> Iterator[Path]:
    """Yield the files of a directory by rising names."""
    found = sorted(name for name in os.listdir(directory) if _is_known(name))
    if not found:
        raise InvalidNameError(f"path {directory}: expected files of a log, found none")
    yield from (directory / name for name in found)
