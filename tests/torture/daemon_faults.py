"""What befalls a daemon and its disk: each fault is a function in a table."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

import damaged_logs
from oracle import promise
from rows import Numbers, Table
from world import World

STEPS: Final = Table()


@STEPS.row(3)
def kill(world: World, numbers: Numbers) -> None:
    """kill -9."""
    world.say("kill")
    world.served.kill()
    world.bury()


@STEPS.row(2)
def terminate(world: World, numbers: Numbers) -> None:
    """SIGTERM, which appends what open files still hold."""
    world.say("SIGTERM")
    lines_kept(world)
    world.stop()


@STEPS.row(2)
def umount(world: World, numbers: Numbers) -> None:
    """`topicfs umount`, which is refused while files are open, and `--force`."""
    world.say("topicfs umount")
    if world.writers and not world.may_die:
        done = world.served.umount()
        promise("B7", done.returncode != 0, f"umount of a mount in use did well: {done.stdout}")
    lines_kept(world)
    if world.may_die or world.trouble:
        # It may die on the way, or end in disorder, and then the exit code tells so.
        world.stop()
        return
    done = world.served.umount("--force")
    promise("B7", done.returncode == 0, f"umount --force: {done.stderr}")
    world.bury()


def lines_kept(world: World) -> None:
    """D4: an end in order appends all that write(2) has accepted, also a line without its newline."""
    if world.may_die or world.trouble:
        return
    rank = world.oracle.rank()
    for writer in world.writers:
        if writer.incarnation != world.incarnation(writer.topic):
            continue
        world.oracle.acknowledge(writer.lines)
        writer.lines.clear()
        if writer.rest is not None:
            writer.rest[1].rank = rank
            world.oracle.acknowledge([writer.rest[1]])
            writer.rest = None


@STEPS.row(2)
def full(world: World, numbers: Numbers) -> None:
    """No room on the disk, if it is one of our own."""
    if world.kind and errno.ENOSPC not in world.trouble:
        world.say("no room")
        world.faulty = True
        world.no_room()


@STEPS.row(3)
def room(world: World, numbers: Numbers) -> None:
    """Room again."""
    if world.kind:
        world.say("room again")
        world.room()


SHUTDOWN: Final = 0x8004587D
"""EXT4_IOC_SHUTDOWN, and that of xfs: nothing reaches the disk from then on."""

NO_FLUSH: Final = 2


@STEPS.row(4)
def power_cut(world: World, numbers: Numbers) -> None:
    """The disk stops, the daemon with it, and what was not on the disk is gone."""
    if world.image is None:
        return
    world.say("power cut")
    descriptor = os.open(world.served.backing, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("I", NO_FLUSH))
    finally:
        os.close(descriptor)
    world.served.kill()
    world.bury()
    world.cut = True
    world.oracle.power_cut()
    world.positions.clear()
    world.listed.clear()
    for model in world.models.values():
        model.power_cut()
    world.umount_disk()
    world.mount_disk()
    world.faulty = True


@STEPS.row(2)
def clock(world: World, numbers: Numbers) -> None:
    """The clock is set, forward or back, as the daemon sees it."""
    later = numbers.pick((60_000, -60_000, 3_600_000, -3_600_000, 86_400_000))
    world.say(f"the clock is set by {later} ms")
    world.steer("set_clock", later)


@STEPS.row(4)
def call_fails(world: World, numbers: Numbers) -> None:
    """The n-th system call from now on that changes the backing directory ends the daemon, before it or in its middle,
    or fails once, or for good."""
    if world.is_limited:
        return
    kind = numbers.pick(("die", "torn", "die", "EIO", "ENOSPC", "short"))
    number = numbers.below(25)
    world.say(f"call {number} from now on: {kind}")
    world.faulty = True
    world.armed |= kind in ("die", "torn")
    world.steer("break_call", number, kind)
    if kind in ("EIO", "ENOSPC"):
        world.trouble |= {errno.EIO, getattr(errno, kind)}
        world.lacks_room |= kind == "ENOSPC"


MADE_ANEW: Final = (
    "logs/*/*.index",
    "logs/*/*.timeindex",
    "logs/*/*.snapshot",
    "logs/*/leader-epoch-checkpoint",
    "views/*/*",
)


@STEPS.row(2)
def damage(world: World, numbers: Numbers) -> None:
    """Indexes, snapshots of producers, leader epochs, and what is kept under `views`, are damaged between two mounts:
    they are made anew, and no answer changes."""
    lines_kept(world)
    world.stop()
    backing = world.served.backing
    files = sorted(file for pattern in MADE_ANEW for file in backing.glob(pattern))
    if not files:
        return
    file = numbers.pick(files)
    world.say(f"{file.relative_to(backing)} is damaged")
    world.faulty = True
    # A full disk has no room for damage.
    with suppress(OSError):
        damage_file(world, file, numbers)


def damage_file(world: World, file: Path, numbers: Numbers) -> None:
    """Change a file in some way."""
    how = numbers.pick(("flipped", "cut", "emptied", "removed", "longer"))
    world.say(f"… {how}")
    if file.suffix == ".snapshot" or file.is_relative_to(world.served.backing / "views"):
        world.unnoticed.add(f"{file}: ")
    elif how == "flipped":
        world.unnoticed.add(f"{file}, entry ")
    elif how == "longer":
        # They are left out by whoever reads the index.
        world.unnoticed.add(f"{file}: expected an index of a sealed segment without zeros at its end")
    if file.suffix in (".index", ".timeindex"):
        world.damage.vague.add(file.with_suffix(".index"))
    size = file.stat().st_size
    if how == "flipped":
        data = bytearray(file.read_bytes())
        if data:
            data[numbers.below(size)] ^= 1 << numbers.below(8)
        file.write_bytes(data)
    elif how == "cut":
        os.truncate(file, numbers.below(size + 1))
    elif how == "emptied":
        os.truncate(file, 0)
    elif how == "longer":
        with file.open("ab") as longer:
            longer.write(bytes(numbers.below(40)))
    else:
        file.unlink()


@STEPS.row(2)
def damage_mounted(world: World, numbers: Numbers) -> None:
    """So while it is mounted, of sealed segments and what is under `views`: no answer changes."""
    backing = world.served.backing
    actives = {file.parent: file.stem for file in sorted(backing.glob("logs/*/*.log"))}
    files = [
        file
        for pattern in ("logs/*/*.index", "logs/*/*.timeindex", "views/*/*")
        for file in sorted(backing.glob(pattern))
        if file.is_file() and file.stem != actives.get(file.parent)
    ]
    if not files:
        return
    file = numbers.pick(files)
    world.say(f"{file.relative_to(backing)} is damaged while it is mounted")
    world.faulty = True
    # It may be compacted or removed in this moment.
    with suppress(OSError):
        damage_file(world, file, numbers)


@STEPS.row(1.5)
def damage_log(world: World, numbers: Numbers) -> None:
    """Records are damaged between two mounts, behind an end in order or behind `kill -9`. Without a recovery they are
    EIO, and all beside them is there; a recovery may cut the log there, and says so."""
    if numbers.below(2):
        kill(world, numbers)
    else:
        lines_kept(world)
        world.stop()
    damaged_logs.hurt(world, numbers)


@STEPS.row(1.5)
def damage_log_mounted(world: World, numbers: Numbers) -> None:
    """So while it is mounted, in segments that are sealed or grow."""
    damaged_logs.hurt(world, numbers)


@STEPS.row(1)
def load(world: World, numbers: Numbers) -> None:
    """Other programs want the processors, from now on or no more."""
    world.say("no load" if world.load else "load")
    world.load_or_not()


@STEPS.row(1)
def memory(world: World, numbers: Numbers) -> None:
    """The daemon may have little more memory than it has, or as much as it wants again. Meanwhile calls may fail, or it
    dies; nothing that was acknowledged is lost, and when there is memory it goes on."""
    if world.is_limited:
        world.much_memory()
    elif not world.trouble:
        world.little_memory()


@STEPS.row(1)
def few_descriptors(world: World, numbers: Numbers) -> None:
    """The next daemons may have 320 files open, or as many as before."""
    world.served.prefix = () if world.served.prefix else ("prlimit", "--nofile=320:320")
    world.say(f"{world.served.prefix or 'no limit'} for the next daemons")
