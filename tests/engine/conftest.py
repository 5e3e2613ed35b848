"""The fixture that hands out a partition's test bench, and checks everything when the test is over."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from partition_bench import Bench


@pytest.fixture
def bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Bench]:
    """A partition of its own. Every test ends in a full verify; a warning that nobody announced fails it."""
    made = Bench(tmp_path / "topic-0")
    yield made
    said = list(caplog.get_records("call"))
    made.check()
    said += caplog.records
    warned = [record.getMessage() for record in said if record.levelno >= logging.WARNING]
    assert made.warnings or not warned, warned
