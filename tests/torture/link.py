"""A topic of a cluster that is mirrored: what befalls it there and on the way, each a function in a table.

The cluster is a stand-in, in this process, and forgets nothing: so what the mirror has to be is known to the byte.
"""

from __future__ import annotations

import errno
import json
import re
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from daemon_mount import append, delete
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import ProduceRequest
from oracle import promise
from rows import Numbers, Table
from stand_in_broker import Log, StandInBroker, Topic, damaged
from world import LIMIT_S, World
from writing import ending

STEPS: Final = Table()
TOPIC: Final = "far"
PARTITIONS: Final = 2
VALUE: Final = re.compile(rb"<\d+>")
CLIENT: Final = (
    "metadata.max.age.ms=200\nreconnect.backoff.max.ms=200\nfetch.max.wait.ms=50\ndelivery.timeout.ms=1500\n"
    "request.timeout.ms=1000\n"
)
REFUSALS: Final = (6, 7, 19, 5)
"""Not the leader, too late, too few replicas, no leader: after each of them a producer tries again."""

KINDS: Final = (FetchRequest, MetadataRequest, ProduceRequest)


class Far:
    """The cluster of a run, and what is known of what was written to it.

    broker     the stand-in
    topic      of the cluster, now
    hidden     values of transactions that were aborted
    lost       values that an unclean election may have taken
    kept       values that the cluster has acknowledged, with their partitions
    undecided  by partition: offsets at which a transaction is not decided yet
    disturbed  whether something has befallen the cluster since the mirror had all
    anew       whether the topic was made anew there, and the old one is still here
    """

    def __init__(self, place: Path) -> None:
        self.broker = StandInBroker()
        self.broker.come()
        self.client = place / "client.properties"
        self.client.write_text(CLIENT)
        self.count = 0
        self.hidden: set[bytes] = set()
        self.disturbed = self.anew = False
        self.make()

    def make(self) -> None:
        """Make the topic, anew if it is there: nothing of the old one counts any more."""
        self.topic = self.broker.topics[TOPIC] = Topic(logs={number: Log() for number in range(PARTITIONS)})
        self.lost: set[bytes] = set()
        self.kept: dict[bytes, int] = {}
        self.undecided: set[tuple[int, int]] = set()

    @property
    def options(self) -> tuple[str, ...]:
        """Of a mount with the link."""
        return ("--link", self.broker.bootstrap, "--link-topic", TOPIC, "--link-config", str(self.client))

    def values(self, count: int) -> list[bytes]:
        """Values that nothing has had."""
        first, self.count = self.count, self.count + count
        return [b"<%d>" % number for number in range(first, self.count)]

    def told(self, partition: int) -> list[bytes]:
        """The values that the leader shows."""
        found = VALUE.findall(self.topic.logs[partition].data())
        return [value for value in found if value not in self.hidden]

    def clear(self) -> None:
        """Leave nothing behind."""
        self.broker.go()


def log_of(world: World, numbers: Numbers) -> tuple[Far, int, Log]:
    """Choose one of its partitions."""
    number = numbers.below(PARTITIONS)
    return world.far, number, world.far.topic.logs[number]


def on_disk(world: World, number: int) -> bytes:
    """The bytes of the mirror's segments."""
    directory = world.served.backing / f"logs/{TOPIC}-{number}"
    return b"".join(log.read_bytes() for log in sorted(directory.glob("*.log")))


def caught_up(world: World) -> None:
    """Where the cluster can be asked, and there is room, the mirror becomes the leader's log, byte for byte; nothing
    that was acknowledged is missing there, and nothing is doubled."""
    far = world.far
    if far is None or not world.alive or world.trouble or world.may_die or far.broker._server is None:
        return
    quiet(far)
    if not let_go(world):
        return
    end = time.monotonic() + LIMIT_S
    for number, log in far.topic.logs.items():
        wrong: str | None = "not looked at"
        while wrong is not None:
            # It is not here yet, or was opened before a cut.
            with suppress(OSError):
                wrong = differs(world, far, number, log)
            promise("M1", wrong is None or time.monotonic() < end, f"{TOPIC}-{number}: {wrong}")
            if wrong is not None:
                time.sleep(0.05)
                far.anew = is_old(world)
                if world.died() or not let_go(world):
                    return
        values = VALUE.findall(log.data())
        promise("M14", len(values) == len(set(values)), f"{TOPIC}-{number} has lines twice: {values}")
        missing = [
            value
            for value, place in far.kept.items()
            if place == number and value not in values and value not in far.lost
        ]
        promise("M3", not missing, f"{TOPIC}-{number} has lost {missing}, which were acknowledged")
    far.disturbed = False


