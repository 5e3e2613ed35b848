"""A place for size maps that goes with the test."""

from __future__ import annotations


class MemoryViewCache:
    """A view cache in memory."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], bytes] = {}

    def load(self, partition: str, name: str, most: int = 1 << 62) -> bytes | None:
        found = self.kept.get((partition, name))
        return None if found is None or len(found) > most else found

    def save(self, partition: str, name: str, data: bytes) -> None:
        self.kept[partition, name] = data

    def remove(self, partition: str, name: str) -> None:
        self.kept.pop((partition, name), None)
