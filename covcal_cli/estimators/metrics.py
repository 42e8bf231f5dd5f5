"""Estimate precision, recall and other metrics per class, without target labels.

The metrics are computed from the expected confusion matrix (NannyML's CBPE, Białek et al. 2023).
Each target row counts for every class, with the probability softmax(z / T + b) as its weight.

The temperature T_c and the class offsets b minimise the penalised log loss on the source.

| case | T_c and b |
|---|---|
| always | penalty (abs(b)^2 + (T_0 / T_c - 1)^2) / 2; T_0 is the best T without offsets |
| fewer than 5 source errors | T_c = T_0, which is at least 1 |
| one confidence per row, or more than 1,000 classes | T_c = T_0 and b = 0 |
| given class frequencies | their offsets are added to b |

For two classes, T = T_c. For more classes, T is halfway (in log T) between T_c and the T that
matches the estimated accuracy. The AUROC ranks rows by the classifier's own probabilities.

This rule was chosen on 158 shifts of ``examples/research/benchmark``. On these shifts, the mean
error of precision, recall, F1, specificity and AUROC is .044 for two classes, and .041 for more.

**Ranges.** A metric is computed at both ends of the range of the accuracy. The resulting range is
widened on both sides:

| symbol | meaning |
|---|---|
| sqrt(s^2 + o^2) | width that is added on both sides |
| s | sampling error (95 %) |
| o | change of the metric if the odds of the class are wrong by `ODDS` |

The range of a mean over classes assumes independent errors of the classes. For groups of rows,
covcal estimates no mean over classes, because the range of this mean was too narrow in the
benchmark.

**Cost.** The mean cost of a row is the estimated error rate, times the mean cost of a wrong row.
The mean cost of a wrong row is computed at the T that matches the estimated accuracy. The range of
the cost is widened like the range of a metric. Keys of costs.json:

- ``review``: the cost of a reviewed row; `estimate` does not need this key
- ``wrong``: the cost of an accepted wrong row
- ``pairs``, optional: objects with ``true``, ``predicted`` and ``cost``, for pairs of classes
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Protocol, Self

import numpy as np

from covcal_cli.arrays import Booleans, Float64s, Floats, Integers, Labels, Rows
from covcal_cli.errors import CovcalError, one_line, printable, require_one_of, shown
from covcal_cli.estimators.inputs import Estimate, EstimatorInputs, Z
from covcal_cli.estimators.matched_temperature import match_accuracy
from covcal_cli.files import require_file
from covcal_cli.formats.decision import Costs
from covcal_cli.maths.class_metrics import CLASS_METRICS, ClassRows, class_odds, positive, ranks_of
from covcal_cli.maths.odds import confidences, probabilities
from covcal_cli.maths.softmax import class_major, with_offsets
from covcal_cli.maths.temperature import MIN_ERRORS, fit_temperature
from covcal_cli.records import NonNegative, at, json_of, record_of

ACCURACY, BALANCED = "accuracy", "balanced_accuracy"
METRIC_NAMES = (ACCURACY, BALANCED, *CLASS_METRICS)
COST = "cost"
MACRO = "macro"
_LISTED = 10
# minimum expected number of rows to estimate a metric
LEAST_ROWS = 5.0
ODDS = float(np.e)
_MOST_CLASSES = 1000
_MOST_STEPS, _TOLERANCE, _LEAST_SLOPE = 50, 1e-6, 0.1
METRIC_RANGE = (
    "Without labels, ranges of metrics are rules of thumb. On 80 test shifts, the ranges contained "
    "91 to 94 % of the true metrics."
)
COST_RANGE = (
    "The range of the cost is a rule of thumb. The range contained the true cost on 94 % of the "
    "shifts that were used to choose the rule."
)
Wanted = tuple[str, str | None]  # a metric and a class, or None for all classes and their mean


@dataclass(frozen=True)
class MetricEstimate:
    """An estimate of one metric."""

    metric: str
    # None for all rows, or for the mean over classes
    class_name: str | None = field(metadata=at("class"))
    value: NonNegative | None  # None if there are too few rows
    low: NonNegative | None
    high: NonNegative | None
    # number of rows on which the metric is based
    rows: NonNegative
    interval: str
    group: str | None = None  # None for all rows


@dataclass(frozen=True)
class Groups:
    """The names of groups, and the number of each row's group."""

    names: Sequence[str]
    numbers: Integers


