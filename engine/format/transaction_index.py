"""The transaction index of a segment, `<base>.txnindex`: the aborted transactions whose markers it holds.

    entries of 34 bytes, one behind the other, big-endian; last offsets rise

    0   int16  version, always 0
    2   int64  producer id
    10  int64  first offset         offset of the transaction's first record, in this segment or an earlier one
    18  int64  last offset          offset of its marker
    26  int64  last stable offset   below it, every transaction was decided when the marker was written

Most segments have no aborted transaction, and then they have no such file. A file of a single byte is one of ours:
there was no room for the entries, which only a recovery of the segment can tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from topicfs.engine.format.layout import Layout

VERSION: Final = 0
ENTRY: Final = Layout(version="h", producer_id="q", first_offset="q", last_offset="q", last_stable_offset="q")
NOT_KNOWN: Final = 1
"""The length of a file whose entries could not be written. A broker takes it for one without entries: so its segment
has no offset index, and a broker recovers it."""


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """One entry of a transaction index.

    producer_id         the id of the transaction's producer
    first_offset        the offset of its first record
    last_offset         the offset of its abort marker
    last_stable_offset  the offset below which every transaction was decided when the marker was written
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def to_bytes(self) -> bytes:
        """Return the bytes of the entry."""
        return ENTRY.struct.pack(
            VERSION, self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset
        )

    def overlaps(self, start: int, end: int) -> bool:
        """Whether a record in [start, end) may belong to this transaction."""
        return self.first_offset < end and self.last_offset >= start


def aborted_in(data: bytes) -> Iterator[AbortedTransaction]:
    """Give the entries in the content of a file. An incomplete one at the end is left out."""
    for _, *fields in ENTRY.struct.iter_unpack(data[: len(data) // ENTRY.size * ENTRY.size]):
        yield AbortedTransaction(*fields)
