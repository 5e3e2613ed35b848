"""The records of a cluster's metadata log that describe topics and settings.

A record's value is a frame, whose numbers are unsigned varints:

    frame version   1
    kind, version   the kind of the message that follows, and the version of its format
    message         fields, in the order below
    tagged fields   their number, and for each its tag, its size and its bytes: ignored but for CHANGED

    TOPIC      2    name: string · id: uuid
    PARTITION  3    number: int32 · topic id: uuid · replicas: array of int32 · more, ignored
    SETTING    4    resource type: int8 · resource: string · name: string · value: string, or null to remove it
    CHANGED    5    number: int32 · topic id: uuid · tagged field 2, replicas: array of int32, where they change
    REMOVED    9    topic id: uuid
    BEGIN     23    begins a transaction: its records count at END, and are dropped at ABORT
    END       24
    ABORT     25

    string    size + 1 as unsigned varint, 0 for null, then UTF-8        uuid    16 bytes        int32    big-endian
    array     elements + 1 as unsigned varint, 0 for null, then the elements

Kafka adds new fields only at the end of messages, so unknown fields come behind those that are read here.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final

from topicfs.engine.errors import CorruptError

FRAME_VERSION: Final = 1
TOPIC: Final = 2
PARTITION: Final = 3
SETTING: Final = 4
CHANGED: Final = 5
REMOVED: Final = 9
BEGIN: Final = 23
END: Final = 24
ABORT: Final = 25

OF_TOPIC: Final = 2
OF_BROKER: Final = 4
"""The resource types of settings: those of a topic, and those of a broker."""

_REPLICAS_TAG: Final = 2
_UUID_BYTES: Final = 16
_LONGEST_VARINT: Final = 5


class CorruptRecordError(CorruptError):
    """A record of a metadata log breaks its format."""


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic was created."""

    name: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition was created, or its description has changed.

    replicas  the number of its replicas
    """

    number: int
    topic_id: str
    replicas: int


@dataclass(frozen=True, slots=True)
class PartitionChangeRecord:
    """A part of a partition's description has changed.

    replicas  the number of its replicas, None if they are the same as before
    """

    number: int
    topic_id: str
    replicas: int | None


@dataclass(frozen=True, slots=True)
class SettingRecord:
    """A setting of a topic or a broker was set, or removed with a value of None.

    resource  the name of the topic, or the number of the broker; empty for all brokers
    """

    resource_type: int
    resource: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class RemovedRecord:
    """A topic was deleted, with its settings."""

    topic_id: str


@dataclass(frozen=True, slots=True)
class Transaction:
    """The begin or end of records that count together: BEGIN, END or ABORT."""

    kind: int


MetadataRecord = (
    TopicRecord | PartitionRecord | PartitionChangeRecord | SettingRecord | RemovedRecord | Transaction
)


def read(value: bytes) -> MetadataRecord | None:
    """Parse a record's value; None for a kind that is not needed here. CorruptRecordError where it is malformed."""
    fields = _Fields(value)
    version = fields.uvarint()
    if version != FRAME_VERSION:
        raise CorruptRecordError(f"metadata record: expected frame version {FRAME_VERSION}, found {version}")
    kind, _ = fields.uvarint(), fields.uvarint()
    if kind == TOPIC:
        return TopicRecord(fields.string(), fields.uuid())
    if kind == PARTITION:
        return PartitionRecord(fields.integer(4), fields.uuid(), fields.length())
    if kind == CHANGED:
        number, topic_id, tagged = fields.integer(4), fields.uuid(), fields.tagged()
        replicas = tagged.get(_REPLICAS_TAG)
        return PartitionChangeRecord(
            number, topic_id, None if replicas is None else _Fields(replicas).length()
        )
    if kind == SETTING:
        return SettingRecord(fields.integer(1), fields.string(), fields.string(), fields.nullable_string())
    if kind == REMOVED:
        return RemovedRecord(fields.uuid())
    return Transaction(kind) if kind in (BEGIN, END, ABORT) else None


class _Fields:
    """A reader of the fields of a message, one after the other. Every length is checked against the bytes left."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise CorruptRecordError(
                f"metadata record of {len(self._data)} bytes: expected {size} more at {self._at}"
            )
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def uvarint(self) -> int:
        number = 0
        for at in range(_LONGEST_VARINT):
            byte = self._take(1)[0]
            number |= (byte & 0x7F) << 7 * at
            if byte < 0x80:
                return number
        raise CorruptRecordError(
            f"metadata record: expected a number of at most {_LONGEST_VARINT} bytes before {self._at}"
        )

    def integer(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big", signed=True)

    def length(self) -> int:
        """Return the number of elements of an array, which are behind it."""
        return max(self.uvarint(), 1) - 1

    def tagged(self) -> dict[int, bytes]:
        """Return the tagged fields at the end, by their tags."""
        return {self.uvarint(): self._take(self.uvarint()) for _ in range(self.uvarint())}

    def uuid(self) -> str:
        return base64.urlsafe_b64encode(self._take(_UUID_BYTES)).rstrip(b"=").decode()

    def nullable_string(self) -> str | None:
        size = self.uvarint()
        if size == 0:
            return None
        try:
            return self._take(size - 1).decode()
        except UnicodeDecodeError as error:
            raise CorruptRecordError(f"metadata record: expected UTF-8: {error}") from error

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise CorruptRecordError(f"metadata record: expected a text before {self._at}, found null")
        return text
