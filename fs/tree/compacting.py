"""Compaction that is asked for through the mount, with an extended attribute that no tool sets by itself.

    setfattr -n user.topicfs.compact -v orders mnt/topics       all partitions of a topic
    setfattr -n user.topicfs.compact -v orders-0 mnt            one

A cleaner thread then compacts them next, however small their dirty part is. What compaction leaves alone, such as the
active segment, it leaves alone here too. While `cleaning.asked` in `status.json` is true, it has not come to that
partition's end. `topicfs compact` sets the attribute, and waits for that.
"""

from __future__ import annotations

from typing import Final

from topicfs.engine.store.store import Store
from topicfs.fs import errors

COMPACT: Final = "user.topicfs.compact"


def ask(store: Store, topic: str, number: int | None) -> None:
    """Have a topic, or one partition of it, compacted now."""
    numbers = store.topics().get(topic, [])
    if not numbers or number not in (None, *numbers):
        name = topic if number is None else f"{topic}-{number}"
        raise errors.NotFoundError(f"there is no {name}")
    for each in numbers if number is None else [number]:
        store.cleaning.ask((topic, each))
