"""Appending staged files exactly once to a log that nobody has open, through the engine's inboxes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from topicfs.engine.column_files.files import rows_in
from topicfs.engine.errors import StoreLockedError
from topicfs.engine.inbox.content import Content
from topicfs.engine.inbox.inbox import Batch, Chunk, batch_name
from topicfs.engine.inbox.routing import by_partition, choose
from topicfs.engine.inbox.rows import Rows
from topicfs.engine.staging.staging import Parts, Staging
from topicfs.engine.store.store import Store

_PATIENCE_S: Final = 10.0
"""Time to wait for another query that has the log open for its commit. A daemon or a long job is not waited for."""

_PAUSE_S: Final = 0.1


def commit(backing: Path, name: str, files: Mapping[str, Sequence[str]]) -> None:
    """Append the rows of Arrow files to their topics, all of them or none, unless they were appended before under that
    name. BatchExistsError if the name has other rows, StoreLockedError if somebody keeps the log open."""
    with _opened(backing) as store:
        store.inboxes.commit({topic: _batch(store, topic, name, staged) for topic, staged in files.items()})
        for topic in files:
            store.inboxes.of(topic).staging.destroy((name,))


def _batch(store: Store, topic: str, name: str, files: Sequence[str]) -> Batch:
    staging = store.inboxes.of(topic).staging
    parts = [(name, file) for file in files]
    content = Content()
    for rows in _rows(staging, parts):
        content.add(rows)
    chunks = _chunks(_rows(staging, parts), store.topics()[topic], store.clock())
    # Not the directory: where a commit has stopped half way, whoever opens the log to try it again finishes that first,
    # and has its own files there by then.
    return Batch(batch_name(name), chunks, tuple(parts), content)


def _opened(backing: Path) -> Store:
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return Store.open(backing)
        except StoreLockedError:
            if time.monotonic() > end:
                raise
        time.sleep(_PAUSE_S)


def _rows(staging: Staging, files: Sequence[Parts]) -> Iterator[Rows]:
    for file in files:
        with staging.reading(file) as (opened, size):
            yield from rows_in("arrow", opened, size)


def _chunks(found: Iterator[Rows], numbers: Sequence[int], now: int) -> Iterator[Chunk]:
    for rows, keyless in zip(found, itertools.cycle(numbers)):
        columns = rows.dated(now)
        chosen, _, refusal = choose(columns, rows.partitions, numbers, keyless)
        if refusal is not None:
            raise refusal
        yield from by_partition(columns, chosen)
