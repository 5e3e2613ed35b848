"""The command `topicfs`.

Every call pays for the start-up time. So what loads the engine is imported only where it is needed: in the daemon.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

import click
from rich.console import Console

from topicfs.engine.errors import EngineError
from topicfs.engine.files import place
from topicfs.mountd import background, kernels, mounts
from topicfs.mountd.background import Teller
from topicfs.mountd.compact_command import compact_command
from topicfs.mountd.completion_command import completion_command
from topicfs.mountd.delete_command import delete_command, undelete_command
from topicfs.mountd.doctor_command import doctor_command
from topicfs.mountd.dump_command import dump_command
from topicfs.mountd.events import STOP_SIGNALS, Events
from topicfs.mountd.export_command import export_command
from topicfs.mountd.groups_command import groups_command
from topicfs.mountd.import_command import import_command
from topicfs.mountd.progress import Progress, say, words_of
from topicfs.mountd.record_commands import append_command, cat_command, offsets_command
from topicfs.mountd.repair_command import repair_command
from topicfs.mountd.sections import SectionedGroup
from topicfs.mountd.spark_commands import spark_group
from topicfs.mountd.sql_command import sql_command
from topicfs.mountd.status_command import status_command, top_command
from topicfs.mountd.topic_commands import config_command, create_command, topics_command
from topicfs.mountd.ui.command import ui_command
from topicfs.mountd.verify_command import verify_command

if TYPE_CHECKING:
    from topicfs.mountd.daemon import Assembly

_PATH: Final = click.Path(path_type=Path)
_SOON_S: Final = 1.0

T = TypeVar("T")


def _assembly() -> Assembly:
    """Return the daemon's parts as they are outside of tests."""
    from topicfs.mountd.assembly import ASSEMBLY  # noqa: PLC0415 - loads the engine

    return ASSEMBLY


@click.group(cls=SectionedGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="topicfs")
def main() -> None:
    """Kafka-style logs, mounted: partitions are directories, records are lines of files.

    Exit codes: 0 done; 1 refused, failed, or something is wrong with what was looked at; 2 not understood; 130
    interrupted."""


main.add_command(spark_group)
main.add_command(delete_command)
main.add_command(undelete_command)
main.add_command(sql_command)
main.add_command(dump_command)
main.add_command(verify_command)
main.add_command(topics_command)
main.add_command(create_command)
main.add_command(config_command)
main.add_command(cat_command)
main.add_command(append_command)
main.add_command(offsets_command)
main.add_command(status_command)
main.add_command(top_command)
main.add_command(ui_command)
main.add_command(doctor_command)
main.add_command(completion_command)
main.add_command(groups_command)
main.add_command(export_command)
main.add_command(import_command)
main.add_command(compact_command)
main.add_command(repair_command)


