"""What upkeep will do next with a partition, and what waits in its topic's inbox, as JSON: for `status.json`, and for
`topicfs plan --json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from topicfs.engine.cleaner.candidates import Candidate, look
from topicfs.engine.errors import ClosedError, EngineError
from topicfs.engine.inbox.waiting import WaitingBatch
from topicfs.engine.linked.state import MirrorState
from topicfs.engine.retention.removal import next_due
from topicfs.engine.retention.rules import Forecast
from topicfs.engine.store.store import Store
from topicfs.fs.views.partition_views import PartitionViews

SHOWN: Final = 20
"""How many of the batches that wait in an inbox are shown one by one."""

_NOT_FOLLOWED: Final = (
    "not mirrored now: the mount has no --link, or the topic is none of those that it names"
)


def upkeep(store: Store, views: PartitionViews) -> dict[str, Any]:
    """Return what is due next for an open partition, and why."""
    partition, log = views.partition, views.partition.log
    key = partition.topic, partition.number
    now = log.clock()
    try:
        removal = next_removal(next_due(log, now))
        found = cleaning(look(log, store.cleaning.offsets.get(key), now)) if log.settings.compact else None
    except ClosedError:
        removal = found = None  # the partition is offline, which is shown elsewhere
    except (EngineError, OSError) as error:
        return {"cleanup_policy": log.settings.cleanup_policy_text, "upkeep_error": str(error)}
    if found is not None:
        found["state"] = store.cleaning.states.of(key).value
        found["set_aside"] = store.cleaning.uncleanable.get(key)
        found["asked"] = store.cleaning.is_asked(key)
        found["failing"] = store.cleaning.failing.get(key, (None,))[0]
    return {
        "cleanup_policy": log.settings.cleanup_policy_text,
        "kept": store.why_kept(partition.topic),
        "next_removal": removal,
        "retention_error": store.retention.failing.get(f"{partition.topic}-{partition.number}"),
        "cleaning": found,
    }


def next_removal(next_one: Forecast[Any] | None) -> dict[str, Any] | None:
    """Return the segment that retention removes next: at once with a reason, else at a time or after more bytes."""
    if next_one is None:
        return None
    return {
        "segment": next_one.segment.base_offset,
        "reason": None if next_one.reason is None else next_one.reason.value,
        "at_ms": next_one.at_ms,
        "more_bytes": next_one.more_bytes,
    }


def cleaning(candidate: Candidate) -> dict[str, Any]:
    """Return what compaction would do now, or why it does nothing."""
    return {
        "eligible": candidate.eligible,
        "why_not": candidate.why_not or None,
        "dirty_ratio": round(candidate.ratio, 4),
        "from_offset": candidate.first_dirty,
        "to_offset": candidate.first_uncleanable,
        "bytes": candidate.cleanable_bytes,
        "must_compact": candidate.must_compact,
        "next_eligible_ms": candidate.next_eligible_ms,
    }


def waiting(batches: Sequence[WaitingBatch]) -> dict[str, Any]:
    """Return the batches that lie in an inbox and are not committed: how many, and those that wait for the longest."""
    return {
        "batches": len(batches),
        "files": sum(batch.files for batch in batches),
        "oldest": [asdict(batch) for batch in batches[:SHOWN]],
    }


def inbox(store: Store, topic: str) -> dict[str, Any]:
    """Return what waits in the inbox of a topic."""
    try:
        return waiting(store.inboxes.of(topic).waiting())
    except (EngineError, OSError) as error:
        return {"error": str(error)}


def link(store: Store, topic: str, number: int) -> dict[str, Any] | None:
    """Return the state of a partition's mirror; None where it mirrors no partition of a Kafka cluster."""
    linked = store.links.topic(topic)
    if linked is None:
        return None
    state = store.links.mirrors.get((topic, number))
    if state is None:
        links = store.links
        problem = links.problems.get(topic)
        why = linked.ended or links.error or (problem and str(problem)) or links.group or _NOT_FOLLOWED
        state = MirrorState(error=why)
    return {
        "cluster": linked.cluster,
        "began_at": linked.begins.get(number),
        "ended": linked.ended,
        **state.told(store.clock()),
    }
