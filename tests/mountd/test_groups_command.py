"""`topicfs groups` on a store that is not mounted; on a mount, and what metrics tell of groups."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families

from topicfs.engine.groups.groups import Groups
from topicfs.engine.jobs import Jobs
from topicfs.engine.store.store import Store
from topicfs.mountd.cli import main
from topicfs.mountd.metrics import Metrics


def topicfs(*words: object) -> Result:
    return CliRunner().invoke(main, ["groups", *map(str, words)])


@pytest.fixture
def backing(tmp_path: Path) -> Path:
    with Store.open(tmp_path, create=True) as store:
        store.create_topic("orders", 2)
        store.partition("orders", 0).append_lines(b"x\n" * 10)
        groups = Groups.of(store)
        groups.create("readers")
        groups.commit("readers", {("orders", 0): 3, ("orders", 1): 0})
        groups.create("idle")
    return tmp_path


def test_groups_are_listed_with_their_lag(backing: Path) -> None:
    assert [line.split() for line in topicfs(backing).stdout.splitlines()] == [
        ["group", "state", "members", "positions", "lag"],
        ["idle", "Empty", "0", "0", "0"],
        ["readers", "Empty", "0", "2", "7"],
    ]
    found = [json.loads(line) for line in topicfs(backing, "--json").stdout.splitlines()]
    assert [(each["group"], len(each["positions"])) for each in found] == [("idle", 0), ("readers", 2)]


def test_a_group_is_described(backing: Path) -> None:
    lines = [line.split()[:5] for line in topicfs(backing, "readers").stdout.splitlines()]
    assert lines[1:] == [["orders-0", "3", "10", "7", "-"], ["orders-1", "0", "0", "0", "-"]]


def test_positions_are_set_anew(backing: Path) -> None:
    assert topicfs(backing, "readers", "--reset", "latest").exit_code == 0
    assert topicfs(backing, "idle", "--reset", "earliest", "--topic", "orders").exit_code == 0
    with Store.open(backing) as store:
        groups = Groups.of(store)
        assert [each.offset for each in groups.positions("readers").values()] == [10, 0]
        assert groups.positions("idle").keys() == {("orders", 0), ("orders", 1)}
        groups.join("readers", "w1", ["orders"])
    for words, reason in (
        (("readers", "--reset", "0"), "has members, which alone set its positions: w1"),
        (("idle", "--reset", "soon"), "found 'soon'"),
        (("idle", "--reset", "0", "--topic", "other"), "there is no topic other"),
        (("other",), "there is no group other"),
        (("--reset", "0"), "name it"),
    ):
        done = topicfs(backing, *words)
        assert done.exit_code == 1
        assert reason in done.stderr


def test_metrics_tell_the_lag_of_groups_and_load_nothing(backing: Path) -> None:
    with Store.open(backing) as store:
        groups = Groups.of(store)
        metrics = Metrics(store, Jobs([]), dict)
        metrics.tell_of_groups(groups)

        def values() -> dict[str, float]:
            families = text_string_to_metric_families(metrics.render().decode())
            return {
                sample.name + str(sample.labels.get("group", "")): sample.value
                for family in families
                for sample in family.samples
                if sample.name.startswith("topicfs_group")
            }

        assert values() == {"topicfs_groups": 0, "topicfs_groups_lag_records": 0}
        assert not [slot for slot in store.slots() if slot.partition is not None]
        assert groups.names() == ["idle", "readers"]
        assert values()["topicfs_groups_lag_records"] == 0
        store.partition("orders", 0)
        assert values() == {
            "topicfs_groups": 2,
            "topicfs_groups_lag_records": 7,
            "topicfs_group_lag_recordsidle": 0,
            "topicfs_group_lag_recordsreaders": 7,
        }
