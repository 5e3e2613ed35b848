"""The version of what lies in a store beside logs/, and the file that holds it.

layout.properties, in the directory of the store:

    version=1

logs/ is Kafka's, and has versions of its own. Everything beside it is topicfs' own: settings, inboxes, transactions,
views. A version of topicfs writes the file where it is missing, which is a store from before there was one. It opens a
store of an older version, and brings it up to its own; a newer one it refuses, since what it does not know, such as a
commit that is half done, would be lost without a word.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from topicfs.engine.errors import NewerLayoutError, shown
from topicfs.engine.files.integers import parse_int32
from topicfs.engine.files.properties import read_properties, write_properties
from topicfs.engine.format.paths import LAYOUT
from topicfs.engine.record import Clock

VERSION: Final = 1
"""The version that is written now. It rises when an older topicfs would lose or misread something."""


def check(backing: Path) -> bool:
    """Return whether the store has the version of now, or False where it has an older one or none yet.

    NewerLayoutError if it has a newer one, or one that is no number: a later topicfs may write what it likes;
    and if the file has none, as it cannot be known who wrote it."""
    path = backing / LAYOUT
    try:
        text = read_properties(path).get("version", "").strip()
    except FileNotFoundError:
        return False
    if not text:
        raise NewerLayoutError(
            f"{path}: version: expected {VERSION} or less, found none: the file is empty or damaged. Where no newer "
            "topicfs has had this store, remove it; with --read-only this one shows its logs as they are"
        )
    version = parse_int32(text)
    if version is None or not 1 <= version <= VERSION:
        raise NewerLayoutError(
            f"{path}: version: expected {VERSION} or less, found {shown(text)}. Where a newer topicfs wrote this "
            "store, open it with that one; with --read-only this one shows its logs as they are"
        )
    return version == VERSION


def write(backing: Path, clock: Clock) -> None:
    """Write the version of now, durably."""
    comment = "The layout of this store. logs/ is a Kafka log directory; what is beside it is topicfs' own."
    write_properties(backing / LAYOUT, {"version": str(VERSION)}, comment, clock)
