"""`topicfs spark …`: jobs on logs that are too large for one machine. Spark is loaded only when a job runs."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import click
from rich.console import Console

from topicfs.engine.errors import EngineError
from topicfs.mountd import kernels
from topicfs.mountd.tables import show_line

_OUT: Final = Console(highlight=False)
_ERRORS: Final = Console(stderr=True, highlight=False)
_PLACE: Final = click.argument("place", type=click.Path(path_type=Path))
_BACKING: Final = click.argument("backing", type=click.Path(path_type=Path))

F = TypeVar("F", bound=Callable[..., Any])


def _pairs(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Return NAME=VALUE options as a dictionary."""
    pairs = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"expected NAME=VALUE, found {text!r}")
        pairs[name.strip()] = value
    return pairs


def _on_spark(command: F) -> F:
    """Add the options that every job has."""
    master = click.option(
        "--master", help="Where Spark runs; local[*] unless spark-submit or a setting says so."
    )
    conf = click.option(
        "--conf",
        "conf",
        metavar="NAME=VALUE",
        multiple=True,
        callback=_pairs,
        help="A setting of Spark's; again for more.",
    )
    return master(conf(command))


@click.group("spark")
def spark_group() -> None:
    """Jobs on Spark, for logs that are too large for one machine. Needs the extra: pip install 'topicfs[spark]'."""


@spark_group.command("verify")
@_PLACE
@click.option("--topic", "topics", multiple=True, help="Only this topic; again for more.")
@_on_spark
def verify_command(place: Path, topics: tuple[str, ...], master: str | None, conf: dict[str, str]) -> None:
    """Check every batch, record and index entry of the log at PLACE, a backing directory or a mount of it.

    Exit code 1 where something is wrong. Nothing is changed."""
    with _session("verify", master, conf) as spark:
        from topicfs.engine.spark.jobs.verify import verify  # noqa: PLC0415 - loads Spark
        from topicfs.engine.unlocked.place import place_of  # noqa: PLC0415

        rows = verify(spark, place_of(str(place)), set(topics) or None).collect()
    bad = sorted((row for row in rows if row["problems"]), key=lambda row: row["segment"])
    for row in bad:
        for problem in row["problems"]:
            show_line(_OUT, f"{row['topic']}-{row['partition']} segment {row['segment']}: {problem}")
    partitions = {(row["topic"], row["partition"]) for row in rows}
    show_line(
        _OUT,
        f"{len(partitions)} partitions, {len(rows)} segments, {sum(row['records'] for row in rows)} records, "
        f"{sum(row['bytes'] for row in rows)} bytes: {len(bad)} segments with problems",
    )
    if bad:
        sys.exit(1)


@spark_group.command("export")
@_PLACE
@click.argument("target")
@click.option("--topic", "topics", multiple=True, required=True, help="What to export; again for more.")
@click.option(
    "--mode", type=click.Choice(["errorifexists", "append", "overwrite", "ignore"]), default="errorifexists",
    help="Where TARGET is there already.",
)  # fmt: skip
@click.option(
    "options", "-o", metavar="NAME=VALUE", multiple=True, callback=_pairs,
    help="An option of the data source, such as startingTimestamp; again for more.",
)  # fmt: skip
@_on_spark
def export_command(
    place: Path,
    target: str,
    topics: tuple[str, ...],
    mode: str,
    options: dict[str, str],
    master: str | None,
    conf: dict[str, str],
) -> None:
    """Write topics of the log at PLACE as Parquet files: TARGET/topic=…/partition=…/."""
    with _session("export", master, conf) as spark:
        from topicfs.engine.spark.jobs.exporting import export  # noqa: PLC0415 - loads Spark
        from topicfs.engine.unlocked.place import place_of  # noqa: PLC0415

        export(spark, place_of(str(place)), ",".join(topics), target, options, mode)


