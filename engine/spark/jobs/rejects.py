"""Rows that an import cannot take: the words of an error, or lines in a directory.

    DIRECTORY/rejected.jsonl    {"file": …, "line" or "row": …, "reason": …, "text": …}, in the order of tasks

The text is the line or the fields as they were; of a row that the topic refuses it is a line of jsonl. `text_base64`
is in its place if it is not UTF-8.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa

from topicfs.engine.errors import InvalidRecordError, InvalidSettingError
from topicfs.engine.spark.jobs.files import shown
from topicfs.engine.spark.jobs.sources import Sources
from topicfs.engine.spark.jobs.taking import FILE, ROW, START, TEXT

REJECTED: Final = "rejected.jsonl"
_MARK: Final = re.compile(r"InvalidRecordError: \[row (\d+) from byte (\d+) of (\S+)\] (.*)")

_FILE: Final = re.compile(r"error while reading file (\S+)\.\s")
_CSV: Final = re.compile(
    r"TextParsingException: (Unescaped quote[^.]*)\..*?Internal state[^\n]*: line=(\d+),", re.DOTALL
)


def marked(row: pa.RecordBatch) -> str:
    """Return the place of a row for the words of an error, from which `refusal_in` takes it: the number of a line is
    not known in a task, which reads a part of a file."""
    file, start, number = (row.column(name)[0].as_py() for name in (FILE, START, ROW))
    return f"[row {number} from byte {start} of {file}] "


def refusal_in(error: Exception, sources: Sources) -> InvalidRecordError | None:
    """Return the refusal of a row that has failed a job, with the file and the line; None if something else has."""
    text = str(error)
    if found := _MARK.search(text):
        number, start, file, reason = found.groups()
        place = sources.described(file, int(start), int(number))
    elif (found := _FILE.search(text)) and (parsed := _CSV.search(text)):
        # Spark's parser of CSV stops at a quote within a field.
        reason, line = parsed.groups()
        place = f"{shown(found[1])}: line {int(line) + 1}"
    else:
        return None
    return InvalidRecordError(f"{place}: {reason}; nothing is imported")


class Aside:
    """The rows that one task puts aside.

    path   its file, made for the first row
    rows   how many there are
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self._file: BinaryIO | None = None

    def add(self, row: pa.RecordBatch, reason: str) -> None:
        """Write one row with the reason."""
        if self._file is None:
            self._file = self.path.open("xb")
        (held,) = row.to_pylist()
        text = held.get(TEXT)
        told = {name: held.get(name) for name in (FILE, START, ROW)}
        told |= {"reason": reason, **_told("text", _line(held) if text is None else text)}
        self._file.write(json.dumps(told).encode() + b"\n")
        self.rows += 1

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()


def _told(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return bytes as a member of JSON."""
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode()}


def _line(row: dict[str, Any]) -> bytes:
    """Return a record as a line of jsonl that can be imported again."""
    members: dict[str, Any] = {}
    for name in ("key", "value"):
        if name == "value" or row.get(name) is not None:
            members |= _told(name, row[name])
    if row.get("timestamp") is not None:
        members["timestamp"] = round(row["timestamp"].timestamp() * 1000)
    if row.get("partition") is not None:
        members["partition"] = row["partition"]
    if row.get("headers"):
        members["headers"] = [
            {"key": each["key"], **_told("value", each["value"])} for each in row["headers"]
        ]
    return json.dumps(members, ensure_ascii=False).encode()


@dataclass(frozen=True, slots=True)
class Rejects:
    """The directory for rows that an import cannot take.

    directory  made when there is something for it; nothing else may be in it
    sources    says which line of its file a row is
    """

    directory: Path
    sources: Sources

    @classmethod
    def into(cls, directory: Path, sources: Sources) -> Rejects:
        """Make it. InvalidSettingError if something is in the directory."""
        if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
            raise InvalidSettingError(f"{directory}: expected an empty directory, or none, for rejected rows")
        return cls(directory, sources)

    def write(self, pieces: Sequence[Path]) -> None:
        """Write what the tasks have put aside, durably."""
        if not pieces:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        named = "row" if self.sources.numbers_rows else "line"
        with (self.directory / REJECTED).open("xb") as target:
            for piece in pieces:
                with piece.open("rb") as lines:
                    for line in lines:
                        held = json.loads(line)
                        place = held.pop(FILE), held.pop(START), held.pop(ROW)
                        name, number = self.sources.place(*place)
                        told = {"file": name, named: number, **held}
                        target.write(json.dumps(told, ensure_ascii=False).encode() + b"\n")
            target.flush()
            os.fsync(target.fileno())
