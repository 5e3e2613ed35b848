"""The results of a whole run: a table in words, and a picture of the ratios."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import matplotlib as mpl
from contest import Contest, Contests, cells
from matplotlib import pyplot as plt
from report import machine

_FOLDER: Final = Path(__file__).resolve().parents[1] / "results"
_COLUMNS: Final = (
    "work",
    "tool",
    "median (lowest to highest)",
    "rate",
    "processor",
    "memory",
    "topicfs is so many times as fast",
)


def save(contests: Contests, took_s: float) -> None:
    """Write the table and the picture."""
    versions = [f"kcat {_said('kcat', '-V', after='Version ')}", _said("java", "-version"), _kafka()]
    lines = [
        "# `make bench-kafka`, whole",
        "",
        f"{machine()}, {', '.join(versions)}. It took {took_s / 60:.0f} minutes. Processor seconds and "
        "memory are those of the tool and of the server behind it, together.",
        "",
        _line(_COLUMNS),
        _line(["---"] * len(_COLUMNS)),
    ]
    for contest in contests.done:
        lines += [_line(cells(contest, result)) for result in (contest.ours, *contest.others)]
    _FOLDER.mkdir(exist_ok=True)
    (_FOLDER / "kafka.md").write_text("\n".join(lines) + "\n")
    draw(contests.done, _FOLDER / "kafka.svg")


def draw(done: list[Contest], path: Path) -> None:
    """Draw a bar for each rival: how many times as fast topicfs is."""
    bars = [
        (f"{contest.work}: {other.name}", contest.ratio(other))
        for contest in done
        for other in contest.others
    ]
    bars.reverse()
    # Text as text: as outlines it is nine tenths of the file.
    mpl.rcParams.update({"svg.hashsalt": "topicfs", "svg.fonttype": "none"})
    figure, axes = plt.subplots(figsize=(11, 0.32 * len(bars) + 1.2), layout="constrained")
    names, ratios = zip(*bars, strict=True)
    drawn = axes.barh(names, ratios, color=["#2a6f97" if ratio >= 1 else "#c1121f" for ratio in ratios])
    axes.bar_label(drawn, [f" {ratio:.1f}" for ratio in ratios], fontsize=8)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times as fast as the tool that is named")
    axes.tick_params(axis="y", labelsize=8)
    axes.margins(x=0.12, y=0.01)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _line(words: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(word.replace("|", "\\|") for word in words) + " |"


def _said(*command: str, after: str = "") -> str:
    """Return the first line of what a program says that begins with some words, without these."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    return next(line for line in lines if line.startswith(after)).removeprefix(after).split(" (")[0]


def _kafka() -> str:
    jars = Path(__file__).resolve().parents[3] / ".tools/kafka"
    (name,) = (jar.stem for jar in jars.glob("kafka-clients-*.jar"))
    return name
