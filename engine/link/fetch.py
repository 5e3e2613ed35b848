"""Fetching from one leader: a request for all mirrors that it leads, and what its answer means for each of them."""

from __future__ import annotations

import contextlib
import logging
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from kafka.protocol.consumer import FetchRequest

from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import EngineError, LinkError
from topicfs.engine.files.metadata import uuid_bytes
from topicfs.engine.link.answer import PartitionAnswer, partitions_of
from topicfs.engine.link.client import ClientSettings
from topicfs.engine.link.cluster import EARLIEST, LATEST, Cluster
from topicfs.engine.link.connection import Connection, words_of
from topicfs.engine.link.mirror import Asked, Chunk, Mirror
from topicfs.engine.segment.walk import NOTHING

log = logging.getLogger(__name__)

_VERSION: Final = 13
_OUT_OF_RANGE: Final = 1
_NOT_AUTHORIZED: Final = 29

_MOVED: Final = frozenset({3, 5, 6, 9, 72, 74, 75, 100, 103})
"""Errors after which the metadata is asked for anew: the partition or its leader is not known, not there, not the
leader, of another epoch; the topic id is not known, or another one."""

_WASTE: Final = 4
"""A buffer that is larger than an answer by more than this factor is given back."""

_FAILURES: Final = 6
"""The delay after an error is doubled so many times at most."""


def delay_s(client: ClientSettings, failures: int) -> float:
    """Return how long to wait after so many errors in a row: longer each time, and never twice the same."""
    longest: float = client.reconnect_backoff_ms * 2 ** min(failures, _FAILURES)
    return min(longest, float(client.reconnect_backoff_max_ms)) * random.uniform(0.8, 1.2) / 1000


class Fetching:
    """The fetches of one fetcher from one leader. While the batches of an answer are appended, the next one is on its
    way: the broker reads, and the kernel receives, as far as its buffers go.

    cluster  answers questions about offsets
    moved    called when a leader is no longer the right one to ask
    _asked   what was asked for in the request that is under way, by mirror
    _turn    which mirror comes first in the next request: a broker fills its answer in that order
    _room    the buffer of large answers, used again: memory that is new each time took a third of the processor's time
    """

    def __init__(self, cluster: Cluster, moved: Callable[[], None]) -> None:
        self.cluster = cluster
        self.moved = moved
        self._asked: dict[tuple[bytes, int], tuple[Mirror, Asked]] = {}
        self._turn = 0
        self._room = NOTHING

    def forget(self) -> None:
        """Forget the request that was under way, as the connection is closed."""
        self._asked = {}

    def exchange(self, connection: Connection, mirrors: Sequence[Mirror]) -> bool:
        """Take the answer that is under way, ask for what comes next, and append what came. Return False if there is
        nothing to ask for. ClusterAwayError or LinkError where the connection cannot be used any more."""
        chunks: list[tuple[Mirror, Chunk]] = []
        if connection.waits:
            data = connection.receive_raw(self._buffer)
            chunks = list(self._take(partitions_of(data, len(self._asked))))
        try:
            request = self._request(mirrors)
            if request is not None:
                connection.send(request)
        finally:
            # Also where the connection has failed meanwhile: what came is good.
            for mirror, chunk in chunks:
                with self._noting(mirror):
                    mirror.append(self, chunk)
        return connection.waits

    def _buffer(self, size: int) -> Bytes:
        """Return a buffer for an answer. It is used until that is appended, and then again. Small answers let go of a
        large one, as no more large ones may come for days."""
        if size > self._room.size or size < self._room.size // _WASTE:
            self._room = np.empty(size, np.uint8)
        return self._room[:size]

    def _request(self, mirrors: Sequence[Mirror]) -> Any | None:
        client = self.cluster.client
        self._asked = {}
        topics: dict[bytes, list[Any]] = {}
        self._turn = (self._turn + 1) % max(1, len(mirrors))
        for mirror in (*mirrors[self._turn :], *mirrors[: self._turn]):
            asked = mirror.asks(self)
            if asked is None:
                continue
            topic_id = uuid_bytes(mirror.topic_id)
            self._asked[topic_id, mirror.number] = mirror, asked
            topics.setdefault(topic_id, []).append(
                FetchRequest.FetchTopic.FetchPartition(
                    version=_VERSION,
                    partition=mirror.number,
                    current_leader_epoch=asked.leader_epoch,
                    fetch_offset=asked.position,
                    last_fetched_epoch=asked.epoch,
                    log_start_offset=-1,
                    partition_max_bytes=client.partition_max_bytes,
                )
            )
        if not topics:
            return None
        return FetchRequest[_VERSION](
            max_wait_ms=client.fetch_max_wait_ms,
            min_bytes=1,
            max_bytes=client.fetch_max_bytes,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[
                FetchRequest.FetchTopic(
                    version=_VERSION, topic_id=uuid.UUID(bytes=topic_id), partitions=partitions
                )
                for topic_id, partitions in topics.items()
            ],
            forgotten_topics_data=[],
            rack_id="",
        )

    def _take(self, answers: Iterable[PartitionAnswer]) -> Iterator[tuple[Mirror, Chunk]]:
        for told in answers:
            # Each mirror was asked for once, and is answered once.
            found = self._asked.pop((told.topic_id, told.number), None)
            if found is None:
                continue
            mirror, asked = found
            chunk = None
            with self._noting(mirror):
                chunk = self._take_one(mirror, asked, told)
            if chunk is not None:
                yield mirror, chunk

    def _take_one(self, mirror: Mirror, asked: Asked, told: PartitionAnswer) -> Chunk | None:
        code = told.error_code
        if code == _OUT_OF_RANGE:
            self._find_range(mirror, asked)
        elif code in _MOVED:
            self.moved()
            raise LinkError(f"{mirror.name}: {words_of(code)}: the cluster is asked who leads it")
        elif code == _NOT_AUTHORIZED:
            raise LinkError(f"{mirror.name}: {words_of(code)}: this user needs Read on the topic")
        elif code:
            raise LinkError(f"{mirror.name}: {words_of(code)}")
        elif told.epoch >= 0:
            mirror.diverged(self, asked, told.epoch, told.epoch_end)
        else:
            return mirror.take(self, asked, told)
        return None

    def _find_range(self, mirror: Mirror, asked: Asked) -> None:
        """Ask which offsets there are. They are asked for by the topic's name: where its id is another one after that,
        the answer may be about another topic."""
        earliest = self.cluster.offset_at(mirror.topic, mirror.number, mirror.leader, EARLIEST) or 0
        latest = self.cluster.offset_at(mirror.topic, mirror.number, mirror.leader, LATEST) or 0
        found = self.cluster.describe((mirror.topic,)).topics.get(mirror.topic)
        if found is None or found.topic_id != mirror.topic_id:
            self.moved()
            raise LinkError(f"{mirror.name}: the cluster does not have this topic any more")
        mirror.out_of_range(self, asked, earliest, latest)

    @contextlib.contextmanager
    def _noting(self, mirror: Mirror) -> Iterator[None]:
        """Take an error inside for the mirror's own: the others, and the connection, go on."""
        try:
            yield
        except (EngineError, OSError) as error:
            words = str(error)
            if isinstance(error, OSError) and error.filename is None:
                # A full disk: which one is told by the directory.
                words = f"{mirror.partition.log.chain.directory}: {error.strerror or error}"
            if mirror.fail(words, delay_s(self.cluster.client, mirror.failures)):
                log.warning(f"{mirror.name} is not mirrored, which is tried again: {words}")
