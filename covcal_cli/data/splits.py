"""Split rows into train, validation and test by a hash of their names.

The split of a row depends on its name and the seed alone. Labelling a file (moving it into a class
folder) or adding files later therefore moves no other row.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from covcal_cli.arrays import Splits
from covcal_cli.errors import CovcalError

DEFAULT_FRACTIONS = (0.6, 0.2, 0.2)
# No command evaluates test rows of the source, and T is fitted to its validation rows. The second
# fractions are for data without features, where nothing is trained.
SOURCE_FRACTIONS, FITTED_FRACTIONS = (0.6, 0.4, 0.0), (0.0, 1.0, 0.0)
SPLIT_NAMES = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}
Fractions = tuple[float, float, float]
_BLOCK = 1 << 14  # digests at once: a million would take 100 MB


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
    hashes = np.empty(len(names), dtype=np.uint64)
    for start in range(0, len(names), _BLOCK):
        block = names[start : start + _BLOCK]
        digests = [hashlib.sha256((prefix + name).encode()).digest() for name in block]
        words = np.frombuffer(b"".join(digests), dtype=">u8")
        hashes[start : start + len(block)] = words[:: hashlib.sha256().digest_size // 8]
    return hashes


def hashed_split(names: Sequence[str], fractions: Fractions, seed: int) -> Splits:
    """Assign each name to train (0), validation (1) or test (2); uint8, shape (n,).

    A name is a file's path below its class folder, or a row's id. Another seed gives another,
    independent assignment.
    """
    if 1 in fractions:
        return np.full(len(names), fractions.index(1), dtype=np.uint8)
    positions = hashes_of(names, f"{seed}:").astype(np.float64) / 2.0**64
    train, validation, _ = fractions
    bounds = np.array([train, train + validation])
    split = np.searchsorted(bounds, positions, side="right")
    if fractions[2] == 0:  # the sum may round to less than 1, which would leave rows for test
        split = np.minimum(split, 1 if validation > 0 else 0)
    return split.astype(np.uint8)


def _text(fractions: Fractions) -> str:
    return " ".join(f"{part:g}" for part in fractions)
