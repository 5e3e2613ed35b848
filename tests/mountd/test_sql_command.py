"""`topicfs sql`, as a user runs it, on a backing directory."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from patience import PATIENCE_S

from topicfs import Record, Store
from topicfs.mountd.cli import main

PROGRAM = [sys.executable, "-m", "topicfs.mountd.cli", "sql"]
TABLES = Path(__file__).parents[2] / "engine" / "sql" / "TABLES.md"
NOW = 1_780_000_000_000


@pytest.fixture(scope="module")
def backing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sql") / "data"
    with Store.open(place, create=True) as store:
        for number in (0, 1):
            orders = store.create("orders", number)
            for at in range(3):
                value = json.dumps({"user": "ann" if at else "bob", "count": at}).encode()
                orders.append(Record(value, b"%d" % at, NOW + at))
        orders.append(Record(b"12 pears", None, NOW))
        store.create("web-clicks", 0).append(Record(b"x\xff", None, NOW))
        clicks = store.create("clicks", 0)
        clicks.append([Record(b'{"user": "u%d"}' % (at % 7), None, NOW) for at in range(30)])
    return place


def readme() -> tuple[str, str]:
    """the page's commands for the shell, and its Python."""
    section = TABLES.read_text().partition("## SQL and Arrow\n")[2].partition("\n## ")[0]
    commands = "".join(line for line in section.splitlines(keepends=True) if line.startswith("    topicfs "))
    return commands, section.partition("```python\n")[2].partition("```")[0]


def test_it_ends_without_a_word_where_pandas_is_not_installed(backing: Path) -> None:
    program = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] == "pandas" else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
from topicfs.mountd.cli import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program, "sql", str(backing), "SELECT 1 AS one"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "one\n1\n", "")


