"""Compute which rows to accept, and which classes a set contains, from confidences in memory.

A curve gives, for every share of rows, the expected error of the rows with the highest confidence.
If wrong classes and reviews have costs, the share whose acceptance costs least is computed.

costs.json is an object with two keys: `review`, the cost of a row that a person reviews (`estimate`
does not need it), and `wrong`, the cost of an accepted row with a wrong class. The optional key
`pairs` is a list of objects with `true`, `predicted` and `cost`. For these pairs of classes, `cost`
replaces `wrong`.

A set of classes should contain the right class with a given probability, the coverage C. A set
contains the most probable class, and every class whose calibrated probability is at least a number,
the cut. This method is LAC (Sadinle, Lei & Wasserman 2019), except that no set is empty.

- Without labels, the cut is chosen so that the probabilities of the classes in a set sum to C on
  average. For this, the temperature is raised until the mean confidence is two fifths of the way
  from the estimated accuracy to its low end.
- With the labels of n random rows, the cut may exclude the right class in (n + 1) (1 - C) - 1 of
  them: those where its probability is lowest. This is split conformal prediction (Papadopoulos et
  al. 2002). If this number is not whole, it is rounded up or down at random, so that its mean is
  right. The coverage is then C on average over repeated draws. With a certainty, an exact test says
  how many right classes may be excluded.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL, Booleans, Float64s, Floats, Integers, Labels, Rows
from covcal_cli.errors import CovcalError
from covcal_cli.estimators.inputs import Estimate
from covcal_cli.estimators.matched_temperature import match_accuracy
from covcal_cli.formats.decision import CostPoint, CurvePoint, GroupPoint
from covcal_cli.maths.odds import confidences
from covcal_cli.maths.odds import probabilities as softmax
from covcal_cli.records import json_of

# Chosen on the half *choose*. For sets: how far to go from the estimated accuracy towards its low
# end. For rows to accept: how far from the expected error towards its high end.
_TOWARDS_LOW, _TOWARDS_HIGH = 0.4, 0.55


def cut_without_labels(
    logits: Floats,
    probabilities: Float64s,
    coverage: float,
    estimate: Estimate | None,
    labels: Labels | None = None,
) -> float:
    """Return the cut of `probabilities`, (n, K), whose sets are expected to have the coverage.

    Without an estimate, the calibrated probabilities are assumed to be right. `labels` are the
    classes that the classifier predicts, if they may differ from the largest logit.
    """
    mass = probabilities
    if estimate is not None:
        accuracy = estimate.accuracy - _TOWARDS_LOW * (estimate.accuracy - estimate.low)
        mass = softmax(logits, match_accuracy(logits, accuracy, labels).temperature).T
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


def right_excluded(rows: Rows, coverage: float) -> int:
    """Return in how many labelled rows the set may lack the right class; -1 if 0 would be too many.

    Whether it is rounded up or down depends on the row numbers, which are random.
    """
    exact = (len(rows) + 1) * (1 - coverage) - 1
    return math.floor(exact + float(np.random.default_rng(np.sort(rows)).random()))


def cut_by_labels(scores: Float64s, excluded: int) -> float:
    """Return the cut that excludes this number of right classes.

    `scores`, (n,), are the probabilities of the right classes.
    """
    if excluded < 0:
        return 0.0
    return float(np.sort(scores)[min(excluded, len(scores) - 1)])


def mean_size(probabilities: Float64s, cut: float) -> float:
    """Return the mean number of classes in a set."""
    sizes = (probabilities >= cut).sum(axis=1)
    return float(np.maximum(sizes, 1).mean())


def true_scores(probabilities: Float64s, labels: Labels) -> Float64s:
    """Return the right class's probability: 1 if it is the largest, 0 without a label."""
    scores = probabilities[np.arange(len(labels)), np.maximum(labels, 0)]
    scores = np.where(probabilities.argmax(axis=1) == labels, 1.0, scores)
    return np.where(labels == UNKNOWN_LABEL, 0.0, scores)


_POINTS = 100


def confidence_range(
    logits: Floats,
    temperature: float,
    accuracies: tuple[float, float] | None,
    labels: Labels | None = None,
) -> tuple[Float64s, ...]:
    """Return the confidence at `temperature`, and at the lowest and highest of `accuracies`.

    `labels` are the predicted classes, if they may differ from those with the largest logit.
    """
    range_ = temperature_range(logits, temperature, accuracies, labels)
    return tuple(confidences(logits, matched, labels) for matched in range_)


def temperature_range(
    logits: Floats,
    temperature: float,
    accuracies: tuple[float, float] | None,
    labels: Labels | None,
) -> tuple[float, float, float]:
    """Return T, and the two T at which the mean confidence is the lowest and highest accuracy."""
    if accuracies is None:
        return temperature, temperature, temperature
    low, high = (match_accuracy(logits, end, labels).temperature for end in accuracies)
    return temperature, low, high


