"""Gates: what ``--fail-above`` allows, and which calibration exceeds it."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from covcal_cli.errors import CovcalError
from covcal_cli.evaluate.metrics import METRICS, Metrics
from covcal_cli.formats.forecaster import NONE
from covcal_cli.records import Document, at, read_document


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


# Gates against an earlier metrics.json: what ``--fail-regression`` allows.


@dataclass(frozen=True)
class Change:
    """A metric of one calibration, then and now."""

    limit: Limit  # by how much the metric may get worse
    calibration: str
    before: float
    now: float
    worse_by: float  # negative where it got better
    exceeded: bool  # strictly more than the limit

    def to_json(self) -> dict[str, str | float | bool]:
        """Return everything under its public name."""
        return {
            "metric": self.limit.metric,
            "limit": self.limit.limit,
            "calibration": self.calibration,
            "before": self.before,
            "value": self.now,
            "worse_by": self.worse_by,
            "exceeded": self.exceeded,
        }


@dataclass(frozen=True)
class WrittenMetrics(Document):
    """What is read again of a metrics.json."""

    schema: ClassVar[str] = "covcal.metrics/1"

    metrics: Mapping[str, Mapping[str, Any]]  # of every calibration, by name
    n: int  # rows that were judged
    split: str
    predictions: str
    edges: tuple[float, ...] = field(metadata=at("bins.edges"))


@dataclass(frozen=True)
class Baseline:
    """An earlier metrics.json."""

    path: Path
    n: int  # rows that were judged
    settings: Mapping[str, Any]  # ``split``, ``predictions`` and ``bins``: the same now
    metrics: Mapping[str, Mapping[str, Any]]  # of every calibration, by name


def parse_regression(text: str) -> Limit:
    """Read ``METRIC=CHANGE``, such as ``ece=0.005``; raise ValueError saying what is wrong."""
    limit = parse_metric(text)
    if METRICS[limit.metric].better == "neither":
        raise ValueError(f"{limit.metric} is neither better nor worse for being higher")
    return limit


def read_baseline(path: Path) -> Baseline:
    """Read an earlier metrics.json.

    Raises
    ------
    CovcalError
        If it is missing, or is none.
    """
    remedy = "write it with covcal evaluate -o"
    read = read_document(
        WrittenMetrics, path, remedy=remedy, again="write it again with covcal evaluate -o"
    )
    settings = {"split": read.split, "predictions": read.predictions, "bins": len(read.edges) - 1}
    return Baseline(path, read.n, settings, read.metrics)


def other_rows(baseline: Baseline, n: int) -> str | None:
    """Return a note where the baseline judged another number of rows than the `n` of now."""
    if baseline.n == n:
        return None
    return (
        f"{baseline.path} judged {baseline.n} rows, this evaluation {n}: a change may come from "
        "the rows, not from the calibration"
    )


def require_comparable(baseline: Baseline, settings: Mapping[str, Any]) -> None:
    """Refuse a baseline whose split, predictions or bins are not those of now."""
    for name, value in settings.items():
        old = baseline.settings[name]
        if old != value:
            raise CovcalError(
                f"{baseline.path} was made with --{name} {old}, not {value}, so its metrics do not "
                f"compare: pass --{name} {old}, or make a new baseline"
            )


def compare(
    metrics: Mapping[str, Metrics],
    baseline: Baseline,
    limits: Sequence[Limit],
    given: Collection[str],
) -> list[Change]:
    """Compare every calibration given, or ``none`` where there is none, with its baseline.

    Raises `CovcalError` if a calibration or a metric is missing on one side, which never passes for
    no change.
    """
    judged = [name for name in metrics if name in given] or [NONE]
    changes = []
    for limit in limits:
        for name in judged:
            if name not in baseline.metrics:
                known = ", ".join(baseline.metrics) or "nothing"
                raise CovcalError(
                    f"{baseline.path} has no calibration {name!r} (it has {known}): make a new "
                    "baseline"
                )
            before = _value(baseline.metrics[name].get(limit.metric), limit, name, baseline.path)
            now = _value(metrics[name].value(limit.metric), limit, name, "this evaluation")
            higher = METRICS[limit.metric].better == "higher"
            worse_by = before - now if higher else now - before
            changes.append(Change(limit, name, before, now, worse_by, worse_by > limit.limit))
    return changes


def _value(value: Any, limit: Limit, name: str, where: Path | str) -> float:
    """Return a metric's value, refusing anything that is no finite number."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value):
        raise CovcalError(
            f"{limit.metric} of {name} has no value in {where}, so it cannot be compared: leave it "
            "out, or make a new baseline"
        )
    return float(value)
