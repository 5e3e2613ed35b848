"""The command's help: its commands by what they are for."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from topicfs.mountd.progress import say
from topicfs.mountd.standard_streams import take_closed

INTERRUPTED: Final = 130
"""The exit code after Ctrl-C, as shells have it."""

SECTIONS: Final[Mapping[str, Sequence[str]]] = {
    "Stores and mounts": ("init", "mount", "umount", "status", "top", "ui", "doctor"),
    "Topics": ("topics", "create", "config", "delete", "undelete"),
    "Records": ("cat", "append", "offsets", "groups", "sql", "import", "export"),
    "Upkeep": ("plan", "compact", "verify", "repair", "dump", "spark"),
    "This command": ("completion",),
}
_LONGEST: Final = 200


def _write_out() -> None:
    """Write what standard output still holds, which Python would do later, with a traceback and another exit code."""
    try:
        sys.stdout.flush()
    except OSError as error:
        # What cannot be written is dropped.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        is_told = isinstance(error.__context__, SystemExit) and error.__context__.code
        if not is_told and not isinstance(error, BrokenPipeError):
            say(f"standard output: {error.strerror}")
            sys.exit(1)


class SectionedGroup(click.Group):
    """A group of commands whose help has a section for each purpose, and which end in words, whatever happens."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command. What it shows may find no room, or a closed output: that is no fault of the command, and needs
        no traceback."""
        take_closed()
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EBADF):
                raise
            say(f"standard output or a file: {error.strerror}")
            sys.exit(1)
        finally:
            _write_out()

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, with the exit code that is documented for Ctrl-C; click would end with 1."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            say("interrupted")
            sys.exit(INTERRUPTED)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, and behind them what belongs to none."""
        named = {name for names in SECTIONS.values() for name in names}
        others = [name for name in self.list_commands(ctx) if name not in named]
        for title, names in {**SECTIONS, "Others": others}.items():
            rows = [
                (name, command.get_short_help_str(_LONGEST))
                for name in names
                if (command := self.get_command(ctx, name)) is not None
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
