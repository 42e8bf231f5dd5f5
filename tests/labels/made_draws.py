"""Draws made by hand, for estimators that look at no file."""

import numpy as np

from covcal_cli.arrays import Float64s, Integers, Labels
from covcal_cli.labels.draws import Batch, Draw


def made_draw(
    population: int,
    inclusion: Float64s | float,
    n: int,
    *,
    batch: Integers | int = 0,
    labels: Labels | None = None,
) -> Draw:
    """Return a draw of n rows from `population` rows, in one batch or as `batch` says."""
    batches = np.broadcast_to(np.asarray(batch, dtype=np.int64), n)
    sizes = np.bincount(batches, minlength=1)
    return Draw(
        rows=np.arange(n),
        inclusion=np.array(np.broadcast_to(inclusion, n), dtype=np.float64),
        batch=batches,
        stratum=np.arange(n),
        labels=np.zeros(n, dtype=np.int64) if labels is None else labels,
        batches=tuple(Batch(int(size), population, 0, ("train",), "score") for size in sizes),
    )
