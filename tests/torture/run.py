"""One run: a new store in an environment, a list of rows, and a look at everything after each of them."""

from __future__ import annotations

import os
import random
import tempfile
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import daemon_faults
import deletions
import details
import inbox_batches
import keys
import link
import other_user
import positions
import reading
import rows as scripts
import sequences
import together
import views
import writing
from daemon_mount import DaemonMount
from oracle import BrokenPromiseError
from other_user import Outcome
from rows import HIGHEST, Numbers, Row, Step
from world import World

TABLES: Final = (
    writing.STEPS,
    together.STEPS,
    reading.STEPS,
    details.STEPS,
    keys.STEPS,
    inbox_batches.STEPS,
    positions.STEPS,
    sequences.STEPS,
    views.STEPS,
    deletions.STEPS,
    daemon_faults.STEPS,
)
STEPS: Final[dict[str, Step]] = {
    name: step for table in (*TABLES, link.STEPS) for name, step in table.steps.items()
}
WEIGHTS: Final = {name: weight for table in TABLES for name, weight in table.weights.items()}
LINKED: Final = {**WEIGHTS, **{name: 3 * weight for name, weight in link.STEPS.weights.items()}}
"""With a link half of the steps are about it."""

ENVIRONMENTS: Final = {"directory": 0, "tmpfs": 24, "ext4": 24, "xfs": 320, "user": 0, "memory": 0}
"""Where BACKING is, and its size in MiB: a file system of xfs has 300 at least. In `user` all is done by an ordinary
user, and in `memory` each daemon may have little of it."""

LIMIT_S: Final = 120.0
"""For a step. Only what hangs takes that long."""


def draw(chance: random.Random, environment: str, count: int) -> list[Row]:
    """Draw the rows of a run. In every second one threads sleep at locks, and every third one has a link."""
    linked = chance.randrange(3) == 0
    pauses = chance.randrange(1, HIGHEST) if chance.randrange(2) else 0
    first = Row(environment, (pauses, int(linked)))
    return [first, *scripts.draw(chance, LINKED if linked else WEIGHTS, count)]


def run(rows: Sequence[Row], place: Path | None = None) -> Outcome:
    """Do the rows. The name of the first is the environment; its numbers say how locks pause, 0 for not, and whether
    there is a link."""
    if rows[0].name == "user" and not os.geteuid():
        return other_user.run(rows)
    outcome = Outcome()
    with tempfile.TemporaryDirectory(
        prefix="topicfs-torture-", dir=place, ignore_cleanup_errors=True
    ) as made:
        world = World(Path(made), DaemonMount(Path(made)))
        try:
            with _watched(world):
                _begin(world, rows[0].name, *(*rows[0].numbers, 0, 0)[:2])
            for row in rows[1:]:
                outcome.done[row.name] += 1
                with _watched(world):
                    step(world, row)
            with _watched(world):
                link.caught_up(world)
                world.finish()
        except BrokenPromiseError as violation:
            outcome.label, outcome.words = violation.label, str(violation)
        except Exception:  # noqa: BLE001 - a step that cannot be done is a finding too
            outcome.label, outcome.words = "step", traceback.format_exc()
        finally:
            if world.served.hung:
                outcome.label = "hang"
                outcome.words = f"it hung in {world.said[-1:]}:\n{world.served.said()[-6000:]}"
            world.clear()
        outcome.said, outcome.lines = world.said, len(world.oracle.lines)
    return outcome


@contextmanager
def _watched(world: World) -> Iterator[None]:
    """End a daemon that hangs, after it has written where each of its threads is."""
    watchdog = threading.Timer(LIMIT_S, world.served._end_what_hangs)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()


def _begin(world: World, environment: str, pauses: int, linked: int) -> None:
    if pauses:
        world.served.environment["LOCK_PAUSES"] = str(pauses)
    if linked:
        world.far = link.Far(world.place)
    if ENVIRONMENTS[environment]:
        world.make_disk(environment, ENVIRONMENTS[environment])
    world.begin()
    # The topics of the cluster are here when it was asked for the first time.
    link.caught_up(world)
    if environment == "memory":
        world.is_little = True
        world.little_memory()


def step(world: World, row: Row) -> None:
    """Do one, and look at everything. A daemon that is dead, as it was told to be, is started again before."""
    world.died()
    if not world.alive:
        world.start()
        world.look()
    if row.name not in link.STEPS.steps or world.far is not None:
        with world.short_of_memory():
            STEPS[row.name](world, Numbers(row.numbers))
    world.died()
    if not world.alive:
        world.room()
        world.start()
    world.look()


def told(outcome: Outcome) -> str:
    """A failed run in words."""
    return f"{outcome.words}\n\nwhat was done:\n" + "\n".join(f"  {words}" for words in outcome.said)
