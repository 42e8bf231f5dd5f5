"""Gates: the limits of ``--fail-above``, ``--fail-below`` and ``--fail-regression``.

A gate fails only if the whole interval of a metric is beyond its limit. If the interval contains
the limit, the result is "not proved".

All gates of a command share one error probability (Bonferroni). With m gates, each interval has
the level 1 - (1 - level) / m.

`Baseline` is an earlier metrics.json. If the baseline was measured on the same rows, covcal also
measures the earlier temperature on these rows. The change of a metric is then a paired difference,
which has less noise.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from covcal_cli.errors import CovcalError, percent
from covcal_cli.evaluate.bins import Bins
from covcal_cli.evaluate.bootstrap import (
    GROUP_METRICS,
    PARTS,
    Interval,
    ece_interval,
    group_interval,
    intervals,
    stretched,
)
from covcal_cli.evaluate.metrics import METRICS, Metrics
from covcal_cli.evaluate.result import DECIDED, GATED, Change, Evaluation, MetricsRecord, Verdict
from covcal_cli.forecast import NONE
from covcal_cli.maths.odds import interval_of_counts
from covcal_cli.maths.softmax import Scaling
from covcal_cli.records import read_document


@dataclass(frozen=True)
class Limit:
    """A limit of a metric, or of the metric's change since the baseline."""

    metric: str
    limit: float  # A fraction.
    by: str | None = None  # Grouping: "class", "predicted" or a column; None for all rows.

    @property
    def least(self) -> bool:
        """Whether `limit` is a lower limit."""
        return GATED[self.metric].better == "higher"


def parse_limit(text: str, *, least: bool = False) -> Limit:
    """Parse a limit of ``--fail-above``, such as ``ece=0.05`` or ``ece:predicted=0.1``.

    If `least` is true, parse a limit of ``--fail-below``, such as ``accuracy=0.9``. Raises
    ValueError if the text is invalid.
    """
    limit = _parse_metric(text)
    if limit.least == least:
        return limit
    allowed = ", ".join(name for name in GATED if Limit(name, 0.0).least == least)
    if least:
        raise ValueError(
            f"a lower {limit.metric} is better: use --fail-above {text} (--fail-below takes "
            f"{allowed})"
        )
    raise ValueError(
        f"a higher {limit.metric} is better: use --fail-below {text} (--fail-above takes {allowed})"
    )


def parse_regression(text: str) -> Limit:
    """Parse ``METRIC=CHANGE`` of ``--fail-regression``. Raises ValueError for an invalid text."""
    limit = _parse_metric(text)
    if GATED[limit.metric].better == "neither":
        raise ValueError(
            f"{limit.metric} cannot be a gate, because a high value can be good or bad"
        )
    if limit.by is not None:
        raise ValueError(
            f"a change from the baseline is only measured over all rows: leave out :{limit.by}"
        )
    return limit


def _parse_metric(text: str) -> Limit:
    left, equals, number = text.rpartition("=")
    metric, colon, by = left.partition(":")
    if not equals or metric not in GATED or (colon and not by):
        raise ValueError(
            f"{text!r} must be METRIC=LIMIT, where METRIC is one of {', '.join(GATED)}"
        )
    if by and metric not in GROUP_METRICS:
        raise ValueError(
            f"{metric} has no interval for groups of rows: use one of {', '.join(GROUP_METRICS)}"
        )
    return Limit(metric, limit_from(number, metric, GATED[metric].limits.high), by or None)


def limit_from(number: str, metric: str, highest: float = 1.0) -> float:
    """Parse a limit as a number. Raises ValueError if the metric cannot have this value."""
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
        raise ValueError(f"{metric} must be between 0 and {highest:g}, not {number}{hint}")
    return limit


