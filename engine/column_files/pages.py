"""What the pages of a Parquet file hold, before any of them is read: their own headers tell, and the footer where they
are. What the footer tells of their sizes may be wrong. pyarrow shows neither the one nor, of a damaged footer, the
other without ending the process.

    file     "PAR1", pages, footer, int32 length of the footer, "PAR1"
    column   a page of its dictionary, if it has one; pages of values

Footer and headers are structs of Thrift, of which these fields are read, by their numbers:

    FileMetaData            4 row groups
    RowGroup                1 columns, in the order of the schema, 3 rows
    ColumnChunk             3 metadata
    ColumnMetaData          5 values, 7 bytes of all pages, 9 position of the pages of values, 11 position of
                            the dictionary
    PageHeader              1 kind, 2 bytes uncompressed, 3 bytes compressed; 5, 7 or 8: one of the following
    5  DataPageHeader       1 values, 2 encoding
    7  DictionaryPageHeader 1 values, 2 encoding
    8  DataPageHeaderV2     1 values, 4 encoding
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from topicfs.engine.column_files import thrift
from topicfs.engine.column_files.rows import LARGEST
from topicfs.engine.column_files.source import CUT_SHORT, Source
from topicfs.engine.errors import InvalidRecordError

MAGIC: Final = b"PAR1"
_END: Final = struct.Struct(f"<I{len(MAGIC)}s")
_LARGEST_FOOTER: Final = 8 << 20
"""Bytes of a footer, at most: that of some thousand row groups."""

_FOOTER: Final = {4: [{1: [{3: {5: int, 7: int, 9: int, 11: int}}], 3: int}]}
_PAGE: Final = {1: int, 2: int, 3: int, 5: {1: int, 2: int}, 7: {1: int, 2: int}, 8: {1: int, 4: int}}
_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3
_HEADERS: Final = {_DATA: (5, 2), _DICTIONARY: (7, 2), _DATA_2: (8, 4)}
"""By kind of page: the field of its header, and in there that of the encoding."""

_SIZES: Final = (1 << 10, 1 << 16, 1 << 24)
"""Bytes of a page's header that are read: most have some 30, but statistics of values may be long."""

_MOST_VALUES: Final = 1 << 24
"""Values of a page, at most: lengths of all of them are in memory."""

PLAIN_DICTIONARY: Final = 2
DELTA_BYTE_ARRAY: Final = 7
RLE_DICTIONARY: Final = 8
"""Encodings."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of values, or of a dictionary.

    size           its bytes when it is decompressed
    values         the number of values, nulls too
    encoding       how values are encoded
    is_dictionary  whether it is the dictionary, to which values refer by numbers
    """

    size: int
    values: int
    encoding: int
    is_dictionary: bool

    @property
    def refers(self) -> bool:
        """Whether it has numbers of values in the dictionary."""
        return not self.is_dictionary and self.encoding in (PLAIN_DICTIONARY, RLE_DICTIONARY)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group.

    rows     the number of its rows
    columns  the pages of each column that is read, by the column's path
    """

    rows: int
    columns: dict[str, list[Page]]


def row_groups(source: Source, paths: Sequence[str], names: frozenset[str]) -> list[RowGroup]:
    """Return the row groups of a file whose columns have these paths, with those columns that have one of the names, or
    are parts of one that has. InvalidRecordError if anything is damaged, or too large."""
    length, magic = _END.unpack(_exactly(source, source.end - _END.size, _END.size))
    if magic != MAGIC or length > _LARGEST_FOOTER:
        raise InvalidRecordError(
            f"expected {MAGIC.decode()} at the end, and a footer of up to {_LARGEST_FOOTER} bytes before it, found "
            f"{length} bytes: {CUT_SHORT}"
        )
    try:
        footer, _ = thrift.read(_exactly(source, source.end - _END.size - length, length), _FOOTER)
        return [_row_group(source, group, paths, names) for group in footer.get(4, [])]
    except thrift.MalformedError as error:
        raise InvalidRecordError(f"malformed footer: {error}: {CUT_SHORT}") from None


def _row_group(
    source: Source, group: dict[int, Any], paths: Sequence[str], names: frozenset[str]
) -> RowGroup:
    chunks = group.get(1, [])
    if len(chunks) != len(paths):
        raise InvalidRecordError(
            f"expected {len(paths)} columns in a row group, found {len(chunks)}: {CUT_SHORT}"
        )
    # The path that a column has here may be wrong, and nobody looks at it.
    columns = {
        path: list(_pages(source, chunk.get(3, {})))
        for path, chunk in zip(paths, chunks, strict=True)
        if path.partition(".")[0] in names
    }
    return RowGroup(group.get(3, -1), columns)


def _pages(source: Source, column: dict[int, Any]) -> Iterator[Page]:
    if not column.get(5):
        return  # pyarrow does not read them, and gives them no position when it writes
    at = column.get(9, -1)
    if 0 < column.get(11, 0) < at:
        at = column[11]
    end = at + column.get(7, -1)
    while at < end:
        header, at = _header(source, at)
        kind, size, compressed = (header.get(field, -1) for field in (1, 2, 3))
        at += compressed
        if not 0 <= size <= LARGEST or compressed < 0 or at > source.end:
            raise InvalidRecordError(
                f"expected a page of up to {LARGEST} bytes, found {size}, which end at byte {at} as {compressed}: "
                f"{CUT_SHORT}"
            )
        if kind in _HEADERS:
            inner, encoding = _HEADERS[kind]
            of_kind = header.get(inner, {})
            found = Page(size, of_kind.get(1, -1), of_kind.get(encoding, -1), kind == _DICTIONARY)
            if not 0 <= found.values <= _MOST_VALUES:
                raise InvalidRecordError(
                    f"expected up to {_MOST_VALUES} values in a page, found {found.values}"
                )
            yield found
    if at != end:
        raise InvalidRecordError(f"expected pages up to byte {end}, found them up to {at}: {CUT_SHORT}")


def _header(source: Source, at: int) -> tuple[dict[int, Any], int]:
    """Return the fields of a page's header, and where it ends."""
    for size in _SIZES:
        data = source.at(at, size).tobytes()
        try:
            fields, used = thrift.read(data, _PAGE)
        except thrift.MalformedError:
            if len(data) < size:
                raise
            continue
        return fields, at + used
    raise InvalidRecordError(f"malformed header of a page at byte {at}: {CUT_SHORT}")


def _exactly(source: Source, at: int, size: int) -> bytes:
    found = source.at(at, size).tobytes() if at >= 0 else b""
    if len(found) != size:
        raise InvalidRecordError(f"expected {size} bytes at byte {at}, found {len(found)}: {CUT_SHORT}")
    return found
