"""The reference data of a calibration, which summarise the calibration's rows.

The data contain quantiles, means and covariances, but no rows. The reference data of cal.json are
stored in cal.reference.json, in the same folder (less than 200 kB). The first ``covcal watch``
makes this file from the features file of the calibration.
"""

import base64
import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from covcal_cli.arrays import Float32s, Float64s, Floats
from covcal_cli.errors import CovcalError
from covcal_cli.formats.calibration import Calibration
from covcal_cli.multilabel import current_label
from covcal_cli.records import Document, Share, read_document

Baseline = Literal["target", "source"]
Space = Literal["features", "logits"]
CONFIDENCE, DENSITY_RATIO = "confidence", "density ratio"  # The names of two signals.
_ROUNDING = 1e-3  # Tolerance for sums and norms of 32-bit numbers.
_LARGEST_VARIANCE = 1e12  # Maximum plausible variance (about d for d features).
_LARGEST_RANK_VARIANCE = 0.25  # Largest variance of numbers from 0 to 1.
SMALLEST_RANK_VARIANCE = 1e-18  # If one of n rows differs, the variance is about 1/(4n).
_QUANTILES = 257
_LEAST_TEMPERATURE = 1e-100  # Smallest plausible temperature. The largest is the inverse.


def reference_path(document: Path) -> Path:
    """Return the path of a calibration's reference data, such as cal.reference.json.

    If rows can have several labels, each label has its own file.
    """
    label = current_label()
    if label is None:
        return document.with_name(f"{document.stem}.reference.json")
    # On some disks, two names that differ only in case or accents are the same file.
    is_plain = re.fullmatch(r"[a-z0-9_ -]{1,80}", label) is not None
    name = label if is_plain else hashlib.sha256(label.encode()).hexdigest()[:12]
    return document.with_name(f"{document.stem}.{name}.reference.json")


def identity_of(calibration: Calibration) -> str:
    """Return a hash of the calibration's parameters, and of the label if rows can have several."""
    sha256, label = calibration.scaling_sha256, current_label()
    if label is None:
        return sha256
    return hashlib.sha256(f"{sha256} {label}".encode()).hexdigest()


def _require(condition: object, what: str) -> None:
    if not condition:
        raise ValueError(f"{what} cannot be right")


@dataclass(frozen=True)
class Packed:
    """An array of finite float32 numbers, stored as text."""

    shape: tuple[int, ...]
    float32: str  # base64 of the numbers in little-endian order, row by row

    def __post_init__(self) -> None:
        try:
            count = len(base64.b64decode(self.float32, validate=True)) / 4
        except ValueError as error:
            raise ValueError("a reference array is not base64") from error
        if min(self.shape, default=0) < 0 or count != math.prod(self.shape):
            raise ValueError(f"a reference array has {count:g} numbers, not {list(self.shape)}")
        _require(np.isfinite(self.values).all(), "an infinite number in a reference array")

    @classmethod
    def of(cls, values: Floats) -> "Packed":
        """Pack an array, and replace infinity by the largest finite number."""
        limit = np.finfo(np.float32).max
        packed = np.clip(values, -limit, limit).astype("<f4")
        return cls(tuple(packed.shape), base64.b64encode(packed.tobytes()).decode("ascii"))

    @cached_property
    def values(self) -> Float32s:
        """The array."""
        flat = np.frombuffer(base64.b64decode(self.float32), dtype="<f4")
        return np.asarray(flat.reshape(self.shape), dtype=np.float32)

    @property
    def are_shares(self) -> bool:
        """Whether the values are at least 0 and sum to 1."""
        shares = self.values
        return bool((shares >= 0).all()) and abs(float(shares.sum()) - 1) < _ROUNDING

    def require_quantiles(self, rows: int, name: str) -> None:
        """Raise ValueError if the values cannot be quantiles of `rows` rows."""
        _require(
            self.values.ndim == 1
            and min(rows, 1) <= len(self.values) <= rows
            and (np.diff(self.values) >= 0).all(),
            f"the quantiles of {name}",
        )


