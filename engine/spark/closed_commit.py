"""Appending staged files exactly once to a log that nobody has open, through the engine's inboxes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from topicfs.engine.errors import StoreLockedError
from topicfs.engine.inbox.inbox import Chunk, batch_name
from topicfs.engine.inbox.routing import choose
from topicfs.engine.spark.arrow_columns import columns_of, partitions_of
from topicfs.engine.store.store import Store

_PATIENCE_S: Final = 10.0
"""Time to wait for another query that has the log open for its commit. A daemon or a long job is not waited for."""

_PAUSE_S: Final = 0.1


def commit(backing: Path, topic: str, name: str, files: Sequence[Path]) -> None:
    """Append the rows of Arrow files to a topic, unless a batch of that name was appended before. StoreLockedError
    if somebody keeps the log open."""
    with _opened(backing) as store:
        inbox = store.inboxes.of(topic)
        known = inbox.knows(batch_name(name))
        numbers = store.topics()[topic]
        inbox.commit(batch_name(name), () if known else _chunks(files, numbers, store.clock()), [(name,)])
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


def _chunks(files: Sequence[Path], numbers: Sequence[int], now: int) -> Iterator[Chunk]:
    turn = 0
    for file in files:
        with pa.memory_map(str(file)) as source:
            reader = pa.ipc.open_file(source)
            for index in range(reader.num_record_batches):
                rows = reader.get_batch(index)
                columns = columns_of(rows, now)
                keyless = numbers[turn % len(numbers)]
                turn += 1
                chosen, _, refusal = choose(columns, partitions_of(rows), numbers, keyless)
                if refusal is not None:
                    raise refusal
                for number in np.unique(chosen).tolist():
                    yield number, columns.take(np.flatnonzero(chosen == number))
