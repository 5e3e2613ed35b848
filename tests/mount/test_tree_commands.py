"""Commands on a tree: the same through a mount, on its backing directory, and on a store that nobody serves."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from daemon_mount import DaemonMount, own_mount
from patience import PATIENCE_S

from topicfs.engine.record import Record
from topicfs.engine.store.store import Store
from topicfs.mountd.cli import main
from topicfs.mountd.tree import opened

COMMANDS = Path(__file__).parents[2] / "mountd" / "COMMANDS.md"
PLACES = ("mount", "backing of the mount", "store alone")
FIRST_MS = 1_700_000_000_000


def topicfs(*words: object, given: bytes | None = None) -> Result:
    return CliRunner().invoke(main, list(map(str, words)), input=given, catch_exceptions=False)


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonMount]:
    with own_mount(tmp_path_factory.mktemp("commands"), keeps=False) as mount:
        yield mount


@pytest.fixture(params=PLACES)
def where(request: pytest.FixtureRequest, mounted: DaemonMount, tmp_path: Path) -> Iterator[Path]:
    """The same store, as a user may name it."""
    if request.param == PLACES[2]:
        Store.open(tmp_path / "store", create=True).close()
        yield tmp_path / "store"
        return
    yield mounted.path if request.param == PLACES[0] else mounted.backing
    cleared(mounted)


def cleared(mounted: DaemonMount) -> None:
    """Delete all topics, also the one that the first import makes."""
    for topic in os.listdir(mounted / "topics"):
        os.setxattr(mounted / "topics", "user.topicfs.delete", topic.encode())


def made(where: Path, *words: object, given: bytes = b"a\nb\nc\n") -> None:
    """A topic with some lines in its first partition."""
    assert topicfs("create", where, "orders", *words).exit_code == 0
    assert topicfs("append", where, "orders-0", given=given).exit_code == 0


def test_a_topic_is_made_with_its_partitions_and_settings(where: Path) -> None:
    made(where, "--partitions", 3, "-o", "retention.ms=-1", "-o", "cleanup.policy=compact,delete", given=b"")
    assert json.loads(topicfs("topics", where, "--json").stdout) == [
        {"topic": "orders", "partitions": 3, "records": 0, "bytes": 0, "offline": []}
    ]
    own = json.loads(topicfs("config", where, "orders", "--own", "--json").stdout)
    assert {name: each["value"] for name, each in own.items()} == {
        "cleanup.policy": "compact,delete",
        "retention.ms": "-1",
    }


def test_where_a_topic_is_refused_nothing_of_it_is_made(where: Path) -> None:
    made(where)
    for words, reason in (
        (("orders",), "exist"),
        (("a/b",), "a/b"),
        (("fresh", "-o", "retention.mss=1"), "did you mean retention.ms?"),
        (("fresh", "-o", "retention.ms=soon"), "expected a whole number"),
        (("fresh", "-o", "retention.ms"), "expected NAME=VALUE"),
    ):
        done = topicfs("create", where, *words)
        assert (done.exit_code, reason in done.stderr) == (1, True), done.stderr
    assert [each["topic"] for each in json.loads(topicfs("topics", where, "--json").stdout)] == ["orders"]


def test_settings_are_shown_and_changed_all_or_none(where: Path) -> None:
    made(where)
    assert topicfs("config", where, "orders", "retention.ms=1000", "segment.bytes=2000000").exit_code == 0
    assert topicfs("config", where, "orders", "retention.ms=5", "min.insync.replicas=x").exit_code == 1
    assert topicfs("config", where, "orders", "--own").stdout.split() == [
        *("retention.ms=1000", "#", "topic"),
        *("segment.bytes=2000000", "#", "topic"),
    ]
    assert (
        topicfs("config", where, "orders", "--unset", "retention.ms", "segment.bytes=default").exit_code == 0
    )
    assert topicfs("config", where, "orders", "--own").stdout == ""
    # Each setting has its line, also those that the topic does not set.
    assert "retention.ms=604800000" in topicfs("config", where, "orders").stdout
    assert (
        "did you mean retention.ms?" in topicfs("config", where, "orders", "--unset", "retention.mss").stderr
    )


def test_records_are_appended_and_shown_by_offset_time_and_format(where: Path, tmp_path: Path) -> None:
    made(where)
    lines = tmp_path / "some.jsonl"
    lines.write_text(json.dumps({"key": "k", "value": "d", "timestamp": FIRST_MS}) + "\n")
    assert topicfs("append", where, "orders", lines, "--fsync").exit_code == 0
    assert topicfs("cat", where, "orders").stdout == "a\nb\nc\nd\n"
    assert topicfs("cat", where, "orders-0", "--offset", "1-2").stdout == "b\nc\n"
    assert topicfs("cat", where, "orders-0", "--offset", "-1", "--format", "tsv").stdout == "k\td\n"
    assert topicfs("cat", where, "orders-0", "--time", "2023--").stdout == "a\nb\nc\nd\n"
    assert (
        json.loads(topicfs("cat", where, "orders", "--format", "jsonl").stdout.splitlines()[3])["key"] == "k"
    )


def test_what_selects_no_records_is_told_with_what_does(where: Path) -> None:
    made(where)
    for words, reason in (
        (("cat", where, "orders", "--offset", "x"), "expected 42, 100-199"),
        (("cat", where, "orders", "--offset", "2-1"), "found '2-1'"),
        (("cat", where, "orders", "--time", "../log"), "found '../log'"),
        (("offsets", where, "--time", "soon"), "expected ISO 8601"),
    ):
        done = topicfs(*words)
        assert (done.exit_code, reason in " ".join(done.stderr.split())) == (2, True), done.stderr


def test_a_mistyped_topic_is_told_with_the_nearest_one_and_a_partition_with_the_last_one(
    where: Path,
) -> None:
    made(where, "--partitions", 2)
    assert (
        "there is no topic and no partition order: did you mean orders?"
        in topicfs("cat", where, "order").stderr
    )
    assert "did you mean orders?" in topicfs("cat", where, "topics/order").stderr
    assert "the last partition of orders is 1" in topicfs("status", where, "orders-2").stderr
    assert topicfs("cat", where, "else").stderr == "topicfs: there is no topic and no partition else\n"


def test_a_bad_line_is_named_and_what_is_before_it_is_there(where: Path) -> None:
    made(where, given=b"")
    done = topicfs(
        "append", where, "orders", "--format", "jsonl", given=b'{"value":"a"}\n{bad\n{"value":"c"}\n'
    )
    assert done.exit_code == 1
    assert "expected a member's name in quotes" in done.stderr
    assert topicfs("cat", where, "orders").stdout == "a\n"


def test_a_last_line_without_a_newline_is_there_or_refused(where: Path, tmp_path: Path) -> None:
    made(where, given=b"a")
    (tmp_path / "lines.txt").write_bytes(b"b\nc")
    assert topicfs("append", where, "orders-0", tmp_path / "lines.txt", tmp_path / "lines.txt").exit_code == 0
    assert topicfs("cat", where, "orders").stdout == "a\nb\nc\nb\nc\n"
    assert topicfs("config", where, "orders", "cleanup.policy=compact").exit_code == 0
    done = topicfs("append", where, "orders-0", given=b"no key")
    assert (done.exit_code, "needs a key" in done.stderr) == (1, True), done.stderr


ALL_KINDS = b"""\
{"timestamp":1700000000000,"key":"k","value":"v","headers":[{"key":"a","value":"b"},{"key":"c","value":null}]}
{"timestamp":1700000000001,"key":null,"value":"\\u0000 \\" \\\\ \\n caf\xc3\xa9","headers":[]}
{"timestamp":1700000000002,"key":"gone","value":null,"headers":[{"key":"t","value_base64":"/w=="}]}
{"timestamp":1700000000003,"key_base64":"/w==","value_base64":"//4=","headers":[]}
{"timestamp":1700000000004,"key":"","value":"","headers":[]}
"""
"""Records with and without keys, values, headers, text and bytes that are no text."""

KEPT = ("-o", "retention.ms=-1")
"""They are old: the retention of a mount would remove them during a test."""


def all_kinds(where: Path) -> None:
    """A topic with these in its first partition, and one record in its second."""
    made(where, "--partitions", 2, *KEPT, given=b"")
    assert topicfs("append", where, "orders-0", "--format", "jsonl", given=ALL_KINDS).exit_code == 0
    assert topicfs("append", where, "orders-1", given=b"last\n").exit_code == 0


def test_an_export_has_what_the_log_shows_and_its_name_says_how(where: Path, tmp_path: Path) -> None:
    all_kinds(where)
    for suffix in ("jsonl", "tsv", "txt"):
        lines = topicfs("cat", where, "orders", "--format", suffix).stdout_bytes
        assert topicfs("export", where, "orders", "--format", suffix).stdout_bytes == lines
        assert topicfs("export", where, "orders", "-o", tmp_path / f"x.{suffix}.gz").exit_code == 0
        assert gzip.decompress((tmp_path / f"x.{suffix}.gz").read_bytes()) == lines
    assert topicfs("export", where, "orders", "-o", tmp_path / "x.parquet").stderr.startswith(
        "topicfs: orders: 6 records, "
    )
    table = pq.read_table(tmp_path / "x.parquet")
    assert table["value"].to_pylist()[2:] == [None, b"\xff\xfe", b"", b"last"]
    assert table["partition"].to_pylist() == [0, 0, 0, 0, 0, 1]


def test_an_export_to_a_directory_has_a_file_for_each_partition(where: Path, tmp_path: Path) -> None:
    all_kinds(where)
    done = topicfs("export", where, "orders", "--format", "txt", "-o", f"{tmp_path}/out/", "--json")
    assert [
        (Path(each["file"]).name, each["records"], each["bytes"]) for each in json.loads(done.stdout)["files"]
    ][1:] == [("orders-1.txt", 1, 5)]
    assert sorted(os.listdir(tmp_path / "out")) == ["orders-0.txt", "orders-1.txt"]


def test_an_export_has_no_format_that_its_name_does_not_say(where: Path, tmp_path: Path) -> None:
    made(where, given=b"a\n")
    for name in ("x.csv", "x.csv.gz", "x.arrow"):
        assert topicfs("export", where, "orders", "-o", tmp_path / name).exit_code == 2
    for name in ("x", "x.jsonl"):
        assert topicfs("export", where, "orders", "-o", tmp_path / name).exit_code == 0
    lines = topicfs("export", where, "orders", "-o", "-").stdout_bytes
    assert (tmp_path / "x").read_bytes() == (tmp_path / "x.jsonl").read_bytes() == lines
    assert lines.count(b"\n") == 1


def test_an_export_begins_and_ends_at_an_offset_or_a_time(where: Path) -> None:
    all_kinds(where)

    def offsets(*words: str, kind: str = "jsonl") -> list[int]:
        done = topicfs("export", where, "orders-0", "--format", kind, *words)
        assert done.exit_code == 0, done.stderr
        return [
            json.loads(line)["offset"] for line in done.stdout_bytes.decode(errors="replace").splitlines()
        ]

    for kind in ("jsonl", "kcat-json"):
        assert offsets("--from", "1", "--to", "3", kind=kind) == [1, 2]
        assert offsets("--from", "2023-11-14T22:13:20.002Z", kind=kind) == [2, 3, 4]
        assert offsets("--from", "1", "--to", "2023-11-14T22:13:20.002Z", kind=kind) == [1]
        assert offsets("--from", "7", kind=kind) == offsets("--from", "3", "--to", "2", kind=kind) == []


def test_lines_of_kcat_have_bytes_that_are_no_text_as_they_are(where: Path) -> None:
    all_kinds(where)
    lines = topicfs("export", where, "orders-0", "--format", "kcat-json").stdout_bytes.splitlines()
    head = b'{"topic":"orders","partition":0,"offset":%d,"tstype":"create","ts":170000000000%d,'
    assert lines == [
        head % (0, 0) + b'"headers":["a","b","c",null],"key":"k","payload":"v"}',
        head % (1, 1) + b'"key":null,"payload":"\\u0000 \\" \\\\ \\n caf\xc3\xa9"}',
        head % (2, 2) + b'"headers":["t","\xff"],"key":"gone","payload":null}',
        head % (3, 3) + b'"key":"\xff","payload":"\xff\xfe"}',
        head % (4, 4) + b'"key":"","payload":""}',
    ]


def test_an_export_that_fails_leaves_the_file_that_was_there(where: Path, tmp_path: Path) -> None:
    made(where)
    (tmp_path / "x.jsonl").write_text("before")
    assert topicfs("export", where, "order", "-o", tmp_path / "x.jsonl").exit_code == 1
    done = topicfs("export", where, "orders", "-o", tmp_path / "absent" / "x")
    expected = f"topicfs: {tmp_path}/absent/x: there is no directory {tmp_path}/absent\n"
    assert (done.exit_code, done.stderr) == (1, expected)
    assert topicfs("export", where, "orders", "-o", "/dev/null").exit_code == 1
    assert topicfs("export", where, "orders", "-o", tmp_path / "x.parquet.gz").exit_code == 2
    assert (tmp_path / "x.jsonl").read_text() == "before"
    assert os.listdir(tmp_path).count("x.jsonl.tmp") == 0


def shown(where: Path, topic: str) -> list[bytes]:
    """A topic's records as jsonl, without its name."""
    lines = topicfs("cat", where, topic, "--format", "jsonl").stdout_bytes
    return lines.replace(b'"topic":"%s",' % topic.encode(), b"").splitlines()


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.zst", "x.parquet", "x.kcat.json", "x.kcat.json.gz"])
def test_what_is_exported_is_imported_as_equal_records_and_once(
    where: Path, name: str, tmp_path: Path
) -> None:
    all_kinds(where)
    assert topicfs("export", where, "orders", "-o", tmp_path / name).exit_code == 0
    assert topicfs("create", where, "copy", "--partitions", 2, *KEPT).exit_code == 0
    done = topicfs("import", where, "copy", tmp_path / name)
    assert (done.exit_code, done.stdout) == (0, f"{tmp_path / name}: 6 records are added\n"), done.stderr
    assert shown(where, "copy") == shown(where, "orders")
    again = json.loads(topicfs("import", where, "copy", tmp_path / name, "--json").stdout)
    assert again == [{"file": str(tmp_path / name), "records": 6, "added": False}]
    assert shown(where, "copy") == shown(where, "orders")
    assert topicfs("import", where, "copy", tmp_path / name, "--again").exit_code == 0
    assert len(shown(where, "copy")) == 12


def test_plain_lines_are_imported_and_a_record_without_a_partition_goes_where_its_key_says(
    where: Path, tmp_path: Path
) -> None:
    made(where, "--partitions", 2, given=b"")
    (tmp_path / "x.tsv").write_text("a\t1\nb\t2\nc\t3\nd\t\\N\n")
    (tmp_path / "x.txt").write_text("4\n5")
    assert topicfs("import", where, "orders", tmp_path / "x.tsv").exit_code == 0
    assert topicfs("append", where, "orders", tmp_path / "x.tsv").exit_code == 0
    by_key = topicfs("cat", where, "orders-0", "--format", "tsv").stdout
    half = len(by_key) // 2
    assert 0 < half < 15
    assert by_key[:half] == by_key[half:]
    assert topicfs("import", where, "orders-1", tmp_path / "x.txt").exit_code == 0
    assert topicfs("cat", where, "orders-1").stdout.endswith("4\n5\n")


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet", "x.kcat.json"])
def test_records_go_by_their_keys_or_to_one_partition_if_that_is_asked_for(
    where: Path, name: str, tmp_path: Path
) -> None:
    all_kinds(where)
    assert topicfs("export", where, "orders-0", "-o", tmp_path / name).exit_code == 0
    assert topicfs("create", where, "copy", "--partitions", 2, *KEPT).exit_code == 0
    assert topicfs("import", where, "copy-1", tmp_path / name).exit_code == 0
    records = [json.loads(line) for line in shown(where, "copy")]
    assert [record.pop("partition") for record in records] == [1] * 5
    expected = [json.loads(line) for line in shown(where, "orders")[:5]]
    assert records == [{each: record[each] for each in record if each != "partition"} for record in expected]
    assert topicfs("import", where, "copy", tmp_path / name, "--by-key").exit_code == 0
    assert len(shown(where, "copy")) == 10
    # As Kafka's producers choose among two partitions: "k" and "gone" are not all in one.
    assert b'"value":"v"' in topicfs("cat", where, "copy-0", "--format", "jsonl").stdout_bytes


def test_of_a_file_that_is_refused_nothing_is_added_and_it_says_why(where: Path, tmp_path: Path) -> None:
    made(where, given=b"")
    good = b'{"value":"a"}\n'
    for name, content, words, reason in (
        ("x.jsonl", good + b"{bad\n", (), "line 2: byte 2: expected a member's name"),
        ("x.jsonl", good + b"{bad\n", ("--by-key",), "line 2: byte 2: expected a member's name"),
        ("x.jsonl", b'{"value":"a","partition":7}\n', (), "7"),
        ("x.kcat.json", b'{"topic":"x","payload":"a"}\n{"payload":{}}\n', (), "expected lines of kcat -J"),
        ("x.json", b'{"topic":"x","payload":"a"}\n', (), "--format kcat-json"),
        ("x.jsonl.gz", gzip.compress(good * 9999)[:-9], (), "cannot be unpacked"),
        ("x.jsonl.zst", b"(\xb5/\xfd\x00", (), "cannot be unpacked"),
        ("x.parquet", b"PAR1", (), "row 0"),
    ):
        (tmp_path / name).write_bytes(content)
        done = topicfs("import", where, "orders", tmp_path / name, *words)
        assert (done.exit_code, reason in done.stderr) == (1, True), (name, done.stderr)
        assert f"topicfs: {tmp_path / name}: nothing of it is added: " in done.stderr, done.stderr
    assert topicfs("cat", where, "orders").stdout == ""
    assert topicfs("import", where, "orders", "x.csv").exit_code == 2
    assert topicfs("import", where, "orders", "", "--format", "txt").exit_code == 2
    assert topicfs("import", where, "orders", tmp_path / "absent.txt").exit_code == 1
    assert topicfs("import", where, "order", tmp_path / "x.jsonl").exit_code == 1


def test_files_come_from_standard_input_too_and_empty_ones_have_no_records(
    where: Path, tmp_path: Path
) -> None:
    made(where, given=b"")
    assert topicfs("import", where, "orders", "-", "--format", "txt", given=b"a\nb").exit_code == 0
    assert topicfs("cat", where, "orders").stdout == "a\nb\n"
    for name in ("x.txt", "x.kcat.json"):
        (tmp_path / name).write_bytes(b"")
        done = topicfs("import", where, "orders", tmp_path / name)
        assert (done.exit_code, done.stdout) == (0, f"{tmp_path / name}: 0 records are added\n"), done.stderr
    assert topicfs("cat", where, "orders").stdout == "a\nb\n"


def test_a_file_may_be_a_pipe(where: Path, tmp_path: Path) -> None:
    made(where, given=b"")
    made_of = {"x.txt": b"a\nb", "x.parquet": b""}
    assert topicfs("import", where, "orders", "-", "--format", "txt", given=made_of["x.txt"]).exit_code == 0
    assert topicfs("export", where, "orders", "-o", tmp_path / "x.parquet").exit_code == 0
    made_of["x.parquet"] = (tmp_path / "x.parquet").read_bytes()
    for name, content in made_of.items():
        os.mkfifo(tmp_path / f"pipe-{name}")
        writer = threading.Thread(target=(tmp_path / f"pipe-{name}").write_bytes, args=(content,))
        writer.start()
        done = topicfs("import", where, "orders-0", tmp_path / f"pipe-{name}")
        writer.join()
        assert done.exit_code == 0, done.stderr
        assert "2 records are added" in done.stdout
    assert topicfs("cat", where, "orders").stdout == "a\nb\n" * 3


def test_who_stops_reading_a_store_in_the_middle_has_stopped_before_it_is_closed(tmp_path: Path) -> None:
    Store.open(tmp_path / "store", create=True).close()
    made(tmp_path / "store", given=b"a\n")
    with opened(tmp_path / "store") as tree:
        pieces = tree.pieces("orders-0/log.txt")
        assert next(pieces) == b"a\n"
    assert list(pieces) == []


def test_the_examples_of_files_for_other_programs_work(mounted: DaemonMount, tmp_path: Path) -> None:
    made(mounted.path, "--partitions", 2)
    section = COMMANDS.read_text().partition("## Files for other programs\n")[2].partition("\n## ")[0]
    commands = [line.strip() for line in section.splitlines() if line.startswith("    topicfs ")]
    assert len(commands) == 7
    (tmp_path / "mnt").symlink_to(mounted.path)
    (tmp_path / "kcat.json").write_text(
        '{"topic":"x","partition":0,"offset":4,"ts":1,"key":null,"payload":"v"}\n'
    )
    program = f'topicfs() {{ {sys.executable} -m topicfs.mountd.cli "$@"; }}\nset -ex\n'
    script = program + "\n".join(commands)
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    cleared(mounted)
    assert done.returncode == 0, done.stderr
    assert "3 records were imported before" in done.stdout


def compacted(where: Path) -> None:
    """A compacted topic whose records have one key: sealed segments, which are not dirty enough, and an active one."""
    settings = ("cleanup.policy=compact", "segment.bytes=1048576", "min.cleanable.dirty.ratio=1.0")
    words = [word for each in settings for word in ("-o", each)]
    assert topicfs("create", where, "users", *words).exit_code == 0
    for part in range(3):
        lines = b"".join(b"ann\t%d of part %d %s\n" % (at, part, b"x" * 10_000) for at in range(60))
        assert topicfs("append", where, "users", "--format", "tsv", given=lines).exit_code == 0


def test_a_topic_is_compacted_now_and_told_with_its_bytes(where: Path) -> None:
    compacted(where)
    records = topicfs("cat", where, "users").stdout.splitlines()
    (done,) = json.loads(topicfs("compact", where, "users", "--json").stdout)
    assert (done["partition"], done["left"]) == ("users-0", "everything but the active segment is compacted")
    assert done["bytes_after"] < done["bytes_before"]
    left = topicfs("cat", where, "users").stdout.splitlines()
    assert left[-1] == records[-1]
    assert 1 < len(left) < len(records)
    # Again there is nothing to do.
    table = topicfs("compact", where, "users-0").stdout.splitlines()
    assert table[0].split()[:3] == ["partition", "before", "after"]
    assert topicfs("cat", where, "users").stdout.splitlines() == left


def test_where_nothing_is_compacted_nobody_waits_for_it(tmp_path: Path) -> None:
    Store.open(tmp_path / "store", create=True).close()
    compacted(tmp_path / "store")
    (tmp_path / "store/server.properties").write_text("log.cleaner.enable=false\n")
    done = topicfs("compact", tmp_path / "store", "users")
    assert (done.exit_code, "users: log.cleaner.enable is false" in done.stderr) == (1, True), done.stderr


def test_a_topic_whose_policy_is_without_compact_is_refused(where: Path) -> None:
    compacted(where)
    made(where)
    done = topicfs("compact", where, "users", "orders")
    assert (done.exit_code, "orders-0: cleanup.policy is delete: nothing is compacted" in done.stderr) == (
        1,
        True,
    )
    assert len(topicfs("cat", where, "users").stdout.splitlines()) == 180


def test_offsets_are_shown_by_time(where: Path) -> None:
    made(where)
    assert json.loads(topicfs("offsets", where, "--json").stdout) == [
        {"partition": "orders-0", "earliest": 0, "latest": 3}
    ]
    for when, offset in (
        ("earliest", "0"),
        ("latest", "3"),
        ("2001-01-01", "0"),
        ("2200-01-01", "3"),
        ("last-1d", "0"),
    ):
        assert topicfs("offsets", where, "orders", "--time", when).stdout.split()[-1] == offset


def test_status_tells_how_partitions_are(where: Path) -> None:
    made(where)
    done = topicfs("status", where)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1].split() == ["orders-0", "0", "3", "3", "85", "B", "1", "fine"]
    assert [
        each["end_offset"] for each in json.loads(topicfs("status", where, "orders", "--json").stdout)
    ] == [3]
    assert "there is no topic and no partition clicks" in topicfs("status", where, "clicks").stderr


