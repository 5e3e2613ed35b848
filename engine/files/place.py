"""Telling stores, log directories and other directories apart, and making a new store.

a store           BACKING: a directory with logs/ in it, which is a log directory or empty
a log directory   the logs/ of a store, or a directory in a broker's log.dirs: partitions, checkpoints, meta.properties
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from topicfs.engine.errors import InvalidNameError, NoStoreError, StoreLockedError
from topicfs.engine.files.atomic import sync_directory
from topicfs.engine.files.lock import DirectoryLock
from topicfs.engine.format.paths import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LAYOUT,
    LOCK,
    LOG_STARTS,
    LOG_SUFFIX,
    LOGS,
    META_PROPERTIES,
    METADATA_LOG,
    RECOVERY_POINTS,
    SERVER_PROPERTIES,
    STAGING,
    TOPICS,
    VIEWS,
    offset_before,
    parse_partition_directory,
)

BESIDE_LOGS: Final = (TOPICS, VIEWS, STAGING)
"""The directories that an opened store has beside logs/."""

_ADOPTION: Final = (
    "With --read-only it is mounted as it stands. To go on with it as a store, stop its broker, make a directory, and "
    "move or copy {} into that as logs"
)

# The files that a store without partitions has in its log directory after it was opened.
_FILES_OF_EMPTY_LOGS: Final = frozenset(
    {
        META_PROPERTIES,
        CLEAN_SHUTDOWN,
        RECOVERY_POINTS,
        LOG_STARTS,
        HIGH_WATERMARKS,
        CLEANER_OFFSETS,
    }
)

# Names that only a log directory of a broker or a store has.
_FILES_OF_LOGS: Final = _FILES_OF_EMPTY_LOGS | {METADATA_LOG}

# A directory that a new file system has from the beginning.
_OF_A_DISK: Final = "lost+found"

# Names that may be in a directory before a store is made there, such as settings.
_BEFORE: Final = frozenset({SERVER_PROPERTIES, TOPICS, _OF_A_DISK})

# Names that may be in logs/ of a store that was never opened, or whose first opening was cut short.
_BEGUN: Final = frozenset({LOCK, _OF_A_DISK})


class DirectoryKind(Enum):
    """The kinds of directories. The values are the words for messages."""

    STORE = "a store"
    LOGS = "a Kafka log directory"
    MISSING = "no such directory"
    EMPTY = "an empty directory"
    FILE = "a file"
    FOREIGN_LOGS = "one with something else than partitions in its logs/"
    FOREIGN = "a directory with something else in it"


def kind_of(path: Path) -> DirectoryKind:
    """Return the kind of the directory at the path."""
    try:
        names = sorted(os.listdir(path))
    except FileNotFoundError:
        return DirectoryKind.MISSING
    except NotADirectoryError:
        return DirectoryKind.FILE
    if (path / LOGS).is_dir():
        # Many programs keep log files in a directory of this name, also Kafka.
        return DirectoryKind.STORE if _may_be_logs(path / LOGS) else DirectoryKind.FOREIGN_LOGS
    if _BEFORE.issuperset(names):
        return DirectoryKind.EMPTY
    return DirectoryKind.LOGS if _has_logs(path, names) else DirectoryKind.FOREIGN


def _may_be_logs(directory: Path) -> bool:
    """Whether this is a log directory, or may become one."""
    try:
        names = os.listdir(directory)
    except PermissionError:
        # Opening it fails with an error that says what is not allowed.
        return True
    return _BEGUN.issuperset(names) or _has_logs(directory, names)


def _has_logs(directory: Path, names: Collection[str]) -> bool:
    return not _FILES_OF_LOGS.isdisjoint(names) or any(_is_partition(directory, name) for name in names)


def _is_partition(directory: Path, name: str) -> bool:
    try:
        parse_partition_directory(name)
        return any(offset_before(LOG_SUFFIX, each) is not None for each in os.listdir(directory / name))
    except (InvalidNameError, NotADirectoryError):
        return False


def stores_in(directory: Path) -> list[Path]:
    """Return the log directories of the stores in a directory, as the daemons of a group have them side by side, in the
    order of their names."""
    found = sorted(each for each in directory.iterdir() if (each / LOGS).is_dir())
    return [each / LOGS for each in found if kind_of(each) is DirectoryKind.STORE]


def refuse_unless_store(path: Path) -> None:
    """Raise NoStoreError where the path is no store. The message says how to make one."""
    kind = kind_of(path)
    if kind is DirectoryKind.STORE:
        return
    expected = f"{path}: expected a store, which has {LOGS}/ in it, found {kind.value}"
    if kind is DirectoryKind.LOGS:
        raise NoStoreError(f"{expected}. {_ADOPTION.format(path)}")
    if kind in (DirectoryKind.MISSING, DirectoryKind.EMPTY):
        raise NoStoreError(
            f"{expected}. `topicfs init {shlex.quote(str(path))}` makes a store there, and so does "
            "`topicfs mount --create`"
        )
    raise NoStoreError(f"{expected}. `topicfs init` makes a store in a new or empty directory")


def refuse_unless_free(path: Path) -> None:
    """Raise NoStoreError where no store can be made at the path."""
    kind = kind_of(path)
    if kind in (DirectoryKind.MISSING, DirectoryKind.EMPTY):
        return
    if kind is DirectoryKind.STORE:
        raise NoStoreError(f"{path}: is a store already")
    expected = f"{path}: expected a new or empty directory, found {kind.value}"
    raise NoStoreError(f"{expected}. {_ADOPTION.format(path)}" if kind is DirectoryKind.LOGS else expected)


@dataclass(frozen=True, slots=True)
class NewStore:
    """A store that was just made.

    path    its directory
    before  the names that were in the directory before
    made    the directories that were made for it, the uppermost first
    """

    path: Path
    before: frozenset[str]
    made: Sequence[Path]

    def take_back(self, files: Collection[str]) -> None:
        """Remove the store, the files that opening it has left in logs/, and these `files` beside it. It stays where
        somebody has it open, or has put something into it."""
        with contextlib.suppress(OSError, StoreLockedError):
            lock = DirectoryLock.acquire(self.path / LOGS)
            try:
                self._remove(files)
            finally:
                lock.release()

    def _remove(self, files: Collection[str]) -> None:
        for name in BESIDE_LOGS:
            if name not in self.before and (self.path / name).exists():
                (self.path / name).rmdir()
        left = set(os.listdir(self.path / LOGS))
        if left <= _FILES_OF_EMPTY_LOGS | {LOCK}:
            for name in left:
                (self.path / LOGS / name).unlink()
            for name in (LAYOUT, *files):
                if name not in self.before:
                    (self.path / name).unlink(missing_ok=True)
            remove_directories(self.made)


def make(path: Path) -> NewStore:
    """Make an empty store. NoStoreError where something else is there. A crash leaves a complete store or none."""
    refuse_unless_free(path)
    before = frozenset(os.listdir(path)) if path.exists() else frozenset()
    made = make_directories(path / LOGS)
    sync_directory(path)
    sync_directory(path.parent)
    return NewStore(path, before, made)


def make_directories(path: Path) -> list[Path]:
    """Make a directory and its missing parents, all or none. Return the ones that were made, the uppermost first."""
    made: list[Path] = []
    missing = [each for each in (*reversed(path.parents), path) if not each.exists()]
    try:
        for each in missing:
            each.mkdir()
            made.append(each)
    except BaseException:
        remove_directories(made)
        raise
    return made


def remove_directories(made: Sequence[Path]) -> None:
    """Remove directories that were made for an operation that has failed, as far as they are empty."""
    with contextlib.suppress(OSError):
        for each in reversed(made):
            each.rmdir()


def logs_in(path: Path) -> Path:
    """Return the log directory for reading: that of a store, or the path itself if it is a log directory. NoStoreError
    where the path is neither."""
    kind = kind_of(path)
    if kind is DirectoryKind.STORE:
        return path / LOGS
    if kind is DirectoryKind.LOGS:
        return path
    raise NoStoreError(f"{path}: expected a store, or a Kafka log directory, found {kind.value}")
