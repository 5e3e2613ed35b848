"""Writers of the soak, each a process of its own: `python soak_writers.py <role in JSON>`.

A writer goes on until the file `stop-writing` is there. It then prints what was acknowledged to it, and what went
wrong.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from soak_lines import Faults, Keys, line_of

TICK_S = 0.05


def ticks(place: Path) -> Iterator[int]:
    """Turns at an even pace, until writers are to stop. Who is late is not hurried."""
    stop = place / "stop-writing"
    turn = 0
    while not stop.exists():
        began = time.monotonic()
        yield turn
        turn += 1
        time.sleep(max(0.001, TICK_S - (time.monotonic() - began)))


def write_all(descriptor: int, data: bytes) -> None:
    """All of it, in as many writes as it takes."""
    while data:
        data = data[os.write(descriptor, data) :]


def append(path: Path, data: bytes) -> None:
    """Open, write, close."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        write_all(descriptor, data)
    finally:
        os.close(descriptor)


def numbered(role: dict[str, Any]) -> dict[str, Any]:
    """Lines with rising numbers. `manner` is how: the file stays open, or is opened for each turn, or lines come in
    pieces."""
    path, writer, manner = Path(role["path"]), role["writer"].encode(), role["manner"]
    number = 0
    held = os.open(path, os.O_WRONLY | os.O_APPEND) if manner != "opened" else -1
    for turn in ticks(Path(role["place"])):
        count = role["rate"] * (3 if turn % 40 == 0 else 1)
        data = b"".join(line_of(writer, each) for each in range(number, number + count))
        if manner == "opened":
            append(path, data)
        elif manner == "held":
            write_all(held, data)
            if turn % 50 == 0:
                os.fsync(held)
        else:
            step = 1 + len(data) // 7
            for at in range(0, len(data), step):
                write_all(held, data[at : at + step])
        number += count
    if held >= 0:
        os.fsync(held)
        os.close(held)
    return {"writer": role["writer"], "acknowledged": number - 1}


def keyed(role: dict[str, Any]) -> dict[str, Any]:
    """Keyed records. Now and then it looks whether the logs have the last value of each of its keys."""
    path, logs = Path(role["path"]), [Path(log) for log in role["logs"]]
    keys = Keys(role["writer"], role["keys"], role["renewed"])
    faults = Faults()
    number, looked = 0, time.monotonic()
    for _ in ticks(Path(role["place"])):
        data = b"".join(keys.line(each) for each in range(number, number + role["rate"]))
        append(path, data)
        number += role["rate"]
        if time.monotonic() - looked > role["look_s"]:
            read_own(keys, number - 1, logs, faults)
            looked = time.monotonic()
    return {
        "writer": keys.writer,
        "acknowledged": number - 1,
        "faults": faults.first,
        "fault_count": faults.count,
    }


def read_own(keys: Keys, newest: int, logs: list[Path], faults: Faults) -> None:
    """What was acknowledged shows: the last value of each key is the last one that was written."""
    found: dict[str, int] = {}
    lowest = newest
    for log in logs:
        try:
            lines = log.read_bytes().splitlines()
        except OSError as error:
            faults.add(f"{keys.writer} reads {log}: {error}")
            return
        for line in lines:
            record = json.loads(line)
            writer, number = record["headers"][0]["value"].split(" ")
            if writer == keys.writer:
                found[record["key"]] = int(number)
                lowest = min(lowest, int(number))
    for key, number in keys.latest(newest, lowest).items():
        if found.get(key) != number and (key in found or not keys.is_tombstone(number)):
            faults.add(
                f"{keys.writer} wrote {number} for {key} and was told so, but finds {found.get(key)}; "
                f"newest {newest}, lowest {lowest}"
            )


ROLES = {"numbered": numbered, "keyed": keyed}

if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(ROLES[asked["role"]](asked)))  # noqa: T201 - its report
