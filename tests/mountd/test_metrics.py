"""The metrics: what Prometheus would read."""

from __future__ import annotations

import errno
import json
import re
import socket
import threading
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from memory_view_cache import MemoryViewCache
from prometheus_client.parser import text_string_to_metric_families

from topicfs import Record, Transaction
from topicfs.engine.groups.groups import Groups
from topicfs.engine.jobs import Job, Jobs
from topicfs.engine.keys.index import KeyIndex
from topicfs.engine.link.client import ClientSettings
from topicfs.engine.link.group import Group
from topicfs.engine.parquet.table import Tables
from topicfs.engine.partition.partition import Partition
from topicfs.engine.store.store import Store
from topicfs.fs.error_budget import ERRORS
from topicfs.fs.errors import AppendOnlyError, errno_of
from topicfs.fs.holdings import Holdings
from topicfs.mountd.cleaners import Cleaners
from topicfs.mountd.metrics import Counts, Metrics

ROOT = Path(__file__).parents[2]


def fail() -> None:
    raise OSError("full")


def values(metrics: Metrics) -> dict[str, float]:
    """Each sample by its name and labels, as an independent parser reads them."""
    return {
        sample.name
        + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


@pytest.fixture
def jobs() -> Jobs:
    return Jobs([Job("good", 1000, lambda: None, 0), Job("bad", 1000, fail, 0)], clock=lambda: 5_000)


def test_partition_in_use_tells_its_offsets_and_sizes(tmp_path: Path, jobs: Jobs) -> None:
    with Store.open(tmp_path, create=True) as store:
        partition = store.create("orders", 3)
        partition.append_lines(b"a\nb\nc\n")
        partition.delete_records(1)
        partition.roll()
        found = values(Metrics(store, jobs, dict))
        labels = " partition=3 topic=orders"
        assert found[f"topicfs_partition_start_offset{labels}"] == 1
        assert found[f"topicfs_partition_end_offset{labels}"] == 3
        assert found[f"topicfs_partition_stable_offset{labels}"] == 3
        assert found[f"topicfs_partition_recovery_point{labels}"] == partition.recovery_point
        assert found[f"topicfs_partition_size_bytes{labels}"] == partition.size
        assert found[f"topicfs_partition_segments{labels}"] == 2


def test_metrics_load_no_partition(tmp_path: Path, jobs: Jobs) -> None:
    with Store.open(tmp_path, create=True) as store:
        store.create("orders")
    with Store.open(tmp_path, create=True) as store:
        metrics = Metrics(store, jobs, dict)
        assert values(metrics)["topicfs_partitions state=unused"] == 1
        assert b"topicfs_partition_end_offset{" not in metrics.render()
        store.partition("orders-0")
        assert values(metrics)["topicfs_partitions state=loaded"] == 1


def test_partition_offline_is_told(tmp_path: Path, jobs: Jobs) -> None:
    with Store.open(tmp_path, create=True) as store:
        partition = store.create("orders")
        partition.log.failure = OSError("gone")
        found = values(Metrics(store, jobs, dict))
        assert found["topicfs_partitions state=offline"] == 1
        assert found["topicfs_partitions state=loaded"] == 0


def test_deleted_partition_is_told_no_more(tmp_path: Path, jobs: Jobs) -> None:
    with Store.open(tmp_path, create=True) as store:
        store.create("orders")
        metrics = Metrics(store, jobs, dict)
        store.delete("orders-0")
        assert not any(name.startswith("topicfs_partition_") for name in values(metrics))


def test_counts_of_the_mount_are_told(tmp_path: Path, jobs: Jobs) -> None:
    with Store.open(tmp_path, create=True) as store:
        metrics = Metrics(store, jobs, lambda: {"ERROR": 2})
        metrics.counts.read(10)
        metrics.counts.read(20)
        metrics.counts.wrote(7)
        before = ERRORS.counts().get("EPERM", 0)
        errno_of(AppendOnlyError("no"), "unlink", "/t-0/log.txt")
        found = values(metrics)
        assert found["topicfs_reads_total"] == 2
        assert found["topicfs_read_bytes_total"] == 30
        assert found["topicfs_writes_total"] == 1
        assert found["topicfs_written_bytes_total"] == 7
        assert found["topicfs_errors_total errno=EPERM"] == before + 1
        assert found["topicfs_log_messages_total level=ERROR"] == 2


def test_jobs_are_told(tmp_path: Path, jobs: Jobs) -> None:
    with Store.open(tmp_path, create=True) as store:
        metrics = Metrics(store, jobs, dict)
        assert "topicfs_job_last_run_timestamp_seconds job=good" not in values(metrics)
        jobs.run("good")
        jobs.run("bad")
        found = values(metrics)
        assert found["topicfs_job_runs_total job=good"] == 1
        assert found["topicfs_job_errors_total job=bad"] == 1
        assert found["topicfs_job_healthy job=good"] == 1
        assert found["topicfs_job_healthy job=bad"] == 0
        assert found["topicfs_job_last_run_timestamp_seconds job=good"] == 5
        assert found["topicfs_job_last_duration_seconds job=bad"] >= 0


def test_what_waits_in_inboxes_is_told(tmp_path: Path, jobs: Jobs) -> None:
    with Store.open(tmp_path, create=True) as store:
        metrics = Metrics(store, jobs, lambda: {})
        for topic in ("orders", "quiet"):
            store.create(topic)
        assert not any("inbox" in name for name in values(metrics))
        batch = tmp_path / "staging" / "orders" / "inbox" / "q1"
        batch.mkdir(parents=True)
        (batch / "part-00000.txt").touch()
        (batch / "part-00001.txt").touch()
        found = values(metrics)
        assert found["topicfs_inbox_waiting_batches topic=orders"] == 1
        assert found["topicfs_inbox_waiting_files topic=orders"] == 2
        since = found["topicfs_inbox_waiting_since_timestamp_seconds topic=orders"]
        assert abs(since - (batch / "part-00001.txt").stat().st_ctime) < 1
        assert not any("inbox" in name and "quiet" in name for name in found)


def test_memory_of_the_process_is_told(tmp_path: Path, jobs: Jobs) -> None:
    with Store.open(tmp_path, create=True) as store:
        assert values(Metrics(store, jobs, dict))["process_resident_memory_bytes"] > 0


def test_no_count_is_lost_between_threads() -> None:
    counts = Counts()

    def work() -> None:
        for _ in range(20_000):
            counts.read(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (counts.reads, counts.read_bytes) == (80_000, 80_000)


def test_times_of_calls_are_told_by_limits(tmp_path: Path, jobs: Jobs) -> None:
    with Store.open(tmp_path, create=True) as store:
        metrics = Metrics(store, jobs, dict)
        latencies = metrics.counts.latencies
        for nanoseconds in (0, 1024, 1025, 4096, 10**9, 10**12):
            latencies.note("write", nanoseconds)
        found = values(metrics)
        name = "topicfs_call_duration_seconds"
        assert [found[f"{name}_bucket le={le} operation=write"] for le in ("1.024e-06", "4.096e-06")] == [
            2,
            4,
        ]
        assert found[f"{name}_bucket le=+Inf operation=write"] == 6
        assert found[f"{name}_count operation=write"] == 6
        assert found[f"{name}_sum operation=write"] == pytest.approx(1001.000006145)
        assert found[f"{name}_count operation=fsync"] == 0


def test_metrics_are_served_on_a_port_of_this_machine_alone(tmp_path: Path, jobs: Jobs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, Store.open(tmp_path, create=True) as store:
        metrics = Metrics(store, jobs, dict)
        with pytest.raises(OSError, match="in use"):
            metrics.serve(taken.getsockname()[1])
        port = taken.getsockname()[1]
        taken.close()
        end = metrics.serve(port)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert b"topicfs_partitions" in answer.read()
        end()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port)).close()


def test_transactions_are_told_by_state_and_those_that_cannot_end(
    tmp_path: Path, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path, create=True) as store:
        store.create("orders")
        metrics = Metrics(store, jobs, lambda: {})
        assert values(metrics)["topicfs_transactions_unsettled"] == 0
        with Transaction(store, "a") as transaction:
            transaction.send("orders", b"x")
        store.transactions.init_producer("b", 60_000)
        found = values(metrics)
        assert found["topicfs_transactional_ids state=CompleteCommit"] == 1
        assert found["topicfs_transactional_ids state=Empty"] == 1

        def full(self: Partition, *_: object) -> None:
            raise OSError(errno.ENOSPC, "full")

        with monkeypatch.context() as patch:
            patch.setattr(Partition, "end_transaction", full)
            with Transaction(store, "b") as transaction:
                transaction.send("orders", b"y")
            assert values(metrics)["topicfs_transactions_unsettled"] == 1
        store.transactions.settle()
        assert values(metrics)["topicfs_transactions_unsettled"] == 0


def test_keys_are_told_of_partitions_whose_index_is_in_use(tmp_path: Path, jobs: Jobs) -> None:
    with Store.open(tmp_path, create=True) as store:
        partition = store.create("users", 2, {"cleanup.policy": "compact"})
        partition.append([Record(b"1", b"ann"), Record(b"2", b"bob"), Record(b"3", b"ann")])
        index = KeyIndex(partition, MemoryViewCache())
        metrics = Metrics(store, jobs, dict)
        metrics.tell_of_keys(lambda: [index])
        of = " partition=2 topic=users"
        assert values(metrics)[f"topicfs_keys_behind_records{of}"] == 3
        assert [index.find(key) for key in (b"ann", b"bob", b"cleo")] == [2, 1, None]
        partition.append(Record(None, b"bob"))
        found = values(metrics)
        told = {
            name: found[f"topicfs_keys_{name}{of}"] for name in ("live", "behind_records", "lookups_total")
        }
        assert told == {"live": 2, "behind_records": 1, "lookups_total": 3}
        assert found[f"topicfs_keys_read_records_total{of}"] == 3
        assert found[f"topicfs_keys_read_seconds_total{of}"] > 0
        assert found[f"topicfs_keys_index_bytes{of}"] >= 24 * 2


def test_each_metric_is_explained_and_on_a_dashboard_only_what_there_is(tmp_path: Path, jobs: Jobs) -> None:
    with Store.open(tmp_path, create=True) as store:
        store.create("orders")
        metrics = Metrics(store, jobs, dict, Cleaners(store))
        metrics.counts.holdings = Holdings.of(store.daemon)
        metrics.tell_of(Tables(tmp_path / "views", store.descriptors))
        metrics.tell_of_keys(list)
        metrics.tell_of_groups(Groups.of(store))
        group = Group.of("daemons", ClientSettings(), ())
        metrics.tell_of_link(store, SimpleNamespace(error=None, looks=0, group=group))  # type: ignore[arg-type]
        families = list(text_string_to_metric_families(metrics.render().decode()))
    told = {family.name for family in families}
    page = re.findall(r"^\| `([a-z_]+)`", (ROOT / "mountd" / "METRICS.md").read_text(), re.MULTILINE)
    assert sorted(page) == sorted(told)
    board = json.loads((ROOT / "examples" / "grafana.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    used = {
        name for expression in asked for name in re.findall(r"\b((?:topicfs|process)_[a-z_]+)", expression)
    }
    assert len(used) >= 15
    assert {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in used} - told == set()
