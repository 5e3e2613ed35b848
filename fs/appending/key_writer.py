"""Setting a key: what is written between open and close is one record, whose value is the whole of it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import EngineError, LinkedTopicError, PolicyViolationError, RecordTooLargeError
from topicfs.engine.format.batch_header import HEADER_SIZE
from topicfs.engine.kernels.encode import RECORD_OVERHEAD
from topicfs.engine.partition.validate import batch_limit
from topicfs.engine.record import NO_OFFSET
from topicfs.fs import errors
from topicfs.fs.appending.targets import PartitionTarget
from topicfs.fs.entry import Handle
from topicfs.fs.formats import Format

if TYPE_CHECKING:
    from topicfs.fs.views.partition_views import PartitionViews

log = logging.getLogger(__name__)

_NO_HEADERS: Final = b"\0"

UNDECIDED_WAIT: Final = 5.0
"""Seconds that somebody who adds to a value waits for a transaction. One of an inbox takes as long as its fsyncs."""


@dataclass(frozen=True, slots=True)
class KeySetter:
    """Appends records of one key, each on its own.

    views  the partition that the key belongs to
    path   the path of the key's file, for messages
    key    the key
    """

    views: PartitionViews
    path: str
    key: bytes

    def check(self, expected: int | None) -> None:
        """Raise the error that a record of the key would meet now."""
        log = self.views.partition.log
        self.views.context.store.links.await_partition(self.views.partition)
        log.check_takes_lines()
        if not log.settings.compact:
            raise PolicyViolationError(
                f"{self.path}: expected a topic whose cleanup.policy has 'compact', "
                f"found {log.settings.cleanup_policy_text!r}"
            )
        if expected is not None and log.remote is not None:
            raise LinkedTopicError(
                f"{self.path}: only a Kafka cluster knows what others append to this topic"
            )
        self.check_expected(expected)

    @property
    def is_undecided(self) -> bool:
        """Tell whether the key has a record that does not show yet, as it is behind an open transaction."""
        return self.views.keys.last_undecided(self.key) is not None

    def last_value(self) -> bytes | None:
        """Return the key's value, to keep a part of it; None if it is not there. A record that does not show yet would
        be lost, so it is waited for."""
        keys = self.views.keys
        undecided = keys.last_undecided(self.key)
        if undecided is not None and not self.views.partition.log.wait_for(undecided, UNDECIDED_WAIT):
            raise errors.BusyError(
                f"{self.path}: what its value will be is not known, since a record of the key, at offset {undecided}, "
                "waits for an open transaction to be decided; > sets it anyway"
            )
        record = keys.record(self.key, self.views.record)
        return None if record is None else record.value or b""

    def target(self) -> PartitionTarget:
        """Return what appends for one writer. Whoever asks for it has to leave it."""
        return PartitionTarget(self.views.writers, Format.JSONL, 0)

    def set(self, value: bytes | None, expected: int | None = None) -> int:
        """Append a record, or for None a tombstone, as `append` does, with a target of its own."""
        target = self.target()
        try:
            return self.append(target, value, expected)
        finally:
            target.leave()

    def append(self, target: PartitionTarget, value: bytes | None, expected: int | None) -> int:
        """Append a record, or for None a tombstone. Return the offset behind it. With `expected`, the key's last record
        has to have that offset, or with NO_OFFSET there must be none: OvertakenError otherwise."""
        self.check(expected)
        now = self.views.partition.log.clock()
        columns = columns_of(self.key, value, now)
        if expected is None:
            taken = target.add_columns(columns, now)
            target.flush()
            end = self.views.partition.end_offset
        else:
            taken, end = target.add_columns_if(columns, now, lambda: self.check_expected(expected))
        if not taken:
            raise target.refusal or RecordTooLargeError(f"{self.path}: the record was not taken")
        return end

    def check_size(self, size: int) -> None:
        """Raise RecordTooLargeError if a value of this many bytes does not fit into a batch."""
        limit = batch_limit(self.views.partition.settings)
        most = limit - HEADER_SIZE - len(self.key)
        if size > most:
            raise RecordTooLargeError(f"{self.path}: a value of {size} bytes, expected at most {most}")
        if size > most - RECORD_OVERHEAD:
            batches.BatchBuilder(limit).add_columns(columns_of(self.key, bytes(size), 0))

    def check_expected(self, expected: int | None) -> None:
        """Raise OvertakenError if another record than expected is the key's last one now."""
        if expected is None:
            return
        keys = self.views.keys
        found = keys.last_undecided(self.key)
        if found is None:
            found = keys.find(self.key)
        if (NO_OFFSET if found is None else found) != expected:
            wanted = "no record" if expected == NO_OFFSET else f"offset {expected}"
            raise errors.OvertakenError(
                f"{self.path}: expected {wanted} as the key's last, found "
                f"{'none' if found is None else f'offset {found}'}"
            )


def columns_of(key: bytes, value: bytes | None, timestamp: int) -> Columns:
    """Return one record without headers."""
    whole = b"".join((key, value or b"", _NO_HEADERS))
    found = Columns.empty(np.frombuffer(whole, np.uint8), 1)
    found.offsets[0], found.timestamps[0] = 0, timestamp
    found.key_start[0], found.key_length[0] = 0, len(key)
    found.value_start[0], found.value_length[0] = len(key), -1 if value is None else len(value)
    found.headers_start[0], found.headers_length[0] = len(whole) - 1, 1
    return found