def parse_metrics(text: str) -> tuple[Wanted, ...]:
    """Parse a text such as ``f1,recall:fraud``. Raises ValueError if it is invalid."""
    wanted: list[Wanted] = []
    for part in text.split(","):
        name, colon, of = part.strip().partition(":")
        if name == "all" and not colon:
            wanted += [(metric, None) for metric in METRIC_NAMES]
            continue
        if name == COST:
            raise ValueError(
                "cost is not a metric of --metrics: to estimate the cost, pass --cost COSTS.JSON"
            )
        if name not in METRIC_NAMES or (colon and not of):
            raise ValueError(
                f"{shown(part.strip())} must be METRIC or METRIC:CLASS, where METRIC is one of "
                f"{', '.join(METRIC_NAMES)}"
            )
        if of and name not in CLASS_METRICS:
            raise ValueError(f"{name} is a metric of all classes together: leave out :{of}")
        wanted.append((name, of or None))
    return tuple(dict.fromkeys(wanted))


def has_metrics(
    estimates: Sequence[MetricEstimate], wanted: Sequence[Wanted], classes: Sequence[str]
) -> bool:
    """Return whether every wanted metric was estimated."""
    keys = {(estimate.metric, estimate.class_name) for estimate in estimates}

    def is_there(metric: str, of: str | None) -> bool:
        if of is None and metric in CLASS_METRICS:
            return all((metric, name) in keys for name in classes)
        return (metric, None if of == MACRO and of not in classes else of) in keys

    return all(is_there(metric, of) for metric, of in wanted)


def wanted_again(estimates: Sequence[MetricEstimate], classes: Sequence[str]) -> tuple[Wanted, ...]:
    """Return the metrics that must be requested to get `estimates`, without the cost."""
    mean = None if MACRO in classes else MACRO
    return tuple(
        (estimate.metric, mean)
        if estimate.class_name is None and estimate.metric in CLASS_METRICS
        else (estimate.metric, estimate.class_name)
        for estimate in estimates
        if estimate.metric != COST
    )


def unknown_metrics(
    wanted: Sequence[Wanted], classes: Sequence[str], rows: int
) -> Iterator[MetricEstimate]:
    """Yield the wanted metrics without values, because there are too few rows."""
    yield from selected(
        wanted, classes, None, rows, lambda _, names: dict.fromkeys(names, (rows, None))
    )


@dataclass(frozen=True)
class Interval:
    """A metric and its range."""

    value: float
    low: float
    high: float


class Spread(Protocol):
    """A metric with a range, which can be averaged over classes."""

    @property
    def interval(self) -> Interval:
        """The metric and its range."""

    def mean(self, others: Sequence[Self]) -> Self:
        """Return the mean over this class and `others`."""


SpreadsByName = Mapping[str, tuple[float, Spread | None]]
Spreads = Callable[[int, Collection[str]], SpreadsByName]


@dataclass(frozen=True)
class ExpectedSpread:
    """A metric computed from the expected confusion matrix."""

    value: float
    ends: tuple[float, ...]  # values of the metric at both ends of the accuracy's range
    below: float
    above: float

    @property
    def interval(self) -> Interval:
        """The metric and its range."""
        around = (self.value, *self.ends)
        return Interval(self.value, min(around) - self.below**0.5, max(around) + self.above**0.5)

    def mean(self, others: Sequence[Self]) -> "ExpectedSpread":
        """Return the mean over classes. The errors of classes are assumed to be independent."""
        parts = (self, *others)
        count = len(parts)
        return ExpectedSpread(
            sum(part.value for part in parts) / count,
            tuple(sum(end) / count for end in zip(*(part.ends for part in parts), strict=True)),
            sum(part.below for part in parts) / count**2,
            sum(part.above for part in parts) / count**2,
        )


