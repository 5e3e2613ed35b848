"""Sample data: the clicks of a web shop, as jsonl lines for a topic's `in.jsonl`.

    python examples/clicks.py MOUNT/topics/clicks/in.jsonl --events 1000000
    python examples/clicks.py MOUNT/topics/clicks/in.jsonl --gigabytes 3

The key is the user, so that one user's clicks stay in order in one partition. A user clicks in bursts: sessions, some
minutes of clicks with hours in between.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.progress import track

PAGES = ("/", "/search", "/product/{}", "/cart", "/checkout", "/help")
WEIGHTS = (0.25, 0.2, 0.35, 0.1, 0.05, 0.05)
_AT_ONCE = 20_000
_LINE_BYTES = 150


def events(count: int, seed: int = 1, live: bool = False) -> Iterator[list[bytes]]:
    """So many lines, in chunks, by rising time: a day that ends now. Where they are `live`, only the click knows when
    it was, and the record is as new as its append: who cuts segments by time needs that."""
    random = np.random.default_rng(seed)
    users = max(10, count // 100)
    end = int(time.time() * 1000)
    start = end - 24 * 3_600_000
    for first in range(0, count, _AT_ONCE):
        size = min(_AT_ONCE, count - first)
        # Bursts: a few users at a time are active, and others later.
        base = first * users // max(1, count)
        active = (base + random.integers(0, max(2, users // 20), size)) % users
        times = np.sort(start + (first + random.random(size) * size) / count * (end - start)).astype(np.int64)
        pages = random.choice(len(PAGES), size, p=WEIGHTS)
        products = random.zipf(1.5, size) % 1000
        took = random.gamma(2.0, 40.0, size).astype(np.int64)
        lines = []
        for user, at, page, product, milliseconds in zip(
            active.tolist(), times.tolist(), pages.tolist(), products.tolist(), took.tolist(), strict=True
        ):
            value = {
                "at": at,
                "page": PAGES[page].format(product),
                "ms": milliseconds,
                "status": 500 if milliseconds > 400 else 200,
            }
            record = {"key": f"user-{user:06d}", "value": json.dumps(value)}
            if not live:
                record["timestamp"] = at
            lines.append(json.dumps(record).encode() + b"\n")
        yield lines


def write(target: Path, count: int, seed: int = 1, live: bool = False) -> None:
    """Append them, with a bar that shows how far it is."""
    chunks = -(-count // _AT_ONCE)
    with target.open("ab", buffering=0) as file:
        for lines in track(events(count, seed, live), f"{count:,} events", total=chunks):
            data = b"".join(lines)
            while data:
                data = data[file.write(data) :]


def main() -> None:
    parser = argparse.ArgumentParser(description="Append clicks to a topic.")
    parser.add_argument("target", type=Path, help="MOUNT/topics/<topic>/in.jsonl")
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--gigabytes", type=float, help="so much, instead of a number of events")
    given = parser.parse_args()
    count = given.events if given.gigabytes is None else int(given.gigabytes * 1e9 / _LINE_BYTES)
    write(given.target, count)


if __name__ == "__main__":
    main()
