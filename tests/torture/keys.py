"""Keys of a compacted topic as files: names that need `%`, values that are added to, expected offsets, and several who
change one value at once."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import threading
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from daemon_mount import append, opened
from details import fails_with, first_of
from known_keys import ANY, LONG, NAMES, PARTITIONS, TOPIC, Keys, Value, home
from oracle import State, promise
from rows import Numbers, Table
from world import World
from writing import ending, said_errno

STEPS: Final = Table()
LARGE: Final = 1200
LIMIT_S: Final = 120.0


def keys_of(world: World) -> Keys | None:
    """The topic's, which is made where it is not there; None where that fails."""
    known = world.models.setdefault(TOPIC, Keys())
    assert isinstance(known, Keys)
    return known if known.make(world) else None


@dataclass
class Change:
    """One change of a key.

    at      the key's file
    number  of the partition
    before  what the key is
    offset  of its last record; "none" without one
    token   a part of a value that nothing has had
    noted   what it may have become
    known   what is known of the key
    safe    whether it is on the disk when all has done well
    """

    world: World
    at: Path
    number: int
    key: bytes
    before: bytes | None
    offset: str
    token: bytes
    noted: list[bytes | None]
    known: Value
    safe: bool = False

    def note(self, value: bytes | None) -> bytes:
        """Say what the key may be from now on."""
        self.known.history.append((value, State.UNKNOWN))
        self.noted.append(value)
        return value or b""


How = Callable[[Change], None]
HOWS: Final[dict[str, How]] = {}


def how(function: How) -> How:
    """Put a function into the table: it changes a key, or tries what has to be refused."""
    HOWS[function.__name__] = function
    return function


def added(change: Change) -> bytes:
    """A value that begins with the one before, where that is short enough."""
    return (change.before or b"") + change.token


@how
def set_it(change: Change) -> None:
    """As `>` does it."""
    change.at.write_bytes(change.note(change.token))


