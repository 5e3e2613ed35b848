"""Where a read begins and ends, as people say it: an offset, an offset for each partition, or a time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Limit = int | Mapping[int, int] | datetime | str | None
"""An offset for all partitions, a mapping from every partition to its offset, or a time: a datetime with a zone, or ISO
8601 text such as "2026-05-01" or "2026-05-02T06:30+02:00", which is UTC if it names no zone. None is no limit."""


def ms_of(moment: datetime | str) -> int:
    """Return the first millisecond since the epoch that is not before a time. ValueError if it is none, or a datetime
    without a zone."""
    if isinstance(moment, str):
        try:
            found = datetime.fromisoformat(moment)
        except ValueError:
            raise ValueError(
                f"expected a time in ISO 8601, such as 2026-05-01T06:30Z, found {moment!r}"
            ) from None
        found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    else:
        found = moment
        if found.tzinfo is None:
            raise ValueError(f"expected a time with a zone, found {found.isoformat()}")
    # Records have milliseconds: none lies between two of them.
    return -((_EPOCH - found) // timedelta(milliseconds=1))
