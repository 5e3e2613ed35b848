"""Which of several long checks a run looks at: one of them, another one each time; all of them in a thorough run."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def sample(checks: Sequence[T]) -> list[T]:
    """The checks to be made, in any order. The seed that the run tells chooses them."""
    count = len(checks) if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 1
    return random.sample(checks, count)
