"""Kafka's wire protocol as plain calls, each with its own connection.

A record is the engine's own `Record`, so that what went over the wire compares with what the engine reads.
A client that cannot start, as while no broker leads, is closed too: connections left open fail a test by a warning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from topicfs.engine.record import Record, now_ms

POLL_MS: Final = 500
READ_SECONDS: Final = 30
# The broker's upper limit: what is left open is to stay open for as long as the tests run.
TRANSACTION_MS: Final = 900_000


def create_topics(
    bootstrap: str,
    topics: Mapping[str, Mapping[str, str]],
    partitions: int = 1,
    replicas: int = 1,
    assignment: Mapping[int, Sequence[int]] | None = None,
) -> None:
    """Create topics of so many partitions each, with their settings. `assignment` names the brokers of each."""

    async def create() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            await admin.start()
            new = [
                NewTopic(name, -1, -1, replica_assignments=dict(assignment), topic_configs=dict(settings))
                if assignment
                else NewTopic(name, partitions, replicas, topic_configs=dict(settings))
                for name, settings in topics.items()
            ]
            answer = await admin.create_topics(new)
        finally:
            await admin.close()
        failed = [error for error in answer.topic_errors if error[1]]
        if failed:
            raise RuntimeError(f"expected topics {list(topics)} to be created, found {failed}")

    asyncio.run(create())


def delete_records(bootstrap: str, topic: str, before: int) -> None:
    """Move the start offset of partition 0."""

    places = {TopicPartition(topic, 0): RecordsToDelete(before)}
    _administer(bootstrap, lambda admin: admin.delete_records(places))


def leaders_of(bootstrap: str, topic: str) -> dict[int, int]:
    """The id of the broker that leads each partition; -1 while there is none."""
    found: dict[int, int] = {}

    async def ask(admin: AIOKafkaAdminClient) -> None:
        for described in await admin.describe_topics([topic]):
            found.update({each["partition"]: each["leader"] for each in described["partitions"]})

    _administer(bootstrap, ask)
    return found


def ends_of(bootstrap: str, topic: str, partitions: int) -> dict[int, int]:
    """The offset behind the last record of each partition, as consumers see it."""

    async def ask() -> dict[int, int]:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
        try:
            await consumer.start()
            wanted = [TopicPartition(topic, number) for number in range(partitions)]
            ends = await consumer.end_offsets(wanted)
        finally:
            await consumer.stop()
        return {each.partition: end for each, end in ends.items()}

    return asyncio.run(ask())


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic."""
    _administer(bootstrap, lambda admin: admin.delete_topics([topic]))


def add_partitions(bootstrap: str, topic: str, count: int) -> None:
    """Have a topic have so many partitions."""
    _administer(bootstrap, lambda admin: admin.create_partitions({topic: NewPartitions(count)}))


def change_topic(bootstrap: str, topic: str, settings: Mapping[str, str]) -> None:
    """Have a topic have these settings, and no others."""
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=dict(settings))
    _administer(bootstrap, lambda admin: admin.alter_configs([resource]))


def _administer(bootstrap: str, do: Callable[[AIOKafkaAdminClient], Awaitable[Any]]) -> None:
    async def administer() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            await admin.start()
            await do(admin)
        finally:
            await admin.close()

    asyncio.run(administer())


def produce(
    bootstrap: str, topic: str, records: Iterable[Record], codec: str | None = None, partition: int = 0
) -> list[Record]:
    """Send records with an idempotent producer; give them back with their offsets and timestamps."""

    async def send() -> list[Record]:
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap, compression_type=codec, enable_idempotence=True, linger_ms=5
        ) as producer:
            return await _send(producer, topic, records, partition)

    return asyncio.run(send())


def transact(
    bootstrap: str, topic: str, transactional_id: str, transactions: Sequence[tuple[str, Sequence[Record]]]
) -> list[Record]:
    """Send transactions, each ended as its word says: "commit", "abort", or "open" (left to the broker).

    Gives back the records of the committed ones.
    """

    async def send() -> list[Record]:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_MS,
        )
        committed: list[Record] = []
        try:
            await producer.start()
            for end, records in transactions:
                await producer.begin_transaction()
                sent = await _send(producer, topic, records)
                if end == "commit":
                    await producer.commit_transaction()
                    committed += sent
                elif end == "abort":
                    await producer.abort_transaction()
        finally:
            await producer.stop()
        return committed

    return asyncio.run(send())


def fence(bootstrap: str, transactional_id: str) -> None:
    """Begin anew under a transactional id: the broker aborts what its last owner left open."""
    transact(bootstrap, "", transactional_id, [])


def consume(bootstrap: str, topic: str, *, committed: bool = True, group: str | None = None) -> list[Record]:
    """Every record of partition 0, from its start to its end as of now; checksums are checked by the client.

    With a group, its position is committed at the end.
    """

    async def read() -> list[Record]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed" if committed else "read_uncommitted",
        )
        try:
            await consumer.start()
            partition = TopicPartition(topic, 0)
            consumer.assign([partition])
            end = (await consumer.end_offsets([partition]))[partition]
            records: list[Record] = []
            async with asyncio.timeout(READ_SECONDS):
                while await consumer.position(partition) < end:
                    for received in (await consumer.getmany(timeout_ms=POLL_MS)).values():
                        records += map(_record, received)
            if group is not None:
                await consumer.commit()
        finally:
            await consumer.stop()
        return records

    return asyncio.run(read())


async def _send(
    producer: AIOKafkaProducer, topic: str, records: Iterable[Record], partition: int = 0
) -> list[Record]:
    """Send records, those without a timestamp as of now: the answer tells only the batch's."""
    pending = []
    for record in records:
        timestamp = now_ms() if record.timestamp is None else record.timestamp
        answer = await producer.send(
            topic,
            value=record.value,
            key=record.key,
            partition=partition,
            timestamp_ms=timestamp,
            headers=list(record.headers),
        )
        pending.append((replace(record, timestamp=timestamp), answer))
    return [replace(record, offset=(await answer).offset) for record, answer in pending]


def _record(received: ConsumerRecord[Any, Any]) -> Record:
    return Record(
        value=received.value,
        key=received.key,
        timestamp=received.timestamp,
        headers=tuple(received.headers),
        offset=received.offset,
    )
