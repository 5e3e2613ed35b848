"""Checkpoints, partition.metadata and meta.properties. Kafka's tool does not know them."""

from __future__ import annotations

from pathlib import Path

from topicfs.engine.dump.report import Report
from topicfs.engine.files.checkpoint import OffsetCheckpoint
from topicfs.engine.files.metadata import MetaProperties, PartitionMetadata
from topicfs.engine.files.properties import read_properties
from topicfs.engine.partition.epochs import LeaderEpochs
from topicfs.engine.record import now_ms


def show_offsets(path: Path, report: Report) -> None:
    """Show a checkpoint with an offset for each partition."""
    for (topic, partition), offset in sorted(OffsetCheckpoint(path).read().items()):
        text = f"topic: {topic} partition: {partition} offset: {offset}"
        report.line(text, "entry", topic=topic, partition=partition, offset=offset)


def show_epochs(path: Path, report: Report) -> None:
    """Show the leader epochs of a partition."""
    for epoch, start in LeaderEpochs.look(path).entries:
        report.line(f"epoch: {epoch} startOffset: {start}", "entry", epoch=epoch, startOffset=start)


def show_partition_metadata(path: Path, report: Report) -> None:
    """Show what names the topic of a partition."""
    _show_properties(path, report)
    PartitionMetadata.load(path.parent)


def show_meta_properties(path: Path, report: Report) -> None:
    """Show the ids of a log directory."""
    _show_properties(path, report)
    MetaProperties.load_or_create(path.parent, now_ms, read_only=True)


def _show_properties(path: Path, report: Report) -> None:
    for name, value in read_properties(path).items():
        report.line(f"{name}: {value}", "property", name=name, value=value)
