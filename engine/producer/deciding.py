"""Which batches of many decide the producer state that they leave behind."""

from __future__ import annotations

import numpy as np

from topicfs.engine.batch.table import Longs
from topicfs.engine.format.batch_header import CONTROL, TRANSACTIONAL
from topicfs.engine.kernels.scan import ATTRIBUTES, PRODUCER_EPOCH, PRODUCER_ID
from topicfs.engine.producer.entry import KEPT_BATCHES

_FEW = KEPT_BATCHES + 1


def deciding_rows(table: Longs) -> list[int]:
    """Return the numbers of the rows, rising, whose batches decide the state of their producers, as a replica takes
    them up. A run is what a producer sent without a marker in between, in one epoch and either in transactions or not:
    the first of a run may begin a transaction, and of the others only the last ones are remembered.

    With all of them a mirror of batches of 16 KiB took 2 us more for each, a fifth of its time."""
    sent = np.flatnonzero(table[:, PRODUCER_ID] >= 0)
    if len(sent) > _FEW:
        sent = _deciding(table, sent)
    found: list[int] = sent.tolist()
    return found


def _deciding(table: Longs, sent: Longs) -> Longs:
    order = sent[np.argsort(table[sent, PRODUCER_ID], kind="stable")]
    ids, epochs = table[order, PRODUCER_ID], table[order, PRODUCER_EPOCH]
    kinds = table[order, ATTRIBUTES] & (CONTROL | TRANSACTIONAL)
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (ids[1:] != ids[:-1]) | (epochs[1:] != epochs[:-1]) | (kinds[1:] != kinds[:-1])
    begins |= kinds & CONTROL != 0
    # Of each row: how many of its run come before it, and how many from it on.
    starts = np.append(np.flatnonzero(begins), len(order))
    run = np.cumsum(begins) - 1
    numbers = np.arange(len(order))
    before, left = numbers - starts[run], starts[run + 1] - numbers
    return np.sort(order[(before == 0) | (left <= KEPT_BATCHES)])
