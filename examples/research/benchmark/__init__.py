"""Every method of covcal over families of real shifts: errors, regret, harm and coverage.

What lies beside this package is imported, not copied: ``choose_adapt_settings`` builds Office,
reviews and corrupted digits, and ``paper/reproduction`` extracts the digit shifts.
"""

import sys
from pathlib import Path

RESEARCH = Path(__file__).resolve().parents[1]

for folder in (RESEARCH / "paper", RESEARCH):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
