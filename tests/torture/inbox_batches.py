"""Batches of inboxes: in every format, of several topics, committed again under their names, refused and mended, left
alone, and copied. Their lines are those of the topics that everybody looks at."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import subprocess
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from daemon_mount import opened
from details import fails_with
from inboxes import arrow, parquet
from oracle import Line, State, promise
from rows import Numbers, Table
from together import whole
from world import World

STEPS: Final = Table()
FORMATS: Final = ("jsonl", "tsv", "parquet", "json", "arrow", "tsv.gz", "txt", "jsonl.gz", "txt.gz")
JOB: Final = uuid.UUID(int=7)
KNOWN: Final = 12
"""Batches that are remembered, to be committed again."""

TOGETHER: Final = ("plain", "rows", "again")
"""Topics of which retention and compaction take nothing before somebody looks."""


@dataclass
class Batch:
    """A batch that was committed, or may be.

    topic        and its incarnation
    name         in the inbox
    lines        that it has
    others       batches of the same name, of other topics, that are committed with it
    """

    topic: str
    incarnation: str
    name: str
    lines: list[Line]
    others: list[Batch] = field(default_factory=list)

    def directory(self, world: World) -> Path:
        """Where its files are."""
        return world.served / "topics" / self.topic / "inbox" / self.name


class Batches:
    """The batches of a run.

    known   those that were committed, or may be, the newest last
    staged  files that are not committed, with their bytes
    """

    def __init__(self) -> None:
        self.known: list[Batch] = []
        self.staged: dict[Path, tuple[Batch, bytes]] = {}

    def look(self, world: World) -> None:
        """What is not committed is there as it was."""
        self.known = [
            each
            for each in self.known
            if all(part.incarnation == world.incarnation(part.topic) for part in (each, *each.others))
        ]
        for file, (batch, data) in list(self.staged.items()):
            if batch.incarnation != world.incarnation(batch.topic):
                del self.staged[file]
                continue
            with world.attempt(()):
                found = file.read_bytes() if file.exists() else None
                promise("I15", found == data, f"{file} is {found!r}, and was left as {data!r}")

    def power_cut(self) -> None:
        """What is not committed was not brought onto the disk."""
        self.staged.clear()


def batches_of(world: World) -> Batches:
    """The batches of a run."""
    known = world.models.setdefault("batches", Batches())
    assert isinstance(known, Batches)
    return known


def encoded(lines: Sequence[Line], form: str) -> bytes:
    """A file of lines in a format."""
    kind, _, packed = form.partition(".")
    if kind in ("parquet", "arrow"):
        keys = [None if line.key is None else line.key.encode() for line in lines]
        values = [line.value for line in lines]
        return (
            parquet(key=binary(keys), value=binary(values))
            if kind == "parquet"
            else arrow(key=binary(keys), value=binary(values))
        )
    data = b"".join(line.encoded("jsonl" if kind == "json" else kind) for line in lines)
    # A last line needs no newline.
    data = data.removesuffix(b"\n") if kind != "txt" else data
    return gzip.compress(data) if packed else data


def binary(values: Sequence[bytes | None]) -> object:
    """A column of bytes, of which all may be null."""
    import pyarrow as pa  # noqa: PLC0415

    return pa.array(values, pa.binary())


def forms(lines: Sequence[Line]) -> list[str]:
    """The formats that can tell these lines."""
    return [form for form in FORMATS if not form.startswith("txt") or all(line.key is None for line in lines)]


def write_files(directory: Path, lines: Sequence[Line], numbers: Numbers) -> list[Path]:
    """Put lines into a batch's directory, in files of some formats, in some order."""
    os.makedirs(directory, exist_ok=True)
    files = []
    step = numbers.pick((1, 2, 9))
    mixed = list(lines) if numbers.below(2) else list(reversed(lines))
    for partition in {line.partition for line in mixed}:
        place = directory if partition is None else directory / f"partition={partition}"
        os.makedirs(place, exist_ok=True)
        mine = [line for line in mixed if line.partition == partition]
        for at in range(0, len(mine), step):
            some = mine[at : at + step]
            form = numbers.pick(forms(some))
            files.append(place / f"part-{at:05}-{JOB}-c000.{form}")
            files[-1].write_bytes(encoded(some, form))
    return files


