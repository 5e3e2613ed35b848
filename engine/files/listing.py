"""Listing a log directory by the names in it. No file is opened.

<topic>-<partition>                a partition
<topic>-<partition>.<uuid>-delete  a deleted partition, which is to be removed
<topic>-<partition>.<uuid>-stray   a partition that a broker set aside: kept, not used
<topic>-<partition>.<uuid>-future  a partition that a broker was moving here from another disk: kept, not used
__cluster_metadata-0               a controller's log: no partition of a store, and shown where nothing is written
remote-log-index-cache             a directory of a broker, which is ignored
any other directory                refused, as a broker would refuse to start with it
plain files                        files of the log directory itself, or unknown ones, which are ignored
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from topicfs.engine.errors import InvalidNameError
from topicfs.engine.format.paths import (
    DELETE_SUFFIX,
    LOG_SUFFIX,
    METADATA_LOG,
    NOT_PARTITIONS,
    offset_before,
    parse_partition_directory,
)

PartitionKey = tuple[str, int]
"""The topic and the number of a partition."""

METADATA_PARTITION: Final[PartitionKey] = ("__cluster_metadata", 0)
"""The controller's log, by the name of its directory."""


@dataclass(slots=True)
class Listing:
    """The directories in a log directory.

    partitions  the live partitions
    controller  the controller's log, if it is there
    condemned   the directories that wait for their removal
    strays      the names of directories that are kept and not used
    """

    partitions: list[PartitionKey] = field(default_factory=list)
    controller: list[PartitionKey] = field(default_factory=list)
    condemned: list[Path] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)

    @property
    def shown(self) -> list[PartitionKey]:
        """Return what a read-only store shows."""
        return self.partitions + self.controller

    @classmethod
    def of(cls, directory: Path) -> Listing:
        """List the directory; InvalidNameError where a directory in it has any other name."""
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
        listing = cls()
        for name in names:
            if name == METADATA_LOG:
                listing.controller.append(METADATA_PARTITION)
            if name in NOT_PARTITIONS:
                continue
            try:
                topic, number, suffix = parse_partition_directory(name)
            except InvalidNameError as error:
                raise InvalidNameError(f"{directory / name}: {error}; move it out of {directory}") from None
            if not suffix:
                listing.partitions.append((topic, number))
            elif suffix == DELETE_SUFFIX:
                listing.condemned.append(directory / name)
            else:
                listing.strays.append(name)
        return listing


def partitions_in(log_directories: Iterable[Path]) -> dict[PartitionKey, Path]:
    """Return the partitions in log directories, each with the log directory that it is in; of one that is in several,
    the first."""
    found: dict[PartitionKey, Path] = {}
    for logs in log_directories:
        for key in Listing.of(logs).partitions:
            found.setdefault(key, logs)
    return found


def newest_log(directory: Path) -> Path | None:
    """Return the `.log` file of a partition's last segment; None where it has none."""
    # The names have as many digits each, so their order is that of the offsets.
    names = [name for name in os.listdir(directory) if offset_before(LOG_SUFFIX, name) is not None]
    return directory / max(names) if names else None
