"""One mount of the real daemon, shared by all tests that only need partitions of their own.

A plugin that test modules name: a second conftest.py could not be told from that of another folder.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from daemon_mount import DaemonMount
from harness import missing


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonMount]:
    """Topics: plain; small, with segments of 2,000 bytes; tight, with records of at most 1,000; compacted."""
    lack = missing()
    if lack is not None:
        pytest.skip(lack)
    served = DaemonMount(tmp_path_factory.mktemp("shared"))
    served.configure("small", internal_segment_bytes=2000)
    served.configure("tight", max_message_bytes=1000)
    served.configure("compacted", cleanup_policy="compact")
    try:
        served.start("-o", "linger.ms=20")
        yield served
        alarms = served.alarms()
        assert served.stop() == 0, served.said()
        assert not served.is_mounted
        assert not alarms, "\n".join(alarms)
    finally:
        served.clear()


@pytest.fixture
def mount(shared: DaemonMount) -> Iterator[DaemonMount]:
    """The shared mount, watched."""
    with shared.watched():
        yield shared
