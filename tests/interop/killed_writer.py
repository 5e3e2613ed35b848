"""A process of the tests: write the workload into the directory given, and die as by kill -9."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from engine_written import write

from topicfs import Store

write(Store.open(Path(sys.argv[1]), create=True))
os.kill(os.getpid(), signal.SIGKILL)
