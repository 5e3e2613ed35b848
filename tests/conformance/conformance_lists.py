"""The cases of a suite that do not pass here, each with its reason, and what a run says otherwise.

A list is a TOML file: `[[otherwise]]` with `why`, the `outcome` of all its cases, `failed` or `skipped`, and `cases`.
`mkdir::{fifo,socket}` stands for two cases, so that a list can be read.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

_CHOICE = re.compile(r"\{([^{}]*)\}")


class Outcome(StrEnum):
    """What comes of a case."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Otherwise(NamedTuple):
    """A case that is expected not to pass."""

    outcome: Outcome
    why: str


def read(file: Path) -> dict[str, Otherwise]:
    """Read a list. ValueError where it names a case twice, or gives no reason."""
    expected: dict[str, Otherwise] = {}
    for group in tomllib.loads(file.read_text())["otherwise"]:
        if not group["why"].strip():
            raise ValueError(f"{file.name}: expected a reason of {group['cases']}")
        for case in (name for pattern in group["cases"] for name in expanded(pattern)):
            if case in expected:
                raise ValueError(f"{file.name}: {case} is listed twice")
            expected[case] = Otherwise(Outcome(group["outcome"]), group["why"])
    return expected


def expanded(pattern: str) -> Iterator[str]:
    """Yield the names that a pattern stands for."""
    found = _CHOICE.search(pattern)
    if found is None:
        yield pattern
        return
    for choice in found[1].split(","):
        yield from expanded(pattern[: found.start()] + choice + pattern[found.end() :])


def differences(found: Mapping[str, Outcome], expected: Mapping[str, Otherwise]) -> list[str]:
    """Tell each case that ends otherwise than it is expected to, also one that passes again or was not run."""
    told = []
    for case in sorted({*found, *expected}):
        if case not in found:
            told.append(f"{case}: is listed, and was not run")
        elif case not in expected:
            if found[case] is not Outcome.PASSED:
                told.append(f"{case}: {found[case]}, which no reason is given for")
        elif found[case] is not expected[case].outcome:
            told.append(
                f"{case}: {found[case]}; it is listed as {expected[case].outcome}: {expected[case].why}"
            )
    return told
