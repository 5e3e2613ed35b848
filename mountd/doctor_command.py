"""`topicfs doctor`: what is wrong with this machine, or with a store, and the command that mends it."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from topicfs.engine.errors import EngineError
from topicfs.engine.files import layout
from topicfs.engine.files.place import DirectoryKind, kind_of
from topicfs.engine.format.paths import CLEAN_SHUTDOWN, DAEMON_LOG, LOGS
from topicfs.engine.record import now_ms
from topicfs.mountd import mounts
from topicfs.mountd.progress import words_of
from topicfs.mountd.status_command import state, troubles
from topicfs.mountd.tables import show_line, show_table, shown_path, size_text
from topicfs.mountd.tree import RefusedError, opened, refusals

_OUT: Final = Console(highlight=False)
_FEW_DESCRIPTORS: Final = 4096
_LITTLE_SPACE: Final = 1 << 30
_CONFIGURATION: Final = Path("/etc/fuse.conf")


class Verdict(Enum):
    """How something was found. The values are the words for it."""

    FINE = "fine"
    NOTE = "note"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found out about one thing.

    mend  the command or the step that mends it; empty where nothing has to be done
    """

    about: str
    verdict: Verdict
    words: str
    mend: str = ""


@click.command("doctor")
@click.argument("where", metavar="[BACKING|MOUNT]", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor_command(where: Path | None, as_json: bool) -> None:
    """Look for what is wrong with this machine or with a store, and show the command that mends it. Changes nothing.

    Ends with exit code 1 if something is wrong; a note is worth reading, and nothing is wrong with it."""
    with refusals():
        found = [*machine(), *(() if where is None else store(mounts.real(where)))]
    if as_json:
        click.echo(json.dumps([{**asdict(each), "verdict": each.verdict.value} for each in found], indent=2))
    else:
        show_table(
            _OUT, ("", "about", "found"), [(each.verdict.value, each.about, each.words) for each in found]
        )
        for each in found:
            if each.mend:
                show_line(_OUT, f"{each.about}: {each.mend}")
    sys.exit(any(each.verdict is Verdict.WRONG for each in found))


# -- the machine --------------------------------------------------------------------------------------


def machine() -> Iterator[Finding]:
    """Look at what a mount needs of the machine, and at mounts that have lost their daemon."""
    yield _tried("mounting", mounts.check_machine, "/dev/fuse, fusermount and libfuse 2 are there")
    yield _kernels()
    yield _descriptors()
    yield _other_users()
    dead = [mount for mount in mounts.mounted() if mounts.is_dead(mount.point)]
    for mount in dead:
        yield Finding(
            "mounts",
            Verdict.WRONG,
            f"{mount.point}: has lost its daemon",
            f"topicfs umount {shown_path(mount.point)}, or mount {mount.backing} there again",
        )
    if not dead:
        count = len(list(mounts.mounted()))
        yield Finding("mounts", Verdict.FINE, f"{count} on this machine, none without its daemon")


def _tried(about: str, check: Callable[[], object], words: str) -> Finding:
    try:
        check()
    except (mounts.MountError, EngineError, OSError) as error:
        return Finding(about, Verdict.WRONG, words_of(error))
    return Finding(about, Verdict.FINE, words)


def _kernels() -> Finding:
    import topicfs.engine.kernels  # noqa: PLC0415 - the compiler takes its time to load, as in the next two
    import topicfs.fs.kernels  # noqa: PLC0415, F401
    from topicfs.engine.kernels.cache import kept  # noqa: PLC0415

    places = kept()
    if None in places:
        mend = f"{sys.executable} -m topicfs.mountd.kernels compiles them all; it takes up to a minute and a half"
        return Finding("kernels", Verdict.NOTE, "are not compiled yet: the first mount waits for it", mend)
    return Finding("kernels", Verdict.FINE, f"compiled, in {places[0]}")


def _descriptors() -> Finding:
    most, ceiling = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < _FEW_DESCRIPTORS:
        return Finding(
            "open files",
            Verdict.NOTE,
            f"a process may have {most}: with many partitions, files are closed and opened again all the time",
            f"ulimit -n {ceiling if 0 < ceiling < 1 << 20 else 65536}, before the mount",
        )
    return Finding("open files", Verdict.FINE, f"a process may have {most}")


def _other_users() -> Finding:
    try:
        lines = [line.strip() for line in _CONFIGURATION.read_text().splitlines()]
    except OSError:
        lines = []
    if os.geteuid() == 0 or "user_allow_other" in lines:
        return Finding("--allow-other", Verdict.FINE, "this user may let others in")
    return Finding(
        "--allow-other",
        Verdict.NOTE,
        f"{_CONFIGURATION} does not let this user let others in",
        f"echo user_allow_other | sudo tee -a {_CONFIGURATION}",
    )


# -- a store ------------------------------------------------------------------------------------------


def _load_settings(backing: Path) -> None:
    from topicfs.engine.settings.configuration import Configuration  # noqa: PLC0415 - it loads all settings

    Configuration.load(backing, {}, now_ms)


def store(place: Path) -> Iterator[Finding]:
    """Look at a store, or a mount of it: at its directory, its settings, its owner and its partitions."""
    mount = mounts.find(place)
    backing = place if mount is None or mount.backing is None else mount.backing
    kind = kind_of(backing)
    if kind not in (DirectoryKind.STORE, DirectoryKind.LOGS):
        mend = (
            f"topicfs init {shown_path(backing)}"
            if kind in (DirectoryKind.MISSING, DirectoryKind.EMPTY)
            else ""
        )
        yield Finding("directory", Verdict.WRONG, f"{backing}: expected a store, found {kind.value}", mend)
        return
    yield Finding("directory", Verdict.FINE, f"{backing} is {kind.value}")
    if kind is DirectoryKind.STORE:
        yield _tried(
            "layout", lambda: layout.check(backing), "what lies beside logs/ is known to this version"
        )
    yield _tried("settings", lambda: _load_settings(backing), "server.properties can be read")
    yield _space(backing)
    if not os.access(backing, os.W_OK | os.X_OK):
        yield Finding(
            "permissions",
            Verdict.NOTE,
            "this user may not write here",
            f"topicfs mount --read-only {shown_path(backing)} MOUNT",
        )
    owner = mounts.lock_owner(backing)
    logs = backing / LOGS if kind is DirectoryKind.STORE else backing
    if owner is not None:
        yield Finding("owner", Verdict.FINE, f"process {owner} has it open")
    elif (logs / CLEAN_SHUTDOWN).exists():
        yield Finding("owner", Verdict.FINE, "nobody has it open, and it was stopped cleanly")
    else:
        log = backing / DAEMON_LOG
        yield Finding(
            "owner",
            Verdict.NOTE,
            f"nobody has it open, and it was not stopped cleanly, or never used: the next mount looks through the ends "
            f"of the logs{f'; {log} says why' if log.exists() else ''}",
            f"topicfs verify {shown_path(backing)} looks at everything",
        )
    yield from _partitions(place)


def _space(backing: Path) -> Finding:
    found = shutil.disk_usage(backing)
    words = f"{size_text(found.free)} free of {size_text(found.total)}"
    if found.free < _LITTLE_SPACE:
        mend = (
            "smaller retention.bytes or retention.ms (topicfs config; where nothing is free that is refused too: "
            "umount, and mount with -o log.retention.bytes=N), or a larger disk"
        )
        return Finding(
            "space", Verdict.WRONG, words, f"{mend}; topicfs plan {shown_path(backing)} shows what goes next"
        )
    return Finding("space", Verdict.FINE, words)


def _partitions(place: Path) -> Iterator[Finding]:
    """Look at each partition, as its status tells."""
    try:
        with opened(place) as tree:
            names = [f"{topic}-{number}" for topic, numbers in tree.topics().items() for number in numbers]
            wrong = 0
            for name in names:
                status = tree.status(name)
                if any(troubles(status)):
                    wrong += 1
                    yield Finding(
                        name,
                        Verdict.WRONG,
                        state(status),
                        f"topicfs verify {shown_path(tree.backing)} names what is damaged",
                    )
    except (RefusedError, EngineError, OSError) as error:
        yield Finding("partitions", Verdict.WRONG, words_of(error))
        return
    if not wrong:
        yield Finding("partitions", Verdict.FINE, f"{len(names)}, nothing is wrong with them")