def gate_level(
    evaluation: Evaluation,
    limits: Sequence[Limit],
    regressions: Sequence[Limit],
    calibrations: Collection[str],
    *,
    times: int = 1,
) -> float:
    """Return the confidence level of each gate (Bonferroni). `times` is the number of labels."""
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
    """Test every limit for every calibration, or for the uncalibrated classifier (``none``).

    `level` is the confidence level of the intervals. If `level` is None, covcal compares the values
    without intervals. Raises `CovcalError` if a metric has no value.
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
    metrics = evaluation.metrics[name]
    value = metrics.value(limit.metric)
    if value is None or not math.isfinite(value):
        raise CovcalError(f"{limit.metric} of {name} has no value: leave out this gate")
    interval = None
    if level == evaluation.level:
        interval = evaluation.intervals[name].get(limit.metric)
    elif level is not None:
        resampling = replace(evaluation.resampling, level=level)
        interval = intervals(metrics, resampling, [limit.metric]).get(limit.metric)
    return verdict_on(limit, name, value, interval)


def _verdict_on_decision(evaluation: Evaluation, limit: Limit, level: float | None) -> Verdict:
    metrics = evaluation.decision
    if metrics is None:
        raise CovcalError(f"{limit.metric} needs a decision: pass --decide decide.json")
    interval = None if level is None else metrics.interval(limit.metric, level)
    verdict = verdict_on(limit, metrics.calibration, metrics.value(limit.metric), interval)
    return replace(verdict, n=metrics.rows(limit.metric))


def _verdicts_by_group(
    evaluation: Evaluation, limit: Limit, name: str, level: float | None
) -> Iterator[Verdict]:
    groups = _filled(evaluation, limit.by or "", name)
    resampling = evaluation.resampling.of_groups(len(groups))
    for group, bins in sorted(groups.items(), key=lambda item: -item[1].n):
        value = (
            bins.mean_accuracy() if limit.metric == "accuracy" else getattr(bins, limit.metric)()
        )
        interval = None
        if level is not None:
            interval = group_interval(limit.metric, bins, replace(resampling, level=level))
        verdict = verdict_on(limit, name, value, interval)
        yield replace(verdict, by=limit.by, group=group, n=bins.n)


def verdict_on(limit: Limit, name: str, value: float, interval: Interval | None) -> Verdict:
    """Compare a metric's interval with a limit, or its value if `interval` is None."""
    low, high = interval or (None, None)
    if limit.least:
        exceeded = (value if high is None else high) < limit.limit
    else:
        exceeded = (value if low is None else low) > limit.limit
    return Verdict(limit.metric, limit.limit, name, value, exceeded, low, high)


def _filled(evaluation: Evaluation, by: str, name: str) -> dict[str, Bins]:
    return {group: bins for group, bins in evaluation.counts[by][name].items() if bins.n}


def gated_names(metrics: Collection[str], calibrations: Collection[str]) -> list[str]:
    """Return the names of the calibrations that have gates; ``none`` without calibrations."""
    return [name for name in metrics if name in calibrations] or [NONE]


# Equal values of these metrics show that the rows are the same.
SAME_ROWS = ("accuracy", "mean_confidence", "ece", "nll", "brier")


@dataclass(frozen=True)
class Baseline:
    """An earlier metrics.json for comparison."""

    path: Path
    read: MetricsRecord

    def require_settings(self, **settings: Any) -> None:
        """Raise a CovcalError if the baseline was measured with other settings."""
        bins = len(self.read.edges) - 1
        earlier = {"split": self.read.split, "predictions": self.read.predictions, "bins": bins}
        for name, value in settings.items():
            if earlier[name] != value:
                raise CovcalError(
                    f"{self.path} was made with --{name} {earlier[name]}, not {value}: pass "
                    f"--{name} {earlier[name]}, or make a new baseline"
                )

    def note_on_rows(self, n: int) -> str | None:
        """Return a note if the baseline has another number of rows."""
        if self.read.n == n:
            return None
        return (
            f"{self.path} has {self.read.n} rows but this evaluation has {n}, so a metric may "
            "change without a change of the model"
        )

    def name_of(self, name: str, names: Sequence[str]) -> str:
        """Return the name that a calibration has in the baseline.

        `names` lists all current calibrations. If the baseline and `names` have only one
        calibration each, the two names may differ.
        """
        calibrations = [earlier for earlier in self.read.metrics if earlier != NONE]
        if name in self.read.metrics:
            return name
        if len(names) == len(calibrations) == 1:
            return calibrations[0]
        raise CovcalError(
            f"{self.path} has no calibration {name!r} (it has "
            f"{', '.join(self.read.metrics) or 'nothing'}): make a new baseline, or pass a "
            "name from the baseline: -c NAME=cal.json"
        )

    def earlier(self, names: Sequence[str]) -> dict[str, Scaling]:
        """Return the earlier scaling of each calibration that the baseline contains."""
        scalings = {}
        for name in names:
            then = self.name_of(name, names)
            forecaster = self.read.forecasters.get(then)
            temperature = self.read.temperatures.get(then, 0.0)
            aligned = self.read.aligned_temperatures.get(then)
            blends = forecaster == "blend"
            if forecaster is None or temperature <= 0 or blends != (aligned is not None):
                continue
            if aligned is None or aligned > 0:
                scalings[name] = Scaling(forecaster, temperature, aligned)
        return scalings

    def has_same_rows(self, metrics: Metrics, name: str) -> bool:
        """Return whether the baseline was measured on the current rows.

        `metrics` are the metrics of the earlier calibration on the current rows.
        """
        values = self.read.metrics[name]
        return self.read.n == metrics.n and all(
            (then := values.get(name)) is not None and math.isclose(then, value, rel_tol=1e-9)
            for name, value in ((name, metrics.value(name)) for name in SAME_ROWS)
            if value is not None
        )

    def interval(self, name: str, metric: str, now: Evaluation, level: float) -> Interval:
        """Return the interval of a metric in the baseline."""
        recorded = None if self.read.bootstrap is None else self.read.bootstrap.get("level")
        ends = self.read.intervals.get(name, {}).get(metric, ())
        value = self.read.metrics[name][metric]
        if metric == "accuracy" and value is not None:
            return interval_of_counts(round(value * self.read.n), self.read.n, level)
        if recorded == now.level and len(ends) == 2:
            middle = (ends[0] + ends[1]) / 2
            return stretched((ends[0], ends[1]), middle, now.level, level)
        bins = self.read.bins_of(name) if metric in PARTS else None
        if bins is None:
            raise CovcalError(
                f"{self.path} has no {percent(now.level, 0)} interval for {metric} of {name}: "
                "make a new baseline with --bootstrap 1000 and this --confidence, or pass "
                "--confidence 0"
            )
        return ece_interval(bins, replace(now.resampling, level=level), PARTS[metric])


