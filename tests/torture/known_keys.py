"""What is known of the keys of a compacted topic, each of which is a file.

The topic is made by the first step that wants it, and nothing else writes to it, so that what each key may be is known
without a line's number in its value: it is the value that was acknowledged last, or one whose fate nobody has heard.
"""

from __future__ import annotations

import errno
import json
import os
from base64 import b64decode
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kafka.partitioner.default import murmur2
from oracle import State, promise
from world import World, put

TOPIC: Final = "names"
PARTITIONS: Final = 2
SETTINGS: Final = (
    "cleanup.policy=compact\ninternal.segment.bytes=1500\nindex.interval.bytes=200\nmin.cleanable.dirty.ratio=0.01\n"
    "max.message.bytes=1000\nfile.delete.delay.ms=300\ndelete.retention.ms=0"
)
LONG: Final = ("é" * 200).encode()
NAMES: Final[dict[bytes, str]] = {
    b"a": "a",
    b"b/c": "b%2Fc",
    b"100%": "100%25",
    b"user:42": "user%3A42",
    b".hidden": "%2Ehidden",
    b"_x": "%5Fx",
    b"a\0\n": "a%00%0A",
    b"\xff\xfe": "%FF%FE",
    "ä€".encode(): "ä€",
    b"": "%",
    LONG: "",
}
"""Keys, and what their files are called; the long one has a hash in its name."""

ANY: Final = b"any"
"""In a history: one of several values, of which nobody knows the order."""


def home(key: bytes) -> int:
    """The partition to which Kafka's default partitioner sends a key."""
    return int((murmur2(key) & 0x7FFFFFFF) % PARTITIONS)


@dataclass
class Value:
    """What is known of a key in a partition.

    history  what it was set to, None where it was removed, and whether that is known to be there; the last one is what
             it is now, if all of them were acknowledged. What a power cut cannot bring back is not in it any more
    cut      whether there was a power cut since anybody has looked
    tokens   of several who have added to it at once: those that were acknowledged, and all of them; else None
    """

    history: list[tuple[bytes | None, State]] = field(default_factory=lambda: [(None, State.SAFE)])
    cut: bool = False
    tokens: tuple[set[bytes], set[bytes]] | None = None

    def seen(self, found: bytes | None, name: str) -> None:
        """Compare what somebody has read with what it may be, and remember it."""
        if self.tokens is not None and not self.cut:
            self._tokens_seen(found, name)
            return
        sure = (State.SAFE,) if self.cut else (State.SAFE, State.KEPT)
        floor = max((at for at, (_, state) in enumerate(self.history) if state in sure), default=0)
        allowed = [at for at, (value, _) in enumerate(self.history) if at >= floor and value in (found, ANY)]
        words = f"{name} is {found!r}, and was set to {self.history[floor:]}, cut: {self.cut}"
        promise("D2" if self.cut else "V4", allowed, words)
        state = self.history[allowed[-1]][1]
        self.history[allowed[-1] :] = [(found, State.SAFE if state is State.SAFE else State.KEPT)]
        self.cut, self.tokens = False, None
        self._forget()

    def _tokens_seen(self, found: bytes | None, name: str) -> None:
        assert self.tokens is not None
        told = (found or b"").split()
        lost, strange = self.tokens[0] - set(told), set(told) - self.tokens[1]
        promise("V9", not lost, f"{name} is {found!r}, and has lost {lost}, which were acknowledged")
        promise("V9", not strange and len(told) == len(set(told)), f"{name} is {found!r}")
        self.history += [(ANY, State.UNKNOWN), (found, State.KEPT)]
        self.tokens = None

    def _forget(self) -> None:
        safe = max((at for at, (_, state) in enumerate(self.history) if state is State.SAFE), default=0)
        del self.history[:safe]

    def answered(self, failed: list[int], dead: bool, state: State = State.KEPT) -> None:
        """Setting the last one has ended: it is there, or not, or nobody knows."""
        value = self.history[-1][0]
        if not failed:
            self.history[-1] = (value, state)
        elif dead or errno.EIO in failed:
            self.history[-1] = (value, State.UNKNOWN)
        else:
            self.history.pop()


