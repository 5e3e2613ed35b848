"""The torture: a short run of it, what it has found before, and what it checks of the contract."""

from __future__ import annotations

import ast
import os
import random
import re
from pathlib import Path

import other_user
import pytest
import rows as scripts
from harness import missing
from known_keys import Value
from oracle import MAX, BrokenPromiseError, Hit, Oracle, Range, State
from rows import Row
from run import WEIGHTS, run, told
from sampling import sample
from shrinking import shrink

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOUND = sorted((HERE / "found").glob("*.rows"))


def promises() -> list[str]:
    """The labels of the contract, in its order."""
    return re.findall(r"^\* \*\*(\w+)\*\* ", (ROOT / "fs/SEMANTICS.md").read_text(), re.MULTILINE)


def checked() -> set[str]:
    """The labels that checks of the torture name."""
    labels = set()
    for file in HERE.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "promise",
                "BrokenPromiseError",
                "unmoved",
                "detail",
            ):
                labels |= {
                    each.value
                    for each in node.args
                    if isinstance(each, ast.Constant) and isinstance(each.value, str)
                }
    return labels


def functions() -> set[str]:
    """All functions of the torture."""
    return {
        node.name
        for file in HERE.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef)
    }


def test_the_table_tells_of_each_promise_what_checks_it_or_that_nothing_does() -> None:
    table, _, rest = (HERE / "PROMISES.md").read_text().partition("## Without a check")
    rows = dict(re.findall(r"^\| (\w+) \| `(\w+)` \| .+ \|$", table, re.MULTILINE))
    unchecked = " ".join(re.findall(r"^\* (.+)$", rest, re.MULTILINE)).split()
    assert list(rows) == [label for label in promises() if label in rows]
    expected = [label for label in promises() if label not in rows]
    assert unchecked == expected, "a promise that came or went has its place in tests/torture/PROMISES.md too"
    assert checked() & set(promises()) <= set(rows)
    assert set(rows.values()) <= functions()


@pytest.mark.skipif(missing() is not None, reason="nothing can be mounted here")
def test_a_short_run_keeps_every_promise() -> None:
    """The same rows each time: to search is what `make torture` is for. It makes a place of its own: the test's has a
    long path, and a socket's name would be longer than such names may be."""
    rows = [Row("directory"), *scripts.draw(random.Random("smoke"), WEIGHTS, 12)]
    outcome = run(rows)
    assert outcome.label is None, f"{told(outcome)}\n" + "".join(f"{row}\n" for row in rows)
    assert outcome.done.total() == 12


@pytest.mark.skipif(missing() is not None, reason="nothing can be mounted here")
def test_a_run_with_damaged_logs_and_little_memory_keeps_every_promise() -> None:
    rows = [
        Row("memory"),
        Row("append_much"),
        Row("damage_log_mounted", (0, 3, 0, 40)),
        Row("append"),
        Row("memory"),
        Row("damage_log", (0, 9, 5, 3, 50)),
        Row("append_much"),
        Row("damage_log", (1, 7, 8, 1, 2)),
    ]
    outcome = run(rows)
    assert outcome.label is None, told(outcome)
    assert sum(" is damaged: " in words for words in outcome.said) >= 2
    assert any("no more memory than" in words for words in outcome.said)


@pytest.mark.skipif(missing() is not None, reason="nothing can be mounted here")
def test_a_run_of_an_ordinary_user_keeps_every_promise() -> None:
    lack = other_user.lacks()
    if lack is not None:
        pytest.skip(lack)
    outcome = run([Row("user"), Row("append"), Row("kill"), Row("transaction", (0, 1)), Row("umount")])
    if outcome.label == "namespace":
        pytest.skip(outcome.words)
    assert outcome.label is None, told(outcome)
    assert outcome.lines > 0


@pytest.mark.skipif(missing() is not None, reason="nothing can be mounted here")
def test_what_was_found_before_is_mended() -> None:
    for file in sample(FOUND) if FOUND else ():
        rows = scripts.read(file)
        if rows[0].name != "directory" and os.getuid():
            continue
        outcome = run(rows)
        assert outcome.label is None, f"{file.name}: {told(outcome)}"


def looked(oracle: Oracle, shown: list[bytes]) -> None:
    """Look at a partition that shows this."""
    oracle.look("t#0", 0, 0, shown)
    oracle.settle("t#0", [0])


