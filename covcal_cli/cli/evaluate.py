"""``covcal evaluate``: measure calibration on labelled target rows, and check gates for CI."""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covcal_cli.cli import options, tables
from covcal_cli.cli.console import Console, to_calibrate, to_pick, usage
from covcal_cli.cli.gates import GatedOutput, parsed
from covcal_cli.errors import percent, printable
from covcal_cli.files import as_word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from covcal_cli.evaluate.gates import Assessment
    from covcal_cli.evaluate.result import Evaluation
    from covcal_cli.report.tables import Table


_MOST_ANSWERED = 3  # maximum number of calibrations for which a verdict is printed

PredictionsName = StrEnum("PredictionsName", {"original": "original", "own": "own"})
MetricsName = StrEnum("MetricsName", ["main", "all"])


def evaluate(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE...",
            help="Features or adapted files. The rows of all files are put together. Default: the "
            "file that the calibration was fitted on.",
            show_default=False,
        ),
    ] = None,
    calibration: Annotated[
        list[Path] | None,
        options.calibrations(
            "A calibration; NAME=FILE gives it a name. May be repeated. Default without FILE: "
            "cal.json."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        options.output(
            "File for metrics.json. With -o -, JSON is printed instead of the table.", printed=True
        ),
    ] = None,
    split: options.JudgedSplit = None,
    bins: Annotated[int, typer.Option(min=1, max=10_000, help="Bins of confidence.")] = 15,
    predictions: Annotated[
        PredictionsName,
        typer.Option(
            help="Measure the predictions of the classifier (original), or of the networks from "
            "covcal adapt (own)."
        ),
    ] = PredictionsName.original,
    metrics: Annotated[
        MetricsName,
        typer.Option(help="Show the main metrics, or all metrics. The JSON has all metrics."),
    ] = MetricsName.main,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN|class|predicted",
            help="Also show groups of rows: by a column of the file, by true class, or by "
            "predicted class.",
        ),
    ] = None,
    bootstrap: Annotated[
        int,
        typer.Option(
            min=0,
            max=100_000,
            help="Number of bootstrap resamples for intervals and differences; 1000 is usual. "
            "With --bootstrap 0, the tables have no intervals, but gates and the verdict use 1000 "
            "resamples.",
        ),
    ] = 0,
    confidence: Annotated[
        float,
        typer.Option(
            min=0,
            max=0.9999,
            help="Confidence level of the intervals. A gate fails only if the whole interval is "
            "beyond the limit. With --confidence 0, gates use no intervals. Rows must be "
            "independent: several rows of one patient or video make the intervals too narrow.",
        ),
    ] = 0.95,
    seed: options.Seed = 0,
    diagram: Annotated[
        Path | None, typer.Option(help="Draw reliability diagrams: .png, .svg or .pdf.")
    ] = None,
    fail_above: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC[:GROUPS]=LIMIT",
            help="Exit with 3 if a metric (a fraction) is above a limit, such as ece=0.05. "
            "ece:predicted=0.1 sets a limit for each predicted class. May be repeated.",
        ),
    ] = None,
    fail_below: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC[:GROUPS]=LIMIT",
            help="Exit with 3 if a metric is below a limit, such as accuracy=0.9, "
            "accuracy:class=0.7 or correctness_auroc=0.8. May be repeated.",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="METRICS.JSON", help="The metrics.json that --fail-regression compares with."
        ),
    ] = None,
    fail_regression: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC=CHANGE",
            help="Exit with 3 if a metric is worse than in the baseline by significantly more than "
            "this limit. May be repeated.",
        ),
    ] = None,
    junit: options.Junit = None,
    decision: Annotated[
        Path | None,
        options.decision(
            "Also measure this decision. The metrics accepted_error and coverage are added."
        ),
    ] = None,
    networks: options.NetworksOfFeatures = None,
    allow_other_preprocessing: options.AllowOtherPreprocessing = False,
    format: options.TexFormat = options.TexFormatName.table,
    force: options.Force = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure whether the confidence is right, where target labels are known.

    With --by, rows are grouped by a column of the file, by true class or by predicted class. If the
    interval of a metric contains the limit, the gate does not fail. The gate is then "not proved",
    and its message says how many rows would probably be enough.

    \b
    Examples:
      covcal evaluate
      covcal evaluate adapted.h5 -c cal.json --diagram reliability.png
      covcal evaluate features.h5 -c a.json -c b.json -o metrics.json
      covcal evaluate adapted.h5 -c cal.json --bootstrap 1000 --by class
      covcal evaluate --fail-above ece=0.05 --fail-above ece:predicted=0.1
      covcal evaluate --fail-below accuracy=0.8 --fail-below correctness_auroc=0.7
      covcal evaluate --decide decide.json --fail-above accepted_error=0.05
      covcal evaluate -c a=cal.json --baseline a.json --fail-regression ece=.005
      covcal evaluate nights/*.h5 -c cal.json --fail-above ece=0.05
    """
    from covcal_cli.cli import multilabel
    from covcal_cli.evaluate.bootstrap import LEVEL
    from covcal_cli.evaluate.diagram import check_diagram, draw_diagram
    from covcal_cli.evaluate.evaluate import EvaluateSettings
    from covcal_cli.evaluate.gates import Gates, assess
    from covcal_cli.evaluate.limits import parse_limit, parse_regression
    from covcal_cli.evaluate.macro import assess_labels
    from covcal_cli.evaluate.metrics import MAIN, METRICS
    from covcal_cli.evaluate.result import metrics_document
    from covcal_cli.forecast import split_names
    from covcal_cli.formats.lineage import labels_of

    console = Console(quiet=quiet, verbose=verbose)
    limits = parsed(fail_above, parse_limit, "--fail-above")
    limits += parsed(fail_below, partial(parse_limit, least=True), "--fail-below")
    allowed = parsed(fail_regression, parse_regression, "--fail-regression")
    report = GatedOutput(
        command="evaluate",
        output=output,
        format=format,
        junit=junit,
        force=force,
        has_gates=bool(limits or allowed),
        gate_options="--fail-above, --fail-below or --fail-regression",
        more={"--diagram": diagram},
    )
    if allowed and baseline is None:
        raise typer.BadParameter("needs --baseline", param_hint="--fail-regression")
    if baseline is not None and not allowed:
        raise typer.BadParameter("needs --fail-regression", param_hint="--baseline")
    every_metric = metrics is MetricsName.all
    to_json = (
        report.document is not None or report.prints_json or format is options.TexFormatName.json
    )
    settings = EvaluateSettings(
        metrics=tuple(METRICS) if every_metric or to_json else MAIN,
        split=None if split is None else split.value,
        bins=bins,
        predictions=predictions.value,
        by=by,
        resamples=bootstrap,
        level=confidence or LEVEL,
        seed=seed,
        allow_other_preprocessing=allow_other_preprocessing,
    )
    documents, names = split_names(calibration or [])
    file, pooled = (files[0], files[1:]) if files else (None, [])
    with usage():
        gates = Gates(limits, allowed, baseline, confident=confidence > 0)
    with report.errors_in_report():
        if diagram is not None:
            check_diagram(diagram)
        assess_one = partial(
            assess,
            file,
            documents,
            settings,
            names=names,
            networks=networks,
            decision=decision,
            pooled=pooled,
            check=report.check,
        )
        labels = labels_of(file, documents)
        if decision is not None and not documents:
            labels = labels_of(file, [decision], remedy="make it with covcal decide")
        if labels:
            if diagram is not None:
                raise typer.BadParameter(
                    "a diagram needs rows with one label each, but the rows of this file can have "
                    "several labels: leave out --diagram",
                    param_hint="--diagram",
                )
            several = assess_labels(labels, gates, assess_one)
        else:
            assessment = assess_one(gates=gates, tell=console.note)
    extras = _Extras(every_metric, intervals=bootstrap > 0, diagram=verbose)
    if labels:
        multilabel.publish(several, report, console, lambda e: _parts(e, extras)[1:])
        return
    evaluation = assessment.evaluation
    if assessment.level is not None and assessment.level > evaluation.level:
        console.note(
            f"each gate uses an interval of {100 * assessment.level:.3g} %, so that all intervals "
            f"together hold with {100 * evaluation.level:.3g} % confidence"
        )
    if own_scores := _of_networks(evaluation):
        console.note(own_scores)

    def draw() -> None:
        if diagram is not None:
            title = f"{evaluation.inputs[0].path.name}, target {evaluation.split} rows"
            draw_diagram(evaluation.metrics, diagram, title=title, force=force)

    report.publish(
        console,
        lambda kind: rendered_evaluation(assessment, kind, extras=extras),
        assessment.gates,
        content=lambda _: metrics_document(evaluation, assessment.verdicts, assessment.changes),
        write_more=draw,
    )
    is_table = format is options.TexFormatName.table and not report.prints_json
    if is_table and (following := _next(evaluation, documents)):
        console.hint(following)


def _next(evaluation: "Evaluation", documents: "Sequence[str | Path]") -> str:
    from covcal_cli.formats.features import FeatureFile
    from covcal_cli.report.verdict import measured_action

    path, names = evaluation.inputs[0].path, list(evaluation.metrics)
    file, document = as_word(path), path.parent / "cal.json"
    if len(names) == 1:
        if document.exists():
            return f"covcal evaluate {file} -c {as_word(document)}"
        with FeatureFile(path) as opened:
            return to_calibrate(path) if opened.source is not None else ""
    options = "".join(f" -c {as_word(document)}" for document in documents or ["cal.json"])
    verdict, _ = measured_action(evaluation, names[-1])
    if len(names) == 2 and verdict == "good":
        model = path.parent / evaluation.model
        export = f"  # or covcal export {as_word(model)}{options}" if model.is_file() else ""
        return f"covcal apply {file}{options}{export}"
    report = f"covcal report {file}{options}  # shows every class"
    if evaluation.labelled == evaluation.total:
        return report
    of_test = " --split test" if verdict == "mixed" and evaluation.split == "test" else ""
    return f"{report}; {to_pick(path)}{of_test} draws rows to label"


def _of_networks(evaluation: "Evaluation") -> str:
    names = [name for name, by in evaluation.scalings.items() if by.forecaster != "original"]
    if not names:
        return ""
    return (
        f"the NLL and Brier score of {', '.join(names)} measure the networks of adapt, not "
        "the classifier: compare the ECE instead"
    )


@dataclass(frozen=True)
class _Extras:
    every_metric: bool = False
    intervals: bool = True
    diagram: bool = False


def rendered_evaluation(assessment: "Assessment", kind: str, *, extras: _Extras = _Extras()) -> str:
    """Return an evaluation as ``table``, ``markdown``, ``github`` or ``latex``."""
    from covcal_cli.evaluate.diagram import text_diagram
    from covcal_cli.report.verdict import no_calibration

    evaluation = assessment.evaluation
    numbers = tables.titled(_parts(evaluation, extras), kind)
    if kind == "latex":
        notes = filter(None, (no_calibration(evaluation), _of_networks(evaluation)))
        return "\n".join([*(f"% note: {printable(note)}" for note in notes), numbers])
    parts = [tables.listed(_answer(evaluation), kind), numbers]
    if extras.diagram and kind == "table":
        last = list(evaluation.metrics)[-1]
        title = f"reliability of {printable(last)}, target {evaluation.split} rows"
        parts.append(f"{title}\n{text_diagram(evaluation.metrics[last].bins)}")
    return "\n\n".join(parts)


def _answer(evaluation: "Evaluation") -> dict[str, str]:
    from covcal_cli.evaluate.claims import ClassGaps
    from covcal_cli.forecast import NONE
    from covcal_cli.maths.odds import interval_of_counts
    from covcal_cli.report.verdict import measured_action, no_calibration, where_off

    level, names = evaluation.level, list(evaluation.metrics)
    own_labels = "by the networks of adapt, " if evaluation.predictions == "own" else ""
    before, single = evaluation.metrics[NONE], names[-1] if len(names) <= 2 else None
    low, high = interval_of_counts(round(before.accuracy * before.n), before.n, level)
    answer = {"Measured": text} if (text := no_calibration(evaluation)) else {}
    if single is not None:
        answer["Verdict"] = printable(measured_action(evaluation, single)[1])
    files = sum(entry.role != "calibration" for entry in evaluation.inputs)
    answer["Accuracy"] = (
        f"{percent(before.accuracy, 0)} ({percent(low, 0)} to {percent(high, 0)}), {own_labels}"
        f"on {before.n} labelled target rows{f' of {files} files' if files > 1 else ''}"
    )
    for name in names[: 1 + _MOST_ANSWERED]:
        classes = ClassGaps.of(evaluation.classes.get(name, ()), level)
        subject = "Confidence" if name == NONE else f"After {printable(name)}"
        answer[subject] = _promise(evaluation, name)
        if single is None and name != NONE and classes.off:
            answer[subject] += f". Do not trust the confidence {printable(where_off(classes))}"
    if len(names) > 1 + _MOST_ANSWERED:
        answer["Others"] = (
            f"{len(names) - 1 - _MOST_ANSWERED} more calibrations, shown only in the table"
        )
    answer |= _decided(evaluation)
    if single is not None:
        classes = ClassGaps.of(evaluation.classes.get(single, ()), level)
        if classes.n > 1:
            worst = "" if classes.worst is None else f"; {printable(classes.worst)}"
            after = "" if single == NONE else f"after {printable(single)}, "
            answer["Classes"] = f"{after}{classes.count}{worst}"
    return answer


def _decided(evaluation: "Evaluation") -> dict[str, str]:
    metrics, answer = evaluation.decision, dict[str, str]()
    if metrics is None:
        return answer
    if metrics.decision.accepts_rows:
        answer["Accepted"] = "none of the rows"
        if metrics.accepted:
            low, high = metrics.interval("accepted_error", evaluation.level)
            answer["Accepted"] = (
                f"{_one_decimal(metrics.accepted / metrics.n)} of the rows. "
                f"{_one_decimal(metrics.wrong / metrics.accepted)} of these rows are wrong "
                f"({_one_decimal(low)} to {_one_decimal(high)})"
            )
            if metrics.decision.error is not None:
                limit = f"{100 * metrics.decision.error:.3g} %"
                kind = "promised at most" if metrics.decision.is_promise else "had the limit"
                answer["Accepted"] += f". The decision {kind} {limit}"
    if metrics.coverage is not None:
        low, high = metrics.interval("coverage", evaluation.level)
        answer["Sets"] = (
            f"{metrics.set_size:.2f} classes on average. A set contains the right class in "
            f"{_one_decimal(metrics.coverage)} of the rows ({_one_decimal(low)} to "
            f"{_one_decimal(high)})"
        )
    return answer


def _one_decimal(share: float) -> str:
    return f"{100 * share:.1f} %"


def _promise(evaluation: "Evaluation", name: str) -> str:
    from covcal_cli.evaluate.claims import MeanGap, ece_sentence

    metrics = evaluation.metrics[name]
    gap = MeanGap.of(metrics.bins, evaluation.level)
    promised = (
        f"{percent(metrics.mean_confidence, 0)} promised, {percent(metrics.accuracy, 0)} right"
    )
    text = f"{gap.sentence}: {promised}" if gap.direction else f"{promised}; {gap.sentence}"
    interval = evaluation.intervals.get(name, {}).get("ece")
    if interval is not None:
        text += f"; ECE {ece_sentence(interval)}"
    return f"{text}{_shown_change(evaluation, name)}"


def _shown_change(evaluation: "Evaluation", name: str) -> str:
    from covcal_cli.forecast import NONE
    from covcal_cli.report.verdict import is_large

    labels = {"brier": "Brier score", "nll": "log loss", "ece": "ECE"}
    text = ""
    for direction, word in ((-1, "better"), (1, "WORSE")):
        changes = (evaluation.difference(name, NONE, metric) for metric in labels)
        proved = [c for c in changes if c is not None and c.direction == direction]
        scores = ", ".join(labels[c.metric] for c in proved)
        makes = ". The calibration makes the confidence significantly"
        if any(map(is_large, proved)):
            text += f"{makes} {word} ({scores})"
        elif proved:
            text += f"{makes} {word.lower()} ({scores}), but the change is too small to matter"
    return text


def _parts(evaluation: "Evaluation", extras: _Extras) -> "list[tuple[str, Table]]":
    from covcal_cli.evaluate.bins import SMALL_GROUP
    from covcal_cli.evaluate.metrics import MAIN, METRICS
    from covcal_cli.report.tables import differences_table

    parts = [("", _metrics(evaluation, main=True))]
    if extras.every_metric:
        parts.append(("", _metrics(evaluation, main=False)))
    level = f"{100 * evaluation.level:.4g} %"
    if extras.intervals and evaluation.intervals:
        title = f"{level} intervals, {evaluation.resamples} resamples, seed {evaluation.seed}"
        parts.append((title, _intervals(evaluation, extras)))
    if extras.intervals and evaluation.differences:
        title = f"differences between calibrations on the same rows, with {level} intervals"
        metrics = METRICS if extras.every_metric else MAIN
        parts.append((title, differences_table(evaluation, metrics, on_screen=True)))
    if evaluation.by is not None:
        title = f"by {printable(evaluation.by)}"
        if evaluation.by == "class":
            title = "by true class (the accuracy of a class is its recall)"
        if any(group.small for groups in evaluation.groups.values() for group in groups):
            title += (
                f"; groups with (n) have under {SMALL_GROUP} rows, so their ECE is mostly noise"
            )
        parts.append((title, _groups(evaluation, extras)))
    return parts


def _metrics(evaluation: "Evaluation", *, main: bool) -> "Table":
    from covcal_cli.evaluate.metrics import on_screen
    from covcal_cli.report.tables import Table

    columns = [(name, display) for name, display, metric in on_screen() if metric.main == main]
    rows = [
        [
            name,
            *([evaluation.scalings[name].shown(4), str(entry.n)] if main else []),
            *(tables.cell(entry.value(metric), display.percent) for metric, display in columns),
        ]
        for name, entry in evaluation.metrics.items()
    ]
    leading = ["calibration", "T", "n"] if main else ["calibration"]
    return Table([*leading, *(display.label for _, display in columns)], rows)


def _intervals(evaluation: "Evaluation", extras: _Extras) -> "Table":
    from covcal_cli.evaluate.metrics import on_screen
    from covcal_cli.report.tables import Table

    columns = [
        (name, display)
        for name, display, metric in on_screen()
        if metric.interval and (metric.main or extras.every_metric)
    ]
    rows = [
        [name, *(_range(intervals.get(metric), display.percent) for metric, display in columns)]
        for name, intervals in evaluation.intervals.items()
    ]
    return Table(["calibration", *(display.label for _, display in columns)], rows)


def _groups(evaluation: "Evaluation", extras: _Extras) -> "Table":
    from covcal_cli.evaluate.metrics import METRICS
    from covcal_cli.report.tables import Table

    of_correctness = [
        (name, metric.screen)
        for name, metric in METRICS.items()
        if name.startswith("correctness") and metric.screen and extras.every_metric
    ]
    with_intervals = evaluation.resamples > 0
    columns = (
        *("calibration", "group", "n", "accuracy", "confidence", "ECE"),
        *(("accuracy from - to", "ECE from - to") if with_intervals else ("over ECE",)),
        *(display.label for _, display in of_correctness),
    )
    rows = [
        [
            name,
            group.name,
            f"(n) {group.n}" if group.small else str(group.n),
            *map(tables.cell, (group.accuracy, group.mean_confidence, group.ece)),
            *(
                (_range(group.intervals.get(metric)) for metric in ("accuracy", "ece"))
                if with_intervals
                else [tables.cell(group.over_ece)]
            ),
            *(
                tables.cell(getattr(group, metric), display.percent)
                for metric, display in of_correctness
            ),
        ]
        for name, groups in evaluation.groups.items()
        for group in groups
        if group.n  # leave out classes that are never predicted
    ]
    return Table(columns, rows, texts=(0, 1))


def _range(interval: tuple[float, float] | None, as_percent: bool = True) -> str:
    if interval is None:
        return "-"
    low, high = (tables.cell(end, as_percent) for end in interval)
    return f"{low.removesuffix(' %')} to {high}"
