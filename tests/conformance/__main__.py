"""`make conformance`: suites of tests for file systems, wherever a mount offers ordinary files.

python tests/conformance [--seed S] [--steps N] [SUITE…]

A case that ends otherwise than the list of its suite says has the run give 1, and so does a warning in the log of the
daemon. What the suites printed is in build/conformance.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE.parent), str(HERE.parent / "mount")]

import conformance_lists as lists  # noqa: E402
import conformance_suites as suites  # noqa: E402
from conformance_lists import Otherwise, Outcome  # noqa: E402
from daemon_mount import DaemonMount  # noqa: E402

ROOM = HERE.parents[1] / "build" / "conformance"
PROGRAMS = HERE.parents[1] / ".tools" / "conformance" / "bin"
LIMIT_S = 3600.0


def places(mount: DaemonMount) -> dict[str, Path]:
    """Each kind of directory in which programs have ordinary files, by its name."""
    (mount / "topics/t").mkdir()
    (mount / "transactions/t1").mkdir()
    (mount / "producers/p").mkdir()
    inbox = mount / "topics/t/inbox"
    (inbox / ".scratch").mkdir()
    (inbox / "q1").mkdir()
    return {
        "inbox": inbox / ".scratch",
        "batch": inbox / "q1",
        "transaction": mount / "transactions/t1",
        "producer": mount / "producers/p/t-0",
    }


class Run:
    """A run of suites: what each has found otherwise than it should.

    mount   the mount, with its places for ordinary files
    seed    what random operations are chosen by
    steps   how many of them a file gets
    wrong   all differences from the lists
    """

    def __init__(self, mount: DaemonMount, seed: int, steps: int) -> None:
        self.places = places(mount)
        self.seed = seed
        self.steps = steps
        self.wrong: list[str] = []

    def pjdfstest(self) -> None:
        """Where directories can be made: a transaction and a producer have none."""
        expected = lists.read(HERE / "pjdfstest.toml")
        for name in ("inbox", "batch"):
            room = ROOM / f"pjdfstest-{name}"
            self._judge(
                f"pjdfstest {name}",
                suites.pjdfstest(PROGRAMS / "pjdfstest", self.places[name], room),
                expected,
            )

    def fsx(self) -> None:
        self._each_place("fsx", ["fsx"], self._fsx)

    def _fsx(self, _: str, file: Path, room: Path) -> Outcome:
        return suites.fsx(PROGRAMS / "fsx", file, room, self.seed, self.steps)

    def fio(self) -> None:
        self._each_place("fio", suites.fio_jobs(), lambda job, *at: suites.fio(job, *at, self.seed))

    def stress(self) -> None:
        """Its processes make directories of their own."""
        expected = lists.read(HERE / "stress-ng.toml")
        room = ROOM / "stress-ng"
        found = {name: suites.stress(name, self.places["inbox"], room) for name in suites.STRESSORS}
        self._judge("stress-ng inbox", found, expected)

    def _each_place(
        self, suite: str, cases: Iterable[str], case: Callable[[str, Path, Path], Outcome]
    ) -> None:
        chosen = list(cases)
        for name, place in self.places.items():
            room = ROOM / f"{suite}-{name}"
            self._judge(f"{suite} {name}", {each: case(each, place / ".file", room) for each in chosen}, {})

    def _judge(self, what: str, found: dict[str, Outcome], expected: dict[str, Otherwise]) -> None:
        counts = Counter(found.values())
        told = lists.differences(found, expected)
        print(  # noqa: T201
            f"{what}: {len(found)} cases, "
            + ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome)
            + f"; {len(expected)} expected not to pass, {len(told)} otherwise than expected",
            flush=True,
        )
        self.wrong += [f"{what}: {line}" for line in told]


SUITES: dict[str, Callable[[Run], None]] = {
    "pjdfstest": Run.pjdfstest,
    "fsx": Run.fsx,
    "fio": Run.fio,
    "stress-ng": Run.stress,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("suites", nargs="*", help=f"of {', '.join(SUITES)}")
    given = parser.parse_args()
    unknown = set(given.suites) - set(SUITES)
    if unknown:
        parser.error(f"expected suites of {', '.join(SUITES)}, found {', '.join(sorted(unknown))}")
    if os.geteuid() != 0:
        parser.error("the suites make devices and become other users: run it as root")
    print(f"seed {given.seed}", flush=True)  # noqa: T201
    shutil.rmtree(ROOM, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        mount = DaemonMount(Path(name))
        mount.backing.chmod(0o777)
        with mount.to_its_end(LIMIT_S):
            mount.start("--allow-other")
            done = Run(mount, given.seed, given.steps)
            for suite in given.suites or SUITES:
                SUITES[suite](done)
    for line in done.wrong:
        print(line)  # noqa: T201
    print(f"otherwise than expected: {len(done.wrong)}")  # noqa: T201
    return 1 if done.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
