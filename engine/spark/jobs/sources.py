"""The rows of an import's files. What Spark would leave out, cut or make null without a word is refused.

Refused as a whole are files whose format is not what it seems (`topicfs.engine.spark.jobs.files`), and columns that are
not those of a record. A single row that cannot be taken is in the frame, with its place and the reason
(`topicfs.engine.spark.jobs.taking`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from topicfs.engine.errors import InvalidSettingError
from topicfs.engine.spark.jobs.files import check_options, files_of, format_of, parquet_columns, shown
from topicfs.engine.spark.jobs.spread import map_in_arrow
from topicfs.engine.spark.jobs.taking import FILE, REFUSED, ROW, START, TAKEN, TEXT, json_lines, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_INTS: Final = ("tinyint", "smallint", "int", "bigint")
_TYPES: Final[Mapping[str, Sequence[str]]] = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "partition": _INTS,
    "timestamp": ("timestamp", "timestamp_ntz"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "offset": _INTS,
}
"""The columns of Parquet that have a meaning, and their types in Spark."""

_IGNORED: Final = ("topic", "timestampType")
"""Other columns that an export has. The name of the topic is the new one's."""

_CSV: Final = ("key", "value", "partition", "timestamp", "offset", "topic")
_CORRUPT: Final = "malformed_row"
_NO_VALUE: Final = "\x01null\x01"
"""Stands for an empty field of CSV, so that `""` is empty text and not null."""

_STRICT_CSV: Final = {
    "header": "true",
    "multiLine": "true",
    "escape": '"',
    "nullValue": _NO_VALUE,
    "enforceSchema": "false",
    "mode": "PERMISSIVE",
    "unescapedQuoteHandling": "RAISE_ERROR",
    "columnNameOfCorruptRecord": _CORRUPT,
}
"""CSV as RFC 4180 has it. By Spark's own defaults a field ends with its line, and a backslash is taken out."""

_PLACE: Final = (f"_metadata.file_path as {FILE}", f"_metadata.file_block_start as {START}")


@dataclass(slots=True)
class Sources:
    """The files of an import.

    kind    their format
    raw     their rows as Spark reads them, in the parts that tasks read
    rows    their rows with the columns of the data source, and with their places
    _before by file and the byte where a part begins: the number of rows before it
    """

    kind: str
    raw: DataFrame
    rows: DataFrame
    _before: dict[tuple[str, int], int] | None = None

    def place(self, file: str, start: int, row: int) -> tuple[str, int]:
        """Return the name of a row's file, and its number in there, counted from 1: that of the line, except for
        Parquet and CSV."""
        if start and self._before is None:
            self._before = {}
            total: dict[str, int] = {}
            for part in sorted(self.raw.groupBy(FILE, START).count().collect()):
                self._before[part[0], part[1]] = total.get(part[0], 0)
                total[part[0]] = total.get(part[0], 0) + part[2]
        return shown(file), (self._before or {}).get((file, start), 0) + row + 1

    def described(self, file: str, start: int, row: int) -> str:
        """Return a row's place in words."""
        name, number = self.place(file, start, row)
        return f"{name}: {'row' if self.numbers_rows else 'line'} {number}"

    @property
    def numbers_rows(self) -> bool:
        """Whether a row may have several lines, or none, so that rows are counted."""
        return self.kind in ("csv", "parquet")


