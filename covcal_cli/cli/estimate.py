"""``covcal estimate``: estimate the accuracy on the target, without labels or with a few."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covcal_cli.cli import options, tables
from covcal_cli.cli.console import (
    Console,
    checks,
    file_to_read,
    is_given,
    to_calibrate,
    to_decide,
    to_pick,
    usage,
)
from covcal_cli.cli.gates import GatedOutput, metrics_and_limits
from covcal_cli.errors import CovcalError, LimitExceededError, in_percent, interval, percent
from covcal_cli.files import as_word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from covcal_cli.calibrate.estimate import Estimation, Expectation, ExpectedCalibration
    from covcal_cli.evaluate.gates import GateResult
    from covcal_cli.report.metric_estimates import MetricLimit
    from covcal_cli.report.tables import Table


def estimate(
    context: typer.Context,
    file: options.InputFile = None,
    calibration: Annotated[
        list[Path] | None,
        options.calibrations("Calibration to compare with the estimate. May be repeated."),
    ] = None,
    output: Annotated[
        Path | None,
        options.output(
            "File for estimate.json. With -o -, JSON is printed instead of the table.",
            printed=True,
        ),
    ] = None,
    metrics: options.EstimatedMetrics = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Add the metrics for each value of this column."),
    ] = None,
    costs: options.RowCosts = None,
    target_prior: options.TargetPrior = "source",
    labels: options.Labels = options.LabelsName.auto,
    max_weight: options.MaxWeight = 1000.0,
    seed: options.Seed = 0,
    networks: options.Networks = None,
    allow_other_preprocessing: options.AllowOtherPreprocessing = False,
    fail_below: options.LeastGate = None,
    fail_above: options.CostGate = None,
    end: options.End = None,
    junit: options.Junit = None,
    format: options.TexFormat = options.TexFormatName.table,
    force: options.Force = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Estimate accuracy on the target, without labels or with a few.

    Target labels are read only if you added them with covcal label. The printed range is a rule of
    thumb. The range is wider if the estimate is further below the source accuracy. Without labels,
    covcal cannot see whether the right label of an input has changed. With -v, the command shows
    every estimator with its assumption.

    With -c, the defaults of --max-weight, --seed and --target-prior come from the calibrations. If
    the estimate is right, the ECE of a calibration is at least the distance between its mean
    confidence and the estimated accuracy. If you labelled rows, the ECE measured on these rows is
    shown too.

    --metrics estimates precision, recall and other metrics of each class. These metrics come from
    the class probabilities, calibrated to the estimated accuracy. The ranges of the metrics are
    wide, because classes may have become rarer or more frequent.

    \b
    Examples:
      covcal estimate
      covcal estimate features.h5 --target-prior uniform
      covcal estimate features.h5 -c cal.json
      covcal estimate features.h5 --metrics f1,recall,auroc
      covcal estimate features.h5 --cost costs.json --fail-above cost=2.5
      covcal estimate features.h5 --fail-below accuracy=0.8 --junit gate.xml
      covcal estimate adapted.h5 --format markdown -o estimate.json
      covcal estimate adapted.h5 -o - | jq .estimates[0].accuracy
    """
    from covcal_cli.calibrate.estimate import expect, expectation_document
    from covcal_cli.calibrate.problem import EstimateSettings
    from covcal_cli.forecast import split_names
    from covcal_cli.formats.features import labels_in
    from covcal_cli.formats.lineage import notes_on_named
    from covcal_cli.multilabel import for_each_label
    from covcal_cli.records import sentences_of_failed

    values: dict[str, Any] = {
        "target_prior": target_prior,
        "max_weight": max_weight,
        "seed": seed,
        "labels": labels.value,
    }
    asked = {name: value for name, value in values.items() if is_given(context, name)}
    with usage():
        EstimateSettings(**asked)
    console = Console(quiet=quiet, verbose=verbose)
    wanted, limits = metrics_and_limits(metrics, fail_below, fail_above, costs, end)
    if by is not None and not metrics and costs is None:
        raise typer.BadParameter("needs --metrics or --cost", param_hint="--by")
    report = GatedOutput(
        command="estimate",
        output=output,
        format=format,
        junit=junit,
        force=force,
        has_gates=bool(limits),
        gate_options="--fail-below or --fail-above",
    )
    path, (documents, names) = file_to_read(file, console), split_names(calibration or [])
    with report.errors_in_report():
        report.check([path, *documents, Path(target_prior), *([costs] if costs else [])])
        expect_one = partial(
            expect,
            path,
            documents,
            asked,
            names=names,
            networks=networks,
            allow_other_preprocessing=allow_other_preprocessing,
            metrics=wanted,
            by=by,
            costs=costs,
        )
        if labels_of_file := labels_in(path):
            from covcal_cli.cli import multilabel

            of_label = for_each_label(labels_of_file, expect_one)
            results = {
                name: [_gate(one.estimation, limit, end) for limit in limits]
                for name, one in of_label.items()
            }
            multilabel.publish_expectations(of_label, results, report, console, _further)
            is_table = format is options.TexFormatName.table and not report.prints_json
            if is_table and not (documents or limits):
                asks = f"{to_pick(path)}  # draws rows to label"
                console.hint(asks if Path("cal.json").exists() else to_calibrate(path))
            return
        expectation = expect_one()
        estimation = expectation.estimation
        gates = [_gate(estimation, limit, end) for limit in limits]

    for_decision = _is_for_decision(path)

    def remark() -> None:
        console.note(*notes_on_named(file), *expectation.notes)
        if for_decision and not estimation.used_target_labels:
            console.note(
                "the labels were picked for a decision, so covcal estimate does not use "
                "these labels. To use the labels anyway, pass --labels marked"
            )
        for text in estimation.notes:
            console.detail(f"note: {text}")
        if (of_source := estimation.source_accuracy) is not None:
            console.warn([of_source.doubt] if of_source.doubt else [])
            if of_source.imbalance and not estimation.metrics:
                console.note(of_source.imbalance)
        console.warn(sentences_of_failed(estimation.estimates[0].guards))

    def render(kind: str) -> str:
        return _rendered(expectation, kind, verbose=verbose)

    following_command = ""  # Choose the command before any output, because the choice can fail.
    if format is options.TexFormatName.table and not (documents or gates or report.prints_json):
        following_command = _next(path, estimation, costs, for_decision=for_decision)
    try:
        content = partial(expectation_document, expectation)
        report.publish(console, render, gates, content=content)
    except LimitExceededError:
        remark()
        raise
    remark()
    if following_command:
        console.hint(following_command)


