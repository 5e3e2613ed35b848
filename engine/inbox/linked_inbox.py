"""The inbox of a topic that mirrors one of a Kafka cluster: a batch is one transaction there, over its partitions.

    1. begin: the coordinator gives a producer's id and a new epoch, which fences all before it
    2. write the journal: producing      3. produce, until all is acknowledged      4. write the journal: deciding
    5. ask for the commit                6. write the journal: committed
    7. record the batch's name           8. remove the source files                 9. remove the journal

The commit point is the coordinator's, at step 5. Who comes back after a crash finds in the journal:

    producing   the commit was never asked for. The transaction is aborted, or the coordinator does so when its time is
                over: no record of it ever shows
    deciding    the commit may have been asked for. The coordinator is asked to abort the transaction. It either does
                so, and a commit that comes later is refused; or says that it is committed. Where it has forgotten the
                transaction, the mirrors tell: a marker of it is in each partition
    committed   it is committed

While nobody can be asked, a commit that is not decided stays so, and the topic's next commit waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from topicfs.engine.errors import EngineError, LinkedTopicError
from topicfs.engine.inbox.cluster import ClusterTransaction, ClusterTransactions
from topicfs.engine.inbox.inbox import Batch, Chunk, Inbox, told
from topicfs.engine.inbox.journal import CommitState, InFlight
from topicfs.engine.partition.partition import Partition
from topicfs.engine.segment.descriptors import Descriptors

log = logging.getLogger(__name__)


class LinkedInbox(Inbox):
    """The inbox of a linked topic. Names, content and files are as in any inbox; records are appended in the cluster.

    _transactions  returns what makes transactions in the cluster; None while there is no link
    """

    def __init__(
        self,
        topic: str,
        directory: Path,
        numbers: Callable[[], Sequence[int]],
        partition: Callable[[int], Partition],
        places: Descriptors,
        transactions: Callable[[], ClusterTransactions | None],
    ) -> None:
        super().__init__(topic, directory, numbers, partition, places, None)
        self._transactions = transactions

    def _linked(self) -> ClusterTransactions:
        found = self._transactions()
        if found is None:
            raise LinkedTopicError(
                f"{self.topic}: mirrors a topic of a Kafka cluster, and is only read here, as there is no link to it"
            )
        return found

    def _prepared(self) -> None:
        """Leave it to the cluster's coordinator, which gives an epoch to each batch."""

    def _commit(self, batch: Batch) -> int:
        self._unsettled = True
        name = batch.name
        cluster = self._linked()
        transaction = cluster.begin(self.topic)
        in_flight = InFlight(CommitState.PRODUCING, name, (), batch.sources, told(batch), transaction.commit)
        try:
            self._produce(in_flight, transaction, batch.chunks)
            if transaction.commit.ranges:
                in_flight = in_flight.in_state(CommitState.DECIDING, transaction.commit)
                self._journal.write(in_flight)
                cluster.end(self.topic, transaction.commit)
            self._journal.write(in_flight.in_state(CommitState.COMMITTED, transaction.commit))
        except (EngineError, OSError) as error:
            self._give_up(name, error)
            if name not in self._names:
                raise
            log.error(f"{self.topic}: {name} is committed, in spite of: {error!r}")
            return transaction.records
        try:
            self._settle()
        except (EngineError, OSError) as error:
            log.error(f"{self.topic}: {name} is committed, but not noted everywhere yet: {error!r}")
        return transaction.records

    def _produce(self, in_flight: InFlight, transaction: ClusterTransaction, chunks: Iterable[Chunk]) -> None:
        try:
            self._journal.write(in_flight)
            for number, columns in chunks:
                transaction.add(number, columns)
            transaction.finish()
        finally:
            transaction.close()

    def _settle(self) -> None:
        if not self._unsettled:
            return
        found = self._journal.read()
        if found is not None:
            if self._has_committed(found):
                self._journal.sync()
                self.note_committed(found.name, found.content, found.sources)
                self._await_shown(found)
            self._journal.remove()
        self._unsettled = False

    def _await_shown(self, found: InFlight) -> None:
        """Wait until a committed batch shows here, if somebody waits for it who can be told."""
        cluster = self._transactions()
        if cluster is not None and found.cluster is not None:
            try:
                cluster.await_shown(self.topic, found.cluster)
            except EngineError as error:
                log.error(f"{self.topic}: {found.name} is committed, and does not show: {error!r}")

    def _has_committed(self, found: InFlight) -> bool:
        """Tell how a commit has ended, which may have to be asked for."""
        commit = found.cluster
        if found.state is CommitState.COMMITTED:
            return True
        if found.state is CommitState.DECIDING and commit is not None:
            return self._linked().is_committed(self.topic, commit)
        try:
            self._linked().abort(self.topic)
        except EngineError as error:
            # Its commit was never asked for: the coordinator aborts it, at the latest when its time is over.
            log.info(
                f"{self.topic}: {found.name} is not committed, and its transaction not aborted yet: {error}"
            )
        return False
