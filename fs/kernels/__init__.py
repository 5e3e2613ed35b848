"""Kernels of the mounted face: records → bytes of a format, and back. `python -m mountd.kernels` compiles them."""

from pathlib import Path

import engine.kernels
from engine.kernels.cache import prepare

prepare(Path(__file__).parent, *map(Path, engine.kernels.__path__))
