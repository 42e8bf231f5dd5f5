"""Choose rows to accept, and sets of classes, from confidences.

The expected error is computed for every share of the most confident rows. It is at least the error
of the source rows with the same confidence. With costs, the cheapest share is accepted.

A set should contain the right class with probability C (the coverage). A set contains the most
probable class, and all classes with at least a minimum probability (the cut). This method is LAC
(Sadinle, Lei & Wasserman 2019), but without empty sets.

- Without labels, the probabilities in a set must sum to C on average. The temperature matches an
  accuracy below the estimate, as a margin.
- With the labels of n random rows, at most (n + 1) (1 - C) - 1 sets may lack the right class. This
  number is rounded at random. The method is split conformal prediction (Papadopoulos et al. 2002).
- With labels and a confidence level (``--certainty``), an exact test gives the number of rows.
"""

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL, Booleans, Float64s, Floats, Integers, Labels, Rows
from covcal_cli.estimators.matched_temperature import match_accuracy
from covcal_cli.estimators.metrics import MetricEstimate, costs_of_best
from covcal_cli.formats.decision import CostPoint, CurvePoint, GroupPoint
from covcal_cli.maths.odds import confidences, wilson
from covcal_cli.maths.odds import probabilities as softmax

# Margins for sets and for accepted rows, as shares of the distance from the estimate to the end of
# its range. They were chosen on the benchmark.
_TOWARDS_LOW, _TOWARDS_HIGH = 0.4, 0.5
_LEVEL = 0.95  # level of the sampling error
_POINTS = 100
_SHARES = 200
Accuracy = tuple[float, float, float]  # low end, estimate, high end


class Sample:
    """A sample of target rows with calibrated probabilities.

    - `logits`, (n, K).
    - `temperature`: T of the calibration.
    - `accuracy`: low end, estimate and high end of the accuracy. By default, the probabilities are
      assumed to be right.
    - `labels`, (n,): predicted classes. Default: the classes with the largest logit.
    """

    def __init__(
        self,
        logits: Floats,
        temperature: float,
        accuracy: Accuracy | None,
        labels: Labels | None = None,
    ) -> None:
        self._logits, self._labels, self._accuracy = logits, labels, accuracy
        self._temperatures = [temperature] * 3
        if accuracy is not None:
            self._temperatures[1:] = [self._matched(accuracy[0]), self._matched(accuracy[2])]

    def _matched(self, accuracy: float) -> float:
        return match_accuracy(self._logits, accuracy, self._labels).temperature

    @cached_property
    def confidence(self) -> list[Float64s]:
        """The confidences, (n,), for the estimated accuracy and both ends of its range."""
        return [confidences(self._logits, t, self._labels) for t in self._temperatures]

    @cached_property
    def probabilities(self) -> Float64s:
        """Calibrated probabilities, shape (n, K)."""
        return softmax(self._logits, self._temperatures[0]).T

    def curve(self, rows: Booleans | slice = slice(None)) -> tuple[CurvePoint, ...]:
        """Return the expected error of the most confident rows, for each share of `rows`."""
        confidence = [values[rows] for values in self.confidence]
        order = np.argsort(-confidence[0], kind="stable")
        n, shares = len(order), np.arange(1, _POINTS + 1) / _POINTS
        if not n:
            return ()
        sizes = np.ceil(shares * n).astype(np.int64)
        means = [np.cumsum(1 - values[order])[sizes - 1] / sizes for values in confidence]
        return tuple(_point(*numbers) for numbers in np.array([shares, *means]).T.tolist())

    def groups(
        self, names: Sequence[str], numbers: Integers, accepted: Booleans
    ) -> tuple[GroupPoint, ...]:
        """Return the accepted share and the expected error of every group.

        The range of an error includes 95 % sampling error. `numbers`, (n,), are the groups of the
        rows, and `accepted`, (n,), is True for accepted rows.
        """
        groups = []
        for number, name in enumerate(names):
            rows = numbers == number
            taken, n, point = rows & accepted, int(rows.sum()), None
            if taken.any():
                errors = [float(1 - values[taken].mean()) for values in self.confidence]
                error, highest, lowest = np.clip(errors, 0, 1).tolist()
                count = int(taken.sum())
                # Add the sampling error.
                _, highest = wilson(highest, count, _LEVEL)
                lowest, _ = wilson(lowest, count, _LEVEL)
                point = _point(count / n, error, highest, lowest)
            groups.append(GroupPoint(name, n, point))
        return tuple(groups)

    def cut(self, coverage: float) -> float:
        """Choose the cut from probabilities, without labels."""
        probabilities = mass = self.probabilities
        if self._accuracy is not None:
            low, accuracy, _ = self._accuracy
            careful = self._matched(accuracy - _TOWARDS_LOW * (accuracy - low))
            mass = softmax(self._logits, careful).T
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
        """Return the cheapest share of rows to accept, and the mean cost of a row.

        - `wrong`, (K, K): costs by true and predicted class.
        - `predicted`, (n,): predicted classes.
        - `of_all`: the mean cost if every row is accepted. By default, the costs follow from the
          probabilities alone.
        """
        m, order = len(predicted), np.argsort(-self.confidence[0], kind="stable")
        sizes = np.unique(np.linspace(0, m, min(m, _SHARES) + 1).round().astype(np.int64))
        costs = costs_of_best(self._logits, self._temperatures, wrong, predicted, order, of_all)
        totals = [(sums[sizes] + review * (m - sizes)) / m for sums in costs]
        best = int(totals[0].argmin())
        ends = sorted(float(total[best]) for total in totals)
        share, cost = float(sizes[best]) / m, float(totals[0][best])
        return CostPoint(share, cost, ends[0], ends[-1], review)