def rows_of(
    spark: SparkSession,
    kind: str | None,
    paths: Sequence[str],
    sort_by: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the rows of some files, as `sources_of` has them."""
    return sources_of(spark, kind, paths, sort_by, options).rows


def sources_of(
    spark: SparkSession,
    kind: str | None,
    paths: Sequence[str],
    sort_by: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> Sources:
    """Return some files as rows. Lines of text are values, json is as in jsonl views, and parquet and csv have the data
    source's column names. Without `kind` the format is what names and content of the files say."""
    options = options or {}
    files = files_of(spark, paths, options)
    kind = format_of(spark, files, kind)
    check_options(kind, options)
    if kind == "json":
        raw, take = _lines(spark, paths, options, "line"), json_lines
    else:
        make = {"text": _text, "csv": _csv, "parquet": _parquet}[kind]
        raw, take = make(spark, paths, files, options), numbered
    taken = map_in_arrow(raw, take, TAKEN)
    rows = taken.sort(*sort_by) if sort_by else taken
    return Sources(kind, raw, rows.drop("offset"))


def _lines(spark: SparkSession, paths: Sequence[str], options: Mapping[str, str], column: str) -> DataFrame:
    """Return the bytes of each line, and the partition of directories `partition=<n>`."""
    loaded = spark.read.options(**options).text(list(paths))
    above = _known(loaded, {"value": ("string",), "partition": _INTS, "topic": ()})
    partition = ["cast(partition as int) as partition"] if "partition" in above else []
    return loaded.selectExpr(f"cast(value as binary) as {column}", *partition, *_PLACE)


def _text(
    spark: SparkSession, paths: Sequence[str], _: Sequence[str], options: Mapping[str, str]
) -> DataFrame:
    return _lines(spark, paths, options, "value")


def _parquet(
    spark: SparkSession, paths: Sequence[str], files: Sequence[str], options: Mapping[str, str]
) -> DataFrame:
    found = parquet_columns(spark, files)
    first = files[0]
    for file, names in found.items():
        if set(names) != set(found[first]):
            raise InvalidSettingError(
                f"expected the same columns in all files, found {', '.join(found[first])} in {shown(first)}, and "
                f"{', '.join(names)} in {shown(file)}"
            )
    loaded = spark.read.options(**options).parquet(*paths)
    names = _known(loaded, {**_TYPES, **dict.fromkeys(_IGNORED, ())})
    _expect_value(names)
    meant = {
        "key": "cast(key as binary)",
        "value": "cast(value as binary)",
        "headers": "headers",
        "partition": "try_cast(partition as int)",
        "timestamp": "cast(timestamp as timestamp)",
        "offset": "cast(offset as long)",
    }
    columns = [f"{meant[name]} as {name}" for name in names if name in meant]
    wrong = "partition is not null and try_cast(partition as int) is null"
    refusal = []
    if "partition" in names:
        refusal = [
            f"case when {wrong} then concat('expected a partition, found ', partition) end as {REFUSED}",
            f"case when {wrong} then cast(to_json(struct(*)) as binary) end as {TEXT}",
        ]
    # A Parquet file is read in parts too, but knows the number of each row.
    place = (_PLACE[0], f"0L as {START}", f"_metadata.row_index as {ROW}")
    return loaded.selectExpr(*columns, *refusal, *place)


def _csv(
    spark: SparkSession, paths: Sequence[str], files: Sequence[str], options: Mapping[str, str]
) -> DataFrame:
    given = {name.lower() for name in options}
    strict = {name: value for name, value in _STRICT_CSV.items() if name.lower() not in given}
    if not given & {"quote", "escape"}:
        _refuse_single_quotes(spark, files)
    reader = spark.read.options(**strict).options(**options)
    # The header is one line: a bad row behind it is found by a task, which tells its file.
    plain = spark.read.options(**strict).options(**options).option("multiLine", "false").csv(list(paths))
    names = _known(plain, dict.fromkeys(_CSV, ("string", "int")))
    _expect_value(names)
    schema = ", ".join(f"{name} string" for name in [*names, _CORRUPT])
    time = (
        "case when timestamp rlike '^[0-9]{8,}$' then timestamp_millis(try_cast(timestamp as bigint)) "
        "else try_cast(timestamp as timestamp) end"
    )
    meant = {
        "key": "cast(key as binary)",
        "value": "cast(value as binary)",
        "partition": "try_cast(partition as int)",
        "timestamp": time,
        "offset": "try_cast(offset as long)",
    }
    columns = [f"{meant[name]} as {name}" for name in names if name in meant]
    wrong = " ".join(
        f"when {name} is not null and {meant[name]} is null then concat('expected a {name}, found ', {name})"
        for name in ("partition", "timestamp")
        if name in names
    )
    reason = f"case when {_CORRUPT} is not null then 'expected {len(names)} fields: {', '.join(names)}' {wrong} end"
    text = f"cast(coalesce({_CORRUPT}, to_csv(struct({', '.join(names)}))) as binary)"
    refusal = f"{reason} as {REFUSED}", f"case when ({reason}) is not null then {text} end as {TEXT}"
    return reader.schema(schema).csv(list(paths)).selectExpr(*columns, *refusal, *_PLACE)


def _refuse_single_quotes(spark: SparkSession, files: Sequence[str]) -> None:
    """Refuse a CSV file with a quote that is not closed: Spark takes all that follows for one field."""
    counted = spark.read.text(list(files)).selectExpr(
        "length(value) - length(replace(value, '\"', '')) as quotes", _PLACE[0]
    )
    for file, quotes in sorted(counted.groupBy(FILE).sum("quotes").collect()):
        if quotes % 2:
            raise InvalidSettingError(
                f"{shown(file)}: expected quotes in pairs, found {quotes}: one is not closed, or not doubled in a field"
            )


def _known(frame: DataFrame, types: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names of a frame's columns. InvalidSettingError for one that is not known, or of another type."""
    for column in frame.schema.fields:
        found = column.dataType.simpleString()
        wanted = types.get(column.name)
        if wanted is None:
            raise InvalidSettingError(
                f"column {column.name} {found}: expected columns among {', '.join(types)}"
            )
        if wanted and found not in wanted:
            raise InvalidSettingError(f"column {column.name}: expected {' or '.join(wanted)}, found {found}")
    return frame.columns


def _expect_value(names: Sequence[str]) -> None:
    if "value" not in names:
        raise InvalidSettingError(f"expected a column value, found {', '.join(names)}")
