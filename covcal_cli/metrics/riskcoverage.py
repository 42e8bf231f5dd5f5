"""The area under the risk-coverage curve: how well confidence tells right rows from wrong ones."""

import numpy as np

from covcal_cli.metrics.binning import require_rows
from covcal_cli.metrics.rankedrows import RankedRows, correct_of

_CHUNK = 1 << 16  # rows whose arrays stay in the processor's cache


def aurc(rows: RankedRows) -> float:
    """Return the mean, over k = 1 .. n, of the share of errors among the k most confident rows.

    The lower the better; temperature scaling barely moves it. (Geifman & El-Yaniv 2017; the area
    of Geifman, Uziel & El-Yaniv 2019.) Rows of equal confidence count by the mean over all their
    orders, so that the order of the rows in the file does not matter.
    """
    n = require_rows(len(rows))
    area, before, errors_before = 0.0, 0, 0
    stop = n
    while stop > 0:
        # From the most confident row down; a chunk ends where a value does.
        start = rows.first_of_its_value(max(0, stop - _CHUNK))
        keys = rows.keys[start:stop][::-1]
        values = keys >> np.uint32(1)
        last = np.append(np.flatnonzero(values[1:] != values[:-1]), len(keys) - 1)
        # Of every run of equal values: what stands before it, and what is in it.
        sizes = np.diff(last, prepend=-1)
        wrong = errors_before + np.cumsum(~correct_of(keys), dtype=np.int64).take(last)
        errors = np.diff(wrong, prepend=errors_before)
        inverse = np.diff(
            np.cumsum(1 / np.arange(before + 1.0, before + len(keys) + 1)).take(last), prepend=0.0
        )
        # The sum of (wrong before + (k - rank before) errors / size) / k over the ranks k of a run.
        rank_share = (before + 1 + last - sizes) * (errors / sizes)
        area += float((wrong - errors - rank_share) @ inverse) + int(errors.sum())
        before, errors_before = before + len(keys), int(wrong[-1])
        stop = start
    return area / n
