"""A mount that is linked to a cluster, and what its mirrors are compared with: the files of a broker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daemon_mount import DaemonMount
from patience import eventually

from topicfs import Record

QUICK = {
    "metadata.max.age.ms": "300",
    "reconnect.backoff.max.ms": "300",
    "fetch.max.wait.ms": "100",
    "request.timeout.ms": "3000",
}
"""Client settings of a link that notices everything soon."""


class LinkedMount(DaemonMount):
    """A mount whose topics mirror those of a cluster.

    bootstrap  the addresses of brokers
    """

    def __init__(self, place: Path, bootstrap: str, client: Mapping[str, str] | None = None) -> None:
        super().__init__(place)
        self.bootstrap = bootstrap
        self.client = place / "client.properties"
        lines = {**QUICK, **(client or {})}
        self.client.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    def link(self, *options: str) -> None:
        """Mount with the link, and wait until it answers."""
        self.start("--link", self.bootstrap, "--link-config", str(self.client), *options)

    def log_bytes(self, partition: str) -> bytes:
        """All batches of a mirror, as they are in its files."""
        return log_bytes(self.backing / "logs" / partition)

    def shown(self, partition: str) -> list[Record]:
        """What the mount shows of a partition, as records."""
        lines = (self / partition / "log.jsonl").read_bytes().splitlines()
        return [_record_of(json.loads(line)) for line in lines]

    def await_end(self, partition: str, end: int) -> None:
        """Wait until the mirror ends at this offset, and has all that the leader has."""

        def has_come() -> bool:
            try:
                status = self.status(self / partition)
            except FileNotFoundError:
                # It is not here yet, or just begins at the offset of its mirror.
                return False
            return status["end_offset"] == end and (status["link"] or {}).get("lag_records") == 0

        eventually(has_come, f"{partition} is mirrored up to offset {end}")

    def await_error(self, partition: str, words: str) -> str:
        """Wait until the status of a mirror says these words, and return all of it."""
        found = ""

        def is_told() -> bool:
            nonlocal found
            found = str(self.status(self / partition)["link"]["last_error"])
            return words in found

        eventually(is_told, words)
        return found


def _record_of(told: dict[str, Any]) -> Record:
    key, value = (None if told[name] is None else told[name].encode() for name in ("key", "value"))
    headers = [
        (each["key"], None if each["value"] is None else each["value"].encode()) for each in told["headers"]
    ]
    return Record(value, key, told["timestamp"], tuple(headers), told["offset"])


def log_bytes(partition: Path) -> bytes:
    """All batches in the segments of a partition's directory, without room behind the last of them."""
    files = sorted(partition.glob("*.log"))
    return b"".join(file.read_bytes() for file in files).rstrip(b"\0")
