"""Make the picture of `topicfs ui` that the README shows: `python tests/mountd/ui_picture.py`, where Chromium is.

A store of a shop is mounted, written to for some seconds, and looked at by a real browser.
"""

from __future__ import annotations

import io
import json
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parents[1]
sys.path.append(str(TESTS))  # patience.py

from browser import browser  # noqa: E402
from daemon_place import Place, cleared  # noqa: E402
from PIL import Image  # noqa: E402
from ui_site import served  # noqa: E402

from topicfs import Record, Store  # noqa: E402

PICTURE: Final = TESTS.parent / "mountd" / "ui" / "page.png"
WIDTH, HEIGHT = 1180, 770
COLOURS: Final = 64
MINUTE_MS: Final = 60_000
WRITTEN_S: Final = 9.0


def fill(backing: Path) -> None:
    """A day of a shop: it is busy at noon, and its orders grow."""
    now = time.time_ns() // 1_000_000
    chance = random.Random(7)
    with Store.open(backing, create=True) as store:
        settings = {"internal.segment.bytes": "60000", "retention.bytes": "900000"}
        for number in range(3):
            orders = store.create("orders", number, settings)
            for minute in range(-1440, 0, 4):
                count = int(20 + 18 * (1 - abs(minute + 500) / 940) ** 3 + (minute < -1100) * 30)
                orders.append([order(chance, now + minute * MINUTE_MS + at * 900) for at in range(count)])
        store.create("users", 0, {"cleanup.policy": "compact"}).append(
            [Record(b'{"name":"user %d"}' % at, b"%d" % (at % 900), now) for at in range(4000)]
        )
        store.create("payments", 0).append([order(chance, now) for _ in range(900)])


def order(chance: random.Random, ms: int) -> Record:
    """An order, which has more to say the later it comes."""
    fruit = chance.choice(["apples", "pears", "plums"])
    note = "a present, " * chance.randint(0, 1 + (ms // MINUTE_MS) % 7)
    value = {"fruit": fruit, "count": chance.randint(1, 40), "note": note}
    return Record(json.dumps(value).encode(), b"user-%d" % chance.randint(1, 900), ms)


def main() -> None:
    """Make it."""
    directory = Path(tempfile.gettempdir()) / "shop"
    directory.mkdir()
    for place in cleared(Place(directory, real=True)):
        fill(place.backing)
        place.up()
        with served(place.mount) as site, browser(directory / "browser") as page:
            page.size(WIDTH, HEIGHT)
            page.colours("light")
            page.open(f"http://127.0.0.1:{site.port}/topics/orders/0")
            end = time.monotonic() + WRITTEN_S
            while time.monotonic() < end:
                with (place.mount / "orders-0" / "log.txt").open("a") as file:
                    file.writelines(f"{at} pears\n" for at in range(40))
                time.sleep(0.1)
            seen = Image.open(io.BytesIO(page.picture()))
        seen.quantize(COLOURS).save(PICTURE, optimize=True)
        place.down()
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