def read_baseline(path: Path) -> Baseline:
    """Read an earlier metrics.json."""
    remedy = "write it with covcal evaluate -o"
    again = "write it again with covcal evaluate -o"
    return Baseline(path, read_document(MetricsRecord, path, remedy=remedy, again=again))


def compare(
    evaluation: Evaluation,
    baseline: Baseline,
    limits: Sequence[Limit],
    calibrations: Collection[str],
    *,
    level: float | None,
) -> list[Change]:
    """Return the change of every limited metric since the baseline, for each calibration.

    `level` is the confidence level of the intervals. If `level` is None, covcal compares the values
    without intervals.

    Raises `CovcalError` if a calibration or metric is missing.
    """
    names = gated_names(evaluation.metrics, calibrations)
    changes = []
    for limit in limits:
        metric = limit.metric
        for name in names:
            then = baseline.name_of(name, names)
            before = _value(baseline.read.metrics[then].get(metric), limit, then, baseline.path)
            now = _value(evaluation.metrics[name].value(metric), limit, name, "this evaluation")
            sign = -1 if METRICS[metric].better == "higher" else 1
            worse_by = sign * (now - before)
            change = Change(metric, limit.limit, name, before, now, worse_by, False, then)
            if level is not None and METRICS[metric].interval is not None:
                change = _with_interval(change, evaluation, baseline, sign, level)
            least = worse_by if change.low is None else change.low
            changes.append(replace(change, exceeded=least > limit.limit))
    return changes


def _with_interval(
    change: Change, evaluation: Evaluation, baseline: Baseline, sign: int, level: float
) -> Change:
    metric, name = change.metric, change.calibration
    since = evaluation.since.get(name)
    same = since is not None and baseline.has_same_rows(since.before, change.baseline)
    resampling = replace(evaluation.resampling, level=level)
    if since is not None and same:
        if change.worse_by == 0:
            return replace(change, low=0.0, high=0.0, same_rows=True)
        paired = since.differences(resampling).get(metric)
        if paired is not None:
            low, high = sorted((sign * paired.low, sign * paired.high))
            return replace(change, low=low, high=high, same_rows=True)
    earlier = baseline.interval(change.baseline, metric, evaluation, level)
    present = intervals(evaluation.metrics[name], resampling, [metric])[metric]
    low, high = _independent(present, change.value, earlier, change.before)
    ends = (low, high) if sign > 0 else (-high, -low)
    return replace(change, low=ends[0], high=ends[1], same_rows=same)


def _independent(now: Interval, value: float, then: Interval, before: float) -> Interval:
    """Return the interval of a difference of two independent samples (Zou & Donner 2008)."""
    value, before = min(max(value, now[0]), now[1]), min(max(before, then[0]), then[1])
    low = value - before - math.hypot(value - now[0], then[1] - before)
    high = value - before + math.hypot(now[1] - value, before - then[0])
    return low, high


def _value(value: Any, limit: Limit, name: str, where: Path | str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value):
        raise CovcalError(
            f"{limit.metric} of {name} has no value in {where}: leave out this gate, or make "
            "a new baseline"
        )
    return float(value)
