"""Places for daemons, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_place import Place, cleared


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """With the stand-in."""
    yield from cleared(Place(tmp_path))


@pytest.fixture
def real_place(tmp_path: Path) -> Iterator[Place]:
    """With the real file system."""
    yield from cleared(Place(tmp_path, real=True))