def differs(world: World, far: Far, number: int, log: Log) -> str | None:
    """How the mirror differs from the leader's log, in words."""
    mine, leader = on_disk(world, number), log.data()
    if mine != leader:
        return f"the mirror has {len(mine)} bytes, the leader {len(leader)}"
    shown = (world.served / f"{TOPIC}-{number}/log.txt").read_bytes().split()
    expected = far.told(number)
    return None if shown == expected else f"the mirror shows {shown[-20:]}, the leader {expected[-20:]}"


def is_old(world: World) -> bool:
    """Whether the mirror is of a topic that was made anew in the cluster: it may have come back behind its deletion, by
    what a broker had said before."""
    with suppress(OSError):
        told = json.loads((world.served / f"{TOPIC}-0/status.json").read_bytes())["link"]
        return told is not None and "made anew" in str(told["ended"])
    return False


def quiet(far: Far) -> None:
    """No answer is twisted any more."""
    far.broker.twist.clear()
    far.broker.refuse.clear()
    far.broker.garble = lambda _, data: data


def let_go(world: World) -> bool:
    """Delete the mirror of a topic that was made anew in the cluster; whether it is gone."""
    if world.far.anew:
        directory = world.served / "topics" / TOPIC
        end = time.monotonic() + LIMIT_S
        while world.far.anew and world.alive:
            with world.attempt((), errno.EPERM, errno.EBUSY, errno.ENOENT) as failed:
                delete(directory)
            world.far.anew = bool(failed) and time.monotonic() < end
            if world.far.anew:
                time.sleep(0.1)
    return world.alive


@STEPS.row(6)
def far_appends(world: World, numbers: Numbers) -> None:
    """The cluster has new batches."""
    far, number, log = log_of(world, numbers)
    batches, count = numbers.pick((1, 3, 20)), numbers.pick((1, 3, 30))
    world.say(f"the cluster has {batches} batches of {count} more in {TOPIC}-{number}")
    for _ in range(batches):
        log.add(*far.values(count))


@STEPS.row(2)
def far_transaction(world: World, numbers: Numbers) -> None:
    """The cluster has a transaction, of which nothing shows when it is aborted."""
    far, number, log = log_of(world, numbers)
    values, committed = far.values(numbers.pick((1, 5))), bool(numbers.below(2))
    world.say(f"a transaction in {TOPIC}-{number} is {'committed' if committed else 'aborted'}")
    if not committed:
        far.hidden.update(values)
    far.undecided.add((number, log.end + len(values)))
    log.transact(1000 + far.count, values, committed)


@STEPS.row(3)
def far_elects(world: World, numbers: Numbers) -> None:
    """Another leader; one that was not in sync has lost what was last."""
    far, number, log = log_of(world, numbers)
    unclean, back = numbers.below(2), numbers.pick((1, 2, 5))
    far.disturbed = world.faulty = True
    if not unclean or not log.batches:
        world.say(f"a leader of {TOPIC}-{number}")
        log.epoch += 1
        return
    keep = log.batches[: -min(back, len(log.batches))]
    if keep and (number, keep[-1][0]) in far.undecided:
        # A transaction of which the marker is lost stays open, and nothing behind it shows.
        keep.pop()
    offset = keep[-1][0] if keep else log.start
    world.say(f"an unclean leader of {TOPIC}-{number}, which ends at {offset}, not at {log.end}")
    far.lost.update(VALUE.findall(log.data(offset)))
    log.cut(offset, log.epoch + 1)
    # The new leader remembers of producers what it has of them.
    for producer, known in log.last.items():
        log.last[producer] = [each for each in known if each[2] < offset]


