"""A clean of a log whose groups of segments are rewritten elsewhere: by other processes, on machines that see the
same files. This module does not transport a portion there, or its result back.

    the log's owner                                       elsewhere
    Work.take, groups; for each group a Stretch      →    passage: which transactions it leaves pending
    portions: all data to rewrite one group          →    rewritten: new segments, `.cleaned`, in another directory
    take, in the order of the groups: they are moved into the log's directory, and replace the old segments

In one process the same pass goes from group to group, and knows of each transaction whether one of its batches was
read. Here the portion says it: for the producers in `pending`, one was. The passages of all earlier groups give
these producers, and to find them takes headers only. All other data for a group lies in its own segments, or is
known before the pass begins.

The log must not change during the pass, except by `take`: its owner keeps everybody else away from it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from topicfs.engine.batch.table import Longs
from topicfs.engine.cleaner.clean import Work
from topicfs.engine.cleaner.offset_map import OffsetMap
from topicfs.engine.cleaner.producers import LiveProducers
from topicfs.engine.cleaner.rewrite import Rewrite, RewriteCounts
from topicfs.engine.cleaner.transactions import Passage, Transactions
from topicfs.engine.files.atomic import sync_directory
from topicfs.engine.format.paths import CLEANED_SUFFIX
from topicfs.engine.format.transaction_index import AbortedTransaction
from topicfs.engine.partition.chain import Chain
from topicfs.engine.record import MAX_INT32
from topicfs.engine.segment.descriptors import Descriptors
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.segments import Segments
from topicfs.engine.segment.settings import SegmentSettings

_CHUNK: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Stretch:
    """The place of a group of segments.

    directory  directory of the partition
    bases      base offsets of the segments, rising
    end        base offset of the next segment
    """

    directory: Path
    bases: tuple[int, ...]
    end: int

    @property
    def start(self) -> int:
        return self.bases[0]


@dataclass(frozen=True, slots=True)
class Portion:
    """All data that is needed to rewrite a group, besides its files and its outdated offsets.

    settings      settings of the new segments
    aborted       aborted transactions that overlap the group
    pending       producers with batches in earlier groups, whose markers come in this one or later
    producers     producers whose last batches must stay
    now, horizon  as in Rewrite
    round_end     offset behind the last of all groups
    """

    stretch: Stretch
    settings: SegmentSettings
    aborted: tuple[AbortedTransaction, ...]
    pending: frozenset[int]
    producers: LiveProducers
    now: int
    horizon: int
    round_end: int


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The result of a portion.

    directory  directory of its new segments
    bases      their base offsets; none if the group stays as it is
    counts     numbers of the pass
    """

    directory: Path
    bases: tuple[int, ...]
    counts: RewriteCounts


class LastOffsets(OffsetMap):
    """Whether the record at each offset is the last of its key. This replaces the map of keys.

    Its table of keys stays empty: no record lies outside the bits.
    """

    __slots__ = ()

    @classmethod
    def of(cls, start: int, end: int, last: Sequence[Longs]) -> LastOffsets:
        """Return the map of the offsets [start, end). `last` are the offsets of each key's last record, counted from
        `start`.

        A gap of any width may come before the end, but a group's records are as close together as an index needs."""
        found = cls(2, 1, np.zeros(2, np.int64))
        found.base = start
        found.latest_offset = end - 1
        found.outdated = np.full(-(-min(end - start, MAX_INT32 + 1) // 8), 0xFF, np.uint8)
        for offsets in last:
            np.bitwise_and.at(found.outdated, offsets >> 3, ~(1 << (offsets & 7)).astype(np.uint8))
        return found


# -- the log's owner ----------------------------------------------------------------------------------


def stretches(work: Work, groups: Sequence[Sequence[Segment]]) -> list[Stretch]:
    """Return the places of the groups."""
    return [
        Stretch(
            work.log.chain.directory,
            tuple(segment.base_offset for segment in group),
            work.snapshot.segments.end_of(group[-1]),
        )
        for group in groups
    ]


def portions(work: Work, lie: Sequence[Stretch], passages: Sequence[Passage], now: int) -> list[Portion]:
    """Return one portion for each group. `passages` are those of all groups but the last one."""
    aborted: list[list[AbortedTransaction]] = [[] for _ in lie]
    starts, ends = [each.start for each in lie], [each.end for each in lie]
    for entry in work.aborted(work.sources[0], starts[0]):
        for place in range(bisect_right(ends, entry.first_offset), bisect_right(starts, entry.last_offset)):
            aborted[place].append(entry)
    pending = [frozenset[int]()]
    for passage in passages:
        pending.append(passage.behind(pending[-1]))
    return [
        Portion(
            stretch,
            work.log.chain.settings,
            tuple(entries),
            before,
            work.producers.between(stretch.start, stretch.end),
            now,
            work.horizon(now),
            work.uncleanable,
        )
        for stretch, entries, before in zip(lie, aborted, pending, strict=True)
    ]


def take(work: Work, group: Sequence[Segment], made: Rewritten) -> int:
    """Replace a group by its new segments. Return the number of its segments."""
    if not made.bases:
        return len(group)
    chain = work.log.chain
    parts: list[Segment] = []
    try:
        # One by one: if one fails, those that were moved before it are removed.
        parts.extend(chain.adopt(made.directory, base, CLEANED_SUFFIX) for base in made.bases)
        # Their names are durable before any is changed: see Chain.replace.
        sync_directory(chain.directory)
        work.check()
    except BaseException:
        for part in parts:
            part.delete()
        raise
    work.replace(group, parts)
    return len(parts)


# -- elsewhere ----------------------------------------------------------------------------------------


def passage(stretch: Stretch) -> Passage:
    """Return the effect of a group on its transactions. Checksums are left to the task that rewrites the group."""
    settings = SegmentSettings()
    logs = (
        Segment(stretch.directory, base, settings, lambda: 0, Descriptors()).log for base in stretch.bases
    )
    return Passage.of(
        table for log in logs for _, table in log.batches(check=False, chunk=_CHUNK, reuse=True)
    )


def rewritten(portion: Portion, last: Sequence[Longs], directory: Path) -> Rewritten:
    """Rewrite a group into an empty, existing directory. The result is completely on disk.

    `last` are the offsets of each key's last record in the log, counted from the group's start."""
    stretch, now = portion.stretch, portion.now
    descriptors = Descriptors()
    # The segment behind the group is in the list only to say where the group ends: it is not opened.
    every = [
        Segment(stretch.directory, base, portion.settings, lambda: now, descriptors)
        for base in (*stretch.bases, stretch.end)
    ]
    rewrite = Rewrite(
        chain=Chain(directory, portion.settings, lambda: now, descriptors),
        segments=Segments.of(every),
        offsets=LastOffsets.of(stretch.start, stretch.end, last),
        transactions=Transactions.resumed(portion.aborted, stretch.start, portion.pending),
        producers=portion.producers,
        now=now,
        horizon=portion.horizon,
        end=portion.round_end,
        chunk=_CHUNK,
        check=lambda: None,
        throttle=lambda _: None,
    )
    parts = rewrite.group(every[:-1])
    return Rewritten(directory, tuple(part.base_offset for part in parts), rewrite.counts)
