"""The manual page of the command, made of its own help and of `COMMANDS.md`: `make man` writes `mountd/topicfs.1`.

    .SH NAME, SYNOPSIS, DESCRIPTION     the command's own help
    .SH COMMANDS                        a part for each command: its help and its options
    .SH and a title                     a part of COMMANDS.md

Both are written for a terminal and for a page of Markdown: paragraphs, blocks that are kept as they are, lists, and
words between backticks. Nothing else of Markdown is used there, so nothing else is understood here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from topicfs.mountd.cli import main
from topicfs.mountd.sections import SECTIONS

PAGE: Final = Path(__file__).with_name("topicfs.1")
COMMANDS: Final = Path(__file__).with_name("COMMANDS.md")

_LEFT_OUT: Final = ("The command topicfs, and operating a store", "Commands")
"""Parts of COMMANDS.md that say what the help says."""

_KEPT: Final = "\b\n"
"""What begins a paragraph of help that click keeps as it is."""

_BLOCK: Final = "    "
_ITEM: Final = "* "
_CODE: Final = re.compile(r"`([^`]+)`")


def page() -> str:
    """Return the manual page, in roff."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield '.\\" Made by `make man` of the help of the command and of mountd/COMMANDS.md.'
    yield '.TH TOPICFS 1 "" "topicfs" "User Commands"'
    yield ".SH NAME"
    yield "topicfs \\- Kafka-style logs as a mounted file system"
    yield ".SH SYNOPSIS"
    yield "\\fBtopicfs\\fR \\fICOMMAND\\fR [\\fIARGUMENTS\\fR]"
    yield ".SH DESCRIPTION"
    yield from _help(main)
    yield ".SH COMMANDS"
    for title, names in SECTIONS.items():
        yield f".SS {_text(title)}"
        for name in names:
            yield from _command(main.commands[name], f"topicfs {name}")
    for part in re.split(r"^#+ ", COMMANDS.read_text(), flags=re.MULTILINE)[1:]:
        title, _, text = part.partition("\n")
        if title not in _LEFT_OUT:
            yield f".SH {_text(title.upper())}"
            yield from _markdown(text)


def _command(command: click.Command, name: str) -> Iterator[str]:
    """Yield the part of a command, and behind it those of the commands below it."""
    with click.Context(command, info_name=name) as context:
        words = " ".join(command.collect_usage_pieces(context))
        yield ".PP"
        yield f"\\fB{_text(name)}\\fR {_text(words)}"
        yield ".RS 4"
        yield from _help(command)
        for parameter in command.get_params(context):
            record = parameter.get_help_record(context)
            if record is not None and isinstance(parameter, click.Option) and "--help" not in parameter.opts:
                yield ".TP"
                yield f"\\fB{_text(record[0])}\\fR"
                yield _text(record[1])
        yield ".RE"
    if isinstance(command, click.Group):
        for below in command.commands.values():
            yield from _command(below, f"{name} {below.name}")


def _help(command: click.Command) -> Iterator[str]:
    for number, paragraph in enumerate(_unindented(command.help or "").split("\n\n")):
        if number:
            yield ".PP"
        if paragraph.startswith(_KEPT):
            yield from _as_is(paragraph.removeprefix(_KEPT).splitlines())
        else:
            yield _text(" ".join(paragraph.split()))


def _unindented(text: str) -> str:
    """Return help without the indentation of the docstring that it stands in."""
    import inspect  # noqa: PLC0415 - click has loaded it

    return inspect.cleandoc(text)


def _markdown(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\n+", text.strip("\n")):
        lines = paragraph.splitlines()
        if all(line.startswith(_BLOCK) for line in lines):
            yield ".PP"
            yield from _as_is([line.removeprefix(_BLOCK) for line in lines])
        elif paragraph.startswith(_ITEM):
            for item in paragraph.removeprefix(_ITEM).split(f"\n{_ITEM}"):
                yield ".IP \\(bu 2"
                yield _text(" ".join(item.split()))
        else:
            yield ".PP"
            yield _text(" ".join(lines))


def _as_is(lines: list[str]) -> Iterator[str]:
    yield ".RS 2"
    yield ".nf"
    yield from map(_text, lines)
    yield ".fi"
    yield ".RE"


def _text(text: str) -> str:
    """Return a line of text in roff: nothing in it is a request, and what is between backticks is bold."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = _CODE.sub(r"\\fB\1\\fR", text)
    return f"\\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    PAGE.write_text(page())
