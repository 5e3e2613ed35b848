"""`topicfs spark import` is strict: what Spark would cut, make null or read as garbage is an error, or is put aside."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from topicfs import Record, Store
from topicfs.mountd.cli import main

NOW = 1_700_000_000_000

Import = Callable[..., tuple[int, str]]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    place = tmp_path / "store"
    Store.open(place, create=True).close()
    return place


@pytest.fixture
def run(spark: SparkSession, store: Path, monkeypatch: pytest.MonkeyPatch) -> Import:
    """`topicfs spark import STORE t …` in this process, on the session that is there."""
    monkeypatch.setattr(type(spark), "stop", lambda self: None)

    def command(*words: object) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["spark", "import", str(store), "t", *map(str, words)])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.output

    return command


def imported(store: Path) -> list[Record]:
    """All records of t, by partition and offset; none if it is not there."""
    with Store.open(store) as opened:
        return [
            record
            for number in opened.topics().get("t", ())
            for record in opened.partition("t", number).records()
        ]


def pairs(store: Path) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in imported(store)]


def refuses(run: Import, store: Path, *words: object) -> str:
    """The words of an import that fails, and of which nothing is there."""
    code, said = run(*words)
    assert code == 1, said
    assert said.startswith("topicfs: ")
    assert "Traceback" not in said
    with Store.open(store) as opened:
        assert opened.topics() == {}
    assert not [path for path in (store / "staging").rglob("*") if path.is_file()]
    return said


def rejected(directory: Path) -> list[dict[str, object]]:
    """What was put aside, which is all that is in the directory."""
    assert [path.name for path in directory.iterdir()] == ["rejected.jsonl"]
    return [json.loads(line) for line in (directory / "rejected.jsonl").read_text().splitlines()]


# -- json ---------------------------------------------------------------------------------------------

BAD_LINES = [
    ('{"value":"x"', "expected JSON: "),
    ("no json", "expected JSON: "),
    ('["x"]', "expected an object, found list"),
    ('{"vlaue":"x"}', "expected the members topic, partition, offset, timestamp, key, value, key_base64"),
    ('{"vlaue":"x"}', "found vlaue"),
    ('{"value":"x","colour":"blue"}', "found colour"),
    ('{"key":"k"}', "expected a member value, which may be null, found none"),
    ('{"value":3}', "Column(/value) changed from string to number"),
    ('{"value":{"a":"b"}}', "Column(/value) changed from string to object"),
    ('{"value":"x","timestamp":"yesterday"}', "Column(/timestamp) changed from number to string"),
    ('{"value":"x","timestamp":9223372036854775807}', "expected a timestamp of at most"),
    ('{"value":"x","partition":1.5}', "1.5"),
    ('{"value":"x","partition":7}', "partition 7 is not one of 0 to 1"),
    ('{"value":"x","value":"y"}', "twice"),
    ('{"value":"x","value_base64":"eA=="}', "expected text or base64, found both"),
    ('{"value_base64":"%%"}', "base64"),
    ('{"value":"x"}{"value":"y"}', "expected JSON: "),
    ('{"value":"x","headers":[{"value":"h"}]}', "expected a key in each header"),
    ('{"value":"x","headers":[{"kye":"h"}]}', "unexpected field"),
]


@pytest.mark.parametrize(("line", "words"), [BAD_LINES[0], BAD_LINES[4]])
def test_a_line_of_json_that_cannot_be_taken_stops_the_import(
    run: Import, store: Path, tmp_path: Path, line: str, words: str
) -> None:
    source = tmp_path / "some rows.jsonl"
    source.write_text('{"value":"a"}\n\n' + line + '\n{"value":"b"}\n')
    said = refuses(run, store, source, "--partitions", 2)
    assert f"{source}: line 3: " in said
    assert words in said
    assert "nothing is imported" in said


def test_json_is_imported_as_it_is(run: Import, store: Path, tmp_path: Path) -> None:
    headers = '[{"key":"h","value":"x"},{"key":"n","value":null},{"key_base64":"/w==","value_base64":"/wA="}]'
    source = tmp_path / "rows.ndjson"
    source.write_text(
        f'  {{"offset":7,"topic":"x","value":"é\\u0000","key_base64":"/w==","timestamp":{NOW},"headers":'
        f"{headers}}} \r\n"
        '{"value":null,"key":"k"}\n \n{"value_base64":null,"key":null,"headers":[]}\n{"value_base64":"/wA="}'
    )
    code, said = run(source)
    assert (code, said[:12]) == (0, "t: 4 records"), said
    assert said.endswith("4 rows read, 4 written, 0 rejected\n")
    first, second, third, fourth = imported(store)
    assert first.headers[:2] == (("h", b"x"), ("n", None))
    assert (len(first.headers), first.headers[2][1]) == (3, b"\xff\0")
    assert (first.key, first.value, first.timestamp) == (b"\xff", "é\0".encode(), NOW)
    assert [(each.key, each.value) for each in (second, third, fourth)] == [
        (b"k", None), (None, None), (None, b"\xff\0")
    ]  # fmt: skip


def test_the_number_of_a_line_is_that_in_the_file_also_where_tasks_share_one(
    run: Import, spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    source = tmp_path / "rows.jsonl"
    lines = [json.dumps({"value": f"{number}" * (number % 7)}) for number in range(1200)]
    for number in (17, 599, 600, 1198):
        lines[number] = f'{{"vlaue":"{number}"}}'
    source.write_text("\n".join(lines))
    spark.conf.set("spark.sql.files.maxPartitionBytes", "3000")
    try:
        said = refuses(run, store, source)
        assert any(f"line {number + 1}: " in said for number in (17, 599, 600, 1198)), said
        code, said = run(source, "--rejects", tmp_path / "aside")
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    assert code == 0, said
    assert said.endswith("1200 rows read, 1196 written, 4 rejected\n")
    found = rejected(tmp_path / "aside")
    assert [(each["line"], each["text"]) for each in found] == [
        (number + 1, lines[number]) for number in (17, 599, 600, 1198)
    ]
    assert len(imported(store)) == 1196


def test_what_is_rejected_is_put_aside_and_the_rest_goes_in(run: Import, store: Path, tmp_path: Path) -> None:
    source, aside = tmp_path / "rows.json", tmp_path / "made" / "aside"
    lines = ['{"key":"k","value":"a"}', *(line for line, _ in BAD_LINES), '{"key":"k","value":"b"}']
    source.write_bytes("\n".join(lines).encode() + b'\n{"value":"\xff"}\n{"value":"%s"}\n' % (b"x" * 3000))
    settings = ("-o", "max.message.bytes=1000", "--partitions", 2, "--rejects", aside)
    code, said = run(source, *settings)
    assert code == 0, said
    count = len(lines) + 2
    assert said.endswith(f"{count} rows read, 2 written, {count - 2} rejected\n")
    assert pairs(store) == [(b"k", b"a"), (b"k", b"b")]
    found = {each["line"]: each for each in rejected(aside)}
    assert sorted(found) == [*range(2, len(lines)), len(lines) + 1, len(lines) + 2]
    for number, (line, words) in enumerate(BAD_LINES, 2):
        assert words in str(found[number]["reason"])
        assert found[number]["file"] == str(source)
        # What was malformed is as it was; what the topic has refused is as the views write it.
        assert found[number]["text"] == line or json.loads(str(found[number]["text"])) == json.loads(line)
    assert base64.b64decode(str(found[len(lines) + 1]["text_base64"])) == b'{"value":"\xff"}'
    assert "x" * 3000 in str(found[len(lines) + 2]["text"])
    code, said = run(source, *settings)
    assert code == 1
    assert "expected an empty directory" in said


def test_directories_of_partitions_name_the_partition(run: Import, store: Path, tmp_path: Path) -> None:
    place = tmp_path / "rows"
    for number in (0, 1):
        (place / f"partition={number}").mkdir(parents=True)
        (place / f"partition={number}" / "x.jsonl").write_text(f'{{"value":"{number}"}}\n')
    (place / "partition=1" / "y.jsonl").write_text(
        '{"value":"1","partition":1}\n{"value":"0","partition":0}\n'
    )
    said = refuses(run, store, place, "--partitions", 2)
    assert "y.jsonl: line 2: expected the partition of the directory, found another one" in said
    (place / "partition=1" / "y.jsonl").write_text('{"value":"1","partition":1}\n')
    assert run(place, "--partitions", 2)[0] == 0
    assert [record.value for record in imported(store)] == [b"0", b"1", b"1"]


# -- csv ----------------------------------------------------------------------------------------------


def test_csv_with_a_header_quotes_and_newlines(run: Import, store: Path, tmp_path: Path) -> None:
    source = tmp_path / "rows.csv"
    source.write_text(
        "timestamp,value,key,partition\n"
        '2023-11-14T22:13:20Z,"a ""quoted"" word,\nand a second line",k1,0\n'
        f'{NOW + 5},back\\slash,,\n{NOW + 6},,k3,\n{NOW + 7},"","k ""4""",\n'
    )
    assert run(source)[0] == 0
    found = imported(store)
    assert [(each.key, each.value) for each in found] == [
        (b"k1", b'a "quoted" word,\nand a second line'),
        (None, b"back\\slash"),
        (b"k3", None),
        (b'k "4"', b""),
    ]
    assert [each.timestamp - NOW for each in found] == [0, 5, 6, 7]


