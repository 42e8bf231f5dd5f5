"""Gates: limits of ``--fail-above``, ``--fail-below`` and ``--fail-regression``, and what fails.

A metric of a sample strays by chance, so a gate judges the end of its interval that is kindest to
the calibration: the lower end of an error, or of how much worse a metric has become, the upper one
of what is better for being higher. What fails even so is beyond chance; what a gate lets pass need
not be good, and its sentence says so.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from covcal_cli.errors import CovcalError
from covcal_cli.evaluate.bootstrap import Interval
from covcal_cli.evaluate.metrics import METRICS, Metrics
from covcal_cli.forecast.forecaster import NONE


@dataclass(frozen=True)
class Limit:
    """A gate: `metric` may not exceed `limit`, or may not be worse than it was by more.

    One that is better for being higher may not be below it instead.
    """

    metric: str
    limit: float  # a fraction

    @property
    def least(self) -> bool:
        """Whether it is the least that the metric may be."""
        return METRICS[self.metric].better == "higher"


@dataclass(frozen=True)
class Verdict:
    """A limit applied to one calibration, as metrics.json has it."""

    metric: str
    limit: float
    calibration: str
    value: float
    # Strictly, or missed: by the end of the interval that is nearest to it, else by `value`.
    exceeded: bool
    low: float | None = None  # ends of the interval
    high: float | None = None


def parse_limit(text: str) -> Limit:
    """Read ``METRIC=LIMIT`` of ``--fail-above``, such as ``ece=0.05``.

    Raises ValueError saying what is wrong. A metric that is better for being higher has no such
    limit: a gate on the accuracy would pass whatever is bad and stop whatever is good.
    """
    limit = _parse_metric(text)
    if limit.least:
        allowed = ", ".join(name for name, known in METRICS.items() if known.better != "higher")
        raise ValueError(
            f"{limit.metric} is better for being higher, so being above a limit is no failure "
            f"(limits are for {allowed}): use --fail-below {text}, or --baseline with "
            f"--fail-regression {limit.metric}=0.01"
        )
    return limit


def parse_least(text: str) -> Limit:
    """Read ``METRIC=LIMIT`` of ``--fail-below``, such as ``accuracy=0.9``.

    Raises ValueError saying what is wrong; only a metric that is better for being higher has such a
    limit.
    """
    limit = _parse_metric(text)
    if not limit.least:
        allowed = ", ".join(name for name, known in METRICS.items() if known.better == "higher")
        raise ValueError(
            f"{limit.metric} is not better for being higher, so being below a limit is no failure "
            f"(such limits are for {allowed}): use --fail-above {text}"
        )
    return limit


def parse_regression(text: str) -> Limit:
    """Read ``METRIC=CHANGE`` of ``--fail-regression``; raise ValueError saying what is wrong."""
    limit = _parse_metric(text)
    if METRICS[limit.metric].better == "neither":
        raise ValueError(f"{limit.metric} is neither better nor worse for being higher")
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


def apply_limits(
    metrics: Mapping[str, Metrics],
    limits: Sequence[Limit],
    given: Collection[str],
    intervals: Mapping[str, Mapping[str, Interval]],
) -> list[Verdict]:
    """Apply every limit to every calibration given, or to ``none`` where there is none.

    A metric with an interval, by calibration and metric, exceeds a limit with its lower end, and
    misses the least that it may be with its upper one.

    Raises `CovcalError` if a metric has no value, which never passes for one that keeps the limit.
    """
    verdicts = []
    for limit in limits:
        for name in gated_names(metrics, given):
            value = metrics[name].value(limit.metric)
            if value is None or not math.isfinite(value):
                raise CovcalError(f"{limit.metric} of {name} has no value, so it cannot be judged")
            low, high = intervals.get(name, {}).get(limit.metric, (None, None))
            if limit.least:
                exceeded = (value if high is None else high) < limit.limit
            else:
                exceeded = (value if low is None else low) > limit.limit
            verdicts.append(Verdict(limit.metric, limit.limit, name, value, exceeded, low, high))
    return verdicts


def gated_names(metrics: Mapping[str, Metrics], given: Collection[str]) -> list[str]:
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