@dataclass(frozen=True)
class Signal:
    """The reference distribution of a signal."""

    name: str  # "confidence", "density ratio", "class NAME" or "axis NUMBER".
    rows: int  # Number of reference rows.
    quantiles: Packed  # (m,), the quantiles at the probabilities (i + 1/2) / m.
    mean: float  # Mean rank of the reference rows; 1/2 if all values differ.
    variance: float  # Variance of the ranks of the reference rows; 1/12 if all values differ.
    class_number: int | None = None  # Number of the class, for a signal "class NAME".
    axis: int | None = None  # Number of the axis, for a signal "axis NUMBER".

    def __post_init__(self) -> None:
        self.quantiles.require_quantiles(self.rows, f"the signal {self.name}")
        plausible = SMALLEST_RANK_VARIANCE <= self.variance <= _LARGEST_RANK_VARIANCE
        _require(
            self.rows >= 1 and 0 <= self.mean <= 1 and (plausible or self.variance == 0),
            f"the signal {self.name}",
        )

    def ranks(self, values: Floats) -> Float64s:
        """Return the rank of each value among the reference rows, (n,), from 0 to 1."""
        return ranks(self.quantiles.values, values)


@dataclass(frozen=True)
class ColumnSketch:
    """The reference distribution of a kept column."""

    name: str
    rows: int
    missing: Share
    quantiles: Packed | None  # (m,), quantiles of numbers; None if the values are categories
    categories: tuple[str, ...] = ()
    shares: tuple[Share, ...] = ()  # share of each category among rows with a value

    def __post_init__(self) -> None:
        if self.quantiles is not None:
            self.quantiles.require_quantiles(self.rows, f"the column {self.name}")
        _require(
            self.valued >= 1 and len(self.categories) == len(self.shares), f"the column {self.name}"
        )

    @property
    def valued(self) -> int:
        """The number of rows with a value."""
        return round(self.rows * (1 - self.missing))


@dataclass(frozen=True)
class Moments:
    """Mean and covariance of the coordinates of a domain's rows."""

    rows: int
    mean: Packed  # (p,).
    covariance: Packed  # (p, p).

    def __post_init__(self) -> None:
        mean, covariance = self.mean.values, self.covariance.values.astype(np.float64)
        _require(
            self.rows >= 1
            and mean.ndim == 1
            and len(mean) > 0
            and (mean.astype(np.float64) ** 2 <= _LARGEST_VARIANCE).all(),
            "a domain's mean",
        )
        _require(covariance.shape == mean.shape * 2, "a domain's covariance")
        variances = np.linalg.eigvalsh(covariance)
        asymmetry = np.abs(covariance - covariance.T).max()
        _require(
            asymmetry <= _ROUNDING * variances[-1]
            and variances[-1] <= _LARGEST_VARIANCE
            and variances[0] >= -_ROUNDING * variances[-1],
            "a domain's covariance",
        )


@dataclass(frozen=True)
class Axes:
    """Principal axes of features or logits."""

    mean: Packed  # (d,).
    scale: Packed  # (d,).
    components: Packed  # (p, d), p directions of length 1.

    def __post_init__(self) -> None:
        mean, scale = self.mean.values, self.scale.values
        components = self.components.values.astype(np.float64)
        _require(
            mean.ndim == 1
            and components.ndim == 2
            and mean.shape == scale.shape == components.shape[1:]
            and len(components) > 0
            and (scale > 0).all()
            and np.abs(np.linalg.norm(components, axis=1) - 1).max() < _ROUNDING,
            "the axes",
        )

    def located(self, points: Floats) -> Float64s:
        """Return the coordinates of points (n, d), shape (n, p)."""
        standard = ((points - self.mean.values) / self.scale.values).astype(np.float32)
        return np.asarray(standard @ self.components.values.T, dtype=np.float64)


@dataclass(frozen=True)
class Coordinates:
    """The coordinates in which domains are compared, and the moments of both domains."""

    of: Space
    axes: Axes
    source: Moments
    target: Moments | None
    # (p,), coefficients of the log density ratio of target to source.
    density: Packed | None  # None if the target has no training rows.

    def __post_init__(self) -> None:
        lengths = [self.source.mean.shape, self.axes.components.shape[:1]]
        lengths += [] if self.target is None else [self.target.mean.shape]
        lengths += [] if self.density is None else [self.density.shape]
        _require(len(set(lengths)) == 1, "the number of coordinates")