def succeed(directory: Path) -> None:
    """Make `_SUCCESS`, or touch it."""
    os.close(os.open(directory / "_SUCCESS", os.O_WRONLY | os.O_CREAT))


def clear(world: World, batch: Batch) -> None:
    """Remove what a batch has not committed."""
    if not world.alive:
        return
    with world.attempt(()), suppress(FileNotFoundError):
        shutil.rmtree(batch.directory(world))


def new_batch(world: World, numbers: Numbers, topics: Sequence[str] = ()) -> Batch:
    """A batch of new lines, for a topic or one of its partitions."""
    topic, partition, kind = world.where(numbers, *((topics,) if topics else ()))
    lines = whole(world, numbers, topic, partition, kind if topic == "table" else "jsonl")
    return Batch(topic, world.incarnation(topic), world.name("q"), lines)


def wanted(world: World, batch: Batch) -> list[Line]:
    """The lines of a batch that are not known to be there: they come when it is committed again."""
    return [
        line
        for line in batch.lines
        if line.state not in (State.KEPT, State.SAFE) and not world.oracle.is_placed(line)
    ]


def commit(world: World, batch: Batch, *expected: int) -> bool:
    """Commit a batch and those that belong to it; whether that did well."""
    every = [batch, *batch.others]
    lines = [line for each in every for line in wanted(world, each)]
    world.late |= bool(world.trouble)
    world.accepted(lines)
    for line in lines:
        line.state = State.PENDING
    if len({each.topic for each in every if wanted(world, each)} & set(TOGETHER)) > 1:
        world.oracle.together.append(("I26", [line for line in lines if is_watched(line)]))
    # What a transaction was to be read back from may be damaged.
    damaged = () if all(world.are_sound(each.topic) for each in every) else (errno.EIO,)
    with world.attempt(lines, *expected, *damaged) as failed:
        succeed(batch.directory(world))
    known = batches_of(world).known
    if batch not in known:
        known.append(batch)
        del known[:-KNOWN]
    if failed:
        return False
    world.oracle.acknowledge((line for each in every for line in each.lines), State.SAFE)
    return True


def is_watched(line: Line) -> bool:
    """Whether somebody looks at it before it goes."""
    return line.topic.partition("#")[0] in TOGETHER


def check_count(world: World, batch: Batch) -> None:
    """The inbox tells how many records were committed under a name."""
    with world.attempt((), errno.ENOENT):
        inbox = batch.directory(world).parent
        told = os.getxattr(inbox, f"user.topicfs.committed.{batch.name}")
        count = b"%d" % len(batch.lines)
        promise("I25", told == count, f"{batch.name} of {batch.topic} had {told!r} records, not {count!r}")


def told_to(world: World, batch: Batch, words: str) -> str | None:
    """None where the refusal's words are in `status.json`."""
    reason = world.served.status(world.served / f"{batch.topic}-0")["last_refusal"]
    told = "" if reason is None else reason["reason"]
    return None if words in told else f"last_refusal of {batch.topic}-0 is {told!r}, expected {words!r}"


@STEPS.row(4)
def batch_of_files(world: World, numbers: Numbers) -> None:
    """A batch in files of several formats, in `partition=<n>` or not."""
    batch = new_batch(world, numbers)
    world.say(f"batch {batch.name} of {batch.topic} with lines {batch.lines[0].number}…, {len(batch.lines)}")
    with world.attempt(batch.lines) as failed:
        write_files(batch.directory(world), batch.lines, numbers)
    if failed:
        clear(world, batch)
    elif commit(world, batch):
        check_count(world, batch)
        with world.attempt(()):
            left = [name for name in os.listdir(batch.directory(world).parent) if name == batch.name]
            promise("I10", not left, f"{batch.name} is listed, though it was committed")


