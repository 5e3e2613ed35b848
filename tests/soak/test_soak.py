"""Half a minute of everything at once; `make soak` takes ten minutes. SOAK_SECONDS says how long."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from soak import RETENTION, Soak, missing

SECONDS = float(os.environ.get("SOAK_SECONDS", "30"))
MB = 1_000_000


def test_nothing_is_lost_doubled_refused_or_kept_for_ever(tmp_path: Path) -> None:
    lack = missing()
    if lack is not None:
        pytest.skip(lack)
    soak = Soak(tmp_path)
    try:
        soak.start()
        with soak.served.watched(SECONDS + 200):
            soak.run(SECONDS)
            soak.compare()
            soak.check_logs()
        said = soak.served.said()
        start = soak.served.status(soak.served / "delete-0")["start_offset"]
        soak.restart(soak.served.stop)
        soak.check_logs()
        soak.restart(soak.served.kill)
        soak.check_logs()
        assert soak.served.stop() == 0
        alarms = soak.served.alarms()
    finally:
        soak.clear()
    before, after = soak.medians()
    told = f"{soak.faults.count} faults\n" + "\n".join(soak.faults.first) + f"\n{before}\n{after}"
    assert not soak.faults.count, told
    assert not alarms, "\n".join(alarms[:20])
    # It was at work.
    assert start > 1000
    assert len(re.findall(r"(compact-0|both-0): compacted up to", said)) > SECONDS / 5, told
    # It does not grow.
    assert after.threads <= before.threads + 2, told
    assert after.descriptors <= before.descriptors * 1.2 + 20, told
    assert after.rss <= before.rss * 1.1 + 10 * MB, told
    assert max(sample.disk for sample in soak.samples) < RETENTION * 8, told
