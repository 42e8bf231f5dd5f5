"""The reference data of a calibration, which describe the distribution of its rows.

The data contain quantiles, means and covariances, but no rows. They are in a file of less than 200
kB beside the calibration, such as cal.reference.json beside cal.json. The first ``covcal watch``
makes this file from the features file of the calibration. When the file is read, every record
checks its lengths and ranges.
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
from covcal_cli.files import sha256_of
from covcal_cli.formats.calibration import Calibration
from covcal_cli.multilabel import current_label
from covcal_cli.records import Document, Share, read_document

Baseline = Literal["target", "source"]
Space = Literal["features", "logits"]
CONFIDENCE, DENSITY_RATIO = "confidence", "density ratio"  # the names of two signals
_ROUNDING = 1e-3  # rounding error of sums and norms of 32-bit numbers
# the largest possible variance of a coordinate; d features usually give about d
_LARGEST_VARIANCE = 1e12
_LARGEST_RANK_VARIANCE = 0.25  # no numbers from 0 to 1 have a larger variance
_QUANTILES = 257
_LEAST_TEMPERATURE = 1e-100  # T must be between this number and its inverse


def reference_path(document: Path) -> Path:
    """Return the file for a calibration's reference data; its name ends in .reference.json.

    If rows can have several labels, each label has its own file, whose name contains the label.
    """
    label = current_label()
    if label is None:
        return document.with_name(f"{document.stem}.reference.json")
    # Some disks do not distinguish upper and lower case, or the two forms of an accented letter.
    is_plain = re.fullmatch(r"[a-z0-9_ -]{1,80}", label) is not None
    name = label if is_plain else hashlib.sha256(label.encode()).hexdigest()[:12]
    return document.with_name(f"{document.stem}.{name}.reference.json")


def identity_of(document: Path) -> str:
    """Return the sha256 of a calibration's file, or a hash made from it for one label."""
    label, sha256 = current_label(), sha256_of(document)
    if label is None:
        return sha256
    return hashlib.sha256(f"{sha256} {label}".encode()).hexdigest()


def _require(condition: object, fault: str) -> None:
    if not condition:
        raise ValueError(fault)


@dataclass(frozen=True)
class Packed:
    """An array of finite float32 numbers, as text.

    Raises ValueError if the number of values does not fit the shape, or if a value is not finite.
    """

    shape: tuple[int, ...]
    float32: str  # base64 of the numbers in little-endian order, row by row

    def __post_init__(self) -> None:
        try:
            count = len(base64.b64decode(self.float32, validate=True)) / 4
        except ValueError as error:
            raise ValueError("a reference array is not base64") from error
        if min(self.shape, default=0) < 0 or count != math.prod(self.shape):
            raise ValueError(f"a reference array has {count:g} numbers, not {list(self.shape)}")
        _require(np.isfinite(self.values).all(), "a reference array is not finite")

    @classmethod
    def of(cls, values: Floats) -> "Packed":
        """Pack an array. An infinite value becomes the largest finite number."""
        limit = np.finfo(np.float32).max
        packed = np.clip(values, -limit, limit).astype("<f4")
        return cls(tuple(packed.shape), base64.b64encode(packed.tobytes()).decode("ascii"))

    @cached_property
    def values(self) -> Float32s:
        """The array, of `shape`."""
        flat = np.frombuffer(base64.b64decode(self.float32), dtype="<f4")
        return np.asarray(flat.reshape(self.shape), dtype=np.float32)

    @property
    def are_shares(self) -> bool:
        """Whether the values are shares that sum to 1."""
        shares = self.values
        return bool((shares >= 0).all()) and abs(float(shares.sum()) - 1) < _ROUNDING

    def require_quantiles(self, rows: int, name: str) -> None:
        """Raise ValueError if these cannot be the quantiles of this number of values."""
        one_dimension = self.values.ndim == 1
        _require(
            one_dimension and len(self.values) <= rows, f"the quantiles of {name} are too many"
        )
        _require(rows == 0 or len(self.values) > 0, f"the quantiles of {name} are missing")
        _require((np.diff(self.values) >= 0).all(), f"the quantiles of {name} do not ascend")


