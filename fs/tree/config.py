"""`topics/<topic>/config`: the file in which a topic's settings are read and changed.

    name=value                    # source      when read: a setting in force, and where it comes from
    name=value                                  when written: the topic's own value from now on
    name=default                                removes that value; so does `name=`, unless an empty value is valid
    # comment                                   has no effect, like a blank line

A comment begins at a `#` that is the first on its line or follows a blank.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from topicfs.engine.errors import InvalidSettingError, shown
from topicfs.engine.settings.lookup import TOPIC_BY_NAME, TOPIC_HINTS
from topicfs.engine.settings.setting import Setting, refuse_unknown
from topicfs.engine.settings.topic import Explained
from topicfs.fs import errors
from topicfs.fs.tree.control_files import ControlFile, TakeBack
from topicfs.fs.tree.topic_entry import TopicEntry

log = logging.getLogger(__name__)

DEFAULT: Final = "default"
TOPIC: Final = "topic"
_COMMENT: Final = re.compile(r"(?:^|\s)\s*#")
_ELSEWHERE: Final = re.compile(r"default|kept|cluster|(?:cluster|daemon):\S+")


class Line(NamedTuple):
    """A line that sets something.

    name       the name of the setting
    value      the value as text; None removes the topic's own value
    elsewhere  whether the comment says, as in the file that is read, that the value does not come from the topic
    """

    name: str
    value: str | None
    elsewhere: bool


class ConfigFile(TopicEntry, ControlFile):
    """Every setting of a topic, with its value and where that comes from. Lines that are written change settings."""

    def content(self) -> bytes:
        lines = [
            f"{name}={value}".ljust(50) + f" # {source}"
            for name, value, source in self.context.store.explain(self.topic)
        ]
        refusal = self.context.refusals.get(self.topic)
        if refusal is not None:
            moment = datetime.fromtimestamp(refusal[0] / 1000, UTC)
            lines.append(f"# refused at {moment:%Y-%m-%dT%H:%M:%SZ}: {' '.join(refusal[1].split())}")
        return "".join(f"{line}\n" for line in lines).encode()

    def apply(self, lines: Sequence[str]) -> TakeBack | None:
        setting = [line for line in map(read_line, lines) if line is not None]
        if not setting:
            return None
        holding = {each.name: each for each in self.context.store.explain(self.topic)}
        changes = changes_of(setting, holding)
        if changes:
            self.context.store.configure(self.topic, changes)
            log.info(f"{self.path}: {', '.join(map(_told, changes.items()))}")
        self.context.refusals.pop(self.topic, None)
        before = {name: _own(holding, name) for name in changes}
        return lambda: self._take_back(before, changes)

    def _take_back(self, before: Mapping[str, str | None], changes: Mapping[str, str | None]) -> None:
        """Give settings their earlier values back, unless they were changed again since."""
        holding = {each.name: each for each in self.context.store.explain(self.topic)}
        undone = {name: value for name, value in before.items() if _own(holding, name) == changes[name]}
        if undone:
            self.context.store.configure(self.topic, undone)
            log.info(f"{self.path}: taken back: {', '.join(map(_told, undone.items()))}")

    def note_refusal(self, error: Exception) -> None:
        self.context.refusals[self.topic] = (self.context.store.clock(), str(error))


def read_line(text: str) -> Line | None:
    """Return what a line sets; None if nothing. BadInputError or InvalidSettingError if the line itself is bad."""
    comment = _COMMENT.search(text)
    statement = (text if comment is None else text[: comment.start()]).strip()
    if not statement:
        return None
    name, equals, value = (part.strip() for part in statement.partition("="))
    if not equals or not name:
        raise errors.BadInputError(f"expected name=value, found {shown(text)}")
    refuse_unknown("topic", (name,), TOPIC_BY_NAME, TOPIC_HINTS)
    setting = TOPIC_BY_NAME[name]
    source = "" if comment is None else text[comment.end() :].strip()
    elsewhere = _ELSEWHERE.fullmatch(source) is not None
    if value == DEFAULT or (not value and not _takes_no_text(setting)):
        return Line(name, None, elsewhere)
    setting.parse(value)
    return Line(name, value, elsewhere)


def changes_of(lines: Iterable[Line], holding: Mapping[str, Explained]) -> dict[str, str | None]:
    """Return what the lines change of the settings in force. Of several lines for one name the last one counts."""
    changes: dict[str, str | None] = {}
    for line in lines:
        present = holding.get(line.name)
        if _changes_nothing(line, present):
            changes.pop(line.name, None)
        else:
            changes[line.name] = line.value
    return changes


def _changes_nothing(line: Line, present: Explained | None) -> bool:
    if present is None:
        return line.value is None
    if line.value is None:
        return present.source != TOPIC
    # A default in a copy that is written back stays a default. On a line without its source it becomes the topic's own.
    return line.value == present.value and (present.source == TOPIC or line.elsewhere)


def _own(holding: Mapping[str, Explained], name: str) -> str | None:
    """Return the topic's own value; None if it has none."""
    found = holding.get(name)
    return None if found is None or found.source != TOPIC else found.value


def _told(change: tuple[str, str | None]) -> str:
    name, value = change
    return f"{name}={DEFAULT if value is None else value}"


def _takes_no_text(setting: Setting) -> bool:
    try:
        setting.parse("")
    except InvalidSettingError:
        return False
    return True
