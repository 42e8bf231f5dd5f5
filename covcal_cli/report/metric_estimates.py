"""Show estimated metrics in a table, and compare them with limits."""

import math
from collections.abc import Sequence

from covcal_cli.errors import CovcalError, in_percent, interval, printable, shown
from covcal_cli.estimators.metrics import (
    ACCURACY,
    BALANCED,
    COST,
    MACRO,
    MetricEstimate,
    Wanted,
    parse_metrics,
)
from covcal_cli.evaluate.gates import GateResult, Outcome
from covcal_cli.evaluate.limits import limit_from
from covcal_cli.report.tables import Table

MOST_CLASSES = 20
# A range that reaches from 0 to 1, up to this tolerance, contains no information.
_ALL = 0.005
ALL_CLASSES = "all classes"
UNKNOWN = "A range of 0 to 100 % contains no information: label rows with covcal pick."
TOO_FEW = "too few rows"
TOO_FEW_ROWS = (
    f'"{TOO_FEW.capitalize()}" means fewer than 5 rows of the class. For the precision, '
    f'"{TOO_FEW}" means fewer than 5 rows predicted as the class.'
)
LEAST, MOST = "--fail-below", "--fail-above"
# (metric, limit, option). The option is --fail-above for a cost, else --fail-below.
MetricLimit = tuple[Wanted, float, str]


def metric_limit(text: str) -> MetricLimit:
    """Parse ``METRIC=LEAST`` or ``METRIC:CLASS=LEAST``. Raises ValueError if it is invalid."""
    left, _, number = text.rpartition("=")
    if left == COST:
        raise ValueError(f"a higher cost is not better: use {MOST} {shown(text)}")
    metrics = parse_metrics(left)
    if len(metrics) != 1:
        raise ValueError(f"{shown(text)} names several metrics: pass {LEAST} once for each")
    return metrics[0], limit_from(number, left), LEAST


def cost_limit(text: str) -> MetricLimit:
    """Parse ``cost=MOST``. Raises ValueError if it is invalid."""
    left, _, number = text.partition("=")
    try:
        limit = float(number)
    except ValueError:
        limit = math.nan
    if left != COST or not 0 <= limit < math.inf:
        raise ValueError(
            f"{shown(text)} must be cost=NUMBER with a number of at least 0. For other "
            f"metrics, use {LEAST}"
        )
    return (COST, None), limit, MOST


def metric_gate(
    gate: MetricLimit,
    estimates: Sequence[MetricEstimate],
    classes: Sequence[str],
    end: str | None,
    subject: str = "target",
) -> GateResult:
    """Compare an estimated metric with its limit.

    `end` says which end of the metric's range is compared (default: the worse end). Raises
    `CovcalError` if a metric of two classes does not name the class.
    """
    (metric, of), limit, option = gate
    name = metric if of is None else f"{metric}:{printable(of)}"
    if of is None and len(classes) == 2 and metric not in (ACCURACY, BALANCED, COST):
        each = " or ".join(f"{metric}:{printable(label)}" for label in classes)
        raise CovcalError(f"{LEAST} {name} needs a class: {each}")
    of = None if of == MACRO and of not in classes else of
    by_name = {
        (estimate.metric, estimate.class_name): estimate
        for estimate in estimates
        if estimate.group is None
    }
    estimate = by_name.get((metric, of))
    text = f"{name} {'>=' if option == LEAST else '<='} {limit:g}"
    on = "" if subject == "target" else f" on {printable(subject)}"
    if estimate is None or estimate.value is None or estimate.low is None or estimate.high is None:
        reason = "this period has no metrics, because it was joined from several files"
        if estimate is not None:
            reason = (
                f"{name} cannot be estimated from only about {estimate.rows:.1f} rows: leave "
                "out this gate, or give more rows"
            )
        return GateResult(subject, text, f"gate {text} skipped{on}: {reason}", "skipped")
    judged_end = end or ("low" if option == LEAST else "high")
    value = {"low": estimate.low, "middle": estimate.value, "high": estimate.high}[judged_end]
    whole = f"estimated {estimate.value:.4g}, {estimate.low:.4g} to {estimate.high:.4g}"
    if estimate.low == estimate.high:
        whole = "measured, without a range"
    if is_unknown(estimate):
        whole = f"not known: {estimate.low:.4g} to {estimate.high:.4g}"
    judged = "the estimate" if judged_end == "middle" else f"the {judged_end} end"
    is_beyond = value < limit if option == LEAST else value > limit
    outcome: Outcome = "failed" if is_beyond else "passed"
    state = "FAILED" if outcome == "failed" else "passed"
    sentence = f"gate {text} {state} by {judged}{on}: {value:.4g} ({whole})"
    return GateResult(subject, text, sentence, outcome)


def metric_table(
    estimates: Sequence[MetricEstimate],
    most: int,
    *,
    group: str = "group",
    has_answer: bool = False,
) -> Table:
    """Return a table of metrics, with a row per group and class.

    - `most`: maximum number of classes. The table has the classes with the lowest values.
    - `group`: heading of the column of groups.
    - `has_answer`: whether accuracy and cost are printed above the table.
    """
    grouped = any(estimate.group is not None for estimate in estimates)
    lowest: dict[str | None, float] = {}
    for estimate in estimates:
        value = 1.0 if estimate.value is None else estimate.value
        name = estimate.class_name
        lowest[name] = min(lowest.get(name, value), value)
    classes = sorted((name for name in lowest if name is not None), key=lambda name: lowest[name])
    left_out = set(classes[most:])
    rows: dict[tuple[str | None, str | None], dict[str, str]] = {}
    for estimate in estimates:
        is_above = estimate.metric == ACCURACY or (estimate.metric == COST and has_answer)
        is_above &= not grouped
        if estimate.class_name not in left_out and not is_above:
            place = (estimate.group, estimate.class_name)
            rows.setdefault(place, {})[estimate.metric] = metric_cell(estimate)
    names = list(dict.fromkeys(metric for cells in rows.values() for metric in cells))
    order = list(dict.fromkeys(group for group, _ in rows))
    lines = [
        [
            *([of_group or "all rows"] if grouped else []),
            label or ALL_CLASSES,
            *(cells.get(name, "") for name in names),
        ]
        for (of_group, label), cells in sorted(
            rows.items(), key=lambda row: (order.index(row[0][0]), row[0][1] is not None)
        )
    ]
    columns = [*([group] if grouped else []), "class"]
    return Table(
        [*columns, *(name.replace("_", " ") for name in names)], lines, range(len(columns))
    )


def is_unknown(estimate: MetricEstimate) -> bool:
    """Return whether the range of a metric is 0 to 1, which says nothing about the metric."""
    low, high, is_cost = estimate.low, estimate.high, estimate.metric == COST
    return not is_cost and low is not None and high is not None and low < _ALL and high > 1 - _ALL


def metric_cell(estimate: MetricEstimate) -> str:
    """Return the value and the range of a metric as text."""
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return TOO_FEW
    has_range = estimate.low < estimate.high
    if estimate.metric == COST:
        ends = f" ({estimate.low:.3g} to {estimate.high:.3g})" if has_range else ""
        return f"{estimate.value:.3g}{ends}"
    ends = f" ({interval(estimate.low, estimate.high, estimate.value)})" if has_range else ""
    if is_unknown(estimate):
        return f"not known{ends}"
    return f"{in_percent(estimate.value)} %{ends}"