@dataclass(frozen=True)
class Signal:
    """The distribution of one number per row, with which watch compares later rows."""

    name: str  # "confidence", "density ratio", "class NAME" or "axis NUMBER"
    rows: int  # number of reference rows
    quantiles: Packed  # (m,), the quantiles at the probabilities (i + 1/2) / m
    # mean and variance of the ranks of the reference rows themselves (see `ranks`); 1/2 and 1/12 if
    # all values differ
    mean: float
    variance: float
    class_number: int | None = None  # the number of the class, if the signal is about a class
    axis: int | None = None  # the number of the coordinate, if the signal is about a coordinate

    def __post_init__(self) -> None:
        _require(self.rows >= 1, f"the signal {self.name} has no rows")
        self.quantiles.require_quantiles(self.rows, f"the signal {self.name}")
        _require(0 <= self.mean <= 1, f"the signal {self.name} has a mean rank of {self.mean:g}")
        _require(
            0 <= self.variance <= _LARGEST_RANK_VARIANCE,
            f"the signal {self.name} has a rank variance of {self.variance:g}",
        )

    def ranks(self, values: Floats) -> Float64s:
        """Return the rank of each value among the reference rows, shape (n,), from 0 to 1."""
        return ranks(self.quantiles.values, values)


@dataclass(frozen=True)
class ColumnSketch:
    """The distribution of one kept column, with which watch compares later rows."""

    name: str
    rows: int
    missing: Share
    # quantiles of the numbers, as in `Signal`; None if the values are categories
    quantiles: Packed | None
    categories: tuple[str, ...] = ()
    shares: tuple[Share, ...] = ()  # each category's share of the rows with a value

    def __post_init__(self) -> None:
        _require(self.valued >= 1, f"the column {self.name} has no rows")
        if self.quantiles is not None:
            self.quantiles.require_quantiles(self.rows, f"the column {self.name}")
        same = len(self.categories) == len(self.shares)
        _require(same, f"the categories of the column {self.name} differ in number")

    @property
    def valued(self) -> int:
        """The number of rows with a value."""
        return round(self.rows * (1 - self.missing))


@dataclass(frozen=True)
class Moments:
    """Mean and covariance of one domain's rows, in coordinates."""

    rows: int
    mean: Packed  # (p,)
    covariance: Packed  # (p, p)

    def __post_init__(self) -> None:
        mean, covariance = self.mean.values, self.covariance.values.astype(np.float64)
        _require(self.rows >= 1, "a domain's moments have no rows")
        _require(mean.ndim == 1 and len(mean) > 0, "a domain's mean is not a vector")
        _require(covariance.shape == mean.shape * 2, "a domain's covariance has the wrong size")
        _require((mean.astype(np.float64) ** 2 <= _LARGEST_VARIANCE).all(), "a mean is too large")
        variances = np.linalg.eigvalsh(covariance)
        asymmetry = np.abs(covariance - covariance.T).max()
        _require(asymmetry <= _ROUNDING * variances[-1], "a covariance is not symmetric")
        _require(variances[-1] <= _LARGEST_VARIANCE, "a variance is too large")
        _require(variances[0] >= -_ROUNDING * variances[-1], "a variance is negative")


@dataclass(frozen=True)
class Axes:
    """The directions in which coordinates of rows (their features or logits) are measured."""

    mean: Packed  # (d,)
    scale: Packed  # (d,)
    components: Packed  # (p, d), each of length 1

    def __post_init__(self) -> None:
        mean, scale = self.mean.values, self.scale.values
        components = self.components.values.astype(np.float64)
        _require(mean.ndim == 1 and components.ndim == 2, "the axes are not a matrix")
        _require(
            mean.shape == scale.shape == components.shape[1:],
            "the mean, the scale and the axes differ in length",
        )
        _require(len(components) > 0, "there are no axes")
        _require((scale > 0).all(), "a scale of the axes is not above 0")
        lengths = np.linalg.norm(components, axis=1)
        _require(np.abs(lengths - 1).max() < _ROUNDING, "an axis does not have length 1")

    def located(self, points: Floats) -> Float64s:
        """Return the coordinates of points (n, d), shape (n, p)."""
        standard = ((points - self.mean.values) / self.scale.values).astype(np.float32)
        return np.asarray(standard @ self.components.values.T, dtype=np.float64)


@dataclass(frozen=True)
class Coordinates:
    """Coordinates in which domains are compared, and the moments of the calibration's rows."""

    of: Space
    axes: Axes
    source: Moments
    target: Moments | None
    # (p,): the direction in which the log density ratio of target to source grows. None unless both
    # domains have training rows to fit it.
    density: Packed | None

    def __post_init__(self) -> None:
        lengths = [self.source.mean.shape, self.axes.components.shape[:1]]
        lengths += [] if self.target is None else [self.target.mean.shape]
        lengths += [] if self.density is None else [self.density.shape]
        _require(len(set(lengths)) == 1, "the source, target and axes have different dimensions")


