"""What a calibration keeps of the rows that it was made on, to hold later rows against.

Sketches and moments, no rows: quantiles of single numbers, means and covariances. Arrays are
float32 in base64, one short line each in cal.json; all together stay below 200 kB.
"""

import base64
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from covcal_cli.arrays import Float32s, Float64s, Floats

Baseline = Literal["target", "source"]
Space = Literal["features", "logits"]


@dataclass(frozen=True)
class Packed:
    """An array of finite float32 as text.

    ValueError if the text does not hold as many numbers as the shape says, or one is not finite.
    """

    shape: tuple[int, ...]
    float32: str  # base64 of the little-endian values, row by row

    def __post_init__(self) -> None:
        try:
            count = len(base64.b64decode(self.float32, validate=True)) / 4
        except ValueError as error:
            raise ValueError("a reference array is no base64") from error
        if min(self.shape, default=0) < 0 or count != math.prod(self.shape):
            raise ValueError(f"a reference array has {count:g} numbers, not {list(self.shape)}")
        if not np.isfinite(self.values).all():
            raise ValueError("a reference array is not finite")

    @classmethod
    def of(cls, values: Floats) -> "Packed":
        """Pack an array; infinite values become the largest that are finite."""
        limit = np.finfo(np.float32).max
        found = np.clip(values, -limit, limit).astype("<f4")
        return cls(tuple(found.shape), base64.b64encode(found.tobytes()).decode("ascii"))

    @cached_property
    def values(self) -> Float32s:
        """The array, of `shape`."""
        flat = np.frombuffer(base64.b64decode(self.float32), dtype="<f4")
        return np.asarray(flat.reshape(self.shape), dtype=np.float32)


@dataclass(frozen=True)
class Signal:
    """The distribution of one number per row, whose later values are watched."""

    name: str  # "confidence", "density ratio", "class NAME" or "axis NUMBER"
    rows: int  # that it was taken from
    quantiles: Packed  # (m,), at the probabilities (i + 1/2) / m
    # Of the ranks that `ranks` gives those rows: 1/2 and 1/12, but for ties.
    mean: float
    variance: float
    class_number: int | None = None  # of a class's signal
    axis: int | None = None  # of a coordinate's, which are watched together

    def __post_init__(self) -> None:
        if self.rows < 1 or self.quantiles.values.ndim != 1 or self.quantiles.values.size == 0:
            raise ValueError(f"the signal {self.name} is of no rows")
        if not (math.isfinite(self.mean) and self.variance >= 0):
            raise ValueError(f"the signal {self.name} has no variance")

    def ranks(self, values: Floats) -> Float64s:
        """Return where values stand among the reference's, shape (n,), from 0 to 1."""
        return ranks(self.quantiles.values, values)


@dataclass(frozen=True)
class Moments:
    """Mean and covariance of a domain's coordinates."""

    rows: int
    mean: Packed  # (p,)
    covariance: Packed  # (p, p)


@dataclass(frozen=True)
class Axes:
    """A few directions of standardised points."""

    mean: Packed  # (d,)
    scale: Packed  # (d,)
    components: Packed  # (p, d)

    def located(self, points: Floats) -> Float64s:
        """Return the coordinates of points (n, d), shape (n, p)."""
        standard = ((points - self.mean.values) / self.scale.values).astype(np.float32)
        return np.asarray(standard @ self.components.values.T, dtype=np.float64)


@dataclass(frozen=True)
class Coordinates:
    """What domains are compared in, and what the calibration's own rows are like there."""

    of: Space
    axes: Axes
    source: Moments
    target: Moments | None
    # (p,): of the logarithm of the target's density over the source's, where both domains have
    # training rows to fit it to.
    density: Packed | None


@dataclass(frozen=True)
class Clusters:
    """The clusters of the labelled source validation rows, of the estimators that count strays."""

    centres: Packed  # (L, K), of the classes that have a row
    classes: tuple[int, ...]  # (L,), which those are
    shares: Packed  # (K,), of the classes
    strays: float  # share of rows that end in another cluster than their label's
    held_strays: float  # the same with clusters held to the shares


@dataclass(frozen=True)
class SourceSketch:
    """The labelled source validation rows: the log-odds of the top label, right and wrong apart."""

    right: int
    wrong: int
    right_odds: Packed  # (m,), quantiles as those of `Signal`
    wrong_odds: Packed
    predicted: Packed  # (K,), how often each class is predicted
    clusters: Clusters | None  # where the classes are few enough


@dataclass(frozen=True)
class Reference:
    """Everything that later rows are held against."""

    temperature: float  # T_s, at which confidences are calibrated on the source
    baseline: Baseline  # whose rows the signals are of
    signals: tuple[Signal, ...]  # those of axes last
    # (p, p): what makes the ranks of the p axes, each over its standard deviation, uncorrelated.
    joint: Packed | None
    coordinates: Coordinates
    source: SourceSketch


def ranks(quantiles: Float32s, values: Floats) -> Float64s:
    """Return the share of a distribution below each value, ties counting one half.

    `quantiles`, shape (m,), are ascending and at the probabilities (i + 1/2) / m; between two of
    them the share is linear, and beyond all it is a quarter of a step from 0 or 1.
    """
    limit = np.finfo(np.float32).max
    values = np.clip(values, -limit, limit).astype(np.float32)
    m = len(quantiles)
    # Where a value stands, and up to where values tie with it: one search for both.
    left = np.searchsorted(quantiles, values, side="left")
    place = np.minimum(left, m - 1)
    above, below = quantiles[place].astype(np.float64), quantiles[np.maximum(left - 1, 0)]
    ties = above == values
    right = np.where(ties, np.searchsorted(quantiles, quantiles, side="right")[place], left)
    gap = np.where(above > below, above - below, 1.0)
    between = (left - 0.5 + (values - below) / gap) / m
    between = np.where(left == 0, 0.25 / m, np.where(left == m, 1 - 0.25 / m, between))
    return np.asarray(np.where(ties, (left + right) / (2 * m), between))