@main.command("mount")
@click.argument("places", metavar="BACKING MOUNT", type=_PATH, nargs=-1)
@click.option(
    "--foreground", is_flag=True, help="Stay until Ctrl-C, or until what started it ends; log to stderr too."
)
@click.option("--create", is_flag=True, help="Make the store first if BACKING is empty or not there.")
@click.option(
    "--read-only",
    is_flag=True,
    help="Change nothing at all, in the mount or under BACKING, which may be a broker's log directory, or several.",
)
@click.option("--allow-other", is_flag=True, help="Let other users in, as far as permissions allow.")
@click.option(
    "settings",
    "-o",
    metavar="NAME=VALUE",
    multiple=True,
    help="A setting of server.properties, for this run; again for more.",
)
@click.option(
    "--link",
    metavar="HOST:PORT[,…]",
    help="Mirror topics of the Kafka cluster that has these brokers: link.bootstrap.servers.",
)
@click.option(
    "link_topics",
    "--link-topic",
    metavar="PATTERN",
    multiple=True,
    help="Topics that are mirrored, all by default; again for more: link.topics.",
)
@click.option(
    "--link-from",
    metavar="earliest|latest|OFFSET|-7d|TIME",
    help="Where a new mirror begins: link.from.",
)
@click.option(
    "--link-config",
    metavar="FILE",
    type=_PATH,
    help="Settings of Kafka's clients, such as security.protocol: link.config.",
)
@click.option(
    "--link-group",
    metavar="NAME",
    help="Divide the partitions with the other daemons of this group: link.group.",
)
@click.pass_obj
def mount_command(
    assembly: Callable[[], Assembly] | None,
    places: tuple[Path, ...],
    foreground: bool,
    create: bool,
    read_only: bool,
    allow_other: bool,
    settings: tuple[str, ...],
    link: str | None,
    link_topics: tuple[str, ...],
    link_from: str | None,
    link_config: Path | None,
    link_group: str | None,
) -> None:
    """Mount the store in BACKING at the directory MOUNT, and return when it answers.

    `topicfs init` makes a store. MOUNT is made where it does not exist. The log is BACKING/topicfs.log; that of a
    read-only mount is ~/.local/state/topicfs/MOUNT.log, percent-encoded, or in $XDG_STATE_HOME/topicfs, and where that
    cannot be written it is the system's log. With --read-only all log directories of one broker may be named before
    MOUNT."""
    background.hold_standard_descriptors()
    given = dict(_setting(text) for text in settings)
    given |= _link_settings(link, link_topics, link_from, link_config, link_group)
    if create and read_only:
        raise click.UsageError("--create makes a store, which --read-only cannot")
    if len(places) < 2 or (len(places) > 2 and not read_only):
        raise click.UsageError(
            f"expected BACKING and MOUNT, found {len(places)} names; several log directories need --read-only"
        )
    backing, *others, mount = map(mounts.real, places)
    if link is not None and read_only:
        raise click.UsageError("--link writes what it mirrors into the store, which --read-only cannot")
    # The quick checks come first: a user should not wait for kernels to be compiled, only to learn what is missing.
    _or_fail(mounts.check_machine)
    made = _or_fail(lambda: mounts.prepare(backing, mount, given, read_only, create, others))

    mounting = _Mounting(
        assembly=assembly or _assembly,
        backing=backing,
        mount=mount,
        others=tuple(others),
        read_only=read_only,
        allow_other=allow_other,
        settings=given,
        foreground=foreground,
    )
    if foreground:
        background.end_with_parent()
        with Progress() as progress:
            aloud = _Aloud(progress)
            code = _guarded(mounting.run, aloud)
        if not aloud.was_ready:
            made.take_back()
        # A start that was broken off may still have running threads, and an ordinary exit would wait for them.
        os._exit(code)
    child = background.start(lambda teller: _guarded(mounting.run, teller))
    try:
        _follow(child)
    except (_FailedError, KeyboardInterrupt) as error:
        child.join()
        made.take_back(keep_store=isinstance(error, _CrashedError))
        _fail(str(error) or "broken off")


@main.command("init")
@click.argument("backing", type=_PATH)
def init_command(backing: Path) -> None:
    """Make an empty store in the directory BACKING, which is empty or does not exist."""
    _or_fail(lambda: place.make(mounts.real(backing)))


@main.command("umount")
@click.argument("mount", type=_PATH)
@click.option("--force", is_flag=True, help="Also when programs use it: their next calls fail.")
def umount_command(mount: Path, force: bool) -> None:
    """Write down everything that was accepted, unmount MOUNT, and return when its daemon has stopped.

    While programs use it this is refused, with their names, and changes nothing."""
    _or_fail(lambda: mounts.leave(mounts.real(mount), _waiting, force, say))


@main.command("plan")
@click.argument("place", metavar="BACKING|MOUNT", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "settings",
    "-o",
    metavar="NAME=VALUE",
    multiple=True,
    help="A setting of server.properties, as for `mount`; a running daemon's own are known.",
)
def plan_command(place: Path, as_json: bool, settings: tuple[str, ...]) -> None:
    """Show what retention and compaction would do now, and what comes next. Changes nothing.

    Works beside a running daemon, and without one."""
    given = dict(_setting(text) for text in settings)
    with kernels.loading():
        from topicfs.mountd import plans  # noqa: PLC0415 - loads the engine

    try:
        made = plans.make(mounts.real(place), given)
    except (EngineError, mounts.MountError, OSError) as error:
        _fail(words_of(error))
    if as_json:
        click.echo(plans.as_json(made))
    else:
        plans.show(made, Console(highlight=False))


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.BadParameter(f"expected name=value, found {text!r}", param_hint="-o")
    return name.strip(), value


def _link_settings(
    link: str | None,
    topics: tuple[str, ...],
    beginning: str | None,
    config: Path | None,
    group: str | None,
) -> dict[str, str]:
    """Return the settings that the options of a link stand for."""
    options = {
        "link.bootstrap.servers": link,
        "link.topics": ",".join(topics) or None,
        "link.from": beginning,
        "link.config": None if config is None else str(config.absolute()),
        "link.group": group,
    }
    return {name: value for name, value in options.items() if value is not None}


def _heard(foreground: bool) -> list[signal.Signals]:
    """Return the signals that stop the daemon: in the foreground not those that were ignored at the start (nohup)."""
    ignored = [number for number in STOP_SIGNALS if signal.getsignal(number) is signal.SIG_IGN]
    return [number for number in STOP_SIGNALS if not foreground or number not in ignored]


# -- in the daemon ------------------------------------------------------------------------------------


