"""The topics of a store as DuckDB's views, each under the topic's name.

    "orders"         key and value are text where their bytes are UTF-8. Others are shown in DuckDB's notation of bytes,
                     as \\xFF, because a query that meets one such value should not fail
    bytes."orders"   key and value are bytes, exactly as they are: the columns of the topic's Parquet table

What a sealed segment has is read from its Parquet file where there is one, and from the segment elsewhere: see
`engine.parquet.present`. Which of the two is decided once, for spans of offsets that do not overlap. So no record is
missing or there twice, whatever is made, compacted or appended while the query runs.

Only topics whose names are in the query are looked at. SQL does not tell upper case from lower: topics whose names
differ by that alone are one view, and its column `topic` tells them apart.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from topicfs.engine.arrow.dataset import Span, TopicDataset
from topicfs.engine.arrow.reader import Shaped
from topicfs.engine.errors import EngineError
from topicfs.engine.format.paths import VIEWS
from topicfs.engine.parquet.present import present
from topicfs.engine.unlocked.offset_range import OffsetRange
from topicfs.engine.unlocked.partitions import TopicPartition
from topicfs.engine.unlocked.place import Place
from topicfs.engine.unlocked.planning import partitions_of

BYTES: Final = "bytes"
"""The schema of the views with exact bytes."""

_TEXT: Final = {"key", "value"}
_KINDS: Final = {
    "topic": "VARCHAR",
    "partition": "INTEGER",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMPTZ",
    "key": "BLOB",
    "value": "BLOB",
    "headers": "STRUCT(key VARCHAR, value BLOB)[]",
}
_COLUMNS: Final = ", ".join(f'"{name}"' for name in _KINDS)


class Topics:
    """The topics of a place, in a connection.

    place       the place
    connection  the connection
    failures    errors of reading segments, which DuckDB tells as its own
    _held       the files that stay open for a query
    _files      how many more Parquet files may be open
    """

    def __init__(self, place: Place, connection: duckdb.DuckDBPyConnection, held: ExitStack) -> None:
        self.place = place
        self.connection = connection
        self.failures: list[Exception] = []
        self._held = held
        # DuckDB opens each of them once more, and has files of its own.
        self._files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4
        self._datasets = 0

    def define(self, query: str) -> None:
        """Make a view of each topic. Those that the query does not name can be listed, and not read."""
        self.connection.execute(f"CREATE SCHEMA {BYTES}")
        named = query.casefold()
        for name, topics in self._by_name().items():
            exact = f'{BYTES}."{name}"'
            text = ", ".join(_as_text(column) if column in _TEXT else f'"{column}"' for column in _KINDS)
            content = self._content(topics) if name.casefold() in named else _unnamed(name)
            self.connection.execute(f"CREATE VIEW {exact} AS {content}")
            self.connection.execute(f'CREATE VIEW "{name}" AS SELECT {text} FROM {exact}')

    def _by_name(self) -> dict[str, list[str]]:
        """Return the topics of each view."""
        found: dict[str, list[str]] = {}
        for topic in sorted({topic for topic, _ in self.place.partitions()}):
            found.setdefault(topic.casefold(), []).append(topic)
        return {topics[0]: topics for topics in found.values()}

    def _content(self, topics: list[str]) -> str:
        """Return a query of all records of some topics."""
        parts: list[str] = []
        spans: list[Span] = []
        for topic in topics:
            for partition in partitions_of(self.place, topic):
                paths: list[str] = []
                spans += self._planned(partition, paths)
                if paths:
                    parts.append(_of_files(partition.number, paths))
        name = f"topicfs segments {self._datasets}"
        self._datasets += 1
        self.connection.register(name, _Watched(spans, self.place.backing / VIEWS, self.failures))
        return " UNION ALL ".join([*parts, f'SELECT {_COLUMNS} FROM "{name}"'])

    def _planned(self, partition: TopicPartition, paths: list[str]) -> Iterator[Span]:
        """Yield the spans that are read from segments. The paths of files for the others are added to `paths`."""
        at, end = partition.bounds.start, partition.bounds.end
        for file in present(partition, self.place.backing / VIEWS, self._files, self._held):
            if file.path is not None:
                paths.append(file.path)
                self._files -= 1
            if at < file.start:
                yield partition, at, file.start
            at = file.end
        if at < end:
            yield partition, at, end


class _Watched(TopicDataset):
    """A dataset that remembers why reading it failed."""

    def __init__(self, spans: list[Span], views: Path, failures: list[Exception]) -> None:
        super().__init__(spans, views)
        self._failures = failures

    def read(
        self, parts: Iterator[OffsetRange], schema: pa.Schema, shaped: Shaped | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of a scan."""
        try:
            yield from super().read(parts, schema, shaped)
        except (EngineError, OSError) as error:
            self._failures.append(error)
            raise


def _of_files(number: int, paths: list[str]) -> str:
    columns = _COLUMNS.replace('"partition"', f"{number}::INTEGER AS partition")
    return f"SELECT {columns} FROM read_parquet({paths}, hive_partitioning = false)"


def _as_text(column: str) -> str:
    return f'coalesce(TRY(decode("{column}")), "{column}"::VARCHAR) AS "{column}"'


def _unnamed(name: str) -> str:
    """Return a query with the columns of a topic, which fails when it is run."""
    columns = ", ".join(f'NULL::{kind} AS "{column}"' for column, kind in _KINDS.items())
    return (
        f"SELECT {columns} WHERE error('the query reads the topic {name}, and does not have its name in it')"
    )
