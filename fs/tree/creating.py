"""The making of a topic with its partitions and settings at once, through the mount.

    setfattr -n user.topicfs.create -v '{"topic":"orders","partitions":4,"settings":{"retention.ms":"-1"}}' mnt/topics

`mkdir topics/orders` makes a topic with what the settings of the daemon say. The attribute belongs to the directory
that gets the name, so that the kernel checks the permission to write there. `topicfs create` sets it. It is not
listed.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

from topicfs.engine.store.new_topic import NewTopic
from topicfs.fs import errors

CREATE: Final = "user.topicfs.create"


def text_of(topic: NewTopic) -> str:
    """Return the value of the attribute that makes a topic."""
    return json.dumps(asdict(topic))


def read(text: bytes) -> NewTopic:
    """Return the topic that a value of the attribute makes. BadInputError if it is no such value."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.BadInputError(f"{CREATE}: expected JSON, found {error}") from None
    match found:
        case {"topic": str(topic), **rest} if rest.keys() <= {"partitions", "settings"}:
            partitions: Any = rest.get("partitions")
            settings: Any = rest.get("settings", {})
            if type(partitions) in (int, type(None)) and _are_texts(settings):
                return NewTopic(topic, partitions, settings)
    raise errors.BadInputError(
        f'{CREATE}: expected {{"topic": name, "partitions": number, "settings": {{name: value}}}}, found {found!r:.200}'
    )


def _are_texts(settings: object) -> bool:
    return isinstance(settings, dict) and all(isinstance(value, str) for value in settings.values())
