"""The producer state after some batches is decided by few of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from topicfs.engine.batch.marker import Marker
from topicfs.engine.batch.table import Longs
from topicfs.engine.errors import InvalidTransactionStateError
from topicfs.engine.format.batch_header import CONTROL, TRANSACTIONAL
from topicfs.engine.kernels.scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    COLUMNS,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
)
from topicfs.engine.producer.deciding import deciding_rows
from topicfs.engine.producer.entry import BatchInfo, Origin
from topicfs.engine.producer.manager import ProducerStates

KINDS = (0, TRANSACTIONAL, TRANSACTIONAL | CONTROL)
BATCH = st.tuples(
    st.sampled_from((-1, 4, 4, 4, 9)), st.sampled_from(KINDS), st.integers(0, 1), st.integers(1, 30)
)


def table_of(batches: Iterable[tuple[int, int, int, int]]) -> Longs:
    rows = []
    for producer, kind, epoch, repeats in batches:
        for _ in range(1 if kind & CONTROL else repeats):
            row = np.zeros(COLUMNS, np.int64)
            row[PRODUCER_ID], row[ATTRIBUTES], row[PRODUCER_EPOCH] = producer, kind, epoch
            row[BASE_OFFSET] = row[LAST_OFFSET] = row[BASE_SEQUENCE] = row[MAX_TIMESTAMP] = len(rows)
            rows.append(row)
    return np.array(rows)


def left_by(table: Longs, numbers: Iterable[int]) -> tuple[object, ...] | None:
    """What these rows leave behind; None where they are refused."""
    update = ProducerStates(Path("nowhere"), 1, []).prepare(Origin.REPLICATION)
    try:
        for at in numbers:
            row = table[at].tolist()
            if row[PRODUCER_ID] >= 0:
                marker = Marker(at % 2, 0) if row[ATTRIBUTES] & CONTROL else None
                update.add(BatchInfo.of_row(row, marker))
    except InvalidTransactionStateError:
        return None
    return update.entries, update.started, update.completed


@given(st.lists(BATCH, min_size=1, max_size=12))
def test_the_rows_that_decide_leave_what_all_rows_leave(batches: list[tuple[int, int, int, int]]) -> None:
    table = table_of(batches)
    assert left_by(table, deciding_rows(table)) == left_by(table, range(len(table)))


def test_of_many_batches_of_a_producer_few_decide() -> None:
    assert deciding_rows(table_of([(4, 0, 0, 500)])) == [0, 495, 496, 497, 498, 499]
    assert deciding_rows(table_of([(-1, 0, 0, 500)])) == []
