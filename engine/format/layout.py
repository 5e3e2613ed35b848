"""What the entries of a file look like."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


class Layout:
    """Fields one behind the other, big-endian, without gaps.

    struct  packs them, and takes them apart
    size    bytes of all of them
    """

    def __init__(self, **codes: str) -> None:
        self._codes = codes
        self.struct = struct.Struct(">" + "".join(codes.values()))
        self.size = self.struct.size

    def dtype(self) -> np.dtype[np.void]:
        """The same for arrays."""
        import numpy as np  # noqa: PLC0415 - whoever has an array has loaded it

        return np.dtype([(name, ">" + code) for name, code in self._codes.items()])

    def place_of(self, field: str) -> int:
        """Where in an entry a field begins."""
        before = list(self._codes)[: list(self._codes).index(field)]
        return struct.calcsize(">" + "".join(self._codes[name] for name in before))
