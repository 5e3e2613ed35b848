"""The results, kept group by group: a long run can be made in parts. Rounds, a table, and a picture of the ratios."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from contest import Contest, Result, Taken, cells
from matplotlib import pyplot as plt
from report import machine

_FOLDER: Final = Path(__file__).resolve().parents[1] / "results"
_KEPT: Final = _FOLDER / "kafka.json"
_COLUMNS: Final = (
    "work",
    "tool",
    "median (lowest to highest)",
    "rate",
    "processor",
    "memory",
    "topicfs is so many times as fast",
)


def keep(group: str, done: list[Contest], scale: float, took_s: float, order: Sequence[str]) -> None:
    """Keep what a group found, and write the table and the picture of all groups that are kept, in their order. What
    was found with more records stays."""
    kept = json.loads(_KEPT.read_text()) if _KEPT.exists() else {}
    if group in kept and kept[group]["scale"] > scale:
        print(
            f"{group}: not kept, as there are results with {kept[group]['scale']:g} of the records",
            flush=True,
        )
        return
    versions = [f"kcat {_said('kcat', '-V', after='Version ')}", _said("java", "-version"), _kafka()]
    kept[group] = {
        "machine": f"{machine()}, {', '.join(versions)}",
        "scale": scale,
        "took_s": round(took_s),
        "contests": [asdict(contest) for contest in done],
    }
    _FOLDER.mkdir(exist_ok=True)
    _KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    _show([(name, kept[name]) for name in order if name in kept])


def _show(kept: list[tuple[str, Any]]) -> None:
    """Write the table, and the picture."""
    machines = {each["machine"]: None for _, each in kept}
    took_s = sum(each["took_s"] for _, each in kept)
    lines = [
        "# `make bench-kafka`",
        "",
        *(f"{each}." for each in machines),
        f"It took {took_s / 60:.0f} minutes. Processor seconds and memory are those of the tool and of the server "
        "behind it, together.",
        "",
        _line(_COLUMNS),
        _line(["---"] * len(_COLUMNS)),
    ]
    done = [_contest(fields) for _, each in kept for fields in each["contests"]]
    for contest in done:
        lines += [_line(cells(contest, result)) for result in (contest.ours, *contest.others)]
    (_FOLDER / "kafka.md").write_text("\n".join(lines) + "\n")
    draw(done, _FOLDER / "kafka.svg")


def _contest(fields: dict[str, Any]) -> Contest:
    """Return a contest that was kept."""
    ours, *others = (
        Result(each["name"], tuple(Taken(**taken) for taken in each["rounds"]))
        for each in (fields["ours"], *fields["others"])
    )
    return Contest(fields["work"], ours, tuple(others), fields["goal"], fields["amount"])


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
