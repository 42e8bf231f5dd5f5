"""The benchmark, which compares every method of covcal on families of real shifts.

Two modules of the folder above help: ``choose_adapt_settings`` makes Office, reviews and corrupted
digits, and ``paper/reproduction`` extracts the digit shifts.
"""

import sys
from pathlib import Path

RESEARCH = Path(__file__).resolve().parents[1]

for folder in (RESEARCH / "paper", RESEARCH):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
