"""The options of a query. They are those of Spark's Kafka source, so a job only has to change the format's name.

    path                             backing directory or mount; an option of topicfs only
    topic | subscribe                names, separated by commas
    subscribePattern                 a regular expression in Java's syntax that is found in a name, not in those of
                                     Kafka's own topics; ^…$ stands for a whole name
    assign                           {"orders":[0,1]}; a stream waits for partitions that do not exist yet
    startingOffsets, endingOffsets   earliest, latest, or {"orders":{"0":23,"1":-2}}; -2 earliest, -1 latest. With
                                     topicfs also one number for all partitions: each is read as far as it goes
    startingTimestamp, endingTimestamp, startingOffsetsByTimestamp, endingOffsetsByTimestamp    in ms; the latter by
                                     partition: {"orders":{"0":1000}}. They take precedence over offsets. Each means the
                                     offset of the first record that is not earlier
    startingOffsetsByTimestampStrategy   error or latest, if no record is that late
    failOnDataLoss, includeHeaders, minPartitions, maxRecordsPerPartition
    maxOffsetsPerTrigger, minOffsetsPerTrigger, maxTriggerDelay    for streams; less than the minimum waits, but no
                                     longer than the delay: 15m, 30s, 500ms
    sinceTimestamp, beforeTimestamp  in ms; options of topicfs only. Only records whose own timestamp is not before the
                                     one, and before the other, wherever they are in the log

Options that only say how to reach a broker (`kafka.*`, groupIdPrefix, pollTimeoutMs and the like) have no meaning here
and are ignored. Unknown options that would change which records are read are refused, and so are those of a Kafka
client that Spark's connector refuses. So is `kafka.isolation.level`, unless it asks for committed records: no others
are ever read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from topicfs.engine.errors import InvalidSettingError
from topicfs.engine.record import MAX_INT64
from topicfs.engine.unlocked.offset_range import TimeBounds

EARLIEST: Final = -2
LATEST: Final = -1

Key = tuple[str, int]
"""Topic and number."""

_NAMES: Final = (
    "path",
    "topic",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "includeHeaders",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "sinceTimestamp",
    "beforeTimestamp",
)
_OF_A_BROKER: Final = frozenset(
    {
        "groupidprefix",
        "kafkaconsumer.polltimeoutms",
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms",
        "usedeprecatedoffsetfetching",
    }
)
_REFUSED_OF_KAFKA: Final = (
    "auto.offset.reset",
    "enable.auto.commit",
    "interceptor.classes",
    "key.deserializer",
    "key.serializer",
    "value.deserializer",
    "value.serializer",
)
"""Options of a client that Spark's Kafka connector refuses, because it decides these things itself."""
_ISOLATION: Final = "kafka.isolation.level"
_ENDS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "beforeTimestamp")
_OF_STREAMS: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_DIGITS: Final = 18
"""Digits of a number that surely has 64 bits."""
INTERNAL: Final = frozenset(
    {"__cluster_metadata", "__consumer_offsets", "__share_group_state", "__transaction_state"}
)
"""Kafka's own topics, which a pattern does not choose."""

_OF_A_CATALOG: Final = {"owner", "provider"}
"""What Spark adds to the options of CREATE TABLE, when it asks for the columns."""
_IN_A_QUERY: Final = (
    "of CREATE TABLE, Spark does not hand options to reads: name the columns in it, and give the options in the query, "
    "as in SELECT … FROM table WITH (path = '…', subscribe = '…'), of which a view can be made"
)

