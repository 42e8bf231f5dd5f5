"""Masked classes: logits that stand for a probability of zero, at every temperature.

A mask is -inf or a number far below every real logit: -1e9, -65504 (half precision), the lowest
number of a float type. A row that overflowed looks the same: all classes except one are far below
the highest. Code that measures the scale of logits must leave masks out.
"""

import numpy as np

from covcal_cli.arrays import Booleans, Float64s, Floats

# A mask is at least this far below its row's highest logit, and at least this many times the usual
# margin between the two highest logits. Margins of naive Bayes are smaller. The shallowest mask in
# use is -10 000.
DEPTH = 5e3
_DEEPEST = 1e30  # the largest depth that is required of a mask
# The quantile of the margins that is the usual margin; low, because most rows may have masks.
_USUAL = 0.25


def mask_depth(logits: Floats, weights: Float64s | None = None) -> float:
    """Return how far below its row's highest logit a mask is.

    `logits` have shape (n, K), `weights` (n,). Rows with weight 0, equal logits, one finite logit,
    NaN or +inf are ignored.
    """
    values = np.asarray(logits, dtype=np.float64)
    if values.shape[1] < 2 or len(values) == 0:
        return DEPTH
    highest = np.partition(values, -2, axis=1)[:, -2:]
    with np.errstate(over="ignore", invalid="ignore"):  # invalid rows are ignored
        margins = np.subtract(highest[:, 1], highest[:, 0])
    masses = np.ones(len(values)) if weights is None else weights
    counted = (margins > 0) & (margins < np.inf) & (masses > 0)
    if not counted.any():
        return DEPTH
    order = np.argsort(margins[counted], kind="stable")
    cumulated = np.cumsum(masses[counted][order])
    place = int(np.searchsorted(cumulated, _USUAL * cumulated[-1]))
    usual = float(margins[counted][order][min(place, len(order) - 1)])
    return min(DEPTH * max(1.0, usual), _DEEPEST)


def masked(logits: Floats, depth: float | None = None) -> Booleans:
    """Return which logits, shape (n, K), are masks; `depth` is by default that of these rows."""
    highest = logits.max(axis=1, keepdims=True)
    # A cheap test first: most blocks have no mask.
    with np.errstate(over="ignore", invalid="ignore"):  # deeper than any depth; rows of NaN
        if depth is None and not (highest[:, 0] - logits.min(axis=1) > DEPTH).any():
            return np.zeros(logits.shape, dtype=bool)
        gaps = highest - logits
    masks: Booleans = gaps > (mask_depth(logits) if depth is None else depth)
    return masks


def valid_rows(logits: Floats) -> Booleans:
    """Return which rows, shape (n,), of (n, K) hold no NaN or +inf and are not all -inf."""
    valid: Booleans = np.isfinite(logits.max(axis=1))
    return valid


def spread(logits: Floats, out: Booleans, weights: Float64s | None = None) -> float:
    """Return the root mean square of row-centred logits, (n, K), without the masks `out`."""
    unmasked = ~out
    counts = unmasked.sum(axis=1)
    values = np.where(unmasked, logits, 0.0).astype(np.float64)
    values -= (values.sum(axis=1) / counts)[:, None]
    squares = np.einsum("nk,nk,nk->n", values, values, unmasked)
    masses = np.ones(len(values)) if weights is None else weights
    return float(np.sqrt((masses * squares).sum() / (masses * counts).sum()))