@spark_group.command("import")
@_BACKING
@click.argument("topic")
@click.argument("sources", nargs=-1, required=True)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["text", "json", "parquet", "csv"]),
    help="Of SOURCES, where their names do not tell.",
)
@click.option(
    "options", "--option", metavar="NAME=VALUE", multiple=True, callback=_pairs,
    help="An option of Spark's reader, such as sep=;; again for more.",
)  # fmt: skip
@click.option(
    "--rejects", type=click.Path(path_type=Path), metavar="DIRECTORY",
    help="Write rows that cannot be taken there, with the reasons, and import the others.",
)  # fmt: skip
@click.option("--partitions", default=1, show_default=True, help="Of the new topic.")
@click.option(
    "--sort-by", "sort_by", multiple=True, help="Column that records are sorted by; again for more."
)
@click.option(
    "settings", "-o", metavar="NAME=VALUE", multiple=True, callback=_pairs,
    help="A setting of the topic, such as compression.type; again for more.",
)  # fmt: skip
@_on_spark
def import_command(
    backing: Path,
    topic: str,
    sources: tuple[str, ...],
    kind: str | None,
    options: dict[str, str],
    rejects: Path | None,
    partitions: int,
    sort_by: tuple[str, ...],
    settings: dict[str, str],
    master: str | None,
    conf: dict[str, str],
) -> None:
    """Make TOPIC, which must be new, of the files in SOURCES, in BACKING, which no daemon may have open.

    The format of a file is what its name says, before a suffix such as .gz: .txt is text, .json, .jsonl and .ndjson
    are json, and .parquet and .csv. Its content must fit; Parquet is known by its content alone. All SOURCES have one
    format.

    Lines of text are values. The other formats have these columns, of which only value must be there:

    \b
    json     as a topic's jsonl views have it, an object in each line: key, value, key_base64, value_base64,
             headers, timestamp (milliseconds) and partition; topic and offset are ignored
    parquet  key, value (binary or string), headers, timestamp (a timestamp) and partition; topic, offset and
             timestampType are ignored
    csv      key, value, timestamp (ISO 8601 or milliseconds) and partition, named by a header; topic and offset
             are ignored. As RFC 4180 has it: quoted fields may hold newlines, a quote is doubled in them, an
             empty field is null, and "" is empty text

    Any other column is an error. So is a row that cannot be taken, which is named with its file and line (csv,
    parquet: row): it is malformed, has a member that is unknown, a value that is missing or of a wrong type, or the
    topic refuses it. Then nothing at all is imported; with --rejects such rows are put into DIRECTORY/rejected.jsonl,
    and the others are imported."""
    with _session("import", master, conf) as spark:
        from topicfs.engine.spark.jobs.importing import import_files  # noqa: PLC0415 - loads Spark
        from topicfs.engine.spark.jobs.sources import sources_of  # noqa: PLC0415

        found = sources_of(spark, kind, sources, sort_by, options)
        made = import_files(spark, found, backing.absolute(), topic, partitions, settings, rejects)
    show_line(
        _OUT,
        f"{topic}: {made.records} records, {made.bytes} bytes in {made.segments} segments of {made.partitions} "
        f"partitions: {made.read} rows read, {made.records} written, {made.rejected} rejected",
    )


@contextlib.contextmanager
def _session(name: str, master: str | None, conf: dict[str, str]) -> Iterator[Any]:
    """Open a session for one job; refusals and failures become messages."""
    if importlib.util.find_spec("pyspark") is None:
        _fail("expected pyspark, found none: pip install 'topicfs[spark]'")
    with kernels.loading():
        # The kernels are compiled here, once: otherwise each of Spark's workers would compile them, without a message.
        importlib.import_module("topicfs.engine.store.store")
    from topicfs.engine.spark.session import failures, session, words_of  # noqa: PLC0415 - loads Spark

    try:
        spark = session(f"topicfs {name}", master, conf)
    except ImportError as error:
        _fail(str(error).removeprefix("topicfs: "))
    try:
        yield spark
    except (EngineError, OSError) as error:
        _fail(str(error))
    except failures() as error:
        _fail(words_of(error))
    finally:
        spark.stop()


def _fail(text: str) -> NoReturn:
    _ERRORS.print(f"topicfs: {text}", markup=False, soft_wrap=True)
    sys.exit(1)