@STEPS.row(5)
def batch_again(world: World, numbers: Numbers) -> None:
    """A batch that was committed, or of which nobody has heard whether it was, comes again under its name: in other
    formats and another order, or with other records, or empty."""
    known = batches_of(world).known
    # What meets a full disk may show at the next start only, in the place that it has already.
    if not known or world.late:
        return
    batch, how = numbers.pick(known[::-1]), numbers.pick(("again", "again", "other", "moved"))
    lines = batch.lines
    sure = all(line.state in (State.KEPT, State.SAFE) and world.oracle.is_placed(line) for line in lines)
    if how == "other" and sure:
        other = world.oracle.line(
            batch.incarnation, lines[0].partition, lines[0].key, 20, world.oracle.writer()
        )
        lines = [*lines[1:], other]
        world.oracle.refuse([other])
    world.say(f"{batch.name} of {batch.topic} comes again, {how}, {'it is there' if sure else 'unknown'}")
    directory = batch.directory(world)
    with world.attempt(()) as failed:
        for each in [batch, *batch.others]:
            some = lines if each is batch else each.lines
            place = each.directory(world)
            if place.exists():
                shutil.rmtree(place)
            if how == "moved" and each is batch:
                hidden = place.with_name(f".{world.name('w')}")
                write_files(hidden, some, numbers)
                hidden.rename(place)
            else:
                write_files(place, some, numbers)
        if batch.others:
            (directory / "_topics").write_text("".join(f"{each.topic}\n" for each in batch.others))
    if failed:
        clear(world, batch)
        return
    if lines is not batch.lines:
        with world.attempt(()):
            words = fails_with(errno.EEXIST, succeed, directory)
            excused = world.died() or world.trouble
            promise("I16", words is None or (excused and "did well" not in words), f"{words}")
            if words is None:
                told = told_to(world, batch, "was committed before with other records")
                promise("I16", told is None, f"{told}")
                left = [name for _, _, names in os.walk(directory) for name in names]
                promise("I16", left, f"the files of {batch.name} are gone, though it was refused")
        if world.alive:
            clear(world, batch)
    elif commit(world, batch):
        check_count(world, batch)


@STEPS.row(4)
def batches_together(world: World, numbers: Numbers) -> None:
    """Batches of several topics, all or none."""
    topics = [topic for topic in TOGETHER if world.counts[topic]]
    first = new_batch(world, numbers, topics)
    for topic in topics:
        if topic != first.topic and numbers.below(3):
            lines = whole(world, Numbers((1,)), topic, None, "jsonl")
            first.others.append(Batch(topic, world.incarnation(topic), first.name, lines))
    every = [first, *first.others]
    lines = [line for each in every for line in each.lines]
    world.say(f"{first.name} of {[each.topic for each in every]}, lines {lines[0].number}…, {len(lines)}")
    early = numbers.below(3) == 1
    with world.attempt(lines) as failed:
        for each in every:
            write_files(each.directory(world), each.lines, numbers)
        (first.directory(world) / "_topics").write_text("".join(f"{each.topic}\n" for each in first.others))
    if failed:
        for each in every:
            clear(world, each)
        return
    if first.others and early:
        # One that a topic has committed before is left out.
        alone = Batch(first.others[0].topic, first.others[0].incarnation, first.name, first.others[0].lines)
        world.say(f"… that of {alone.topic} before")
        if not commit(world, alone):
            world.oracle.refuse([line for each in every for line in each.lines])
            return
    if commit(world, first):
        for each in every:
            check_count(world, each)


BAD: Final = (
    ("x.jsonl", b'{"value":7}\n', errno.EINVAL),
    ("x.tsv", b"no tab\n", errno.EINVAL),
    ("x.txt.gz", b"not gzip at all", errno.EINVAL),
    ("x.jsonl", b'{"key":"k","value":"x","partition":77}\n', errno.EINVAL),
    ("x.parquet", b"PAR1 but no more", errno.EINVAL),
    ("x.arrow", b"ARROW1\0\0 but no more", errno.EINVAL),
)


@STEPS.row(3)
def bad_batch(world: World, numbers: Numbers) -> None:
    """A batch with a bad line is refused, and committed when it is mended. Here the daemon may not die."""
    batch = new_batch(world, numbers, [topic for topic in TOGETHER if world.counts[topic]])
    if world.trouble or world.may_die:
        return
    name, data, number = numbers.pick(BAD)
    if any(line.length >= 200 for line in batch.lines):
        world.oracle.refuse(batch.lines)
        return
    directory = batch.directory(world)
    world.say(f"{batch.name} of {batch.topic} with {data!r}, and mended")
    world.oracle.refuse(batch.lines)
    with world.attempt(batch.lines) as failed:
        files = write_files(directory, batch.lines, numbers)
        (directory / name).write_bytes(data)
        words = fails_with(number, succeed, directory)
        promise("I8", words is None or world.died() or world.trouble, f"{name} with {data!r}: {words}")
        if words is None:
            told = told_to(world, batch, f"{batch.name}/{name}")
            promise("I8", told is None or world.trouble, f"{told}")
            gone = [file for file in (*files, directory / name) if not file.exists()]
            promise("I8", not gone, f"{gone} are gone, though {batch.name} was refused")
            (directory / name).unlink()
    if not failed and world.alive:
        commit(world, batch)


