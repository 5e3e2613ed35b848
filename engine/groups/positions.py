"""Positions of groups: what holds for them wherever they are kept, in this store or in a Kafka cluster."""

from __future__ import annotations

from collections.abc import Mapping

from topicfs.engine.errors import PositionMovedError
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.groups.records import Position


def check_expected(
    group: str, positions: Mapping[PartitionKey, Position], expected: Mapping[PartitionKey, int | None]
) -> None:
    """Raise PositionMovedError where a position is another one than is expected, None for none."""
    for key, wanted in expected.items():
        present = positions.get(key)
        if (None if present is None else present.offset) != wanted:
            raise PositionMovedError(
                f"group {group}, {key[0]}-{key[1]}: expected the position {_told(wanted)}, found "
                f"{_told(None if present is None else present.offset)}"
            )


def _told(offset: int | None) -> str:
    return "none" if offset is None else str(offset)
