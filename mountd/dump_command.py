"""`topicfs dump`: the files of a log, as lines. The engine is loaded only when it runs."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Final, NoReturn

import click

from topicfs.engine.errors import EngineError
from topicfs.mountd import kernels
from topicfs.mountd.limits import LIMIT
from topicfs.mountd.progress import say, words_of

_INTERRUPTED: Final = 128 + 2
_WRONG: Final = 1
_USAGE: Final = 2


def _end_interrupted() -> NoReturn:
    # click's own end has the status 1, by which something is wrong in the files.
    say("interrupted")
    sys.exit(_INTERRUPTED)


@click.command("dump")
@click.argument("paths", metavar="FILE|DIRECTORY [TOPIC-PARTITION]…", nargs=-1, required=True)
@click.option("--deep-iteration", is_flag=True, help="Show the records of batches too.")
@click.option("--print-data-log", is_flag=True, help="Show records with their keys and values.")
@click.option("--skip-record-metadata", is_flag=True, help="Show nothing else of records.")
@click.option(
    "--offsets-decoder", "topic", flag_value="__consumer_offsets", help="Show records of __consumer_offsets."
)
@click.option(
    "--transaction-log-decoder",
    "topic",
    flag_value="__transaction_state",
    help="Show records of __transaction_state.",
)
@click.option(
    "--share-group-state-decoder",
    "topic",
    flag_value="__share_group_state",
    help="Show records of __share_group_state.",
)
@click.option(
    "--cluster-metadata-decoder",
    "topic",
    flag_value="__cluster_metadata",
    help="Show records of __cluster_metadata, and of its snapshots.",
)
@click.option(
    "--verify", is_flag=True, help="Show only what is wrong: in batches, records, indexes, checkpoints."
)
@click.option("--json", "as_json", is_flag=True, help="Show each line as a JSON object.")
@click.option("--from", "start", metavar="OFFSET|TIME", type=LIMIT, help="Leave out what is before it.")
@click.option("--to", "end", metavar="OFFSET|TIME", type=LIMIT, help="Leave out what is at or after it.")
@click.option(
    "--max-bytes",
    metavar="BYTES",
    type=click.IntRange(min=0),
    help="Look at so much of each .log, and no more.",
)
def dump_command(
    paths: tuple[str, ...],
    deep_iteration: bool,
    print_data_log: bool,
    skip_record_metadata: bool,
    topic: str | None,
    verify: bool,
    as_json: bool,
    start: tuple[str, int] | None,
    end: tuple[str, int] | None,
    max_bytes: int | None,
) -> None:
    """Show the files of a log as Kafka's dump tool does, also beside a running broker or daemon. Nothing is changed.

    FILE is a .log, .index, .timeindex, .txnindex, .snapshot or .checkpoint, an offset checkpoint, partition.metadata or
    meta.properties. A DIRECTORY is a partition's, or BACKING, a mount or a broker's log directory, with the names of
    partitions behind it.

    TIME is as in 2026-05-01T06:30, in UTC if it has no zone. The exit status is 0 if all is well, 1 if something is
    wrong, which is told on standard error with its position, and 2 if the command makes no sense."""
    try:
        with kernels.loading():
            from topicfs.engine.dump.files import files_of, show  # noqa: PLC0415 - loads the engine
            from topicfs.engine.dump.report import Report  # noqa: PLC0415
            from topicfs.engine.dump.wanted import Wanted  # noqa: PLC0415
    except KeyboardInterrupt:
        _end_interrupted()

    limits: dict[str, int] = {}
    for which, limit in (("first", start), ("end", end)):
        if limit is not None:
            kind, value = limit
            limits[f"{which}_{kind}"] = value
    wanted = Wanted(
        records=deep_iteration,
        content=print_data_log or topic is not None,
        metadata=not skip_record_metadata,
        as_json=as_json,
        only_check=verify,
        topic=topic,
        max_bytes=max_bytes,
        **limits,
    )
    report = Report(sys.stdout.fileno(), say, wanted)
    try:
        for file in files_of(paths):
            show(file, wanted, report)
        report.flush()
    except BrokenPipeError:  # `head` has seen enough
        with contextlib.suppress(OSError):
            os.close(sys.stdout.fileno())
    except KeyboardInterrupt:
        _end_interrupted()
    except (EngineError, OSError) as error:
        report.flush()
        say(words_of(error))
        sys.exit(_USAGE)
    sys.exit(_WRONG if report.problems else 0)
