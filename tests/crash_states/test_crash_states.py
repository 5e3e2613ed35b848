"""The states that crashes leave: a sample of them, those that once broke a promise, and that broken ones are seen."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
from disk_states import Loss
from operations import OPERATIONS
from search import Search, chosen, sequences

from topicfs.engine.files.atomic import write_atomically

MEMORY = Path("/dev/shm")
STATES = 50_000
OF_STORES = 1_000
"""So many of them are opened as a whole store: each takes ten times as long as two partitions."""
IN_RECOVERY = 250
IN_RECOVERY_OF_STORES = 10
"""So many are of a recovery that is cut short in its turn: hardly any two of these are equal, as most others are."""


@pytest.fixture
def search() -> Iterator[Search]:
    with TemporaryDirectory(prefix="crash-states-", dir=MEMORY if MEMORY.is_dir() else None) as place:
        yield Search(Path(place), random.randrange(1_000_000))
    # Other tests look at what is logged.
    logging.disable(logging.NOTSET)


def test_no_state_that_a_crash_leaves_breaks_a_promise(
    search: Search, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = [name for name, operation in OPERATIONS.items() if operation.alone]
    of_stores = [each for each in chosen(search.seed) if len(each) > 1 and not set(each) <= set(alone)]
    of_partitions = sequences(3, alone)
    random.shuffle(of_partitions)
    stores, partitions = iter(random.sample(of_stores, 200)), iter(of_partitions)
    search.recoveries = 0
    search.run(sequences(1))
    limit = search.totals.states + OF_STORES
    search.recoveries, search.most = 1, 30
    search.run(stores, lambda: search.totals.in_recovery >= IN_RECOVERY_OF_STORES)
    search.run(partitions, lambda: search.totals.in_recovery >= IN_RECOVERY)
    search.recoveries = 0
    search.run(stores, lambda: search.totals.states >= limit)
    search.run(partitions, lambda: search.totals.states >= STATES)
    with capsys.disabled():
        print(f"\ncrash states with SEED={search.seed}: {search.totals}")  # noqa: T201
    assert not search.totals.findings, "\n".join(search.totals.findings)
    assert search.totals.states >= STATES
    assert search.totals.in_recovery >= IN_RECOVERY
    assert all(search.totals.by[loss.value] for loss in Loss)


FOUND: dict[str, tuple[Iterable[Loss], str]] = {
    "names of a compaction that are saved in another order": (Loss, "compact"),
    "a value that compaction removes before a newer one is on disk": (Loss, "key_set compact"),
    "names of removed segments that are back, without those of their time indexes": (
        Loss,
        "append_large retain",
    ),
    "records that were cut off, beside a later segment that has their offsets": (
        Loss,
        "truncate roll",
    ),
    "a producer whose records retention removes, and that a second recovery forgets": (
        [Loss.PROCESS],
        "append_large append_large retain",
    ),
    "the last time of a segment that was flushed first and sealed afterwards": (
        Loss,
        "append_large fsync append_large",
    ),
    "a record of a producer that looks like one that was there before": (
        Loss,
        "append_large append_compressed append_idempotent",
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_once_broke_a_promise_does_not_any_more(search: Search, name: str) -> None:
    losses, sequence = FOUND[name]
    search.losses, search.recoveries = list(losses), 0
    search.run([sequence.split()])
    assert search.totals.states
    assert not search.totals.findings, "\n".join(search.totals.findings)


OF_RECOVERIES = {
    "an index below the recovery point that is there before the rest is on disk": "append_large retain",
    "a committed name that a dead process had written, and nobody had brought onto the disk": (
        "append_keyed commit_inbox"
    ),
}


@pytest.mark.parametrize("name", OF_RECOVERIES)
def test_what_a_recovery_once_left_behind_is_not_left_any_more(search: Search, name: str) -> None:
    search.seed = 20112018
    search.run([OF_RECOVERIES[name].split()])
    assert search.totals.in_recovery
    assert not search.totals.findings, "\n".join(search.totals.findings)


BROKEN = {
    "an fsync that is left out": (
        ("append", "fsync"),
        "topicfs.engine.partition.chain.Chain.sync",
        "fsynced, and gone",
    ),
    "a directory that is not fsynced": (
        ("compact",),
        "topicfs.engine.partition.chain.sync_directory",
        "k-0",
    ),
    "a marker of a clean stop that is not removed": (
        ("append",),
        "topicfs.engine.files.metadata.CleanShutdown.remove",
        "",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_step_that_is_left_out_is_found(search: Search, name: str) -> None:
    sequence, step, told = BROKEN[name]
    search.recoveries = 0
    with mock.patch(step):
        search.run([sequence])
    assert any(told in finding for finding in search.totals.findings), search.totals


def test_a_step_of_a_recovery_that_is_left_out_is_found(search: Search) -> None:
    """The names of a swap that is dropped: without the fsync one of them may be back alone."""
    # All recoveries, and of their states those of one seed: a sample may miss the few that show it.
    search.seed, search.losses, search.recoveries, search.most = 1, [Loss.PROCESS], 40, 40
    # The offset index that the recovery makes behind it would bring the names onto the disk with its own.
    beside = partial(write_atomically, durable=False)
    with (
        mock.patch("topicfs.engine.partition.leftovers.sync_directory"),
        mock.patch("topicfs.engine.segment.offset_index.write_atomically", beside),
    ):
        search.run([("compact",)])
    assert any("in its recovery" in finding for finding in search.totals.findings), search.totals


def test_equal_seeds_lead_to_equal_states(search: Search) -> None:
    found = []
    for _ in range(2):
        recording, history = search.record(("append", "fsync"))
        found.append([(call.__class__, getattr(call, "content", b"")) for call in recording.calls])
        assert history.last.name == "fsync"
    assert found[0] == found[1]
