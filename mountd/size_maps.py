"""The check of the size maps in BACKING/views, for `topicfs verify`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from topicfs.engine.errors import EngineError, InvalidNameError
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.format.paths import (
    LOGS,
    MAP_SUFFIX,
    VIEWS,
    log_file,
    offset_of_file,
    parse_partition_directory,
)
from topicfs.engine.kernels.scan import BASE_OFFSET
from topicfs.engine.segment.batch_file import BatchFile
from topicfs.engine.segment.descriptors import Descriptors, PinnedFile
from topicfs.engine.unlocked.files import listed
from topicfs.engine.verify.finding import Finding, Kind, Severity
from topicfs.fs.views.size_map_check import problem
from topicfs.mountd.view_cache import DirectoryViewCache

_EFFECT: Final = "no record is lost; remove the file, and it is made anew"


def check(backing: Path, wanted: Callable[[PartitionKey], bool]) -> Iterator[Finding]:
    """Yield what is wrong with the maps of wanted partitions. Those of segments that are gone are not used."""
    views = backing / VIEWS
    for directory in sorted(views.iterdir()) if views.is_dir() else ():
        try:
            topic, number, suffix = parse_partition_directory(directory.name)
        except InvalidNameError:
            continue
        if not suffix and wanted((topic, number)):
            for path in sorted(directory.glob(f"*{MAP_SUFFIX}")):
                found = _problem(backing / LOGS / directory.name, views, path)
                if found is not None:
                    yield Finding(
                        Severity.REPAIRABLE, Kind.SIZE_MAP, path, "", "a map of the segment", found, _EFFECT
                    )


def _problem(partition: Path, views: Path, path: Path) -> str | None:
    try:
        base = offset_of_file(path.name)
        bases = listed(partition).bases
        log = partition / log_file(base)
        status = os.stat(log)
        # A map describes a sealed segment: that of the last one is not used.
        if base not in bases[:-1]:
            return None
        data = DirectoryViewCache(views).load(path.parent.name, path.name)
        file = BatchFile(PinnedFile(str(log), Descriptors()), base)
        try:
            identity = status.st_size, status.st_mtime_ns, status.st_ino
            end = bases[bases.index(base) + 1]
            return None if data is None else problem(data, identity, end, partial(_base_at, file))
        finally:
            file.file.release()
    except (FileNotFoundError, EngineError):
        return None  # the segment went, or is damaged itself
    except OSError as error:
        return str(error)


def _base_at(file: BatchFile, position: int) -> int | None:
    try:
        return file.header_at(position)[BASE_OFFSET]
    except (EngineError, ValueError):
        return None
