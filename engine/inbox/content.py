"""A short fingerprint of a batch's content. It tells whether a batch that comes again under a name is the same one.

The same rows may come again in other files: a job that is run again names its files anew, distributes and orders the
rows differently, or compresses them. So lines are compared, not files: their number, and the sum of their hashes. Two
batches with the same content have the same lines, each as often, in the same format and for the same partition.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np

from topicfs.engine.batch.table import Bytes
from topicfs.engine.kernels.content import add_lines

_SEED_BYTES: Final = 16
_HALF: Final = 64


class Content:
    """The fingerprint of a batch's content, which grows while the batch is read.

    _sums   the number of lines, and both halves of the sum of their hashes
    _seeds  by kind of line: the seed of the hash
    """

    def __init__(self) -> None:
        self._sums = np.zeros(3, np.int64)
        self._seeds: dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}

    def add(self, lines: Bytes, kind: str) -> None:
        """Add lines, which must be complete. Equal lines of two kinds, such as two formats, are different content."""
        seed = self._seeds.get(kind)
        if seed is None:
            digest = hashlib.blake2b(kind.encode(), digest_size=_SEED_BYTES).digest()
            seed = self._seeds[kind] = np.frombuffer(digest, np.int64).copy()
        taken = add_lines(lines, seed, self._sums)
        if taken != lines.size:
            raise ValueError(
                f"expected whole lines, found {lines.size - taken} bytes behind the last newline"
            )

    @property
    def is_empty(self) -> bool:
        """Whether no line was added."""
        return not self._sums[0]

    def __str__(self) -> str:
        """Return the form that is stored: `<lines>:<32 hexadecimal digits>`."""
        low, high = (int(half) % (1 << _HALF) for half in self._sums[1:])
        return f"{int(self._sums[0])}:{high:016x}{low:016x}"
