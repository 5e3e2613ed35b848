"""What the search in bytes has kept is taken or refused as ever: `make fuzz` goes on from it."""

from __future__ import annotations

import pytest
from fuzz_search import CORPUS, attempt, kept
from fuzz_targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_found_before_is_refused_in_words_or_taken_as_it_is(name: str) -> None:
    """Another exception than one of ours is a fault, and so are two readers that do not agree."""
    check, seeds = TARGETS[name]
    assert seeds
    for data in (*seeds, *kept(name)):
        attempt(check, data)


@pytest.mark.parametrize("name", TARGETS)
def test_a_search_begins_with_bytes_that_are_taken(name: str) -> None:
    check, seeds = TARGETS[name]
    check(seeds[0])


def test_every_kept_corpus_is_of_a_target() -> None:
    assert {path.stem for path in CORPUS.glob("*.txt")} <= TARGETS.keys()
