"""How soon the command answers: by the processor's time, which other processes change less than the clock's."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

TRIES = 20


def processor_s(words: tuple[str, ...]) -> float:
    """The processor's time of a Python process, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize(
    ("words", "most_s"), [(("-m", "topicfs.mountd.cli", "--help"), 0.15), (("-c", "import topicfs"), 0.1)]
)
def test_help_and_an_import_take_little_of_the_processors_time(words: tuple[str, ...], most_s: float) -> None:
    # The least is what the work takes: what is above it, other processes have caused.
    assert any(processor_s(words) < most_s for _ in range(TRIES))


def test_help_loads_neither_the_engine_nor_settings_nor_a_server() -> None:
    code = (
        "import sys; from topicfs.mountd import cli; "
        "print(*(name for name in ('numpy', 'numba', 'http.server', 'ssl', 'difflib', "
        "'topicfs.engine.settings.definitions', 'topicfs.engine.store.store') if name in sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == []
