"""The one reader of target labels: for ``evaluate`` and ``calibrate-labelled`` alone.

Nothing else that trains or fits imports this module, and a test keeps it so: covcal's promise is
that no label of the target ever reaches ``adapt``, ``estimate`` or ``calibrate`` (ARCHITECTURE,
section 3.10).
"""

from covcal_cli.arrays import Labels, Rows
from covcal_cli.formats.features import Domain, read_labels


def target_labels(target: Domain, rows: Rows) -> Labels:
    """Return the labels of target `rows`, shape (m,) int64; -1 where unknown."""
    return read_labels(target, rows)
