"""How far a stream is behind its log, by what its progress shows.

Spark's Kafka source gives these numbers as its `metrics`. Spark 4.3 asks a source in Python for none. So they are
computed from the offsets of the progress, and the bytes, which offsets do not tell, come beside the latest ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

BYTES_BEHIND: Final = "@estimatedTotalBytesBehindLatest="
"""Name, without its number, of an entry in the latest offset that a stream reports."""


def behind(source: Mapping[str, Any]) -> dict[str, str]:
    """Return what Spark's Kafka source shows as `metrics`, for one of the sources of a stream's progress.

    >>> behind(query.lastProgress["sources"][0])
    {"minOffsetsBehindLatest": "0", "maxOffsetsBehindLatest": "7", "avgOffsetsBehindLatest": "3.5",
     "estimatedTotalBytesBehindLatest": "812"}

    The offsets are those between the end of the micro-batch and the ends of all partitions when it was planned. There
    are none before the first one is planned, as with Kafka's source."""
    latest, reached = (json.loads(source[name] or "{}") for name in ("latestOffset", "endOffset"))
    waiting = [
        end - reached.get(topic, {}).get(number, 0)
        for topic, ends in latest.items()
        for number, end in ends.items()
    ]
    if not waiting or not reached:
        return {}
    return {
        "minOffsetsBehindLatest": str(min(waiting)),
        "maxOffsetsBehindLatest": str(max(waiting)),
        "avgOffsetsBehindLatest": str(sum(waiting) / len(waiting)),
        "estimatedTotalBytesBehindLatest": next(
            name.removeprefix(BYTES_BEHIND) for name in latest if name.startswith(BYTES_BEHIND)
        ),
    }