def given(*words: object, query: str | None = None) -> str:
    """What a query writes into a pipe, without a word on stderr."""
    done = subprocess.run(
        [*PROGRAM, *map(str, words)],
        input=query,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def called(*words: object, query: str | None = None) -> Result:
    """The same in this process, which is quicker, and has no file behind its standard output."""
    return CliRunner().invoke(main, ["sql", *map(str, words)], input=query)


def refused(*words: object) -> str:
    """What a query says that fails, which is one line."""
    done = called(*words, "--format", "table")
    assert (done.exit_code, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    return line


def test_rows_in_a_pipe_are_csv_with_their_names_above(backing: Path) -> None:
    query = "SELECT value->>'$.user' AS user, count(*) AS n FROM clicks GROUP BY user ORDER BY user LIMIT 2"
    assert given(backing, query=query) == "user,n\nu0,5\nu1,5\n"


def test_rows_are_written_as_the_format_says(backing: Path, tmp_path: Path) -> None:
    query = 'SELECT "offset", value, timestamp FROM "web-clicks"'
    assert json.loads(given(backing, query, "--format", "jsonl")) == {
        "offset": 0,
        "value": "x\\xFF",
        "timestamp": "2026-05-28 20:26:40+00",
    }
    assert called(backing, "SHOW TABLES", "--format", "table").stdout == "name\nclicks\norders\nweb-clicks\n"
    named = tmp_path / "orders.parquet"
    done = called(backing, "SELECT * FROM bytes.orders", "--output", named)
    assert (done.exit_code, done.output) == (0, "")
    assert pq.read_table(named)["value"].to_pylist()[0] == b'{"user": "bob", "count": 0}'


def test_what_is_redirected_is_added_to_a_file(backing: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("before\n")
    with file.open("a") as opened:
        subprocess.run([*PROGRAM, backing, "SELECT 1 AS a"], stdout=opened, check=True, timeout=PATIENCE_S)
    assert file.read_text() == "before\na\n1\n"


def test_a_reader_that_has_seen_enough_ends_it_quietly(backing: Path) -> None:
    query = "SELECT i FROM range(1000000000) r(i)"
    done = subprocess.run(
        ["bash", "-c", '"$@" | head -n 2; echo ${PIPESTATUS[0]}', "-", *PROGRAM, backing, query],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert (done.stdout, done.stderr) == ("i\n0\n0\n", "")


def test_ctrl_c_ends_a_query_at_once_and_leaves_no_file(backing: Path, tmp_path: Path) -> None:
    query = "SELECT i FROM range(1000000000000) r(i)"
    with subprocess.Popen(
        [*PROGRAM, backing, query], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "i\n"
        command.send_signal(signal.SIGINT)
        _, said = command.communicate(timeout=PATIENCE_S)
    assert (command.returncode, said) == (130, "topicfs: interrupted\n")


def test_on_a_terminal_rows_are_a_table_as_wide_as_it_is(backing: Path) -> None:
    ours, theirs = pty.openpty()
    one = 'SELECT "offset", key, NULL AS nothing FROM orders WHERE partition = 0'
    query = f"{one} UNION ALL SELECT 7, repeat('k', 90), 1"
    with subprocess.Popen([*PROGRAM, backing, query], stdout=theirs, stderr=theirs, stdin=theirs) as command:
        os.close(theirs)
        shown = b""
        while part := _part(ours):
            shown += part
    os.close(ours)
    assert command.returncode == 0, shown
    lines = [line.rstrip() for line in _plain(shown).splitlines()]
    assert [line.split() for line in lines[:4]] == [
        ["offset", "key", "nothing"],
        *([str(n), str(n), "NULL"] for n in range(3)),
    ]
    assert all(len(line) <= 80 for line in lines)
    assert sum(line.count("k") for line in lines[1:]) == 90


def _part(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux tells the end of a terminal in this way
        return b""


def _plain(shown: bytes) -> str:
    """Without colours."""
    text = shown.decode()
    while "\x1b[" in text:
        before, _, rest = text.partition("\x1b[")
        text = before + rest.partition("m")[2]
    return text


def test_a_failure_is_one_plain_line(backing: Path, tmp_path: Path) -> None:
    assert refused(backing, "SELECT * FROM ordres").startswith(
        "topicfs: Catalog Error: Table with name ordres does not exist!"
    )
    assert refused(backing, "DROP VIEW orders") == (
        "topicfs: expected a query, which reads, found DROP: topics are not changed by SQL"
    )
    (tmp_path / "file").touch()
    assert refused(tmp_path, "SELECT 1").endswith("found a directory with something else in it")


def test_without_a_query_an_example_is_shown(backing: Path) -> None:
    done = called(backing, query="")
    assert done.exit_code == 2
    assert f'Error: expected a query, such as: topicfs sql {backing} "SELECT' in done.stderr


@pytest.mark.parametrize("package", ["duckdb", "pyarrow"])
def test_without_its_packages_it_says_what_to_install(
    backing: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    said = refused(backing, "SELECT 1")
    assert said == f"topicfs: expected {package}, found none: pip install 'topicfs[sql]'"


def test_nothing_is_written_into_the_store(backing: Path, tmp_path: Path) -> None:
    store = tmp_path / "data"
    shutil.copytree(backing, store)
    before = {path: path.stat() for path in store.rglob("*")}
    assert called(store, "SELECT count(*) FROM orders", "--format", "table").exit_code == 0
    after = {path: path.stat() for path in store.rglob("*")}
    assert [(p, s.st_size, s.st_mtime_ns) for p, s in after.items()] == [
        (p, s.st_size, s.st_mtime_ns) for p, s in before.items()
    ]


def test_readmes_commands_and_its_python_do_what_it_says(backing: Path, tmp_path: Path) -> None:
    commands, python = readme()
    for name in ("mnt", "data"):
        (tmp_path / name).symlink_to(backing)
    # Which interpreter runs it is all that the shell is told otherwise.
    function = f'topicfs() {{ "{sys.executable}" -m topicfs.mountd.cli "$@"; }}\nset -e\n'
    done = subprocess.run(
        ["bash", "-c", function + commands], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "user,count_star()"
    assert len(lines[1:6]) == 5
    assert [json.loads(line) for line in lines[6:]] == [{"partition": 0, 'max("offset")': 0}]
    assert "12 pears" in (tmp_path / "pears.csv").read_text()
    assert pq.read_table(tmp_path / "orders.parquet").num_rows == 7
    program = f"import duckdb, polars, topicfs\nprint = None\n{python}"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=PATIENCE_S)