def test_a_line_that_is_lost_doubled_or_changed_is_told() -> None:
    def written() -> tuple[Oracle, list[bytes]]:
        oracle = Oracle()
        lines = [oracle.line("t#0", 0, None, 5, 1) for _ in range(3)]
        for at, line in enumerate(lines):
            line.rank = at + 1
        oracle.acknowledge(lines)
        shown = [
            b'{"offset":%d,"timestamp":1,"key":null,"value":"%s"}' % (at, line.value)
            for at, line in enumerate(lines)
        ]
        return oracle, shown

    oracle, shown = written()
    oracle.look("t#0", 0, 0, shown)
    oracle.settle("t#0", [0])
    with pytest.raises(BrokenPromiseError, match="D1"):
        oracle.look("t#0", 0, 0, shown[:2])
    oracle.look("t#0", 0, 2, shown[2:])
    with pytest.raises(BrokenPromiseError, match="S1"):
        oracle.look("t#0", 0, 2, [shown[2].replace(b'timestamp":1', b'timestamp":2')])
    for wrong, label in (
        ([shown[0], shown[1]], "D1"),
        ([*shown, shown[2].replace(b'offset":2', b'offset":3')], "D6"),
        (
            [
                shown[1].replace(b'offset":1', b'offset":0'),
                shown[0].replace(b'offset":0', b'offset":1'),
                shown[2],
            ],
            "A3",
        ),
        ([shown[0], shown[1].replace(b"abc", b"abd"), shown[2]], "A3"),
    ):
        oracle, _ = written()
        with pytest.raises(BrokenPromiseError, match=label):
            looked(oracle, wrong)
    oracle, shown = written()
    oracle.lines[3].state = State.UNKNOWN
    oracle.look("t#0", 0, 0, shown[:2])
    oracle.settle("t#0", [0])
    with pytest.raises(BrokenPromiseError, match="D6"):
        oracle.look("t#0", 0, 0, shown)


def test_what_damage_does_not_explain_is_told() -> None:
    def written() -> tuple[Oracle, list[bytes]]:
        oracle = Oracle()
        lines = [oracle.line("t#0", 0, None, 5, 1) for _ in range(4)]
        oracle.acknowledge(lines)
        return oracle, [
            b'{"offset":%d,"timestamp":1,"key":null,"value":"%s"}' % (at, line.value)
            for at, line in enumerate(lines)
        ]

    hidden = Hit([Range(1, 2)], [], 4)
    oracle, shown = written()
    looked(oracle, shown)
    oracle.look("t#0", 0, 0, [shown[0], *shown[2:]], hidden)
    with pytest.raises(BrokenPromiseError, match="D1"):
        oracle.look("t#0", 0, 0, [shown[0], shown[3]], hidden)
    # One offset is hidden: of two lines that nobody has seen one is lost.
    oracle, shown = written()
    oracle.look("t#0", 0, 0, [shown[0], shown[3]], hidden)
    with pytest.raises(BrokenPromiseError, match="D1"):
        oracle.settle("t#0", [0])
    oracle, shown = written()
    oracle.look("t#0", 0, 0, [shown[0], *shown[2:]], hidden)
    oracle.settle("t#0", [0])
    # What a recovery has cut off never comes back, and what is below the cut may not go.
    cut = Hit([], [Range(2, MAX)], 2)
    oracle, shown = written()
    looked(oracle, shown)
    oracle.look("t#0", 0, 0, shown[:2], cut)
    oracle.settle("t#0", [0])
    with pytest.raises(BrokenPromiseError, match="D6"):
        oracle.look("t#0", 0, 0, shown[:3])
    oracle, shown = written()
    looked(oracle, shown)
    with pytest.raises(BrokenPromiseError, match="D1"):
        oracle.look("t#0", 0, 0, shown[1:2], cut)


def test_topics_of_which_one_has_a_part_of_what_belongs_together_are_told() -> None:
    oracle = Oracle()
    lines = [oracle.line(topic, 0, None, 5, 1) for topic in ("t#0", "u#0")]
    oracle.together.append(("I26", lines))
    oracle.acknowledge(lines[:1])
    oracle.settle_together()
    oracle.refuse(lines[1:])
    with pytest.raises(BrokenPromiseError, match="I26: 1 of 2"):
        oracle.settle_together()


def test_a_value_that_is_lost_or_comes_back_is_told() -> None:
    def known() -> Value:
        return Value([(b"a", State.SAFE), (b"b", State.KEPT), (b"c", State.UNKNOWN)])

    for found in (b"b", b"c"):
        known().seen(found, "k")
    for found in (b"a", b"d", None):
        with pytest.raises(BrokenPromiseError, match="V4"):
            known().seen(found, "k")
    # A power cut may take what is not on the disk, and a look tells for ever.
    value = known()
    value.cut = True
    value.seen(b"a", "k")
    with pytest.raises(BrokenPromiseError, match="V4"):
        value.seen(b"b", "k")
    value = known()
    value.tokens = {b"x"}, {b"x", b"y"}
    with pytest.raises(BrokenPromiseError, match="V9"):
        value.seen(b"y ", "k")


def test_a_failing_list_is_made_as_short_as_it_can_be() -> None:
    rows = [Row("first"), *(Row(str(number), (number, 7)) for number in range(40))]

    def fails(candidate: list[Row]) -> bool:
        names = {row.name for row in candidate}
        return {"11", "29"} <= names and any(row.name == "29" and row.numbers[1] == 7 for row in candidate)

    assert shrink(rows, fails, 60) == [Row("first"), Row("11", (0, 0)), Row("29", (0, 7))]


def test_rows_are_drawn_and_kept_as_they_are(tmp_path: Path) -> None:
    rows = scripts.draw(random.Random(1), WEIGHTS, 20)
    assert rows == scripts.draw(random.Random(1), WEIGHTS, 20)
    scripts.write(tmp_path / "some.rows", rows, "A3: what\nthey found")
    assert scripts.read(tmp_path / "some.rows") == rows
