"""Kernels of the mounted face: records → bytes of a format, and back. `python -m fs.kernels` compiles them."""

from pathlib import Path

import engine.kernels
from engine.kernels.compile import drop_outdated_code

drop_outdated_code(Path(__file__).parent, *map(Path, engine.kernels.__path__))
