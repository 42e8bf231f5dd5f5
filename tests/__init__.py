"""covcal's tests. Each worker keeps to one thread: two that spin beside each other lose time."""

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
