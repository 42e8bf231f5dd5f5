"""Accept predictions, or form prediction sets, for logits in memory."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from covcal_cli import array_arguments
from covcal_cli.arrays import Booleans, Float64s
from covcal_cli.decide import thresholds
from covcal_cli.decide.thresholds import Sample
from covcal_cli.errors import CovcalError, checked, percent, require_shares
from covcal_cli.estimators.inputs import Estimate
from covcal_cli.formats.decision import SetRule, beliefs_of
from covcal_cli.maths.acceptance import BELIEFS, Ranking, Sampling, most_wrong, passed, plan
from covcal_cli.maths.odds import probabilities

# Without an estimate, the accuracy is assumed to be at least this share of the mean confidence.
_LOWEST = 0.6


class Decision:
    """A rule that accepts predictions at a limited error rate, or returns prediction sets.

    Parameters
    ----------
    error : float, optional
        Maximum error rate of the accepted rows.
    coverage : float, optional
        Share of rows whose prediction set must contain the right class.
    certainty : float
        Confidence level of the guarantee on `error`.
    temperature : float
        T in softmax(z / T), for example `Calibrator.temperature_`.

    Attributes
    ----------
    threshold_ : float
        Rows with a confidence above this threshold are accepted. The value 1 accepts no row.
    is_promise_ : bool
        Whether labels prove that the error rate of the accepted rows is at most `error`.
    cut_ : float
        Minimum probability of a class in a prediction set. The most probable class is always in the
        set.
    """

    @checked
    def __init__(
        self,
        error: float | None = None,
        coverage: float | None = None,
        *,
        certainty: float = 0.9,
        temperature: float = 1.0,
    ) -> None:
        require_shares(error=error, coverage=coverage, certainty=certainty)
        if not 0 < temperature < np.inf:
            raise CovcalError(f"temperature must be a number above 0, not {temperature}")
        self.error, self.coverage, self.certainty = error, coverage, certainty
        self.temperature = temperature

    def __repr__(self) -> str:
        """Return the settings and the threshold as text."""
        defaults = {"error": None, "coverage": None, "certainty": 0.9, "temperature": 1.0}
        values = ((name, getattr(self, name)) for name in defaults)
        settings = ", ".join(f"{name}={value}" for name, value in values if value != defaults[name])
        threshold = getattr(self, "threshold_", None)
        if threshold is None:
            return f"Decision({settings})"
        if threshold >= 1:
            return f"Decision({settings}): accepts no row"
        kind = "a promise" if self.is_promise_ else "an estimate"
        return f"Decision({settings}): accepts confidence above {percent(threshold, 4)}, {kind}"

    @checked
    def fit(
        self,
        logits: ArrayLike,
        rows: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        *,
        estimate: Estimate | None = None,
    ) -> Self:
        """Choose `threshold_` and `cut_` from target logits and optional labels.

        Without labels, error rate and coverage are estimates. With labels of random rows, the error
        rate is guaranteed.

        Parameters
        ----------
        logits : array of shape (n, K), or (n,) with the logits of the second of two classes
        rows : array of shape (m,), optional
            Indexes of the labelled rows, which must be a random sample without replacement.
        labels : array of shape (m,), optional
            Class numbers of the labelled rows, from 0. If `logits` is a data frame with one column
            per class, the labels may be class names.
        estimate : Estimate, optional
            The target accuracy, for example `Calibrator.estimate_`. By default, the calibrated
            probabilities are assumed to be right.
        """
        if self.error is None and self.coverage is None:
            raise CovcalError(
                "Decision needs a limit: create Decision(error=...) or Decision(coverage=...)"
            )
        values = array_arguments.logits_of(logits, "logits")
        self._classes, self._columns = values.shape[1], array_arguments.columns_of(logits)
        drawn, known_labels = array_arguments.labelled_rows_of(logits, rows, labels, values.shape)
        accuracy = None if estimate is None else (estimate.low, estimate.accuracy, estimate.high)
        sample = Sample(values, self.temperature, accuracy)
        shares = sample.probabilities
        scores = shares.max(axis=1)
        if self.error is not None and len(drawn):
            mean = float(scores.mean())
            unsure = Sample(values, self.temperature, accuracy or (_LOWEST * mean, mean, 1.0))
            parts = BELIEFS[0] if accuracy else (0.0, 0.5, 1.0)
            ranking = Ranking(np.sort(scores), beliefs_of(unsure.curve(), parts))
            wrong = values[drawn].argmax(axis=1) != known_labels
            self.threshold_ = self._promised(ranking, scores[drawn], wrong)
        elif self.error is not None:
            accepted = int(thresholds.largest_share(sample.curve(), self.error) * len(scores))
            self.threshold_ = Ranking(np.sort(scores), []).threshold(accepted) if accepted else 1.0
        self.is_promise_ = len(drawn) > 0 and self.error is not None and self.threshold_ < 1
        if self.coverage is not None and len(drawn):
            excluded = thresholds.right_excluded(drawn, self.coverage)
            self.cut_ = thresholds.cut_by_labels(shares[drawn], known_labels, excluded)
        elif self.coverage is not None:
            self.cut_ = sample.cut(self.coverage)
        return self

    def accept(self, logits: ArrayLike) -> Booleans:
        """Return which rows are accepted, shape (n,)."""
        self._require_fitted("threshold_", "error", self.error)
        return np.asarray(self._new_probabilities(logits).max(axis=1) > self.threshold_)

    def sets(self, logits: ArrayLike) -> Booleans:
        """Return which classes are in the prediction set of each row, shape (n, K)."""
        self._require_fitted("cut_", "coverage", self.coverage)
        rule = SetRule(self.coverage or 0.0, self.cut_, 1.0, 0, None)
        return rule.members(self._new_probabilities(logits))

    def _promised(self, ranking: Ranking, scores: Float64s, wrong: Booleans) -> float:
        error, level = self.error or 0.0, 1 - self.certainty

        def limits(threshold: float) -> tuple[int, int]:
            labels = int((scores > threshold).sum())
            drawn = [Sampling(1.0, labels)]
            return labels, most_wrong(labels, drawn, error, level, these_rows=False)

        candidates = plan(ranking, len(ranking), limits).candidates
        number = passed(candidates, scores, wrong)
        return candidates[number - 1].threshold if number else 1.0

    def _require_fitted(self, name: str, argument: str, value: float | None) -> None:
        if value is None:
            raise CovcalError(f"the Decision has no {argument}: create Decision({argument}=...)")
        if not hasattr(self, name):
            raise CovcalError("the Decision is not fitted yet: call fit first")

    def _new_probabilities(self, logits: ArrayLike) -> Float64s:
        values = array_arguments.logits_of(logits, "logits")
        array_arguments.require_like_fit(values, logits, self._classes, self._columns, "Decision")
        return probabilities(values, self.temperature).T
