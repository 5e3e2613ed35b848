"""What the entries of one topic's inbox share: the claims of its writers, and the commits of its files."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from topicfs.engine.errors import LinkedTopicError, UnknownPartitionError
from topicfs.engine.inbox.content import Content
from topicfs.engine.inbox.inbox import SPENT, Batch, Inbox, batch_name
from topicfs.engine.retention.old_records import OldRecords
from topicfs.engine.staging.staging import Parts, Staging
from topicfs.engine.store.store import Store
from topicfs.fs import errors
from topicfs.fs.inbox.claims import Claims, Identity, Writing
from topicfs.fs.inbox.commits import Commits
from topicfs.fs.inbox.data_files import (
    DataFile,
    Topic,
    check_closed,
    check_one_closed,
    chunks,
    content_of,
    data_files,
)
from topicfs.fs.inbox.paths import TEMPORARY, TOPICS, batch_of, job_of

_MOST_TOPIC_BYTES: Final = 1 << 20

log = logging.getLogger(__name__)

_WARNINGS: Final = 100
"""How many of the last batches about which there is something to know are remembered."""


class Arrival(Protocol):
    """A file that is copied to a name that is not hidden.

    is_whole    whether its writer has said that it is complete
    is_refused  whether its close(2) was refused, and nothing has been written since: its name is free for another
    """

    is_whole: bool
    is_refused: bool


@dataclass(slots=True, eq=False)
class TopicInbox:
    """One topic's inbox.

    inbox     the engine's inbox, which commits
    claims    the places that are being changed or committed, and the files that are open for writing
    commits   the commits in progress, of all topics
    arriving  open files that are copied to a name that is not hidden, by that name
    _warnings  what the committers of the last batches should know, by the batch's name
    _turns    a counter that says which partition is next for records without a key
    _other    returns the inbox of another topic
    _jobs     the job that writes into a batch's directory, or into the inbox itself, by that directory
    _mixed    jobs that met another one in their directory. None of them can be committed, as one may have removed what
              the other had made
    """

    inbox: Inbox
    commits: Commits
    _store: Store
    _turns: Iterator[int]
    _other: Callable[[str], TopicInbox]
    claims: Claims = field(default_factory=Claims)
    arriving: dict[str, Arrival] = field(default_factory=dict)
    _jobs: dict[Parts, str] = field(default_factory=dict)
    _mixed: set[str] = field(default_factory=set)
    _warnings: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.inbox.is_written = self._is_written

    @property
    def staging(self) -> Staging:
        return self.inbox.staging

    def mtime_ns(self) -> int:
        """Return when something last came into the inbox or left it; else when partitions last came or went."""
        try:
            return self.staging.status(()).st_mtime_ns
        except FileNotFoundError:
            return os.stat(self._store.logs).st_mtime_ns

    def is_refused(self, name: str) -> bool:
        """Tell whether a name in the inbox itself is of a copy that was refused. It is removed when the kernel tells
        that no descriptor has it any more, for which close(2) does not wait: until then it is not shown."""
        arrival = self.arriving.get(name)
        return arrival is not None and arrival.is_refused

    def _is_written(self, parts: Parts) -> bool:
        """Tell whether a file at or below a path is open for writing."""
        if not self.staging.is_directory(parts):
            return self.claims.is_writing(self._identity(parts))
        return any(self.claims.is_writing(self._identity(file)) for file in self.staging.files(parts))

    def _identity(self, parts: Parts) -> Identity:
        status = self.staging.status(parts)
        return status.st_dev, status.st_ino

    def check_leads(self) -> None:
        """Raise LinkedTopicError if the topic mirrors one of a Kafka cluster to which there is no link."""
        linked = self._store.links.topic(self.inbox.topic)
        if linked is not None and self._store.inboxes.cluster is None:
            raise LinkedTopicError(
                f"{linked.name}: mirrors a topic of a Kafka cluster, and is only read here: append to it there"
            )

    # -- jobs -----------------------------------------------------------------------------------------

    def admit(self, parts: Parts) -> None:
        """Allow a Spark job to make a file. BusyError if another job has made files in the same directory."""
        job = job_of(parts[-1])
        batch = batch_of(parts)
        with self._lock:
            if job is None or self._jobs.get(batch) == job:
                return
            others = {found for file in self._of_jobs(batch) if (found := job_of(file[-1])) is not None} - {
                job
            }
            if others or job in self._mixed:
                self._mixed |= {job, *others}
                raise errors.BusyError(
                    f"{'/'.join(parts)}: job {job} and {', '.join(sorted(others - {job})) or 'another'} write into one "
                    "directory, and neither can be committed: give each a directory of its own, and remove what is "
                    "left in this one"
                )
            self._jobs[batch] = job

    def _of_jobs(self, batch: Parts) -> Iterable[Parts]:
        if batch:
            yield from self.staging.files(batch)
            return
        for name in self.staging.names(()):
            if name == TEMPORARY:
                yield from self.staging.files((name,))
            else:
                yield (name,)

    # -- commits --------------------------------------------------------------------------------------

    def commit_batch(self, batch: Parts) -> None:
        """Append all files of a batch's directory, or those that a job has put into the inbox itself. EmptyBatchError
        where there are none, unless the batch was committed before. With `_topics` in the directory, append the batches
        of its name in those topics as well: all of them, or none."""
        if topics := self._topics_of(batch):
            self._commit_joint(batch, topics)
            return
        with self.commits.one(), self._taking(batch):
            name, sources, files = self._batch(batch)
            self._commit(name, files, sources)
            self._end_jobs(batch)

    def _end_jobs(self, batch: Parts) -> None:
        with self._lock:
            self._jobs.pop(batch, None)

    def _topics_of(self, batch: Parts) -> list[str]:
        """Return the topics in whose inboxes a batch is committed together, in order; none where it is of this one
        alone."""
        parts = (*batch, TOPICS)
        if not batch or TOPICS not in self.staging.names(batch):
            return []
        try:
            check_one_closed(self.staging, self.claims, parts, "/".join(parts), None)
            size = self.staging.status(parts).st_size
            if size > _MOST_TOPIC_BYTES:
                raise errors.BadInputError(
                    f"{'/'.join(parts)}: expected at most {_MOST_TOPIC_BYTES} bytes, found {size}"
                )
            found = b"".join(map(bytes, self.staging.blocks(parts)))
        except FileNotFoundError:
            return []  # somebody else has just committed the batch
        topics = sorted({self.inbox.topic, *found.decode(errors="backslashreplace").split()})
        return topics if len(topics) > 1 else []

    def _commit_joint(self, batch: Parts, topics: list[str]) -> None:
        # Who else commits a batch of several topics takes their places in the same order.
        boxes = [self._named(topic, batch) for topic in topics]
        with self.commits.one(), contextlib.ExitStack() as taken:
            for box in boxes:
                taken.enter_context(box._taking(batch))
            if self._topics_of(batch) != topics and not self.is_known(batch):
                raise errors.BusyError(f"{'/'.join((*batch, TOPICS))} was changed: nothing is appended")
            self._store.inboxes.check_joint(topics)
            try:
                joined = {box.inbox.topic: box._joined(batch) for box in boxes}
            except FileNotFoundError:
                # As in `_commit`.
                if all(box.is_known(batch) for box in boxes):
                    return
                raise
            self._store.inboxes.commit({topic: each for topic, (each, _) in joined.items()})
            for box in boxes:
                box._end_jobs(batch)
                each, words = joined[box.inbox.topic]
                box._warn(each.name, words)

    def _named(self, topic: str, batch: Parts) -> TopicInbox:
        try:
            return self._other(topic)
        except UnknownPartitionError:
            raise errors.BadInputError(
                f"{'/'.join((*batch, TOPICS))}: expected topics, a line each, found {topic!r}, which is none; nothing "
                "is appended"
            ) from None

    def _joined(self, batch: Parts) -> tuple[Batch, str]:
        """Return the batch of this topic as a part of one of several, and what its committer should know. Errors name
        the topic."""
        topic = self.inbox.topic
        name, sources, files = self._batch(batch)
        told = [
            DataFile(each.parts, f"{topic}/{each.name}", each.format, each.zipped, each.partition)
            for each in files
        ]
        return self._read(name, told, sources)

    @contextlib.contextmanager
    def _taking(self, batch: Parts) -> Iterator[None]:
        """Keep others from changing what is committed: a file that came meanwhile would be removed with the others."""
        if batch:
            with self.claims.taken(batch):
                yield
            return
        # In the inbox itself only the files of jobs are taken. Those that come meanwhile stay for the next `_SUCCESS`.
        with self.claims.taken(*(file.parts for file in data_files(self.staging, batch))):
            yield

    def _batch(self, batch: Parts) -> tuple[str, list[Parts], list[DataFile]]:
        try:
            files = data_files(self.staging, batch)
        except FileNotFoundError:
            files = []  # another topic has named this one, and nothing was put here
        jobs = {job for file in files if (job := job_of(file.parts[-1])) is not None}
        if jobs & self._mixed or (not batch and len(jobs) > 1):
            raise errors.BusyError(
                f"{'/'.join(batch) or 'inbox'}: jobs {', '.join(sorted(jobs | self._mixed))} wrote into one directory: "
                "nothing is appended"
            )
        if not files and not self.is_known(batch):
            raise errors.EmptyBatchError(
                f"{self.inbox.topic}: {'/'.join(batch) or 'inbox'}: expected files of records, found none: where a "
                "job's executors do not have this mount, they have written their files elsewhere; nothing is appended, "
                "and the batch may come again under its name"
            )
        if batch:
            return batch_name(batch[0]), [batch], files
        sources = [file.parts for file in files] + [(f".{file.parts[0]}.crc",) for file in files]
        return f"job:{jobs.pop()}", sources, files

    def is_known(self, batch: Parts) -> bool:
        """Tell whether a batch of this directory was committed. The inbox itself is no batch."""
        return bool(batch) and self.inbox.knows(batch_name(batch[0]))

    def holds_new(self, batch: Parts) -> bool:
        """Tell whether something has come that is not committed: into a batch's directory, or from a job into the inbox
        itself."""
        return bool(set(self.staging.names(batch)) - SPENT if batch else data_files(self.staging, batch))

    def commit_file(self, source: Parts, name: Parts, own: Writing | None = None) -> None:
        """Append a file under a name, and remove it. `own` is the finished writer that still has it open, if any."""
        with self.commits.one(), self.claims.taken(source, name):
            file = DataFile.of(source, name)
            check_closed(self.staging, self.claims, [file], own)
            identity = self.staging.identity(source)
            self._commit(f"file:{name[-1]}:{identity}", [file], [source], own)

    def _commit(
        self, name: str, files: list[DataFile], sources: list[Parts], own: Writing | None = None
    ) -> None:
        try:
            batch, words = self._read(name, files, sources, own)
        except FileNotFoundError:
            # A commit of it that had stopped half way was ended meanwhile, and has removed what it has appended.
            if self.inbox.knows(name):
                return
            raise
        self.inbox.commit(batch.name, batch.chunks, batch.sources, batch.content)
        self._warn(name, words)

    def _read(
        self, name: str, files: list[DataFile], sources: list[Parts], own: Writing | None = None
    ) -> tuple[Batch, str]:
        """Read all files, and return the batch that they make, and what its committer should know."""
        check_closed(self.staging, self.claims, files, own)
        topic, old = self._topic(), OldRecords()
        if self.inbox.knows(name):
            content = content_of(self.staging, files, topic)
        else:
            # Bad input is found before anything is appended, so no transaction holds up readers for it.
            content = Content()
            for _, columns in chunks(self.staging, files, topic, content):
                old.add(columns.timestamps, topic.settings, topic.clock())
        batch = Batch(name, chunks(self.staging, files, self._topic()), tuple(sources), content)
        return batch, old.words(self.inbox.topic, topic.settings)

    def _warn(self, name: str, words: str) -> None:
        """Log what the committer of a batch should know, if there is anything, and remember it."""
        if not words:
            return
        with self._lock:
            self._warnings[name] = words
            while len(self._warnings) > _WARNINGS:
                del self._warnings[next(iter(self._warnings))]
        log.warning(f"{self.inbox.topic}: {name}: {words}")

    def warning(self, name: str) -> str:
        """Return what the committer of a batch should know; empty if there is nothing."""
        with self._lock:
            return self._warnings.get(name, "")

    def _topic(self) -> Topic:
        return Topic.of(self._store, self.inbox.topic, self._turns)