def expected_metrics(
    inputs: EstimatorInputs,
    accuracy: Estimate,
    wanted: Sequence[Wanted],
    classes: Sequence[str],
    offsets: Float64s | None = None,
    groups: Groups | None = None,
    costs: Float64s | None = None,
) -> Iterator[MetricEstimate]:
    """Estimate metrics on all target rows, then on each group of rows.

    `accuracy` is the combined estimate of the accuracy. `offsets`, (K,), are the class offsets for
    class frequencies from the user. `costs`, (K, K), are costs by true and predicted class.
    """
    if not wanted and costs is None:
        return
    logits, predictions = inputs.target_logits, inputs.target_predictions
    on_source, of_classes = inputs.once("fit of classes", lambda: _fit_classes(inputs))
    offsets = of_classes if offsets is None else of_classes + offsets
    matched = [
        match_accuracy(logits, value, predictions, offsets).temperature
        for value in (accuracy.accuracy, accuracy.low, accuracy.high)
    ]
    middle = on_source if inputs.n_classes == 2 else (matched[0] * on_source) ** 0.5
    temperatures = [middle, *matched[1:]]
    moved_logits = [with_offsets(logits, temperature, offsets) for temperature in temperatures]
    chances = list(map(probabilities, moved_logits, temperatures))
    odds = class_odds(logits)

    def spreads_of(inside: Rows) -> Spreads:
        def spreads(label: int, names: Collection[str]) -> SpreadsByName:
            members = [chance[label, inside] for chance in chances]
            is_predicted, ranks = predictions[inside] == label, ranks_of(odds[label, inside])
            return _spreads(names, is_predicted, ranks, members)

        return spreads

    whole = Interval(accuracy.accuracy, accuracy.low, accuracy.high)
    rows = np.arange(len(logits))
    yield from selected(wanted, classes, whole, len(rows), spreads_of(rows))
    of_cost: Sequence[Float64s] = ()
    if costs is not None:
        first = with_offsets(logits, matched[0], offsets)
        of_cost = [probabilities(first, matched[0]), *chances[1:]]
        shares = (accuracy.accuracy, accuracy.low, accuracy.high)
        yield cost_estimate(_cost(costs, of_cost, predictions, shares), len(rows))
    if groups is None:
        return
    # The accuracy of a group is its mean confidence at the T that matches the accuracy of all rows.
    right = [
        confidences(with_offsets(logits, temperature, offsets), temperature, predictions)
        for temperature in matched
    ]
    for number, name in enumerate(groups.names):
        inside = rows[groups.numbers == number]
        everywhere = np.ones(len(inside), dtype=np.bool_)
        members = [chance[inside] for chance in right]
        ranks = np.zeros_like(inside)
        _, spread = _spreads(["precision"], everywhere, ranks, members, odds=1.0)["precision"]
        interval = None if spread is None else spread.interval
        for entry in selected(wanted, classes, interval, len(inside), spreads_of(inside)):
            if entry.metric == ACCURACY or entry.class_name is not None:
                yield replace(entry, group=name)
        if costs is not None:
            of_group = [chance[:, inside] for chance in of_cost]
            cost = None
            if len(inside) >= LEAST_ROWS:
                cost = _cost(costs, of_group, predictions[inside])
            yield replace(cost_estimate(cost, len(inside)), group=name)


def _fit_classes(inputs: EstimatorInputs) -> tuple[float, Float64s]:
    """Fit T_c and the class offsets, shape (K,), to the source."""
    logits, labels, K = inputs.source_logits, inputs.source_labels, inputs.n_classes
    allowed = inputs.source_errors >= MIN_ERRORS
    fit = fit_temperature(logits, labels, loss="nll", allow_sharpening=allowed)
    temperature, slope, offsets = fit.temperature, 1.0, np.zeros(K)
    if not inputs.has_all_classes or K > _MOST_CLASSES:
        return temperature, offsets
    possible = np.isfinite(logits[np.arange(len(labels)), labels])
    logits, labels = logits[possible], labels[possible]
    counts = np.bincount(labels, minlength=K)
    scaled = class_major(logits) / temperature
    scaled[np.isneginf(scaled)] = 0.0  # logits of -inf have probability 0
    of_labels = scaled[labels, np.arange(len(labels))]
    # Newton's method: the log loss of softmax(slope z / T + b) is convex in slope and b.
    for _ in range(_MOST_STEPS):
        current = temperature / slope
        chances = probabilities(with_offsets(logits, current, offsets), current)
        means, shares = (chances * scaled).sum(axis=0), chances.sum(axis=1)
        centred = chances * (scaled - means)
        gradient = np.r_[(of_labels - means).sum() + 1 - slope, counts - shares - offsets]
        curvature = np.empty((K + 1, K + 1))
        curvature[0, 0] = (centred * scaled).sum() + 1
        curvature[0, 1:] = curvature[1:, 0] = centred.sum(axis=1)
        curvature[1:, 1:] = np.diag(shares + 1) - chances @ chances.T
        first = 0 if allowed else 1
        step = np.linalg.solve(curvature[first:, first:], gradient[first:])
        size = float(np.abs(step).max())
        step /= max(1.0, size)
        offsets += step[1 - first :]
        if allowed:
            slope = max(slope + float(step[0]), _LEAST_SLOPE)
        if size < _TOLERANCE:
            break
    return temperature / slope, offsets


def _spreads(
    names: Collection[str],
    is_predicted: Booleans,
    ranks: Integers,
    members: Sequence[Float64s],
    odds: float = ODDS,
) -> dict[str, tuple[float, ExpectedSpread | None]]:
    mass = np.ones(len(ranks))
    middle, *ends = (ClassRows(is_predicted, ranks, chance, mass) for chance in members)
    moved = [
        ClassRows(is_predicted, ranks, _moved(middle.members, factor), mass)
        for factor in (1 / odds, odds)
    ]
    return {name: _spread(name, middle, ends, moved) for name in names}


