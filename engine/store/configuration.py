"""The settings of a store and their files: `server.properties`, and `topics/<topic>.properties` beside it.

A change is checked as a whole, then written, and only then takes effect.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from engine.errors import InvalidNameError, InvalidSettingError
from engine.files.atomic import TEMPORARY_SUFFIX, read_bounded, sync_directory, write_atomically
from engine.files.names import MAX_NAME_LENGTH, validate_topic
from engine.files.properties import MAX_BYTES, edit_properties, read_properties, write_properties
from engine.record import Clock
from engine.settings import topic as topic_settings
from engine.settings.daemon import DaemonSettings, resolve_daemon, validate_change
from engine.settings.lookup import DAEMON_BY_NAME, DAEMON_HINTS, TOPIC_BY_NAME, TOPIC_HINTS
from engine.settings.setting import refuse_unknown
from engine.settings.topic import Explained, TopicSettings, resolve_topic

log = logging.getLogger(__name__)

SERVER_PROPERTIES: Final = "server.properties"
TOPICS: Final = "topics"
PROPERTIES_SUFFIX: Final = ".properties"

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

    _backing  the store's directory
    _clock    dates new files
    _state    see _State
    """

    def __init__(self, backing: Path, clock: Clock, state: _State) -> None:
        self._backing = backing
        self._clock = clock
        self._state = state

    @classmethod
    def load(cls, backing: Path, given: Mapping[str, str], clock: Clock) -> Configuration:
        """Read every file. InvalidSettingError, CorruptCheckpointError or InvalidNameError, with the file's
        path, where one is refused. The lines `given` outrank those of server.properties."""
        path = backing / SERVER_PROPERTIES
        lines = _read(path)
        try:
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
        return cls(backing, clock, _resolved(backing, lines, resolve_daemon(lines), overrides))

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
        return state.resolved.get(topic, state.defaults)

    def overrides(self, topic: str) -> Mapping[str, str]:
        """The topic's own lines."""
        return self._state.overrides.get(topic, {})

    def explain(self, topic: str) -> list[Explained]:
        """Every setting of the topic, with where it comes from."""
        state = self._state
        return topic_settings.explain(state.overrides.get(topic, {}), state.lines)

    # -- changing -------------------------------------------------------------------------------------

    def check(self, topic: str, overrides: Mapping[str, str]) -> TopicSettings:
        """What a topic with these overrides would have; InvalidSettingError where they are not allowed."""
        if len(topic) > _LONGEST_TOPIC and overrides:
            raise InvalidSettingError(
                f"topic of {len(topic)} characters: expected at most {_LONGEST_TOPIC} for one with settings of "
                f"its own, as its file's name ends in {PROPERTIES_SUFFIX}"
            )
        return resolve_topic(overrides, self._state.lines)

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
