"""Apply gates to an evaluation, and describe their results in sentences."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Literal

from covcal_cli.errors import CovcalError, in_points, printable
from covcal_cli.evaluate.bootstrap import LEVEL, RESAMPLES, Interval
from covcal_cli.evaluate.evaluate import EvaluateSettings, evaluate
from covcal_cli.evaluate.limits import (
    Baseline,
    Limit,
    apply_limits,
    compare,
    gate_level,
    read_baseline,
)
from covcal_cli.evaluate.metrics import MAIN, METRICS
from covcal_cli.evaluate.result import GATED, Change, Evaluation, Verdict, measured_name
from covcal_cli.forecast import NONE, read_named
from covcal_cli.formats.decision import input_of
from covcal_cli.formats.lineage import file_to_judge
from covcal_cli.maths.odds import quantile

POWER = 0.8  # Statistical power that the suggested number of rows gives.
_MOST = 20  # Suggest at most this multiple of the current number of rows.
Outcome = Literal["passed", "failed", "not proved", "skipped"]


@dataclass(frozen=True)
class Gates:
    """The gates of an evaluation.

    Raises `CovcalError` if a metric has no interval.
    """

    limits: Sequence[Limit] = ()
    allowed: Sequence[Limit] = ()  # limits of changes since the baseline
    baseline: Path | None = None
    confident: bool = True
    shared_by: int = 1  # number of labels among which the error probability is divided

    def __post_init__(self) -> None:
        for limit in (*self.limits, *self.allowed) if self.confident else ():
            if GATED[limit.metric].interval is None:
                metrics = ", ".join(name for name, entry in GATED.items() if entry.interval)
                raise CovcalError(
                    f"{limit.metric} has no interval, so chance alone could fail this gate: "
                    f"use a metric with an interval ({metrics}), or pass --confidence 0"
                )

    @property
    def any(self) -> bool:
        """Whether there is a gate."""
        return bool(self.limits or self.allowed)

    @property
    def metrics(self) -> set[str]:
        """The metrics of all gates."""
        return {limit.metric for limit in (*self.limits, *self.allowed)}


@dataclass(frozen=True)
class GateResult:
    """The result of one gate."""

    subject: str
    gate: str  # The condition, such as ``ece <= 0.05``.
    sentence: str  # The complete message of the gate.
    outcome: Outcome  # "not proved": too few rows; "skipped": no value.

    @property
    def failed(self) -> bool:
        """Whether the value is significantly beyond the limit."""
        return self.outcome == "failed"


@dataclass(frozen=True)
class Assessment:
    """An evaluation with the results of its gates."""

    evaluation: Evaluation
    verdicts: Sequence[Verdict] = ()
    changes: Sequence[Change] = ()  # Comparisons with the baseline.
    level: float | None = None  # Confidence level; None without intervals.

    @property
    def gates(self) -> list[GateResult]:
        """The results of all gates."""
        grouped: dict[tuple[str, float, str, str | None], list[Verdict]] = {}
        for verdict in self.verdicts:
            key = (verdict.metric, verdict.limit, verdict.calibration, verdict.by)
            grouped.setdefault(key, []).append(verdict)
        limits = [
            result_of_limit(
                verdicts[0],
                self.level,
                verdicts[0].n or self.evaluation.n,
                in_all_splits=self.evaluation.in_all_splits,
            )
            if by is None
            else _of_groups(verdicts, self.level)
            for (_, _, _, by), verdicts in grouped.items()
        ]
        n = self.evaluation.n
        return limits + [_of_change(change, self.level, n) for change in self.changes]


def assess(
    path: Path | None,
    documents: Sequence[Path],
    settings: EvaluateSettings,
    *,
    names: Sequence[str] = (),
    networks: Path | None = None,
    decision: Path | None = None,
    pooled: Sequence[Path] = (),
    gates: Gates = Gates(),
    check: Callable[[Sequence[Path]], None] = lambda _inputs: None,
    tell: Callable[[str], None] = lambda _note: None,
) -> Assessment:
    """Evaluate calibrations and apply the gates.

    - `path`: a features or adapted file; default: the file of the first calibration.
    - `documents`: calibrations; default: the calibration of the decision, or cal.json.
    - `settings`, `networks`, `decision`, `pooled`: see `evaluate`.
    - `check`: a function that checks all input files before the work starts.

    Raises the errors of `evaluate`, and `CovcalError` if the metric of a gate has no value. Raises
    `UnusedOptionError` if no calibration needs the given `networks`.
    """
    if decision is not None and not documents:
        documents = [input_of(decision, "calibration")]
    if path is None and not documents:
        documents = [Path("cal.json")]
    calibrations = read_named(documents, networks, names)
    file, notes = file_to_judge(path, [*calibrations.values()], purpose="evaluate", picked=False)
    if path is None:
        tell(f"measuring {documents[0]} on {file}")
    optional = [other for other in (gates.baseline, networks, decision) if other is not None]
    check([file, *pooled, *documents, *optional])
    baseline = None if gates.baseline is None else read_baseline(gates.baseline)
    if baseline is not None:
        baseline.require_settings(bins=settings.bins, predictions=settings.predictions)
    settings = replace(
        settings,
        metrics=tuple(
            name for name in METRICS if name in {*settings.metrics, *gates.metrics, *MAIN}
        ),
        grouped_by=tuple(limit.by for limit in gates.limits if limit.by is not None),
        resamples=settings.resamples or (RESAMPLES if gates.any and gates.confident else 0),
    )
    earlier = {} if baseline is None else baseline.earlier(list(calibrations) or [NONE])
    evaluation = evaluate(
        file,
        calibrations,
        settings,
        documents=documents,
        networks=networks,
        earlier=earlier,
        decision=decision,
        pooled=pooled,
    )
    if baseline is not None:
        baseline.require_settings(split=evaluation.split)
    level = (
        gate_level(evaluation, gates.limits, gates.allowed, calibrations, times=gates.shared_by)
        if gates.confident
        else None
    )
    assessment = Assessment(
        evaluation,
        apply_limits(evaluation, gates.limits, calibrations, level=level),
        ()
        if baseline is None
        else compare(evaluation, baseline, gates.allowed, calibrations, level=level),
        level,
    )
    for note in (*notes, *_notes(evaluation, baseline)):
        tell(note)
    return assessment


def _notes(evaluation: Evaluation, baseline: Baseline | None) -> Iterator[str]:
    yield from evaluation.notes
    other_rows = None if baseline is None else baseline.note_on_rows(evaluation.n)
    if other_rows is not None:
        yield other_rows
    if evaluation.unlabelled:
        yield f"{evaluation.unlabelled} rows without a label are left out"
    if evaluation.left_out:
        yield (f"{evaluation.left_out} rows are left out, because a calibration was fitted to them")


_WORDS: Mapping[Outcome, str] = {
    "passed": "passed by",
    "failed": "FAILED by",
    "not proved": "not proved by",
}


def result_of_limit(
    verdict: Verdict, level: float | None, n: int, *, in_all_splits: int = 0
) -> GateResult:
    """Return the result of a gate on `n` rows."""
    gate = _gate(verdict)
    numbers = f"{_numbers(verdict, level)}, limit {_shown(verdict.metric, verdict.limit)}"
    outcome: Outcome = "failed" if verdict.exceeded else "passed"
    if verdict.is_open and verdict.low is not None and verdict.high is not None:
        outcome = "not proved"
        interval = (verdict.low, verdict.high)
        middle = _middle(verdict.metric, verdict.value, interval, level or LEVEL)
        numbers += f"; {_too_few(n, middle, interval, verdict.limit)}"
        if in_all_splits:
            numbers += f"; to measure all {in_all_splits:,} labelled rows, pass --split all"
        least = GATED[verdict.metric].better == "higher"
        sign = -1 if least else 1
        detected = verdict.limit + sign * detectable(interval, level or 0.0)
        if 0 < detected < GATED[verdict.metric].limits.high:
            label, lower_or_higher = _label(verdict.metric), "lower" if least else "higher"
            numbers += (
                f". With {n} rows, the gate detects a true {label} of "
                f"{_shown(verdict.metric, detected)} or {lower_or_higher} in 4 of 5 cases"
            )
    return _result(gate, outcome, verdict.calibration, numbers)


def _of_groups(verdicts: Sequence[Verdict], level: float | None) -> GateResult:
    first = verdicts[0]
    gate = f"{_gate(first)} by {printable(first.by or '')}"
    failed = [verdict for verdict in verdicts if verdict.exceeded]
    still_open = [verdict for verdict in verdicts if verdict.is_open]
    limit = f"limit {_shown(first.metric, first.limit)}"
    if failed:
        worst = max(failed, key=_excess)
        group, counted = printable(worst.group or ""), _counted(len(failed), len(verdicts))
        numbers = f"{group}: {_numbers(worst, level)} on {worst.n} rows, {limit}; {counted} failed"
        if still_open:
            numbers += f", and {len(still_open)} did not have enough rows to decide"
        return _result(gate, "failed", first.calibration, numbers)
    if still_open:
        fewest = min(verdict.n or 0 for verdict in still_open)
        counted = _counted(len(still_open), len(verdicts))
        numbers = (
            f"{limit}; {counted} have too few rows to decide (the smallest group has {fewest} rows)"
        )
        return _result(gate, "not proved", first.calibration, numbers)
    numbers = f"{limit}; {_counted(len(verdicts), len(verdicts))} are within the limit"
    return _result(gate, "passed", first.calibration, numbers)


def _of_change(change: Change, level: float | None, n: int) -> GateResult:
    gate = f"{change.metric} worse by <= {change.limit:g}"
    before, now = (_shown(change.metric, value) for value in (change.before, change.value))
    as_text = functools.partial(_difference, change.metric, unlike=change.limit)
    direction = "worse" if change.worse_by > 0 else "better"
    by = "unchanged" if change.worse_by == 0 else f"{direction} by {as_text(abs(change.worse_by))}"
    numbers = f"{_label(change.metric)} {before} -> {now}, {by}"
    outcome: Outcome = "failed" if change.exceeded else "passed"
    if change.low is not None and change.high is not None:
        rows = "the same rows" if change.same_rows else "other rows"
        low = as_text(change.low).partition(" ")[0]
        numbers += f" ({low} to {as_text(change.high)}, {rows})"
    numbers += f", allowed {_difference(change.metric, change.limit)}"
    if change.is_open and change.low is not None and change.high is not None:
        outcome = "not proved"
        detected = change.limit + detectable((change.low, change.high), level or 0.0)
        numbers += (
            f"; with {n} rows, the gate detects a true change of {as_text(detected)} in 4 of "
            "5 cases"
        )
    if change.baseline != change.calibration:
        numbers += f"; in the baseline, its name is {printable(change.baseline)}"
    return _result(gate, outcome, change.calibration, numbers)


def _excess(verdict: Verdict) -> float:
    if GATED[verdict.metric].better == "higher":
        return verdict.limit - (verdict.value if verdict.high is None else verdict.high)
    return (verdict.value if verdict.low is None else verdict.low) - verdict.limit


def _result(gate: str, outcome: Outcome, calibration: str, numbers: str) -> GateResult:
    name = printable(measured_name(calibration))
    what = f"{_WORDS[outcome]} {name}"
    if outcome == "not proved":
        what += " (this is not a failure)"
    return GateResult(name, gate, f"gate {gate} {what}: {numbers}", outcome)


def _gate(verdict: Verdict) -> str:
    least = GATED[verdict.metric].better == "higher"
    return f"{verdict.metric} {'>=' if least else '<='} {verdict.limit:g}"


def _numbers(verdict: Verdict, level: float | None) -> str:
    as_text = functools.partial(_shown, verdict.metric, unlike=verdict.limit)
    numbers = f"{_label(verdict.metric)} {as_text(verdict.value)}"
    if verdict.low is None or verdict.high is None or level is None:
        return numbers
    low, high = as_text(verdict.low).removesuffix(" %"), as_text(verdict.high)
    return f"{numbers} ({100 * level:.3g} % interval {low} to {high})"


def _middle(metric: str, value: float, interval: Interval, level: float) -> float:
    if GATED[metric].interval != "gaps":
        return value
    share = quantile(LEVEL) / quantile(level)
    low, high = (value + share * (end - value) for end in interval)
    return (max(0.0, low if interval[0] > 0 else 0.0) + high) / 2


def _too_few(n: int, middle: float, interval: Interval, limit: float) -> str:
    rows = rows_to_decide(n, middle, interval, limit)
    if rows is None:
        return f"{n} rows are too few; even {_MOST} times as many rows may be too few"
    return f"{n} rows are too few; about {rows:,} would be enough"


def _counted(part: int, whole: int) -> str:
    return f"all {whole} groups" if part == whole else f"{part} of {whole} groups"


def _label(metric: str) -> str:
    display = GATED[metric].screen
    return metric if display is None else display.label


def _shown(metric: str, value: float, *, unlike: float | None = None) -> str:
    display = GATED[metric].screen
    percent = display is None or display.percent
    for digits in range(1 if percent else 4, 7):
        text = f"{100 * value:.{digits}f} %" if percent else f"{value:.{digits}f}"
        other = None if unlike is None else unlike * (100 if percent else 1)
        if other is None or value == unlike or float(text.split()[0]) != round(other, digits):
            break
    return text.replace(".0 %", " %")


def _difference(metric: str, value: float, *, unlike: float | None = None) -> str:
    text = _shown(metric, value, unlike=unlike)
    return in_points(text.removesuffix(" %")) if text.endswith(" %") else text


def rows_to_decide(n: int, value: float, interval: Interval, limit: float) -> int | None:
    """Return the approximate number of rows that a gate needs for a power of 80 %.

    `value` is the assumed true value. Returns None if more than 20 times `n` rows would be needed.
    """
    reach, distance = (interval[1] - interval[0]) / 2, abs(value - limit)
    if distance == 0:
        return None
    times = (reach * (1 + NormalDist().inv_cdf(POWER) / quantile(0.95)) / distance) ** 2
    return None if times > _MOST else _rounded(n * max(1.0, times))


def detectable(interval: Interval, level: float) -> float:
    """Return the smallest distance from the limit that a gate detects with a power of 80 %."""
    error = (interval[1] - interval[0]) / 2 / quantile(level)
    return error * (quantile(level) + NormalDist().inv_cdf(POWER))


def _rounded(rows: float) -> int:
    unit = int(10 ** max(0, math.floor(math.log10(rows)) - 1))
    return math.ceil(rows / unit) * unit
