"""How tests are run: Hypothesis profiles, which worker does what, and signals as in a terminal.

HYPOTHESIS_PROFILE=thorough looks for longer. With `ci` a failing example is shown as it was found, with what reproduces
it: to make it smaller has taken minutes.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import Phase, settings

settings.register_profile("default", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=5000)
FOUND_AS_IS = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target)
settings.register_profile("ci", deadline=None, phases=FOUND_AS_IS, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Tests that are started in the background ignore Ctrl-C, and under nohup the end of the terminal. Some of them send
# these signals to programs that they start, which would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The longest first, so that no worker is left alone with it at the end. The rest are done in seconds.
LONGEST = ("spark", "soak", "crash", "interop", "property", "mount", "mountd")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A worker takes one group after the other: a file of tests, or all that share what is slow to start, which are the
    tests of one Spark session, and those of one broker's files. Their order within that is left to chance."""
    for item in items:
        folder = _folder(item)
        session = "spark" in getattr(item, "fixturenames", ())
        group = "spark" if session else folder if folder == "interop" else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
    # The Spark session's group is the longest of all.
    items.sort(key=lambda item: (_rank(item), "spark" not in getattr(item, "fixturenames", ())))


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).parts[0]


def _rank(item: pytest.Item) -> int:
    folder = _folder(item)
    return LONGEST.index(folder) if folder in LONGEST else len(LONGEST)
