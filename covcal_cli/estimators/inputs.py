"""The inputs of every estimator of the target accuracy, and the estimate that it returns.

An `EstimatorInputs` holds all that may be known without target labels. An estimator is a function
of an `EstimatorInputs` that returns an `Estimate`: an accuracy, the interval of its sampling noise,
the assumption behind it, and checks.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from covcal_cli.arrays import Float32s, Float64s, Floats, Labels, Rows
from covcal_cli.formats.features import Domain, FeatureFile, thinned
from covcal_cli.maths.odds import confidences
from covcal_cli.maths.softmax import log_mean_softmax
from covcal_cli.records import Guard

# A domain is read up to 50 000 rows and 2.5 million logits (2500 rows at 1000 classes).
MAX_ROWS = 50_000
MAX_VALUES = 2_500_000
# How far other rows of the same domains would move an estimate, not whether its assumption is true.
SAMPLING = "95 % for sampling alone"
ESTIMATED = ("train", "validation")  # splits of the target; its test rows are for judging
Z = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


@dataclass(frozen=True)
class Aligned:
    """The aligned forecasters of an adapted file on the rows of an `EstimatorInputs`."""

    source_logits: Floats  # log mean_m softmax(z_m) over the members, (n_v, K)
    target_logits: Floats  # (n_t, K)
    source_labels: Labels  # every member's own label, (M, n_v)
    target_labels: Labels  # (M, n_t)


@dataclass(frozen=True)
class EstimatorInputs:
    """Labelled source validation rows and unlabelled target rows, seen by one classifier.

    ValueError if a shape does not fit, a domain has fewer than 2 rows, there are fewer than 2
    classes, or a logit is NaN or +inf, or all of a row are -inf.
    """

    source_logits: Floats  # (n_v, K)
    source_labels: Labels  # (n_v,), 0 .. K-1; classes may be absent
    target_logits: Floats  # (n_t, K)
    temperature: float  # T_s, at which confidences are calibrated on the source
    aligned: Aligned | None = None
    # Importance weights q/p of the source rows, (n_v,), with mean near 1; all 0 where the domains
    # are so far apart that no source row looks like the target.
    source_weights: Float64s | None = None

    def __post_init__(self) -> None:
        n, K = self.source_logits.shape
        if n < 2 or K < 2 or self.target_logits.ndim != 2 or len(self.target_logits) < 2:
            raise ValueError("an estimate needs at least 2 rows of each domain and 2 classes")
        if self.target_logits.shape[1] != K or self.source_labels.shape != (n,):
            raise ValueError("source and target logits and source labels do not fit together")
        if self.source_labels.min() < 0 or self.source_labels.max() >= K:
            raise ValueError("a source label is not one of the classes")
        if self.source_weights is not None and not (
            self.source_weights.shape == (n,)
            and self.source_weights.min() >= 0
            and self.source_weights.sum() < np.inf
        ):
            raise ValueError("source weights must be one per row, finite and not negative")
        highest = [logits.max(axis=1) for logits in (self.source_logits, self.target_logits)]
        if not (np.isfinite(np.concatenate(highest)).all() and 0 < self.temperature < np.inf):
            raise ValueError(
                "logits must be finite or, but for one in each row, -inf; the temperature positive"
            )

    @property
    def n_classes(self) -> int:
        """Classes K."""
        return int(self.source_logits.shape[1])

    @property
    def n_source(self) -> int:
        """Source validation rows n_v."""
        return len(self.source_logits)

    @property
    def n_target(self) -> int:
        """Target rows n_t."""
        return len(self.target_logits)

    @cached_property
    def source_predictions(self) -> Labels:
        """The classifier's labels, shape (n_v,)."""
        labels: Labels = self.source_logits.argmax(axis=1)
        return labels

    @cached_property
    def target_predictions(self) -> Labels:
        """The classifier's labels, shape (n_t,)."""
        labels: Labels = self.target_logits.argmax(axis=1)
        return labels

    @cached_property
    def source_correct(self) -> Float64s:
        """1 where the classifier is right, else 0, shape (n_v,)."""
        return np.asarray(self.source_predictions == self.source_labels, dtype=np.float64)

    @property
    def source_errors(self) -> int:
        """Source validation rows that the classifier gets wrong."""
        return self.n_source - int(self.source_correct.sum())

    @cached_property
    def source_confidence(self) -> Float64s:
        """Confidence at T_s, shape (n_v,)."""
        return confidences(self.source_logits, self.temperature)

    @cached_property
    def target_confidence(self) -> Float64s:
        """Confidence at T_s, shape (n_t,)."""
        return confidences(self.target_logits, self.temperature)

    @cached_property
    def source_prior(self) -> Float64s:
        """Class frequencies of the source with half a row added to every class, shape (K,).

        A class without a row is rare, not impossible.
        """
        counts = np.bincount(self.source_labels, minlength=self.n_classes) + 0.5
        return np.asarray(counts / counts.sum())

    def predicted_shares(self) -> tuple[Float64s, Float64s]:
        """Return how often each class is predicted on the source and on the target, (K,) each."""
        source, target = (
            np.bincount(labels, minlength=self.n_classes) / len(labels)
            for labels in (self.source_predictions, self.target_predictions)
        )
        return source, target


