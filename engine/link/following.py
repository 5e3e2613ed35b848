"""Following a cluster: which of its topics are mirrored, which partitions they have, who leads them, what is set there.

a topic matches and is not here         its partitions are made here, under its id
… has the name of a local one           the local one stays, and nothing is mirrored
… has more partitions than here         they are made here
… is gone from the cluster              what was mirrored stays, and says so
… is missing from one answer only       it goes on as before: a broker may not have heard of it yet, or be too busy
… was made anew there, with another id  the same: two topics never mix. Deleted here, the new one is mirrored
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from topicfs.engine.errors import ClosedError, EngineError, LinkError, LinkRefusedError
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.files.place import stores_in
from topicfs.engine.format.paths import LOG_SUFFIX, partition_directory
from topicfs.engine.link.cluster import (
    EARLIEST,
    LATEST,
    Cluster,
    ClusterPartition,
    DescribedTopic,
    Description,
    TopicConfig,
)
from topicfs.engine.link.group import Group
from topicfs.engine.link.mirror import Mirror
from topicfs.engine.link.options import LinkOptions
from topicfs.engine.linked.topics import LinkedTopic, LinkedTopics
from topicfs.engine.store.store import Store

log = logging.getLogger(__name__)

_CONFIGS_AT_ONCE: Final = 100
"""Topics whose settings are asked for in one request."""

_NEW_AT_ONCE: Final = 100
"""New topics that one look makes. Those that are made are mirrored while the next look makes more: a thousand take ten
seconds, where a file written for each took minutes."""

Problems = dict[str, EngineError | OSError]
"""By topic: why it is not mirrored."""


class Following:
    """The topics that are mirrored. One thread calls `look`, again and again.

    store     the store with the mirrors
    cluster   the cluster
    options   what is mirrored
    group     the daemons that divide the partitions; None: all are this one's
    mirrors   the mirrors, by topic and partition
    leaders   by topic and partition: who led it at the last look; those whose mirrors have begun
    cluster_id  the id by which the cluster called itself at the last look; None before the first
    rest      how many new topics were left for the next look
    _described  the topics, as they were last described
    _replaced  the ids of topics of which another has the name by now: they are no more
    _offline  by topic and partition: why it cannot be loaded here, as it was logged
    _unset    by topic: why its settings in the cluster could not be had, as it was logged
    """

    def __init__(
        self, store: Store, cluster: Cluster, options: LinkOptions, group: Group | None = None
    ) -> None:
        self.store = store
        self.cluster = cluster
        self.options = options
        self.group = group
        self.mirrors: dict[PartitionKey, Mirror] = {}
        self.leaders: dict[PartitionKey, ClusterPartition] = {}
        self.rest = 0
        self.cluster_id: str | None = None
        self._described: Mapping[str, DescribedTopic] = {}
        self._replaced: set[str] = set()
        self._unset: dict[str, str] = {}
        self._offline: dict[PartitionKey, str] = {}

    def look(self) -> None:
        """Ask the cluster, and make what is missing here. LinkError where the cluster cannot be asked: then all stays
        as it is."""
        here = [topic for topic in self.store.links.topics.by_id.values() if self._is_here(topic)]
        names = {*self.options.exact(), *(topic.name for topic in here)}
        told = self._newest(self.cluster.describe(sorted(names)))
        self.cluster_id = told.cluster
        problems: Problems = {
            name: error for name, error in told.problems.items() if self.options.wants(name)
        }
        gone = self.store.links.gone
        for topic in here:
            if topic.topic_id in gone:
                # rmdir here has deleted it meanwhile: that the cluster does not have it is no error.
                problems.pop(topic.name, None)
                continue
            with self._noting(topic.name, problems):
                self._note_end(topic, told)
        self._described = self._completed(told)
        wanted = [
            topic
            for topic in self._described.values()
            if self.options.wants(topic.name) and topic.topic_id not in gone
        ]
        here_already = self.store.topics()
        failed = self.store.links.problems
        new = [topic.name for topic in wanted if topic.name not in here_already]
        # Those that have failed come last: however many they are, they hold up no others.
        waiting = sorted(new, key=lambda name: name in failed)[_NEW_AT_ONCE:]
        self.rest = len([name for name in waiting if name not in failed])
        problems |= {name: failed[name] for name in waiting if name in failed}
        wanted = self._own(topic for topic in wanted if topic.name not in waiting)
        leaders = self._follow(wanted, told.cluster, problems)
        described = {topic.name: topic for topic in wanted}
        for key in [each for each in self.mirrors if each not in leaders]:
            if not self._goes_on(key, described.get(key[0]), told.cluster):
                self.mirrors.pop(key).release()
            elif key in self.leaders:
                leaders[key] = self.leaders[key]
        self.leaders = leaders
        self._tell(problems)
        self._note_held()

    def _newest(self, told: Description) -> Description:
        """Return what the cluster says without topics that were made anew since: a broker may not have heard of that
        yet, or its answer have been on its way for long."""
        topics = {name: each for name, each in told.topics.items() if each.topic_id not in self._replaced}
        return told if len(topics) == len(told.topics) else replace(told, topics=topics)

    def _completed(self, told: Description) -> dict[str, DescribedTopic]:
        """Return what the cluster says of its topics, with what this answer leaves out of those that are mirrored. A
        topic keeps all of its partitions for as long as it has its id: a broker may not have heard of them yet."""
        topics = dict(told.topics)
        for name, known in self._described.items():
            found = topics.get(name, replace(known, partitions={}))
            if found.topic_id != known.topic_id or known.partitions.keys() <= found.partitions.keys():
                continue
            linked = self.store.links.topic(name)
            is_same = linked is not None and linked.topic_id == known.topic_id
            if linked is not None and is_same and self._is_followed(linked, told.cluster):
                topics[name] = replace(found, partitions={**known.partitions, **found.partitions})
        return topics

    def _is_followed(self, linked: LinkedTopic, cluster: str) -> bool:
        """Tell whether a mirrored topic is one that the cluster has, as far as is known."""
        is_there = linked.ended is None and linked.topic_id not in self.store.links.gone
        return is_there and linked.cluster == cluster and self.options.wants(linked.name)

    def _goes_on(self, key: PartitionKey, described: DescribedTopic | None, cluster: str) -> bool:
        """Tell whether a mirror stays that has not begun yet, or whose topic had an error in this look."""
        linked, mirror = self.store.links.topic(key[0]), self.mirrors[key]
        return (
            linked is not None
            and described is not None
            and self._is_followed(linked, cluster)
            and linked.topic_id == mirror.topic_id == described.topic_id
            and key[1] in described.partitions
            and mirror.partition.log.is_open
        )

    def is_others(self, key: PartitionKey) -> bool:
        """Tell whether the group has given a partition to another daemon. That is not known before it has said what is
        this one's, and while this one is to join anew."""
        group = self.group
        return group is not None and group.has_joined and group.generation >= 0 and key not in group.given

    def let_go(self) -> None:
        """End the mirrors of partitions that are another daemon's by now. It needs nothing of the cluster."""
        if self.group is None:
            return
        own = self.group.given
        for key in [each for each in self.mirrors if each not in own]:
            self.mirrors.pop(key).release()
            self.leaders.pop(key, None)
        self._give_up_all_but(own)
        self._note_held()

    def give_up(self) -> None:
        """End all mirrors, for the others of the group."""
        for key in list(self.mirrors):
            self.mirrors.pop(key).release()
        self._give_up_all_but(frozenset())

    def _give_up_all_but(self, own: Collection[PartitionKey]) -> None:
        """Close the mirrored partitions that are others' by now, where those take them from here, or have done so while
        this process was stopped: then the directory is gone, and what is its own again is taken again."""
        if self.options.directory is None or self.group is None or not self.group.has_joined:
            return
        for key in self.store.partitions():
            if key[0] not in self.store.links.topics.names:
                continue
            is_gone = not (self.store.logs / partition_directory(*key)).is_dir()
            if is_gone or (key not in own and self._is_live(key[0])):
                if key in self.mirrors:
                    self.mirrors.pop(key).release()
                self.store.links.give_up(key, self.store.cleaning)

    def _is_live(self, topic: str) -> bool:
        linked = self.store.links.topic(topic)
        return linked is not None and linked.ended is None and self.options.wants(topic)

    def _take(self, topic: LinkedTopic, numbers: Iterable[int]) -> None:
        """Take those partitions of a topic that other daemons of the group have had."""
        if self.options.directory is None:
            return
        missing = [number for number in numbers if (topic.name, number) not in self.store]
        stores = stores_in(self.options.directory) if missing else []
        for number in missing:
            name = partition_directory(topic.name, number)
            found = [logs for logs in stores if (logs / name).is_dir()]
            if not found or not self._may_write((topic.name, number)):
                continue
            # Two have one only where a daemon was stopped while it made the partition. The other one has records.
            source = max(found, key=lambda logs: _size_of(logs / name))
            # Where another one was faster, the next look finds it there.
            with contextlib.suppress(FileNotFoundError):
                self.store.links.take(topic, number, source)
                self._take_beginning(topic, number, source)

    def _take_beginning(self, topic: LinkedTopic, number: int, source: Path) -> None:
        known = LinkedTopics.load(source.parent).by_id.get(topic.topic_id)
        if known is not None and number in known.begins:
            self.store.links.topics.begin({topic.topic_id: {number: known.begins[number]}})

    def _may_write(self, key: PartitionKey) -> bool:
        return self.group is None or self.group.may_write(key)

    def _note_held(self) -> None:
        if self.group is not None:
            self.group.let_go(frozenset(self.mirrors))

    def _own(self, topics: Iterable[DescribedTopic]) -> list[DescribedTopic]:
        """Return the topics with those partitions that this daemon mirrors, and tell the group what there is."""
        found = list(topics)
        if self.group is None:
            return found
        self.store.links.counts = {topic.name: len(topic.partitions) for topic in found}
        self.group.topics = frozenset(topic.name for topic in found)
        self.group.wanted = frozenset((topic.name, number) for topic in found for number in topic.partitions)
        own = self.group.given
        mine = [
            replace(
                topic, partitions={n: each for n, each in topic.partitions.items() if (topic.name, n) in own}
            )
            for topic in found
        ]
        return [topic for topic in mine if topic.partitions]

    def _follow(
        self, topics: Sequence[DescribedTopic], cluster: str, problems: Problems
    ) -> dict[PartitionKey, ClusterPartition]:
        """Make what is missing of topics, and return who leads their partitions. Why one of them cannot be mirrored is
        added to the problems. The file of linked topics has all of them, and is written as rarely as can be."""
        configs = self._configs([topic.name for topic in topics])
        entries: dict[str, LinkedTopic] = {}
        for topic in topics:
            with self._noting(topic.name, problems):
                entries[topic.name] = self._entry(topic, cluster, configs.get(topic.name))
        self.store.links.note(entries.values())
        begun: dict[str, DescribedTopic] = {}
        begins: dict[str, Mapping[int, int]] = {}
        for topic in topics:
            if topic.name in entries:
                with self._noting(topic.name, problems):
                    self._take(entries[topic.name], topic.partitions)
                    self.store.links.link(entries[topic.name], self._makeable(topic))
                    for number in self._makeable(topic):
                        self._have_mirror(topic.name, number, topic.topic_id)
                    begins[topic.topic_id] = self._new_begins(topic, problems)
                    begun[topic.name] = topic
        # Noted first: a crash in between leaves empty logs, which begin there the next time.
        self.store.links.topics.begin(begins)
        leaders: dict[PartitionKey, ClusterPartition] = {}
        for topic in begun.values():
            with self._noting(topic.name, problems):
                leaders |= {
                    (topic.name, number): self._leader(topic, number) for number in self._begin(topic)
                }
        return leaders

    def _makeable(self, topic: DescribedTopic) -> list[int]:
        """Return the partitions of a topic that are here, or may be made."""
        return [
            number
            for number in topic.partitions
            if (topic.name, number) in self.store or self._may_write((topic.name, number))
        ]

    @contextlib.contextmanager
    def _noting(self, topic: str, problems: Problems) -> Iterator[None]:
        """Take an error inside for one of this topic: the others are followed."""
        try:
            yield
        except (EngineError, OSError) as error:
            problems[topic] = error

    def _is_here(self, topic: LinkedTopic) -> bool:
        return self.store.links.topic(topic.name) == topic

    def _tell(self, problems: Problems) -> None:
        for name, error in problems.items():
            if str(self.store.links.problems.get(name)) != str(error):
                goes_on = any(key[0] == name for key in self.leaders)
                log.warning(f"topic {name} is {'mirrored as before' if goes_on else 'not mirrored'}: {error}")
        self.store.links.problems = dict(problems)

    # -- topics ---------------------------------------------------------------------------------------

    def _note_end(self, topic: LinkedTopic, told: Description) -> None:
        """Note whether a mirrored topic is still in its cluster."""
        if topic.cluster != told.cluster:
            return
        found, ended = told.topics.get(topic.name), topic.ended
        if found is not None and found.topic_id == topic.topic_id:
            ended = None
        elif found is not None:
            self._replaced.add(topic.topic_id)
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
            self.store.links.link(replace(topic, ended=ended), ())

    def _configs(self, names: Sequence[str]) -> dict[str, TopicConfig | str]:
        found: dict[str, TopicConfig | str] = {}
        for first in range(0, len(names), _CONFIGS_AT_ONCE):
            found |= self.cluster.topic_configs(names[first : first + _CONFIGS_AT_ONCE])
        return found

    def _entry(self, topic: DescribedTopic, cluster: str, config: TopicConfig | str | None) -> LinkedTopic:
        """Return what is to be known of a topic here. LinkError where it must not be mirrored."""
        name, topic_id = topic.name, topic.topic_id
        linked = self.store.links.topic(name)
        if linked is None and name in self.store.topics():
            raise LinkError(f"a local topic has this name, and stays: {name} of the cluster is left out")
        if linked is not None and linked.cluster != cluster:
            raise LinkError(f"the one that is here mirrors a topic of another cluster, {linked.cluster}")
        if linked is not None and linked.topic_id != topic_id:
            raise LinkError(linked.ended or f"another topic is here, with id {linked.topic_id}")
        entry = linked or self.store.links.topics.by_id.get(topic_id) or LinkedTopic(topic_id, name, cluster)
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
            partition = None
            # It is looked at every few seconds, and told once.
            if self._offline.get((topic, number)) != str(error):
                self._offline[topic, number] = str(error)
                log.error(f"{topic}-{number}: is not mirrored: {error}")
        else:
            self._offline.pop((topic, number), None)
        if known is not None and known.partition is not partition:
            self.mirrors.pop((topic, number)).release()
            known = None
        if known is None and partition is not None:
            may_write = partial(self._may_write, (topic, number))
            self.mirrors[topic, number] = Mirror(self.store, partition, topic_id, may_write)

    def _mirrors_of(self, topic: DescribedTopic) -> dict[int, Mirror]:
        found = {number: self.mirrors.get((topic.name, number)) for number in topic.partitions}
        return {number: mirror for number, mirror in found.items() if mirror is not None}

    def _new_begins(self, topic: DescribedTopic, problems: Problems) -> dict[int, int]:
        """Decide where mirrors begin that have not begun yet."""
        begins = self.store.links.topics.by_id[topic.topic_id].begins
        new: dict[int, int] = {}
        for number, mirror in self._mirrors_of(topic).items():
            if number not in begins:
                try:
                    new[number] = self._first_offset(topic.name, number, topic.partitions[number])
                except LinkError as error:
                    mirror.fail(f"where to begin is not known: {error}", 0.0)
                    if isinstance(error, LinkRefusedError):
                        problems[topic.name] = error
        return new

    def _begin(self, topic: DescribedTopic) -> set[int]:
        """Have empty logs begin where it was decided. Return the partitions whose mirrors have begun."""
        begins = self.store.links.topics.by_id[topic.topic_id].begins
        mirrors = self._mirrors_of(topic)
        for number in begins.keys() & mirrors.keys():
            mirror = mirrors[number]
            now = mirror.partition.offsets
            # Once somebody fetches it, an empty log may begin below: with a whole batch, or where the cluster was cut.
            is_below = now.start == now.end < begins[number]
            if mirror.owner is None and is_below and self._may_write((topic.name, number)):
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


def _size_of(directory: Path) -> int:
    """Return the bytes of a partition's segments."""
    return sum(file.stat().st_size for file in directory.glob(f"*{LOG_SUFFIX}"))
