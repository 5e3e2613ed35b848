"""The job that keeps Parquet files up to date, for the topics with `parquet.enable`."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from topicfs.engine.errors import EngineError
from topicfs.engine.parquet.table import Failure, Tables
from topicfs.engine.record import MAX_INT64
from topicfs.engine.store.store import Store
from topicfs.mountd.cleaners import give_way

if TYPE_CHECKING:
    from topicfs.engine.parquet.upkeep import TableUpkeep

log = logging.getLogger(__name__)

# The key of a failure of a whole partition, instead of one of its files.
_WHOLE: Final = ""

_MISSING: Final = "Parquet files need pyarrow: pip install 'topicfs[spark]'"


class ParquetUpkeep:
    """The Parquet files of a store's topics. One thread calls `run`, again and again.

    _tables    the Parquet files that are kept
    _stop      tells whether the work must be broken off
    _upkeep    does the work; None until a topic needs it, as pyarrow takes 0.3 s and 60 MB
    _unwanted  partitions without `parquet.enable` whose files, if any, were removed
    """

    def __init__(self, store: Store, tables: Tables, stop: Callable[[], bool]) -> None:
        self._store = store
        self._tables = tables
        self._stop = stop
        self._upkeep: TableUpkeep | None = None
        self._unwanted: set[str] = set()

    def run(self) -> None:
        """Bring each table up to date."""
        give_way()
        for topic, number in self._store.partitions():
            if self._stop():
                return
            name = f"{topic}-{number}"
            try:
                self._keep(topic, number, name)
            except (EngineError, OSError) as error:
                if (topic, number) not in self._store:
                    continue  # it was deleted meanwhile
                known = self._tables.failures.setdefault(name, {})
                if _WHOLE not in known or known[_WHOLE].reason != str(error):
                    log.error(f"{name}: no Parquet files: {error}")
                known[_WHOLE] = Failure(str(error), MAX_INT64)

    def _keep(self, topic: str, number: int, name: str) -> None:
        if self._store.topic_settings(topic).parquet_enable:
            self._unwanted.discard(name)
            upkeep = self._maker()
            upkeep.bring_up_to_date(self._store.partition(topic, number), self._stop)
            return
        if name not in self._unwanted:
            if self._tables.has_files(name):
                self._tables.clear(name)
                log.info(f"{name}: its Parquet files were removed, as parquet.enable is false")
            self._unwanted.add(name)

    def _maker(self) -> TableUpkeep:
        if self._upkeep is None:
            if importlib.util.find_spec("pyarrow") is None:
                raise EngineError(_MISSING)
            from topicfs.engine.parquet.upkeep import TableUpkeep  # noqa: PLC0415 - most daemons need no pyarrow

            self._upkeep = TableUpkeep(self._tables, self._store.steady)
        return self._upkeep
