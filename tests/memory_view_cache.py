"""A place for size maps that goes with the test."""

from __future__ import annotations


class MemoryViewCache:
    """A view cache in memory."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], bytes] = {}

    def load(self, partition: str, name: str) -> bytes | None:
        return self.kept.get((partition, name))

    def save(self, partition: str, name: str, data: bytes) -> None:
        self.kept[partition, name] = data

    def remove(self, partition: str, name: str) -> None:
        self.kept.pop((partition, name), None)
