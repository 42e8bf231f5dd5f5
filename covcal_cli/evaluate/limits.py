"""Gates: the limits of ``--fail-above`` and ``--fail-regression``, and what exceeds them.

A metric of a sample strays by chance, so a gate judges the end of its interval that is kindest to
the calibration: the lower end of the metric, or of how much worse it has become. What exceeds that
is beyond chance; what a gate lets pass need not be good, and its sentence says so.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from covcal_cli.errors import CovcalError
from covcal_cli.evaluate.bootstrap import Interval
from covcal_cli.evaluate.metrics import METRICS, Metrics
from covcal_cli.formats.forecaster import NONE


@dataclass(frozen=True)
class Limit:
    """A gate: `metric` may not exceed `limit`, or may not be worse than it was by more."""

    metric: str
    limit: float  # a fraction


@dataclass(frozen=True)
class Verdict:
    """A limit applied to one calibration, as metrics.json has it."""

    metric: str
    limit: float
    calibration: str
    value: float
    exceeded: bool  # strictly, by `low` where there is one, else by `value`
    low: float | None = None  # ends of the interval
    high: float | None = None


def parse_limit(text: str) -> Limit:
    """Read ``METRIC=LIMIT`` of ``--fail-above``, such as ``ece=0.05``.

    Raises ValueError saying what is wrong. A metric that is better for being higher has no such
    limit: a gate on the accuracy would pass whatever is bad and stop whatever is good.
    """
    metric = text.partition("=")[0]
    if metric in METRICS and METRICS[metric].better == "higher":
        allowed = ", ".join(name for name, known in METRICS.items() if known.better != "higher")
        raise ValueError(
            f"{metric} is better for being higher, so being above a limit is no failure (limits "
            f"are for {allowed}): use --baseline with --fail-regression {metric}=0.01"
        )
    return _parse_metric(text)


def parse_regression(text: str) -> Limit:
    """Read ``METRIC=CHANGE`` of ``--fail-regression``; raise ValueError saying what is wrong."""
    limit = _parse_metric(text)
    if METRICS[limit.metric].better == "neither":
        raise ValueError(f"{limit.metric} is neither better nor worse for being higher")
    return limit


def parse_least(text: str) -> Limit:
    """Read ``accuracy=LEAST`` of ``estimate --fail-below``; raise ValueError saying what is wrong.

    Nothing else is estimated without labels.
    """
    limit = _parse_metric(text)
    if limit.metric != "accuracy":
        raise ValueError(f"{limit.metric} is not estimated without labels: accuracy=0.8 is meant")
    return limit


def _parse_metric(text: str) -> Limit:
    """Read ``METRIC=NUMBER`` for any metric; raise ValueError saying what is wrong."""
    metric, equals, number = text.partition("=")
    if not equals or metric not in METRICS:
        raise ValueError(f"{text!r} is not METRIC=LIMIT with METRIC one of {', '.join(METRICS)}")
    try:
        limit = float(number)
    except ValueError:
        raise ValueError(f"{number!r} is not a number: limits are fractions, as ece=0.05") from None
    if not math.isfinite(limit):
        raise ValueError(f"the limit {number} is not a finite number")
    highest = METRICS[metric].highest
    if not 0 <= limit <= highest:
        hint = f"; did you mean {limit / 100:g}?" if highest < limit <= 100 else ""
        raise ValueError(f"{metric} lies between 0 and {highest:g}, not at {number}{hint}")
    return Limit(metric, limit)


def judge(
    metrics: Mapping[str, Metrics],
    limits: Sequence[Limit],
    given: Collection[str],
    intervals: Mapping[str, Mapping[str, Interval]],
) -> list[Verdict]:
    """Apply every limit to every calibration given, or to ``none`` where there is none.

    A metric with an interval, by calibration and metric, exceeds a limit with its lower end.

    Raises `CovcalError` if a metric has no value, which never passes for one below the limit.
    """
    verdicts = []
    for limit in limits:
        for name in judged_among(metrics, given):
            value = metrics[name].value(limit.metric)
            if value is None or not math.isfinite(value):
                raise CovcalError(f"{limit.metric} of {name} has no value, so it cannot be judged")
            low, high = intervals.get(name, {}).get(limit.metric, (None, None))
            exceeded = (value if low is None else low) > limit.limit
            verdicts.append(Verdict(limit.metric, limit.limit, name, value, exceeded, low, high))
    return verdicts


def judged_among(metrics: Mapping[str, Metrics], given: Collection[str]) -> list[str]:
    """Return the calibrations that gates judge: those given, or ``none`` where there is none."""
    return [name for name in metrics if name in given] or [NONE]


@dataclass(frozen=True)
class Change:
    """A metric of one calibration, then and now, as metrics.json has it."""

    metric: str
    limit: float  # by how much the metric may get worse
    calibration: str
    before: float
    value: float  # now
    worse_by: float  # negative where it got better
    exceeded: bool  # strictly more than the limit, by `low` where there is one
    baseline: str  # the calibration's name there
    low: float | None = None  # ends of the interval of `worse_by`
    high: float | None = None
    same_rows: bool = False  # so that the interval is that of a paired difference