def test_options_go_to_the_reader(run: Import, store: Path, tmp_path: Path) -> None:
    source = tmp_path / "rows.csv"
    source.write_text("key;value\n# a remark\nk,1;'a;b'\n")
    said = refuses(run, store, source, "--option", "header=true", "--option", "seperator=;")
    assert "option seperator of csv: expected one of basePath, charset" in said
    assert "option mode of csv" in refuses(run, store, source, "--option", "mode=DROPMALFORMED")
    code, said = run(
        source, "--option", "header=true", "--option", "sep=;", "--option", "quote='", "--option", "comment=#"
    )  # fmt: skip
    assert code == 0, said
    assert pairs(store) == [(b"k,1", b"a;b")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("key,vlaue\nk,v\n", "column vlaue string: expected columns among key, value, partition"),
        ("key,partition\nk,0\n", "expected a column value, found key, partition"),
        ("key,value\nk1,a\nk2\n", "rows.csv: row 2: expected 2 fields: key, value"),
        ("key,value\nk1,a\nk2,b,c\n", "rows.csv: row 2: expected 2 fields: key, value"),
        ("value,partition\na,0\nb,first\n", "rows.csv: row 2: expected a partition, found first"),
        ("value,timestamp\na,soon\n", "rows.csv: row 1: expected a timestamp, found soon"),
        ('key,value\nk1,"a\nk2,b\n', "rows.csv: expected quotes in pairs, found 1"),
        ('key,value\nk1,"a "word" b"\nk2,b\n', "rows.csv: line 2: Unescaped quote character"),
        ("k1,a\nk2,b\n", "column k1 string"),
    ],
)
def test_csv_that_cannot_be_taken_stops_the_import(
    run: Import, store: Path, tmp_path: Path, text: str, words: str
) -> None:
    source = tmp_path / "rows.csv"
    source.write_text(text)
    assert words in refuses(run, store, source)


