"""The files of an import: which there are, and which format each has by its name and by its content.

Spark reads what it is told: Parquet as lines, or gzip as text where the name does not end in `.gz`. So both are
compared with what the file holds before anything is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from topicfs.engine.errors import InvalidSettingError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS: Final = ("text", "json", "parquet", "csv")

_SUFFIXES: Final = {
    "txt": "text", "text": "text", "json": "json", "jsonl": "json", "ndjson": "json", "parquet": "parquet",
    "csv": "csv",
}  # fmt: skip
_CODECS: Final = {"gz": "gzip", "bz2": "bzip2", "zst": "zstd", "deflate": None, "snappy": None, "lz4": None}
"""By suffix, what Spark decompresses, and the name that _MAGIC has for it; None where its first bytes may be any."""

_MAGIC: Final = {
    b"\x1f\x8b": "gzip",
    b"BZh91AY&SY": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"\xfd7zXZ\0": "xz",
    b"Obj\x01": "Avro",
}
_PARQUET: Final = (b"PAR1", b"PARE")
_HEAD_BYTES: Final = 16
_OPENERS: Final = 16
"""How many files are looked into at once: from a store of objects each takes some time."""

_EVERYWHERE: Final = (
    "basePath", "ignoredPathSegmentRegex", "modifiedAfter", "modifiedBefore", "pathGlobFilter", "recursiveFileLookup",
)  # fmt: skip
OPTIONS: Final[Mapping[str, Sequence[str]]] = {
    "text": (*_EVERYWHERE, "lineSep", "wholetext"),
    "json": (*_EVERYWHERE, "lineSep"),
    "parquet": (*_EVERYWHERE, "datetimeRebaseMode", "int96RebaseMode"),
    "csv": (
        *_EVERYWHERE, "charset", "comment", "delimiter", "emptyValue", "encoding", "escape", "header",
        "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "lineSep", "maxCharsPerColumn", "maxColumns",
        "multiLine", "nullValue", "quote", "sep",
    ),
}  # fmt: skip
"""The options of Spark's readers that are passed on. Spark ignores names that it does not know, and others would have
rows left out."""


def files_of(spark: SparkSession, paths: Sequence[str], options: Mapping[str, str]) -> list[str]:
    """Return the URIs of the files that Spark finds, also below directories. InvalidSettingError if there are none."""
    everywhere = {name.lower() for name in _EVERYWHERE}
    kept = {name: value for name, value in options.items() if name.lower() in everywhere}
    found = sorted(spark.read.options(**kept).text(list(paths)).inputFiles())
    if not found:
        raise InvalidSettingError(f"{', '.join(paths)}: expected files, found none")
    return found


def format_of(spark: SparkSession, files: Sequence[str], given: str | None) -> str:
    """Return the format of all files, by their names, their content and `given`. InvalidSettingError where these
    contradict each other, or tell nothing."""
    if given is not None and given not in FORMATS:
        raise InvalidSettingError(f"format: expected one of {', '.join(FORMATS)}, found {given}")
    with ThreadPoolExecutor(_OPENERS) as pool:
        ends = pool.map(lambda file: _ends(spark, file), files)
        kinds = {
            _format(shown(file), *end, given): shown(file) for file, end in zip(files, ends, strict=True)
        }
    if len(kinds) > 1:
        (one, first), (other, second), *_ = kinds.items()
        raise InvalidSettingError(
            f"expected files of one format, found {one} in {first} and {other} in {second}: import each into a topic "
            "of its own"
        )
    return next(iter(kinds))


def _format(name: str, head: bytes, tail: bytes, given: str | None) -> str:
    """Return the format of a file by its name, its first bytes and its last ones."""
    stem, _, suffix = name.rpartition("/")[2].rpartition(".")
    codec = suffix.lower() if suffix.lower() in _CODECS else None
    named = _SUFFIXES.get((stem.rpartition(".")[2] if codec else suffix).lower())
    if given is not None and named is not None and given != named:
        raise InvalidSettingError(f"{name}: expected {given}, as --format says, found a name of {named}")
    held = "parquet" if head[:4] in _PARQUET and tail in _PARQUET else None
    packed = next((each for magic, each in _MAGIC.items() if head.startswith(magic)), None)
    wanted = given or named
    if held and (codec or wanted not in (None, held)):
        raise InvalidSettingError(f"{name}: expected {wanted or 'what its name says'}, found Parquet in it")
    if head and wanted == "parquet" and not held:
        raise InvalidSettingError(
            f"{name}: expected Parquet, which begins and ends with PAR1, found {head[:4]!r}"
        )
    if packed is not None and packed != (_CODECS[codec] if codec else None):
        raise InvalidSettingError(
            f"{name}: expected {wanted or 'rows'}, found {packed} in it, which is not read under this name"
        )
    if head and codec and _CODECS[codec] not in (None, packed):
        raise InvalidSettingError(
            f"{name}: expected {_CODECS[codec]}, as its name says, found something else in it"
        )
    if wanted is None and held is None:
        raise InvalidSettingError(f"{name}: expected --format, as neither its name nor its content tells one")
    return wanted or "parquet"


def _ends(spark: SparkSession, file: str) -> tuple[bytes, bytes]:
    """Return the first bytes of a file and its last four."""
    path, system = _on_hadoop(spark, file)
    stream = system.open(path)
    try:
        head = bytes(stream.readNBytes(_HEAD_BYTES))
        if len(head) < _HEAD_BYTES:
            return head, head[-4:]
        stream.seek(system.getFileStatus(path).getLen() - 4)
        return head, bytes(stream.readNBytes(4))
    finally:
        stream.close()


def _on_hadoop(spark: SparkSession, file: str) -> tuple[Any, Any]:
    """Return the path of a file, and its file system, as Spark's JVM has them: it knows every kind of storage."""
    java: Any = spark._jvm
    path = java.org.apache.hadoop.fs.Path(java.java.net.URI(file))
    return path, path.getFileSystem(spark._jsc.hadoopConfiguration())


def parquet_columns(spark: SparkSession, files: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of the columns in each Parquet file. Spark takes them from one file, and gives nulls where
    another file has others."""
    java: Any = spark._jvm
    opened = java.org.apache.parquet.hadoop

    def columns(file: str) -> list[str]:
        path, _ = _on_hadoop(spark, file)
        source = opened.util.HadoopInputFile.fromPath(path, spark._jsc.hadoopConfiguration())
        reader = opened.ParquetFileReader.open(source)
        try:
            return [field.getName() for field in reader.getFooter().getFileMetaData().getSchema().getFields()]
        finally:
            reader.close()

    with ThreadPoolExecutor(_OPENERS) as pool:
        return dict(zip(files, pool.map(columns, files), strict=True))


def check_options(kind: str, options: Mapping[str, str]) -> None:
    """Raise InvalidSettingError for an option that would be ignored, or would have rows left out."""
    known = {name.lower() for name in OPTIONS[kind]}
    for name in options:
        if name.lower() not in known:
            raise InvalidSettingError(
                f"option {name} of {kind}: expected one of {', '.join(sorted(OPTIONS[kind], key=str.lower))}"
            )


def shown(file: str) -> str:
    """Return a file's URI as people write it: without `file:` and percent signs where it is of this machine."""
    if file.startswith("file:"):
        return "/" + unquote(file.removeprefix("file:").lstrip("/"))
    return file
