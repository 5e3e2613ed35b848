"""The layout of the entries of a binary file."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


class Layout:
    """The fields of an entry: big-endian, one after the other, without gaps.

    struct  packs and unpacks an entry
    size    the size of an entry in bytes
    """

    def __init__(self, **codes: str) -> None:
        self._codes = codes
        self.struct = struct.Struct(">" + "".join(codes.values()))
        self.size = self.struct.size

    def dtype(self) -> np.dtype[np.void]:
        """Return the layout as a numpy dtype."""
        import numpy as np  # noqa: PLC0415 - a program with arrays has loaded it

        return np.dtype([(name, ">" + code) for name, code in self._codes.items()])

    def place_of(self, field: str) -> int:
        """Return the position of a field in an entry."""
        before = list(self._codes)[: list(self._codes).index(field)]
        return struct.calcsize(">" + "".join(self._codes[name] for name in before))