@dataclass(frozen=True)
class Clusters:
    """Clusters of the labelled source validation rows, which the estimators by clustering need."""

    centres: Packed  # (L, K), the centre of each class that has rows
    classes: tuple[int, ...]  # (L,), the numbers of the classes that have rows
    shares: Packed  # (K,), the shares of all classes
    strays: float  # share of rows that, after clustering, are not in the cluster of their label
    held_strays: float  # the same share after clustering with fixed class shares

    def __post_init__(self) -> None:
        shape = (len(self.classes), *self.shares.shape)
        _require(
            self.centres.shape == shape and len(shape) == 2,
            "the clusters' centres and shares do not fit together",
        )
        numbers = range(shape[1])
        is_sorted = list(self.classes) == sorted(set(self.classes))
        _require(is_sorted and set(self.classes) <= set(numbers), "the clusters' classes are wrong")
        _require(self.shares.are_shares, "the clusters' shares do not sum to 1")
        for name, share in (("strays", self.strays), ("held_strays", self.held_strays)):
            _require(0 <= share <= 1, f"the clusters' {name} is {share:g}, which is not a share")


@dataclass(frozen=True)
class ClassPlaces:
    """Mean and spread of the source rows' logits, for each predicted class."""

    classes: tuple[int, ...]  # (m,), the classes that are predicted for enough rows
    counts: tuple[int, ...]  # (m,), the number of rows of each class
    means: Packed  # (m, K), mean of each logit, after the mean of its row is subtracted
    spreads: Packed  # (m, K), standard deviation of each logit after this subtraction

    def __post_init__(self) -> None:
        shape = self.means.shape
        _require(
            len(shape) == 2 and self.spreads.shape == shape,
            "the means and spreads of the classes' logits differ in shape",
        )
        lengths = {len(self.classes), len(self.counts), shape[0]}
        _require(len(lengths) == 1, "the numbers of classes, counts and mean logits differ")
        is_sorted = list(self.classes) == sorted(set(self.classes))
        _require(
            is_sorted and set(self.classes) <= set(range(shape[1])),
            "the classes with mean logits are wrong",
        )
        _require(min(self.counts, default=1) >= 1, "a class with mean logits has no rows")
        _require((self.spreads.values >= 0).all(), "a spread of logits is negative")


@dataclass(frozen=True)
class SourceSketch:
    """A sketch of the labelled source validation rows: log odds and class frequencies."""

    right: int
    wrong: int
    right_odds: Packed  # (m,), quantiles of the log odds of right rows, as in `Signal`
    wrong_odds: Packed
    predicted: Packed  # (K,), how often each class is predicted
    clusters: Clusters | None  # None if there are too many classes
    places: ClassPlaces | None = None  # None if there are too many classes, or two

    def __post_init__(self) -> None:
        _require(min(self.right, self.wrong) >= 0, "a number of source rows is negative")
        self.right_odds.require_quantiles(self.right, "the right rows")
        self.wrong_odds.require_quantiles(self.wrong, "the wrong rows")
        _require(self.predicted.values.ndim == 1, "the predicted classes are not a vector")
        _require(self.predicted.are_shares, "the shares of predicted classes do not sum to 1")
        clusters = self.clusters
        same = clusters is None or clusters.shares.shape == self.predicted.shape
        _require(same, "the clusters have the wrong number of classes")
        places = self.places
        wide = places is None or places.means.shape[1:] == self.predicted.shape
        _require(wide, "the mean logits have the wrong number of classes")