def test_files_of_csv_have_one_header(run: Import, store: Path, tmp_path: Path) -> None:
    for name, text in (("a.csv", "key,value\nk,v\n"), ("b.csv", "value,key\nv,k\n")):
        (tmp_path / name).write_text(text)
    said = refuses(run, store, tmp_path / "a.csv", tmp_path / "b.csv")
    assert "CSV header" in said
    assert "b.csv" in said


def test_rows_of_csv_that_are_rejected_are_put_aside(run: Import, store: Path, tmp_path: Path) -> None:
    source = tmp_path / "rows.csv"
    source.write_text('key,value,partition\nk1,a,0\nk2\n"k,3",c,x\nk4,d,0\nk5,e,9\n')
    code, said = run(source, "--rejects", tmp_path / "aside")
    assert code == 0, said
    assert said.endswith("5 rows read, 2 written, 3 rejected\n")
    assert pairs(store) == [(b"k1", b"a"), (b"k4", b"d")]
    assert [(each["row"], each["reason"], each["text"]) for each in rejected(tmp_path / "aside")] == [
        (2, "expected 3 fields: key, value, partition", "k2"),
        (3, "expected a partition, found x", '"k,3",c,x'),
        (5, "partition 9 is not one of 0 to 0", '{"key": "k5", "value": "e", "partition": 9}'),
    ]


# -- formats ------------------------------------------------------------------------------------------


