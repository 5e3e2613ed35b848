"""What changes where a job's format is `topicfs` and no longer `kafka`: the verdicts of the tables, and their proof."""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Final, TypeVar

from pyspark.errors import PySparkException

R = TypeVar("R", bound=Sized)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What changes.

    kind   same: nothing, also where both refuse the job. better: Kafka's refuses it or gives what nobody wants, and
           topicfs gives what is asked for. refused: by topicfs
    words  why it is better, or what the error says
    """

    kind: str
    words: str = ""

    def check(self, run: Callable[[str], R], count: int | None) -> None:
        """Run a job with both, and compare what comes of it. `count` is what topicfs gives; None if it refuses."""
        kafka, ours = attempted(run, "kafka"), attempted(run, "topicfs")
        if count is None:
            assert isinstance(ours, PySparkException), ours
            assert self.words in str(ours)
        else:
            assert not isinstance(ours, Exception), ours
            assert len(ours) == count, ours
        if self.kind == "better":
            assert kafka != ours
        elif count is None:
            assert isinstance(kafka, Exception) == (self.kind == "same"), kafka
        else:
            assert kafka == ours


SAME: Final = Verdict("same")


def better(why: str) -> Verdict:
    """See Verdict."""
    return Verdict("better", why)


def refused(words: str) -> Verdict:
    """See Verdict."""
    return Verdict("refused", words)


def attempted(run: Callable[[str], R], source: str) -> R | Exception:
    """What a job gives, or its error, which is the JVM's or Python's, by where it is found."""
    try:
        return run(source)
    except Exception as error:  # noqa: BLE001 - compared with what the other gives
        return error
