"""`python -m fs.kernels`: compile the kernels of the mounted face, and the engine's that they call."""

from __future__ import annotations

import fs.kernels
from engine.kernels.__main__ import compile_all

if __name__ == "__main__":
    compile_all(fs.kernels)
