"""Tests against the real Kafka: skipped where it is not installed, with the command that installs it."""

from __future__ import annotations

import sys
from pathlib import Path

import kafka_broker
import pytest
from broker_written import Written, broker_writes

sys.path.append(str(Path(__file__).parents[1] / "mount"))  # daemon_mount.py: a real daemon


@pytest.fixture(scope="session", autouse=True)
def _kafka_is_installed() -> None:
    reason = kafka_broker.missing()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def written_by_broker(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return broker_writes(tmp_path_factory.mktemp("broker"))