@how
def add(change: Change) -> None:
    """As `>>` does it."""
    if len(added(change)) > 300:
        set_it(change)
        return
    change.note(added(change))
    with opened(change.at, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
        os.write(file, change.token)


@how
def expect(change: Change) -> None:
    """Only if its last record is the one that was read."""
    change.at.with_name(f"{change.at.name}%@{change.offset}").write_bytes(change.note(change.token))


@how
def expect_another(change: Change) -> None:
    """Only if its last record is one that it is not."""
    other = "none" if change.offset != "none" else "0"
    file = change.at.with_name(f"{change.at.name}%@{other}")
    # A name with a hash is not found under another offset, and none with a hash can be made (V6).
    number = errno.EINVAL if change.key == LONG else errno.ECANCELED
    words = fails_with(number, file.write_bytes, change.token)
    promise("V9", expected(change, words), f"{words}, the key's last offset is {change.offset}")
    words = fails_with(errno.ENOENT, file.read_bytes)
    promise("V9", expected(change, words), f"{words}, the key's last offset is {change.offset}")


def expected(change: Change, words: str | None) -> bool:
    """Whether a refusal was the right one; in trouble it may be another."""
    return words is None or (" did well" not in words and bool(change.world.trouble or change.world.may_die))


@how
def remove(change: Change) -> None:
    """As rm does it."""
    if change.before is not None:
        change.note(None)
        change.at.unlink()
    else:
        words = fails_with(errno.ENOENT, os.unlink, change.at)
        promise("V3", expected(change, words), f"{words}")


@how
def remove_expected(change: Change) -> None:
    """Only if its last record is the one that was read."""
    if change.before is not None:
        change.note(None)
        change.at.with_name(f"{change.at.name}%@{change.offset}").unlink()


@how
def exclusive(change: Change) -> None:
    """Only if there is none."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    if change.before is None:
        change.note(change.token)
        with opened(change.at, flags) as file:
            os.write(file, change.token)
    else:
        words = fails_with(errno.EEXIST, os.open, change.at, flags)
        promise("V9", expected(change, words), f"{words}")


@how
def onto_the_disk(change: Change) -> None:
    """fsync sets it too."""
    change.note(change.token)
    with opened(change.at, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
        os.write(file, change.token)
        os.fsync(file)
    change.safe = True


@how
def line(change: Change) -> None:
    """By a line that is appended to the partition."""
    told: dict[str, str] = {"value": change.note(change.token).decode()}
    try:
        told["key"] = change.key.decode()
    except UnicodeDecodeError:
        told["key_base64"] = b64encode(change.key).decode()
    append(change.world.served / f"{TOPIC}-{change.number}/log.jsonl", json.dumps(told).encode() + b"\n")


@how
def touch(change: Change) -> None:
    """`touch` sets a key that is not there to an empty value, and changes nothing of another."""
    if change.before is None:
        change.note(b"")
    subprocess.run(["touch", "-d", "2020-01-01", change.at], check=False, capture_output=True)
    with suppress(FileNotFoundError):
        os.chmod(change.at, 0o600)
        return
    # touch(1) tells in words why it has failed, and so does this.
    change.at.touch()


@how
def copy(change: Change) -> None:
    """`cp -a`, which sets the mode, the owner and the time behind it."""
    source = change.world.place / "source"
    source.write_bytes(change.note(change.token))
    done = subprocess.run(["cp", "-a", source, change.at], check=False, capture_output=True)
    if done.returncode:
        raise OSError(said_errno(done.stderr), f"cp says {done.stderr.decode()}")


@how
def shorten(change: Change) -> None:
    """Cut, and written behind that."""
    if change.before is None:
        return
    change.note(change.before[:3] + change.token)
    with opened(change.at, os.O_WRONLY) as file:
        os.ftruncate(file, 3 if len(change.before) > 3 else len(change.before))
        os.pwrite(file, change.token, len(change.before[:3]))


@how
def duplicate(change: Change) -> None:
    """Through two descriptors of one open file: the close of each sets what has come so far."""
    first, rest = change.token[: len(change.token) // 2], change.token[len(change.token) // 2 :]
    change.note(first)
    one = os.open(change.at, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        other = os.dup(one)
        try:
            os.write(one, first)
        finally:
            os.close(other)
        change.note(change.token)
        os.write(one, rest)
    finally:
        os.close(one)


@how
def too_large(change: Change) -> None:
    """A value that is too large is refused, and what comes behind it, until the file is cut to nothing."""
    anew = len(change.token) % 2
    file = os.open(change.at, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        for data in (bytes(LARGE), b"x"):
            words = fails_with(errno.EMSGSIZE, os.write, file, data)
            promise("V13", expected(change, words), f"{words}")
        if anew:
            change.note(change.token)
            os.ftruncate(file, 0)
            os.write(file, change.token)
    except OSError:
        with suppress(OSError):
            os.close(file)
        raise
    if anew:
        os.close(file)
        return
    words = fails_with(errno.EMSGSIZE, os.close, file)
    promise("V13", expected(change, words), f"{words}")


def file_of(directory: Path, key: bytes) -> Path:
    """Where a key is, or would be."""
    if key != LONG:
        return directory / "keys" / NAMES[key]
    found = [name for name in os.listdir(directory / "keys/") if "%~" in name]
    return directory / "keys" / (found[0] if found else "%~")


def read(file: Path) -> tuple[bytes | None, str]:
    """A key's value and the offset of its last record; None where it is not there."""
    try:
        with opened(file) as descriptor:
            return os.read(descriptor, 10_000), os.getxattr(descriptor, "user.topicfs.offset").decode()
    except FileNotFoundError:
        return None, "none"


@STEPS.row(4)
def change_keys(world: World, numbers: Numbers) -> None:
    """Three keys are changed, each in some manner, in a partition or in the topic."""
    known = keys_of(world)
    for _ in range(3):
        choice, key = numbers.below(PARTITIONS + 1), numbers.pick(list(NAMES))
        manner, length = numbers.pick(list(HOWS)), numbers.below(100)
        if known is None or not world.alive:
            return
        number = home(key) if choice == PARTITIONS else choice
        directory = world.served / (f"topics/{TOPIC}" if choice == PARTITIONS else f"{TOPIC}-{number}")
        value = known.value(number, key)
        token = world.name("v").encode() + b"." * length + b" "
        world.say(f"{manner} {key[:9]!r} in {directory.name}, {token[:9]!r} of {len(token)} bytes")
        with world.attempt(()) as failed:
            file = file_of(directory, key)
            before, offset = read(file)
        if failed:
            return
        value.seen(before, f"{file.name} in {directory.name}")
        if key == LONG and before is None:
            # It is made by a line only.
            manner = "line"
        change = Change(world, file, number, key, before, offset, token, [], value)
        with world.attempt(()) as failed:
            HOWS[manner](change)
        # An empty value is set by the last close, of which the kernel tells a moment later.
        settle(known, change, failed, not world.alive or (change.noted[-1:] == [b""] and world.may_die))
        if not failed and world.alive:
            told(world, change)


def settle(known: Keys, change: Change, failed: list[int], dead: bool) -> None:
    """A change was answered. Of two that belong together the first may be there though the second is not."""
    if len(change.noted) > 1 and failed:
        return
    if change.noted:
        if failed and not dead and errno.EIO not in failed and change.noted[0]:
            known.refused.add(change.noted[0])
        kept = State.UNKNOWN if dead else State.KEPT
        change.known.answered(failed, dead, State.SAFE if change.safe else kept)


def told(world: World, change: Change) -> None:
    """After close a key's file has the new value."""
    with world.attempt(()):
        after, offset = read(file_of(change.at.parent.parent, change.key))
        change.known.seen(after, f"{change.at.name} right after it was set")
        if not change.noted:
            promise("V9", offset == change.offset, f"{change.at} was at {change.offset}, is at {offset}")


@STEPS.row(2)
def keys_together(world: World, numbers: Numbers) -> None:
    """Several add words to one value without a lock, each only to what it has read; in some rows the daemon is killed
    or stopped meanwhile. Every word that was acknowledged is in it once."""
    fault, after = numbers.pick(("", "kill", "pause", "term")), numbers.below(60) / 1000
    number, key = numbers.below(PARTITIONS), numbers.pick(list(NAMES)[:-1])
    known = keys_of(world)
    if known is None or world.trouble:
        return
    file, value = world.served / f"{TOPIC}-{number}/keys" / NAMES[key], known.value(number, key)
    begun = world.name("w").encode() + b" "
    with world.attempt(()) as failed:
        value.history.append((begun, State.UNKNOWN))
        file.write_bytes(begun)
    if failed:
        return
    value.history[-1:] = [(begun, State.KEPT), (ANY, State.UNKNOWN)]
    words = [[world.name("w").encode() for _ in range(6)] for _ in range(3)]
    world.say(f"three add {words[0][0].decode()}… to {key!r} of {TOPIC}-{number} {fault}")
    kept = [begun.strip()]
    errors: list[OSError] = []
    threads = [threading.Thread(target=add_words, args=(file, mine, kept, errors)) for mine in words]
    for thread in threads:
        thread.start()
    ending(world, fault, after)
    for thread in threads:
        thread.join(LIMIT_S)
        promise("B4", not thread.is_alive(), "who changes a key hangs")
    value.tokens = set(kept), {*kept, *(word for mine in words for word in mine)}
    if fault in ("kill", "term"):
        world.bury()
        return
    for error in errors:
        if world.alive:
            with world.attempt(()):
                raise error
    if not world.alive:
        return
    with world.attempt(()):
        value.seen(file.read_bytes(), f"{key!r} in {TOPIC}-{number}")


def add_words(file: Path, words: list[bytes], kept: list[bytes], errors: list[OSError]) -> None:
    """Add words to a value that others change too: where it was not what was read, begin again."""
    for word in words:
        while True:
            try:
                before, offset = read(file)
                file.with_name(f"{file.name}%@{offset}").write_bytes((before or b"") + word + b" ")
            except OSError as error:
                if error.errno == errno.ECANCELED:
                    continue
                errors.append(error)
                return
            kept.append(word)
            break


@STEPS.row(1)
def key_in_transaction(world: World, numbers: Numbers) -> None:
    """A transaction sets a key while somebody adds to it, who waits for nothing longer than for the commit."""
    number, key, after = numbers.below(PARTITIONS), numbers.pick(list(NAMES)[:2]), numbers.below(20) / 1000
    known = keys_of(world)
    if known is None or world.trouble or world.may_die:
        return
    file, value = world.served / f"{TOPIC}-{number}/keys" / NAMES[key], known.value(number, key)
    base, mine, other = (world.name("t").encode() + b" " for _ in range(3))
    world.say(f"a transaction sets {key!r} of {TOPIC}-{number} to {other!r}, and {mine!r} is added")
    directory = world.served / "transactions" / world.name("k")
    # The order in which the two come is anybody's: after a power cut it is any of them.
    value.history.append((ANY, State.UNKNOWN))
    value.history += [(each, State.UNKNOWN) for each in (base, other, base + mine, other + mine)]
    file.write_bytes(base)
    directory.mkdir()
    told = json.dumps({"key": key.decode(), "value": other.decode()})
    (directory / f"{TOPIC}-{number}.jsonl").write_text(told)
    errors: list[OSError] = []

    def commit() -> None:
        try:
            directory.rename(directory.with_name(f"{directory.name}.commit"))
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    ending(world, "", after)
    append(file, mine)
    thread.join(LIMIT_S)
    promise("J2", not errors and not thread.is_alive(), f"the commit of {directory.name}: {errors}")
    found = file.read_bytes()
    options = (other, other + mine, base + mine)
    promise("V10", found in options, f"{file} is {found!r}: set to {other!r}, {mine!r} added")
    value.seen(found, f"{key!r} in {TOPIC}-{number}")


BAD_NAMES: Final = (
    (".a.swp", errno.EPERM),
    ("_a", errno.EPERM),
    ("50%", errno.EINVAL),
    ("a%@x", errno.EINVAL),
)


@STEPS.row(2)
def look_at_keys(world: World, numbers: Numbers) -> None:
    """Small promises of keys: names that are refused, attributes, the topic's keys, and what changes nothing."""
    known, number = keys_of(world), numbers.below(PARTITIONS)
    if known is None or world.trouble or world.may_die:
        return
    at = world.served / f"{TOPIC}-{number}"
    world.say(f"look at the keys of {at.name}")
    name, wanted = numbers.pick(BAD_NAMES)
    words = fails_with(wanted, (at / "keys" / name).write_bytes, b"x")
    promise("V7", words is None, f"{words}")
    listed = os.listdir(at / "keys/")
    newest = [json.loads(text) for text in (at / "log.jsonl").read_bytes().splitlines()]
    offsets = []
    for name in listed:
        file = at / "keys" / name
        offset = int(os.getxattr(file, "user.topicfs.offset"))
        record = next(each for each in newest if each["offset"] == offset)
        own = record["timestamp"] * 1_000_000, number
        told = file.stat().st_mtime_ns, int(os.getxattr(file, "user.topicfs.partition"))
        promise("V8", own == told, f"{file} has the time and partition {told}, its record {own}")
        offsets.append(offset)
    promise("V11", offsets == sorted(offsets), f"{at}/keys lists offsets {offsets}")
    if listed:
        file = at / "keys" / numbers.pick(listed)
        before = file.stat()
        os.chmod(file, 0o600)
        os.utime(file, (1, 1))
        promise("V17", file.stat() == before, f"{file} was {before}, is {file.stat()}")
        refusals = [
            fails_with(errno.EPERM, os.rename, file, at / "keys/other"),
            fails_with(errno.EPERM, os.link, file, at / "keys/other"),
            fails_with(errno.EPERM, os.mkdir, at / "keys/directory"),
        ]
        promise("V7", first_of(*refusals) is None, f"{first_of(*refusals)}")
    keys = [
        os.getxattr(world.served / f"{TOPIC}-{each}/keys" / name, "user.topicfs.key")
        for each in range(PARTITIONS)
        for name in os.listdir(world.served / f"{TOPIC}-{each}/keys/")
        if each == home(os.getxattr(world.served / f"{TOPIC}-{each}/keys" / name, "user.topicfs.key"))
    ]
    there = world.served / f"topics/{TOPIC}/keys"
    found = [os.getxattr(there / name, "user.topicfs.key") for name in os.listdir(f"{there}/")]
    promise("V12", sorted(found) == sorted(keys), f"{there} has {found}, the partitions {keys}")


@STEPS.row(2)
def hold_key(world: World, numbers: Numbers) -> None:
    """A key's file that is open keeps the value that it was opened on, and its attributes, whatever is set and
    compacted meanwhile."""
    known, number, key = keys_of(world), numbers.below(PARTITIONS), numbers.pick(list(NAMES)[:-1])
    if known is None or len(world.readers) >= 4:
        return
    file = world.served / f"{TOPIC}-{number}/keys" / NAMES[key]
    with world.attempt((), errno.ENOENT):
        descriptor = os.open(file, os.O_RDONLY)
        before = [os.pread(descriptor, 1000, 0), os.getxattr(descriptor, "user.topicfs.offset")]
        world.say(f"hold {key!r} of {TOPIC}-{number}, which is {before}")

        def look() -> None:
            try:
                if world.alive:
                    after = [os.pread(descriptor, 1000, 0), os.getxattr(descriptor, "user.topicfs.offset")]
                    promise("V4", after == before, f"{file} was opened on {before}, and has {after}")
            finally:
                os.close(descriptor)

        world.readers.append(look)
