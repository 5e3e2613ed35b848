"""An offset or a time, as commands take it for where something begins or ends."""

from __future__ import annotations

import re
from typing import Final

import click

from topicfs.engine.record import MAX_INT64
from topicfs.engine.unlocked.limits import ms_of

_OFFSET: Final = re.compile(r"[0-9]+", re.ASCII)


class _Limit(click.ParamType[tuple[str, int]]):
    """An offset, or a time in milliseconds, with the word for which of them it is."""

    name = "offset|time"

    def convert(
        self, value: str, param: click.Parameter | None, context: click.Context | None
    ) -> tuple[str, int]:
        if _OFFSET.fullmatch(value) and int(value) <= MAX_INT64:
            return "offset", int(value)
        try:
            return "time", ms_of(value)
        except ValueError as error:
            self.fail(f"{error}, which is no offset either", param, context)


LIMIT: Final = _Limit()
