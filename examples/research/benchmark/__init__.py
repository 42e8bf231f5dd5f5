"""The benchmark, which compares every method of covcal on real data shifts.

``choose_adapt_settings`` makes the shifts of Office-Caltech10, reviews and corrupted digits.
``paper/reproduction`` extracts the paper's digit shifts.
"""

import sys
from pathlib import Path

RESEARCH = Path(__file__).resolve().parents[1]

for folder in (RESEARCH / "paper", RESEARCH):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
