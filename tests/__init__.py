"""covcal's tests. Each worker keeps to one thread: two that spin beside each other lose time."""

import os
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# Modules are compiled once, and not again in every process of the tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
