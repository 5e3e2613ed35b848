"""The settings of a store and their files: `server.properties`, and `topics/<topic>.properties` beside it.

A change is checked as a whole, then written, and only then takes effect.

    created-topics      the ids of the topics that were made here, one per line

A topic whose id is not among them is adopted: a broker, or somebody with cp, has put it there. No default of ours
removes its records: see `topicfs.engine.settings.topic`. The settings of a topic in its cluster apply only if the
cluster has the same id for that name.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from topicfs.engine.cluster.image import Cluster, ClusterTopic
from topicfs.engine.errors import CorruptCheckpointError, InvalidNameError, InvalidSettingError
from topicfs.engine.files.atomic import read_bounded, sync_directory, write_atomically
from topicfs.engine.files.metadata import PartitionMetadata, parse_uuid
from topicfs.engine.files.properties import MAX_BYTES, edit_properties, read_properties, write_properties
from topicfs.engine.format.paths import (
    CREATED_TOPICS,
    MAX_NAME_LENGTH,
    PROPERTIES_SUFFIX,
    SERVER_PROPERTIES,
    TEMPORARY_SUFFIX,
    TOPICS,
    validate_topic,
)
from topicfs.engine.linked.topics import LinkedTopic, LinkedTopics
from topicfs.engine.record import Clock
from topicfs.engine.settings import topic as topic_settings
from topicfs.engine.settings.broker import split_lines
from topicfs.engine.settings.daemon import DaemonSettings, resolve_daemon
from topicfs.engine.settings.lookup import SYNONYMS, TOPIC_BY_NAME, TOPIC_HINTS
from topicfs.engine.settings.setting import Setting, refuse_unknown
from topicfs.engine.settings.topic import (
    KEPT,
    KEPT_OF_EXEMPT,
    OURS,
    Explained,
    TopicOrigin,
    TopicSettings,
    resolve_topic,
)

log = logging.getLogger(__name__)


INTERNAL_TOPICS: Final = frozenset(
    {
        "__cluster_metadata",
        "__consumer_offsets",
        "__remote_log_metadata",
        "__share_group_state",
        "__transaction_state",
    }
)
"""Kafka's own topics, whose settings come from Kafka's code."""

_MOST_CREATED_BYTES: Final = 64 * 1024 * 1024
_LONGEST_ID: Final = 64
"""No line of it is longer; an id has 22 characters."""
_MOST_IDLE: Final = 1000
_LONGEST_TOPIC: Final = MAX_NAME_LENGTH - len(PROPERTIES_SUFFIX + TEMPORARY_SUFFIX)


@dataclass(frozen=True, slots=True)
class _State:
    """The current settings; replaced as a whole.

    lines      the lines of server.properties, with the lines that were given at the opening in their place
    daemon     the daemon's settings, from these lines
    defaults   the settings of a topic without overrides
    overrides  the overrides by topic, for the topics that have any
    resolved   the settings of these topics
    """

    lines: Mapping[str, str]
    daemon: DaemonSettings
    defaults: TopicSettings
    overrides: Mapping[str, Mapping[str, str]]
    resolved: Mapping[str, TopicSettings]


class Configuration:
    """The settings of one store. Changing them needs the store's guard; reading them needs no lock.

    cluster      the topics and settings in a broker's metadata log, if there is one
    linked       the topics that are mirrored from a Kafka cluster
    others       the names in server.properties that have no meaning here
    _backing     the store's directory
    _clock       gives the date that is written into new files
    _state       the current settings, see _State
    _found       by topic: the directories of the partitions that were found at the opening
    _created     the ids of the topics that were made here
    _first_origins  by topic: the origin that its files and the cluster tell, once it was asked for
    _origins     by topic: the origin that is used, the state that it was used with, and the settings that result
    """

    def __init__(
        self,
        backing: Path,
        clock: Clock,
        state: _State,
        cluster: Cluster,
        found: Mapping[str, Sequence[Path]],
        created: Collection[str],
        others: tuple[str, ...],
        linked: LinkedTopics,
    ) -> None:
        self.cluster = cluster
        self.linked = linked
        self.others = others
        self._backing = backing
        self._clock = clock
        self._state = state
        self._found = dict(found)
        self._created = set(created)
        self._first_origins: dict[str, TopicOrigin] = {}
        self._origins: dict[str, tuple[TopicOrigin, _State, TopicSettings]] = {}

    @classmethod
    def load(
        cls,
        backing: Path,
        given: Mapping[str, str],
        clock: Clock,
        cluster: Cluster | None = None,
        found: Mapping[str, Sequence[Path]] | None = None,
    ) -> Configuration:
        """Read every file. InvalidSettingError, CorruptCheckpointError or InvalidNameError, with the file's
        path, where one is refused. Names in server.properties that only a broker uses are ignored.

        given  lines that take precedence over those of server.properties
        found  by topic: the directories of its partitions, which are read when the topic is asked for"""
        path = backing / SERVER_PROPERTIES
        try:
            lines, others = split_lines(_read(path))
            resolve_daemon(lines)
        except InvalidSettingError as error:
            raise InvalidSettingError(f"{path}: {error}") from None
        lines |= given
        overrides = {}
        files = sorted((backing / TOPICS).iterdir()) if (backing / TOPICS).is_dir() else ()
        for file in files:
            if file.suffix == PROPERTIES_SUFFIX and file.is_file():
                try:
                    topic = validate_topic(file.name.removesuffix(PROPERTIES_SUFFIX))
                except InvalidNameError as error:
                    raise InvalidNameError(f"{file}: {error}") from None
                overrides[topic] = _read(file)
        state = _resolved(backing, lines, resolve_daemon(lines), overrides)
        created = _read_created(backing / CREATED_TOPICS)
        linked = LinkedTopics.load(backing)
        return cls(backing, clock, state, cluster or Cluster(), found or {}, created, tuple(others), linked)

    @property
    def daemon(self) -> DaemonSettings:
        """The settings of the daemon."""
        return self._state.daemon

    @property
    def topic_defaults(self) -> TopicSettings:
        """The settings of a topic without overrides."""
        return self._state.defaults

    def topic(self, topic: str) -> TopicSettings:
        """Return the settings of a topic, whether or not it exists."""
        state = self._state
        if topic in self._found or topic in INTERNAL_TOPICS:
            known = self._origins.get(topic)
            if known is None or known[1] is not state:
                known = self._origins[topic] = self._settings_of_found(topic, state)
            return known[2]
        return state.resolved.get(topic, state.defaults)

    def _settings_of_found(self, topic: str, state: _State) -> tuple[TopicOrigin, _State, TopicSettings]:
        origin = self._origin(topic)
        overrides = state.overrides.get(topic, {})
        try:
            return origin, state, resolve_topic(overrides, state.lines, origin)
        except InvalidSettingError as error:
            # The cluster's settings and ours exclude each other. Ours alone are allowed, but must not remove records.
            log.error(f"topic {topic}: what its cluster says of it is left out: {error}")
            origin = TopicOrigin(adopted=True, exempt=True)
            return origin, state, resolve_topic(overrides, state.lines, origin)

    def origin(self, topic: str) -> TopicOrigin:
        """Return the origin of a topic."""
        if topic in self._found or topic in INTERNAL_TOPICS:
            self.topic(topic)
            return self._origins[topic][0]
        return OURS

    def why_kept(self, topic: str) -> str | None:
        """Return why a topic's records are neither deleted nor compacted; None where its settings decide that."""
        origin = self.origin(topic)
        if origin == OURS:
            return None
        sources = {each.name: each.source for each in self.explain(topic)}
        settings = self.topic(topic)
        missing = [name for name in ("cleanup.policy", "retention.ms") if sources[name] == KEPT]
        if not missing or (
            "cleanup.policy" not in missing and (settings.compact or settings.retention_bytes >= 0)
        ):
            return None
        return (
            "its records were not made here, and nobody has said how long they are kept: they stay until "
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} set, "
            f"for the topic{'' if origin.exempt else ' or for all of them in server.properties'}"
        )

    def cluster_topic(self, topic: str) -> ClusterTopic | None:
        """Return the cluster's entry for a topic that was found at the opening; None where it has none with its id."""
        known = self.cluster.topics.get(topic)
        if known is None or topic not in self._found:
            return None
        ids = self._ids(topic)
        return known if all(each in (None, known.topic_id) for each in ids) else None

    def linked_topic(self, topic: str) -> LinkedTopic | None:
        """Return what is known of a topic that is mirrored from a Kafka cluster; None if it is not."""
        return self.linked.of(self._ids(topic))

    def _ids(self, topic: str) -> set[str | None]:
        return _ids_in(self._found.get(topic, ()))

    def _origin(self, topic: str) -> TopicOrigin:
        found = self._first_origins.get(topic)
        if found is None:
            found = self._first_origins[topic] = self._look_at_origin(topic)
        return found

    def _look_at_origin(self, topic: str) -> TopicOrigin:
        linked = self.linked_topic(topic)
        if linked is not None:
            return _origin_of_linked(linked)
        known = self.cluster_topic(topic)
        adopted = topic in self._found and not self._ids(topic) <= self._created
        internal = topic in INTERNAL_TOPICS
        if known is None:
            exempt = internal or (adopted and not self.cluster.is_believed)
            return TopicOrigin(adopted=adopted, exempt=exempt)
        settings = _allowed(known.settings, TOPIC_BY_NAME, f"topic {topic} of the cluster")
        is_cut = not known.settings.keys() & KEPT_OF_EXEMPT.keys() <= settings.keys()
        broker = _allowed(self.cluster.settings, SYNONYMS, "the cluster's broker")
        return TopicOrigin(settings, broker, adopted, known=True, exempt=internal or is_cut)

    # -- where topics come from -----------------------------------------------------------------------

    def note_created(self, topic_id: str) -> None:
        """Record the id of a topic that is about to be made here. The id is on disk before the topic exists."""
        if topic_id in self._created:
            return
        path = self._backing / CREATED_TOPICS
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            line = _end_last_line(descriptor) + topic_id.encode() + b"\n"
            if os.write(descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_directory(path.parent)
        self._created.add(topic_id)

    def tidy_created(self, deleted: Collection[Path]) -> None:
        """Forget the ids of topics that no longer exist, once there are many. The caller has locked the store.

        deleted  directories of deleted partitions that may be restored: the ids of their topics are kept"""
        if len(self._created) > _MOST_IDLE + 2 * (len(self._found) + len(deleted)):
            found = _ids_in(deleted).union(*map(self._ids, self._found))
            self._created &= {topic_id for topic_id in found if topic_id is not None}
            lines = "".join(f"{topic_id}\n" for topic_id in sorted(self._created))
            write_atomically(self._backing / CREATED_TOPICS, lines.encode())

    def forget_found(self, topic: str) -> None:
        """Forget a topic that was found at the opening and is now deleted: a later one of that name is another."""
        self._found.pop(topic, None)
        self._first_origins.pop(topic, None)
        self._origins.pop(topic, None)

    def put_linked(self, topics: Collection[LinkedTopic]) -> None:
        """Note, durably and in one step, what a Kafka cluster says of topics that are mirrored here."""
        self.linked.put(topics)
        for topic in topics:
            self._first_origins.pop(topic.name, None)
            self._origins.pop(topic.name, None)

    def find_again(self, topic: str, directory: Path) -> None:
        """Add the directory of a restored or a linked partition to those that were found."""
        known = self._found.get(topic, ())
        self.forget_found(topic)
        self._found[topic] = [*known, directory]

    def find_all_again(self, found: Mapping[str, Sequence[Path]], cluster: Cluster) -> None:
        """Take the directories of partitions, by topic, and the metadata of their cluster as they are now."""
        self.cluster, self._found = cluster, dict(found)
        self._first_origins, self._origins = {}, {}

    def overrides(self, topic: str) -> Mapping[str, str]:
        """Return the overrides of a topic."""
        return self._state.overrides.get(topic, {})

    def explain(self, topic: str) -> list[Explained]:
        """Return every setting of the topic, with its source."""
        state = self._state
        return topic_settings.explain(state.overrides.get(topic, {}), state.lines, self.origin(topic))

    # -- changing -------------------------------------------------------------------------------------

    def check(self, topic: str, overrides: Mapping[str, str]) -> TopicSettings:
        """Return the settings of a topic with these overrides; InvalidSettingError where they are not allowed."""
        if len(topic) > _LONGEST_TOPIC and overrides:
            raise InvalidSettingError(
                f"topic of {len(topic)} characters: expected at most {_LONGEST_TOPIC} for one with settings of "
                f"its own, as its file's name ends in {PROPERTIES_SUFFIX}"
            )
        return resolve_topic(overrides, self._state.lines, self.origin(topic))

    def set_topic(self, topic: str, overrides: Mapping[str, str]) -> None:
        """Set all overrides of a new topic. A file that is left of an earlier topic of that name is replaced."""
        settings = self.check(topic, overrides)
        if overrides:
            comment = f"Settings of the topic {topic}"
            with _unchanged_on_error(self._path(topic)):
                write_properties(self._path(topic), overrides, comment, self._clock)
            self._publish(topic, overrides, settings)
        else:
            self.remove_topic(topic)

    def change_topic(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """Change some overrides of a topic; None removes one. Comments in the file stay."""
        refuse_unknown("topic", changes, TOPIC_BY_NAME, TOPIC_HINTS)
        wanted = _changed(self.overrides(topic), changes)
        settings = self.check(topic, wanted)
        if changes:
            with _unchanged_on_error(self._path(topic)):
                edit_properties(self._path(topic), changes)
        self._publish(topic, wanted, settings)

    def restore_topic(self, topic: str, kept: Path) -> None:
        """Restore the overrides that `remove_topic` has kept, if it kept some and the topic has none now."""
        if topic in self._state.overrides or not kept.exists():
            return
        overrides = _read(kept)
        settings = self.check(topic, overrides)
        kept.replace(self._path(topic))
        sync_directory(self._backing / TOPICS)
        self._publish(topic, overrides, settings)

    def remove_topic(self, topic: str, kept: Path | None = None) -> None:
        """Drop the topic's overrides. Their file is removed, or moved to the path `kept`."""
        state = self._state
        if topic in state.overrides:
            path = self._path(topic)
            if kept is None:
                path.unlink(missing_ok=True)
            else:
                with contextlib.suppress(FileNotFoundError):
                    path.replace(kept)
            sync_directory(self._backing / TOPICS)
            self._state = replace(
                state,
                overrides={name: each for name, each in state.overrides.items() if name != topic},
                resolved={name: each for name, each in state.resolved.items() if name != topic},
            )

    def _publish(self, topic: str, overrides: Mapping[str, str], settings: TopicSettings) -> None:
        state = self._state
        self._state = replace(
            state,
            overrides={**state.overrides, topic: dict(overrides)},
            resolved={**state.resolved, topic: settings},
        )

    def _path(self, topic: str) -> Path:
        return _topic_file(self._backing, topic)


def _origin_of_linked(topic: LinkedTopic) -> TopicOrigin:
    """Return the origin of a topic that is mirrored: as long as its settings are not known, no default of ours removes
    its records."""
    if topic.settings is None:
        return TopicOrigin(adopted=True, exempt=True)
    settings = _allowed(topic.settings, TOPIC_BY_NAME, f"topic {topic.name} of the cluster")
    broker = _allowed(topic.broker, SYNONYMS, f"topic {topic.name} of the cluster")
    is_cut = not topic.settings.keys() & KEPT_OF_EXEMPT.keys() <= settings.keys()
    return TopicOrigin(settings, broker, known=True, exempt=is_cut)


def _ids_in(directories: Iterable[Path]) -> set[str | None]:
    """Return the topic ids in partition directories, with None among them if a directory has no readable id."""
    ids = set()
    for directory in directories:
        try:
            ids.add(PartitionMetadata.load(directory).topic_id)
        except (CorruptCheckpointError, OSError):
            ids.add(None)
    return ids


def _read_created(path: Path) -> set[str]:
    """Return the ids in the file. A line that is no id was left by a crash, and is ignored."""
    try:
        text = read_bounded(path, _MOST_CREATED_BYTES).decode("ascii", "replace")
    except FileNotFoundError:
        return set()
    return {topic_id for line in text.splitlines() if (topic_id := parse_uuid(line.strip())) is not None}


def _end_last_line(descriptor: int) -> bytes:
    """Cut off a last line that is no id, as a crash leaves it: its topic was not made. Return what has to be written
    before another line."""
    size = os.fstat(descriptor).st_size
    tail = os.pread(descriptor, _LONGEST_ID, max(0, size - _LONGEST_ID))
    last = tail.rpartition(b"\n")[2]
    if not last:
        return b""
    if len(last) < _LONGEST_ID and parse_uuid(last.decode("ascii", "replace").strip()) is None:
        os.ftruncate(descriptor, size - len(last))
        return b""
    return b"\n"


def _allowed(values: Mapping[str, str], known: Mapping[str, Setting], whose: str) -> dict[str, str]:
    """Return those settings that exist here and have an allowed value. A value that is not allowed is logged; it may
    then make the topic exempt, so that its records are kept."""
    allowed = {}
    for name, value in values.items():
        if name in known:
            try:
                known[name].parse(value)
            except InvalidSettingError as error:
                log.warning(f"{whose}: a setting is left out: {error}")
            else:
                allowed[name] = value
    return allowed


@contextlib.contextmanager
def _unchanged_on_error(path: Path) -> Iterator[None]:
    """Restore the old content of a file if the error came after the file was replaced: a change that was refused must
    not take effect at the next start."""
    before = _content(path)
    try:
        yield
    except BaseException:
        if _content(path) != before:
            log.error(f"{path}: could not be written durably, and is given its old content back")
            if before is None:
                path.unlink()
                sync_directory(path.parent)
            else:
                write_atomically(path, before)
        raise


def _content(path: Path) -> bytes | None:
    try:
        return read_bounded(path, MAX_BYTES, follow=True)
    except FileNotFoundError:
        return None


def _topic_file(backing: Path, topic: str) -> Path:
    return backing / TOPICS / (topic + PROPERTIES_SUFFIX)


def _read(path: Path) -> dict[str, str]:
    try:
        return read_properties(path)
    except FileNotFoundError:
        return {}


def _changed(lines: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    merged: dict[str, str | None] = {**lines, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def _resolved(
    backing: Path,
    lines: Mapping[str, str],
    daemon: DaemonSettings,
    overrides: Mapping[str, Mapping[str, str]],
) -> _State:
    resolved = {}
    for topic, own in overrides.items():
        try:
            resolved[topic] = resolve_topic(own, lines)
        except InvalidSettingError as error:
            raise InvalidSettingError(f"{_topic_file(backing, topic)}: {error}") from None
    return _State(lines, daemon, resolve_topic({}, lines), overrides, resolved)
