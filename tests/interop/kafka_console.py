"""What Kafka's own command line tools show of topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kafka_broker import KafkaError, run_tool

from topicfs import Record

NULL: Final = "\\N"
_SHOWN: Final = ("partition", "offset", "timestamp", "headers", "key")
_PATIENCE_MS: Final = 60_000


def console(bootstrap: str, topics: Iterable[str], count: int, committed: bool) -> list[str]:
    """The lines that the console consumer shows of all records of topics, so many in all, sorted."""
    properties = [f"print.{name}=true" for name in _SHOWN]
    properties += [f"null.literal={NULL}", "key.separator=|"]
    done = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--include", "|".join(topics), "--from-beginning"),
        *("--max-messages", str(count), "--timeout-ms", str(_PATIENCE_MS)),
        *("--isolation-level", "read_committed" if committed else "read_uncommitted"),
        *(word for each in properties for word in ("--formatter-property", each)),
    )
    return sorted(_checked(done.stdout, done.stderr, done.returncode).splitlines())


def console_line(partition: int, record: Record) -> str:
    """The line that the console consumer shows of a record."""
    headers = ",".join(f"{name}:{_text(value)}" for name, value in record.headers) or "NO_HEADERS"
    return "|".join(
        (
            f"CreateTime:{record.timestamp}",
            f"Partition:{partition}",
            f"Offset:{record.offset}",
            headers,
            _text(record.key),
            _text(record.value),
        )
    )


def _text(value: bytes | None) -> str:
    return NULL if value is None else value.decode()


def offsets_at(bootstrap: str, places: Iterable[str], moment: int) -> Mapping[str, int]:
    """The offsets of kafka-get-offsets: of the first record that is not earlier, or for its special times. A partition
    without one is left out. Places are `topic:partition`, and so are the keys."""
    done = run_tool(
        "org.apache.kafka.tools.GetOffsetShell",
        *("--bootstrap-server", bootstrap, "--topic-partitions", ",".join(places), "--time", str(moment)),
    )
    lines = _checked(done.stdout, done.stderr, done.returncode).split()
    return {place: int(offset) for place, _, offset in (line.rpartition(":") for line in lines)}


def lags_of(bootstrap: str, group: str) -> Mapping[str, tuple[int, int, int]]:
    """What kafka-consumer-groups says of a group, by `topic:partition`: position, end and lag."""
    done = run_tool(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", bootstrap, "--describe", "--group", group),
    )
    rows = [line.split() for line in _checked(done.stdout, done.stderr, done.returncode).splitlines()]
    found = [row for row in rows if row and row[0] == group]
    return {f"{row[1]}:{row[2]}": (int(row[-6]), int(row[-5]), int(row[-4])) for row in found}


def _checked(output: str, errors: str, code: int) -> str:
    if code:
        raise KafkaError(f"a tool ended with {code}\n{output}{errors}")
    return output