def test_a_topic_that_is_there_is_not_made_again(where: Path) -> None:
    made(where)
    done = topicfs("create", where, "orders", "--partitions", 2)
    assert done.exit_code == 1
    assert re.fullmatch(r"topicfs: orders: .*exists", done.stderr.splitlines()[-1])


def test_commands_that_are_shown_can_be_copied_into_a_shell(tmp_path: Path) -> None:
    store = tmp_path / "my store"
    shown = topicfs("mount", store, tmp_path / "mnt").stderr.split("`")[1]
    assert shlex.split(shown) == ["topicfs", "init", str(store)]
    assert topicfs(*shlex.split(shown)[1:]).exit_code == 0
    assert shlex.split(topicfs("topics", store).stdout.splitlines()[-1])[-3:] == [
        "create",
        str(store),
        "orders",
    ]
    made(store)
    shown = topicfs("delete", store, "orders", "--yes").stdout.splitlines()[-1]
    assert topicfs(*shlex.split(shown)[1:]).stdout == "orders is back\n"
    (log,) = store.glob("logs/orders-0/*.log")
    log.write_bytes(b"\xff" * log.stat().st_size)
    shown = topicfs("repair", store).stdout.splitlines()[-1].partition("this does it: ")[2]
    assert topicfs(*shlex.split(shown)[1:]).exit_code == 0
    shown = topicfs("doctor", tmp_path / "a b").stdout.splitlines()[-1].partition("directory: ")[2]
    assert shlex.split(shown) == ["topicfs", "init", str(tmp_path / "a b")]


