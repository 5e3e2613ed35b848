"""Following a cluster: which of its topics are mirrored, which partitions they have, who leads them, what is set there.

a topic matches and is not here         its partitions are made here, under its id
… has the name of a local one           the local one stays, and nothing is mirrored
… has more partitions than here         they are made here
… is gone from the cluster              what was mirrored stays, and says so
… was made anew there, with another id  the same: two topics never mix. Deleted here, the new one is mirrored
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from topicfs.engine.errors import ClosedError, EngineError, LinkError
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.link.cluster import (
    EARLIEST,
    LATEST,
    Cluster,
    ClusterPartition,
    DescribedTopic,
    Description,
    TopicConfig,
)
from topicfs.engine.link.mirror import Mirror
from topicfs.engine.link.options import LinkOptions
from topicfs.engine.linked.topics import LinkedTopic
from topicfs.engine.store.store import Store

log = logging.getLogger(__name__)

_CONFIGS_AT_ONCE: Final = 100
"""Topics whose settings are asked for in one request."""


class Following:
    """The topics that are mirrored. One thread calls `look`, again and again.

    store     the store with the mirrors
    cluster   the cluster
    options   what is mirrored
    mirrors   the mirrors, by topic and partition
    problems  by topic: why a topic that is wanted is not mirrored
    leaders   by topic and partition: who led it at the last look
    """

    def __init__(self, store: Store, cluster: Cluster, options: LinkOptions) -> None:
        self.store = store
        self.cluster = cluster
        self.options = options
        self.mirrors: dict[PartitionKey, Mirror] = {}
        self.problems: dict[str, str] = {}
        self.leaders: dict[PartitionKey, ClusterPartition] = {}

    def look(self) -> None:
        """Ask the cluster, and make what is missing here. LinkError where the cluster cannot be asked: then all stays
        as it is."""
        here = [topic for topic in self.store.linked.by_id.values() if self._is_here(topic)]
        names = {*self.options.exact(), *(topic.name for topic in here)}
        told = self.cluster.describe(sorted(names))
        problems = {name: why for name, why in told.problems.items() if self.options.wants(name)}
        for topic in here:
            self._note_end(topic, told)
        wanted = [topic for topic in told.topics.values() if self._wants(topic)]
        configs = self._configs([topic.name for topic in wanted])
        leaders: dict[PartitionKey, ClusterPartition] = {}
        for each in wanted:
            try:
                leaders |= self._follow(each, told.cluster, configs.get(each.name))
            except (EngineError, OSError) as error:
                problems[each.name] = str(error)
        for key in [each for each in self.mirrors if each not in leaders]:
            self.mirrors.pop(key).release()
        self.leaders = leaders
        self._tell(problems)

    def _is_here(self, topic: LinkedTopic) -> bool:
        return self.store.linked_topic(topic.name) == topic

    def _wants(self, topic: DescribedTopic) -> bool:
        name = topic.name
        return self.options.wants(name) and (not topic.internal or name in self.options.exact())

    def _tell(self, problems: Mapping[str, str]) -> None:
        for name, why in problems.items():
            if self.problems.get(name) != why:
                log.warning(f"topic {name} is not mirrored: {why}")
        self.problems = dict(problems)

    # -- topics ---------------------------------------------------------------------------------------

    def _note_end(self, topic: LinkedTopic, told: Description) -> None:
        """Note whether a mirrored topic is still in its cluster."""
        if topic.cluster != told.cluster:
            return
        found, ended = told.topics.get(topic.name), topic.ended
        if found is not None and found.topic_id == topic.topic_id:
            ended = None
        elif found is not None:
            ended = (
                f"the topic was deleted in the cluster and made anew there, with topic id {found.topic_id}: nothing "
                f"more is mirrored, and what was mirrored stays. To mirror the new one, delete {topic.name} here"
            )
        elif topic.name in told.unknown:
            ended = (
                "the topic was deleted in the cluster: nothing more is mirrored, and what was mirrored stays"
            )
        if ended != topic.ended:
            log.warning(f"topic {topic.name}: {ended or 'is in the cluster again'}")
            self.store.link(replace(topic, ended=ended), ())

    def _configs(self, names: Sequence[str]) -> dict[str, TopicConfig | str]:
        found: dict[str, TopicConfig | str] = {}
        for first in range(0, len(names), _CONFIGS_AT_ONCE):
            found |= self.cluster.topic_configs(names[first : first + _CONFIGS_AT_ONCE])
        return found

    def _follow(
        self, topic: DescribedTopic, cluster: str, config: TopicConfig | str | None
    ) -> dict[PartitionKey, ClusterPartition]:
        """Make what is missing of a topic, and return who leads its partitions."""
        name, topic_id = topic.name, topic.topic_id
        linked = self.store.linked_topic(name)
        if linked is None and name in self.store.topics():
            raise LinkError(f"a local topic has this name, and stays: {name} of the cluster is left out")
        if linked is not None and linked.cluster != cluster:
            raise LinkError(f"the one that is here mirrors a topic of another cluster, {linked.cluster}")
        if linked is not None and linked.topic_id != topic_id:
            raise LinkError(linked.ended or f"another topic is here, with id {linked.topic_id}")
        entry = linked or self.store.linked.by_id.get(topic_id) or LinkedTopic(topic_id, name, cluster)
        if isinstance(config, TopicConfig):
            entry = replace(entry, settings=config.settings, broker=config.broker)
        else:
            log.info(f"topic {name}: its settings are not known, and its records are kept: {config}")
        self.store.link(entry, topic.partitions)
        for number in topic.partitions:
            self._have_mirror(name, number, topic_id)
        begun = self._begun(topic)
        return {(name, number): leader for number, leader in topic.partitions.items() if number in begun}

    def _have_mirror(self, topic: str, number: int, topic_id: str) -> None:
        """Have a mirror of a partition, and another one when the partition was deleted here and made again."""
        known = self.mirrors.get((topic, number))
        try:
            partition = self.store.partition(topic, number)
        except ClosedError as error:
            log.error(f"{topic}-{number}: is not mirrored: {error}")
            partition = None
        if known is not None and known.partition is not partition:
            self.mirrors.pop((topic, number)).release()
            known = None
        if known is None and partition is not None:
            self.mirrors[topic, number] = Mirror(self.store, partition, topic_id)

    def _begun(self, topic: DescribedTopic) -> set[int]:
        """Decide where mirrors begin that have not begun yet. Return the partitions whose mirrors have begun."""
        begins = dict(self.store.linked.by_id[topic.topic_id].begins)
        new: dict[int, int] = {}
        mirrors = {
            number: mirror
            for number in topic.partitions
            if (mirror := self.mirrors.get((topic.name, number))) is not None
        }
        for number, mirror in mirrors.items():
            if number not in begins:
                try:
                    new[number] = self._first_offset(topic.name, number, topic.partitions[number])
                except LinkError as error:
                    mirror.fail(f"where to begin is not known: {error}", 0.0)
        if new:
            # Noted first: a crash in between leaves an empty log, which begins there the next time.
            self.store.linked.begin(topic.topic_id, new)
        begins |= new
        for number in begins.keys() & mirrors.keys():
            now = mirrors[number].partition.offsets
            if now.start == now.end < begins[number]:
                self.store.restart_at(topic.name, number, begins[number])
        return begins.keys() & mirrors.keys()

    def _first_offset(self, topic: str, number: int, leader: ClusterPartition) -> int:
        if leader.leader < 0:
            raise LinkError(f"{topic}-{number}: has no leader")
        wanted, ask = self.options.beginning, partial(self.cluster.offset_at, topic, number, leader)
        earliest = ask(EARLIEST) or 0
        if wanted.offset is not None:
            return min(max(wanted.offset, earliest), ask(LATEST) or 0)
        moment = wanted.timestamp if wanted.age_ms is None else max(0, self.store.clock() - wanted.age_ms)
        found = earliest if moment == EARLIEST else ask(moment)
        return (ask(LATEST) or 0) if found is None else found
