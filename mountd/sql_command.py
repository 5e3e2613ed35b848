"""`topicfs sql`: a query over the topics of a store. DuckDB is loaded only when it runs."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click
from rich.console import Console

from topicfs.engine.errors import EngineError
from topicfs.engine.format.paths import PARQUET_SUFFIX
from topicfs.mountd import kernels
from topicfs.mountd.progress import say, words_of
from topicfs.mountd.tables import show_table

if TYPE_CHECKING:
    from topicfs.engine.sql.query import Query

_OUT: Final = Console(highlight=False)
_MOST_ROWS: Final = 1_000
"""Rows that are shown on a terminal."""

_INTERRUPTED: Final = 128 + 2
_EXAMPLE: Final = 'topicfs sql {} "SELECT partition, count(*) FROM orders GROUP BY partition"'
_FORMATS: Final = ("table", "csv", "jsonl", "parquet")
_BY_SUFFIX: Final = {".json": "jsonl", ".jsonl": "jsonl", ".ndjson": "jsonl", PARQUET_SUFFIX: "parquet"}


@click.command("sql")
@click.argument("where", metavar="BACKING|MOUNT", type=click.Path(path_type=Path))
@click.argument("query", required=False)
@click.option(
    "--format",
    "kind",
    type=click.Choice(_FORMATS),
    help="How rows are written; a table on a terminal, csv elsewhere, and what the name of FILE says.",
)
@click.option(
    "--output", "file", metavar="FILE", type=click.Path(path_type=Path),
    help="Write the rows to FILE instead, which is there when all are written.",
)  # fmt: skip
def sql_command(where: Path, query: str | None, kind: str | None, file: Path | None) -> None:
    """Run a QUERY of SQL over the topics of a store, by DuckDB. Nothing is changed.

    Each topic is a view of its name, in double quotes where that is no plain word: "web-clicks". It has all committed
    records that are there when the query starts, with the columns topic, partition, "offset", timestamp, key, value
    and headers. SHOW TABLES lists the topics.

    Key and value are text, and bytes that are no UTF-8 are shown as \\xFF. The view bytes.orders has the exact bytes.
    Members of JSON are value->>'$.user'. offset is a word of SQL, and needs its quotes. Of what a query wants by
    partition, "offset" or timestamp, little else is read.

    Without QUERY it is read from standard input. Needs the extra: pip install 'topicfs[sql]'."""
    for package in ("duckdb", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            _fail(f"expected {package}, found none: pip install 'topicfs[sql]'")
    text = _given(where, query)
    chosen = _format(kind, file)
    with _told():
        with kernels.loading():
            from topicfs.engine.sql.query import Query  # noqa: PLC0415 - loads DuckDB and the engine
        from topicfs.engine.unlocked.place import place_of  # noqa: PLC0415

        with Query.open(place_of(str(where), or_logs=True), text) as opened:
            _show(opened, chosen, file)


def _given(where: Path, query: str | None) -> str:
    """Return the query, from standard input if something is piped into it."""
    text = sys.stdin.read() if query is None and not sys.stdin.isatty() else query
    if text is None or not text.strip():
        raise click.UsageError(f"expected a query, such as: {_EXAMPLE.format(where)}")
    return text


def _format(kind: str | None, file: Path | None) -> str:
    """Return the format that was asked for, or that fits where the rows go."""
    if kind is not None:
        if file is None and kind == "parquet" and sys.stdout.isatty():
            raise click.UsageError("--format parquet: expected --output FILE or a pipe, found a terminal")
        return kind
    if file is None:
        return "table" if sys.stdout.isatty() else "csv"
    return _BY_SUFFIX.get(file.suffix, "csv")


def _show(query: Query, kind: str, file: Path | None) -> None:
    from topicfs.engine.sql import output  # noqa: PLC0415 - loads DuckDB

    if kind == "table":
        _show_table(query, file)
        return
    form = output.Format[kind.upper()]
    if file is not None:
        output.to_file(query, form, file)
        return
    with contextlib.suppress(BrokenPipeError):  # `head` has seen enough
        output.to_descriptor(query, form, sys.stdout.fileno())


def _show_table(query: Query, file: Path | None) -> None:
    from topicfs.engine.sql.output import as_text  # noqa: PLC0415 - loads DuckDB

    most = _MOST_ROWS if file is None and sys.stdout.isatty() else None
    names, numbers, rows = as_text(query, None if most is None else most + 1)
    shown = [["NULL" if cell is None else cell for cell in row] for row in rows[:most]]
    if file is None:
        show_table(_OUT, names, shown, right=numbers)
    else:
        with file.open("w") as opened:
            show_table(Console(file=opened, highlight=False), names, shown, right=numbers)
    if most is not None and len(rows) > most:
        say(f"only the first {most} rows are shown: --format csv writes all")


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Turn failures into messages."""
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(_INTERRUPTED)
    except (EngineError, OSError) as error:
        _fail(words_of(error))


def _fail(text: str) -> NoReturn:
    say(text)
    sys.exit(1)
