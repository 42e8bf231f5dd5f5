"""Gates: the limits of ``--fail-above``, ``--fail-below`` and ``--fail-regression``.

A metric of a sample varies by chance. So a gate fails only if the whole interval of the metric is
beyond the limit: the lower end for an error, the upper end for a metric where higher is better. A
gate that does not fail need not be good: if the interval contains the limit, the rows cannot
decide, and the gate is not proved.

All gates of a job share one error rate (Bonferroni): with m gates, each has an interval of level 1
- (1 - level) / m. So a job without any fault fails as rarely as a single gate.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from covcal_cli.errors import CovcalError
from covcal_cli.evaluate.bins import Bins
from covcal_cli.evaluate.bootstrap import (
    GROUP_METRICS,
    Interval,
    group_interval,
    group_resamples,
    intervals,
)
from covcal_cli.evaluate.result import DECIDED, GATED, Evaluation, Verdict
from covcal_cli.forecast.forecaster import NONE


@dataclass(frozen=True)
class Limit:
    """A gate: the largest or smallest allowed value of a metric, or the largest allowed change.

    If higher is better, `limit` is the smallest allowed value, otherwise the largest.
    """

    metric: str
    limit: float  # a fraction
    by: str | None = None  # a grouping of rows; the limit applies to each group

    @property
    def least(self) -> bool:
        """Whether `limit` is the smallest allowed value."""
        return GATED[self.metric].better == "higher"


def parse_limit(text: str) -> Limit:
    """Read ``METRIC=LIMIT`` of ``--fail-above``, such as ``ece=0.05`` or ``ece:predicted=0.1``.

    Raises ValueError with the reason. Metrics where higher is better are refused: such a gate on
    the accuracy would pass bad classifiers and stop good ones.
    """
    limit = _parse_metric(text)
    if limit.least:
        allowed = ", ".join(name for name, metric in GATED.items() if metric.better != "higher")
        raise ValueError(
            f"higher {limit.metric} is better: use --fail-below {text}, or --baseline with "
            f"--fail-regression {limit.metric}=0.01 (--fail-above takes {allowed})"
        )
    return limit


def parse_least(text: str) -> Limit:
    """Read ``METRIC=LIMIT`` of ``--fail-below``, such as ``accuracy=0.9``.

    Raises ValueError with the reason. Only metrics where higher is better are accepted.
    """
    limit = _parse_metric(text)
    if not limit.least:
        allowed = ", ".join(name for name, metric in GATED.items() if metric.better == "higher")
        raise ValueError(
            f"higher {limit.metric} is not better: use --fail-above {text} "
            f"(--fail-below takes {allowed})"
        )
    return limit


def parse_regression(text: str) -> Limit:
    """Read ``METRIC=CHANGE`` of ``--fail-regression``; raise ValueError with the reason."""
    limit = _parse_metric(text)
    if GATED[limit.metric].better == "neither":
        raise ValueError(f"neither a higher nor a lower {limit.metric} is better")
    if limit.by is not None:
        raise ValueError(f"regressions are not measured by group: leave out :{limit.by}")
    return limit


def _parse_metric(text: str) -> Limit:
    """Read ``METRIC=NUMBER`` or ``METRIC:GROUPING=NUMBER``; raise ValueError with the reason."""
    left, equals, number = text.rpartition("=")
    metric, colon, by = left.partition(":")
    if not equals or metric not in GATED or (colon and not by):
        raise ValueError(f"{text!r} is not METRIC=LIMIT with METRIC one of {', '.join(GATED)}")
    if by and metric not in GROUP_METRICS:
        raise ValueError(
            f"{metric} has no interval for groups of rows: groups have {', '.join(GROUP_METRICS)}"
        )
    return Limit(metric, limit_from(number, metric, GATED[metric].highest), by or None)


def limit_from(number: str, metric: str, highest: float = 1.0) -> float:
    """Return the limit of a metric from its text; raise ValueError with the reason."""
    try:
        limit = float(number)
    except ValueError:
        raise ValueError(
            f"{number!r} is not a number: limits are fractions, such as 0.05"
        ) from None
    if not math.isfinite(limit):
        raise ValueError(f"the limit {number} is not a finite number")
    if not 0 <= limit <= highest:
        hint = f"; did you mean {limit / 100:g}?" if highest < limit <= 100 else ""
        raise ValueError(f"{metric} lies between 0 and {highest:g}, not at {number}{hint}")
    return limit


def gate_level(
    evaluation: Evaluation,
    limits: Sequence[Limit],
    regressions: Sequence[Limit],
    calibrations: Collection[str],
    *,
    times: int = 1,
) -> float:
    """Return the level of every gate's interval, so that all gates together keep the level.

    `times` is the number of evaluations with as many gates each.
    """
    names = gated_names(evaluation.metrics, calibrations)
    count = len(names) * len(regressions)
    for limit in limits:
        for name in names[:1] if limit.metric in DECIDED else names:
            count += 1 if limit.by is None else len(_filled(evaluation, limit.by, name))
    return 1 - (1 - evaluation.level) / max(1, count * times)


def apply_limits(
    evaluation: Evaluation,
    limits: Sequence[Limit],
    calibrations: Collection[str],
    *,
    level: float | None,
) -> list[Verdict]:
    """Apply every limit to every calibration, or to ``none`` if there is no calibration.

    With a `level`, intervals of that level decide; without, the plain values decide.

    Raises `CovcalError` if a metric has no value, because no gate may pass then.
    """
    decided = [limit for limit in limits if limit.metric in DECIDED]
    return [_verdict_on_decision(evaluation, limit, level) for limit in decided] + [
        verdict
        for limit in limits
        if limit not in decided
        for name in gated_names(evaluation.metrics, calibrations)
        for verdict in (
            [_verdict_on_all(evaluation, limit, name, level)]
            if limit.by is None
            else _verdicts_by_group(evaluation, limit, name, level)
        )
    ]


def _verdict_on_all(
    evaluation: Evaluation, limit: Limit, name: str, level: float | None
) -> Verdict:
    """Apply a limit to all rows together."""
    metrics = evaluation.metrics[name]
    value = metrics.value(limit.metric)
    if value is None or not math.isfinite(value):
        raise CovcalError(f"{limit.metric} of {name} has no value, so no gate can use it")
    interval = None
    if level == evaluation.level:
        interval = evaluation.intervals[name].get(limit.metric)
    elif level is not None:
        interval = intervals(
            metrics,
            resamples=evaluation.resamples,
            seed=evaluation.seed,
            level=level,
            names=[limit.metric],
        ).get(limit.metric)
    return verdict_on(limit, name, value, interval)


def _verdict_on_decision(evaluation: Evaluation, limit: Limit, level: float | None) -> Verdict:
    """Apply a limit to the decision, whose calibration is the only one that it concerns."""
    metrics = evaluation.decision
    if metrics is None:
        raise CovcalError(f"{limit.metric} is measured on a decision: pass --decide decide.json")
    interval = None if level is None else metrics.interval(limit.metric, level)
    verdict = verdict_on(limit, metrics.calibration, metrics.value(limit.metric), interval)
    return replace(verdict, n=metrics.rows(limit.metric))


def _verdicts_by_group(
    evaluation: Evaluation, limit: Limit, name: str, level: float | None
) -> Iterator[Verdict]:
    """Apply a limit to every group of rows, the largest groups first."""
    groups = _filled(evaluation, limit.by or "", name)
    resamples = group_resamples(evaluation.resamples, len(groups))
    for group, bins in sorted(groups.items(), key=lambda item: -item[1].n):
        value = (
            bins.mean_accuracy() if limit.metric == "accuracy" else getattr(bins, limit.metric)()
        )
        interval = None
        if level is not None:
            interval = group_interval(
                limit.metric, bins, resamples=resamples, seed=evaluation.seed, level=level
            )
        verdict = verdict_on(limit, name, value, interval)
        yield replace(verdict, by=limit.by, group=group, n=bins.n)


def verdict_on(limit: Limit, name: str, value: float, interval: Interval | None) -> Verdict:
    """Return the verdict of a limit on a value of the calibration `name`."""
    low, high = interval or (None, None)
    if limit.least:
        exceeded = (value if high is None else high) < limit.limit
    else:
        exceeded = (value if low is None else low) > limit.limit
    return Verdict(limit.metric, limit.limit, name, value, exceeded, low, high)


def _filled(evaluation: Evaluation, by: str, name: str) -> dict[str, Bins]:
    """Return the groups that have rows."""
    return {group: bins for group, bins in evaluation.counts[by][name].items() if bins.n}


def gated_names(metrics: Collection[str], calibrations: Collection[str]) -> list[str]:
    """Return the calibrations that gates apply to: all given ones, else ``none``."""
    return [name for name in metrics if name in calibrations] or [NONE]
