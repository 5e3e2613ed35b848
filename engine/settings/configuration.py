"""The settings of a store and their files: `server.properties`, and `topics/<topic>.properties` beside it.

A change is checked as a whole, then written, and only then takes effect.

    created-topics      the ids of the topics that were made here, one a line

A topic whose id is not among them is adopted: a broker, or somebody with cp, has put it there. No default of ours
removes its records: see `topicfs.engine.settings.topic`. What its cluster says of it holds where the topic's id is the
one that the cluster knows by that name.
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
from topicfs.engine.record import Clock
from topicfs.engine.settings import topic as topic_settings
from topicfs.engine.settings.broker import split_lines
from topicfs.engine.settings.daemon import DaemonSettings, resolve_daemon, validate_change
from topicfs.engine.settings.lookup import DAEMON_BY_NAME, DAEMON_HINTS, SYNONYMS, TOPIC_BY_NAME, TOPIC_HINTS
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
"""Kafka's own, whose settings its code gives them."""

_MOST_CREATED_BYTES: Final = 64 * 1024 * 1024
_MOST_IDLE: Final = 1000
_LONGEST_TOPIC: Final = MAX_NAME_LENGTH - len(PROPERTIES_SUFFIX + TEMPORARY_SUFFIX)


@dataclass(frozen=True, slots=True)
class _State:
    """What holds now; replaced as a whole.

    lines      of server.properties, with those that the opening was given in their place
    daemon     what they say of the daemon
    defaults   settings of a topic without overrides
    overrides  by topic, of those that have any
    resolved   settings of those topics
    """

    lines: Mapping[str, str]
    daemon: DaemonSettings
    defaults: TopicSettings
    overrides: Mapping[str, Mapping[str, str]]
    resolved: Mapping[str, TopicSettings]


