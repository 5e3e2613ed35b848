"""What is expected of suites that others have written, and what a run says otherwise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conformance_lists import Otherwise, Outcome, differences, expanded, read
from conformance_suites import STRESSORS

HERE = Path(__file__).parent
SEMANTICS = HERE.parents[1] / "fs" / "SEMANTICS.md"
EXPECTED = {"known": Otherwise(Outcome.FAILED, "it is known"), "left": Otherwise(Outcome.SKIPPED, "not here")}


def test_a_run_as_expected_tells_nothing() -> None:
    found = {"known": Outcome.FAILED, "left": Outcome.SKIPPED, "good": Outcome.PASSED}
    assert differences(found, EXPECTED) == []


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"new": Outcome.FAILED}, "new: failed, which no reason is given for"),
        ({"new": Outcome.SKIPPED}, "new: skipped, which no reason is given for"),
        ({"known": Outcome.PASSED}, "known: passed; it is listed as failed: it is known"),
        ({"known": Outcome.SKIPPED}, "known: skipped; it is listed as failed: it is known"),
        ({"left": Outcome.FAILED}, "left: failed; it is listed as skipped: not here"),
    ],
)
def test_each_difference_is_told(found: dict[str, Outcome], told: str) -> None:
    """A new failure, a new pass, and what is skipped that was run before."""
    whole = {name: expected.outcome for name, expected in EXPECTED.items()} | found
    assert differences(whole, EXPECTED) == [told]


def test_a_listed_case_that_was_not_run_is_told() -> None:
    assert differences({"left": Outcome.SKIPPED}, EXPECTED) == ["known: is listed, and was not run"]


def test_a_pattern_stands_for_each_of_its_names() -> None:
    assert list(expanded("a::{b,c}::{d,e}")) == ["a::b::d", "a::b::e", "a::c::d", "a::c::e"]
    assert list(expanded("a::b")) == ["a::b"]


@pytest.mark.parametrize("text", ["cases = ['a', 'a']\nwhy = 'x'", "cases = ['a']\nwhy = ' '"])
def test_a_list_needs_a_reason_and_names_a_case_once(tmp_path: Path, text: str) -> None:
    (tmp_path / "list.toml").write_text(f"[[otherwise]]\noutcome = 'failed'\n{text}\n")
    with pytest.raises(ValueError, match=r"list\.toml"):
        read(tmp_path / "list.toml")


@pytest.mark.parametrize("name", ["pjdfstest.toml", "stress-ng.toml"])
def test_reasons_name_lines_of_the_contract_that_are_there(name: str) -> None:
    lines = set(re.findall(r"^\* \*\*([A-Z]\d+)\*\*", SEMANTICS.read_text(), re.MULTILINE))
    expected = read(HERE / name)
    assert len(expected) >= 5
    named = {mark for each in expected.values() for mark in re.findall(r"\b[A-Z]\d+\b", each.why)}
    assert named
    assert named <= lines


def test_the_listed_stressors_are_run() -> None:
    assert read(HERE / "stress-ng.toml").keys() <= STRESSORS.keys()
