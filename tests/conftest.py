"""Hypothesis profiles: HYPOTHESIS_PROFILE=thorough looks for longer. And signals as in a terminal."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

settings.register_profile("default", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Who starts the tests in the background has them, and all that they start, deaf to Ctrl-C, which some of them send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
