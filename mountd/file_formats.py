"""The formats of files that records are exported to and imported from, by the names of files."""

from __future__ import annotations

import importlib.util
from typing import Final

from topicfs.engine.format.paths import PARQUET_SUFFIX
from topicfs.mountd.tree import RefusedError

LINES: Final = ("jsonl", "tsv", "txt")
"""The formats that a topic's views have."""

PARQUET: Final = "parquet"
KCAT: Final = "kcat-json"

ZIPPED: Final = (".gz", ".zst")
"""The suffixes of compressed files."""

_BY_NAME: Final = {
    ".kcat.json": KCAT,
    ".kcat.jsonl": KCAT,
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".ndjson": "jsonl",
    ".tsv": "tsv",
    ".txt": "txt",
    PARQUET_SUFFIX: PARQUET,
    ".arrow": "arrow",
}


def format_of(name: str) -> str | None:
    """Return the format that a file's name says; None where it says none."""
    for suffix in ZIPPED:
        name = name.removesuffix(suffix)
    return next((kind for suffix, kind in _BY_NAME.items() if name.endswith(suffix)), None)


def suffix_of(kind: str) -> str:
    """Return the suffix of the name of a file that has a format."""
    return next(suffix for suffix, each in _BY_NAME.items() if each == kind)


def require_pyarrow() -> None:
    """Refuse what cannot be done without pyarrow."""
    if importlib.util.find_spec("pyarrow") is None:
        raise RefusedError("expected pyarrow, found none: pip install 'topicfs[sql]'")