def parquet(spark: SparkSession, place: Path, *columns: str) -> Path:
    """One Parquet file."""
    spark.range(3).selectExpr(*columns).coalesce(1).write.parquet(str(place))
    return next(place.glob("*.parquet"))


GOOD = ("cast(id as string) as key", "cast(id * 2 as string) as value")


def test_parquet_is_known_without_a_format(
    run: Import, spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    file = parquet(spark, tmp_path / "p", *GOOD)
    bare = tmp_path / "bare"
    bare.write_bytes(file.read_bytes())
    code, said = run(tmp_path / "p", bare)
    assert code == 0, said
    assert sorted(pairs(store)) == sorted(2 * [(b"%d" % n, b"%d" % (2 * n)) for n in range(3)])


def test_content_that_contradicts_the_name_or_the_format_is_an_error(
    run: Import, spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    held = parquet(spark, tmp_path / "p", *GOOD).read_bytes()
    line = b'{"value":"a"}\n'
    for name, content, words in (
        ("a.json", held, "expected json, found Parquet in it"),
        ("a.txt", held, "expected text, found Parquet in it"),
        ("a.json.gz", held, "found Parquet in it"),
        ("a.parquet", line * 9, "expected Parquet, which begins and ends with PAR1, found b'{\"va'"),
        ("b.parquet", held[:-1], "expected Parquet"),
        ("a.jsonl", gzip.compress(line), "found gzip in it"),
        ("b.json.gz", line, "expected gzip, as its name says"),
        ("a.csv", b"PK\x03\x04" + line, "found zip in it"),
        ("a.log", line, "expected --format, as neither its name nor its content tells one"),
    ):
        (tmp_path / name).write_bytes(content)
        said = refuses(run, store, tmp_path / name)
        assert f"{tmp_path / name}: " in said
        assert words in said, (name, said)
    for name, kind, words in (
        ("a.jsonl", "text", "expected text, as --format says, found a name of json"),
        ("a.log", "parquet", "expected Parquet"),
    ):
        assert words in refuses(run, store, tmp_path / name, "--format", kind)
    (tmp_path / "c.txt").write_bytes(line)
    (tmp_path / "c.json").write_bytes(line)
    said = refuses(run, store, tmp_path / "c.txt", tmp_path / "c.json")
    assert "expected files of one format" in said
    assert "PATH_NOT_FOUND" in refuses(run, store, tmp_path / "none.txt")
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(line))
    assert run(tmp_path / "d.jsonl.gz")[0] == 0
    assert pairs(store) == [(None, b"a")]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (("cast(id as string) as vlaue",), "column vlaue string: expected columns among key, value"),
        (("cast(id as string) as key",), "expected a column value, found key"),
        (("id as value",), "column value: expected binary or string, found bigint"),
        (("'x' as value", "id as timestamp"), "column timestamp: expected timestamp or timestamp_ntz, found bigint"),
        (("'x' as value", "array('h') as headers"), "column headers: expected array<struct<key:string,value:binary>>"),
        (("'x' as value", "id * 3000000000 as partition"), "row 2: expected a partition, found 3000000000"),
        (("'x' as value", "id as partition"), "row 2: partition 1 is not one of 0 to 0"),
    ],
)  # fmt: skip
def test_parquet_that_cannot_be_taken_stops_the_import(
    run: Import, spark: SparkSession, store: Path, tmp_path: Path, columns: tuple[str, ...], words: str
) -> None:
    assert words in refuses(run, store, parquet(spark, tmp_path / "p", *columns))


def test_files_of_parquet_have_the_same_columns(
    run: Import, spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    one = parquet(spark, tmp_path / "one", *GOOD)
    other = parquet(spark, tmp_path / "other", GOOD[1])
    said = refuses(run, store, one, other)
    assert "expected the same columns in all files" in said


def test_an_import_that_fails_late_leaves_nothing(run: Import, store: Path, tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text("x\n" * 5_000)
    (tmp_path / "z.txt").write_text("x\n" * 5_000 + "y" * 5000 + "\n")
    said = refuses(run, store, tmp_path / "[0-9z].txt", "-o", "max.message.bytes=3000")
    assert f"{tmp_path}/z.txt: line 5001: " in said
    assert run(tmp_path / "[0-9].txt", "-o", "max.message.bytes=3000")[0] == 0
    assert len(imported(store)) == 20_000
