"""Gates against an earlier metrics.json: what ``--fail-regression`` allows."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from covcal_cli.errors import CovcalError
from covcal_cli.evaluate.limits import Limit, parse_metric
from covcal_cli.formats.forecaster import NONE
from covcal_cli.metrics.metrics import METRICS, Metrics
from covcal_cli.records import Document, at, read_document


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
