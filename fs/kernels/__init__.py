"""Kernels of the mounted face: records → bytes of a format, and back.

`python -m topicfs.mountd.kernels` compiles them.
"""

from pathlib import Path

import topicfs.engine.kernels
from topicfs.engine.kernels.cache import prepare
from topicfs.engine.kernels.compile import FORMATS

prepare(Path(__file__).parent, *map(Path, topicfs.engine.kernels.__path__), *FORMATS)
