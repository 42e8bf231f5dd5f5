"""Gates: the limits of ``--fail-above`` and ``--fail-regression``, and what exceeds them."""

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
    exceeded: bool  # strictly greater


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
            exceeded = value > limit.limit
            verdicts.append(Verdict(limit.metric, limit.limit, name, value, exceeded))
    return verdicts


# Gates against an earlier metrics.json.


@dataclass(frozen=True)
class Change:
    """A metric of one calibration, then and now, as metrics.json has it."""

    metric: str
    limit: float  # by how much the metric may get worse
    calibration: str
    before: float
    value: float  # now
    worse_by: float  # negative where it got better
    exceeded: bool  # strictly more than the limit


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
    read: WrittenMetrics

    def require_settings(self, **settings: Any) -> None:
        """Refuse other ``split``, ``predictions`` or ``bins`` than the baseline's."""
        bins = len(self.read.edges) - 1
        known = {"split": self.read.split, "predictions": self.read.predictions, "bins": bins}
        for name, value in settings.items():
            if known[name] != value:
                raise CovcalError(
                    f"{self.path} was made with --{name} {known[name]}, not {value}, so its "
                    f"metrics do not compare: pass --{name} {known[name]}, or make a new baseline"
                )

    def note_on_rows(self, n: int) -> str | None:
        """Return a note where the baseline judged another number of rows than the `n` of now."""
        if self.read.n == n:
            return None
        return (
            f"{self.path} judged {self.read.n} rows, this evaluation {n}: a change may come from "
            "the rows, not from the calibration"
        )


def read_baseline(path: Path) -> Baseline:
    """Read an earlier metrics.json; raise `CovcalError` if it is missing, or is none."""
    remedy = "write it with covcal evaluate -o"
    again = "write it again with covcal evaluate -o"
    return Baseline(path, read_document(WrittenMetrics, path, remedy=remedy, again=again))


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
            if name not in baseline.read.metrics:
                known = ", ".join(baseline.read.metrics) or "nothing"
                raise CovcalError(
                    f"{baseline.path} has no calibration {name!r} (it has {known}): make a new "
                    "baseline"
                )
            then = baseline.read.metrics[name].get(limit.metric)
            before = _value(then, limit, name, baseline.path)
            now = _value(metrics[name].value(limit.metric), limit, name, "this evaluation")
            higher = METRICS[limit.metric].better == "higher"
            worse_by = before - now if higher else now - before
            exceeded = worse_by > limit.limit
            changes.append(Change(limit.metric, limit.limit, name, before, now, worse_by, exceeded))
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
