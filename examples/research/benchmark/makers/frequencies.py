"""Changes of class frequencies: some classes of the target become absent, rare or dominant."""

from collections.abc import Sequence

import numpy as np
from choose_adapt_settings import Values

# The share of each class's target rows that remains. Classes after the last number keep all rows.
SHARES: dict[str, tuple[float, ...]] = {
    "absent": (0.0,),
    "rare": (0.1,),
    "dominant": (1.0, 0.08, 0.08, 0.08, 0.08, 0.08, 0.08, 0.08),
}


def thinned_rows(labels: Values, shares: Sequence[float], rng: np.random.Generator) -> Values:
    """Return the row numbers that remain if each class keeps only a share of its rows."""
    class_shares = np.ones(int(labels.max()) + 1)
    listed = shares[: len(class_shares)]
    class_shares[: len(listed)] = listed
    return np.flatnonzero(rng.random(len(labels)) < class_shares[labels])