@STEPS.row(2)
def far_goes(world: World, numbers: Numbers) -> None:
    """The cluster is away."""
    world.say("the cluster is away")
    world.far.disturbed = world.faulty = True
    world.far.broker.go()


@STEPS.row(4)
def far_comes(world: World, numbers: Numbers) -> None:
    """It is back, and answers as it should."""
    world.say("the cluster is back")
    if world.far.broker._server is None:
        world.far.broker.come()
    caught_up(world)


@STEPS.row(3)
def far_lies(world: World, numbers: Numbers) -> None:
    """Answers are slow, cut short or damaged, and batches are refused, until the cluster is back."""
    far, how = world.far, numbers.pick(("slow", "cut", "damaged", "refused"))
    kind, some = numbers.pick(KINDS), numbers.below(200)
    world.say(f"answers to {kind.__name__} are {how}")
    far.disturbed = world.faulty = True
    count = 3
    waiting = threading.Event()

    def slow(request: Any, answer: Any) -> None:
        waiting.wait(some / 500)

    def garbled(asked: Any, data: bytes) -> bytes:
        nonlocal count
        if asked is not kind or not count:
            return data
        count -= 1
        if how == "cut":
            return data[: some % len(data)]
        # What no checksum covers is believed, as by any client.
        found = VALUE.search(data)
        return damaged(data, found.start() + 1) if found else data

    if how == "slow":
        far.broker.twist[kind] = slow
    elif how == "refused":
        far.broker.refuse = [numbers.pick(REFUSALS)] * (1 + some % 3)
    elif how == "cut" or kind is FetchRequest:
        far.broker.garble = garbled


@STEPS.row(1)
def far_anew(world: World, numbers: Numbers) -> None:
    """The topic is deleted in the cluster, and made anew under its name: it is here when the old one is deleted."""
    world.say(f"{TOPIC} is made anew in the cluster")
    world.far.disturbed = world.faulty = True
    world.far.make()
    world.far.anew = True
    let_go(world)


@STEPS.row(6)
def far_write(world: World, numbers: Numbers) -> None:
    """Lines are appended through the mount; in some rows the daemon is killed meanwhile."""
    far, number, _ = log_of(world, numbers)
    directory = world.served / f"{TOPIC}-{number}"
    if far.anew:
        return
    fault, after = numbers.pick(("", "", "kill", "pause")), numbers.below(60) / 1000
    turns = [far.values(numbers.pick((1, 4, 50))) for _ in range(1 + 5 * bool(fault))]
    world.say(f"append {turns[0][0].decode()}… to {directory.name} {fault}")
    answers: list[OSError | None] = []

    def run() -> None:
        for values in turns:
            try:
                append(directory / "log.txt", b"".join(value + b"\n" for value in values))
            except OSError as error:
                answers.append(error)
            else:
                far.kept.update(dict.fromkeys(values, number))
                answers.append(None)

    writer = threading.Thread(target=run)
    writer.start()
    if fault:
        ending(world, fault, after)
    writer.join(LIMIT_S)
    promise("B4", not writer.is_alive(), "a writer through the link hangs")
    if fault == "kill":
        world.bury()
        return
    excused = (errno.ETIMEDOUT, errno.EIO, errno.ENOENT) if far.disturbed or world.trouble else ()
    for error in filter(None, answers):
        with world.attempt((), *excused):
            raise error
        if not world.alive:
            return
    # What the cluster has is not shown while there is no room for it here.
    if answers == [None] and not far.disturbed and not world.trouble:
        shown = (directory / "log.txt").read_bytes().split()
        promise(
            "M3",
            shown[-len(turns[0]) :] == turns[0],
            f"{directory.name} does not show {turns[0]}: {shown[-9:]}",
        )


@STEPS.row(3)
def far_mirror(world: World, numbers: Numbers) -> None:
    """The mirror is compared with the leader."""
    world.say("the mirror is compared with the leader")
    caught_up(world)
