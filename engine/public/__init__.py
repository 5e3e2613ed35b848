"""topicfs as a library: Kafka-style logs, written and read without a mount.

A store holds topics, a topic has partitions, and a partition is a log of records, each under its offset:

    >>> from topicfs import Record, Store
    >>> with Store.open("data", create=True) as store:
    ...     orders = store.create("orders")
    ...     appended = orders.append([Record(b"10 apples", key=b"ann"), Record(b"3 pears", key=b"bob")])
    ...     for record in orders.records():
    ...         print(record.offset, record.key, record.value)
    0 b'ann' b'10 apples'
    1 b'bob' b'3 pears'

`data/logs` is then a log directory that a Kafka broker can serve, and one that a broker wrote can be opened.

Store       `open` (`create=True` makes the store first, `read_only=True` changes nothing at all), `close`; `create`,
            `create_topic`; `delete`, `delete_topic`, and `undelete` for a minute after it; `partition`, `partitions`,
            `topics`, `"orders-0" in store`; `configure`, `explain`, `topic_settings`, `daemon`; `upkeep.run_due`, to be
            called every second or so by a program that keeps the store open, and `upkeep.states`, the states of its
            jobs; `cleaning` compacts
Partition   `append`, `append_lines`, `append_batch`, `append_raw`; `records`, `columns`, `read`, `hold`;
            `offset_for_timestamp`; `start_offset`, `stable_offset`, `high_watermark`, `end_offset`; `flush`
Record      a record that is appended or read. `Columns` holds many records as arrays, for speed
Producer    given to `append`, makes it idempotent or part of a transaction; `end_transaction` ends the transaction
Consumer    reads partitions as a member of a group, on an open store or through a mount: `subscribe`, `poll`, `commit`,
            `position`, `committed`, `seek`. It gives each `ConsumerRecord` with its place
Transaction           records for several topics, appended all or none: of a store, or through a mount
IdempotentProducer    a named producer: what it appends again after a failure is there once
Isolation   how far a reader can read: COMMITTED (the default), UNCOMMITTED, LOG_END
Appended    the offsets and the place of appended records; LogOffsets: the offsets of a partition at one moment
Clock       a clock in milliseconds since the epoch, given to `Store.open` by tests; `now_ms` by default
arrow       a topic's records as Arrow record batches, from a backing directory or a mount; needs the extra `sql`
errors      all errors that the engine raises on purpose; each of them is an `EngineError`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from topicfs.engine import errors
from topicfs.engine.errors import EngineError

if TYPE_CHECKING:
    from topicfs.engine.arrow.reader import arrow as arrow
    from topicfs.engine.batch.columns import Columns
    from topicfs.engine.clients.producer import IdempotentProducer
    from topicfs.engine.clients.transaction import Transaction
    from topicfs.engine.groups.consumer import Consumer, ConsumerRecord
    from topicfs.engine.partition.offsets import Appended, Isolation, LogOffsets
    from topicfs.engine.partition.partition import Partition, Producer
    from topicfs.engine.record import Clock, Codec, Record, TimestampType, now_ms
    from topicfs.engine.settings.daemon import DaemonSettings
    from topicfs.engine.settings.topic import TopicSettings
    from topicfs.engine.store.store import Store

__all__ = [
    "Appended",
    "Clock",
    "Codec",
    "Columns",
    "Consumer",
    "ConsumerRecord",
    "DaemonSettings",
    "EngineError",
    "IdempotentProducer",
    "Isolation",
    "LogOffsets",
    "Partition",
    "Producer",
    "Record",
    "Store",
    "TimestampType",
    "TopicSettings",
    "Transaction",
    "errors",
    "now_ms",
]


def __getattr__(name: str) -> Any:
    """Load the other names when one is first used. The kernels take a second to load, and a program that plans a Spark
    query or unmounts a store does not need them."""
    if name == "arrow":  # not in `__all__`: it needs an extra, and a star import would fail without it
        return _arrow()
    if name in __all__:
        from topicfs import loaded  # noqa: PLC0415 - see above

        return getattr(loaded, name)
    raise AttributeError(f"module 'topicfs' has no attribute {name!r}")


def _arrow() -> Any:
    try:
        from topicfs.engine.arrow.reader import arrow  # noqa: PLC0415 - loads pyarrow, which is an extra
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise ModuleNotFoundError(
            "expected pyarrow, found none: pip install 'topicfs[sql]'", name="pyarrow"
        ) from None
    return arrow
