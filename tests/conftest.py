"""How tests are run: Hypothesis profiles, which worker does what, and signals as in a terminal.

HYPOTHESIS_PROFILE=thorough looks for longer. With `ci` a failing example is shown as it was found, with what reproduces
it: to make it smaller has taken minutes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lock_order
import pytest
from hypothesis import Phase, settings

lock_order.watch()

settings.register_profile("default", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=5000)
FOUND_AS_IS = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target)
settings.register_profile("ci", deadline=None, phases=FOUND_AS_IS, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A Java of a test lives for seconds. To compile its code to the full, and to collect garbage by many threads, takes the
# processors from others: examples/stream.py takes 48 s of them so, and 29 s with this. A tenth of what the start of a
# Spark session takes is to verify the bytes of classes.
os.environ.setdefault(
    "JDK_JAVA_OPTIONS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
)

# Tests that are started in the background ignore Ctrl-C, and under nohup the end of the terminal. Some of them send
# these signals to programs that they start, which would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _locks_in_their_order() -> Iterator[None]:
    """No test has taken a lock against the order that is written down."""
    yield
    found, lock_order.violations[:] = list(lock_order.violations), []
    assert not found, "\n".join(found)


# The longest first, so that no worker is left alone with it at the end. The rest are done in seconds.
LONGEST = ("spark", "crash_states", "soak", "crash", "interop", "property", "torture", "mountd", "mount")
LONG_FILES = {"test_damaged_views.py", "test_damaged_indexes.py", "test_kernel_cache.py", "test_layers.py"}
OWN_SPARK = {"test_examples.py", "test_other_sessions.py", "test_source_crashes.py"}
"""Files of tests that start Spark themselves, beside the session that all others share."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A worker takes one group after the other: a file of tests, or all that share what is slow to start, which are the
    tests of one Spark session, those of one beside a broker, and those of one broker's files; links have brokers of
    their own. Their order within that is left to chance.

    The groups that xdist 3.8 itself knows, by marks, come to nothing with pytest 9.2: each test then was one."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - tests run without it too

    class Groups(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            path = Path(nodeid.partition("::")[0])
            own = path.name in OWN_SPARK or path.name.startswith("test_link_")
            shared = path.parent.name in ("interop", "spark") and not own
            if shared and path.name.startswith("test_drop_in_"):
                return "a Spark session beside a broker"
            return str(path.parent if shared else path)

    return Groups(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The Spark session's group is the longest of all."""
    items.sort(key=lambda item: (_rank(item), item.path.name in OWN_SPARK))


def _rank(item: pytest.Item) -> int:
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    if item.path.name in LONG_FILES:
        folder = "property"
    return LONGEST.index(folder) if folder in LONGEST else len(LONGEST)