class Configuration:
    """The settings of one store. Who changes them holds the store's guard; looking needs no lock.

    cluster      what a broker's metadata says of topics, where there is some
    others       names in server.properties that mean nothing here
    _backing     the store's directory
    _clock       dates new files
    _state       see _State
    _found       directories of the partitions that were found at the opening, by topic
    _created     ids of the topics that were made here
    _first_origins  of the topics that were found and asked for: where each comes from
    _origins     the same as far as it is used, the state that it was used with, and the settings then
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
    ) -> None:
        self.cluster = cluster
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
        path, where one is refused. The lines `given` outrank those of server.properties, in which names that only a
        broker uses are passed over. Of the partitions' directories
        `found`, by topic, each is looked at when its topic is asked for."""
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
        return cls(backing, clock, state, cluster or Cluster(), found or {}, created, tuple(others))

    @property
    def daemon(self) -> DaemonSettings:
        """Of the daemon."""
        return self._state.daemon

    @property
    def topic_defaults(self) -> TopicSettings:
        """Of a topic without overrides."""
        return self._state.defaults

    def topic(self, topic: str) -> TopicSettings:
        """Of a topic, known or not."""
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
            # The cluster's and ours together are not allowed: ours were, and nothing is to be removed by them alone.
            log.error(f"topic {topic}: what its cluster says of it is left out: {error}")
            origin = TopicOrigin(adopted=True, exempt=True)
            return origin, state, resolve_topic(overrides, state.lines, origin)

    def origin(self, topic: str) -> TopicOrigin:
        """Where a topic comes from."""
        if topic in self._found or topic in INTERNAL_TOPICS:
            self.topic(topic)
            return self._origins[topic][0]
        return OURS

    def why_kept(self, topic: str) -> str | None:
        """Why a topic's records are neither deleted nor compacted; None where somebody has decided what holds."""
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
        """What a cluster says of a topic that was found; None where it does not know this one."""
        known = self.cluster.topics.get(topic)
        if known is None or topic not in self._found:
            return None
        ids = self._ids(topic)
        return known if all(each in (None, known.topic_id) for each in ids) else None

    def _ids(self, topic: str) -> set[str | None]:
        return _ids_in(self._found.get(topic, ()))

    def _origin(self, topic: str) -> TopicOrigin:
        found = self._first_origins.get(topic)
        if found is None:
            found = self._first_origins[topic] = self._look_at_origin(topic)
        return found

    def _look_at_origin(self, topic: str) -> TopicOrigin:
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
        """A topic with this id is about to be made here: written down before it is there, durably."""
        if topic_id in self._created:
            return
        path = self._backing / CREATED_TOPICS
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            # A line that was cut off by a crash is ended first.
            before = b"" if not size or os.pread(descriptor, 1, size - 1) == b"\n" else b"\n"
            line = before + topic_id.encode() + b"\n"
            if os.write(descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_directory(path.parent)
        self._created.add(topic_id)

    def tidy_created(self, deleted: Collection[Path]) -> None:
        """Forget ids of topics that are gone, where they have become many. The caller holds the store.

        deleted  directories of partitions whose deletion can be taken back perhaps: their topics are not gone"""
        if len(self._created) > _MOST_IDLE + 2 * (len(self._found) + len(deleted)):
            found = _ids_in(deleted).union(*map(self._ids, self._found))
            self._created &= {topic_id for topic_id in found if topic_id is not None}
            lines = "".join(f"{topic_id}\n" for topic_id in sorted(self._created))
            write_atomically(self._backing / CREATED_TOPICS, lines.encode())

    def forget_found(self, topic: str) -> None:
        """A topic that was found is gone: a later one of that name is another."""
        self._found.pop(topic, None)
        self._first_origins.pop(topic, None)
        self._origins.pop(topic, None)

    def find_again(self, topic: str, directory: Path) -> None:
        """Take a partition's directory as found: its deletion was taken back."""
        known = self._found.get(topic, ())
        self.forget_found(topic)
        self._found[topic] = [*known, directory]

    def overrides(self, topic: str) -> Mapping[str, str]:
        """The topic's own lines."""
        return self._state.overrides.get(topic, {})

    def explain(self, topic: str) -> list[Explained]:
        """Every setting of the topic, with where it comes from."""
        state = self._state
        return topic_settings.explain(state.overrides.get(topic, {}), state.lines, self.origin(topic))

    # -- changing -------------------------------------------------------------------------------------

    def check(self, topic: str, overrides: Mapping[str, str]) -> TopicSettings:
        """What a topic with these overrides would have; InvalidSettingError where they are not allowed."""
        if len(topic) > _LONGEST_TOPIC and overrides:
            raise InvalidSettingError(
                f"topic of {len(topic)} characters: expected at most {_LONGEST_TOPIC} for one with settings of "
                f"its own, as its file's name ends in {PROPERTIES_SUFFIX}"
            )
        return resolve_topic(overrides, self._state.lines, self.origin(topic))

    def set_topic(self, topic: str, overrides: Mapping[str, str]) -> None:
        """Give a new topic its overrides, all of them; a file left over from one of that name is replaced."""
        settings = self.check(topic, overrides)
        if overrides:
            comment = f"Settings of the topic {topic}"
            with _unchanged_on_error(self._path(topic)):
                write_properties(self._path(topic), overrides, comment, self._clock)
            self._publish(topic, overrides, settings)
        else:
            self.remove_topic(topic)

    def change_topic(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """Change some overrides; None removes one. Comments in the file stay."""
        refuse_unknown("topic", changes, TOPIC_BY_NAME, TOPIC_HINTS)
        wanted = _changed(self.overrides(topic), changes)
        settings = self.check(topic, wanted)
        if changes:
            with _unchanged_on_error(self._path(topic)):
                edit_properties(self._path(topic), changes)
        self._publish(topic, wanted, settings)

    def restore_topic(self, topic: str, kept: Path) -> None:
        """Give the topic the overrides that `remove_topic` has kept, where some were kept and it has none."""
        if topic in self._state.overrides or not kept.exists():
            return
        overrides = _read(kept)
        settings = self.check(topic, overrides)
        kept.replace(self._path(topic))
        sync_directory(self._backing / TOPICS)
        self._publish(topic, overrides, settings)

    def remove_topic(self, topic: str, kept: Path | None = None) -> None:
        """Drop the topic's overrides; their file is removed, or moved to where it is to be kept."""
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

    def change_daemon(self, changes: Mapping[str, str | None]) -> None:
        """Change lines of server.properties; None removes one. A line that the opening was given is outranked
        by its change, until the next opening."""
        refuse_unknown("daemon", changes, DAEMON_BY_NAME, DAEMON_HINTS)
        state = self._state
        wanted = _changed(state.lines, changes)
        daemon = validate_change(state.lines, wanted)
        changed = _resolved(self._backing, wanted, daemon, state.overrides)
        if changes:
            with _unchanged_on_error(self._backing / SERVER_PROPERTIES):
                edit_properties(self._backing / SERVER_PROPERTIES, changes)
        self._state = changed

    def _publish(self, topic: str, overrides: Mapping[str, str], settings: TopicSettings) -> None:
        state = self._state
        self._state = replace(
            state,
            overrides={**state.overrides, topic: dict(overrides)},
            resolved={**state.resolved, topic: settings},
        )

    def _path(self, topic: str) -> Path:
        return _topic_file(self._backing, topic)


def _ids_in(directories: Iterable[Path]) -> set[str | None]:
    """The topics' ids in partitions' directories; None among them where one has none that can be read."""
    ids = set()
    for directory in directories:
        try:
            ids.add(PartitionMetadata.load(directory).topic_id)
        except (CorruptCheckpointError, OSError):
            ids.add(None)
    return ids


def _read_created(path: Path) -> set[str]:
    """The ids in the file; a line that is none is what a crash has left."""
    try:
        text = read_bounded(path, _MOST_CREATED_BYTES).decode("ascii", "replace")
    except FileNotFoundError:
        return set()
    return {topic_id for line in text.splitlines() if (topic_id := parse_uuid(line.strip())) is not None}


def _allowed(values: Mapping[str, str], known: Mapping[str, Setting], whose: str) -> dict[str, str]:
    """The settings that there are here, with values that are allowed here. A value that is not is told of; the topic's
    records are then kept as if nobody had given one."""
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
    """Give a file that is being replaced its old content back where the error came after the replacement: what was
    refused must not hold after the next start."""
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
