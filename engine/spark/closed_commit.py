"""Appending staged files exactly once to a log that nobody has open, through the engine's inboxes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from topicfs.engine.errors import StoreLockedError
from topicfs.engine.inbox.content import Content
from topicfs.engine.inbox.inbox import Chunk, batch_name
from topicfs.engine.inbox.routing import NO_PARTITION, choose
from topicfs.engine.spark.arrow_columns import columns_of, partitions_of
from topicfs.engine.spark.lines import lines
from topicfs.engine.store.store import Store

_PATIENCE_S: Final = 10.0
"""Time to wait for another query that has the log open for its commit. A daemon or a long job is not waited for."""

_PAUSE_S: Final = 0.1


def commit(backing: Path, topic: str, name: str, files: Sequence[Path]) -> None:
    """Append the rows of Arrow files to a topic, unless they were appended before under that name. BatchExistsError if
    the name has other rows, StoreLockedError if somebody keeps the log open."""
    with _opened(backing) as store:
        inbox = store.inboxes.of(topic)
        chunks = _chunks(files, store.topics()[topic], store.clock())
        inbox.commit(batch_name(name), chunks, [(name,)], _content(files))
        inbox.staging.destroy((name,))


def _opened(backing: Path) -> Store:
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return Store.open(backing)
        except StoreLockedError:
            if time.monotonic() > end:
                raise
        time.sleep(_PAUSE_S)


def _content(files: Sequence[Path]) -> Content:
    """Return the fingerprint that the same rows have in the inbox of a mount, where they are lines: the batch may come
    again through the other door."""
    content = Content()
    for rows in _rows(files):
        content.add(np.frombuffer(lines(rows), np.uint8), f"jsonl:{NO_PARTITION}")
    return content


def _rows(files: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    for file in files:
        with pa.memory_map(str(file)) as source:
            reader = pa.ipc.open_file(source)
            yield from map(reader.get_batch, range(reader.num_record_batches))


def _chunks(files: Sequence[Path], numbers: Sequence[int], now: int) -> Iterator[Chunk]:
    for turn, rows in enumerate(_rows(files)):
        columns = columns_of(rows, now)
        chosen, _, refusal = choose(columns, partitions_of(rows), numbers, numbers[turn % len(numbers)])
        if refusal is not None:
            raise refusal
        for number in np.unique(chosen).tolist():
            yield number, columns.take(np.flatnonzero(chosen == number))
