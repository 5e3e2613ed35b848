"""All errors that the engine raises on purpose.

A message says what was expected, what was found, and where. Operating-system errors pass through
as OSError: `fs` and `mountd` turn both kinds into errno values, in one place.
"""

from __future__ import annotations

import errno
from typing import Final

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})


def shown(text: str) -> str:
    """Return a text from a file for a message: quoted, and cut if it is longer than 80 characters."""
    return repr(text) if len(text) <= 80 else f"{text[:80]!r}… ({len(text)} characters)"


class EngineError(Exception):
    """Base of all errors that the engine raises on purpose."""


# -- bytes that are not what they should be ---------------------------------------------------------


class CorruptError(EngineError):
    """Stored or received bytes break their format."""


class CorruptBatchError(CorruptError):
    """A record batch has a wrong size, magic, checksum, count or record."""


class OldFormatError(CorruptBatchError):
    """A segment has messages of the formats 0 or 1, which Kafka before 0.11 wrote."""


class CorruptIndexError(CorruptError):
    """An offset, time or transaction index breaks its rules."""


class CorruptSnapshotError(CorruptError):
    """A producer snapshot has a wrong version, length or checksum."""


class CorruptCheckpointError(CorruptError):
    """A checkpoint, metadata or properties file is malformed."""


class CorruptSegmentError(CorruptError):
    """A segment file is shorter than its published length, or too large for a segment."""


# -- appends that are refused -----------------------------------------------------------------------


class InvalidRecordError(EngineError):
    """A record breaks a rule of its topic; `indexes` names the records, counted from 0."""

    def __init__(self, message: str, indexes: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.indexes = indexes


class InvalidTimestampError(InvalidRecordError):
    """A record's timestamp is outside the topic's limits, or of the wrong type."""


class RecordTooLargeError(EngineError):
    """A batch is larger than `max.message.bytes`."""


class RecordBatchTooLargeError(EngineError):
    """One append is larger than `segment.bytes`."""


class OffsetsOutOfOrderError(EngineError):
    """Batches of one raw append do not rise in offset."""


class UnexpectedAppendOffsetError(EngineError):
    """A raw append begins below the end offset; the error has the append's first and last offset."""

    def __init__(self, message: str, first_offset: int, last_offset: int) -> None:
        super().__init__(message)
        self.first_offset = first_offset
        self.last_offset = last_offset


class OutOfOrderSequenceError(EngineError):
    """A producer's sequence number neither continues nor repeats what was written."""


class DuplicateSequenceError(EngineError):
    """What a named producer writes was appended before."""


class UnknownProducerError(EngineError):
    """There is no producer of that name."""


class InvalidProducerEpochError(EngineError):
    """A producer writes with an epoch that a newer one has fenced."""


class InvalidTransactionStateError(EngineError):
    """A write or marker does not fit the producer's open transaction."""


class TransactionCoordinatorFencedError(EngineError):
    """A marker comes from a coordinator that a newer one has replaced."""


# -- offsets and segments ---------------------------------------------------------------------------


class OffsetOutOfRangeError(EngineError):
    """An offset lies outside what the partition holds."""


class InvalidOffsetError(EngineError):
    """An index entry would not rise in offset."""


class OffsetOverflowError(EngineError):
    """An offset does not fit into 31 bits relative to its segment's base."""


class IndexFullError(EngineError):
    """An index holds as many entries as its size limit allows."""


class RollError(EngineError):
    """A segment cannot be started at the offset asked for."""


class CleaningAbortedError(EngineError):
    """A compaction was aborted, for a truncation, a deletion, changed settings or a stop. Nothing has changed."""


# -- the store --------------------------------------------------------------------------------------


class StoreLockedError(EngineError):
    """Another process, or another Store of this one, has the directory open."""


class NoStoreError(EngineError):
    """A directory is not a store, or no store can be made there."""


class NewerLayoutError(EngineError):
    """A newer version of topicfs wrote the store, or may have written it."""


class ReadOnlyError(EngineError):
    """The operation would change a store that was opened read-only."""


class TooFewDescriptorsError(EngineError):
    """The process is allowed too few open files."""


class ClosedError(EngineError):
    """The store or partition was closed, or went offline after an I/O error."""


class InvalidNameError(EngineError):
    """A topic, partition directory or file name is not one that Kafka accepts."""


class UnknownPartitionError(EngineError):
    """There is no such topic or partition."""


class PartitionExistsError(EngineError):
    """The partition exists already."""


class BatchExistsError(EngineError):
    """A batch with other content was committed under this name before."""


class MixedTopicsError(EngineError):
    """What is appended to several topics, all or none, would be in a Kafka cluster and in this store at once."""


class PartitionNotEmptyError(EngineError):
    """A partition or topic was to be removed only if it is empty, and it is not."""


class NothingDeletedError(EngineError):
    """No deletion of that topic or partition can be undone: there was none, or its time is over."""


class InconsistentTopicIdError(EngineError):
    """A partition's topic id differs from the one asked for."""


class InvalidSettingError(EngineError):
    """A setting's name is unknown or its value is refused."""


class PolicyViolationError(EngineError):
    """The topic's cleanup policy does not allow the operation."""


# -- consumer groups ----------------------------------------------------------------------------------


class UnknownGroupError(EngineError):
    """There is no such group, or no such member or position of it."""


class GroupExistsError(EngineError):
    """The group, or the member, exists already."""


class GroupNotEmptyError(EngineError):
    """A group was to be removed only if it is empty, and it has positions or members."""


class PositionMovedError(EngineError):
    """A position was to be set only if it is still what somebody has read, and it is not."""


class NotOwnerError(EngineError):
    """A position is set by somebody who does not own the partition in its group, or no longer."""


class GroupLimitError(EngineError):
    """There are as many positions of groups as fit into memory."""


# -- a Kafka cluster ----------------------------------------------------------------------------------


class LinkError(EngineError):
    """A Kafka cluster did not do what was asked, or its answer cannot be used. It is tried again."""


class ClusterAwayError(LinkError):
    """A broker cannot be reached, has closed the connection, or did not answer in time."""


class LinkRefusedError(LinkError):
    """A Kafka cluster refuses this client: its password, its certificate, or what it may do."""


class DeliveryTimeoutError(LinkError):
    """A Kafka cluster has not acknowledged a batch in time: whether it has it may not be known."""


class LinkedTopicError(ReadOnlyError):
    """Records would be appended to a topic that mirrors one of a Kafka cluster."""


# -- errors of the operating system -----------------------------------------------------------------


def lacks_room(error: BaseException | None) -> bool:
    """Whether an error says that the file system had no room, or a quota was reached."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM


def passes(error: BaseException | None) -> bool:
    """Whether an error is temporary and does not mean that files are bad: there was no room, or no descriptor was free.
    The operation is then tried again."""
    return lacks_room(error) or (isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR)
