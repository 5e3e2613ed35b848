"""Two stores of daemons of one group side by side, without the daemons: what one has had, the other takes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from topicfs import Record, Store
from topicfs.engine import batch as batches
from topicfs.engine.linked.topics import LinkedTopic

TOPIC = LinkedTopic("J6pgF__USIy1e43ss1bohg", "t", "a cluster", settings={"segment.bytes": "1048576"})


class Two:
    """Two stores side by side. The first one has a mirrored partition.

    place     the directory that they lie in
    one, two  the stores
    """

    def __init__(self, place: Path, held: ExitStack) -> None:
        self.place = place
        self.one = held.enter_context(Store.open(place / "one", create=True))
        self.two = held.enter_context(Store.open(place / "two", create=True))
        self.one.links.link(TOPIC, (0,))
        for number in range(3):
            self.append(self.one, 10 * number, 600_000 if number < 2 else 10)

    def append(self, store: Store, first: int, size: int = 10, number: int = 0) -> None:
        """Append ten records, as a mirror does."""
        partition = store.partition("t", number)
        assert partition.end_offset == first
        partition.append_raw(batch_of(first, size))

    def take(self) -> None:
        """Have the second store take it from the first."""
        self.two.links.take(TOPIC, 0, self.place / "one" / "logs")

    def offsets(self) -> list[int | None]:
        """The offsets of the records that the second one shows."""
        return [record.offset for record in self.two.partition("t", 0).records()]


def batch_of(first: int, size: int) -> bytes:
    """A batch of ten records from an offset on, of so many bytes in all."""
    built = batches.from_records([Record(bytes(size // 10)) for _ in range(10)], 1_700_000_000_000)
    return bytes(first.to_bytes(8, "big") + built.data.tobytes()[8:])
