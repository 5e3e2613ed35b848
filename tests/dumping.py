"""What `topicfs dump` shows of files, called directly."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from topicfs.engine.dump.files import show
from topicfs.engine.dump.report import Report
from topicfs.engine.dump.wanted import Wanted


def dumped(files: Iterable[Path], **wanted: Any) -> tuple[bytes, list[str]]:
    """The lines, and the problems that are told. `wanted` are fields of Wanted."""
    told: list[str] = []
    what = Wanted(**wanted)
    out = os.memfd_create("dump")
    try:
        report = Report(out, told.append, what)
        for file in files:
            show(file, what, report)
        report.flush()
        assert (report.problems > 0) == bool(told)
        return os.pread(out, os.fstat(out).st_size, 0), told
    finally:
        os.close(out)
