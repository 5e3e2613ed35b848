"""The files that identify a directory: the topic id of a partition, the ids of a log directory; and the clean marker.

partition.metadata, in each partition directory, without a newline at its end:

    version: 0\\n
    topic_id: <uuid>

meta.properties, in the log directory, a Java properties file:

    version=1
    cluster.id=<string>       mandatory
    node.id=<int>             mandatory; version 0 has broker.id instead, and nothing mandatory
    directory.id=<uuid>       generated and written back where it is missing

.kafka_cleanshutdown, in the log directory, one line: {"version":0,"brokerEpoch":<int64>}

<uuid>: 16 bytes, highest first, as 22 characters of base64url without padding.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from topicfs.engine.errors import CorruptCheckpointError, InconsistentTopicIdError, InvalidNameError, shown
from topicfs.engine.files.atomic import read_bounded, sync_directory, write_atomically
from topicfs.engine.files.integers import parse_int32
from topicfs.engine.files.properties import read_properties, write_properties
from topicfs.engine.format.paths import CLEAN_SHUTDOWN, META_PROPERTIES, PARTITION_METADATA
from topicfs.engine.record import MAX_INT64, Clock

log = logging.getLogger(__name__)


NO_BROKER_EPOCH: Final = -1

# Each of the files has some 100 bytes.
MAX_BYTES: Final = 16 * 1024

_ZERO_UUID: Final = "A" * 22
_UUID: Final = re.compile(r"[A-Za-z0-9_-]{22}")
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_SEPARATOR: Final = re.compile(r":[ \t\v\f]+")


def random_uuid() -> str:
    """Return a new id that is safe as a command's argument: it never starts with '-'.

    It cannot be one of Kafka's reserved ids, whose upper half is zero: a random UUID has its version number there.
    """
    while True:
        text = uuid_text(uuid.uuid4().bytes)
        if not text.startswith("-"):
            return text


def parse_uuid(text: str) -> str | None:
    """Return the id in its standard spelling, or None where the text is no id. 4 bits of the last character are unused,
    so that one id has several spellings."""
    if _UUID.fullmatch(text) is None:
        return None
    return uuid_text(uuid_bytes(text))


def uuid_bytes(text: str) -> bytes:
    """Return the 16 bytes of an id that is a good one."""
    return base64.urlsafe_b64decode(text + "==")


def uuid_text(raw: bytes) -> str:
    """Return an id of 16 bytes as text."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@dataclass(slots=True)
class PartitionMetadata:
    """The topic id of a partition, and the file that stores it.

    path      `partition.metadata` in the partition's directory; changes when the directory is renamed
    topic_id  the id; None until it is known, and then it never changes
    pending   whether the id must still be written to the file
    """

    path: Path
    topic_id: str | None
    pending: bool

    @classmethod
    def load(cls, directory: Path) -> PartitionMetadata:
        """Read the directory's file; the id is None where there is no file."""
        path = directory / PARTITION_METADATA
        try:
            topic_id = _read_topic_id(path)
        except FileNotFoundError:
            topic_id = None
        return cls(path, topic_id, pending=False)

    def record(self, topic_id: str) -> None:
        """Set the id; `maybe_flush` writes it. InconsistentTopicIdError if another id is known."""
        wanted = parse_uuid(topic_id)
        if wanted is None or wanted == _ZERO_UUID:
            raise InvalidNameError(
                f"topic id: expected 22 characters of base64url, not all zero, found {topic_id!r}"
            )
        if self.topic_id is None:
            self.topic_id, self.pending = wanted, True
        elif wanted != self.topic_id:
            raise InconsistentTopicIdError(f"{self.path}: expected topic id {wanted}, found {self.topic_id}")

    def maybe_flush(self) -> None:
        """Write the file, durably, if the id is not in it yet. This is called before the first append."""
        if self.pending:
            write_atomically(self.path, f"version: 0\ntopic_id: {self.topic_id}".encode("ascii"))
            self.pending = False


def _read_topic_id(path: Path) -> str:
    lines = _LINE_END.split(read_bounded(path, MAX_BYTES).decode("iso-8859-1"))
    version = parse_int32(_value(path, lines, 1, "version"))
    if version is None or version < 0:
        raise CorruptCheckpointError(
            f"{path}: line 1: expected a version of at least 0, found {shown(lines[0])}"
        )
    text = _value(path, lines, 2, "topic_id")
    topic_id = parse_uuid(text)
    if topic_id is None or topic_id == _ZERO_UUID:
        expected = "22 characters of base64url, not all zero"
        raise CorruptCheckpointError(f"{path}: line 2: expected {expected}, found {shown(text)}")
    return topic_id


