"""Checkpoints: small text files of offsets, one entry per line.

    <version>\\n         0
    <entry count>\\n
    <entry>\\n ...       fields separated by white space:
                         offset checkpoints `<topic> <partition> <offset>`, in no order;
                         leader epochs      `<epoch> <start offset>`, epochs rising

A missing file, an empty one, and one that ends after the version have no entries. A checkpoint is written by
replacing the whole file, with lines that end in LF. Lines that are read may end in LF, CR or CR LF.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from topicfs.engine.errors import CorruptCheckpointError, shown
from topicfs.engine.files.atomic import read_bounded, write_atomically
from topicfs.engine.files.integers import parse_int32, parse_int64

log = logging.getLogger(__name__)

VERSION: Final = 0


# The longest entry has 281 bytes: enough for 230,000 partitions with names of full length.
MAX_BYTES: Final = 64 * 1024 * 1024

_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_SPACE: Final = re.compile(r"\s+", re.ASCII)


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Replace the checkpoint's entries, durably. Each line is one entry, without its line end."""
    content = "".join(f"{line}\n" for line in (str(VERSION), str(len(lines)), *lines))
    write_atomically(path, content.encode())


def write_lines_if_directory_exists(path: Path, lines: Sequence[str]) -> bool:
    """Write like `write_lines`, but return False if the directory is gone. This is for a delayed write, whose partition
    may be renamed or deleted by now."""
    try:
        write_lines(path, lines)
    except FileNotFoundError:
        log.warning(f"{path}: not written, its directory is gone; expected while a partition is deleted")
        return False
    return True


def read_lines(path: Path) -> list[list[str]]:
    """Return the fields of each entry; CorruptCheckpointError where the file breaks the format."""
    return [fields for _, fields in _entries(path)]


@dataclass(frozen=True, slots=True)
class OffsetCheckpoint:
    """A checkpoint file with one offset per partition.

    path  the file, which may be missing
    """

    path: Path

    def read(self) -> dict[tuple[str, int], int]:
        """Return the offsets by topic and partition. If a partition has two entries, the later one counts."""
        offsets = {}
        for number, fields in _entries(self.path):
            partition = parse_int32(fields[1]) if len(fields) == 3 else None
            offset = parse_int64(fields[2]) if len(fields) == 3 else None
            if partition is None or offset is None or partition < 0 or offset < 0:
                expected = "<topic> <partition> <offset>, numbers not negative"
                raise _malformed(self.path, number, expected, " ".join(fields))
            offsets[fields[0], partition] = offset
        return offsets

    def write(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Replace all entries, durably."""
        write_lines(
            self.path, [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
        )


def _entries(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Give the line number and fields of each entry. An entry too many ends the reading, so that the rest takes no
    memory."""
    lines = _lines(path)
    version = next(lines, None)
    if version is None:
        return
    if parse_int32(version) != VERSION:
        raise _malformed(path, 1, f"version {VERSION}", version)
    declared = next(lines, None)
    if declared is None:
        return
    count = parse_int32(declared)
    if count is None or count < 0:
        raise _malformed(path, 2, "the number of entries", declared)
    found = 0
    for found, line in enumerate(lines, start=1):
        if found > count:
            raise _malformed(path, found + 2, f"the end of the file after {count} entries", line)
        fields = _SPACE.split(line.rstrip(" \t\v\f"))
        if not fields[0]:
            raise _malformed(path, found + 2, "an entry that begins with its first field", line)
        yield found + 2, fields
    if found != count:
        raise CorruptCheckpointError(f"{path}: line 2: expected {count} entries as declared, found {found}")


def _lines(path: Path) -> Iterator[str]:
    try:
        text = read_bounded(path, MAX_BYTES).decode()
    except FileNotFoundError:
        return
    except UnicodeDecodeError as error:
        raise CorruptCheckpointError(
            f"{path}: byte {error.start}: expected UTF-8 text, found {error.object[error.start]:#04x}"
        ) from error
    start = 0
    for end in _LINE_END.finditer(text):
        yield text[start : end.start()]
        start = end.end()
    if start < len(text):
        yield text[start:]


def _malformed(path: Path, line: int, expected: str, found: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(f"{path}: line {line}: expected {expected}, found {shown(found)}")