def test_status_and_doctor_end_with_1_where_a_partition_is_offline(tmp_path: Path) -> None:
    with Store.open(tmp_path, create=True) as store:
        store.create("orders").append(Record(b"a"))
    log = tmp_path / "logs/orders-0/00000000000000000000.log"
    log.write_bytes(b"\xff" * log.stat().st_size)
    for command in ("status", "doctor"):
        done = topicfs(command, tmp_path)
        assert done.exit_code == 1, done.stdout
        assert "orders-0" in done.stdout


def test_doctor_finds_nothing_wrong_with_what_is_fine(where: Path) -> None:
    made(where)
    found = {each["about"]: each for each in json.loads(topicfs("doctor", where, "--json").stdout)}
    # Others may have left a dead mount, or filled the disk.
    about_it = ("mounting", "directory", "layout", "settings", "owner", "partitions")
    assert {found[name]["verdict"] for name in about_it} == {"fine"}
    assert found["partitions"]["words"] == "1, nothing is wrong with them"


@pytest.mark.parametrize(
    ("make", "words", "mend"),
    [
        (lambda place: None, "found no such directory", "topicfs init"),
        (
            lambda place: (place.mkdir(), (place / "x").write_text("")),
            "found a directory with something else",
            "",
        ),
    ],
)
def test_doctor_tells_what_is_no_store(make: object, words: str, mend: str, tmp_path: Path) -> None:
    assert callable(make)
    make(tmp_path / "store")
    found = json.loads(topicfs("doctor", tmp_path / "store", "--json").stdout)[-1]
    assert (found["verdict"], words in found["words"], found["mend"].startswith(mend)) == (
        "wrong",
        True,
        True,
    )


