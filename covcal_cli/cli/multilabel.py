"""Print the results of commands for rows with several labels."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from covcal_cli.calibrate.methods import checks_of
from covcal_cli.cli import tables
from covcal_cli.cli.console import Console, checks, to_new_sheet
from covcal_cli.errors import CovcalError, in_percent, in_points, interval, percent, short_percent
from covcal_cli.evaluate.macro import gate_of_label
from covcal_cli.evaluate.metrics import on_screen
from covcal_cli.files import as_word
from covcal_cli.multilabel import gathered, named, one_label
from covcal_cli.records import of_labels, sentences_of_failed
from covcal_cli.report.tables import Table, markdown
from covcal_cli.report.verdict import BASIS, measured_action, no_calibration, unmeasured_action

if TYPE_CHECKING:
    from covcal_cli.calibrate.estimate import Expectation
    from covcal_cli.cli.gates import GatedOutput
    from covcal_cli.evaluate.gates import GateResult
    from covcal_cli.evaluate.macro import LabelAssessments
    from covcal_cli.evaluate.result import Evaluation
    from covcal_cli.formats.calibration import Calibration
    from covcal_cli.formats.decision import Decision
    from covcal_cli.run.run import RunReport
    from covcal_cli.watch.period import Watched


def calibrated(calibrations: "Mapping[str, Calibration]") -> str:
    """Return the result of calibrate: a summary of all labels, then a line for each label."""
    rows, gaps = [], {}
    of_verdict: dict[str, list[str]] = {}
    for label, calibration in calibrations.items():
        advice = unmeasured_action(calibration)[1].partition(":")[0]  # without the reason
        of_verdict.setdefault(advice, []).append(label)
        before, after = calibration.target_confidence
        estimates = calibration.estimates.get("labelled", calibration.estimates)
        accuracy, source = estimates.get("accuracy"), calibration.source_accuracy
        if accuracy is not None and before is not None:
            gaps[label] = before - accuracy
        checks = checks_of(calibration)[0]
        rows.append(
            [
                label,
                percent(None if source is None else source.share),
                percent(accuracy),
                *map(percent, (before, after)),
                " and ".join(f"{t:.3g}" for t in calibration.scaling.temperatures.values()),
                calibration.method_used,
                f"{sum(check.passed for check in checks)} of {len(checks)}" if checks else "",
            ]
        )
    facts = {"Labels": f"{len(rows)}, each with its own calibration: {named(list(calibrations))}"}
    facts["Verdict"] = ". ".join(f"{text} ({named(of)})" for text, of in of_verdict.items())
    if all(calibration.labelled_rows is None for calibration in calibrations.values()):
        facts["Verdict"] += f". {BASIS}"
    if gaps:
        worst = max(gaps, key=lambda label: abs(gaps[label]))
        labelled = all(calibration.labelled_rows for calibration in calibrations.values())
        facts["Confidence"] = (
            f"{'' if labelled else 'probably '}{_off(fmean(gaps.values()))} on average over the "
            f"labels before calibration. The worst label is {worst}: {_off(gaps[worst])}"
        )
    columns = ("label", "source acc.", "est. accuracy", "confidence", "calibrated", "T", "method")
    table = Table((*columns, "checks passed"), rows, texts=(0, 6))
    return f"{tables.aligned(facts)}\n\n{tables.text(table)}"


def _off(gap: float) -> str:
    points = f"{100 * abs(gap):.0f}"
    if points == "0":
        return "right"
    return f"too {'high' if gap > 0 else 'low'} by about {in_points(points)}"


def publish(
    result: "LabelAssessments",
    report: "GatedOutput",
    console: Console,
    more: "Callable[[Evaluation], list[tuple[str, Table]]]",
) -> None:
    """Print the result of evaluate: a summary of all labels, then tables of metrics by label."""
    console.note(*result.notes)
    render = partial(_rendered, result, more)
    report.publish(console, render, result.gates, content=result.document)


def _rendered(
    result: "LabelAssessments", more: "Callable[[Evaluation], list[tuple[str, Table]]]", kind: str
) -> str:
    parts = [("", _metrics(result))]
    if any(assessment.evaluation.decision for assessment in result.labels.values()):
        parts.append(("rows that the decision accepts", _accepted(result)))
    for label, assessment in result.labels.items():
        parts += [
            (f"{label}{title and f', {title}'}", table)
            for title, table in more(assessment.evaluation)
        ]
    numbers = tables.titled(parts, kind)
    return numbers if kind == "latex" else f"{tables.listed(_answer(result), kind)}\n\n{numbers}"


def _answer(result: "LabelAssessments") -> dict[str, str]:
    names = result.calibrations
    n = [assessment.evaluation.n for assessment in result.labels.values()]
    rows = f"{n[0]}" if len({*n}) == 1 else f"{min(n)} to {max(n)}"
    answer = {"Labels": f"{len(n)}, each on {rows} labelled target rows"}
    if text := no_calibration(next(iter(result.labels.values())).evaluation):
        answer = {"Measured": text} | answer
    words = {"good": "Trust", "mixed": "Not proved", "bad": "Do not trust"}
    for tone, subject in words.items() if len(names) <= 2 else ():
        of_tone = [
            label
            for label, assessment in result.labels.items()
            if measured_action(assessment.evaluation, names[-1])[0] == tone
        ]
        if of_tone:
            answer[subject] = f"the confidence in {named(of_tone)}"
    for name in names:
        worst = result.worst(name, "ece")
        worst_label = "" if worst is None else f". The worst is {percent(worst[1])} ({worst[0]})"
        subject = "ECE before" if name == names[0] else f"ECE, {name}"
        answer[subject] = f"{percent(result.mean(name, 'ece'))} on average{worst_label}"
    return answer


def run_summary(report: "RunReport", *, verbose: bool) -> str:
    """Return the result of run: the verdict on all labels, and the next step."""
    result, before = report.assessments, f" before you use {report.model}" if report.model else ""
    next_step = f"read {report.page}{before}"
    if result is None:
        screen = calibrated(report.calibrations)
        measured = "no target test row has a label, so nothing was measured"
        return f"{screen}\n\n{tables.aligned({'Measured': measured, 'Next': next_step})}"
    facts = _answer(result)
    if report.model and "Trust" in facts and not {"Not proved", "Do not trust"} & set(facts):
        next_step = f"use {report.model}; {report.page} shows the measurements"
    screen = tables.aligned(facts | {"Next": next_step})
    return f"{screen}\n\n{tables.text(_metrics(result))}" if verbose else screen


def _accepted(result: "LabelAssessments") -> Table:
    rows = []
    for label, assessment in result.labels.items():
        metrics = assessment.evaluation.decision
        if metrics is None:
            continue
        cells = ["-", "-"]
        if metrics.accepted:
            low, high = metrics.interval("accepted_error", assessment.evaluation.level)
            wrong = metrics.wrong / metrics.accepted
            cells = [percent(wrong), f"{percent(low)} to {percent(high)}"]
        rows.append([label, percent(metrics.accepted / metrics.n), *cells])
    return Table(("label", "accepted", "wrong", "interval"), rows)


def _metrics(result: "LabelAssessments") -> Table:
    columns = [(name, display) for name, display, metric in on_screen() if metric.main]

    def cells(values: Mapping[str, float | None]) -> list[str]:
        return [tables.cell(values[name], display.percent) for name, display in columns]

    rows = [
        [
            label,
            name,
            assessment.evaluation.scalings[name].shown(3),
            *cells({metric: entry.value(metric) for metric, _ in columns}),
        ]
        for label, assessment in result.labels.items()
        for name, entry in assessment.evaluation.metrics.items()
    ]
    for name in result.calibrations:
        means = {metric: result.mean(name, metric) for metric, _ in columns}
        rows.append(["mean (macro)", name, "", *cells(means)])
    for name in result.calibrations:
        worst = {metric: result.worst(name, metric) for metric, _ in columns}
        values = {metric: None if pair is None else pair[1] for metric, pair in worst.items()}
        rows.append(["worst", name, "", *cells(values)])
    headings = ["label", "calibration", "T", *(display.label for _, display in columns)]
    return Table(headings, rows, texts=(0, 1))


def decided(decisions: "Mapping[str, Decision]", output: str) -> str:
    """Return the share of rows whose prediction is accepted, for each label."""
    rows = []
    for label, decision in decisions.items():
        point, above, use = decision.expected, decision.threshold, decision.labels
        needs = f"needs {decision.labels_needed}{' more' if use else ''} labels"
        promise = needs if decision.labels_needed else "unlikely"
        if use is not None and decision.is_promise:
            promise = f"yes ({use.labels} labels, {use.wrong} wrong)"
        rows.append(
            [
                label,
                f"{in_percent(decision.share)} %" if above is not None else "none",
                short_percent(above) if above is not None else "-",
                "-" if point is None else f"{in_percent(point.error)} %",
                "-" if point is None else interval(point.low, point.high, point.error),
                *([] if decision.error is None else [promise]),
            ]
        )
    shares = {label: decision.share for label, decision in decisions.items()}
    least = min(shares, key=lambda label: shares[label])
    first, promised = decisions[least], [name for name in decisions if decisions[name].is_promise]
    facts = {
        "Accept": f"{in_percent(fmean(shares.values()))} % of {first.counted}, on average over "
        f"the labels; the label with the fewest accepted rows is {least}",
        "Expect": "the table shows the errors. Each error is an estimate, not a promise.",
    }
    if promised:
        facts["Promise"] = (
            f"{named(promised)}: at most {short_percent(first.error or 0.0)} of the accepted rows "
            f"are wrong. Each label has {short_percent(first.certainty)} certainty, but not all "
            "labels together"
        )
    needed = max(0 if entry.is_promise else entry.labels_needed for entry in decisions.values())
    if needed:
        facts["Labels"] = (
            f"promises need up to {needed} labels: covcal pick -n {needed}{to_new_sheet()} "
            f"--for {as_word(output)}"
        )
    columns = ["label", "accepted", "confidence above", "expected to be wrong", "range"]
    table = Table(columns + ["promise"] * (first.error is not None), rows, texts=(0, 5))
    return f"{tables.aligned(facts)}\n\n{tables.text(table)}"


def publish_expectations(
    expectations: "Mapping[str, Expectation]",
    gates: "Mapping[str, Sequence[GateResult]]",
    report: "GatedOutput",
    console: Console,
    more: "Callable[[Expectation], list[Table]]",
) -> None:
    """Print the result of estimate: the accuracy of each label, then the other tables."""
    from covcal_cli.calibrate.estimate import expectation_document

    def content(path: Path) -> dict[str, Any]:
        documents = {
            name: expectation_document(entry, path) for name, entry in expectations.items()
        }
        return of_labels(documents, path)

    def render(kind: str) -> str:
        parts = [("", _estimates(expectations))]
        parts += [("", table) for table in _joined(expectations, more)]
        return tables.titled(parts, kind)

    results = [gate_of_label(label, gate) for label, of_one in gates.items() for gate in of_one]
    report.publish(console, render, results, content=content)
    failed = {
        name: sentences_of_failed(entry.estimation.estimates[0].guards)
        for name, entry in expectations.items()
    }
    console.note(*gathered({name: entry.notes for name, entry in expectations.items()}))
    console.warn(gathered(failed))


def _joined(
    expectations: "Mapping[str, Expectation]", more: "Callable[[Expectation], list[Table]]"
) -> list[Table]:
    joined: dict[tuple[str, ...], tuple[list[int], list[list[str]]]] = {}
    for label, entry in expectations.items():
        for table in more(entry):
            texts = [0, *(index + 1 for index in table.texts)]
            _, rows = joined.setdefault(("label", *table.columns), (texts, []))
            rows += [[label, *row] for row in table.rows]
    return [Table(columns, rows, texts) for columns, (texts, rows) in joined.items()]


def _estimates(expectations: "Mapping[str, Expectation]") -> Table:
    rows = []
    for label, expectation in expectations.items():
        estimation = expectation.estimation
        best, source = estimation.estimates[0], estimation.source_accuracy
        rows.append(
            [
                label,
                "-" if source is None else f"{in_percent(source.share)} %",
                f"{in_percent(best.accuracy)} %",
                interval(best.low, best.high, best.accuracy),
                checks(estimation.checks),
            ]
        )
    columns = ("label", "source accuracy", "estimated accuracy", "range", "checks")
    return Table(columns, rows, texts=(0, 4))


def acknowledged(labels: Sequence[str], accept: Callable[[], str]) -> str:
    """Acknowledge the alarms of all labels. Return a message about the changes."""
    changes, refused = {}, []
    for label in labels:
        try:
            with one_label(label):
                changes[label] = [accept()]
        except CovcalError as error:
            refused.append(error)
    if not changes:
        raise refused[0]
    return "; ".join(f"{label}: {text}" for label, (text,) in changes.items())


def publish_watched(
    watched: "Mapping[str, Watched]",
    gates: "Mapping[str, Sequence[GateResult]]",
    report: "GatedOutput",
    console: Console,
    draw: Callable[[Any, str], str],
) -> None:
    """Print the result of watch: the last verdict for each label, then all periods."""

    def render(kind: str) -> str:
        table = _verdicts(watched)
        parts = [tables.text(table) if kind == "table" else markdown(table)]
        has_more = any(
            len(entry.periods) > 1
            or entry.segments
            or any(period.measured.metrics for period in entry.periods)
            for entry in watched.values()
        )
        if has_more or console.verbose:
            parts += [f"{label}\n\n{draw(entry, kind)}" for label, entry in watched.items()]
        return "\n\n".join(parts)

    console.note(*gathered({label: entry.notes for label, entry in watched.items()}))
    console.warn(gathered({label: entry.warnings for label, entry in watched.items()}))
    results = [gate_of_label(label, gate) for label, of_one in gates.items() for gate in of_one]
    report.publish(console, render, results, content=partial(of_labels, watched))


def _verdicts(watched: "Mapping[str, Watched]") -> Table:
    rows = []
    for label, entry in watched.items():
        if entry.periods:
            last = entry.periods[-1]
            changed = f"changed since {last.alarm.since}" if last.alarm.raised else "unchanged"
            rows.append(
                [label, last.measured.period, str(last.measured.rows), last.answer, changed]
            )
    return Table(("label", "period", "n", "confidence", "rows"), rows, texts=(0, 1, 3, 4))
