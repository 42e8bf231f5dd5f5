"""EstimatorInputs of a made shift, for tests of what is estimated from it."""

import numpy as np

from covcal_cli.arrays import Float64s, Labels
from covcal_cli.estimators.inputs import EstimatorInputs


def made_rows(
    n: int, *, classes: int, moved: float, seed: int, prior: Float64s | None = None
) -> tuple[Float64s, Labels]:
    """Return over-confident logits (n, K) and labels of a world of K noisy clusters.

    `moved` = 0 is the source; more of it moves all rows towards the first cluster.
    """
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, size=n, p=prior)
    centres = np.random.default_rng(99).normal(size=(classes, 6)) * 1.2
    rows = centres[labels] + rng.normal(size=(n, 6)) + moved * centres[0]
    logits = 2 * (rows @ centres.T - 0.5 * (centres**2).sum(axis=1))
    return logits, labels


def made_inputs(
    seed: int = 0,
    *,
    n_v: int = 600,
    n_t: int = 800,
    classes: int = 5,
    moved: float = 0.5,
    weighted: bool = False,
    prior: Float64s | None = None,
) -> tuple[EstimatorInputs, Labels]:
    """Return the inputs of a made shift, and the target's labels, which it does not hold."""
    source, labels = made_rows(n_v, classes=classes, moved=0.0, seed=2 * seed + 1)
    target, truth = made_rows(n_t, classes=classes, moved=moved, seed=2 * seed + 2, prior=prior)
    weights = np.random.default_rng(seed).gamma(2.0, 0.5, size=n_v) if weighted else None
    return EstimatorInputs(source, labels, target, 2.0, source_weights=weights), truth