def _guarded(run: Callable[[Teller], int], teller: Teller) -> int:
    """Run the daemon, and return the exit code. It raises nothing: the process that started it gets a report."""
    try:
        return run(teller)
    except BaseException as error:
        logging.getLogger(__name__).exception("the daemon failed unexpectedly")
        teller.crashed(f"unexpected {type(error).__name__}: {error}")
        return 1
    finally:
        logging.shutdown()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mounting:
    """The mount that was asked for, in the process that serves it.

    assembly    gives the parts of the daemon
    others      with `read_only`, further log directories of the same broker
    settings    what takes precedence over server.properties
    foreground  whether the process stays at its terminal
    """

    assembly: Callable[[], Assembly]
    backing: Path
    mount: Path
    others: tuple[Path, ...]
    read_only: bool
    allow_other: bool
    settings: Mapping[str, str]
    foreground: bool

    def run(self, teller: Teller) -> int:
        """Load the engine, serve the mount until its end, and return the exit code."""
        # From here on a signal does not end the process suddenly, not even while the engine is loaded.
        events = Events.open(_heard(self.foreground))

        def compiling(text: str) -> None:
            if events.came():
                # A minute is too long to wait for Ctrl-C, and nothing is open yet.
                raise mounts.MountError("stopped by a signal while kernels were compiled")
            teller.progress(text)

        teller.waits("loading the engine")
        try:
            with kernels.told(compiling):
                import topicfs.mountd.daemon  # noqa: F401, PLC0415 - loads the engine

                parts = self.assembly()
        except mounts.MountError as error:
            teller.failed(str(error))
            return 1
        return self._serve(parts, teller, events)

    def _serve(self, parts: Assembly, teller: Teller, events: Events) -> int:
        from topicfs.mountd import logs  # noqa: PLC0415 - the engine is loaded, as for the next
        from topicfs.mountd.daemon import Daemon, MountOptions, StartError  # noqa: PLC0415

        options = MountOptions(self.read_only, self.allow_other, dict(self.settings), self.others)
        try:
            logged = logs.set_up(logs.file_of(self.backing, self.mount, self.read_only), self.foreground)
            daemon = Daemon(self.backing, self.mount, options, parts, logged, teller.waits, events)
            return daemon.run(teller.ready)
        except (EngineError, StartError, OSError) as error:
            # The report comes first: if logging could not begin, lines go to stderr, and the report includes stderr.
            teller.failed(words_of(error))
            logging.getLogger(__name__).error(f"not mounted: {error}")
            return 1


class _Aloud:
    """A teller for the foreground: it reports on the terminal.

    was_ready  whether the mount was there
    line       shows what is compiled before there is a log
    """

    def __init__(self, line: Progress) -> None:
        self.was_ready = False
        self.line = line

    def waits(self, text: str) -> None:
        """Log what the start waits for."""
        self.line.close()
        logging.getLogger(__name__).info(text)

    def progress(self, text: str) -> None:
        """Show now and then how far it is, also before there is a log."""
        self.line.progress(text)

    def ready(self) -> None:
        """Remember it. It is logged already."""
        self.was_ready = True

    def failed(self, text: str) -> None:
        """Do nothing. It is logged already."""

    def crashed(self, text: str) -> None:
        """Do nothing. It is logged already."""


# -- in the command -----------------------------------------------------------------------------------


class _FailedError(Exception):
    """The daemon did not start; the message says why."""


class _CrashedError(_FailedError):
    """The daemon ended because of a bug. Its log has more."""


def _follow(child: background.Child) -> None:
    """Wait until the daemon is ready, and show what it waits for if that takes long."""
    latest = "starting the daemon"
    patience: float | None = _SOON_S
    with Progress() as progress:
        try:
            while (message := child.next(patience)) is None or message.kind != background.READY:
                if message is not None and message.kind == background.FAILED:
                    raise _FailedError(message.text)
                if message is not None and message.kind == background.CRASHED:
                    raise _CrashedError(message.text)
                if message is not None and message.kind == background.GOES_ON:
                    progress.progress(message.text)
                    continue
                if message is None:
                    patience = None
                else:
                    latest = message.text
                if patience is None:
                    progress.wait(latest)
        except KeyboardInterrupt:
            child.stop()
            raise


@contextlib.contextmanager
def _waiting(text: str) -> Iterator[None]:
    """Show what the command waits for."""
    with Progress() as progress:
        progress.wait(text)
        yield


def _or_fail(task: Callable[[], T]) -> T:
    try:
        return task()
    except (EngineError, mounts.MountError, OSError) as error:
        _fail(words_of(error))


def _fail(text: str) -> NoReturn:
    say(text)
    sys.exit(1)


if __name__ == "__main__":
    main()
