"""Loading the settings of a store together with the origin of its topics: a broker's metadata, and the topics' ids."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from topicfs.engine.cluster.image import Cluster
from topicfs.engine.cluster.reading import read_cluster
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.files.place import logs_in
from topicfs.engine.format.paths import METADATA_LOG, SERVER_PROPERTIES, partition_directory
from topicfs.engine.record import Clock
from topicfs.engine.settings.configuration import Configuration

log = logging.getLogger(__name__)


def configured(
    backing: Path,
    given: Mapping[str, str],
    clock: Clock,
    partitions: Iterable[PartitionKey],
    node_id: int | None,
) -> Configuration:
    """Return the settings of the store in a directory. It raises what `Configuration.load` raises.

    partitions  the partitions that were found there
    node_id     the id of the broker that the log directory belongs to"""
    logs = logs_in(backing)
    found, cluster = found_in([logs], dict.fromkeys(partitions, logs), node_id)
    return Configuration.load(backing, given, clock, cluster, found)


def found_in(
    all_logs: Iterable[Path], partitions: Mapping[PartitionKey, Path], node_id: int | None
) -> tuple[dict[str, list[Path]], Cluster]:
    """Return the directories of partitions by topic, and the cluster's metadata, which one of the log directories has.

    partitions  the partitions, with the log directory that each is in"""
    with_metadata = [logs for logs in all_logs if (logs / METADATA_LOG).is_dir()]
    cluster = read_cluster(with_metadata[0], node_id) if with_metadata else Cluster()
    found: dict[str, list[Path]] = {}
    for (topic, number), logs in partitions.items():
        found.setdefault(topic, []).append(logs / partition_directory(topic, number))
    return found, cluster


def tell_of_others(configuration: Configuration, backing: Path) -> None:
    """Log the names in server.properties that only a broker uses."""
    if configuration.others:
        names = ", ".join(sorted(configuration.others))
        log.info(f"{backing / SERVER_PROPERTIES}: passed over, as they mean nothing here: {names}")