def _next(path: Path, estimation: "Estimation", costs: Path | None, *, for_decision: bool) -> str:
    from covcal_cli.cli.calibrate import following
    from covcal_cli.formats.calibration import read_calibration
    from covcal_cli.records import json_of

    accuracy = estimation.source_accuracy
    if accuracy is not None and accuracy.class_order is not None:
        return ""  # The warning already says that the next step is extract.
    document, word = Path("cal.json"), as_word(path)
    if document.exists() and costs is not None and "review" in json_of(costs):
        force = " --force  # replaces decide.json" if Path("decide.json").exists() else ""
        return f"covcal decide {word} --cost {as_word(costs)}{force}"
    if for_decision:
        asks = f"{to_pick(path)}  # draws rows to label"
        return asks if estimation.used_target_labels else to_decide(path)
    if not document.exists():
        return to_calibrate(path)
    try:
        is_fitted = read_calibration(document).labelled_rows is not None
    except CovcalError:
        return to_calibrate(path)
    if estimation.used_target_labels and not is_fitted:
        return to_calibrate(path)
    if not is_fitted and not (command := following(path, document)).startswith("covcal apply"):
        return command
    return f"{to_pick(path)}  # draws rows to label"


def _is_for_decision(path: Path) -> bool:
    from covcal_cli.formats.features import FeatureFile
    from covcal_cli.labels.draws import read_draw

    with FeatureFile(path) as file:
        return read_draw(file).is_for_decision


def _gate(
    estimation: "Estimation", limit: "MetricLimit", end: options.EndName | None
) -> "GateResult":
    from covcal_cli.records import sentences_of_failed
    from covcal_cli.report.metric_estimates import metric_gate

    gate = metric_gate(limit, estimation.metrics, estimation.classes, end and end.value)
    if gate.outcome == "skipped":
        raise CovcalError(gate.sentence)
    failed = sentences_of_failed(estimation.estimates[0].guards)
    return replace(gate, sentence="; ".join([gate.sentence, *failed]))


def _further(expectation: "Expectation") -> "list[Table]":
    from covcal_cli.report.metric_estimates import metric_table

    estimation = expectation.estimation
    metrics = metric_table(estimation.metrics, len(estimation.classes))
    tables = (metrics, _calibrations(expectation.calibrations))
    return [table for table in tables if table.rows]