@dataclass(frozen=True)
class Clusters:
    """Class clusters of the labelled source validation rows."""

    centres: Packed  # (L, K), the centre of each class that has rows.
    classes: tuple[int, ...]  # (L,), the numbers of the classes that have rows.
    shares: Packed  # (K,), the share of each class.
    strays: float  # Share of rows that are not in the cluster of their predicted class.
    held_strays: float  # `strays` for clustering with fixed class shares.

    def __post_init__(self) -> None:
        shape = (len(self.classes), *self.shares.shape)
        _require(
            self.centres.shape == shape
            and len(shape) == 2
            and _are_ascending_classes(self.classes, shape[1])
            and self.shares.are_shares
            and 0 <= self.strays <= 1
            and 0 <= self.held_strays <= 1,
            "the clusters",
        )


@dataclass(frozen=True)
class ClassPlaces:
    """Mean and spread of the source logits of each predicted class.

    Logits are centred: the mean of a row is subtracted.
    """

    classes: tuple[int, ...]  # (m,), classes that are predicted for enough rows to average.
    counts: tuple[int, ...]  # (m,), number of rows with each predicted class.
    means: Packed  # (m, K), mean of the centred logits.
    spreads: Packed  # (m, K), standard deviation of the centred logits.

    def __post_init__(self) -> None:
        shape = self.means.shape
        _require(
            len(shape) == 2
            and self.spreads.shape == shape
            and len(self.classes) == len(self.counts) == shape[0]
            and _are_ascending_classes(self.classes, shape[1])
            and min(self.counts, default=1) >= 1
            and (self.spreads.values >= 0).all(),
            "the mean logits",
        )


@dataclass(frozen=True)
class SourceSketch:
    """A summary of the labelled source validation rows: log odds and class frequencies."""

    right: int  # number of rows that the classifier predicts correctly
    wrong: int
    right_odds: Packed  # (m,), quantiles of the log odds of the correct rows
    wrong_odds: Packed
    predicted: Packed  # (K,), how often each class is predicted.
    clusters: Clusters | None  # None if there are too many classes.
    places: ClassPlaces | None = None  # None for two classes, or for too many classes.

    def __post_init__(self) -> None:
        self.right_odds.require_quantiles(self.right, "the right rows")
        self.wrong_odds.require_quantiles(self.wrong, "the wrong rows")
        shape = self.predicted.shape
        _require(len(shape) == 1 and self.predicted.are_shares, "the shares of classes")
        _require(
            (self.clusters is None or self.clusters.shares.shape == shape)
            and (self.places is None or self.places.means.shape[1:] == shape),
            "the number of classes",
        )


@dataclass(frozen=True)
class Reference(Document):
    """The reference data of one calibration."""

    schema: ClassVar[str] = "covcal.reference/1"

    calibration_sha256: str  # The result of `identity_of` for the calibration.
    temperature: float  # T_s, from temperature scaling on the source.
    baseline: Baseline  # The domain whose rows are the reference.
    signals: tuple[Signal, ...]  # The signals "axis NUMBER" come last.
    joint: Packed | None  # (p, p), whitening matrix of the ranks on p axes
    coordinates: Coordinates
    source: SourceSketch
    is_carried_over: bool = False  # Whether the data were made for an earlier calibration.
    columns: tuple[ColumnSketch, ...] = ()  # The kept columns that can be compared.

    def __post_init__(self) -> None:
        least = _LEAST_TEMPERATURE
        _require(least < self.temperature < 1 / least, f"the temperature {self.temperature:g}")
        is_digest = re.fullmatch("[0-9a-f]{64}", self.calibration_sha256) is not None
        _require(is_digest, "calibration_sha256")
        is_target = self.baseline == "target"
        _require(is_target == (self.coordinates.target is not None), "the baseline")
        names = [signal.name for signal in self.signals]
        classes = [signal.class_number or 0 for signal in self.signals]
        _require(
            len(set(names)) == len(names) and _are_below(self.n_classes, classes), "the signals"
        )
        axes = [signal for signal in self.signals if signal.axis is not None]
        numbers = [signal.axis or 0 for signal in axes]
        _require(
            axes == list(self.signals[len(names) - len(axes) :])
            and _are_below(self.coordinates.axes.components.shape[0], numbers)
            and all(signal.variance > 0 for signal in axes)
            and len({signal.rows for signal in axes}) <= 1,
            "the axes' signals",
        )
        shape = None if self.joint is None else self.joint.shape
        _require(shape == ((len(axes), len(axes)) if axes else None), "the axes' matrix")
        width = len(self.coordinates.axes.mean.values)
        is_wide = self.coordinates.of == "features" or width == self.n_classes
        _require(is_wide, "the number of classes")

    def carried_over(self, calibration_sha256: str) -> "Reference":
        """Return the reference data for another calibration of the same classifier.

        The signal "confidence" is left out, because the new calibration changes the confidence.
        """
        signals = tuple(signal for signal in self.signals if signal.name != CONFIDENCE)
        return replace(
            self, calibration_sha256=calibration_sha256, signals=signals, is_carried_over=True
        )

    @property
    def n_classes(self) -> int:
        """The number of classes, K."""
        return len(self.source.predicted.values)


