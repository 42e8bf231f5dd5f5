"""Change the class frequencies of a target: a class becomes absent, rare or dominant."""

from collections.abc import Sequence

import numpy as np
from choose_adapt_settings import Values

# Share of target rows to keep, for class 0, 1, ...; further classes keep all rows.
SHARES: dict[str, tuple[float, ...]] = {
    "absent": (0.0,),
    "rare": (0.1,),
    "dominant": (1.0, 0.08, 0.08, 0.08, 0.08, 0.08, 0.08, 0.08),
}


def thinned_rows(labels: Values, shares: Sequence[float], rng: np.random.Generator) -> Values:
    """Keep a random share of the rows of each class, and return the remaining row numbers."""
    class_shares = np.ones(int(labels.max()) + 1)
    listed = shares[: len(class_shares)]
    class_shares[: len(listed)] = listed
    return np.flatnonzero(rng.random(len(labels)) < class_shares[labels])
