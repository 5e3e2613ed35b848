"""A producer that goes on whatever becomes of the brokers, and remembers what was acknowledged."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

PAUSE_S: Final = 0.01
END_S: Final = 90
CODECS: Final = (None, "gzip", "snappy", "lz4", "zstd")


@dataclass(slots=True)
class SteadyProducer:
    """A thread that sends records to each partition of a topic, one after the other.

    acknowledged  by partition and offset: the value that was acknowledged there
    failures      sends that were given up: whether the cluster has them is not known
    """

    bootstrap: str
    topic: str
    partitions: int
    transactional_id: str | None = None
    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)
    failures: int = 0
    _stopping: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[SteadyProducer]:
        """Produce until the block ends, and until all that was sent is answered."""
        thread = threading.Thread(target=lambda: asyncio.run(self._produce()), name="producer")
        thread.start()
        try:
            yield self
        finally:
            self._stopping.set()
            thread.join(END_S)
            assert not thread.is_alive(), "the producer does not end"

    async def _produce(self) -> None:
        number = 0
        while not self._stopping.is_set():
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                transactional_id=self.transactional_id,
                enable_idempotence=True,
                compression_type=CODECS[number % len(CODECS)],
                request_timeout_ms=5_000,
                metadata_max_age_ms=1_000,
            )
            try:
                await producer.start()
                for _ in range(40):
                    number = await self._send_some(producer, number)
                    if self._stopping.is_set():
                        break
            except KafkaError:
                self.failures += 1
            finally:
                with suppress(KafkaError):
                    await producer.stop()

    async def _send_some(self, producer: AIOKafkaProducer, number: int) -> int:
        if self.transactional_id is not None:
            await producer.begin_transaction()
        sent: list[tuple[bytes, Any]] = []
        for partition in range(self.partitions):
            for _ in range(5):
                value = b"%s %d" % (self.topic.encode(), number)
                number += 1
                sent.append((value, await producer.send(self.topic, value, partition=partition)))
        answers = [(value, await answer) for value, answer in sent]
        if self.transactional_id is not None:
            await producer.commit_transaction()
        for value, answer in answers:
            self.acknowledged[answer.partition, answer.offset] = value
        await asyncio.sleep(PAUSE_S)
        return number
