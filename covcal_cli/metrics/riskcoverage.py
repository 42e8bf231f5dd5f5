"""The area under the risk-coverage curve: how well confidence tells right rows from wrong ones."""

import numpy as np

from covcal_cli.metrics.rankedrows import RankedRows, confidence_of, correct_of

_CHUNK = 1 << 18


def aurc(rows: RankedRows) -> float:
    """Return the mean, over k = 1 .. n, of the share of errors among the k most confident rows.

    The lower the better; temperature scaling barely moves it. (Geifman & El-Yaniv 2017; the area
    of Geifman, Uziel & El-Yaniv 2019.) Rows of equal confidence count by the mean over all their
    orders, so that the order of the rows in the file does not matter.

    Raises
    ------
    ValueError
        If there are no rows.
    """
    n = len(rows)
    if n == 0:
        raise ValueError("no rows were counted")
    area, before, errors_before = 0.0, 0, 0
    stop = n
    while stop > 0:
        # From the most confident row down; a chunk ends where a value does.
        start = rows.first_of_its_value(max(0, stop - _CHUNK))
        keys = rows.keys[start:stop][::-1]
        confidence = confidence_of(keys)
        first = np.flatnonzero(np.diff(confidence, prepend=2.0))  # of every run of equal values
        sizes = np.diff(first, append=len(keys))
        errors = np.add.reduceat((~correct_of(keys)).astype(np.int64), first)
        wrong = errors_before + np.cumsum(errors) - errors
        # Over a run: the sum of (wrong + (k - rank) errors / size) / k, k from rank + 1.
        inverse = np.add.reduceat(1 / np.arange(before + 1.0, before + len(keys) + 1), first)
        share = errors / sizes
        area += float(((wrong - (before + first) * share) * inverse + errors).sum())
        before, errors_before = before + len(keys), errors_before + int(errors.sum())
        stop = start
    return area / n
