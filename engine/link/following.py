"""Following a cluster: which of its topics are mirrored, which partitions they have, who leads them, what is set there.

a topic matches and is not here         its partitions are made here, under its id
… has the name of a local one           the local one stays, and nothing is mirrored
… has more partitions than here         they are made here
… is gone from the cluster              what was mirrored stays, and says so
… was made anew there, with another id  the same: two topics never mix. Deleted here, the new one is mirrored
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
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

_NEW_AT_ONCE: Final = 100
"""New topics that one look makes. Those that are made are mirrored while the next look makes more: a thousand take ten
seconds, where a file written for each took minutes."""


class Following:
    """The topics that are mirrored. One thread calls `look`, again and again.

    store     the store with the mirrors
    cluster   the cluster
    options   what is mirrored
    mirrors   the mirrors, by topic and partition
    leaders   by topic and partition: who led it at the last look
    rest      how many new topics were left for the next look
    _unset    by topic: why its settings in the cluster could not be had, as it was logged
    """

    def __init__(self, store: Store, cluster: Cluster, options: LinkOptions) -> None:
        self.store = store
        self.cluster = cluster
        self.options = options
        self.mirrors: dict[PartitionKey, Mirror] = {}
        self.leaders: dict[PartitionKey, ClusterPartition] = {}
        self.rest = 0
        self._unset: dict[str, str] = {}

    def look(self) -> None:
        """Ask the cluster, and make what is missing here. LinkError where the cluster cannot be asked: then all stays
        as it is."""
        here = [topic for topic in self.store.linked.by_id.values() if self._is_here(topic)]
        names = {*self.options.exact(), *(topic.name for topic in here)}
        told = self.cluster.describe(sorted(names))
        problems = {name: why for name, why in told.problems.items() if self.options.wants(name)}
        for topic in here:
            self._note_end(topic, told)
        wanted = [topic for topic in told.topics.values() if self.options.wants(topic.name)]
        here_already = self.store.topics()
        failed = self.store.link_problems
        new = [topic.name for topic in wanted if topic.name not in here_already]
        # Those that have failed come last: however many they are, they hold up no others.
        waiting = sorted(new, key=lambda name: name in failed)[_NEW_AT_ONCE:]
        self.rest = len([name for name in waiting if name not in failed])
        problems |= {name: failed[name] for name in waiting if name in failed}
        wanted = [topic for topic in wanted if topic.name not in waiting]
        leaders = self._follow(wanted, told.cluster, problems)
        for key in [each for each in self.mirrors if each not in leaders]:
            self.mirrors.pop(key).release()
        self.leaders = leaders
        self._tell(problems)

    def _follow(
        self, topics: Sequence[DescribedTopic], cluster: str, problems: dict[str, str]
    ) -> dict[PartitionKey, ClusterPartition]:
        """Make what is missing of topics, and return who leads their partitions. Why one of them cannot be mirrored is
        added to the problems. The file of linked topics has all of them, and is written as rarely as can be."""
        configs = self._configs([topic.name for topic in topics])
        entries: dict[str, LinkedTopic] = {}
        for topic in topics:
            with self._noting(topic.name, problems):
                entries[topic.name] = self._entry(topic, cluster, configs.get(topic.name))
        self.store.note_linked(entries.values())
        begun: dict[str, DescribedTopic] = {}
        begins: dict[str, Mapping[int, int]] = {}
        for topic in topics:
            if topic.name in entries:
                with self._noting(topic.name, problems):
                    self.store.link(entries[topic.name], topic.partitions)
                    for number in topic.partitions:
                        self._have_mirror(topic.name, number, topic.topic_id)
                    begins[topic.topic_id] = self._new_begins(topic)
                    begun[topic.name] = topic
        # Noted first: a crash in between leaves empty logs, which begin there the next time.
        self.store.linked.begin(begins)
        leaders: dict[PartitionKey, ClusterPartition] = {}
        for topic in begun.values():
            with self._noting(topic.name, problems):
                leaders |= {
                    (topic.name, number): self._leader(topic, number) for number in self._begin(topic)
                }
        return leaders

    @contextlib.contextmanager
    def _noting(self, topic: str, problems: dict[str, str]) -> Iterator[None]:
        """Take an error inside for one of this topic: the others are followed."""
        try:
            yield
        except (EngineError, OSError) as error:
            problems[topic] = str(error)

    def _is_here(self, topic: LinkedTopic) -> bool:
        return self.store.linked_topic(topic.name) == topic

    def _tell(self, problems: Mapping[str, str]) -> None:
        for name, why in problems.items():
            if self.store.link_problems.get(name) != why:
                log.warning(f"topic {name} is not mirrored: {why}")
        self.store.link_problems = dict(problems)

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

    def _entry(self, topic: DescribedTopic, cluster: str, config: TopicConfig | str | None) -> LinkedTopic:
        """Return what is to be known of a topic here. LinkError where it must not be mirrored."""
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
            self._unset.pop(name, None)
            return replace(entry, settings=config.settings, broker=config.broker)
        words = str(config)
        if self._unset.get(name) != words:
            self._unset[name] = words
            kept = "its records are kept" if entry.settings is None else "those that were known stay"
            log.info(f"topic {name}: its settings in the cluster are not known, and {kept}: {words}")
        return entry

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

    def _mirrors_of(self, topic: DescribedTopic) -> dict[int, Mirror]:
        found = {number: self.mirrors.get((topic.name, number)) for number in topic.partitions}
        return {number: mirror for number, mirror in found.items() if mirror is not None}

    def _new_begins(self, topic: DescribedTopic) -> dict[int, int]:
        """Decide where mirrors begin that have not begun yet."""
        begins = self.store.linked.by_id[topic.topic_id].begins
        new: dict[int, int] = {}
        for number, mirror in self._mirrors_of(topic).items():
            if number not in begins:
                try:
                    new[number] = self._first_offset(topic.name, number, topic.partitions[number])
                except LinkError as error:
                    mirror.fail(f"where to begin is not known: {error}", 0.0)
        return new

    def _begin(self, topic: DescribedTopic) -> set[int]:
        """Have empty logs begin where it was decided. Return the partitions whose mirrors have begun."""
        begins = self.store.linked.by_id[topic.topic_id].begins
        mirrors = self._mirrors_of(topic)
        for number in begins.keys() & mirrors.keys():
            mirror = mirrors[number]
            now = mirror.partition.offsets
            # Once somebody fetches it, an empty log may begin below: with a whole batch, or where the cluster was cut.
            if mirror.owner is None and now.start == now.end < begins[number]:
                self.store.restart_at(topic.name, number, begins[number])
        return begins.keys() & mirrors.keys()

    def _leader(self, topic: DescribedTopic, number: int) -> ClusterPartition:
        """Return who leads a partition. A broker that is cut off from the others tells of one who led it before."""
        told, known = topic.partitions[number], self.mirrors[topic.name, number].leader
        return told if told.leader_epoch >= known.leader_epoch else known

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