_NOT_OF_JAVA: Final = re.compile(r"\[\^?\]?[^\]]*\]|\(\?[imsux]*[aLP(#]|\{(?!\d+(?:,\d*)?\})")
"""Classes of characters, and what Python reads in another way than Java."""
_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Limit:
    """The offsets where a query begins or ends.

    word         EARLIEST, LATEST or an offset, for partitions without another value
    offsets      offset by partition; all partitions are then named. EARLIEST and LATEST are allowed
    timestamp    timestamp for all partitions, in ms
    timestamps   timestamp by partition
    """

    word: int
    offsets: Mapping[Key, int] = field(default_factory=dict)
    timestamp: int | None = None
    timestamps: Mapping[Key, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one query. The top of this module explains them.

    topics             names of topics, None if a pattern or `assign` chooses them
    pattern            pattern of topic names
    assigned           partitions of `assign`
    streaming          whether the query is a stream, which may wait for partitions of `assign`
    late_is_latest     whether a timestamp that no record reaches means the end; else it is an error
    max_records        offsets of one task at most
    max_offsets, min_offsets, max_delay_ms     limits of a micro-batch, or None; the delay applies with a minimum only
    times              timestamps of the records that are read
    """

    path: str
    topics: frozenset[str] | None
    pattern: re.Pattern[str] | None
    assigned: frozenset[Key] | None
    streaming: bool
    starting: Limit
    ending: Limit
    late_is_latest: bool
    fail_on_data_loss: bool
    include_headers: bool
    min_partitions: int | None
    max_records: int | None
    max_offsets: int | None
    min_offsets: int | None
    max_delay_ms: int
    times: TimeBounds

    def wants(self, key: Key) -> bool:
        """Return whether the query reads a partition."""
        if self.assigned is not None:
            return key in self.assigned
        if self.topics is not None:
            return key[0] in self.topics
        assert self.pattern is not None, "one of the three chooses partitions"
        return key[0] not in INTERNAL and self.pattern.search(key[0]) is not None


def parse(given: Mapping[str, str], streaming: bool | None) -> Options:
    """Return the options of a query. InvalidSettingError says which option is refused, and why. With None as
    `streaming`, only what is wrong in any query is refused."""
    lower = {name.lower(): value for name, value in given.items()}
    if lower.keys() >= _OF_A_CATALOG:
        raise InvalidSettingError(f"CREATE TABLE … USING topicfs without columns: {_IN_A_QUERY}")
    _refuse_unknown(lower)
    path = lower.get("path")
    if not path:
        raise InvalidSettingError(
            f"option path: expected a backing directory or a mount of topicfs, found none; {_IN_A_QUERY}"
        )
    topics, pattern, assigned = _chosen(lower)
    starting = _limit(lower, "starting", LATEST if streaming else EARLIEST)
    ending = _limit(lower, "ending", LATEST)
    if streaming:
        for name in _ENDS:
            if name.lower() in lower:
                raise InvalidSettingError(
                    f"option {name}: a stream has no end; expected it in batch queries only"
                )
    elif streaming is False:
        _refuse_word(starting, LATEST, "startingOffsets", "latest")
        for name in _OF_STREAMS:
            if name.lower() in lower:
                raise InvalidSettingError(f"option {name}: expected in streams only")
    _refuse_word(ending, EARLIEST, "endingOffsets", "earliest")
    most, least = _number(lower, "maxOffsetsPerTrigger"), _number(lower, "minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise InvalidSettingError(f"option minOffsetsPerTrigger: expected at most {most}, found {least}")
    before = _number(lower, "beforeTimestamp", least=0)
    return Options(
        path,
        topics,
        pattern,
        assigned,
        bool(streaming),
        starting,
        ending,
        _word(lower, "startingOffsetsByTimestampStrategy", "error", ("error", "latest")) == "latest",
        _word(lower, "failOnDataLoss", "true", ("true", "false")) == "true",
        _word(lower, "includeHeaders", "false", ("true", "false")) == "true",
        _number(lower, "minPartitions"),
        _number(lower, "maxRecordsPerPartition"),
        most,
        least,
        _duration_ms(lower, "maxTriggerDelay", "15m"),
        TimeBounds(_number(lower, "sinceTimestamp", least=0), None if before is None else before - 1),
    )


def refuse_of_kafka(lower: Mapping[str, str]) -> None:
    """Raise InvalidSettingError for options of a Kafka client that Spark's Kafka connector refuses too."""
    for name in _REFUSED_OF_KAFKA:
        if f"kafka.{name}" in lower:
            raise InvalidSettingError(
                f"option kafka.{name}: not supported, as in Spark's Kafka connector: startingOffsets says where a "
                "query begins, and keys and values are bytes"
            )


def _refuse_unknown(lower: Mapping[str, str]) -> None:
    refuse_of_kafka(lower)
    known = {name.lower() for name in _NAMES}
    for name, value in lower.items():
        if name == _ISOLATION and value.lower() != "read_committed":
            raise InvalidSettingError(
                f"option {_ISOLATION}: only committed records are read, found {value!r}"
            )
        if name not in known and name not in _OF_A_BROKER and not name.startswith("kafka."):
            raise InvalidSettingError(
                f"option {name}: expected one of {', '.join(_NAMES)}. A read is bounded by starting…, ending…, "
                "sinceTimestamp and beforeTimestamp"
            )


def _refuse_word(limit: Limit, word: int, name: str, text: str) -> None:
    if limit.word == word or word in limit.offsets.values():
        raise InvalidSettingError(f"option {name}: {text} ({word}) reads nothing in a batch query")


def _chosen(
    lower: Mapping[str, str],
) -> tuple[frozenset[str] | None, re.Pattern[str] | None, frozenset[Key] | None]:
    ways = [name for name in ("topic", "subscribe", "subscribePattern", "assign") if lower.get(name.lower())]
    if len(ways) != 1:
        raise InvalidSettingError(
            "expected one of the options topic, subscribe, subscribePattern and assign, found "
            f"{', '.join(ways) or 'none'}"
        )
    text = lower[ways[0].lower()]
    if ways[0] == "subscribePattern":
        return None, _pattern(text), None
    if ways[0] == "assign":
        found = _json("assign", text, '{"topic":[0,1]}')
        pairs = []
        for topic, numbers in found.items():
            if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
                raise InvalidSettingError(f'option assign: expected {{"topic":[0,1]}}, found {text!r}')
            pairs += [(topic, number) for number in numbers]
        return None, None, frozenset(pairs)
    topics = frozenset(name.strip() for name in text.split(",") if name.strip())
    if not topics:
        raise InvalidSettingError(f"option {ways[0]}: expected names of topics, found {text!r}")
    return topics, None, None


def _pattern(text: str) -> re.Pattern[str]:
    """Return a regular expression of Java's syntax. InvalidSettingError for what Python does not know, or reads in
    another way: inside a class of characters Java knows further classes and intersections."""
    for found in _NOT_OF_JAVA.finditer(re.sub(r"(?s)\\.", "__", text)):
        if found[0][0] != "[" or "[" in found[0][1:] or "&&" in found[0]:
            raise InvalidSettingError(
                f"option subscribePattern: expected what Java and Python read alike, found {found[0]!r} in {text!r}"
            )
    named = re.sub(r"(?s)(\\.)|\(\?<(?![=!])", lambda found: found[1] or "(?P<", text)
    try:
        return re.compile(named)
    except (re.error, OverflowError) as error:
        raise InvalidSettingError(f"option subscribePattern: {error}, in {text!r}") from None


def _limit(lower: Mapping[str, str], which: str, default: int) -> Limit:
    by_time = _by_partition(lower, f"{which}OffsetsByTimestamp")
    moment = _number(lower, f"{which}Timestamp", least=0)
    text = lower.get(f"{which}offsets", "").strip()
    words = {"": default, "earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words or (text.isdecimal() and len(text) <= _DIGITS):
        # As in Kafka's source, a timestamp takes precedence over offsets, and one for all over those by partition.
        word = default if by_time or moment is not None else words.get(text.lower()) or int(text)
        return Limit(word, {}, moment, by_time)
    offsets = _by_partition(lower, f"{which}Offsets", 'earliest, latest, an offset or {"topic":{"0":23}}')
    for key, offset in offsets.items():
        if offset < EARLIEST:
            raise InvalidSettingError(
                f"option {which}Offsets: partition {key[0]}-{key[1]}: expected an offset, -1 (latest) or -2 "
                f"(earliest), found {offset}"
            )
    return Limit(default, {} if by_time or moment is not None else offsets, moment, by_time)


def _by_partition(
    lower: Mapping[str, str], name: str, expected: str = '{"topic":{"0":23}}'
) -> dict[Key, int]:
    text = lower.get(name.lower())
    if text is None:
        return {}
    numbers = {}
    for topic, parts in _json(name, text, expected).items():
        if not isinstance(parts, dict):
            raise InvalidSettingError(f"option {name}: expected {expected}, found {text!r}")
        for number, value in parts.items():
            if not number.isdecimal() or type(value) is not int or abs(value) > MAX_INT64:
                raise InvalidSettingError(f"option {name}: expected {expected}, found {text!r}")
            numbers[topic, int(number)] = value
    return numbers


def _json(name: str, text: str, expected: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidSettingError(f"option {name}: expected {expected}, found {text!r}")
    return found


def _word(lower: Mapping[str, str], name: str, default: str, words: tuple[str, ...]) -> str:
    found = lower.get(name.lower(), default).lower()
    if found not in words:
        raise InvalidSettingError(f"option {name}: expected {' or '.join(words)}, found {found!r}")
    return found


def _number(lower: Mapping[str, str], name: str, least: int = 1) -> int | None:
    text = lower.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or len(text) > _DIGITS or int(text) < least:
        raise InvalidSettingError(f"option {name}: expected a number from {least} on, found {text!r}")
    return int(text)


def _duration_ms(lower: Mapping[str, str], name: str, default: str) -> int:
    text = lower.get(name.lower(), default)
    found = re.fullmatch(r"\s*([0-9]{1,15})\s*([a-z]*)\s*", text.lower())
    unit = None if found is None else _UNITS_MS.get(found[2])
    if found is None or unit is None:
        raise InvalidSettingError(f"option {name}: expected a time as 15m, 30s or 500ms, found {text!r}")
    return int(found[1]) * unit
