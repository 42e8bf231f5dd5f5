"""An evaluation held to gates, what is said of each gate, and a JUnit report of them all."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from covcal_cli.errors import CovcalError, printable
from covcal_cli.evaluate.baseline import Baseline, compare, read_baseline
from covcal_cli.evaluate.diagram import check_diagram, draw_diagram
from covcal_cli.evaluate.evaluate import EvaluateSettings, evaluate
from covcal_cli.evaluate.limits import Change, Limit, Verdict, judge
from covcal_cli.evaluate.metrics import METRICS
from covcal_cli.evaluate.result import Evaluation, write_metrics
from covcal_cli.files import check_output, moved_together, write_text
from covcal_cli.forecast.forecaster import NONE, read_named
from covcal_cli.formats.lineage import file_to_judge

RESAMPLES = 1000  # behind the intervals that gates judge, unless others are asked for
_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>\n'
_TYPES = {"failure": "gate", "error": "error"}  # of what makes a test red
_COUNTED = {"failure": "failures", "error": "errors", "skipped": "skipped"}
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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
class Outputs:
    """Files to write; an existing one is replaced with `force` alone."""

    metrics: Path | None = None
    diagram: Path | None = None
    junit: Path | None = None
    force: bool = False

    @property
    def paths(self) -> list[Path]:
        """Those asked for."""
        return [path for path in (self.metrics, self.diagram, self.junit) if path is not None]


@dataclass(frozen=True)
class GateCase:
    """One gate applied to one calibration, estimate or period."""

    of: str  # its name
    gate: str  # such as ``ece <= 0.05``
    sentence: str  # what was found
    failed: bool
    judged: bool = True  # whether there was anything to judge by


@dataclass(frozen=True)
class Judged:
    """An evaluation with what its gates found."""

    evaluation: Evaluation
    verdicts: Sequence[Verdict] = ()  # of the limits
    changes: Sequence[Change] = ()  # since the baseline

    @property
    def cases(self) -> list[GateCase]:
        """Every gate as it is reported, limits first."""
        level, n = self.evaluation.level, self.evaluation.n
        limits = [_of_limit(verdict, level, n) for verdict in self.verdicts]
        return limits + [_of_change(change, level) for change in self.changes]

    @property
    def failed(self) -> bool:
        """Whether a gate was exceeded, or missed."""
        return any(case.failed for case in self.cases)


def judged(
    path: Path | None,
    documents: Sequence[Path],
    settings: EvaluateSettings,
    *,
    names: Sequence[str] = (),
    networks: Path | None = None,
    gates: Gates = Gates(),
    outputs: Outputs = Outputs(),
    tell: Callable[[str], None] = lambda _note: None,
) -> Judged:
    """Evaluate calibrations, hold them to the gates, and write what was asked for.

    Parameters
    ----------
    path : Path or None
        A features or adapted file; None: the one that the first calibration was fitted on.
    documents : sequence of Path
        Calibrations; for no `path` and none given, cal.json.
    settings, networks
        As `evaluate` has them; gates that judge intervals resample even if it is not asked for.
    names : sequence of str
        What the calibrations are called; an empty one, or none, leaves it to `read_named`.
    tell : function
        Called with every note, as soon as it is known.

    Raises
    ------
    CovcalError
        As `evaluate`; if an output cannot be written; if a metric or the baseline has no value to
        judge. Where a JUnit report was asked for, it says so too.
    UnusedOptionError
        If `networks` are given and no calibration needs any.
    """
    with errors_reported(outputs.junit, force=outputs.force):
        # Whatever can be refused is refused before the work starts.
        if path is None and not documents:
            documents = [Path("cal.json")]
        calibrations = read_named(documents, networks, names)
        named = path
        path, notes = file_to_judge(
            named,
            [*calibrations.values()],
            documents,
            purpose="evaluate",
            picked=False,  # beside a file, a calibration that is not named is not judged
        )
        if named is None:
            tell(f"judging {documents[0]} on {path}")
        if outputs.diagram is not None:
            check_diagram(outputs.diagram)
        given = [one for one in (gates.baseline, networks) if one is not None]
        for output in outputs.paths:
            check_output(output, force=outputs.force, inputs=[path, *documents, *given])
        baseline = None if gates.baseline is None else read_baseline(gates.baseline)
        if baseline is not None:
            baseline.require_settings(
                split=settings.split, bins=settings.bins, predictions=settings.predictions
            )

        if gates.any and gates.confident and settings.resamples == 0:
            settings = replace(settings, resamples=RESAMPLES)
        earlier = {} if baseline is None else baseline.earlier(list(calibrations) or [NONE])
        evaluation = evaluate(
            path, calibrations, settings, documents=documents, networks=networks, earlier=earlier
        )
        metrics, known = evaluation.metrics, evaluation.intervals if gates.confident else {}
        found = Judged(
            evaluation,
            judge(metrics, gates.limits, calibrations, known),
            ()
            if baseline is None
            else compare(
                evaluation, baseline, gates.allowed, calibrations, confident=gates.confident
            ),
        )
        for note in (*notes, *_notes(evaluation, baseline)):
            tell(note)
        _write(found, outputs, title=f"{path.name}, target {settings.split} rows")
        return found


def _notes(evaluation: Evaluation, baseline: Baseline | None) -> Iterator[str]:
    yield from evaluation.notes
    other_rows = None if baseline is None else baseline.note_on_rows(evaluation.n)
    if other_rows is not None:
        yield other_rows
    if evaluation.unlabelled:
        yield f"{evaluation.unlabelled} rows without a label are left out"
    if evaluation.left_out:
        yield f"{evaluation.left_out} rows that a temperature was fitted to are left out"


def _write(found: Judged, outputs: Outputs, *, title: str) -> None:
    evaluation, force = found.evaluation, outputs.force
    with moved_together():
        if outputs.metrics is not None:
            changes = found.changes
            write_metrics(evaluation, found.verdicts, outputs.metrics, force=force, changes=changes)
        if outputs.diagram is not None:
            draw_diagram(evaluation.metrics, outputs.diagram, title=title, force=force)
        if outputs.junit is not None:
            write_text(outputs.junit, junit_report(found.cases), force=force)


def _of_limit(verdict: Verdict, level: float, n: int) -> GateCase:
    least = Limit(verdict.metric, verdict.limit).least
    gate = f"{verdict.metric} {'>=' if least else '<='} {verdict.limit:g}"
    failed = "MISSED" if least else "EXCEEDED"
    name, state = printable(verdict.calibration), failed if verdict.exceeded else "kept"
    sentence = f"limit {gate} {state} by {name}: {verdict.value:.6g}"
    if verdict.low is not None and verdict.high is not None:
        sentence += f" ({_percent(level)} interval {verdict.low:.4g} to {verdict.high:.4g}"
        # What was not shown to fail the limit was not shown to keep it either.
        if least:
            undecided = verdict.low < verdict.limit <= verdict.high
        else:
            undecided = verdict.low <= verdict.limit < verdict.high
        sentence += f", which holds the limit: {n} rows cannot tell)" if undecided else ")"
    return GateCase(name, gate, sentence, verdict.exceeded)


def _percent(level: float) -> str:
    return f"{100 * level:.4g} %"


def _of_change(change: Change, level: float) -> GateCase:
    gate = f"{change.metric} worse by <= {change.limit:g}"
    state = "EXCEEDED" if change.exceeded else "kept"
    direction = "worse" if change.worse_by > 0 else "better"
    found = "the same" if change.worse_by == 0 else f"{direction} by {abs(change.worse_by):.6g}"
    values = f"{change.before:.6g} -> {change.value:.6g}, {found}"
    if change.low is not None and change.high is not None:
        rows = "the same rows" if change.same_rows else "other rows"
        values += f" ({_percent(level)} interval {change.low:.4g} to {change.high:.4g}, {rows})"
    if change.baseline != change.calibration:
        values += f"; called {printable(change.baseline)} in the baseline"
    sentence = f"regression {gate} {state} by {printable(change.calibration)}: {values}"
    return GateCase(change.calibration, gate, sentence, change.exceeded)


# The JUnit report, which GitLab, Jenkins and others show: no times, no host.


def junit_report(cases: Sequence[GateCase], command: str = "evaluate") -> str:
    """Return the XML of a command: one suite, one test case per gate and what it judged."""
    return _junit(
        ((f"{one.of}: {one.gate}", _outcome(one), one.sentence) for one in cases),
        command,
    )


def _outcome(case: GateCase) -> str:
    if not case.judged:
        return "skipped"
    return "failure" if case.failed else "system-out"


@contextmanager
def errors_reported(path: Path | None, *, force: bool, command: str = "evaluate") -> Iterator[None]:
    """Report a `CovcalError` of the block at `path` too, so that no earlier report looks green.

    Only an earlier report is replaced, and only with `force`: the block may fail before it is known
    which files are its inputs.
    """
    try:
        yield
    except CovcalError as error:
        if path is not None and _may_be_written(path, force=force):
            report = _junit([("evaluation", "error", str(error))], command)
            write_text(path, report, force=force)
        raise


def _may_be_written(path: Path, *, force: bool) -> bool:
    if not path.exists():
        return path.parent.is_dir()
    if not (force and path.is_file()):
        return False
    with path.open("rb") as handle:
        return handle.read(len(_DECLARATION)) == _DECLARATION.encode()


def _junit(cases: Iterable[tuple[str, str, str]], command: str) -> str:
    """Return the XML of cases: a name, the element that tells the outcome, and its sentence."""
    counts = dict.fromkeys(("tests", *_COUNTED.values()), 0)
    root = ET.Element("testsuites")
    suite = ET.SubElement(root, "testsuite")
    for name, outcome, sentence in cases:
        named = {"classname": f"covcal.{command}", "name": _clean(name)}
        told = ET.SubElement(ET.SubElement(suite, "testcase", named), outcome)
        told.text = _clean(sentence)
        counts["tests"] += 1
        if outcome in _COUNTED:
            counts[_COUNTED[outcome]] += 1
            told.attrib |= {"message": told.text}
        if outcome in _TYPES:
            told.attrib |= {"type": _TYPES[outcome]}
    for element in (root, suite):
        element.attrib |= {"name": f"covcal {command}"}
        element.attrib |= {name: str(count) for name, count in counts.items()}
    ET.indent(root)
    return _DECLARATION + ET.tostring(root, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    """Replace what no XML document may hold; a calibration is named by its file."""
    return _NOT_XML.sub("\ufffd", text)
