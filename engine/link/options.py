"""What is to be mirrored, as the settings say it: which brokers, which topics, from where on."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from topicfs.engine.errors import InvalidSettingError, shown
from topicfs.engine.files.integers import parse_int64
from topicfs.engine.link.client import ClientSettings
from topicfs.engine.link.cluster import EARLIEST, LATEST
from topicfs.engine.link.connection import Address
from topicfs.engine.record import MAX_INT64
from topicfs.engine.settings.daemon import DaemonSettings

_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:\s]+):([1-9][0-9]{0,4})")
_AGE: Final = re.compile(r"-([1-9][0-9]{0,9})([smhdw])")
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_HIDDEN: Final = "__"
"""The beginning of the names of Kafka's own topics, and of those that tools keep for themselves."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where the mirror of a partition begins: one of these.

    offset     at this offset, or the next one that the cluster has
    timestamp  at the first record that is not earlier, in milliseconds; EARLIEST or LATEST
    age_ms     at the first record that is younger
    """

    offset: int | None = None
    timestamp: int = EARLIEST
    age_ms: int | None = None

    @classmethod
    def parse(cls, text: str) -> Beginning:
        """Read `earliest`, `latest`, an offset, an age such as `-7d`, or a time of ISO 8601, UTC without a zone."""
        words = {"earliest": EARLIEST, "latest": LATEST}
        if text in words:
            return cls(timestamp=words[text])
        offset, age = parse_int64(text), _AGE.fullmatch(text)
        if offset is not None and 0 <= offset <= MAX_INT64:
            return cls(offset=offset)
        if age is not None:
            return cls(age_ms=int(age[1]) * _UNITS_MS[age[2]])
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidSettingError(
                f"link.from: expected earliest, latest, an offset, an age such as -7d or a time such as 2026-05-01, "
                f"found {shown(text)}"
            ) from None
        zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return cls(timestamp=max(0, round(zoned.timestamp() * 1000)))


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """What is mirrored.

    bootstrap  addresses of brokers
    patterns   patterns of the names of topics, as a shell's
    beginning  where a mirror begins
    client     the settings of connections
    create     whether mkdir of a topic makes it in the cluster, with so many partitions and replicas; -1: as the
               cluster has it
    delete     whether rmdir of an empty one deletes it there
    directory  where the stores of its daemons are, which take partitions from each other; None: each has its own copy
    group      the group of daemons that divide the partitions; empty: this one mirrors all of them
    """

    bootstrap: tuple[Address, ...]
    patterns: tuple[str, ...]
    beginning: Beginning
    client: ClientSettings
    create: bool = False
    create_partitions: int = -1
    create_replication_factor: int = -1
    delete: bool = False
    group: str = ""
    directory: Path | None = None

    @classmethod
    def of(cls, daemon: DaemonSettings, backing: Path) -> LinkOptions | None:
        """Read the settings; None where nothing is to be mirrored. InvalidSettingError where one of them, or a line of
        the file that they name, is refused."""
        if not daemon.link_bootstrap_servers:
            return None
        client = ClientSettings.load(backing / daemon.link_config) if daemon.link_config else ClientSettings()
        client.tls()
        return cls(
            tuple(map(_address, daemon.link_bootstrap_servers)),
            daemon.link_topics,
            Beginning.parse(daemon.link_from),
            client,
            daemon.link_create,
            daemon.link_create_partitions,
            daemon.link_create_replication_factor,
            daemon.link_delete,
            daemon.link_group,
            _shared(daemon, backing),
        )

    def wants(self, topic: str) -> bool:
        """Tell whether a topic of this name is mirrored."""
        return any(
            fnmatch.fnmatchcase(topic, pattern)
            for pattern in self.patterns
            if pattern.startswith(_HIDDEN) or not topic.startswith(_HIDDEN)
        )

    def exact(self) -> list[str]:
        """Return the patterns that are names."""
        return [pattern for pattern in self.patterns if not any(sign in pattern for sign in "*?[")]


def _shared(daemon: DaemonSettings, backing: Path) -> Path | None:
    if not daemon.link_group_directory:
        return None
    directory = Path(daemon.link_group_directory).resolve()
    if not daemon.link_group or backing.resolve().parent != directory:
        raise InvalidSettingError(
            f"link.group.directory: expected the directory in which {backing} lies, and a link.group, found "
            f"{shown(daemon.link_group_directory)}"
        )
    return directory


def _address(text: str) -> Address:
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or int(found[2]) > 65535:
        raise InvalidSettingError(f"link.bootstrap.servers: expected host:port, found {shown(text)}")
    return Address(found[1].strip("[]"), int(found[2]))
