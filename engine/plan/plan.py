"""The plan: what retention and compaction would do now, as far as the files of a store tell.

It works beside a running daemon and after a crash: nothing is locked, recovered or written. The plan of each partition
says in words what names, sizes, time indexes and checkpoints do not tell.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from topicfs.engine.cleaner.candidates import Candidate, assess
from topicfs.engine.errors import CorruptCheckpointError, CorruptError
from topicfs.engine.files.checkpoint import OffsetCheckpoint
from topicfs.engine.files.listing import PartitionKey, partitions_in
from topicfs.engine.files.metadata import CleanShutdown, MetaProperties
from topicfs.engine.files.place import logs_in
from topicfs.engine.format.paths import (
    CLEANED_SUFFIX,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    SWAP_SUFFIX,
)
from topicfs.engine.partition.loading import Known
from topicfs.engine.partition.offsets import LogOffsets
from topicfs.engine.partition.on_disk import SegmentOnDisk, listed, offsets_of
from topicfs.engine.retention.rules import Due, Forecast, due, forecast
from topicfs.engine.settings.configuration import Configuration
from topicfs.engine.settings.configured import found_in
from topicfs.engine.settings.topic import TopicSettings

log = logging.getLogger(__name__)

_TRIES: Final = 5
"""How often segments are listed. A running daemon may remove some meanwhile, and then they are listed again."""


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """What retention and compaction would do with one partition, with the present settings of its topic.

    topic, number  the topic and the number; the partition's name is `<topic>-<number>`
    policy         the topic's cleanup.policy, as text
    segments       the number of segments
    bytes          the bytes of their `.log` files
    removals       the segments that retention would remove now, the oldest first
    next           the segment that it removes next, if it removes none now; None if it never will
    cleaning       what compaction would do now; None if the topic is not compacted
    unknown        in words: what the files do not tell
    kept           in words: why it is neither deleted nor compacted, if nobody has set that
    error          why there is no plan; the other fields are empty then
    """

    topic: str
    number: int
    policy: str
    segments: int = 0
    bytes: int = 0
    removals: tuple[Due[SegmentOnDisk], ...] = ()
    next: Forecast[SegmentOnDisk] | None = None
    cleaning: Candidate | None = None
    unknown: tuple[str, ...] = ()
    kept: str | None = None
    error: str | None = None

    @property
    def name(self) -> str:
        """The name of the partition, `<topic>-<number>`."""
        return f"{self.topic}-{self.number}"


@dataclass(slots=True)
class _Checkpoints:
    """The offset checkpoints of a log directory, as far as they can be read.

    logs      the log directory
    problems  the errors of those that cannot be read, in words
    """

    logs: Path
    problems: list[str] = field(default_factory=list)

    def read(self, name: str) -> Mapping[PartitionKey, int]:
        try:
            return OffsetCheckpoint(self.logs / name).read()
        except CorruptCheckpointError as error:
            self.problems.append(f"{error}")
            return {}


def plan(
    backing: Path, given: Mapping[str, str], now: int, is_running: bool, others: Sequence[Path] = ()
) -> list[PartitionPlan]:
    """Return the plan for each partition of a backing directory, in order.

    given       lines that take precedence over those of server.properties, as a mount may be given them
    is_running  whether a daemon has the directory open
    others      further log directories of the same broker

    It raises what Configuration.load and Listing.of raise, and NoStoreError where there is no log directory."""
    logs = logs_in(backing)
    partitions = partitions_in((logs, *others))
    node_id = MetaProperties.load_or_create(logs, lambda: now, read_only=True).node_id
    found, cluster = found_in((logs, *others), partitions, node_id)
    configuration = Configuration.load(backing, given, lambda: now, cluster, found)
    plans: list[PartitionPlan] = []
    for each in (logs, *others):
        keys = [key for key, place in partitions.items() if place == each]
        plans += _plans_in(each, keys, configuration, now, is_running)
    return sorted(plans, key=lambda plan: (plan.topic, plan.number))


def _plans_in(
    logs: Path, keys: Iterable[PartitionKey], configuration: Configuration, now: int, is_running: bool
) -> Iterator[PartitionPlan]:
    """Yield the plan for each of these partitions of a log directory."""
    checkpoints = _Checkpoints(logs)
    points, starts, marks, cleaned = (
        checkpoints.read(name) for name in (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, CLEANER_OFFSETS)
    )
    clean = CleanShutdown.of(logs).exists()
    general = list(checkpoints.problems)
    if not clean and not is_running:
        general.append("it was not stopped cleanly: recovery comes first, and may cut off the end of the log")
    for key in keys:
        known = Known(clean, points.get(key, 0), starts.get(key, 0), marks.get(key))
        planned = _planned(
            logs, key, known, cleaned.get(key), configuration.topic(key[0]), now, general, is_running
        )
        yield replace(planned, kept=configuration.why_kept(key[0]))


def _planned(
    logs: Path,
    key: PartitionKey,
    known: Known,
    checkpointed: int | None,
    settings: TopicSettings,
    now: int,
    general: list[str],
    is_running: bool,
) -> PartitionPlan:
    topic, number = key
    directory = logs / f"{topic}-{number}"
    empty = PartitionPlan(topic, number, settings.cleanup_policy_text)
    for _ in range(_TRIES):
        try:
            segments = listed(directory)
            unknown = (*general, *_unknown(directory, segments, settings, is_running))
            if not segments:
                return PartitionPlan(topic, number, settings.cleanup_policy_text, unknown=unknown)
            offsets = offsets_of(segments, known)
            removals = tuple(due(segments, offsets, settings, now))
            return PartitionPlan(
                topic,
                number,
                settings.cleanup_policy_text,
                len(segments),
                sum(segment.size for segment in segments),
                removals,
                None if removals else forecast(segments, offsets, settings, now),
                _cleaning(segments, offsets, settings, checkpointed, now),
                unknown,
            )
        except FileNotFoundError as error:
            failure: Exception = error
        except (OSError, CorruptError) as error:
            failure = error
            break
    return PartitionPlan(empty.topic, empty.number, empty.policy, error=str(failure))


def _cleaning(
    segments: list[SegmentOnDisk],
    offsets: LogOffsets,
    settings: TopicSettings,
    checkpointed: int | None,
    now: int,
) -> Candidate | None:
    return assess(segments, offsets, settings, checkpointed, now) if settings.compact else None


def _unknown(
    directory: Path, segments: list[SegmentOnDisk], settings: TopicSettings, is_running: bool
) -> list[str]:
    """Return in words what this partition's files do not tell."""
    unknown = []
    suffixes = {path.suffix for path in directory.iterdir()}
    if SWAP_SUFFIX in suffixes:
        unknown.append("a compaction is replacing segments, or was interrupted in that")
    elif CLEANED_SUFFIX in suffixes:
        unknown.append("a compaction is under way, or was interrupted")
    if is_running:
        if settings.delete and settings.retention_ms >= 0 and len(segments) == 1:
            unknown.append(
                "the active segment may go later than is said here: its latest timestamps are not in its time index yet"
            )
        if settings.compact:
            unknown.append(
                "its files do not tell whether a transaction is open (`open_transactions` in status.json does): what "
                "follows one is not compacted"
            )
    if not segments:
        unknown.append("there are no segments")
    return unknown
