"""Inputs and results of the estimators of the target accuracy.

An estimator takes `EstimatorInputs` and returns an `Estimate`: an accuracy, an interval, an
assumption and checks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from covcal_cli.arrays import Float32s, Float64s, Floats, Labels, Rows
from covcal_cli.estimators.guards import problem_of
from covcal_cli.formats.features import Domain, FeatureFile, thinned
from covcal_cli.maths.odds import confidences
from covcal_cli.maths.softmax import log_mean_softmax
from covcal_cli.records import Guard, Share

MAX_ROWS = 50_000
MAX_VALUES = 2_500_000
SAMPLING = "95 % sampling error only"
ESTIMATED = ("train", "validation")
Z = 1.959963984540054  # 97.5 % quantile of the normal distribution
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class AlignedForecasters:
    """Outputs of the aligned forecaster on the source rows and target rows of `EstimatorInputs`."""

    source_logits: Floats  # (n_v, K), log of the members' mean probabilities.
    target_logits: Floats  # (n_t, K).
    source_labels: Labels  # (M, n_v), predicted classes of the members.
    target_labels: Labels  # (M, n_t).


@dataclass(frozen=True)
class EstimatorInputs:
    """Logits of labelled source validation rows and of unlabelled target rows, at least 2 each."""

    source_logits: Floats  # (n_v, K).
    source_labels: Labels  # (n_v,), 0 to K-1; some classes may have no row.
    target_logits: Floats  # (n_t, K).
    temperature: float  # T_s, fitted to the source
    aligned: AlignedForecasters | None = None
    # Importance weights q/p of the source rows, (n_v,).
    source_weights: Float64s | None = None
    # False if the file has one confidence per row.
    has_all_classes: bool = True
    # cache of results that depend only on the source rows and T_s
    of_source: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        rows = self.source_logits, self.source_labels, self.temperature
        shared = self.of_source.setdefault("of", rows)
        if any(mine is not other for mine, other in zip(rows, shared, strict=True)):
            object.__setattr__(self, "of_source", {"of": rows})

    def once(self, name: str, compute: Callable[[], _Result]) -> _Result:
        """Compute a result that depends only on the source rows, or return it from the cache."""
        if name not in self.of_source:
            self.of_source[name] = compute()
        result: _Result = self.of_source[name]
        return result

    @property
    def n_classes(self) -> int:
        """The number of classes K."""
        return int(self.source_logits.shape[1])

    @property
    def n_source(self) -> int:
        """The number of source validation rows n_v."""
        return len(self.source_logits)

    @property
    def n_target(self) -> int:
        """The number of target rows n_t."""
        return len(self.target_logits)

    @cached_property
    def source_predictions(self) -> Labels:
        """Predicted classes on the source, shape (n_v,)."""
        return self.once("predictions", lambda: np.asarray(self.source_logits.argmax(axis=1)))

    @cached_property
    def target_predictions(self) -> Labels:
        """Predicted classes on the target, shape (n_t,)."""
        labels: Labels = self.target_logits.argmax(axis=1)
        return labels

    @cached_property
    def source_correct(self) -> Float64s:
        """1 for each source row that the classifier gets right, else 0; shape (n_v,)."""
        return np.asarray(self.source_predictions == self.source_labels, dtype=np.float64)

    @property
    def source_errors(self) -> int:
        """The number of wrong source validation rows."""
        return self.n_source - int(self.source_correct.sum())

    @cached_property
    def source_confidence(self) -> Float64s:
        """The confidence of each source row at T_s, shape (n_v,)."""
        return self.once("confidence", lambda: confidences(self.source_logits, self.temperature))

    @cached_property
    def target_confidence(self) -> Float64s:
        """The confidence of each target row at T_s, shape (n_t,)."""
        return confidences(self.target_logits, self.temperature)

    @cached_property
    def source_prior(self) -> Float64s:
        """Class frequencies of the source, (K,), with half a row added to each class."""
        counts = np.bincount(self.source_labels, minlength=self.n_classes) + 0.5
        return np.asarray(counts / counts.sum())

    def predicted_shares(self) -> tuple[Float64s, Float64s]:
        """Return the frequencies of predicted classes on source and target, (K,) each."""
        source, target = (
            np.bincount(labels, minlength=self.n_classes) / len(labels)
            for labels in (self.source_predictions, self.target_predictions)
        )
        return source, target

    @property
    def predicted_drift(self) -> float:
        """The total variation distance between the predicted classes of source and target."""
        before, after = self.predicted_shares()
        return 0.5 * float(np.abs(before - after).sum())


def most_rows(classes: int) -> int:
    """Return the maximum number of rows per domain that estimators use."""
    return min(MAX_ROWS, MAX_VALUES // classes)


def read_inputs(
    file: FeatureFile, temperature: float, *, source_weights: Float64s | None = None, seed: int = 0
) -> EstimatorInputs:
    """Read labelled source validation rows, and target training and validation rows.

    Target test rows and target labels are not read. `temperature` is T_s. `source_weights` are
    importance weights of the labelled source validation rows. If there are too many rows, `seed` is
    the random seed for drawing a sample.
    """
    source, target = file.require_source(), file.require_target()
    rows = source.require_rows("validation")
    labels = source.labels(rows)
    rows, labels = rows[labels >= 0], labels[labels >= 0]
    most = most_rows(source.n_classes)
    chosen = thinned(np.arange(len(rows)), most, seed)
    target_rows = target.drawn(most, seed, *ESTIMATED)
    source_rows = rows[chosen]
    aligned = None
    if file.is_adapted:
        (on_source, source_own), (on_target, target_own) = (
            _aligned(domain, read)
            for domain, read in ((source, source_rows), (target, target_rows))
        )
        aligned = AlignedForecasters(on_source, on_target, source_own, target_own)
    return EstimatorInputs(
        source_logits=source.logits(source_rows),
        source_labels=labels[chosen],
        target_logits=target.logits(target_rows),
        temperature=temperature,
        aligned=aligned,
        source_weights=None if source_weights is None else source_weights[chosen],
        has_all_classes=not file.has_one_confidence,
    )


def _aligned(domain: Domain, rows: Rows) -> tuple[Float32s, Labels]:
    """Return log mean probabilities, (n, K), and predicted classes of the members, (M, n)."""
    logits = np.empty((len(rows), domain.n_classes), dtype=np.float32)
    own = np.empty((domain.n_members, len(rows)), dtype=np.int64)
    start = 0
    for block in domain.blocks(rows):
        members: Float32s = domain.aligned_logits(block)
        stop = start + len(block)
        logits[start:stop] = log_mean_softmax(members).T
        own[:, start:stop] = members.argmax(axis=2)
        start = stop
    return logits, own


@dataclass(frozen=True)
class Estimate:
    """An estimate of the accuracy on the target, made without target labels."""

    name: str
    accuracy: Share
    low: Share
    high: Share
    assumption: str
    guards: tuple[Guard, ...] = ()
    interval: str = SAMPLING

    @property
    def checked(self) -> bool:
        """Whether the estimate has at least one check."""
        return bool(self.guards)

    @property
    def bounds(self) -> bool:
        """Whether the interval is narrower than 50 points."""
        return self.high - self.low < 0.5

    @property
    def trusted(self) -> bool:
        """Whether the estimate has checks, and all of them passed."""
        return self.checked and not self.failed

    @property
    def failed(self) -> list[str]:
        """The names of the failed checks."""
        return [guard.name for guard in self.guards if not guard.passed]

    @property
    def trust(self) -> str:
        """Text that says whether the estimate can be trusted, and names the problems."""
        if not self.checked:
            return "no check available"
        problems = [problem_of(guard.name) for guard in self.guards if not guard.passed]
        return f"no: {', '.join(problems)}" if problems else "yes"

    def guard(self, name: str) -> Guard:
        """Return the check called `name`. Raises KeyError if there is no such check."""
        return {guard.name: guard for guard in self.guards}[name]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON object."""
        content = dict(vars(self))
        guards = content.pop("guards")
        return content | {"checked": self.checked, "trusted": self.trusted, "guards": guards}