@pytest.mark.parametrize(
    ("file", "content", "wrong"),
    [
        ("logs/meta.properties", "x\n", {"partitions"}),
        ("topics/orders.properties", "retention.ms=abc\n", {"partitions"}),
        ("server.properties", "log.retention.ms=abc\n", {"settings", "partitions"}),
        ("layout.properties", "", {"layout"}),
    ],
)
def test_doctor_goes_on_where_a_store_cannot_be_opened(
    file: str, content: str, wrong: set[str], tmp_path: Path
) -> None:
    with Store.open(tmp_path / "store", create=True) as store:
        store.create("orders")
    (tmp_path / "store" / file).parent.mkdir(exist_ok=True)
    (tmp_path / "store" / file).write_text(content)
    done = topicfs("doctor", tmp_path / "store", "--json")
    found = {each["about"]: each for each in json.loads(done.stdout)}
    about_it = {"directory", "layout", "settings", "owner", "partitions"}
    assert {name for name in about_it if found[name]["verdict"] == "wrong"} >= wrong
    assert done.exit_code == 1
    assert all(file.rpartition("/")[2] in found[name]["words"] for name in wrong)


def test_top_shows_what_a_mount_does(mounted: DaemonMount) -> None:
    assert topicfs("create", mounted.path, "busy").exit_code == 0
    assert topicfs("create", mounted.path, "b" * 100).exit_code == 0
    done = topicfs("top", mounted.path, "--interval", "0.1", "--count", "2")
    assert done.exit_code == 0
    assert re.search(r"busy-0 +0 +0 +0 +0 B", done.stdout)
    assert done.stdout.count("busy-0") == 2
    # A pipe has no width: nothing is cut off.
    assert re.search("b{100}-0 +0 .* fine *$", done.stdout, re.MULTILINE)
    cleared(mounted)