def _moved(chances: Float64s, factor: float) -> Float64s:
    return np.asarray(chances * factor / (1 - chances + chances * factor))


def _spread(
    name: str, middle: ClassRows, ends: Sequence[ClassRows], moved: Sequence[ClassRows]
) -> tuple[float, ExpectedSpread | None]:
    """Return the number of rows behind a metric, and the metric if there are enough rows."""
    metric = CLASS_METRICS[name]
    rows = min(getattr(middle, need) for need in metric.needs)
    if rows < LEAST_ROWS:
        return rows, None
    value, slope = metric.function(middle)
    noise = Z**2 * float(slope**2 @ (middle.members * (1 - middle.members)))
    shifts = [metric.function(of)[0] - value for of in moved]
    return rows, ExpectedSpread(
        value,
        tuple(metric.function(of)[0] for of in ends),
        min(0.0, *shifts) ** 2 + noise,
        max(0.0, *shifts) ** 2 + noise,
    )


def _cost(
    costs: Float64s,
    chances: Sequence[Float64s],
    predictions: Integers,
    shares: Sequence[float] | None = None,
) -> Interval:
    """Return the mean cost of rows, with its range.

    `chances` are probabilities, (K, n), for three accuracies: the estimate and both ends of its
    range. `shares` are these accuracies; the default is the mean of each array.
    """
    of_row = costs[:, predictions]  # (K, n): costs by true class and row
    values, n = [], len(predictions)
    for number, chance in enumerate(chances):
        right = chance[predictions, np.arange(n)]
        expected, wrong = np.einsum("kn,kn->n", chance, of_row), 1 - right
        share = right.mean() if shares is None else shares[number]
        of_wrong = expected.sum() / positive(wrong.sum())
        values.append((1 - share) * of_wrong)
        if number:
            continue
        below = above = 0.0
        for label in range(1 if len(costs) == 2 else len(costs)):
            shifts = [0.0]
            for factor in (1 / ODDS, ODDS):
                scale = 1 / (1 - chance[label] + chance[label] * factor)
                moved = chance[label] * factor * scale
                own = chance[label] * of_row[label]
                cost = (expected - own) * scale + own * factor * scale
                others = np.where(predictions == label, 0, 1 - chance[label] - right) * scale
                mistakes = np.where(predictions == label, 1 - moved, moved + others)
                change = cost.sum() / positive(mistakes.sum()) - of_wrong
                shifts.append((1 - share) * change)
            below, above = below + min(shifts) ** 2, above + max(shifts) ** 2
        # The range of the accuracy already includes the sampling error of the number of wrong rows.
        residual = of_row - (0.0 if shares is None else of_wrong)
        residual[predictions, np.arange(n)] = 0
        first = np.einsum("kn,kn->n", chance, residual)
        second = np.einsum("kn,kn,kn->n", chance, residual, residual)
        noise = Z**2 * float((second - first**2).sum()) / n**2
    low, high = min(values) - (below + noise) ** 0.5, max(values) + (above + noise) ** 0.5
    return Interval(float(values[0]), max(0.0, float(low)), min(float(high), float(costs.max())))


def costs_of_best(
    logits: Floats,
    temperatures: Sequence[float],
    wrong: Float64s,
    predicted: Labels,
    order: Integers,
    of_all: MetricEstimate | None,
) -> Iterator[Float64s]:
    """For each temperature, yield the total costs of the first 0 to m rows in a given `order`.

    - `logits`, (m, K), and `predicted`, (m,): logits and predicted classes of the rows.
    - `temperatures`: the temperatures that match the estimated accuracy, the low end of its range,
      and the high end.
    - `wrong`, (K, K): costs by true and predicted class.
    - `of_all`: the mean cost of all m rows; by default computed from the probabilities.
    """
    wholes = (None,) * 3 if of_all is None else (of_all.value, of_all.high, of_all.low)
    for temperature, whole in zip(temperatures, wholes, strict=True):
        chances = probabilities(logits, temperature)
        of_rows = np.einsum("km,km->m", chances, wrong[:, predicted])
        sums = np.concatenate([[0.0], np.cumsum(of_rows[order])])
        if whole is not None and sums[-1] > 0:
            sums *= whole * len(predicted) / sums[-1]
        yield sums