def _point(share: float, error: float, highest: float, lowest: float) -> CurvePoint:
    error, highest, lowest = (min(max(number, 0.0), 1.0) for number in (error, highest, lowest))
    return CurvePoint(share, error, min(lowest, error), max(highest, error))


def with_source_errors(
    curve: Sequence[CurvePoint], scores: Float64s, confidence: Float64s, wrong: Booleans
) -> tuple[CurvePoint, ...]:
    """Return a curve that expects at least the errors of source rows with the same confidence.

    The high end of an error's range is at least the high end of Wilson's interval for these source
    rows.

    - `scores`, (m,): the confidence of the target rows of the curve.
    - `confidence`, (n,), and `wrong`, (n,): the confidence of labelled source rows, and which of
      these rows are wrong.
    """
    falling, order = -np.sort(-scores), np.argsort(-confidence, kind="stable")
    errors = np.cumsum(wrong[order])
    points = []
    for point in curve:
        least = falling[math.ceil(point.share * len(falling)) - 1]
        rows = int(np.searchsorted(-confidence[order], -least, "right"))
        error, high = 0.0, 0.0
        if rows:
            error = float(errors[rows - 1] / rows)
            _, high = wilson(error, rows, _LEVEL)
        error = max(point.error, error)
        if point.low == point.high:  # without an estimated accuracy, there is no range
            points.append(CurvePoint(point.share, error, error, error))
        else:
            points.append(CurvePoint(point.share, error, point.low, max(point.high, high)))
    return tuple(points)


def largest_share(curve: Sequence[CurvePoint], error: float) -> float:
    """Return the largest share whose expected error plus a margin is within the limit."""
    shares = (
        point.share
        for point in curve
        if point.error + _TOWARDS_HIGH * (point.high - point.error) <= error
    )
    return max(shares, default=0.0)


def right_excluded(rows: Rows, coverage: float) -> int:
    """Return the number of labelled rows whose sets may exclude the right class.

    The number is rounded at random. Return -1 if every set must contain all classes.
    """
    exact = (len(rows) + 1) * (1 - coverage) - 1
    return math.floor(exact + float(np.random.default_rng(np.sort(rows)).random()))


def cut_by_labels(probabilities: Float64s, labels: Labels, excluded: int) -> float:
    """Return the cut that excludes the right class in `excluded` labelled rows."""
    if excluded < 0:
        return 0.0
    scores = true_scores(probabilities, labels)
    return float(np.sort(scores)[min(excluded, len(scores) - 1)])


def mean_size(probabilities: Float64s, cut: float) -> float:
    """Return the mean number of classes in a set."""
    return float(np.maximum((probabilities >= cut).sum(axis=1), 1).mean())


def true_scores(probabilities: Float64s, labels: Labels) -> Float64s:
    """Return the probability of each row's label, or 1 if the label is the predicted class.

    Rows without a label get 0.
    """
    scores = probabilities[np.arange(len(labels)), np.maximum(labels, 0)]
    scores = np.where(probabilities.argmax(axis=1) == labels, 1.0, scores)
    return np.where(labels == UNKNOWN_LABEL, 0.0, scores)
