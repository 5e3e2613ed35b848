"""All settings that topicfs accepts, for topics and for the daemon, under Kafka's names.

A topic setting comes from the topic's own file, else from its synonyms in server.properties in the order
listed here, else from the default. Settings marked `effect=False` belong to a cluster or to tiered storage.
"""

from __future__ import annotations

import sys
from typing import Final

from topicfs.engine.record import MAX_INT64
from topicfs.engine.settings.setting import Range, Setting, Synonym, ValueKind

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

COMPACT: Final = "compact"
DELETE: Final = "delete"


def at_least(low: int) -> tuple[Range, ...]:
    """Return the range from a number to the largest one of its kind."""
    # The limit must not be a float: it would round the largest 64-bit numbers up.
    return ((low, MAX_INT64),)


TOPIC: Final = (
    Setting(
        "cleanup.policy",
        ValueKind.LIST,
        (DELETE,),
        "what becomes of old records: delete segments, compact to each key's latest, both or neither",
        choices=(COMPACT, DELETE),
        synonyms=(Synonym("log.cleanup.policy"),),
    ),
    Setting(
        "compression.type",
        ValueKind.STRING,
        "producer",
        "how batches are stored; producer keeps what the writer chose",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        synonyms=(Synonym("compression.type"),),
    ),
    Setting(
        "compression.gzip.level",
        ValueKind.INT,
        -1,
        "gzip's effort; -1 is its default",
        ranges=((-1, -1), (1, 9)),
        synonyms=(Synonym("compression.gzip.level"),),
    ),
    Setting(
        "compression.lz4.level",
        ValueKind.INT,
        9,
        "lz4's effort",
        ranges=((1, 17),),
        synonyms=(Synonym("compression.lz4.level"),),
    ),
    Setting(
        "compression.zstd.level",
        ValueKind.INT,
        3,
        "zstd's effort",
        ranges=((-131072, 22),),
        synonyms=(Synonym("compression.zstd.level"),),
    ),
    Setting(
        "delete.retention.ms",
        ValueKind.LONG,
        DAY_MS,
        "how long a compacted topic keeps tombstones and markers",
        ranges=at_least(0),
        synonyms=(Synonym("log.cleaner.delete.retention.ms"),),
    ),
    Setting(
        "file.delete.delay.ms",
        ValueKind.LONG,
        60_000,
        "how long a removed segment's files stay under .deleted",
        ranges=at_least(0),
        synonyms=(Synonym("log.segment.delete.delay.ms"),),
    ),
    Setting(
        "flush.messages",
        ValueKind.LONG,
        MAX_INT64,
        "fsync after this many records",
        ranges=at_least(1),
        synonyms=(Synonym("log.flush.interval.messages"),),
    ),
    Setting(
        "flush.ms",
        ValueKind.LONG,
        MAX_INT64,
        "fsync after this time",
        ranges=at_least(0),
        synonyms=(Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
    ),
    Setting(
        "index.interval.bytes",
        ValueKind.INT,
        4096,
        "bytes of records between two index entries",
        ranges=at_least(0),
        synonyms=(Synonym("log.index.interval.bytes"),),
    ),
    Setting(
        "max.message.bytes",
        ValueKind.INT,
        1024 * 1024 + 12,
        "the largest batch, as stored",
        ranges=at_least(0),
        synonyms=(Synonym("message.max.bytes"),),
    ),
    Setting(
        "max.compaction.lag.ms",
        ValueKind.LONG,
        MAX_INT64,
        "compact a record at the latest this long after it was written",
        ranges=at_least(1),
        synonyms=(Synonym("log.cleaner.max.compaction.lag.ms"),),
    ),
    Setting(
        "min.compaction.lag.ms",
        ValueKind.LONG,
        0,
        "keep every record this long before it may be compacted",
        ranges=at_least(0),
        synonyms=(Synonym("log.cleaner.min.compaction.lag.ms"),),
    ),
    Setting(
        "min.cleanable.dirty.ratio",
        ValueKind.DOUBLE,
        0.5,
        "compact when more than this part of the log is not compacted yet",
        ranges=((0, 1),),
        synonyms=(Synonym("log.cleaner.min.cleanable.ratio"),),
    ),
    Setting(
        "message.timestamp.type",
        ValueKind.STRING,
        "CreateTime",
        "whether a record keeps its writer's timestamp or gets that of its append",
        choices=("CreateTime", "LogAppendTime"),
        synonyms=(Synonym("log.message.timestamp.type"),),
    ),
    Setting(
        "message.timestamp.before.max.ms",
        ValueKind.LONG,
        MAX_INT64,
        "how far a timestamp may lie in the past",
        ranges=at_least(0),
        synonyms=(Synonym("log.message.timestamp.before.max.ms"),),
    ),
    Setting(
        "message.timestamp.after.max.ms",
        ValueKind.LONG,
        HOUR_MS,
        "how far a timestamp may lie in the future",
        ranges=at_least(0),
        synonyms=(Synonym("log.message.timestamp.after.max.ms"),),
    ),
    Setting(
        "min.insync.replicas",
        ValueKind.INT,
        1,
        "replicas that must have a write",
        ranges=at_least(1),
        synonyms=(Synonym("min.insync.replicas"),),
        effect=False,
    ),
    Setting(
        "preallocate",
        ValueKind.BOOL,
        False,
        "give a new segment's file its full size at once",
        synonyms=(Synonym("log.preallocate"),),
    ),
    Setting(
        "retention.bytes",
        ValueKind.LONG,
        -1,
        "size above which old segments are deleted; negative: no limit",
        synonyms=(Synonym("log.retention.bytes"),),
    ),
    Setting(
        "retention.ms",
        ValueKind.LONG,
        7 * DAY_MS,
        "age above which segments are deleted; -1: no limit",
        ranges=at_least(-1),
        synonyms=(
            Synonym("log.retention.ms"),
            Synonym("log.retention.minutes", MINUTE_MS),
            Synonym("log.retention.hours", HOUR_MS),
        ),
    ),
    Setting(
        "segment.bytes",
        ValueKind.INT,
        1024 * 1024 * 1024,
        "size at which a segment is sealed and the next one begins",
        ranges=at_least(1024 * 1024),
        synonyms=(Synonym("log.segment.bytes"),),
    ),
    Setting(
        "internal.segment.bytes",
        ValueKind.INT,
        None,
        "for tests: segment.bytes below its minimum",
        ranges=at_least(14),
    ),
    Setting(
        "segment.index.bytes",
        ValueKind.INT,
        10 * 1024 * 1024,
        "the largest offset or time index",
        # Kafka accepts 4 to 11 here, and then cannot open the time index, whose entries have 12 bytes.
        ranges=at_least(12),
        synonyms=(Synonym("log.index.size.max.bytes"),),
    ),
    Setting(
        "segment.jitter.ms",
        ValueKind.LONG,
        0,
        "up to this much is taken off segment.ms at random, so that not all topics roll at once",
        ranges=at_least(0),
        synonyms=(Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", HOUR_MS)),
    ),
    Setting(
        "segment.ms",
        ValueKind.LONG,
        7 * DAY_MS,
        "age at which a segment is sealed even if it is small",
        ranges=at_least(1),
        synonyms=(Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS)),
    ),
    # This is not a setting of Kafka. It is off by default: it costs the time of one core for each segment that is
    # sealed or rewritten, and disk space of about half of the log, which most topics would pay for nothing.
    Setting(
        "parquet.enable",
        ValueKind.BOOL,
        False,
        "keep a Parquet file of each sealed segment, for table/ and sealed/parquet/",
        synonyms=(Synonym("log.parquet.enable"),),
    ),
    Setting(
        "unclean.leader.election.enable",
        ValueKind.BOOL,
        False,
        "whether a replica that lags may lead",
        synonyms=(Synonym("unclean.leader.election.enable"),),
        effect=False,
    ),
    Setting(
        "remote.storage.enable",
        ValueKind.BOOL,
        False,
        "whether sealed segments go to remote storage",
        effect=False,
    ),
    Setting(
        "local.retention.ms",
        ValueKind.LONG,
        -2,
        "age above which local copies of remote segments are deleted; -2: as retention.ms",
        ranges=at_least(-2),
        synonyms=(Synonym("log.local.retention.ms"),),
        effect=False,
    ),
    Setting(
        "local.retention.bytes",
        ValueKind.LONG,
        -2,
        "size above which local copies of remote segments are deleted; -2: as retention.bytes",
        ranges=at_least(-2),
        synonyms=(Synonym("log.local.retention.bytes"),),
        effect=False,
    ),
    Setting(
        "remote.log.copy.disable",
        ValueKind.BOOL,
        False,
        "whether copying to remote storage rests",
        effect=False,
    ),
    Setting(
        "remote.log.delete.on.disable",
        ValueKind.BOOL,
        False,
        "whether remote segments go when remote storage is switched off",
        effect=False,
    ),
)

DAEMON: Final = (
    Setting(
        "num.partitions",
        ValueKind.INT,
        1,
        "how many partitions a new topic has",
        ranges=at_least(1),
    ),
    Setting(
        "delete.topic.enable",
        ValueKind.BOOL,
        True,
        "whether topics and partitions can be deleted",
    ),
    Setting("log.cleaner.enable", ValueKind.BOOL, True, "whether topics are compacted at all"),
    Setting("log.cleaner.threads", ValueKind.INT, 1, "threads that compact", ranges=at_least(0)),
    Setting(
        "log.cleaner.dedupe.buffer.size",
        ValueKind.LONG,
        128 * 1024 * 1024,
        "memory for the keys of a compaction, shared by the threads",
        ranges=at_least(0),
    ),
    Setting(
        "log.cleaner.io.buffer.size",
        ValueKind.INT,
        512 * 1024,
        "memory for reading and writing in compactions, shared by the threads",
        ranges=at_least(0),
    ),
    Setting(
        "log.cleaner.io.buffer.load.factor",
        ValueKind.DOUBLE,
        0.9,
        "how full the table of keys may be",
        ranges=((0, 1),),
    ),
    Setting(
        "log.cleaner.io.max.bytes.per.second",
        ValueKind.DOUBLE,
        sys.float_info.max,
        "how fast all compactions together may read and write",
        ranges=((1, sys.float_info.max),),
    ),
    Setting(
        "log.cleaner.backoff.ms",
        ValueKind.LONG,
        15_000,
        "how long an idle compaction thread sleeps",
        ranges=at_least(0),
    ),
    Setting(
        "log.retention.check.interval.ms",
        ValueKind.LONG,
        5 * MINUTE_MS,
        "time between two looks for segments to delete",
        ranges=at_least(1),
    ),
    Setting(
        "log.flush.scheduler.interval.ms",
        ValueKind.LONG,
        MAX_INT64,
        "time between two looks for logs to fsync",
        ranges=at_least(1),
    ),
    Setting(
        "log.flush.offset.checkpoint.interval.ms",
        ValueKind.INT,
        MINUTE_MS,
        "time between two writes of the recovery points",
        ranges=at_least(0),
    ),
    Setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        ValueKind.INT,
        MINUTE_MS,
        "time between two writes of the start offsets",
        ranges=at_least(0),
    ),
    Setting(
        "log.initial.task.delay.ms",
        ValueKind.LONG,
        30_000,
        "time from the start to the first background task",
        ranges=at_least(0),
    ),
    Setting(
        "num.recovery.threads.per.data.dir",
        ValueKind.INT,
        2,
        "threads that load and recover logs",
        ranges=at_least(1),
    ),
    Setting(
        "replica.high.watermark.checkpoint.interval.ms",
        ValueKind.LONG,
        5_000,
        "time between two writes of the high watermarks",
        ranges=at_least(1),
    ),
    Setting(
        "producer.id.expiration.ms",
        ValueKind.INT,
        DAY_MS,
        "how long an idle producer's sequence is remembered",
        ranges=at_least(1),
    ),
    Setting(
        "producer.id.expiration.check.interval.ms",
        ValueKind.INT,
        10 * MINUTE_MS,
        "time between two looks for idle producers",
        ranges=at_least(1),
    ),
    Setting(
        "transaction.max.timeout.ms",
        ValueKind.INT,
        15 * MINUTE_MS,
        "the longest time a transaction may stay open",
        ranges=at_least(1),
    ),
    Setting(
        "log.dir.failure.timeout.ms",
        ValueKind.LONG,
        30_000,
        "how long a broker waits for its controller to note a failed directory",
        ranges=at_least(1),
        effect=False,
    ),
    # These are settings of the mount's writers. Kafka's producer has the same ones under these names.
    Setting(
        "batch.size",
        ValueKind.INT,
        # A producer's default of 16 KiB suits a network. A write(2) of the mount brings at most 128 KiB. In larger
        # batches the checksum makes a look-up of one record slower: 0.3 ms in 1 MiB, 0.1 ms in 128 KiB.
        128 * 1024,
        "bytes of records that gather in a partition before they are appended; 0: every write is appended by itself",
        ranges=at_least(0),
    ),
    Setting(
        "linger.ms",
        ValueKind.LONG,
        5,
        "how long lines that come fast are kept back to append more at once; the first ones are not",
        ranges=at_least(0),
    ),
    Setting(
        "list.all.views",
        ValueKind.BOOL,
        False,
        "whether every view of a record is listed as a file of its own, which recursive tools read, or as a link",
        # A name that the kernel knows must not change its kind, file or link, while the mount runs.
    ),
    Setting(
        "link.bootstrap.servers",
        ValueKind.LIST,
        (),
        "brokers, as host:port, of the Kafka cluster whose topics are mirrored here; none: nothing is mirrored",
    ),
    Setting(
        "link.topics",
        ValueKind.LIST,
        ("*",),
        "patterns of the topics that are mirrored, as a shell's; Kafka's own only where one names them by their __",
    ),
    Setting(
        "link.from",
        ValueKind.STRING,
        "earliest",
        "where the mirror of a partition begins: earliest, latest, an offset, an age as -7d, or a time",
    ),
    Setting(
        "link.config",
        ValueKind.STRING,
        "",
        "a file with settings of Kafka's clients for the link: security.protocol, sasl.username and such",
    ),
)