def test_only_what_is_served_is_followed(tmp_path: Path) -> None:
    Store.open(tmp_path, create=True).close()
    topicfs("create", tmp_path, "orders")
    for words in (("cat", tmp_path, "orders", "--follow"), ("top", tmp_path)):
        done = topicfs(*words)
        assert (done.exit_code, "not mounted" in done.stderr) == (1, True)


def test_who_follows_what_is_deleted_is_told_so(mounted: DaemonMount) -> None:
    mounted.expect("was deleted while it was open")
    assert topicfs("create", mounted.path, "going").exit_code == 0
    assert topicfs("append", mounted.path, "going", given=b"a\n").exit_code == 0
    command = [sys.executable, "-m", "topicfs.mountd.cli", "cat", str(mounted.path), "going", "--follow"]
    following = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert following.stdout is not None
    assert following.stdout.readline() == b"a\n"
    cleared(mounted)
    _, told = following.communicate(timeout=PATIENCE_S)
    assert following.returncode == 1
    assert told.startswith(b"topicfs: going-0: it was deleted meanwhile"), told


def test_a_read_only_mount_says_why_nothing_is_changed(tmp_path: Path) -> None:
    Store.open(tmp_path / "backing", create=True).close()
    topicfs("create", tmp_path / "backing", "orders")
    with own_mount(tmp_path, "--read-only") as mount:
        for words in (("create", mount.path, "x"), ("append", mount.path, "orders")):
            done = topicfs(*words, given=b"a\n")
            assert (done.exit_code, "read-only" in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_written_for_each_shell(shell: str) -> None:
    assert "_TOPICFS_COMPLETE" in topicfs("completion", shell).stdout


def test_each_command_has_a_section_in_the_help() -> None:
    assert "Others:" not in topicfs("--help").stdout
