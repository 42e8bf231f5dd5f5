"""All that may be known without target labels: the one input of every estimator."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from covcal_cli.arrays import Float64s, Floats, Labels
from covcal_cli.labelfree.scores import confidences


@dataclass(frozen=True)
class Aligned:
    """The aligned forecasters of an adapted file on the rows of an `Evidence`."""

    source_logits: Floats  # log mean_m softmax(z_m) over the members, (n_v, K)
    target_logits: Floats  # (n_t, K)
    source_labels: Labels  # every member's own label, (M, n_v)
    target_labels: Labels  # (M, n_t)


@dataclass(frozen=True)
class Evidence:
    """Labelled source validation rows and unlabelled target rows, seen by one classifier.

    ValueError if a shape does not fit, a domain has fewer than 2 rows, there are fewer than 2
    classes, or a value is not finite.
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
        sums = (self.source_logits.sum(dtype=float), self.target_logits.sum(dtype=float))
        if not (np.isfinite(sums).all() and 0 < self.temperature < np.inf):
            raise ValueError("logits must be finite and the temperature positive")

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
