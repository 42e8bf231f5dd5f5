"""Gates: what ``--fail-above`` allows, and which calibration exceeds it."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from covcal_cli.errors import CovcalError
from covcal_cli.formats.forecaster import NONE
from covcal_cli.metrics.metrics import METRICS, Metrics


@dataclass(frozen=True)
class Limit:
    """A gate: `metric` may not exceed `limit` (a fraction)."""

    metric: str
    limit: float


@dataclass(frozen=True)
class Verdict:
    """A gate applied to one calibration; exceeded means strictly greater."""

    limit: Limit
    calibration: str
    value: float
    exceeded: bool


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
    return parse_metric(text)


def parse_metric(text: str) -> Limit:
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
    metrics: Mapping[str, Metrics], limits: Sequence[Limit], given: Collection[str]
) -> list[Verdict]:
    """Apply every limit to every calibration given, or to ``none`` where there is none.

    Raises `CovcalError` if a metric has no value, which never passes for one below the limit.
    """
    judged = [name for name in metrics if name in given] or [NONE]
    verdicts = []
    for limit in limits:
        for name in judged:
            value = metrics[name].value(limit.metric)
            if value is None or not math.isfinite(value):
                raise CovcalError(f"{limit.metric} of {name} has no value, so it cannot be judged")
            verdicts.append(Verdict(limit, name, value, value > limit.limit))
    return verdicts
