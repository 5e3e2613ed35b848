"""Failures: each is counted, and what is broken is told without end only in the counts."""

from __future__ import annotations

import logging

import pytest

from topicfs.engine.errors import CorruptBatchError
from topicfs.fs import errors
from topicfs.fs.error_budget import MOST_LINES, WHILE_S, ErrorBudget, Telling


def test_each_failure_is_counted_by_its_errno() -> None:
    failures = ErrorBudget()
    for name in ("EIO", "ENOENT", "EIO"):
        failures.note(name)
    assert failures.counts() == {"EIO": 2, "ENOENT": 1}


def test_some_lines_of_a_kind_are_told_in_a_while_and_the_last_is_known() -> None:
    failures = ErrorBudget()
    told = [failures.telling("damage", 5.0 + at / 100) for at in range(3 * MOST_LINES)]
    assert told[: MOST_LINES - 1] == [Telling.TOLD] * (MOST_LINES - 1)
    assert told[MOST_LINES - 1] is Telling.LAST
    assert set(told[MOST_LINES:]) == {Telling.LEFT_OUT}
    assert failures.telling("another", 5.5) is Telling.TOLD
    assert failures.telling("damage", 5.0 + WHILE_S) is Telling.TOLD


@pytest.mark.parametrize("broken", [CorruptBatchError("crc"), ZeroDivisionError("a bug")])
def test_a_reader_of_damaged_bytes_does_not_fill_the_log(
    broken: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = ErrorBudget()
    monkeypatch.setattr(errors, "ERRORS", failures)
    for at in range(1000):
        errors.errno_of(broken, "read", f"handle {at}")
    assert len(caplog.records) == MOST_LINES
    assert "left out" in caplog.records[-1].getMessage()
    assert all("left out" not in record.getMessage() for record in caplog.records[:-1])
    assert failures.counts() == {"EIO": 1000}


def test_refusals_are_all_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for at in range(3 * MOST_LINES):
        errors.errno_of(errors.AppendOnlyError("no"), "truncate", f"handle {at}")
    assert len(caplog.records) == 3 * MOST_LINES