@STEPS.row(2)
def batch_in_use(world: World, numbers: Numbers) -> None:
    """A file that is open for writing is not appended: EBUSY, and nothing of its batch."""
    batch = new_batch(world, numbers, [topic for topic in TOGETHER if world.counts[topic]])
    if world.trouble or world.may_die:
        return
    world.say(f"{batch.name} of {batch.topic} is committed while a file of it is open")
    world.oracle.refuse(batch.lines)
    with world.attempt(batch.lines) as failed:
        file = numbers.pick(write_files(batch.directory(world), batch.lines, numbers))
        with opened(file, numbers.pick((os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND))):
            words = fails_with(errno.EBUSY, succeed, batch.directory(world))
            promise("I18", words is None or world.trouble, f"{words}")
    if not failed and world.alive:
        commit(world, batch)


@STEPS.row(2)
def batch_left_alone(world: World, numbers: Numbers) -> None:
    """What is not committed stays, with changes of it as on any disk, and is committed later."""
    batches = batches_of(world)
    if batches.staged and numbers.below(2):
        batch = next(iter(batches.staged.values()))[0]
        world.say(f"commit {batch.name} of {batch.topic}, which was left alone")
        batches.staged = {file: each for file, each in batches.staged.items() if each[0] is not batch}
        commit(world, batch)
        return
    batch = new_batch(world, numbers)
    world.say(f"leave {batch.name} of {batch.topic} alone")
    world.oracle.refuse(batch.lines)
    directory = batch.directory(world)
    with world.attempt(batch.lines) as failed:
        work = directory.with_name(f"_{world.name('w')}")
        work.mkdir()
        (work / "x.txt").write_bytes(bytes(3000))
        with opened(work / "x.txt", os.O_RDWR) as file:
            os.pwrite(file, b"more", 1000)
            os.ftruncate(file, 7)
        # What lies in BACKING may not be dated before others by the fault at hand.
        promise("I9", (work / "x.txt").read_bytes() == bytes(7), f"{work}/x.txt was cut to 7 bytes")
        (work / "x.txt").rename(work / "y.txt")
        promise("I9", os.listdir(work) == ["y.txt"], f"{work} has {os.listdir(work)}")
        words = fails_with(errno.ENOTEMPTY, work.rmdir)
        promise("I9", words is None or world.trouble or world.may_die, f"{words}")
        (work / "y.txt").unlink()
        write_files(work, batch.lines, numbers)
        work.rename(directory)
    if failed:
        clear(world, batch)
        return
    for file in sorted(directory.rglob("*")):
        if file.is_file():
            batches.staged[file] = batch, file.read_bytes()


@STEPS.row(2)
def copied_columns(world: World, numbers: Numbers) -> None:
    """A plain copy of Arrow or Parquet is appended by its close; one of text is refused."""
    batch = new_batch(world, numbers)
    form = numbers.pick(("parquet", "arrow"))
    inbox = batch.directory(world).parent
    source = world.place / f"{batch.name}.{form}"
    world.say(f"cp {source.name} into the inbox of {batch.topic}, lines {batch.lines[0].number}…")
    if any(line.partition is not None for line in batch.lines):
        # A file has no partition of its own.
        world.oracle.refuse(batch.lines)
        return
    source.write_bytes(encoded(batch.lines, form))
    world.accepted(batch.lines)
    world.late |= bool(world.trouble)
    with world.attempt(batch.lines) as failed:
        copy_in(source, inbox / source.name)
    if not failed:
        world.oracle.acknowledge(batch.lines, State.SAFE)
        if numbers.below(2) and not world.late:
            # The same file again: by its name, size, time and content it is known.
            with world.attempt(()):
                subprocess.run(["cp", "-p", source, inbox / source.name], check=False, capture_output=True)
    if not world.alive:
        return
    with world.attempt(()):
        words = fails_with(errno.EPERM, (inbox / f"{batch.name}.txt").write_bytes, b"x\n")
        excused = world.trouble or world.may_die
        promise("I3", words is None or (excused and "did well" not in words), f"{words}")


