"""Gates on an evaluation, and a sentence for the result of each gate."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from covcal_cli.errors import CovcalError, printable
from covcal_cli.evaluate.baseline import Baseline, compare, read_baseline
from covcal_cli.evaluate.evaluate import EvaluateSettings, evaluate
from covcal_cli.evaluate.limits import Change, Limit, Verdict, apply_limits
from covcal_cli.evaluate.metrics import METRICS
from covcal_cli.evaluate.result import Evaluation
from covcal_cli.forecast.forecaster import NONE, read_named
from covcal_cli.formats.lineage import file_to_judge

RESAMPLES = 1000  # behind the intervals that gates judge, unless others are asked for
Outcome = Literal["passed", "failed", "not proved", "skipped"]


@dataclass(frozen=True)
class Gates:
    """What an evaluation is held to; `confident` gates judge intervals, of the settings' level.

    Raises
    ------
    CovcalError
        If a `confident` gate is on a metric without an interval, which chance alone would exceed.
    """

    limits: Sequence[Limit] = ()  # that every metric has to keep
    allowed: Sequence[Limit] = ()  # by how much a metric may be worse than in the baseline
    baseline: Path | None = None  # an earlier metrics.json
    confident: bool = True

    def __post_init__(self) -> None:
        for limit in (*self.limits, *self.allowed) if self.confident else ():
            if METRICS[limit.metric].interval is None:
                known = ", ".join(name for name, one in METRICS.items() if one.interval is not None)
                raise CovcalError(
                    f"{limit.metric} has no interval, so chance alone could fail a gate on it: "
                    f"gate one that has ({known}), or pass --confidence 0 to judge values as found"
                )

    @property
    def any(self) -> bool:
        """Whether there is a gate."""
        return bool(self.limits or self.allowed)


@dataclass(frozen=True)
class GateResult:
    """The result of one gate on one calibration, estimate or period."""

    subject: str  # the name of the calibration, estimate or period
    gate: str  # such as ``ece <= 0.05``
    sentence: str  # the outcome and the numbers behind it
    outcome: Outcome  # "not proved": the rows are too few to decide; "skipped": nothing to judge by

    @property
    def failed(self) -> bool:
        """Whether the limit is exceeded or missed, beyond chance."""
        return self.outcome == "failed"


@dataclass(frozen=True)
class Assessment:
    """An evaluation with the verdicts of its gates."""

    evaluation: Evaluation
    verdicts: Sequence[Verdict] = ()  # of the limits
    changes: Sequence[Change] = ()  # since the baseline

    @property
    def gates(self) -> list[GateResult]:
        """The result of every gate, limits first."""
        level, n = self.evaluation.level, self.evaluation.n
        limits = [_of_limit(verdict, level, n) for verdict in self.verdicts]
        return limits + [_of_change(change, level) for change in self.changes]


def assess(
    path: Path | None,
    documents: Sequence[Path],
    settings: EvaluateSettings,
    *,
    names: Sequence[str] = (),
    networks: Path | None = None,
    gates: Gates = Gates(),
    check: Callable[[Sequence[Path]], None] = lambda _inputs: None,
    tell: Callable[[str], None] = lambda _note: None,
) -> Assessment:
    """Evaluate calibrations and apply the gates.

    Parameters
    ----------
    path : Path or None
        A features or adapted file; None: the one that the first calibration was fitted on.
    documents : sequence of Path
        Calibrations; cal.json if neither `path` nor any calibration is given.
    settings, networks
        As in `evaluate`. Gates that use intervals resample even if the settings do not ask for it.
    names : sequence of str
        Names for the calibrations; `read_named` chooses where a name is empty or none is given.
    check : function
        Called with all input files before the work starts, so that outputs can be refused.
    tell : function
        Called with every note, as soon as it is known.

    Raises
    ------
    CovcalError
        As in `evaluate`, and if a metric or the baseline has no value for a gate.
    UnusedOptionError
        If `networks` are given and no calibration needs any.
    """
    if path is None and not documents:
        documents = [Path("cal.json")]
    calibrations = read_named(documents, networks, names)
    file, notes = file_to_judge(
        path,
        [*calibrations.values()],
        documents,
        purpose="evaluate",
        picked=False,  # a calibration beside the file counts only if the user names it
    )
    if path is None:
        tell(f"judging {documents[0]} on {file}")
    optional = [other for other in (gates.baseline, networks) if other is not None]
    check([file, *documents, *optional])
    baseline = None if gates.baseline is None else read_baseline(gates.baseline)
    if baseline is not None:
        baseline.require_settings(
            split=settings.split, bins=settings.bins, predictions=settings.predictions
        )
    if gates.any and gates.confident and settings.resamples == 0:
        settings = replace(settings, resamples=RESAMPLES)
    earlier = {} if baseline is None else baseline.earlier(list(calibrations) or [NONE])
    evaluation = evaluate(
        file, calibrations, settings, documents=documents, networks=networks, earlier=earlier
    )
    intervals = evaluation.intervals if gates.confident else {}
    assessment = Assessment(
        evaluation,
        apply_limits(evaluation.metrics, gates.limits, calibrations, intervals),
        ()
        if baseline is None
        else compare(evaluation, baseline, gates.allowed, calibrations, confident=gates.confident),
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
        yield f"{evaluation.left_out} rows that a temperature was fitted to are left out"


# The sentence of each gate.

_WORDS: Mapping[Outcome, str] = {
    "passed": "passed by",
    "failed": "FAILED by",
    "not proved": "not proved by",
}


def _of_limit(verdict: Verdict, level: float, n: int) -> GateResult:
    """Return the result of a limit; it is not proved where the interval contains the limit."""
    least = Limit(verdict.metric, verdict.limit).least
    gate = f"{verdict.metric} {'>=' if least else '<='} {verdict.limit:g}"
    shown = functools.partial(_shown, verdict.metric, unlike=verdict.limit)
    numbers = f"{_label(verdict.metric)} {shown(verdict.value)}"
    outcome: Outcome = "failed" if verdict.exceeded else "passed"
    if verdict.low is not None and verdict.high is not None:
        numbers += f" ({_percent(level)} interval {shown(verdict.low)} to {shown(verdict.high)})"
        worst = verdict.low if least else -verdict.high
        if not verdict.exceeded and worst < (verdict.limit if least else -verdict.limit):
            outcome = "not proved"
    numbers += f", limit {_shown(verdict.metric, verdict.limit)}"
    if outcome == "not proved":
        numbers += f"; {n} rows are too few"
    name = printable(verdict.calibration)
    return GateResult(name, gate, f"gate {gate} {_WORDS[outcome]} {name}: {numbers}", outcome)


def _of_change(change: Change, level: float) -> GateResult:
    """Return the result of a regression gate."""
    gate = f"{change.metric} worse by <= {change.limit:g}"
    shown = functools.partial(_shown, change.metric, unlike=change.limit)
    direction = "worse" if change.worse_by > 0 else "better"
    by = "unchanged" if change.worse_by == 0 else f"{direction} by {shown(abs(change.worse_by))}"
    numbers = f"{_label(change.metric)} {shown(change.before)} -> {shown(change.value)}, {by}"
    outcome: Outcome = "failed" if change.exceeded else "passed"
    if change.low is not None and change.high is not None:
        rows = "the same rows" if change.same_rows else "other rows"
        numbers += (
            f" ({_percent(level)} interval {shown(change.low)} to {shown(change.high)}, {rows})"
        )
        if not change.exceeded and change.high > change.limit:
            outcome = "not proved"
    numbers += f", allowed {_shown(change.metric, change.limit)}"
    if change.baseline != change.calibration:
        numbers += f"; called {printable(change.baseline)} in the baseline"
    name = printable(change.calibration)
    return GateResult(name, gate, f"gate {gate} {_WORDS[outcome]} {name}: {numbers}", outcome)


def _label(metric: str) -> str:
    display = METRICS[metric].screen
    return metric if display is None else display.label


def _shown(metric: str, value: float, *, unlike: float | None = None) -> str:
    """Return a value as text, with so many digits that it does not look `unlike` another value."""
    display = METRICS[metric].screen
    percent = display is None or display.percent
    for digits in range(1 if percent else 4, 7):
        text = f"{100 * value:.{digits}f} %" if percent else f"{value:.{digits}f}"
        other = None if unlike is None else unlike * (100 if percent else 1)
        if other is None or value == unlike or float(text.split()[0]) != round(other, digits):
            break
    return text.replace(".0 %", " %")


def _percent(level: float) -> str:
    return f"{100 * level:.4g} %"
