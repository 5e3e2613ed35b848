"""What a query gives, written as it comes, or as rows of text.

DuckDB writes the formats. Standard output is given to it by way of a pipe: what it opens by a path it also empties, and
the shell's `>>` means to add.
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Final

from topicfs.engine.files.atomic import replacing
from topicfs.engine.format.paths import TEMPORARY_SUFFIX
from topicfs.engine.sql.query import Query

_AT_ONCE: Final = 1024 * 1024

_NUMBERS: Final = ("INT", "DECIMAL", "FLOAT", "DOUBLE")


class Format(Enum):
    """The formats, with what DuckDB calls them."""

    CSV = "csv, header"
    JSONL = "json"
    PARQUET = "parquet"


def to_file(query: Query, kind: Format, path: Path) -> None:
    """Write all rows to a file. It is there when it is complete."""
    with replacing(path, durable=False, temporary=f".{os.getpid()}{TEMPORARY_SUFFIX}") as descriptor:
        query.run(lambda: _copy(query, kind, descriptor))


def to_descriptor(query: Query, kind: Format, descriptor: int) -> None:
    """Write all rows to an open file or pipe, as they come."""
    readable, writable = os.pipe()

    def copy() -> None:
        try:
            _copy(query, kind, writable)
        finally:
            os.close(writable)

    def forward() -> None:
        try:
            while data := os.read(readable, _AT_ONCE):
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
        finally:
            os.close(readable)  # a writer that waits for a reader gets an error

    query.run(copy, forward)


def _copy(query: Query, kind: Format, descriptor: int) -> None:
    rows = query.connection.sql(query.text)  # noqa: F841 - DuckDB finds it by its name
    query.connection.execute(
        f"COPY (SELECT * FROM rows) TO '/proc/self/fd/{descriptor}' (FORMAT {kind.value}, USE_TMP_FILE false)"
    )


def as_text(query: Query, most: int | None) -> tuple[list[str], list[str], list[tuple[str | None, ...]]]:
    """Return the names of the columns, those of them that are numbers, and the rows, at most so many, all as text."""

    def fetch() -> tuple[list[str], list[str], list[tuple[str | None, ...]]]:
        rows = query.connection.sql(query.text)
        names = list(rows.columns)
        kinds = zip(names, map(str, rows.types), strict=True)
        numbers = [name for name, kind in kinds if kind.endswith(_NUMBERS) or kind.startswith(_NUMBERS)]
        limit = "" if most is None else f" LIMIT {most}"
        text = query.connection.sql(f"SELECT COLUMNS(*)::VARCHAR FROM rows{limit}")
        return names, numbers, text.fetchall()

    return query.run(fetch)
