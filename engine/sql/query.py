"""One query over the topics of a store.

DuckDB works in a thread of its own, so that Ctrl-C reaches this one, which then interrupts the query.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Final, TypeVar

import duckdb

from topicfs.engine.errors import EngineError
from topicfs.engine.sql.topics import Topics
from topicfs.engine.unlocked.place import Place

T = TypeVar("T")

_OLDEST: Final = (1, 5, 2)

_EXPLAIN: Final = re.compile(r"\s*explain\s+(?:analyze\s+)?", re.IGNORECASE)
_BARE_OFFSET: Final = re.compile(r"(?<![\w\".])offset(?![\w\"])", re.IGNORECASE)


class QueryError(EngineError):
    """A query is not one, or fails. The message is one line."""


class Query:
    """A query whose topics were found. It is run once, by one of the modules that show what it gives.

    connection  the connection, with a view of each topic
    text        the query
    _topics     the topics
    """

    def __init__(self, connection: Any, text: str, topics: Topics) -> None:
        self.connection = connection
        self.text = text
        self._topics = topics

    @classmethod
    @contextmanager
    def open(cls, place: Place, text: str) -> Iterator[Query]:
        """Find what the query reads. It reads what is there now."""
        with ExitStack() as held:
            _check_version()
            connection = held.enter_context(duckdb.connect())
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute(f"SET temp_directory = '{tempfile.gettempdir()}'")
            _check(connection, text)
            topics = Topics(place, connection, held)
            topics.define(text)
            yield cls(connection, text, topics)

    def run(self, work: Callable[[], T], meanwhile: Callable[[], object] = lambda: None) -> T:
        """Return the result of `work`, which uses the connection in another thread. `meanwhile` is called in this one.
        QueryError if the work fails. What stops this thread, such as Ctrl-C, stops the work."""
        with ThreadPoolExecutor(1, "topicfs-sql") as pool:
            working = pool.submit(work)
            try:
                meanwhile()
                return working.result()
            except duckdb.Error as error:
                raise QueryError(self._words(error)) from None
            except BaseException:
                self.connection.interrupt()
                raise

    def _words(self, error: Exception) -> str:
        return str(self._topics.failures[0]) if self._topics.failures else words_of(error, self.text)


def words_of(error: Exception, text: str) -> str:
    """Return what DuckDB says of a query, in one line, without the part of the query that it shows below."""
    words = " ".join(re.split(r"\n+LINE \d+:", str(error))[0].split())
    if isinstance(error, duckdb.ParserException) and _BARE_OFFSET.search(text):
        words += ': the column offset is written in double quotes, "offset", because it is a word of SQL too'
    return words


def _check_version() -> None:
    """Raise QueryError if DuckDB is too old. Before, TRY made values null, or gave those of other rows: 150 random
    tables with invalid text came out right in 1.5.2, 1.5.4 and 2.0.0, and 1.5.1 crashed."""
    if tuple(map(int, re.findall(r"\d+", duckdb.__version__)[:3])) < _OLDEST:
        raise QueryError(
            f"expected DuckDB {'.'.join(map(str, _OLDEST))} or later, found {duckdb.__version__}: "
            "pip install --upgrade 'topicfs[sql]'"
        )


def _check(connection: Any, text: str) -> None:
    """Raise QueryError unless the text is one query, which changes nothing."""
    explained = _EXPLAIN.match(text)
    try:
        statements = connection.extract_statements(text[explained.end() :] if explained else text)
    except duckdb.Error as error:
        raise QueryError(words_of(error, text)) from None
    if len(statements) != 1:
        raise QueryError(f"expected one query, found {len(statements)}")
    kind = str(statements[0].type).rpartition(".")[2]
    if kind != "SELECT":
        raise QueryError(f"expected a query, which reads, found {kind}: topics are not changed by SQL")
