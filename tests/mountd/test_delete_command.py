"""`topicfs delete` and `topicfs undelete` on a backing directory that is not mounted; on mounts: G3 to G6."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from topicfs.engine.record import Record
from topicfs.engine.store.store import Store
from topicfs.mountd.cli import main
from topicfs.mountd.targets import Target, UnknownNameError, found

ROOT = Path(__file__).parents[2]


def topicfs(*words: object, answer: str | None = None) -> Result:
    return CliRunner().invoke(main, list(map(str, words)), input=answer)


@pytest.fixture
def backing(tmp_path: Path) -> Path:
    with Store.open(tmp_path, create=True) as store:
        for number in (0, 1):
            partition = store.create("orders", number)
            for at in range(3):
                partition.append(Record(b"%d" % at, timestamp=1_700_000_000_000 + at))
        store.create("clicks")
    return tmp_path


def topics(backing: Path) -> dict[str, list[int]]:
    with Store.open(backing) as store:
        return store.topics()


def test_what_will_go_is_shown_before_anybody_is_asked(backing: Path) -> None:
    done = topicfs("delete", backing, "orders", answer="n\n")
    assert done.exit_code == 1
    assert [line.split() for line in done.stdout.splitlines()[1:3]] == [
        [f"orders-{number}", "3", "207", "B", "2023-11-14T22:13:20Z"] for number in (0, 1)
    ]
    assert (
        "Delete the topic orders with 2 partitions, 6 records, 414 B, the oldest of 2023-11-14T22:13:20Z?"
        in (done.stderr)
    )
    assert topics(backing) == {"clicks": [0], "orders": [0, 1]}


def test_a_topic_and_one_partition_are_deleted_and_taken_back(backing: Path) -> None:
    assert topicfs("delete", backing, "orders-1", answer="y\n").exit_code == 0
    done = topicfs("delete", backing, "orders", "--yes")
    assert f"topicfs undelete {backing} topics/orders" in done.stdout
    assert topics(backing) == {"clicks": [0]}
    listed = topicfs("undelete", backing).stdout.splitlines()
    assert [line.split()[1:4] for line in listed[1:]] == [["orders", "0", "3"], ["orders", "1", "3"]]
    assert topicfs("undelete", backing, "topics/orders").stdout == "orders is back\n"
    assert topicfs("undelete", backing, listed[2].split()[0]).exit_code == 0
    assert topics(backing) == {"clicks": [0], "orders": [0, 1]}
    assert "no deletions" in topicfs("undelete", backing).stdout


def test_a_deletion_that_could_not_be_written_down_has_no_way_back(
    backing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """regression: it named the deletion before it"""
    assert topicfs("delete", backing, "orders", "--yes").exit_code == 0
    with Store.open(backing) as store:
        store.create("orders").append(Record(b"newer"))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("topicfs.engine.store.deletion.write_atomically", full)
        done = topicfs("delete", backing, "orders", "--yes")
    assert done.exit_code == 0
    assert done.stdout.endswith("orders is deleted, and cannot be taken back\n")


def test_an_empty_partition_is_deleted_as_well(backing: Path) -> None:
    done = topicfs("delete", backing, "clicks-0", "--yes")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[1].split() == ["clicks-0", "0", "0", "B", "-"]
    assert topics(backing) == {"orders": [0, 1]}


def test_a_damaged_partition_is_deleted_as_well(backing: Path) -> None:
    log = backing / "logs/orders-0/00000000000000000000.log"
    log.write_bytes(b"\xff" * log.stat().st_size)
    done = topicfs("delete", backing, "orders", "--yes")
    assert done.exit_code == 0, done.stderr
    assert topics(backing) == {"clicks": [0]}


def test_what_forbids_it_is_said(backing: Path) -> None:
    (backing / "server.properties").write_text("delete.topic.enable=false\n")
    done = topicfs("delete", backing, "orders", "--yes")
    assert (done.exit_code, "delete.topic.enable is false" in done.stderr) == (1, True)
    assert topics(backing) == {"clicks": [0], "orders": [0, 1]}


def test_a_directory_that_is_no_store_is_left_alone(tmp_path: Path) -> None:
    for command in ("delete", "undelete"):
        done = topicfs(command, tmp_path, "orders")
        assert done.exit_code == 1
        assert "found an empty directory" in done.stderr
    assert os.listdir(tmp_path) == []


def test_a_store_that_another_process_has_open_is_left_alone(backing: Path) -> None:
    script = (
        f"from topicfs import Store; s = Store.open({str(backing)!r}); print('open', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        done = topicfs("delete", backing, "orders", "--yes")
        holder.communicate(b"\n")
    assert done.exit_code == 1
    assert f"process {holder.pid} has it open" in done.stderr
    assert topics(backing) == {"clicks": [0], "orders": [0, 1]}


def test_a_name_that_means_two_things_is_refused() -> None:
    there = {"a": [0, 1], "a-0": [0], "b-7": [0]}
    with pytest.raises(UnknownNameError, match=r"topics/a-0 for the topic, \./a-0 for the partition"):
        found("a-0", there)
    assert found("topics/a-0", there) == Target("a-0", None)
    assert found("./a-0", there) == Target("a", 0)
    assert found("a-1", there) == Target("a", 1)
    assert found("a-0-0", there) == Target("a-0", 0)
    assert found("b-7", there) == Target("b-7", None)
    for name in ("", "c", "a-2", "a-", "-0", "a-00x", "topics/c", "./a", "a-٠", "../a"):
        with pytest.raises(UnknownNameError, match="there is no"):
            found(name, there)
