"""Records of a partition for a page: from an offset on, before one, or those that have some words in them.

Each request reads a bounded part of the log, and tells where the next one goes on.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from topicfs.engine.mount_attributes import FIRST_OFFSET, NEXT_OFFSET
from topicfs.fs import selections
from topicfs.mountd.tree import RefusedError, Tree
from topicfs.mountd.ui.shown import EXCERPT, WHOLE, Part, Shown, holds, shown

PAGE: Final = 50
"""Records on a page."""

MOST_BYTES: Final = 4 << 20
"""Bytes of lines that a request reads without a search; also the largest line that is read to its end."""

SEARCH_BYTES: Final = 128 << 20
SEARCH_S: Final = 0.8
"""What a request searches at most."""

_WIDER: Final = 8
_WIDEST: Final = 1 << 16
_SEARCH_WIDTH: Final = 1 << 14
_NEWLINE: Final = b"\n"
_OBJECT: Final = b'":{'
_HEAD: Final = re.compile(rb'\{"topic":"[^"]*","partition":\d+,"offset":(\d+),"timestamp":(-?\d+)')
_PLAIN: Final = re.compile(r"[ !#-.0-\[\]-~]+")
"""What stands in a line of jsonl as it is, whoever wrote it: neither quotes nor slashes. In most lines it is looked for
without reading them as JSON."""


@dataclass(slots=True)
class Found:
    """Some records of a partition, by rising offset.

    records  the records
    next     where the next request goes on; None behind the last record
    seen     how many records were looked at
    last     the offset of the last one that was looked at
    """

    records: list[Shown] = field(default_factory=list)
    next: int | None = None
    seen: int = 0
    last: int | None = None


class _Lines:
    """The lines of the records in [first, end), as far as so many bytes go.

    They are read in windows: to look up a name in `offset/` takes longer the more records it stands for.

    at    where the next window begins: all records before it were read
    head  the beginning of a line that was not read to its end
    """

    def __init__(
        self, tree: Tree, partition: str, first: int, end: int, most: int, width: int = PAGE
    ) -> None:
        self._tree, self._partition, self._end = tree, partition, end
        self._most, self._width = most, width
        self.at = first
        self.head = b""

    @property
    def is_all(self) -> bool:
        """Tell whether they went to the end."""
        return self.at >= self._end

    def blocks(self) -> Iterator[bytes]:
        """Yield them, several at a time; an empty block behind a window that has none."""
        width, left = self._width, self._most
        while not self.is_all:
            behind = min(self._end, self.at + width)
            path = f"{self._partition}/offset/{self.at}-{behind - 1}.jsonl"
            taken = 0
            with closing(self._tree.pieces(path)) as pieces:  # type: ignore[type-var]
                for piece in pieces:
                    taken += len(piece)
                    whole, newline, self.head = (self.head + piece).rpartition(_NEWLINE)
                    yield whole + newline
                    if taken >= left or len(self.head) >= MOST_BYTES:
                        return
            self.at, left = behind, left - taken
            # Compaction leaves gaps, which may be wide.
            width = min(width * _WIDER, max(self._width, _WIDEST)) if taken else width * _WIDER
            if not taken:
                yield b""

    def __iter__(self) -> Iterator[bytes]:
        for block in self.blocks():
            yield from block.split(_NEWLINE)[:-1]


def bounds(tree: Tree, partition: str) -> tuple[int, int]:
    """Return the first offset that can be read, and the one behind the last."""
    return int(tree.attribute(partition, FIRST_OFFSET)), int(tree.attribute(partition, NEXT_OFFSET))


def offset_at(tree: Tree, partition: str, when: str) -> int:
    """Return the offset of the first record of a time or later. RefusedError where the words are no time."""
    stem = when if when.startswith("last-") else f"{when.replace(' ', 'T')}--"
    if "/" in stem or selections.parse_times(stem) is None:
        raise RefusedError(f"expected a time, as in 2026-05-01T06:30 or last-15m, found {when!r}")
    return int(tree.attribute(f"{partition}/time/{stem}.txt", FIRST_OFFSET))


def page(tree: Tree, partition: str, offset: int, words: str = "") -> Found:
    """Return the first records from an offset on, or the first that have these words in them."""
    first, end = bounds(tree, partition)
    found, offset = Found(), max(offset, first)
    if offset >= end:
        return found
    lines = (
        _Lines(tree, partition, offset, end, SEARCH_BYTES, _SEARCH_WIDTH)
        if words
        else _Lines(tree, partition, offset, end, MOST_BYTES)
    )
    plain = words.encode() if _PLAIN.fullmatch(words) else b""
    deadline = time.monotonic() + SEARCH_S
    is_full = False
    for block in lines.blocks():
        if block and words and not _may_hold(block, plain):
            found.seen += block.count(_NEWLINE)
            found.last = _offset(block[block.rfind(_NEWLINE, 0, -1) + 1 :])
        else:
            is_full = _take(found, block, words, plain, deadline)
        if is_full or (words and time.monotonic() > deadline):
            is_full = True
            break
    if not is_full and not lines.is_all and (not found.seen or len(lines.head) >= MOST_BYTES):
        # It is larger than what one request reads: nobody can get past it but by its offset.
        found.records.append(_head(lines.head))
        found.seen, found.last = found.seen + 1, found.records[-1].offset
    behind = lines.at if found.last is None else max(lines.at, found.last + 1)
    found.next = behind if behind < end else None
    return found


def _take(found: Found, block: bytes, words: str, plain: bytes, deadline: float) -> bool:
    """Take the records of these lines, or those that have the words in them. Return whether no more may be taken."""
    for line in block.split(_NEWLINE)[:-1]:
        found.seen += 1
        found.last = _offset(line)
        if not words or (_may_hold(line, plain) and holds(line, words)):
            found.records.append(shown(line, EXCERPT))
        if len(found.records) >= PAGE or (words and time.monotonic() > deadline):
            return True
    return False


def _may_hold(lines: bytes, plain: bytes) -> bool:
    """Tell whether lines may have some words in them. A message of Kafka's own is an object in its line, and is written
    otherwise than its search reads it."""
    return not plain or plain in lines or _OBJECT in lines


def page_before(tree: Tree, partition: str, offset: int) -> Found:
    """Return the last records before an offset. Compaction leaves gaps: what is read widens until it has some."""
    first, end = bounds(tree, partition)
    offset, width = min(offset, end), PAGE
    if offset <= first:
        return page(tree, partition, first)
    while True:
        start = max(first, offset - width)
        lines = _Lines(tree, partition, start, offset, MOST_BYTES, width)
        last = deque(lines, PAGE)
        if not lines.is_all:
            # They are large: those from there on are shown, and the next pages lead on from them.
            return page(tree, partition, start)
        if len(last) == PAGE or start == first:
            found = Found([shown(line, EXCERPT) for line in last], None, len(last))
            found.last = found.records[-1].offset if found.records else offset - 1
            found.next = found.last + 1 if found.last + 1 < end else None
            return found
        width *= _WIDER


def record(tree: Tree, partition: str, offset: int) -> Shown | None:
    """Return one record, as much of it as a page shows; None where there is none of this offset."""
    first, end = bounds(tree, partition)
    if not first <= offset < end:
        return None
    lines = _Lines(tree, partition, offset, offset + 1, MOST_BYTES)
    line = next(iter(lines), None)
    if line is not None:
        return shown(line, WHOLE)
    return _head(lines.head) if lines.head else None


def _offset(line: bytes) -> int:
    found = _HEAD.match(line)
    if found is None:
        raise RefusedError(f"expected a line of jsonl, found {line[:80]!r}")
    return int(found[1])


def _head(line: bytes) -> Shown:
    """Return what the beginning of a line tells of its record."""
    found = _HEAD.match(line)
    timestamp = -1 if found is None else int(found[2])
    too_large = Part("text", "too large for a page: it can be downloaded", 0, True)
    return Shown(_offset(line), timestamp, Part("text", "not read"), too_large, (), is_head=True)
