"""A short fingerprint of a batch's content. It tells whether a batch that comes again under a name is the same one.

    <form>:<records>:<32 hexadecimal digits>       the stored form
    1                                              the form below
    <lines>:<32 hexadecimal digits>                a form of older versions, of lines: it cannot be compared

The same rows may come again in other files: a job that is run again names its files anew, distributes and orders the
rows differently, compresses them, or writes them in another format. So records are compared, neither files nor lines:
their number, and the sum of their hashes. Two batches with the same content have equal records, each as often, and for
the same partitions where they name any. A record is its key, value, headers and timestamp. What the inbox adds, which
is the time of the commit for records without a timestamp, is no part of it.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np

from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.inbox.rows import Rows
from topicfs.engine.kernels.content import add_records

_FORM: Final = "1"
_SEED: Final = np.frombuffer(hashlib.blake2b(b"topicfs: content", digest_size=16).digest(), np.int64).copy()
_HALF: Final = 64


class Content:
    """The fingerprint of a batch's content, which grows while the batch is read.

    _sums   the number of records, and both halves of the sum of their hashes
    """

    def __init__(self) -> None:
        self._sums = np.zeros(3, np.int64)

    def add(self, rows: Rows) -> None:
        """Add records."""
        _, *arrays = (np.ascontiguousarray(array) for array in rows.columns.arrays)
        added = add_records(
            rows.columns.buffer, *arrays, np.ascontiguousarray(rows.partitions), _SEED, self._sums
        )
        if added != len(rows):
            raise CorruptBatchError(
                f"record {added} of {len(rows)} has a span outside its buffer of {rows.columns.buffer.size} bytes"
            )

    @property
    def is_empty(self) -> bool:
        """Whether no record was added."""
        return not self._sums[0]

    def is_other(self, committed: str) -> bool:
        """Tell whether a stored form is of other content. That is False also if it cannot be told, as the form is an
        older or a newer one."""
        return committed.startswith(f"{_FORM}:") and committed.count(":") == 2 and committed != str(self)

    def __str__(self) -> str:
        """Return the form that is stored."""
        low, high = (int(half) % (1 << _HALF) for half in self._sums[1:])
        return f"{_FORM}:{int(self._sums[0])}:{high:016x}{low:016x}"


def records_in(committed: str) -> int:
    """Return the number of records that a stored form tells; of an older one it is that of lines."""
    return int(committed.rsplit(":", 2)[-2])