def copy_in(source: Path, target: Path) -> None:
    """Copy with the times, as `cp -p` does it."""
    file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.write(file, source.read_bytes())
        told = source.stat()
        os.utime(file, ns=(told.st_atime_ns, told.st_mtime_ns))
    except BaseException:
        with suppress(OSError):
            os.close(file)
        raise
    os.close(file)


@STEPS.row(1)
def refused_in_inboxes(world: World, numbers: Numbers) -> None:
    """Names and directories that an inbox does not take, a batch without files, and two jobs at once."""
    topic = numbers.pick([topic for topic in TOGETHER if world.counts[topic]])
    if world.trouble or world.may_die:
        return
    inbox = world.served / "topics" / topic / "inbox"
    batch = inbox / world.name("r")
    world.say(f"what the inbox of {topic} refuses, {batch.name}")
    batch.mkdir()
    for label, number, call, *arguments in (
        ("I4", errno.EINVAL, (batch / "x.csv").write_bytes, b"x"),
        ("I4", errno.EINVAL, (batch / "x.parquet.gz").write_bytes, b"x"),
        ("I14", errno.EPERM, (batch / "_spark_metadata").mkdir),
        ("I14", errno.EINVAL, (batch / "day=1").mkdir),
        ("I14", errno.EPERM, (batch / "sub").mkdir),
        ("I21", errno.ENODATA, succeed, batch),
        ("I9", errno.EBUSY, os.rmdir, inbox),
    ):
        words = fails_with(number, call, *arguments)
        if label == "I9":
            words = None if inbox.is_dir() else "the inbox is gone"
        promise(label, words is None, f"{words}")
    scratch = batch / "_temporary/0"
    scratch.mkdir(parents=True)
    # None of the two can be committed any more.
    jobs = uuid.UUID(int=(world.serial << 64) + 1), uuid.UUID(int=(world.serial << 64) + 2)
    for at, job in enumerate(jobs):
        file = scratch / f"part-0000{at}-{job}-c000.txt"
        words = fails_with(errno.EBUSY, file.write_bytes, b"x\n") if at else None
        if not at:
            file.write_bytes(b"x\n")
        promise("I13", words is None, f"{words}")
    shutil.rmtree(batch)


@STEPS.row(2)
def spark_job(world: World, numbers: Numbers) -> None:
    """A Spark job puts its files into the inbox itself; when it comes again they are known by its name."""
    topic, _, kind = world.where(numbers)
    lines = whole(world, numbers, topic, None, kind if topic == "table" else "jsonl")
    inbox, job = world.served / "topics" / topic / "inbox", uuid.UUID(int=1000 + world.oracle.rank())
    world.say(f"a job puts lines {lines[0].number}…, {len(lines)}, into the inbox of {topic}")
    twice = numbers.below(2)
    with world.attempt(lines) as failed:
        put_parts(inbox, lines, job)
    if failed:
        if world.alive:
            with world.attempt(()):
                tidy(inbox)
        return
    world.accepted(lines)
    world.late |= bool(world.trouble)
    with world.attempt(lines) as failed:
        succeed(inbox)
    if failed:
        if world.alive:
            with world.attempt(()):
                tidy(inbox)
        return
    world.oracle.acknowledge(lines, State.SAFE)
    if twice and not world.late:
        with world.attempt(()) as failed:
            put_parts(inbox, lines, job)
            succeed(inbox)
        if failed and world.alive:
            with world.attempt(()):
                tidy(inbox)


def put_parts(inbox: Path, lines: Sequence[Line], job: uuid.UUID) -> None:
    """What a job writes, as far as `_SUCCESS`."""
    tidy(inbox)
    scratch = inbox / "_temporary/0"
    scratch.mkdir(parents=True)
    for at, line in enumerate(lines):
        name = f"part-{at:05}-{job}-c000.json"
        (scratch / name).write_bytes(line.encoded("jsonl"))
        (scratch / name).rename(inbox / name)
    shutil.rmtree(inbox / "_temporary")


def tidy(inbox: Path) -> None:
    """Remove what an earlier job has left."""
    with suppress(FileNotFoundError):
        shutil.rmtree(inbox / "_temporary")
    for name in os.listdir(inbox):
        if name.startswith("part-"):
            (inbox / name).unlink()