class KeyWriter(Handle):
    """A file of a key that is open for writing. Its content is set when a descriptor is closed through which something
    was written, and at the last close if it was opened to be emptied.

    _setter    makes the record
    _target    appends it, and holds room for it: most programs do not look at what close(2) gives them
    _expected  what the key's last record has to be, as for `KeySetter.append`
    _content   the whole content
    _adds      whether the content begins with a value that is not decided yet. The first call waits for it, and not
               the open, as that of a new file holds up all who look into its directory
    _appends   whether each write goes to the end
    _changed   whether the content differs from what was set
    _emptied   whether it was opened to be emptied, or made, and nothing was written: a shell closes a descriptor before
               it writes through another one, so only the last close sets this
    _failed    why nothing more is taken and set, as a part of the content is missing; None if nothing has failed
    """

    def __init__(
        self, setter: KeySetter, content: bytes | None, expected: int | None, appends: bool, emptied: bool
    ) -> None:
        self._setter = setter
        self._expected = expected
        self._content = bytearray(content or b"")
        self._adds = content is None
        self._appends = appends
        self._changed = False
        self._emptied = emptied
        self._failed: EngineError | OSError | None = None
        self._lock = threading.Lock()
        self._target = setter.target()
        try:
            if emptied:
                self._hold_room()
        except BaseException:
            self._target.leave()
            raise
        self._note_pending()

    def size(self) -> int | None:
        # What has failed is not what the key has, and what is not known yet begins with that.
        return None if self._failed is not None or self._adds else len(self._content)

    def read(self, position: int, into: Bytes) -> int:
        with self._lock:
            self._await_value()
        part = bytes(self._content[position : position + into.size])
        memoryview(into)[: len(part)] = part
        return len(part)

    def write(self, data: Bytes, position: int = 0) -> int:
        with self._lock, self._lost_on_error():
            self._setter.views.writers.end_close(self)
            at = len(self._content) if self._appends else position
            # From here on its writer is told of an error, and what it was opened for is not done by the last close.
            self._emptied = False
            self._setter.check_size(max(at + data.size, len(self._content)))
            self._setter.check_expected(self._expected)
            self._note_pending()
            if at > len(self._content):
                self._content.extend(bytes(at - len(self._content)))
            self._content[at : at + data.size] = data.tobytes()
            self._hold_room()
            self._changed = True
            return int(data.size)

    def cut(self, length: int) -> None:
        """Cut the content to a length, or fill it up with zeros, for ftruncate(2). What has failed begins anew where
        nothing is left of it."""
        with self._lock:
            if not length:
                self._failed, self._adds = None, False
            with self._lost_on_error():
                self._setter.check_size(length)
                self._note_pending()
                del self._content[length:]
                self._content.extend(bytes(length - len(self._content)))
                self._hold_room()
                self._changed = True

    def _hold_room(self) -> None:
        self._target.hold_room(len(self._setter.key) + len(self._content))

    def _note_pending(self) -> None:
        """Have the key's file be there although the key may not be: it is made."""
        self._setter.views.pending_keys[self] = self._setter.key

    def _end_pending(self) -> None:
        # Not only at the release, for which no close(2) waits: a key that is removed then would still be there.
        self._setter.views.pending_keys.pop(self, None)

    @contextlib.contextmanager
    def _lost_on_error(self) -> Iterator[None]:
        """Take and set nothing more after a failure: a part of the value would be missing."""
        if self._failed is not None:
            raise self._failed
        try:
            self._take_value()
            yield
        except (EngineError, OSError) as error:
            self._changed = self._emptied = False
            self._failed = error
            self._end_pending()
            raise

    def _await_value(self) -> None:
        """Have the content begin with the key's value, where it is to be kept. The caller holds the lock."""
        with self._lost_on_error():
            self._take_value()

    def _take_value(self) -> None:
        if self._adds:
            value = self._setter.last_value()
            self._content = bytearray(value or b"")
            self._adds, self._emptied = False, self._emptied and value is None

    def flush(self) -> None:
        if not (self._changed or self._emptied or self._failed):
            return
        with self._lock, self._lost_on_error():
            if self._changed:
                self._set()
            elif self._emptied:
                self._setter.views.writers.begin_close(self)

    def persist(self) -> None:
        with self._lock, self._lost_on_error():
            if self._changed or self._emptied:
                self._set()
        self._setter.views.partition.flush()

    def _set(self) -> None:
        end = self._setter.append(self._target, bytes(self._content), self._expected)
        self._changed = self._emptied = False
        self._end_pending()
        self._target.hold_room(0)
        if self._expected is not None:
            self._expected = end - 1

    def release_at_end(self) -> None:
        # What was written may be a part of a value, and a file that was emptied is about to be written. A program that
        # has closed one without writing was answered, though its release has not come.
        with self._lock:
            self._changed = False
            self._emptied = self._emptied and self._setter.views.writers.is_closing(self)
        self.release()

    def release(self) -> None:
        writers = self._setter.views.writers
        if self._changed or self._emptied:
            writers.note_last_close(self)
        with self._lock:
            try:
                if self._emptied:
                    self._await_value()
                if self._changed or self._emptied:
                    self._set()
            except (EngineError, OSError) as error:
                log.error(f"{self._setter.path}: its content is lost at the last close: {error}")
                writers.note_refusal(error, self._setter.path)
            finally:
                self._end_pending()
                writers.end_close(self)
                self._target.leave()
