"""`topicfs repair`: what a recovery would do about damage, as a report; and doing it, where that is asked for."""

from __future__ import annotations

import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console

from topicfs.engine.files.place import DirectoryKind, kind_of
from topicfs.mountd import kernels, mounts
from topicfs.mountd.progress import CONSOLE, Progress
from topicfs.mountd.tables import show_line, shown_path, size_text
from topicfs.mountd.verify_command import Wanted, fail, reported, show_finding, told

if TYPE_CHECKING:
    from topicfs.engine.files.listing import PartitionKey
    from topicfs.engine.repair.repair import Plan

_OUT: Final = Console(highlight=False)
_FOUND: Final = 1


@click.command("repair")
@click.argument("where", metavar="BACKING|MOUNT", type=click.Path(path_type=Path))
@click.argument("names", metavar="[TOPIC[-PARTITION]]...", nargs=-1)
@click.option("--apply", is_flag=True, help="Do it. What is cut off or removed is kept in BACKING/repaired.")
@click.option(
    "--scratch", metavar="DIRECTORY", type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where copies of partitions are recovered; the system's directory for temporary files, if not given.",
)  # fmt: skip
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a line of JSON for each finding and partition, and a summary.",
)
def repair_command(
    where: Path, names: tuple[str, ...], apply: bool, scratch: Path | None, as_json: bool
) -> None:
    """Show what a recovery would do about what `topicfs verify` finds, file by file. Nothing is changed without
    --apply.

    Each partition with damage, or with something repairable, is copied, and the copy is recovered from its first batch
    on: what can be read up to the first damaged batch stays, and all behind it is cut off. So the report tells how
    many records stay, and what goes. As long as it is not repaired, records behind the damage can be read by their
    offsets: export them first.

    With --apply the same is done to BACKING, which no daemon may have open. Before, each file that is changed or
    removed is copied to BACKING/repaired/TIME/PARTITION.

    Exit code 0: nothing is to be repaired, or all of it was. 1: there is something. 2: WHERE or a name is not there, or
    WHERE cannot be repaired."""
    with told():
        with kernels.loading():
            from topicfs.engine.repair import repair  # noqa: PLC0415 - loads the engine, as the next does
        from topicfs.engine.unlocked.place import place_of  # noqa: PLC0415
        from topicfs.engine.verify import run  # noqa: PLC0415

        place = place_of(str(where))
        backing = place.backing
        if place.others or kind_of(backing) is not DirectoryKind.STORE:
            found = ", ".join(map(str, place.log_directories))
            fail(
                f"{where}: expected one store, found {found}: name one store; a broker recovers its own directories"
            )
        owner = mounts.lock_owner(backing)
        if apply and owner is not None:
            fail(
                f"{backing}: process {owner} has it open: --apply needs it stopped, `topicfs umount` does that"
            )
        wanted = Wanted(names)
        keys: set[PartitionKey] = set()
        with Progress() as progress:
            check = run.Check(backing, wanted, owner is not None, reported(progress), run.Totals())
            others = 0
            for finding in check.findings():
                progress.close()
                show_finding(finding, as_json)
                if finding.severity.value != "note":
                    key = _partition_of(finding.file, check.logs)
                    keys |= set() if key is None else {key}
                    others += key is None
            wanted.refuse_missing(where)
            plans = list(_planned(backing, sorted(keys), scratch, progress))
        saved = backing / repair.REPAIRED / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        mendable = [plan for plan in plans if plan.error is None and plan.changes]
        for plan in plans:
            _show_plan(plan, as_json)
        is_left = bool(plans) or others > 0
        words = list[str]()
        if apply and mendable:
            words = repair.applied(backing, mendable, saved)
            is_left = False
            for finding in run.Check(backing, Wanted(names), False).findings():
                if finding.severity.value != "note":
                    is_left = True
                    show_finding(finding, as_json)
        _show_summary(where, plans, saved if apply and mendable else None, words, as_json)
    if is_left:
        sys.exit(_FOUND)


def _planned(backing: Path, keys: list[PartitionKey], scratch: Path | None, progress: Progress) -> list[Plan]:
    """Return what a recovery would do to partitions, whose copies have to find room."""
    import shutil  # noqa: PLC0415 - as the next, most repairs find nothing to do

    from topicfs.engine.repair.repair import bytes_of, planned  # noqa: PLC0415 - the engine is loaded

    if not keys:
        return []
    with tempfile.TemporaryDirectory(prefix="topicfs-repair-", dir=scratch) as place:
        needed, free = bytes_of(backing, keys), shutil.disk_usage(place).free
        if needed > free:
            fail(
                f"{place}: expected room for a copy of {size_text(needed)}, found {size_text(free)}: name a directory "
                "that has it by --scratch"
            )
        found = []
        for plan in planned(backing, keys, Path(place)):
            found.append(plan)
            if CONSOLE.is_terminal:
                progress.progress(f"recovered copies of {len(found)} of {len(keys)} partitions")
        return found


def _partition_of(file: Path, logs: Path) -> PartitionKey | None:
    """Return the partition whose directory has a file, or is it; None if it is of none."""
    from topicfs.engine.errors import InvalidNameError  # noqa: PLC0415
    from topicfs.engine.format.paths import parse_partition_directory  # noqa: PLC0415

    for each in (file, *file.parents):
        if each.parent == logs:
            try:
                topic, number, suffix = parse_partition_directory(each.name)
            except InvalidNameError:
                return None
            return None if suffix else (topic, number)
    return None


def _show_plan(plan: Plan, as_json: bool) -> None:
    if as_json:
        fields: dict[str, Any] = {
            "partition": plan.name,
            "changes": [
                {
                    "action": each.action.value,
                    "file": str(each.file),
                    "before": each.before,
                    "after": each.after,
                }
                for each in plan.changes
            ],
            "records_before": plan.records_before,
            "records_after": plan.records_after,
            "bytes_lost": plan.bytes_lost,
            "words": list(plan.words),
            "left": list(map(str, plan.left)),
            "error": plan.error,
        }
        click.echo(json.dumps(fields))
        return
    for each in plan.changes:
        show_line(_OUT, f"{each.action.value}: {each.file}: {each.before} bytes become {each.after}")
    for words in plan.words:
        show_line(_OUT, f"    {words}")
    if plan.error is not None:
        show_line(_OUT, f"{plan.name}: cannot be recovered: {plan.error}")
    elif not plan.changes:
        show_line(_OUT, f"{plan.name}: a recovery changes nothing of it")
    else:
        show_line(
            _OUT,
            f"{plan.name}: {plan.records_after} of {plan.records_before} records stay, {plan.bytes_lost} bytes of logs "
            "go",
        )
    for left in plan.left:
        show_line(_OUT, f"still {left.severity.value}: {left}")


def _show_summary(
    where: Path, plans: list[Plan], saved: Path | None, words: list[str], as_json: bool
) -> None:
    if as_json:
        fields = {
            "partitions": len(plans),
            "records_lost": sum(plan.records_before - plan.records_after for plan in plans),
            "bytes_lost": sum(plan.bytes_lost for plan in plans),
            "saved": None if saved is None else str(saved),
            "words": words,
        }
        click.echo(json.dumps({"summary": fields}))
    elif saved is not None:
        show_line(_OUT, f"done; what was changed or removed is in {saved}")
    elif not plans:
        show_line(_OUT, "there is nothing that a recovery would mend")
    elif any(plan.changes and plan.error is None for plan in plans):
        show_line(_OUT, f"nothing is changed; this does it: topicfs repair {shown_path(where)} --apply")
