"""Splits into train, validation and test: by folder where the data says so, else by hash.

A row's split depends on its name and the seed alone, so labelling a file (moving it into a class
folder) or adding others later moves no old row.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from covcal_cli.arrays import Splits
from covcal_cli.errors import CovcalError

DEFAULT_FRACTIONS = (0.6, 0.2, 0.2)
# Of a source no test row is evaluated, and T rests on validation rows: so there are as many as can
# be, and where nothing is trained, they are all.
SOURCE_FRACTIONS, FITTED_FRACTIONS = (0.6, 0.4, 0.0), (0.0, 1.0, 0.0)
SPLIT_NAMES = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}
Fractions = tuple[float, float, float]


def check_fractions(fractions: Fractions) -> None:
    """Refuse fractions that are negative or do not add up to 1."""
    if len(fractions) != 3 or not all(0 <= part <= 1 for part in fractions):
        raise CovcalError(f"fractions {_text(fractions)}: give three numbers between 0 and 1")
    if abs(sum(fractions) - 1) > 1e-6:
        raise CovcalError(
            f"fractions {_text(fractions)} add up to {sum(fractions):g}, not 1: "
            "give the shares of train, validation and test"
        )


def hashes_of(names: Sequence[str], prefix: str) -> NDArray[np.uint64]:
    """Return the first 8 bytes of the sha256 of `prefix` and each name, shape (n,)."""
    first = hashlib.sha256(prefix.encode())

    def hashed(name: str) -> int:
        digest = first.copy()
        digest.update(name.encode())
        return int.from_bytes(digest.digest()[:8], "big")

    # One by one: a million digests at once would take 100 MB.
    return np.fromiter(map(hashed, names), dtype=np.uint64, count=len(names))


def hashed_split(names: Sequence[str], fractions: Fractions, seed: int) -> Splits:
    """Assign each name to train (0), validation (1) or test (2); uint8, shape (n,).

    A name is a file's path below its class folder, or a row's id. Another seed gives another,
    independent assignment.
    """
    positions = hashes_of(names, f"{seed}:").astype(np.float64) / 2.0**64
    train, validation, _ = fractions
    bounds = np.array([train, train + validation])
    split = np.searchsorted(bounds, positions, side="right")
    if fractions[2] == 0:  # rounding in the sum must not leave a sliver for test
        split = np.minimum(split, 1 if validation > 0 else 0)
    return split.astype(np.uint8)


def _text(fractions: Fractions) -> str:
    return " ".join(f"{part:g}" for part in fractions)
