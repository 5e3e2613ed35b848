"""The check of a stored size map against the `.log` that it describes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from topicfs.fs.views.size_map import SizeMap, described_by


def problem(
    data: bytes, identity: tuple[int, int, int], end: int, base_at: Callable[[int], int | None]
) -> str | None:
    """Return what is wrong with a map, in words; None where nothing is, or it describes another `.log`, which makes it
    unused.

    identity  size, modification time and inode of the `.log`
    end       base offset of the next segment
    base_at   gives the base offset of the batch at a position; None where no batch begins there"""
    found = SizeMap.decode(data, identity)
    if found is None:
        return "bytes that do not fit their checksum" if described_by(data) in (None, identity) else None
    if found.next_offset != end:
        return f"a map up to offset {found.next_offset}"
    positions, rendered, offsets = found.marks.T
    if (np.diff(positions) <= 0).any() or (np.diff(rendered) < 0).any() or (np.diff(offsets) <= 0).any():
        return "marks that do not rise"
    if len(rendered) and not 0 <= rendered[0] <= rendered[-1] <= found.rendered:
        return f"marks from {rendered[0]} to {rendered[-1]} in {found.rendered} rendered bytes"
    for position, offset in zip(positions.tolist(), offsets.tolist(), strict=True):
        if base_at(position) != offset:
            return f"a mark for a batch with offset {offset} at position {position}"
    return None
