"""Masked classes: logits that stand for a probability of zero, at every temperature.

A class is ruled out by a logit of -inf, or by a number that no logit comes near: -1e9, -65504 of
half precision, the lowest number of a float type. A row that overflowed looks the same from the
other side: all its classes but one are out of reach. Such numbers are no sizes, and whatever takes
the scale of the logits must not take it from them.
"""

import numpy as np

from covcal_cli.arrays import Booleans, Float64s, Floats

# A mask lies this many times deeper below its row's highest logit than the second-highest of usual
# rows does, and never less deep than this number. Margins of naive Bayes stay below; -10 000 is the
# shallowest mask in use.
_DEPTH = 5e3
_DEEPEST = 1e30  # and never deeper: no logit comes near
_USUAL = 0.25  # the quantile of rows: a class may be ruled out in most, all but one in many


def mask_depth(logits: Floats, weights: Float64s | None = None) -> float:
    """Return how far below its row's highest a logit must lie to be a mask.

    `logits` have shape (n, K), finite or -inf, `weights` (n,). Rows of weight 0, rows of equal
    logits and rows with one finite logit say nothing.
    """
    values = np.asarray(logits, dtype=np.float64)
    if values.shape[1] < 2 or len(values) == 0:
        return _DEPTH
    highest = np.partition(values, -2, axis=1)[:, -2:]
    margins = np.subtract(highest[:, 1], highest[:, 0])
    masses = np.ones(len(values)) if weights is None else weights
    counted = (margins > 0) & (margins < np.inf) & (masses > 0)
    if not counted.any():
        return _DEPTH
    order = np.argsort(margins[counted], kind="stable")
    cumulated = np.cumsum(masses[counted][order])
    place = int(np.searchsorted(cumulated, _USUAL * cumulated[-1]))
    usual = float(margins[counted][order][min(place, len(order) - 1)])
    return min(_DEPTH * max(1.0, usual), _DEEPEST)


def masked(logits: Floats, depth: float | None = None) -> Booleans:
    """Return which logits, shape (n, K), are masks: by `depth`, or by that of these rows."""
    highest = logits.max(axis=1, keepdims=True)
    # Most logits need no closer look.
    if depth is None and not (highest[:, 0] - logits.min(axis=1) > _DEPTH).any():
        return np.zeros(logits.shape, dtype=bool)
    with np.errstate(over="ignore", invalid="ignore"):  # deeper than any depth; rows of NaN
        gaps = highest - logits
    found: Booleans = gaps > (mask_depth(logits) if depth is None else depth)
    return found


def valid_rows(logits: Floats) -> Booleans:
    """Return which rows, shape (n,), of (n, K) are logits: none NaN or +inf, and not all -inf."""
    found: Booleans = np.isfinite(logits.max(axis=1))
    return found


def spread(logits: Floats, out: Booleans, weights: Float64s | None = None) -> float:
    """Return the root mean square of the row-centred logits, shape (n, K), but for masks `out`."""
    kept = ~out
    counts = kept.sum(axis=1)
    values = np.where(kept, logits, 0.0).astype(np.float64)
    values -= (values.sum(axis=1) / counts)[:, None]
    squares = np.einsum("nk,nk,nk->n", values, values, kept)
    masses = np.ones(len(values)) if weights is None else weights
    return float(np.sqrt((masses * squares).sum() / (masses * counts).sum()))
