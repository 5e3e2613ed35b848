"""The output of `topicfs plan`: a table for people, or JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from topicfs.engine.errors import UnknownPartitionError
from topicfs.engine.files.metadata import PartitionMetadata
from topicfs.engine.files.place import DirectoryKind, kind_of
from topicfs.engine.format.paths import LOGS, STAGING
from topicfs.engine.inbox.inboxes import Inboxes
from topicfs.engine.inbox.waiting import ITSELF, WaitingBatch
from topicfs.engine.linked.state import MirrorState
from topicfs.engine.linked.topics import LinkedTopics
from topicfs.engine.partition.partition import Partition
from topicfs.engine.plan.plan import PartitionPlan
from topicfs.engine.plan.plan import plan as planned
from topicfs.engine.record import now_ms
from topicfs.engine.retention.rules import Reason
from topicfs.engine.segment.descriptors import Descriptors
from topicfs.engine.unlocked.place import shown_at
from topicfs.fs.upkeep_status import SHOWN, cleaning, next_removal, waiting
from topicfs.mountd import mounts
from topicfs.mountd.tables import show_line, show_table, size_text, time_text

_NOT_TOLD: Final = "the daemon tells it, where its mount is named instead of the backing directory"


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a backing directory.

    partitions  what is planned for each partition
    waiting     by topic: the batches that lie in its inbox and are not committed
    links       by partition: the state of its mirror, of those that mirror a Kafka cluster's
    """

    partitions: Sequence[PartitionPlan]
    waiting: Mapping[str, Sequence[WaitingBatch]]
    links: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def make(place: Path, given: dict[str, str]) -> Plan:
    """Make the plan of a backing directory, or of what is mounted at a place."""
    backing = backing_of(place)
    mount = mounts.find(place)
    # Only a read-only mount shows several directories. Without its daemon nobody can tell which.
    shown = shown_at(place) if mount is not None and mount.read_only else None
    owner = mounts.lock_owner(backing)
    if owner is not None:
        given = {**settings_of(owner), **given}
    partitions = planned(backing, given, now_ms(), owner is not None, shown.others if shown else ())
    links = _links(backing, None if mount is None else place, partitions)
    return Plan(partitions, _waiting(backing, partitions), links)


def _links(
    backing: Path, mount: Path | None, partitions: Iterable[PartitionPlan]
) -> dict[str, Mapping[str, Any]]:
    """Return the states of the mirrors, as the daemon tells them where its mount was named."""
    linked = LinkedTopics.load(backing)
    found: dict[str, Mapping[str, Any]] = {}
    for each in partitions:
        if each.topic not in linked.names:
            continue
        topic = linked.of((PartitionMetadata.load(backing / LOGS / each.name).topic_id,))
        told = None
        if mount is not None:
            # A partition that goes at this moment is not told of.
            with contextlib.suppress(OSError, ValueError):
                told = json.loads((mount / each.name / "status.json").read_text())["link"]
        elif topic is not None:
            told = MirrorState(error=topic.ended or _NOT_TOLD).told(0)
            told = {"cluster": topic.cluster, "ended": topic.ended, **told}
        if told is not None:
            found[each.name] = told
    return found


def _waiting(backing: Path, partitions: Iterable[PartitionPlan]) -> dict[str, list[WaitingBatch]]:
    numbers: dict[str, list[int]] = {}
    for each in partitions:
        numbers.setdefault(each.topic, []).append(each.number)
    return Inboxes(
        backing / STAGING, lambda topic: numbers.get(topic, ()), _not_opened, Descriptors()
    ).waiting()


def _not_opened(topic: str, number: int) -> Partition:
    raise UnknownPartitionError(f"{topic}-{number} is not opened for a plan")


def settings_of(process: int) -> dict[str, str]:
    """Return the settings that a daemon's command was given with -o; none if they cannot be read."""
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return {}
    texts = [after for word, after in pairwise(words) if word == "-o"]
    texts += [word[2:] for word in words if word.startswith("-o") and len(word) > 2]
    named = (text.partition("=") for text in texts)
    return {name.strip(): value for name, equals, value in named if equals}


def backing_of(place: Path) -> Path:
    """Return the backing directory that a place stands for. MountError if there is none."""
    mount = mounts.find(place)
    if mount is not None and mount.backing is not None:
        return mount.backing
    if kind_of(place) not in (DirectoryKind.STORE, DirectoryKind.LOGS):
        raise mounts.MountError(
            f"{place}: expected a backing directory with logs/ in it, or a mount of topicfs, found neither"
        )
    return place


def as_json(plan: Plan) -> str:
    """Return a plan as JSON: an array with one object for each partition."""
    objects = [
        _object(each, plan.waiting.get(each.topic, ()), plan.links.get(each.name)) for each in plan.partitions
    ]
    return json.dumps(objects, indent=2)