@dataclass(frozen=True)
class Reference(Document):
    """The reference data of one calibration."""

    schema: ClassVar[str] = "covcal.reference/1"

    calibration_sha256: str  # sha256 of the calibration's file
    temperature: float  # T_s, the temperature of temperature scaling on the source
    baseline: Baseline  # the domain whose rows are the reference of the signals
    signals: tuple[Signal, ...]  # the signals about coordinates ("axes") come last
    # (p, p), a matrix that makes the ranks on p axes, divided by their standard deviations,
    # uncorrelated
    joint: Packed | None
    coordinates: Coordinates
    source: SourceSketch
    # whether the data come from an earlier calibration, because the rows of this one raised an
    # alarm
    is_carried_over: bool = False
    columns: tuple[ColumnSketch, ...] = ()  # the kept columns whose values can be compared

    def __post_init__(self) -> None:
        _require(
            _LEAST_TEMPERATURE < self.temperature < 1 / _LEAST_TEMPERATURE,
            f"temperature is {self.temperature:g}",
        )
        is_digest = re.fullmatch("[0-9a-f]{64}", self.calibration_sha256) is not None
        _require(is_digest, "calibration_sha256 is no sha256")
        is_target = self.baseline == "target"
        _require(is_target == (self.coordinates.target is not None), "the baseline has no moments")
        names = [signal.name for signal in self.signals]
        _require(len(set(names)) == len(names), "two signals have one name")
        numbers = [
            signal.class_number for signal in self.signals if signal.class_number is not None
        ]
        _require(_are_below(self.n_classes, numbers), "a signal has an unknown class")
        axes = [signal for signal in self.signals if signal.axis is not None]
        _require(axes == list(self.signals[len(names) - len(axes) :]), "the axes do not come last")
        places = [signal.axis for signal in axes if signal.axis is not None]
        _require(
            _are_below(self.coordinates.axes.components.shape[0], places), "an axis is unknown"
        )
        _require(all(signal.variance > 0 for signal in axes), "an axis has the variance 0")
        _require(len({signal.rows for signal in axes}) <= 1, "the axes have different row counts")
        shape = None if self.joint is None else self.joint.shape
        _require(
            shape == ((len(axes), len(axes)) if axes else None),
            "the matrix of the axes has the wrong size",
        )
        width = len(self.coordinates.axes.mean.values)
        is_wide = self.coordinates.of == "features" or width == self.n_classes
        _require(is_wide, "the coordinates of logits have the wrong number of classes")

    def carried_over(self, calibration_sha256: str) -> "Reference":
        """Return these data for another calibration of the same classifier.

        The signal of the confidence is left out, because that calibration changes the confidence.
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


def read_reference(document: Path, calibration: Calibration, sha256: str) -> Reference | None:
    """Read the reference data of a calibration; None if they belong to another calibration.

    Parameters
    ----------
    document, calibration, sha256
        The calibration's file, what it contains, and its hash.

    Raises
    ------
    CovcalError
        If the file is missing, damaged, or something else.
    """
    path, fitted = reference_path(document), calibration.inputs[0].path
    remedy = f"remove it. covcal watch makes it again from {fitted}"
    reference = read_document(Reference, path, remedy=remedy)
    if reference.calibration_sha256 != sha256:
        return None
    if reference.n_classes != len(calibration.classes):
        raise CovcalError(f"{path} is damaged (it has {reference.n_classes} classes): {remedy}")
    return reference


def ranks(quantiles: Float32s, values: Floats) -> Float64s:
    """Return the share of the distribution below each value; equal values count half.

    `quantiles`, (m,), ascend. Quantile i is at the probability (i + 1/2) / m. Between two
    quantiles, the share is interpolated. Below the first quantile it is a quarter of a step above
    0, and above the last one a quarter of a step below 1.
    """
    limit = np.finfo(np.float32).max
    values = np.clip(values, -limit, limit).astype(np.float32)
    m = len(quantiles)
    # `left` is the place of a value; `right` ends a run of quantiles equal to it.
    left = np.searchsorted(quantiles, values, side="left")
    inside = np.minimum(np.maximum(left, 1), m - 1)
    above, below = quantiles.take(inside).astype(np.float64), quantiles.take(inside - 1)
    with np.errstate(divide="ignore", invalid="ignore"):  # equal quantiles; these values are ties
        shares = (left - 0.5 + (values - below) / (above - below)) / m
    shares[left == 0], shares[left == m] = 0.25 / m, 1 - 0.25 / m
    ties = np.flatnonzero(quantiles.take(left, mode="clip") == values)
    right = np.searchsorted(quantiles, values[ties], side="right")
    shares[ties] = (left[ties] + right) / (2 * m)
    return shares


def quantiles(values: Floats) -> Packed:
    """Return the quantiles at (i + 1/2) / m of values (n,), for `ranks`; none without values."""
    m = min(len(values), _QUANTILES)
    limit = np.finfo(np.float32).max
    ordered = np.sort(np.clip(values, -limit, limit).astype(np.float32))
    # Hazen's quantiles. If there are at most as many rows as quantiles, every row is a quantile.
    places = (np.arange(m) + 0.5) / m * len(ordered) - 0.5
    lower = np.floor(np.maximum(places, 0)).astype(np.int64)
    upper = np.minimum(lower + 1, len(ordered) - 1)
    share = (places - lower).clip(0, 1).astype(np.float32)
    values = np.asarray(ordered[lower] * (1 - share) + ordered[upper] * share)
    # rounding may put equal values in the wrong order
    return Packed.of(np.maximum.accumulate(values))