def expected_errors(own: Float64s, lowest: Float64s, highest: Float64s) -> tuple[CurvePoint, ...]:
    """Return the expected error of the best rows for every share of rows, with its range.

    The best rows are those with the highest `own` confidence. The arguments are the result of
    `confidence_range`.
    """
    order = np.argsort(-own, kind="stable")
    shares = np.arange(1, _POINTS + 1) / _POINTS
    sizes = np.ceil(shares * len(own)).astype(np.int64)
    means = [np.cumsum(1 - values[order])[sizes - 1] / sizes for values in (own, highest, lowest)]
    columns = (np.clip(errors, 0, 1).tolist() for errors in means)
    return tuple(_point(*errors) for errors in zip(shares.tolist(), *columns, strict=True))


def errors_of_groups(
    names: Sequence[str], numbers: Integers, accepted: Booleans, *confidence: Float64s
) -> tuple[GroupPoint, ...]:
    """Return the accepted share of every group, and the expected error of its accepted rows.

    `numbers`, (n,), are the groups of the rows; `accepted`, (n,), says which rows are accepted;
    `confidence` are the three arrays of `confidence_range`.
    """
    own, lowest, highest = confidence
    groups = []
    for number, name in enumerate(names):
        inside = numbers == number
        taken, rows = inside & accepted, int(inside.sum())
        point = None
        if taken.any():
            errors = [float(1 - values[taken].mean()) for values in (own, highest, lowest)]
            point = _point(float(taken.sum() / rows), *errors)
        groups.append(GroupPoint(name, rows, point))
    return tuple(groups)


def _point(share: float, error: float, best: float, worst: float) -> CurvePoint:
    return CurvePoint(share, error, min(best, error), max(worst, error))


def largest_share(curve: tuple[CurvePoint, ...], error: float) -> float:
    """Return the largest share of rows whose expected error, with a margin, is within the limit."""
    return max(
        (
            point.share
            for point in curve
            if point.error + _TOWARDS_HIGH * (point.high - point.error) <= error
        ),
        default=0.0,
    )


_SHARES = 200  # number of shares that are compared
# the largest cost that is allowed, because the square of a larger one may be infinite
_MOST = 1e100


@dataclass(frozen=True)
class Costs:
    """The cost of a review, and of each pair of true and predicted class."""

    review: float
    wrong: Float64s  # the costs by true class and predicted class, (K, K); the diagonal is 0

    def of_accepted(self, probabilities: Float64s, labels: Labels) -> Float64s:
        """Return the expected cost of accepting each row, shape (m,)."""
        return np.asarray(np.einsum("mk,km->m", probabilities, self.wrong[:, labels]))

    def cheapest(self, scores: Float64s, expected: Sequence[Float64s]) -> CostPoint:
        """Return the share of best rows whose acceptance costs least, and the range of its cost.

        `expected` are the expected costs of each row if it is accepted: first by the calibration,
        then at the ends of the estimated accuracy.
        """
        m, order = len(scores), np.argsort(-scores, kind="stable")
        sizes = np.unique(np.linspace(0, m, min(m, _SHARES) + 1).round().astype(np.int64))
        totals = []
        for costs in expected:
            accepted = np.concatenate([[0.0], np.cumsum(costs[order])])[sizes]
            totals.append((accepted + self.review * (m - sizes)) / m)
        best = int(totals[0].argmin())
        cost, *ends = (float(total[best]) for total in totals)
        share = float(sizes[best]) / m
        return CostPoint(share, cost, min(cost, *ends), max(cost, *ends), self.review)


def read_costs(path: Path, classes: Sequence[str], *, needs_review: bool = True) -> Costs:
    """Read costs.json for the classes of a file.

    Without `needs_review`, the cost of a review may be missing.
    """
    try:
        content = json_of(path)
    except (OSError, ValueError) as error:
        raise CovcalError(f"{path} cannot be read: {error}") from error
    content = content if isinstance(content, dict) else {}
    example = {"review": 1, "wrong": 10} if needs_review else {"wrong": 10}
    for key in example:
        if key not in content:
            raise CovcalError(
                f"{path} has no cost {key!r}: write an object such as {json.dumps(example)}"
            )
    unknown = sorted(content.keys() - {"review", "wrong", "pairs"})
    if unknown:
        raise CovcalError(f"{path} has the unknown key {unknown[0]!r}: use review, wrong and pairs")
    wrong = np.full((len(classes), len(classes)), _cost(path, "wrong", content["wrong"]))
    np.fill_diagonal(wrong, 0)
    pairs = content.get("pairs", [])
    if not isinstance(pairs, list):
        raise CovcalError(f"{path}: pairs must be a list")
    for pair in pairs:
        if not isinstance(pair, dict) or pair.keys() != {"true", "predicted", "cost"}:
            raise CovcalError(f"{path}: a pair must have true, predicted and cost, not {pair!r}")
        names = [pair["true"], pair["predicted"]]
        unknown = [name for name in names if name not in classes]
        if unknown:
            raise CovcalError(f"{path}: {unknown[0]!r} is not a class of the file: correct it")
        if names[0] == names[1]:
            raise CovcalError(
                f"{path}: a pair has {pair['true']!r} twice, but a right prediction has no "
                "cost: remove the pair"
            )
        true, predicted = map(classes.index, names)
        wrong[true, predicted] = _cost(path, "cost", pair["cost"])
    return Costs(_cost(path, "review", content.get("review", 0)), wrong)


def _cost(path: Path, name: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _MOST:
        raise CovcalError(
            f"{path}: {name} must be a number of at least 0 and at most {_MOST:g}, not {value!r}"
        )
    return float(value)