def from_variance(
    name: str, accuracy: float, variance: float, assumption: str, guards: tuple[Guard, ...] = ()
) -> Estimate:
    """Return an estimate with a normal interval, clipped to [0, 1]."""
    half = Z * math.sqrt(variance)
    low, middle, high = (
        float(np.clip(value, 0.0, 1.0)) for value in (accuracy - half, accuracy, accuracy + half)
    )
    return Estimate(name, middle, low, high, assumption, guards)


def variance_of_mean(values: Float64s, weights: Float64s | None = None) -> float:
    """Return the sampling variance of the mean of `values`, (n,).

    `weights`, (n,), sum to 1, and are equal by default. The variance is never 0: even a sample
    without errors has the variance of half an error.
    """
    n = len(values)
    if weights is None:
        weights = np.full(n, 1 / n)
    of_row = weights**2
    centred = values - float(weights @ values)
    return float(max(of_row @ centred**2 * n / max(1, n - 1), (0.5 * of_row.sum()) ** 2))


def slope(values: Float64s, on: Float64s, *, constant: float) -> float:
    """Return the regression slope cov(values, on) / var(on), or `constant` if `on` is constant."""
    centred = on - on.mean()
    variance = float(centred @ centred)
    return float(centred @ values) / variance if variance > 0 else constant