class Keys:
    """All that is known of the topic.

    values   by partition and key
    refused  values that were reported as failed
    shown    lines of the log that somebody has seen, by partition and offset
    """

    def __init__(self) -> None:
        self.values: dict[tuple[int, bytes], Value] = {}
        self.refused: set[bytes] = set()
        self.shown: dict[tuple[int, int], bytes] = {}
        self.is_made = self.cut = False

    def value(self, number: int, key: bytes) -> Value:
        """What is known of a key."""
        return self.values.setdefault((number, key), Value())

    def power_cut(self) -> None:
        """Only what was brought onto the disk is sure to be there."""
        self.shown.clear()
        self.cut = True
        for value in self.values.values():
            value.cut = True

    def make(self, world: World) -> bool:
        """Make the topic where it is not there yet; whether it is as it should be."""
        with world.attempt(()) as failed:
            for number in range(PARTITIONS):
                with suppress(FileExistsError):
                    (world.served / f"{TOPIC}-{number}").mkdir()
            config = world.served / f"topics/{TOPIC}/config"
            if "cleanup.policy=compact\n" not in config.read_text():
                put(config, SETTINGS)
        self.is_made |= not failed
        return not failed

    def look(self, world: World) -> None:
        """Look at all keys: the log and the files tell the same, and what was acknowledged."""
        if not self.is_made:
            return
        for number in range(PARTITIONS):
            at = world.served / f"{TOPIC}-{number}"
            with world.attempt(()):
                if not at.exists():
                    promise("D1", self.cut, f"{at.name} is gone")
                    self.is_made = False
                    self.values.clear()
                    return
                newest = self._newest(number, world.read(at / "log.jsonl"))
                self._listed(at, number, newest)
        self.cut = False

    def _newest(self, number: int, log: bytes) -> dict[bytes, bytes | None]:
        """The last value of each key in the log, of which no line changes, and none is there twice or was refused."""
        newest: dict[bytes, bytes | None] = {}
        times: dict[bytes, int] = {}
        for line in log.splitlines():
            told = json.loads(line)
            key, value = (
                b64decode(told[f"{name}_base64"]) if f"{name}_base64" in told else told[name]
                for name in ("key", "value")
            )
            key, value = (each.encode() if isinstance(each, str) else each for each in (key, value))
            before = self.shown.setdefault((number, told["offset"]), line)
            promise("S1", before == line, f"{TOPIC}-{number}: {before!r} has become {line!r}")
            promise("V13", value not in self.refused, f"{line!r} was refused")
            if value:
                promise("V2", value not in times, f"{line!r} is also at {times.get(value)}")
                times[value] = told["offset"]
            newest[key] = value
        return newest

    def _listed(self, at: Path, number: int, newest: dict[bytes, bytes | None]) -> None:
        live = {key: value for key, value in newest.items() if value is not None}
        names = os.listdir(at / "keys/")
        found = {os.getxattr(at / "keys" / name, "user.topicfs.key"): name for name in names}
        wanted = [key for key in newest if key in live]
        promise("V1", set(found) == set(live), f"{at.name}/keys has {names}, the log {wanted}")
        for key, name in found.items():
            value = (at / "keys" / name).read_bytes()
            promise("V1", value == live[key], f"{at.name}/keys/{name} is {value!r}, in the log {live[key]!r}")
            as_named = name == NAMES[key] if key != LONG else name.startswith("é" * 90) and "%~" in name
            promise("V5", as_named and len(os.fsencode(name)) <= 255, f"the file of {key!r} is {name!r}")
        for (place, key), known in self.values.items():
            if place == number:
                known.seen(live.get(key), f"{key!r} in {at.name}")
        strange = [key for key in live if (number, key) not in self.values]
        promise("V1", not strange, f"{at.name} has {strange}, which nobody has set")