def _value(path: Path, lines: list[str], number: int, name: str) -> str:
    line = lines[number - 1] if number <= len(lines) else ""
    fields = _SEPARATOR.split(line)
    if len(fields) != 2 or fields[0] != name:
        raise CorruptCheckpointError(
            f"{path}: line {number}: expected '{name}: <value>', found {shown(line)}"
        )
    return fields[1]


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The ids of a log directory.

    version       the file's version: 1, or 0 for a directory from before KRaft
    cluster_id    the id of the cluster; None only in version 0
    node_id       the number of the broker, not negative; None only in version 0
    directory_id  the id of the directory; None in version 0, and before one was generated
    """

    version: int
    cluster_id: str | None
    node_id: int | None
    directory_id: str | None

    @classmethod
    def load_or_create(cls, directory: Path, clock: Clock, read_only: bool = False) -> MetaProperties:
        """Read the directory's file. A missing file or a missing directory id is written first, unless `read_only`."""
        path = directory / META_PROPERTIES
        try:
            values = read_properties(path)
        except FileNotFoundError:
            if read_only:
                return cls(0, None, None, None)
            # A broker that continues the directory must be configured with this node id.
            values = {"version": "1", "cluster.id": random_uuid(), "node.id": "0"}
        found = _parse_meta_properties(path, values)
        if found.version == 0 or found.directory_id is not None or read_only:
            return found
        values["directory.id"] = random_uuid()
        write_properties(path, values, clock=clock)
        log.info(f"{path}: wrote directory id {values['directory.id']}")
        return _parse_meta_properties(path, values)


def _parse_meta_properties(path: Path, values: dict[str, str]) -> MetaProperties:
    version = values.get("version", "").strip()
    if version not in ("0", "1"):
        raise CorruptCheckpointError(f"{path}: version: expected 0 or 1, found {shown(version)}")
    mandatory = version == "1"
    cluster_id = values.get("cluster.id", "").strip() or None
    if mandatory and cluster_id is None:
        raise CorruptCheckpointError(f"{path}: cluster.id: expected a value, found none")
    directory_id = values.get("directory.id", "").strip()
    if directory_id and parse_uuid(directory_id) in (None, _ZERO_UUID):
        expected = "22 characters of base64url, not all zero"
        raise CorruptCheckpointError(
            f"{path}: directory.id: expected {expected}, found {shown(directory_id)}"
        )
    return MetaProperties(
        version=int(version),
        cluster_id=cluster_id,
        node_id=_node_id(path, values, "node.id" if mandatory else "broker.id", mandatory),
        directory_id=parse_uuid(directory_id),
    )


def _node_id(path: Path, values: dict[str, str], name: str, mandatory: bool) -> int | None:
    text = values.get(name, "").strip()
    if not text and not mandatory:
        return None
    node_id = parse_int32(text)
    if node_id is None or node_id < 0:
        raise CorruptCheckpointError(f"{path}: {name}: expected a number not negative, found {shown(text)}")
    return node_id


@dataclass(frozen=True, slots=True)
class CleanShutdown:
    """The marker of a clean stop: while it exists, no partition in the log directory needs recovery.

    path  `.kafka_cleanshutdown` in the log directory
    """

    path: Path

    @classmethod
    def of(cls, directory: Path) -> CleanShutdown:
        """Return the marker of a log directory."""
        return cls(directory / CLEAN_SHUTDOWN)

    def exists(self) -> bool:
        """Whether the last stop was clean. The content does not matter."""
        return self.path.exists()

    def broker_epoch(self) -> int | None:
        """Return the epoch of the broker that stopped; None where the marker is missing or has none."""
        try:
            content = json.loads(read_bounded(self.path, MAX_BYTES))
        except FileNotFoundError:
            return None
        # RecursionError is raised for brackets that are nested thousands deep.
        except (ValueError, RecursionError, CorruptCheckpointError) as error:
            log.warning(
                f"{self.path}: expected one line of JSON, found none ({error}); the stop counts as clean"
            )
            return None
        epoch = content.get("brokerEpoch") if isinstance(content, dict) else None
        if not isinstance(epoch, int) or isinstance(epoch, bool) or not -1 <= epoch <= MAX_INT64:
            return None
        return epoch

    def write(self, broker_epoch: int = NO_BROKER_EPOCH) -> None:
        """Write the marker, durably. It is the last write before the lock is released."""
        write_atomically(
            self.path, json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()
        )

    def remove(self) -> None:
        """Remove the marker, durably, before any log is opened.

        If it came back after a power loss, unclean logs would count as clean.
        """
        self.path.unlink(missing_ok=True)
        sync_directory(self.path.parent)
