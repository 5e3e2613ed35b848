"""What lies in a log directory, by names alone: nothing is opened.

<topic>-<partition>                a partition
<topic>-<partition>.<uuid>-delete  was being deleted, is to be removed
<topic>-<partition>.<uuid>-stray   a broker set it aside: kept, not used
<topic>-<partition>.<uuid>-future  a broker was moving it here from another disk: kept, not used
__cluster_metadata-0 and its like  a broker's own
any other directory                refused, as a broker would refuse to start on it
plain files                        of the log directory itself, or none of our concern
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from topicfs.engine.errors import InvalidNameError
from topicfs.engine.format.paths import DELETE_SUFFIX, NOT_PARTITIONS, parse_partition_directory

PartitionKey = tuple[str, int]
"""Topic and number."""


@dataclass(slots=True)
class Listing:
    """The directories in a log directory.

    partitions  live ones
    condemned   directories that wait for their removal
    strays      names of those that are kept and not used
    """

    partitions: list[PartitionKey] = field(default_factory=list)
    condemned: list[Path] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, directory: Path) -> Listing:
        """List the directory; InvalidNameError for a directory in it whose name means nothing."""
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
        listing = cls()
        for name in names:
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
