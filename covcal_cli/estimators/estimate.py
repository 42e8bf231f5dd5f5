"""The result of every estimator of target accuracy, and its interval."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from covcal_cli.arrays import Float64s
from covcal_cli.records import Guard

Z = 1.959963984540054


"""Two-sided 95 % quantile of the normal distribution."""


@dataclass(frozen=True)
class Estimate:
    """An estimate of the classifier's accuracy on the target, made without target labels."""

    name: str
    accuracy: float  # in [0, 1]
    # A 95 % interval for the noise of sampling alone: how far other rows of the same domains would
    # move the estimate, not whether `assumption` is true.
    low: float
    high: float
    assumption: str  # what must hold for the estimate to be right, in one sentence
    guards: tuple[Guard, ...] = ()

    @property
    def trusted(self) -> bool:
        """Whether every guard passed."""
        return all(guard.passed for guard in self.guards)

    def guard(self, name: str) -> Guard:
        """Return the guard called `name`; raise KeyError where there is none."""
        return {guard.name: guard for guard in self.guards}[name]

    def to_json(self) -> dict[str, Any]:
        """Return the attributes as a dictionary, guards included."""
        return {
            "name": self.name,
            "accuracy": self.accuracy,
            "low": self.low,
            "high": self.high,
            "assumption": self.assumption,
            "trusted": self.trusted,
            "guards": [asdict(guard) for guard in self.guards],
        }


def from_variance(
    name: str, accuracy: float, variance: float, assumption: str, guards: tuple[Guard, ...] = ()
) -> Estimate:
    """Return an estimate with the normal interval, everything clipped to [0, 1]."""
    half = Z * math.sqrt(variance)
    low, middle, high = (
        float(np.clip(value, 0.0, 1.0)) for value in (accuracy - half, accuracy, accuracy + half)
    )
    return Estimate(name, middle, low, high, assumption, guards)


def variance_of_mean(values: Float64s) -> float:
    """Return the sampling variance of the mean of `values`, shape (n,).

    At least that of half a row: equal values, such as no error at all, are no proof.
    """
    n = len(values)
    return float(max(values.var() / max(1, n - 1), (0.5 / n) ** 2))
