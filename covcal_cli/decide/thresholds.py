"""Accept predictions, or form prediction sets, from confidences.

The most confident rows are accepted. The expected error rate is computed for every share of
accepted rows. The expected rate is never below the error rate of equally confident source rows. If
costs are given, the share is chosen so that the cost is lowest.

A prediction set should contain the right class with probability C (the coverage). A set has the
most probable class, and all classes with at least a minimum probability (the cut). The method is
LAC (Sadinle, Lei & Wasserman 2019), but without empty sets.

- Without labels, the probabilities of the classes in a set must sum to C on average. As a safety
  margin, the assumed accuracy is below the estimate.
- With the labels of n random rows, split conformal prediction gives the cut (Papadopoulos et al.
  2002). At most (n + 1) (1 - C) - 1 sets then lack the right class (rounded at random).
- With labels and ``--certainty``, an exact test gives the number of sets that may lack the right
  class.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL, Booleans, Float64s, Floats, Labels, Rows
from covcal_cli.estimators.matched_temperature import match_accuracy
from covcal_cli.estimators.metrics import MetricEstimate, costs_of_best
from covcal_cli.formats.decision import CostPoint, CurvePoint
from covcal_cli.maths.acceptance import NO_FLAGS, NONE
from covcal_cli.maths.odds import confidences, wilson
from covcal_cli.maths.odds import probabilities as softmax

# Safety margins, as a share of the estimated range (chosen on the benchmark).
_TOWARDS_LOW, _TOWARDS_HIGH = 0.4, 0.5
_LEVEL = 0.95
_POINTS = 100
_SHARES = 200
Accuracy = tuple[float, float, float]  # low end, estimate, high end


@dataclass
class Sample:
    """A sample of target rows with calibrated probabilities."""

    logits: Floats  # (n, K).
    temperature: float  # T of the calibration.
    # Without an accuracy, the probabilities are assumed to be right.
    accuracy: Accuracy | None
    # Predicted classes, (n,). Default: the classes with the largest logit.
    labels: Labels | None = None
    # The confidence of labelled source rows, (m,), and which of these rows are wrong.
    source: tuple[Float64s, Booleans] = (NONE, NO_FLAGS)

    def __post_init__(self) -> None:
        self._temperatures = [self.temperature] * 3
        if self.accuracy is not None:
            self._temperatures[1:] = [self._matched(end) for end in self.accuracy[::2]]

    def _matched(self, accuracy: float) -> float:
        return match_accuracy(self.logits, accuracy, self.labels).temperature

    @cached_property
    def confidence(self) -> list[Float64s]:
        """The confidence, (n,), for the estimated, lowest and highest accuracy."""
        return [confidences(self.logits, t, self.labels) for t in self._temperatures]

    @cached_property
    def probabilities(self) -> Float64s:
        """Calibrated probabilities, shape (n, K)."""
        return softmax(self.logits, self._temperatures[0]).T

    def curve(
        self, rows: Booleans | slice = slice(None), *, count_source: bool = False
    ) -> tuple[CurvePoint, ...]:
        """Return the expected error rate of the most confident 1 %, 2 %, ... of `rows`.

        With `count_source`, the expected error rate is never below the error rate of equally
        confident source rows.
        """
        confidence = [values[rows] for values in self.confidence]
        order = np.argsort(-confidence[0], kind="stable")
        n, points = len(order), []
        for share in np.arange(1, _POINTS + 1) / _POINTS if n else ():
            best = order[: math.ceil(share * n)]
            error, highest, lowest = (float(1 - values[best].mean()) for values in confidence)
            if count_source:
                of_source, high = self._source_error(confidence[0][best[-1]])
                error, highest = max(error, of_source), max(highest, high)
                if self.accuracy is None:
                    lowest = highest = error
            points.append(_point(float(share), error, highest, lowest))
        return tuple(points)

    def expected(
        self, rows: Booleans, accepted: Booleans, count: int, of: int
    ) -> CurvePoint | None:
        """Return the expected error rate of a group's accepted rows, or None if there are none.

        The range includes the sampling error (95 %).

        - `rows`, (n,): the accepted rows of the group in the sample.
        - `accepted`, (n,): the accepted rows that are compared with equally confident source rows.
        - `count`, `of`: number of accepted rows, and number of all rows, in the group.
        """
        if not (count and rows.any()):
            return None
        error, highest, lowest = (float(1 - values[rows].mean()) for values in self.confidence)
        confidence = self.confidence[0][accepted]
        of_source, _ = self._source_error(confidence.min())
        excess = max(of_source - float(1 - confidence.mean()), 0.0)
        ends = (min(max(end, 0.0), 1.0) for end in (highest + excess, lowest))
        high, low = (wilson(end, count, _LEVEL) for end in ends)
        return _point(count / of, error + excess, high[1], low[0])

    def share_beyond_source(self, accepted: Booleans) -> float:
        """Return the share of accepted rows with a higher confidence than every source row."""
        confidence, source = self.confidence[0][accepted], self.source[0]
        return float((confidence > source.max()).mean()) if len(source) and len(confidence) else 0.0

    def _source_error(self, least: float) -> tuple[float, float]:
        """Return error rate and upper limit for source rows with at least this confidence."""
        flags = self.source[1][self.source[0] >= least]
        error = float(flags.mean()) if len(flags) else 0.0
        return error, wilson(error, len(flags), _LEVEL)[1] if len(flags) else 0.0

    def cut(self, coverage: float) -> float:
        """Return the cut (the minimum probability of a class in a set), computed without labels."""
        probabilities = mass = self.probabilities
        if self.accuracy is not None:
            low, accuracy, _ = self.accuracy
            careful = self._matched(accuracy - _TOWARDS_LOW * (accuracy - low))
            mass = softmax(self.logits, careful).T
        rows, top = np.arange(len(probabilities)), probabilities.argmax(axis=1)
        needed = coverage * len(rows) - float(mass[rows, top].sum())
        if needed <= 0:
            return 1.0
        rest = np.ones(probabilities.shape, dtype=bool)
        rest[rows, top] = False
        values, masses = probabilities[rest], mass[rest]
        order = np.argsort(-values)
        place = int(np.searchsorted(np.cumsum(masses[order]), needed))
        return float(values[order[min(place, len(order) - 1)]])

    def cheapest(
        self,
        wrong: Float64s,
        review: float,
        predicted: Labels,
        of_all: MetricEstimate | None = None,
    ) -> CostPoint:
        """Return which share of the rows to accept at the lowest cost, with the mean cost per row.

        - `wrong`, (K, K): costs by true and predicted class.
        - `predicted`, (n,): predicted classes.
        - `of_all`: the mean cost if every row is accepted. By default, this cost is computed from
          the probabilities.
        """
        m, order = len(predicted), np.argsort(-self.confidence[0], kind="stable")
        sizes = np.unique(np.linspace(0, m, min(m, _SHARES) + 1).round().astype(np.int64))
        costs = costs_of_best(self.logits, self._temperatures, wrong, predicted, order, of_all)
        totals = [(sums[sizes] + review * (m - sizes)) / m for sums in costs]
        best = int(totals[0].argmin())
        ends = sorted(float(total[best]) for total in totals)
        share, cost = float(sizes[best]) / m, float(totals[0][best])
        return CostPoint(share, cost, ends[0], ends[-1], review)


def _point(share: float, error: float, highest: float, lowest: float) -> CurvePoint:
    error, highest, lowest = (min(max(number, 0.0), 1.0) for number in (error, highest, lowest))
    return CurvePoint(share, error, min(lowest, error), max(highest, error))


def point_at(curve: Sequence[CurvePoint], share: float) -> CurvePoint:
    """Return the point of a curve at a share of accepted rows."""
    values = np.array([(point.share, point.error, point.low, point.high) for point in curve]).T
    return CurvePoint(share, *(float(np.interp(share, values[0], part)) for part in values[1:]))


def largest_share(curve: Sequence[CurvePoint], error: float) -> float:
    """Return the largest share whose expected error rate, plus a margin, is at most `error`."""
    shares = (
        point.share
        for point in curve
        if point.error + _TOWARDS_HIGH * (point.high - point.error) <= error
    )
    return max(shares, default=0.0)


def right_excluded(rows: Rows, coverage: float) -> int:
    """Return the allowed number of sets without the right class; -1 if there are too few rows."""
    exact = (len(rows) + 1) * (1 - coverage) - 1
    return math.floor(exact + float(np.random.default_rng(np.sort(rows)).random()))


def cut_by_labels(probabilities: Float64s, labels: Labels, excluded: int) -> float:
    """Return the cut for which `excluded` prediction sets do not contain the label of the row."""
    if excluded < 0:
        return 0.0
    scores = true_scores(probabilities, labels)
    return float(np.sort(scores)[min(excluded, len(scores) - 1)])


def mean_size(probabilities: Float64s, cut: float) -> float:
    """Return the mean number of classes in a prediction set."""
    return float(np.maximum((probabilities >= cut).sum(axis=1), 1).mean())


def true_scores(probabilities: Float64s, labels: Labels) -> Float64s:
    """Return the probability of each row's label, or 1 if the label is the predicted class.

    Rows without a label get 0.
    """
    scores = probabilities[np.arange(len(labels)), np.maximum(labels, 0)]
    scores = np.where(probabilities.argmax(axis=1) == labels, 1.0, scores)
    return np.where(labels == UNKNOWN_LABEL, 0.0, scores)