def _object(
    plan: PartitionPlan, batches: Sequence[WaitingBatch], link: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {
        "partition": plan.name,
        "policy": plan.policy,
        "segments": plan.segments,
        "bytes": plan.bytes,
        "remove": [
            {"segment": each.segment.base_offset, "bytes": each.segment.size, "reason": each.reason.value}
            for each in plan.removals
        ],
        "next_removal": next_removal(plan.next),
        "cleaning": None if plan.cleaning is None else cleaning(plan.cleaning),
        "unknown": list(plan.unknown),
        "kept": plan.kept,
        "inbox": waiting(batches),
        "link": link,
        "error": plan.error,
    }


def show(plan: Plan, console: Console) -> None:
    """Show the table, below it what is not known, and what waits in inboxes."""
    plans = plan.partitions
    rows = [
        (
            each.name,
            each.policy if each.policy and each.kept is None else "keep",
            str(each.segments),
            size_text(each.bytes),
            retention_text(each),
            cleaning_text(each),
        )
        for each in plans
    ]
    titles = ("partition", "policy", "segments", "size", "retention", "compaction")
    show_table(console, titles, rows, right=("segments", "size"))
    if not plans:
        show_line(console, "no partitions")
    for words, names in _remarks(plans).items():
        show_line(console, f"{', '.join(names)}: {words}")
    for name, told in plan.links.items():
        show_line(console, f"{name}: {link_text(told)}")
    for topic, batches in plan.waiting.items():
        show_line(console, f"{topic}: {waiting_text(batches)}")


def link_text(told: Mapping[str, Any]) -> str:
    """Describe the mirror of a Kafka cluster's partition."""
    parts = [f"mirrors cluster {told['cluster']}"]
    if told["leader"] is not None:
        parts.append(f"leader {told['leader']}, epoch {told['leader_epoch']}")
    if told["lag_records"] is not None:
        size = "" if told["lag_bytes"] is None else f", {size_text(told['lag_bytes'])}"
        parts.append(f"{told['lag_records']} records behind{size}")
        parts.append(f"{size_text(told['bytes_per_second'])}/s")
    if told["last_error"] is not None:
        parts.append(told["last_error"])
    return "; ".join(parts)


def waiting_text(batches: Sequence[WaitingBatch]) -> str:
    """Describe what lies in an inbox and is not committed."""
    shown = ", ".join(
        f"{'inbox itself' if batch.directory == ITSELF else batch.directory} "
        f"({batch.files} files, since {time_text(batch.since_ms)})"
        for batch in batches[:SHOWN]
    )
    more = "" if len(batches) <= SHOWN else f" and {len(batches) - SHOWN} more"
    return f"not appended, as _SUCCESS has not been made there or was refused: {shown}{more}"


def _remarks(plans: Sequence[PartitionPlan]) -> dict[str, list[str]]:
    """Return the remarks and errors, each with the partitions that it applies to."""
    remarks: dict[str, list[str]] = {}
    for each in plans:
        kept = () if each.kept is None else (each.kept,)
        for words in (*each.unknown, *kept) if each.error is None else (each.error,):
            remarks.setdefault(words, []).append(each.name)
    return {words: ["all"] if len(names) == len(plans) > 1 else names for words, names in remarks.items()}


def retention_text(plan: PartitionPlan) -> str:
    """Describe what retention would do."""
    if plan.error is not None:
        return "not known"
    if plan.removals:
        parts = []
        for reason in Reason:
            of_it = [each.segment for each in plan.removals if each.reason is reason]
            if of_it:
                size = size_text(sum(segment.size for segment in of_it))
                parts.append(f"{len(of_it)} for {reason.value} ({size})")
        return "removes " + ", ".join(parts)
    if plan.next is None:
        return "nothing"
    when = []
    if plan.next.at_ms is not None:
        when.append(f"at {time_text(plan.next.at_ms)}")
    if plan.next.more_bytes is not None:
        when.append(f"after {size_text(plan.next.more_bytes)} more")
    return f"next: segment {plan.next.segment.base_offset} {' or '.join(when)}"


def cleaning_text(plan: PartitionPlan) -> str:
    """Describe what compaction would do."""
    found = plan.cleaning
    if plan.error is not None:
        return "not known"
    if found is None:
        return "-"
    if found.eligible:
        why = "overdue" if found.must_compact else f"{found.ratio:.0%} dirty"
        return (
            f"offsets {found.first_dirty} to {found.first_uncleanable}, "
            f"{size_text(found.cleanable_bytes)}, {why}"
        )
    later = found.next_eligible_ms
    return f"no: {found.why_not}" + ("" if later is None else f"; at {time_text(later)}")
