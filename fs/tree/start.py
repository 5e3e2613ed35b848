"""`start`: a partition's start offset. Writing a larger offset deletes the records below it."""

from __future__ import annotations

from collections.abc import Sequence

from topicfs.engine.errors import OffsetOutOfRangeError, shown
from topicfs.engine.files.integers import parse_int64
from topicfs.fs import errors
from topicfs.fs.tree.control_files import ControlFile, TakeBack
from topicfs.fs.tree.partition_entry import PartitionEntry


class StartFile(PartitionEntry, ControlFile):
    """The start offset. A written number deletes the records below it; -1 deletes all that are committed."""

    def content(self) -> bytes:
        return b"%d\n" % self.views.partition.start_offset

    def apply(self, lines: Sequence[str]) -> TakeBack | None:
        if len(lines) > 1:
            raise errors.BadInputError(f"expected one offset, found {len(lines)} lines")
        offset = parse_int64(lines[0].strip())
        if offset is None:
            raise errors.BadInputError(f"expected an offset, or -1, found {shown(lines[0])}")
        partition = self.views.partition
        self.views.writers.await_closing()
        try:
            self.context.store.delete_records(partition.topic, partition.number, offset)
        except OffsetOutOfRangeError as error:
            # Here the offset is not a name that was looked up, but what was written.
            raise errors.BadInputError(str(error)) from None
        return None  # Deleted records cannot be brought back.