def cost_estimate(cost: Interval | None, rows: float, kind: str = COST_RANGE) -> MetricEstimate:
    """Return the mean cost as a `MetricEstimate`."""
    if cost is None:
        return MetricEstimate(COST, None, None, None, None, rows, kind)
    return MetricEstimate(COST, None, cost.value, cost.low, cost.high, rows, kind)


def selected(
    wanted: Sequence[Wanted],
    classes: Sequence[str],
    accuracy: Interval | None,
    rows: int,
    spreads: Spreads,
    kind: str = METRIC_RANGE,
) -> Iterator[MetricEstimate]:
    """Yield the wanted metrics: the mean over classes, then each class.

    If there are two classes, the mean is yielded only if `wanted` names it.

    - `spreads`: maps a class number and names of metrics to the metrics of the class.

    Raises `CovcalError` if there is no such metric, or a class is not one of `classes`.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    for metric, of in wanted:
        require_one_of("metric", metric, METRIC_NAMES)
        if of is not None and of not in numbers and of != MACRO:
            listed = ", ".join(classes[:_LISTED]) + (", ..." if len(classes) > _LISTED else "")
            raise CovcalError(
                f"{metric}:{printable(of)}: the file has no class {printable(of)}: use one of "
                f"{listed}, or {MACRO} for the mean over classes"
            )
    of_all = {metric for metric, of in wanted if of is None or (of == MACRO and of not in numbers)}
    means = [{BALANCED: "recall"}.get(metric, metric) for metric in of_all if metric != ACCURACY]
    by_class: dict[tuple[str, int], tuple[float, Spread | None]] = {}
    for name, number in numbers.items():
        names = {*means, *(metric for metric, of in wanted if of == name)}
        if names:
            of_class = spreads(number, sorted(names))
            by_class |= {(metric, number): entry for metric, entry in of_class.items()}
    for metric, of in wanted:
        if metric == ACCURACY:
            yield _estimate(metric, None, rows, accuracy, kind)
        elif of in numbers:
            yield _estimate(metric, of, *_interval(by_class[metric, numbers[of]]), kind)
        else:
            name = {BALANCED: "recall"}.get(metric, metric)
            if of is not None or metric == BALANCED or len(classes) > 2:
                parts = [by_class[name, number][1] for number in numbers.values()]
                of_classes = [spread for spread in parts if spread is not None]
                mean = of_classes[0].mean(of_classes[1:]) if of_classes else None
                yield _estimate(metric, None, *_interval((rows, mean)), kind)
            if of is None and metric != BALANCED:
                for label, number in numbers.items():
                    yield _estimate(metric, label, *_interval(by_class[metric, number]), kind)


def _interval(of: tuple[float, Spread | None]) -> tuple[float, Interval | None]:
    rows, spread = of
    return rows, None if spread is None else spread.interval


def _estimate(
    metric: str, name: str | None, rows: float, interval: Interval | None, kind: str
) -> MetricEstimate:
    if interval is None:
        return MetricEstimate(metric, name, None, None, None, rows, kind)
    value, low, high = np.clip([interval.value, interval.low, interval.high], 0, 1).tolist()
    return MetricEstimate(metric, name, value, low, high, rows, kind)


def read_costs(
    path: Path, classes: Sequence[str], *, needs_review: bool = True
) -> tuple[Float64s, Costs]:
    """Read costs.json.

    Return costs by true and predicted class, (K, K), and the content of the file. With
    `needs_review`, the file must have the cost of a review.

    Raises `CovcalError` if the file cannot be read, lacks a cost, or has an unknown key or class.
    """
    review = '"review": 1, ' if needs_review else ""
    remedy = f'write an object such as {{{review}"wrong": 10}}'
    require_file(path, remedy=remedy)
    try:
        content = json_of(path)
        costs = record_of(Costs, content)
        if needs_review and costs.review is None:
            raise ValueError("review is missing")
        if unknown := sorted(content.keys() - {member.name for member in fields(Costs)}):
            raise ValueError(f"it has the unknown key {unknown[0]!r}")
        wrong = np.full((len(classes), len(classes)), costs.wrong)
        for pair in costs.pairs:
            if pair.true == pair.predicted:
                raise ValueError(
                    f"the pair {pair.true!r} and {pair.true!r} is a right prediction and has no "
                    "cost: leave it out"
                )
            for name in (pair.true, pair.predicted):
                if name not in classes:
                    raise ValueError(f"{name!r} is not a class of the file")
            wrong[classes.index(pair.true), classes.index(pair.predicted)] = pair.cost
    except (OSError, ValueError) as error:
        raise CovcalError(f"{path} cannot be read ({one_line(error)}): {remedy}") from error
    np.fill_diagonal(wrong, 0)
    return wrong, costs
