"""That each promise of `fs/SEMANTICS.md` has a test with the same words, and no test promises anything else."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
CONTRACT = HERE.parents[1] / "fs" / "SEMANTICS.md"


def promises() -> dict[str, str]:
    """The contract's numbered lines."""
    return dict(re.findall(r"^\* \*\*(\w+)\*\* (.+)$", CONTRACT.read_text(), re.MULTILINE))


def told() -> list[tuple[str, str]]:
    """What the tests' docstrings say: `A1. words`, several with a blank line between them; in the files' order."""
    found = []
    for path in sorted(HERE.glob("test_semantics_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for part in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                    label, _, words = part.partition(". ")
                    found.append((label, " ".join(words.split())))
    return found


def test_every_promise_has_a_test_with_the_same_words() -> None:
    assert dict(told()) == promises()


def test_no_promise_is_told_twice_and_no_label_is_used_twice() -> None:
    labels = re.findall(r"^\* \*\*(\w+)\*\*", CONTRACT.read_text(), re.MULTILINE)
    assert [label for label, count in Counter(labels).items() if count > 1] == []
    assert [label for label, count in Counter(label for label, _ in told()).items() if count > 1] == []


def test_each_section_is_told_in_its_order() -> None:
    order = list(promises())
    labels = [label for label, _ in told()]
    for letter in {label[0] for label in order}:
        tests = [label for label in labels if label[0] == letter]
        assert tests == [label for label in order if label[0] == letter]


def test_every_numbered_line_is_numbered_as_the_others_are() -> None:
    lines = [line for line in CONTRACT.read_text().splitlines() if line.startswith("*")]
    assert len(lines) == len(promises())
