"""A pass over a log whose groups of segments are written anew elsewhere: by other processes, on machines that see the
same files. Nothing here says how a portion gets there, and what came of it back.

    who has the log                                       elsewhere
    Work.take, groups; for each group a Stretch      →    passage: which transactions it leaves pending
    portions: what writing a group anew takes        →    rewritten: new segments, `.cleaned`, in another directory
    take, in the order of the groups: they are moved into the log's directory, and replace what they were made of

The same pass in one process goes from group to group, and knows of each transaction whether a batch of it was passed
by. Here a portion is told: of the producers in `pending`, one was. The passages of all groups before say which these
are, and to find them takes headers only. All else that a group is rewritten by lies in its own segments, or is known
before the pass begins.

The log must not change meanwhile, save by `take`: its owner keeps everybody else away from it.
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
from topicfs.engine.segment.stored import SegmentSettings

_CHUNK: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Stretch:
    """Where a group of segments lies.

    directory  the partition's
    bases      base offsets of the segments, rising
    end        where the next segment begins
    """

    directory: Path
    bases: tuple[int, ...]
    end: int

    @property
    def start(self) -> int:
        return self.bases[0]


@dataclass(frozen=True, slots=True)
class Portion:
    """All that it takes to write a group anew, beside its files and what is outdated in it.

    settings      of the new segments
    aborted       the aborted transactions that overlap the group
    pending       producers with batches in groups before, and their markers from this one on
    producers     whose last batches stay
    now, horizon  as in Rewrite
    round_end     offset behind the last group of all
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
    """What came of a portion.

    directory  where its segments are
    bases      their base offsets; none where the group stays as it is
    """

    directory: Path
    bases: tuple[int, ...]
    counts: RewriteCounts


class LastOffsets(OffsetMap):
    """What is known of each offset, in place of the map of keys: whether its record is its key's last.

    Its table of keys stays empty: no record lies outside the bits."""

    __slots__ = ()

    @classmethod
    def of(cls, start: int, end: int, last: Sequence[Longs]) -> LastOffsets:
        """Of the offsets [start, end). `last` are those at which a key has its last record, counted from `start`.

        Before the end there may be a gap as wide as offsets go: a group's records are as near as an index holds."""
        found = cls(2, 1, np.zeros(2, np.int64))
        found.base = start
        found.latest_offset = end - 1
        found.outdated = np.full(-(-min(end - start, MAX_INT32 + 1) // 8), 0xFF, np.uint8)
        for offsets in last:
            np.bitwise_and.at(found.outdated, offsets >> 3, ~(1 << (offsets & 7)).astype(np.uint8))
        return found


# -- who has the log ----------------------------------------------------------------------------------


def stretches(work: Work, groups: Sequence[Sequence[Segment]]) -> list[Stretch]:
    """Where the groups lie."""
    return [
        Stretch(
            work.log.chain.directory,
            tuple(segment.base_offset for segment in group),
            work.segments.end_of(group[-1]),
        )
        for group in groups
    ]


def portions(work: Work, lie: Sequence[Stretch], passages: Sequence[Passage], now: int) -> list[Portion]:
    """One for each group. `passages` are those of all groups but the last one."""
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
    """Put what came of a group in its place. Gives the number of its segments."""
    if not made.bases:
        return len(group)
    chain = work.log.chain
    parts: list[Segment] = []
    try:
        # One by one: what was moved when the next one fails is removed.
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
    """How a group leaves its transactions. Checksums are left to who rewrites it."""
    settings = SegmentSettings()
    segments = (
        Segment.load(stretch.directory, base, settings, lambda: 0, Descriptors()) for base in stretch.bases
    )
    return Passage.of(
        table for segment in segments for _, table in segment.batches(check=False, chunk=_CHUNK, reuse=True)
    )


def rewritten(portion: Portion, last: Sequence[Longs], directory: Path) -> Rewritten:
    """Write a group anew, into a directory that is there and empty; all of it is on disk then.

    `last` are the offsets at which a key has its last record in the log, counted from the group's start."""
    stretch, now = portion.stretch, portion.now
    descriptors = Descriptors()
    # The segment behind the group is in the list only to say where the group ends: it is not opened.
    every = [
        Segment.load(stretch.directory, base, portion.settings, lambda: now, descriptors)
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
