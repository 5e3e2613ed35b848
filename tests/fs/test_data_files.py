"""Names in an inbox, and the lines of files that lie there."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from topicfs.engine.errors import InvalidRecordError, RecordTooLargeError
from topicfs.engine.inbox.content import Content
from topicfs.engine.inbox.rows import NO_PARTITION
from topicfs.engine.settings.topic import resolve_topic
from topicfs.engine.staging.staging import BLOCK, Parts, Staging
from topicfs.fs.errors import BadInputError
from topicfs.fs.formats import Format
from topicfs.fs.inbox.data_files import ColumnFormat, DataFile, Topic, chunks, content_of, data_files
from topicfs.fs.inbox.paths import PathKind, kind_of

JOB = "01234567-89ab-cdef-0123-456789abcdef"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("x.txt", PathKind.TOP),
        ("q1-7", PathKind.TOP),
        ("q1-7/x.txt", PathKind.DATA),
        ("q1-7/partition=3/x.txt", PathKind.DATA),
        ("_SUCCESS", PathKind.SUCCESS),
        ("q1-7/_SUCCESS", PathKind.SUCCESS),
        ("q1-7/partition=3/_SUCCESS", PathKind.SCRATCH),
        ("_temporary", PathKind.WORK),
        ("_temporary/0/x.txt", PathKind.WORK),
        ("q1-7/_temporary/0/_temporary/attempt_1/.part.crc", PathKind.WORK),
        (".spark-staging-1/x.txt", PathKind.SCRATCH),
        (".x/_temporary/x.txt", PathKind.SCRATCH),
        (".x/_SUCCESS", PathKind.SCRATCH),
        ("q1-7/.x.crc", PathKind.SCRATCH),
        ("_spark_metadata/0", PathKind.MANIFEST),
        ("q1-7/_spark_metadata", PathKind.MANIFEST),
        (".checkpoint/_spark_metadata", PathKind.SCRATCH),
    ],
)
def test_what_a_name_is(path: str, kind: PathKind) -> None:
    assert kind_of(tuple(path.split("/"))) is kind


def test_what_a_files_name_tells() -> None:
    file = DataFile.of(("b", "partition=12", f"part-00003-{JOB}-c001.json.gz"))
    assert (file.format, file.zipped, file.partition) == (Format.JSONL, True, 12)
    assert DataFile.of(("b", "x.tsv")).partition == NO_PARTITION
    part = DataFile.of(("b", f"part-00003-{JOB}-c001.snappy.parquet"))
    assert (part.format, part.zipped) == (ColumnFormat.PARQUET, False)
    assert DataFile.of(("b", "x.arrow")).format == ColumnFormat.ARROW
    for name in ("txt", "x", "x.gz", "x.txt.bz2", "x.csv", "x.TXT", "x.parquet.gz", "x.arrow.gz", "parquet"):
        with pytest.raises(BadInputError, match="expected a name that ends in"):
            DataFile.of(("b", name))


def test_without_pyarrow_columns_are_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("x.parquet", "x.arrow"):
        with pytest.raises(
            BadInputError, match=rf"b/{name}: .* need pyarrow: pip install 'topicfs\[spark\]'"
        ):
            DataFile.of(("b", name))
    DataFile.of(("b", "x.txt"))


class Area:
    """Files, and the records that they hold."""

    def __init__(self, root: Path) -> None:
        self.staging = Staging(root)
        self.root = root
        self.settings = resolve_topic({}, {})

    def put(self, name: str, data: bytes) -> Parts:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return tuple(name.split("/"))

    def read(self, name: str, data: bytes) -> list[bytes]:
        file = DataFile.of(self.put(name, data))
        topic = Topic(self.settings, [0], itertools.count(), lambda: 1)
        return [
            columns.buffer[start : start + length].tobytes()
            for _, columns in chunks(self.staging, [file], topic)
            for start, length in zip(columns.value_start, columns.value_length, strict=True)
        ]


@pytest.fixture
def area(tmp_path: Path) -> Area:
    return Area(tmp_path / "inbox")


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("around", [-2, -1, 0, 1, 2])
def test_lines_go_over_the_ends_of_blocks(area: Area, around: int, end: bytes) -> None:
    lines = [b"x" * 999] * (BLOCK // 1000) + [b"y" * (BLOCK % 1000 + around), b"z" * 2000, b"", b"last"]
    assert area.read("x.txt", b"\n".join(lines) + end) == lines
    assert area.read("x.txt.gz", gzip.compress(b"\n".join(lines) + end, 1)) == lines


def test_a_line_may_be_as_long_as_a_record_can_be_and_no_longer(area: Area) -> None:
    with pytest.raises(RecordTooLargeError, match=r"x\.txt: line 1: "):
        area.read("x.txt", b"x" * (2 << 20))
    with pytest.raises(RecordTooLargeError, match=r"x\.txt: a line goes beyond"):
        area.read("x.txt", b"x" * (20 << 20))


def test_an_error_tells_the_file_and_the_line_in_it(area: Area) -> None:
    good = b'{"value":"%s"}\n' % (b"x" * 1000)
    with pytest.raises(BadInputError, match=r"^b/x\.json: line 3001: byte 1: "):
        area.read("b/x.json", good * 3000 + b"bad\n" + good)
    with pytest.raises(BadInputError, match=r"^b/x\.json: line 3001: partition 1 is not one of 0 to 0"):
        area.read("b/x.json", good * 3000 + b'{"value":"x","partition":1}\n' + good)


@pytest.mark.parametrize(
    "damage",
    [b"plain", gzip.compress(b"x" * 1000)[:-3], gzip.compress(b"x")[:12] + b"?" * 20],
    ids=["plain", "cut", "garbled"],  # the bytes would not do: they hold the time
)
def test_what_is_to_be_gzip_and_is_not(area: Area, damage: bytes) -> None:
    with pytest.raises(InvalidRecordError, match="expected gzip"):
        area.read("x.txt.gz", damage)


def test_files_are_taken_in_the_order_of_their_parts(area: Area) -> None:
    names = [
        f"part-{part:05}-{JOB}-c{file:03}.txt"
        for part, file in ((0, 0), (0, 1), (2, 0), (10, 0), (100000, 0))
    ]
    names += ["a.txt", "partition=0/part.txt"]
    for name in reversed(names):
        area.put(f"b/{name}", b"")
    for hidden in ("_SUCCESS", ".x.txt.crc", "_temporary/0/part-00000.txt", "_other/x.txt"):
        area.put(f"b/{hidden}", b"")
    assert [file.name for file in data_files(area.staging, ("b",))] == [f"b/{name}" for name in names]


def test_of_the_inbox_itself_only_the_files_of_jobs_are_taken(area: Area) -> None:
    for name in (f"part-00001-{JOB}-c000.txt", "x.txt", "part-00000.txt", f"b/part-00000-{JOB}-c000.txt"):
        area.put(name, b"")
    assert [file.name for file in data_files(area.staging, ())] == [f"part-00001-{JOB}-c000.txt"]


def test_an_error_in_columns_tells_the_file_and_the_row_in_it(area: Area) -> None:
    values, partitions = pa.array(["x"] * 5000), [0] * 3000 + [1] + [0] * 1999
    for name, write in (("b/x.parquet", parquet), ("b/x.arrow", arrow)):
        with pytest.raises(BadInputError, match=rf"^{name}: row 3001: partition 1 is not one of 0 to 0"):
            area.read(name, write(pa.table({"value": values, "partition": partitions})))
        with pytest.raises(BadInputError, match=rf"^{name}: unknown column colour"):
            area.read(name, write(pa.table({"value": values, "colour": values})))
        with pytest.raises(BadInputError, match=rf"^{name}: .*damaged, or not all of it has come"):
            area.read(name, write(pa.table({"value": values}))[:-1])
        with pytest.raises(RecordTooLargeError, match=rf"^{name}: row 2: "):
            area.read(name, write(pa.table({"value": ["x", "x" * (2 << 20)]})))
    assert area.staging.places.limit == Staging(area.root).places.limit, "files were closed"


def parquet(table: pa.Table) -> bytes:
    made = io.BytesIO()
    pq.write_table(table, made)
    return made.getvalue()


def arrow(table: pa.Table) -> bytes:
    made = io.BytesIO()
    with pa.ipc.new_file(made, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    return made.getvalue()


def test_content_is_of_records_in_whatever_format_they_come(area: Area) -> None:
    topic = Topic(area.settings, [0, 1], itertools.count(), lambda: 1)

    def content(**files: bytes) -> str:
        parts = [
            area.put(f"b/{name.replace('_', '.').replace('0', 'partition=0/')}", data)
            for name, data in files.items()
        ]
        found = content_of(area.staging, map(DataFile.of, parts), topic)
        dated = Content()
        for _ in chunks(area.staging, map(DataFile.of, parts), topic, dated):
            pass
        assert str(found) == str(dated)
        return str(found)

    def same(*forms: str) -> bool:
        return len(set(forms)) == 1

    columns = pa.table(
        {
            "key": ["k", None, "k", None],
            "value": ["v", "ü", None, ""],
            "timestamp": pa.array([5, None, None, -1]),
            "headers": pa.array([[("h", b"x")], None, [], None], pa.map_(pa.string(), pa.binary())),
        }
    )
    lines = (
        b'{"key":"k","value":"v","timestamp":5,"headers":{"h":"x"}}\n{"value":"\\u00fc","headers":[],"key":null}\n'
        b'{"value":null,"key_base64":"aw==","offset":7}\n{"value":"","timestamp":-1}'
    )
    assert same(
        content(x_jsonl=lines),
        content(y_json_gz=gzip.compress(lines)),
        content(a_parquet=parquet(columns)),
        content(b_arrow=arrow(columns.slice(2)), c_parquet=parquet(columns.slice(0, 2))),
        content(c_arrow=arrow(columns.slice(1)), d_jsonl=lines.partition(b"\n")[0]),
    )
    plain = pa.table({"value": ["a", "b"]})
    assert same(content(x_txt=b"b\na\n"), content(z_parquet=parquet(plain)), content(x_tsv=b"\\N\ta\n\\N\tb"))
    named = pa.table({"value": ["a", "b"], "partition": [0, None]})
    assert same(
        content(**{"0x_txt": b"a\nb\n"}),
        content(x_arrow=arrow(pa.table({"value": ["a", "b"], "partition": [0, 0]}))),
        content(**{"0y_parquet": parquet(named)}),
    )
    others = [
        content(x_txt=b"a\nb\n"),
        content(x_arrow=arrow(named)),
        content(**{"0x_txt": b"a\nb\n"}),
        content(x_tsv=b"a\tb"),
        content(x_jsonl=b'{"value":"a","timestamp":1}\n{"value":"b"}\n'),
    ]
    assert len(set(others)) == len(others)


def test_keys_choose_as_they_do_elsewhere(area: Area) -> None:
    file = DataFile.of(area.put("x.tsv", b"".join(b"key %d\tv\n" % number for number in range(100))))
    topic = Topic(area.settings, [0, 1, 2], itertools.count(), lambda: 1)
    parts = {number: len(columns) for number, columns in chunks(area.staging, [file], topic)}
    assert sorted(parts) == [0, 1, 2]
    assert sum(parts.values()) == 100
    assert np.all(np.array(list(parts.values())) > 10)


def test_files_that_were_read_give_their_places_back(area: Area) -> None:
    """regression: each file of a committed batch kept the place that it had borrowed among those of open files"""
    before = area.staging.places.limit
    assert area.read("b/plain.txt", b"one\ntwo\n") == [b"one", b"two"]
    with pytest.raises(InvalidRecordError):
        area.read("b/x.txt.gz", b"no gzip")
    with pytest.raises(FileNotFoundError):
        area.staging.open(("b", "missing"), os.O_RDONLY)
    assert area.staging.places.limit == before