def _are_below(limit: int, numbers: Sequence[int]) -> bool:
    return all(0 <= number < limit for number in numbers)


def _are_ascending_classes(classes: Sequence[int], n_classes: int) -> bool:
    return list(classes) == sorted(set(classes)) and _are_below(n_classes, classes)


def read_reference(calibration: Calibration) -> Reference | None:
    """Read the reference data of a calibration; None if the data belong to another calibration.

    Raises `CovcalError` if the file is missing or damaged.
    """
    path, fitted = reference_path(calibration.path), calibration.inputs[0].path
    remedy = f"remove this file. covcal watch makes a new file from {fitted}"
    reference = read_document(Reference, path, remedy=remedy)
    if reference.calibration_sha256 != identity_of(calibration):
        return None
    if reference.n_classes != len(calibration.classes):
        raise CovcalError(f"{path} is damaged (it has {reference.n_classes} classes): {remedy}")
    return reference


def ranks(quantiles: Float32s, values: Floats) -> Float64s:
    """Return the rank of each value in a reference distribution, from 0 to 1.

    `quantiles`, (m,), are the quantiles at the probabilities (i + 1/2) / m, ascending. Ranks
    between quantiles are interpolated. If several quantiles are equal to a value, the value gets
    their mean rank.
    """
    limit = np.finfo(np.float32).max
    values = np.clip(values, -limit, limit).astype(np.float32)
    m = len(quantiles)
    left = np.searchsorted(quantiles, values, side="left")
    inside = np.minimum(np.maximum(left, 1), m - 1)
    above, below = quantiles.take(inside).astype(np.float64), quantiles.take(inside - 1)
    # Equal quantiles cause a division by 0; the result is replaced below.
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = (left - 0.5 + (values - below) / (above - below)) / m
    shares[left == 0], shares[left == m] = 0.25 / m, 1 - 0.25 / m
    ties = np.flatnonzero(quantiles.take(left, mode="clip") == values)
    right = np.searchsorted(quantiles, values[ties], side="right")
    shares[ties] = (left[ties] + right) / (2 * m)
    return shares


def quantiles(values: Floats) -> Packed:
    """Return quantiles of values (n,), for use with `ranks`."""
    m = min(len(values), _QUANTILES)
    limit = np.finfo(np.float32).max
    ordered = np.sort(np.clip(values, -limit, limit).astype(np.float32))
    # Hazen's quantiles contain every value if there are at most 257 values.
    places = (np.arange(m) + 0.5) / m * len(ordered) - 0.5
    lower = np.floor(np.maximum(places, 0)).astype(np.int64)
    upper = np.minimum(lower + 1, len(ordered) - 1)
    share = (places - lower).clip(0, 1).astype(np.float32)
    values = np.asarray(ordered[lower] * (1 - share) + ordered[upper] * share)
    # Rounding may make a quantile smaller than the quantile before it.
    return Packed.of(np.maximum.accumulate(values))
