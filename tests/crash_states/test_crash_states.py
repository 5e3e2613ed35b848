"""The states that crashes leave: a sample of them, those that once broke a promise, and that broken ones are seen."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
from disk_states import Loss
from operations import OPERATIONS
from search import Search, chosen, sequences

MEMORY = Path("/dev/shm")
STATES = 50_000
OF_STORES = 1_000
"""So many of them are opened as a whole store: each takes ten times as long as two partitions."""


@pytest.fixture
def search() -> Iterator[Search]:
    with TemporaryDirectory(prefix="crash-states-", dir=MEMORY if MEMORY.is_dir() else None) as place:
        yield Search(Path(place), random.randrange(1_000_000))


def test_no_state_that_a_crash_leaves_breaks_a_promise(
    search: Search, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = [name for name, operation in OPERATIONS.items() if operation.alone]
    of_stores = [each for each in chosen(search.seed) if len(each) > 1 and not set(each) <= set(alone)]
    of_partitions = sequences(3, alone)
    random.shuffle(of_partitions)
    search.run(sequences(1))
    limit = search.totals.states + OF_STORES
    search.run(random.sample(of_stores, 200), lambda: search.totals.states >= limit)
    search.run(of_partitions, lambda: search.totals.states >= STATES)
    with capsys.disabled():
        print(f"\ncrash states with SEED={search.seed}: {search.totals}")  # noqa: T201
    assert not search.totals.findings, "\n".join(search.totals.findings)
    assert search.totals.states >= STATES
    assert all(search.totals.by[loss.value] for loss in Loss)


FOUND = {
    "names of a compaction that are saved in another order": ("compact",),
    "a value that compaction removes before a newer one is on disk": ("key_set", "compact"),
    "names of removed segments that are back, without those of their time indexes": (
        "append_large",
        "retain",
    ),
    "a producer whose records retention removes, and that a second recovery forgets": (
        "roll",
        "append_large",
        "retain",
    ),
    "records that look like others that were there before": (
        "append_large",
        "append_compressed",
        "append_idempotent",
    ),
    "records that were cut off, beside a later segment that has their offsets": ("truncate", "roll"),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_once_broke_a_promise_does_not_any_more(search: Search, name: str) -> None:
    search.run([FOUND[name]])
    assert search.totals.states
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
    with mock.patch(step):
        search.run([sequence])
    assert any(told in finding for finding in search.totals.findings), search.totals


def test_equal_seeds_lead_to_equal_states(search: Search) -> None:
    found = []
    for _ in range(2):
        recording, history = search.record(("append", "fsync"))
        found.append([(call.__class__, getattr(call, "content", b"")) for call in recording.calls])
        assert history.last.name == "fsync"
    assert found[0] == found[1]
