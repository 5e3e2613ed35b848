"""A topic is deleted with all that belongs to it, and taken back: its inbox, its settings, what programs hold open,
positions of groups, and a transaction that is under way."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from daemon_mount import delete, undelete
from details import fails_with, first_of
from inbox_batches import batches_of
from oracle import promise
from rows import Numbers, Table
from world import TOPICS, World, put

STEPS: Final = Table()
TOPIC: Final = "again"


@STEPS.row(2)
def delete_and_take_back(world: World, numbers: Numbers) -> None:
    """A topic is deleted, in some rows the daemon ends meanwhile or the name is used again, and it is taken back."""
    between = numbers.pick(("nothing", "kill", "stop", "made again", "kill"))
    directory, count = world.served / "topics" / TOPIC, TOPICS[TOPIC][0]
    whole = world.counts[TOPIC] == count and world.has_records(TOPIC) and world.are_sound(TOPIC)
    if not whole or world.trouble or world.may_die or world.is_limited:
        return
    world.say(f"delete {TOPIC}, {between}, and take it back")
    for writer in [writer for writer in world.writers if writer.topic == TOPIC]:
        world.close(writer)
    world.let_go()
    world.served.expect("was deleted while it was open")
    before = belongings(world, directory)
    group = world.served / "groups/h4"
    group.mkdir(exist_ok=True)
    put(group / f"{TOPIC}-0", "earliest")
    transaction = begin(world, group)
    descriptor = os.open(world.served / f"{TOPIC}-0/log.txt", os.O_RDONLY)
    try:
        delete(directory)
        promise("G3", not directory.exists(), f"{TOPIC} is there, though it was deleted")
        words = fails_with(errno.EIO, os.pread, descriptor, 100, 0)
        promise("E13", words is None, f"{words}")
    finally:
        os.close(descriptor)
    words = fails_with(errno.ENOENT, (group / f"{TOPIC}-0").read_bytes)
    promise("J11", words is None, f"the position in a partition that was deleted: {words}")
    world.counts[TOPIC] = 0
    BETWEEN[between](world, directory)
    words = fails_with(
        errno.ECANCELED, transaction.rename, transaction.with_name(f"{transaction.name}.commit")
    )
    promise("J11", words is None, f"{words}")
    give_up(transaction)
    undelete(directory)
    world.damage.taken_back(world.incarnation(TOPIC))
    world.counts[TOPIC] = count
    after = belongings(world, directory)
    different = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    told = [(name, before.get(name), after.get(name)) for name in different]
    promise("G4", not told, f"{TOPIC} was taken back, and is not what it was: {told}")
    position = (group / f"{TOPIC}-0").read_bytes()
    promise("G4", position == b"none\n", f"{group} has a position in {TOPIC}-0 again: {position!r}")


def begin(world: World, group: Path) -> Path:
    """A transaction with a record and a position, which is not committed yet."""
    directory = world.served / "transactions" / world.name("d")
    place = directory / "groups" / group.name
    directory.mkdir()
    (directory / "groups").mkdir()
    place.mkdir()
    (place / f"{TOPIC}-0").write_text("latest\n")
    (directory / "plain-0.txt").write_bytes(b"never\n")
    return directory


def give_up(directory: Path) -> None:
    """Abort a transaction."""
    for file in sorted(directory.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    directory.rmdir()


def belongings(world: World, directory: Path) -> dict[str, bytes]:
    """What belongs to the topic, beside its records."""
    inbox = directory / "inbox"
    found = {
        f"inbox/{file.relative_to(inbox)}": file.read_bytes()
        for file in sorted(inbox.rglob("*"))
        if file.is_file()
    }
    found["config"] = (directory / "config").read_bytes()
    for batch in batches_of(world).known:
        if batch.incarnation == world.incarnation(TOPIC):
            name = f"user.topicfs.committed.{batch.name}"
            found[name] = os.getxattr(inbox, name)
    for number in range(TOPICS[TOPIC][0]):
        at = world.served / f"{TOPIC}-{number}"
        found[f"{at.name}/start"] = (at / "start").read_bytes()
        found[f"{at.name}/end"] = os.getxattr(at, "user.topicfs.next_offset")
    return found


def made_again(world: World, directory: Path) -> None:
    """While the name is used again, nothing is taken back under it."""
    at = world.served / f"{TOPIC}-0"
    at.mkdir()
    words = first_of(
        fails_with(errno.EEXIST, undelete, directory),
        None if not (at / "log.txt").read_bytes() else f"{at} has records, though it was made anew",
    )
    promise("G5", words is None, f"{words}")
    directory.rmdir()


def killed(world: World, directory: Path) -> None:
    """The daemon dies, and is started again."""
    world.served.kill()
    world.bury()
    world.start()


def stopped(world: World, directory: Path) -> None:
    """The daemon ends in order."""
    world.stop()
    world.start()


BETWEEN: Final[dict[str, Callable[[World, Path], None]]] = {
    "nothing": lambda world, directory: None,
    "kill": killed,
    "stop": stopped,
    "made again": made_again,
}
