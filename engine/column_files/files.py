"""Files of columns in an inbox: which columns they may have, and their records, some at a time.

    key, value, headers, timestamp, partition    see `topicfs.engine.column_files.rows`
    offset, topic, timestampType                 are passed over: a topic's Parquet files and the data source have them

Any other column is refused, as is another member in a line of jsonl: it would be lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyarrow import types

from topicfs.engine.column_files import parquet, stream
from topicfs.engine.column_files.rows import plain, rows_of
from topicfs.engine.column_files.source import CUT_SHORT, File
from topicfs.engine.errors import InvalidRecordError
from topicfs.engine.inbox.rows import Rows

_TAKEN: Final = frozenset(("key", "value", "headers", "timestamp", "partition"))
_PASSED_OVER: Final = frozenset(("offset", "topic", "timestampType"))
_KINDS: Final = {"arrow": stream, "parquet": parquet}
_EXPECTED: Final = {
    "key": "text or bytes",
    "value": "text or bytes",
    "headers": "a list of structs of key and value, or a map, of text or bytes",
    "timestamp": "a timestamp, or a whole number of milliseconds",
    "partition": "a whole number",
}
_ROWS: Final = 32 * 1024
"""Rows that become records at once."""


def is_whole(kind: str, file: File, size: int) -> bool:
    """Tell whether a file ends as one that was written to its end. What is cut short anywhere does not."""
    return bool(_KINDS[kind].is_whole(file, size))


def rows_in(kind: str, file: File, size: int) -> Iterator[Rows]:
    """Give the records of a file, in order. `kind` is the suffix of its name. InvalidRecordError for what cannot be
    taken, with the row where it is of one."""
    passed = 0
    try:
        for batch in _KINDS[kind].batches(file, size, _TAKEN, _check):
            checked = _checked(batch)
            for first in range(0, batch.num_rows, _ROWS):
                rows = rows_of(checked.slice(first, _ROWS))
                yield rows
                passed += len(rows)
    except InvalidRecordError as error:
        if not error.indexes:
            raise
        raise InvalidRecordError(f"row {passed + min(error.indexes) + 1}: {error}") from None
    except pa.ArrowMemoryError:
        raise
    except (pa.ArrowException, OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk, not of what the file holds
        raise InvalidRecordError(
            f"expected {kind.capitalize()}, behind row {passed}: {error}: {CUT_SHORT}"
        ) from None


def _check(schema: pa.Schema) -> None:
    """Refuse columns that no record has, and types that are not those of a record."""
    for field in schema:
        if field.name in _PASSED_OVER:
            continue
        if field.name not in _TAKEN:
            raise InvalidRecordError(
                f"unknown column {field.name[:80]}: expected columns among {', '.join(_EXPECTED)}; "
                f"{', '.join(sorted(_PASSED_OVER))} are passed over"
            )
        if not _is_good(field.name, field.type):
            raise InvalidRecordError(
                f"column {field.name}: expected {_EXPECTED[field.name]}, found {str(field.type)[:80]}"
            )
        if schema.names.count(field.name) > 1:
            raise InvalidRecordError(f"a second column {field.name}")
    if "value" not in schema.names:
        raise InvalidRecordError("the column value is missing: a tombstone is a row in which it is null")


def _is_good(name: str, kind: pa.DataType) -> bool:
    match name:
        case "key" | "value":
            return _is_bytes(kind)
        case "headers":
            if types.is_map(kind):
                return _is_text(kind.key_type) and _is_text(kind.item_type)
            if not (types.is_list(kind) or types.is_large_list(kind)) or not types.is_struct(kind.value_type):
                return False
            fields = {field.name: field.type for field in kind.value_type}
            return set(fields) == {"key", "value"} and all(map(_is_text, fields.values()))
        case "timestamp":
            return bool(types.is_timestamp(kind) or types.is_integer(kind))
    return bool(types.is_integer(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return types.is_fixed_size_binary(kind) or _is_text(kind)


def _is_text(kind: pa.DataType) -> bool:
    """Tell whether it is text or bytes of any size."""
    if types.is_dictionary(kind):
        return not types.is_dictionary(kind.value_type) and _is_text(kind.value_type)
    return any(
        is_one(kind)
        for is_one in (
            types.is_string,
            types.is_binary,
            types.is_large_string,
            types.is_large_binary,
            types.is_string_view,
            types.is_binary_view,
        )
    )


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of which every position and length was checked."""
    made = pa.RecordBatch.from_arrays([plain(column) for column in batch.columns], batch.schema.names)
    made.validate(full=True)
    return made
