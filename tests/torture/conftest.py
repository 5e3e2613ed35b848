"""The path of helpers that the torture shares with other folders."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "mount"))
