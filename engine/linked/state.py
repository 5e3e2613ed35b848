"""The state of a mirror, as people see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MirrorState:
    """The state of the mirror of one partition; replaced as a whole.

    leader              the id of the broker that leads the partition; None while there is none, or it is not known
    leader_epoch        the leader's epoch, −1 while it is not known
    high_watermark      the leader's high watermark when it last answered, −1 before
    stable_offset       the leader's stable offset when it last answered, −1 before
    lag_records         offsets up to that high watermark that are not mirrored yet; None before the first answer
    caught_up_ms        when the mirror last had all that the leader had, in milliseconds since the epoch; None: never
    lag_bytes           their size, if they are as large as those that are here on average; None while there are none
    errors              how many errors there were since the mount
    bytes_per_second    how fast bytes were mirrored lately
    mirrored_bytes      bytes that were mirrored since the mount
    mirrored_batches    batches that were mirrored since the mount
    truncated_records   offsets that were cut off since the mount, because an unclean election lost them in the cluster
    error               what is wrong, in words, and what is tried again; None while all is well
    append_error        why what is appended is not acknowledged, and is sent again; None while nothing is sent again
    notes               what happened that does not pass: a cut tail, a gap
    """

    leader: int | None = None
    leader_epoch: int = -1
    high_watermark: int = -1
    stable_offset: int = -1
    lag_records: int | None = None
    lag_bytes: int | None = None
    errors: int = 0
    caught_up_ms: int | None = None
    bytes_per_second: float = 0.0
    mirrored_bytes: int = 0
    mirrored_batches: int = 0
    truncated_records: int = 0
    error: str | None = None
    append_error: str | None = None
    notes: tuple[str, ...] = ()

    def lag_seconds(self, now: int) -> float | None:
        """Return for how long the mirror has not had all that the leader has: 0 while it has all of it."""
        if self.lag_records == 0 and self.error is None:
            return 0.0
        return None if self.caught_up_ms is None else max(0, now - self.caught_up_ms) / 1000

    def told(self, now: int) -> dict[str, Any]:
        """Return the state for `status.json`."""
        return {
            "leader": self.leader,
            "leader_epoch": self.leader_epoch,
            "high_watermark": self.high_watermark,
            "stable_offset": self.stable_offset,
            "lag_records": self.lag_records,
            "lag_bytes": self.lag_bytes,
            "lag_seconds": self.lag_seconds(now),
            "bytes_per_second": round(self.bytes_per_second),
            "mirrored_bytes": self.mirrored_bytes,
            "truncated_records": self.truncated_records,
            "errors": self.errors,
            "last_error": self.error,
            "append_error": self.append_error,
            "notes": list(self.notes),
        }