def read_inputs(
    file: FeatureFile, temperature: float, *, source_weights: Float64s | None = None, seed: int = 0
) -> EstimatorInputs:
    """Read labelled source validation rows, and target training and validation rows.

    The target's test rows and all its labels stay unread. More rows than `MAX_ROWS` or
    `MAX_VALUES` allow are thinned by a seeded draw.

    Of an adapted file the aligned logits are read too. `temperature` is T_s of the classifier's
    logits, `source_weights` are importance weights of the labelled source validation rows in the
    order of the file.
    """
    source, target = file.require_source(), file.require_target()
    held = source.require_rows("validation")
    labels = source.labels(held)
    known = labels >= 0
    held, labels = held[known], labels[known]
    most = min(MAX_ROWS, MAX_VALUES // source.n_classes)
    chosen = thinned(np.arange(len(held)), most, seed)
    target_rows = target.drawn(most, seed, *ESTIMATED)
    source_rows = held[chosen]
    aligned = None
    if file.is_adapted:
        (on_source, source_own), (on_target, target_own) = (
            _aligned(domain, some)
            for domain, some in ((source, source_rows), (target, target_rows))
        )
        aligned = Aligned(on_source, on_target, source_own, target_own)
    return EstimatorInputs(
        source_logits=source.logits(source_rows),
        source_labels=labels[chosen],
        target_logits=target.logits(target_rows),
        temperature=temperature,
        aligned=aligned,
        source_weights=None if source_weights is None else source_weights[chosen],
    )


def _aligned(domain: Domain, rows: Rows) -> tuple[Float32s, Labels]:
    """Return log mean softmax, shape (n, K), and every member's label, shape (M, n)."""
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
    """An estimate of the classifier's accuracy on the target, made without target labels."""

    name: str
    accuracy: float  # in [0, 1]
    low: float  # an interval, of which `interval` says the kind
    high: float
    assumption: str  # what must hold for the estimate to be right, in one sentence
    guards: tuple[Guard, ...] = ()
    interval: str = SAMPLING

    @property
    def checked(self) -> bool:
        """Whether a guard looks at the estimate."""
        return bool(self.guards)

    @property
    def bounds(self) -> bool:
        """Whether the interval leaves less than half of all accuracies; else it tells little."""
        return self.high - self.low < 0.5

    @property
    def trusted(self) -> bool:
        """Whether there are guards, and every one passed."""
        return self.checked and not self.failed

    @property
    def failed(self) -> list[str]:
        """The names of the guards that failed."""
        return [guard.name for guard in self.guards if not guard.passed]

    def guard(self, name: str) -> Guard:
        """Return the guard called `name`; raise KeyError where there is none."""
        return {guard.name: guard for guard in self.guards}[name]

    def to_json(self) -> dict[str, Any]:
        """Return the fields, and before the guards whether there are any and all passed."""
        content = dict(vars(self))
        guards = content.pop("guards")
        return content | {"checked": self.checked, "trusted": self.trusted, "guards": guards}


def from_variance(
    name: str, accuracy: float, variance: float, assumption: str, guards: tuple[Guard, ...] = ()
) -> Estimate:
    """Return an estimate with the normal interval, everything clipped to [0, 1]."""
    half = Z * math.sqrt(variance)
    low, middle, high = (
        float(np.clip(value, 0.0, 1.0)) for value in (accuracy - half, accuracy, accuracy + half)
    )
    return Estimate(name, middle, low, high, assumption, guards)


def variance_of_mean(values: Float64s, weights: Float64s | None = None) -> float:
    """Return the sampling variance of the mean of `values`, shape (n,), weighted if told so.

    `weights`, shape (n,), sum to 1. It is at least that of half an effective row: equal values,
    such as no error at all, are no proof.
    """
    n = len(values)
    if weights is None:
        weights = np.full(n, 1 / n)
    of_row = weights**2  # 1 / n in sum for equal weights
    centred = values - float(weights @ values)
    return float(max(of_row @ centred**2 * n / max(1, n - 1), (0.5 * of_row.sum()) ** 2))


def slope(values: Float64s, on: Float64s, *, constant: float) -> float:
    """Return cov(values, on) / var(on), or `constant` where `on` is constant."""
    centred = on - on.mean()
    variance = float(centred @ centred)
    return float(centred @ values) / variance if variance > 0 else constant
