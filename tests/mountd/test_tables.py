"""What commands print as tables: whole values on a line a row for programs, fitted columns for people."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from topicfs.engine.record import Record
from topicfs.engine.store.store import Store
from topicfs.mountd.tables import show_line, show_table

LONG = "p" * 240
TITLES = ("partition", "size", "what")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(out: io.StringIO, *rows: tuple[str, ...]) -> list[str]:
    show_table(Console(file=out, width=40, highlight=False), TITLES, rows, right=("size",))
    return out.getvalue().splitlines()


def test_into_a_pipe_each_row_is_a_line_with_whole_values() -> None:
    rows = [(LONG, "7 B", "[red]nothing[/red] at all"), ("b", "10 KiB", "")]
    titles, *lines = printed(io.StringIO(), *rows)
    assert titles.split() == list(TITLES)
    assert lines == [f"{LONG}     7 B  [red]nothing[/red] at all", f"{'b':240}  10 KiB"]


def test_no_name_ends_a_row_or_moves_the_cursor() -> None:
    for out in (io.StringIO(), Terminal()):
        _, line = printed(out, ("a\nb\x1b[2J\x9b", "", "é 日本"))
        assert line.split() == ["a\\nb\\x1b[2J\\x9b", "é", "日本"]


def test_a_table_without_rows_is_its_titles() -> None:
    assert printed(io.StringIO()) == ["partition  size  what"]


def test_a_terminal_gets_columns_that_fit() -> None:
    lines = printed(Terminal(), (LONG, "7 B", "nothing"))
    assert len(lines) > 3
    # The titles carry escape sequences.
    assert max(map(len, lines[1:])) <= 40


def test_a_line_is_wrapped_on_a_terminal_alone() -> None:
    for out, count in ((io.StringIO(), 1), (Terminal(), 3)):
        show_line(Console(file=out, width=40), "word " * 20)
        assert len(out.getvalue().splitlines()) == count


def test_the_plan_in_a_pipe_can_be_searched_line_by_line(tmp_path: Path) -> None:
    topic = "t" * 200
    with Store.open(tmp_path, create=True) as store:
        for number in (0, 1):
            store.create(topic, number).append(Record(b"x"))
    done = subprocess.run(
        [Path(sys.executable).with_name("topicfs"), "plan", tmp_path],
        capture_output=True,
        check=True,
        text=True,
        # Some continuous integration sets them for colours.
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "80", "FORCE_COLOR": "1"},
    )
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["partition", f"{topic}-0", f"{topic}-1"]
    assert all("delete" in line and "next: segment 0 at 2" in line for line in lines[1:3])
    assert "\x1b" not in done.stdout
