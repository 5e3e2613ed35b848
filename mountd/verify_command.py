"""`topicfs verify`: the check of everything on disk, printed line by line. The engine is loaded only when it runs."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
from rich.console import Console

from topicfs.engine.errors import EngineError
from topicfs.mountd import kernels, mounts
from topicfs.mountd.progress import CONSOLE, Progress, say, words_of
from topicfs.mountd.tables import show_line, size_text

if TYPE_CHECKING:
    from topicfs.engine.files.listing import PartitionKey
    from topicfs.engine.verify.finding import Finding
    from topicfs.engine.verify.run import Totals

_OUT: Final = Console(highlight=False)
_FOUND: Final = 1
_USAGE: Final = 2
_INTERRUPTED: Final = 128 + 2


@click.command("verify")
@click.argument("where", metavar="BACKING|LOGS|MOUNT", type=click.Path(path_type=Path))
@click.argument("names", metavar="[TOPIC[-PARTITION]]…", nargs=-1)
@click.option(
    "--json", "as_json", is_flag=True, help="Print a line of JSON for each finding, and for the summary."
)
def verify_command(where: Path, names: tuple[str, ...], as_json: bool) -> None:
    """Check everything on disk: batches, records, indexes, checkpoints, snapshots, and what topicfs makes of them.

    Nothing is changed, and nothing is locked. It works beside a running daemon or broker, whose directory may be named
    too. Each finding is a line that says what was expected and found where, and what that means:

    \b
    damage      records cannot be read, or are not what was written
    repairable  no record is lost: a recovery or a rebuild mends it, or only an index or a bound is wrong
    note        nothing is wrong now, but worth knowing

    Exit code 0: there is no damage, and nothing to repair. 1: there is. 2: WHERE or a name is not there, or WHERE is
    no log."""
    with told():
        with kernels.loading():
            from topicfs.engine.verify import run  # noqa: PLC0415 - loads the engine, as the next does
            from topicfs.mountd import size_maps  # noqa: PLC0415
        from topicfs.engine.unlocked.place import place_of  # noqa: PLC0415

        place = place_of(str(where), or_logs=True)
        wanted = Wanted(names)
        totals = run.Totals()
        counts: dict[str, int] = {}
        with Progress() as progress:
            for backing in (place.backing, *place.others):
                growing = mounts.lock_owner(backing) is not None
                check = run.Check(backing, wanted, growing, reported(progress), totals)
                for finding in chain(check.findings(), size_maps.check(backing, wanted)):
                    counts[finding.severity.value] = counts.get(finding.severity.value, 0) + 1
                    progress.close()
                    show_finding(finding, as_json)
        wanted.refuse_missing(where)
        _show_totals(totals, counts, as_json)
        sys.stdout.flush()
    if counts.get("damage") or counts.get("repairable"):
        sys.exit(_FOUND)


class Wanted:
    """The partitions that were asked for.

    names  names of topics and partitions; all are wanted where there is none
    met    those of them that are there
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = set(names)
        self.met: set[str] = set()

    def __call__(self, key: PartitionKey) -> bool:
        topic, number = key
        meant = self.names & {topic, f"{topic}-{number}"}
        self.met |= meant
        return bool(meant) or not self.names

    def refuse_missing(self, where: Path) -> None:
        """End the command where a name is not there."""
        missing = sorted(self.names - self.met)
        if missing:
            fail(f"{where}: expected the topic or partition {missing[0]}, found none of this name")


def reported(progress: Progress) -> Callable[[Totals], None]:
    """Return what reports the progress on a terminal; elsewhere a check is silent but for its findings."""

    def report(totals: Totals) -> None:
        if CONSOLE.is_terminal:
            share = f" of {size_text(totals.expected)}" if totals.expected else ""
            progress.progress(f"checked {size_text(totals.bytes)}{share}, {totals.records} records")

    return report


def show_finding(finding: Finding, as_json: bool) -> None:
    """Print a finding."""
    if as_json:
        fields: dict[str, Any] = {
            "severity": finding.severity.value,
            "kind": finding.kind.value,
            "file": str(finding.file),
            "at": finding.at,
            "expected": finding.expected,
            "found": finding.found,
            "effect": finding.effect,
        }
        click.echo(json.dumps(fields))
    else:
        show_line(_OUT, f"{finding.severity.value}: {finding}")


def _show_totals(totals: Totals, counts: dict[str, int], as_json: bool) -> None:
    speed = totals.bytes / totals.seconds / 1e9 if totals.seconds else 0.0
    if as_json:
        fields = {
            "partitions": totals.partitions,
            "segments": totals.segments,
            "files": totals.files,
            "bytes": totals.bytes,
            "batches": totals.batches,
            "records": totals.records,
            "seconds": round(totals.seconds, 3),
            "gigabytes_per_second": round(speed, 3),
            "findings": {name: counts.get(name, 0) for name in ("damage", "repairable", "note")},
        }
        click.echo(json.dumps({"summary": fields}))
        return
    told = ", ".join(
        f"{counts[name]} {name}" for name in ("damage", "repairable", "note") if counts.get(name)
    )
    show_line(
        _OUT,
        f"{totals.partitions} partitions, {totals.files} files, {totals.bytes} bytes, {totals.batches} batches, "
        f"{totals.records} records in {totals.seconds:.1f} s, {speed:.2f} GB/s: {told or 'nothing found'}",
    )


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Turn failures into messages."""
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:  # `head` has seen enough, and what was not checked is not known to be right
        with contextlib.suppress(OSError):
            os.close(sys.stdout.fileno())
        sys.exit(_FOUND)
    except (EngineError, mounts.MountError, OSError) as error:
        fail(words_of(error))


def fail(text: str) -> NoReturn:
    """Say what is not there, and end."""
    say(text)
    sys.exit(_USAGE)
