"""Tables that commands print: fitted to the terminal for people, one line a row with complete values for programs.

The engine is not imported here, as commands that go through a mount answer in less time than its kernels need to load.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

_GAP: Final = "  "
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")


def escape_control(text: str) -> str:
    """Return a text in which control characters are shown, as in \\x1b, and neither end a line nor move a cursor."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def show_table(
    console: Console, titles: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()
) -> None:
    """Print a table: values in columns, with titles above them. The columns in `right` are aligned to the right.

    Into a pipe or a file nothing is wrapped or cut, however long it is: columns are two blanks apart."""
    rows = [[escape_control(cell) for cell in row] for row in rows]
    if not console.file.isatty():
        _print_lines(console, titles, rows, right)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, justify="right" if title in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def _print_lines(
    console: Console, titles: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]
) -> None:
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    for row in (titles, *rows):
        cells = [
            cell.rjust(width) if title in right else cell.ljust(width)
            for title, cell, width in zip(titles, row, widths, strict=True)
        ]
        show_line(console, _GAP.join(cells).rstrip())


def show_line(console: Console, words: str) -> None:
    """Print a line. It is wrapped between words on a terminal, and nowhere else."""
    if console.file.isatty():
        console.print(Text(words))
    else:
        console.file.write(words + "\n")


def shown_path(path: Path | str) -> str:
    """Return a path as it stands in a command that is shown, which people copy into a shell."""
    return shlex.quote(str(path))


def size_text(size: int) -> str:
    """Return a number of bytes as people read it."""
    number, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{size} B" if unit == "B" else f"{number:.1f} {unit}"


def time_text(ms: int) -> str:
    """Return a time as ISO 8601, in UTC; the number if it is outside of the calendar."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
