"""The search for bytes that a target should not take, guided by what its code has run through: atheris is libFuzzer
for Python.

Kernels are machine code, which the search sees nothing of, and they are what users run. So what a target has found, or
in which words it has refused the bytes, counts as code that was run through: bytes that a kernel answers in another way
than all others are kept and changed further.

A corpus is one file for each target, `corpus/<target>.txt`, with an input in base64 on each line. It has what a search
began with, what led it far, and each finding.
"""

from __future__ import annotations

import base64
import logging
import re
import subprocess
import sys
import time
import types
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
CORPUS: Final = HERE / "corpus"
LONGEST: Final = 4096
SECONDS_MOST: Final = 10
"""So long one input may take, and so much memory the process, in MiB."""

MEMORY_MOST: Final = 2048
BOUT_S: Final = 90
"""So long one process searches: watching the code takes some kilobytes for each input, and never gives them back."""

_MARKS: Final = 4096
_VARYING: Final = re.compile(r"'.*'|\".*\"|[0-9]|/tmp/[^:]*")
"""What in a refusal is of the bytes, and not of their kind."""

_MOST_KEPT: Final = 20
_LONGEST_KEPT: Final = 400


def kept(name: str) -> list[bytes]:
    """The corpus of a target."""
    path = CORPUS / f"{name}.txt"
    return [base64.b64decode(line) for line in path.read_text().split()] if path.exists() else []


def keep(name: str, inputs: Iterable[bytes]) -> None:
    """Replace the corpus of a target: the smallest inputs, and no more than people would look at."""
    chosen = sorted(
        {each for each in inputs if len(each) <= _LONGEST_KEPT}, key=lambda each: (len(each), each)
    )
    CORPUS.mkdir(exist_ok=True)
    lines = [base64.b64encode(each).decode() for each in chosen if each]
    (CORPUS / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))


def attempt(check: Callable[[bytes], Any], data: bytes) -> Any:
    """What a target finds in bytes, or the words in which it refuses them. What is a fault passes."""
    from topicfs.engine.errors import EngineError  # noqa: PLC0415 - only behind the tools that watch what is imported
    from topicfs.fs.errors import BadInputError  # noqa: PLC0415

    try:
        return check(data)
    except (EngineError, BadInputError) as error:
        return _VARYING.sub("", str(error).partition(", found")[0])[:80]


def search(name: str, arguments: list[str]) -> None:
    """Search in this process, which ends with it. The arguments are libFuzzer's."""
    import atheris  # noqa: PLC0415 - tests of the corpus do without it

    with atheris.instrument_imports(include=["topicfs"], exclude=list(_kernels())):
        from fuzz_targets import TARGETS  # noqa: PLC0415 - what is imported here is watched
    logging.disable()
    check, _ = TARGETS[name]
    marks = [
        atheris.instrument_func(types.FunctionType(_nothing.__code__.replace(), {})) for _ in range(_MARKS)
    ]

    def one(data: bytes) -> None:
        marks[zlib.crc32(repr(attempt(check, data)).encode()) % _MARKS]()

    atheris.Setup([sys.argv[0], *arguments], one)
    atheris.Fuzz()


def _kernels() -> Iterator[str]:
    """The modules whose functions become machine code: with calls of the search in them they would not."""
    for room in ("engine", "fs"):
        for module in sorted((HERE.parents[1] / room / "kernels").glob("*.py")):
            yield f"topicfs.{room}.kernels.{module.stem}"


def _nothing() -> None:
    return None


def run(name: str, seconds: int, room: Path) -> tuple[int, str]:
    """Search for so long, and keep the best of what it has found. Return the number of inputs, and the end of what it
    said where it has found a fault, else nothing."""
    from fuzz_targets import TARGETS  # noqa: PLC0415 - it loads the engine

    corpus = room / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate((*TARGETS[name][1], *kept(name))):
        (corpus / f"kept-{number}").write_bytes(data)
    end, inputs, words = time.monotonic() + seconds, 0, ""
    while not words and (left_s := round(end - time.monotonic())) > 0:
        count, words = _search_for(name, min(left_s, BOUT_S), room)
        inputs += count
    return inputs, words


def _search_for(name: str, seconds: int, room: Path) -> tuple[int, str]:
    """Search in a process of its own, which goes on with what the one before has kept."""
    corpus = room / name
    command = [
        sys.executable, str(HERE), "--search", name, str(corpus), f"-max_len={LONGEST}", f"-timeout={SECONDS_MOST}",
        f"-rss_limit_mb={MEMORY_MOST}", f"-max_total_time={seconds}", f"-artifact_prefix={room}/{name}-",
        "-print_final_stats=1", f"-dict={HERE}/words.dict",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    told = done.stderr + done.stdout
    counts = [int(line.rsplit(":", 1)[1]) for line in told.splitlines() if "number_of_executed_units" in line]
    return sum(counts), "" if done.returncode == 0 else told[-6000:]


def distil(name: str, room: Path) -> None:
    """Keep the inputs of a search that no smaller input answers for, up to a number."""
    from fuzz_targets import TARGETS  # noqa: PLC0415

    check, seeds = TARGETS[name]
    answers: dict[str, bytes] = {}
    known = {repr(attempt(check, data)) for data in seeds}
    found = sorted((each.read_bytes() for each in (room / name).iterdir()), key=len)
    for data in found:
        try:
            answer = repr(attempt(check, data))
        except Exception:  # noqa: BLE001 - a finding, which is kept by hand with its repair
            continue
        if answer not in known:
            answers.setdefault(answer, data)
    keep(name, [*kept(name), *list(answers.values())[:_MOST_KEPT]])