def _rendered(expectation: "Expectation", kind: str, *, verbose: bool) -> str:
    from covcal_cli.estimators.metrics import ACCURACY, COST
    from covcal_cli.report.metric_estimates import (
        ALL_CLASSES,
        MOST_CLASSES,
        TOO_FEW_ROWS,
        UNKNOWN,
        is_unknown,
        metric_table,
    )
    from covcal_cli.report.tables import estimates_table, latex, markdown

    estimation = expectation.estimation
    estimates = estimates_table(estimation)
    is_short = kind == "table" and not verbose
    most = MOST_CLASSES if is_short else len(estimation.classes)
    metrics = metric_table(estimation.metrics, most, has_answer=kind == "table")
    calibrations = _calibrations(expectation.calibrations)
    further = [table for table in (metrics, calibrations) if table.rows]
    if kind == "table":
        parts = [_answer(estimation), *(tables.text(table) for table in further)]
        if metrics.rows:
            legend = []
            of_all = [entry for entry in estimation.metrics if entry.class_name is None]
            means = [entry for entry in of_all if entry.metric not in (ACCURACY, COST)]
            if means:
                legend.append(
                    f'In the rows "{ALL_CLASSES}", a metric is the mean over the classes. The '
                    "accuracy and the cost are about all rows."
                )
            grouped = any(entry.group is not None for entry in of_all)
            if means and grouped and all(entry.group is None for entry in means):
                legend.append("A group has a mean over classes only if there are labels.")
            if is_short and len(estimation.classes) > MOST_CLASSES:
                legend.append(
                    f"The table has the {MOST_CLASSES} classes with the lowest metrics. "
                    "-v shows all classes."
                )
            if any(map(is_unknown, estimation.metrics)):
                legend.append(UNKNOWN)
            if any(entry.value is None for entry in estimation.metrics):
                legend.append(TOO_FEW_ROWS)
            lines = [" ".join(legend), estimation.metrics[0].interval]
            parts.insert(2, "\n".join(line for line in lines if line))
        if verbose:
            parts.append(_details(estimation, estimates))
        return "\n\n".join(parts)
    draw = latex if kind == "latex" else markdown
    return "\n\n".join(draw(table) for table in (estimates, *further))


def _answer(estimation: "Estimation") -> str:
    from covcal_cli.estimators.metrics import COST
    from covcal_cli.records import sentences_of_failed
    from covcal_cli.report.metric_estimates import metric_cell

    best, source = estimation.estimates[0], estimation.source_accuracy
    labels = "" if estimation.labelled_rows is None else f", {estimation.labelled_rows.n} labels"
    accuracy = f"{in_percent(best.accuracy)} %"
    if best.low < best.high:
        accuracy += f" ({interval(best.low, best.high, best.accuracy)})"
    accuracy += (
        ""
        if best.bounds
        else ". This range is too wide to be useful: label some rows with covcal pick"
    )
    facts = {"Estimated accuracy": accuracy, "Range": best.interval}
    if estimation.used_target_labels:
        _, alone, without, *_ = estimation.estimates
        facts["Range"] += (
            f". The estimated accuracy combines the labels ({in_percent(alone.accuracy)} %) "
            f"and the estimate without labels ({in_percent(without.accuracy)} %)"
        )
    if source is not None:
        facts["Source accuracy"] = f"{in_percent(source.share)} % of {source.rows} rows"
    facts["Rows"] = (
        f"{estimation.source_rows} source validation rows; {estimation.target_rows} target rows "
        f"(train and validation){labels}"
    )
    cost = next((e for e in estimation.metrics if e.metric == COST and e.group is None), None)
    if cost is not None:
        unit = (
            "" if cost.value is None else " per row. This is the mean cost if every row is accepted"
        )
        facts["Expected cost"] = f"{metric_cell(cost)}{unit}"
    facts["Checks"] = checks(estimation.checks, sentences_of_failed(best.guards))
    return tables.aligned({name: text for name, text in facts.items() if text})


def _details(estimation: "Estimation", estimates: "Table") -> str:
    from covcal_cli.estimators.inputs import SAMPLING
    from covcal_cli.report.tables import Table

    # The assumptions would make the table too wide, so they are listed below it.
    narrow = Table(estimates.columns[:-1], [row[:-1] for row in estimates.rows], estimates.texts)
    assumptions = {estimate.name: estimate.assumption for estimate in estimation.estimates}
    return "\n".join(
        [
            tables.text(narrow),
            f"The intervals of single estimators show {SAMPLING}.",
            "",
            "What each estimate assumes:",
            tables.aligned(assumptions),
            "",
            "Checks:",
            *(
                f"{'passed' if guard.passed else 'failed'}  {estimate.name}: {guard.sentence}"
                for estimate in estimation.estimates
                for guard in estimate.guards
            ),
        ]
    )


def _calibrations(calibrations: "Sequence[ExpectedCalibration]") -> "Table":
    from covcal_cli.maths.softmax import shown_temperatures
    from covcal_cli.report.tables import Table

    rows = [
        [
            entry.name,
            shown_temperatures(entry.temperature, entry.aligned_temperature, 4),
            percent(entry.mean_confidence_before),
            percent(entry.mean_confidence),
            percent(entry.estimated_accuracy),
            percent(entry.distance),
            *(
                []
                if entry.ece is None
                else [
                    f"{percent(entry.ece)} ({percent(entry.ece_low)} to {percent(entry.ece_high)})"
                ]
            ),
        ]
        for entry in calibrations
    ]
    columns = ["calibration", "T", "confidence before", "after", "est. accuracy", "difference"]
    widest = max((len(row) for row in rows), default=0)
    if widest > len(columns):
        columns.append("ECE by labels")
    return Table(columns, [row + ["-"] * (len(columns) - len(row)) for row in rows])
