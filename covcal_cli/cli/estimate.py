"""``covcal estimate``: the accuracy on the target, without labels or with a few."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covcal_cli.cli.console import Console, file_to_read, usage
from covcal_cli.cli.gates import GatedOutput, parsed
from covcal_cli.cli.options import (
    AllowOtherPreprocessing,
    Force,
    FormatName,
    InputFile,
    MaxWeight,
    Networks,
    Quiet,
    ResultFormat,
    Seed,
    TargetPrior,
    Verbose,
    calibrations,
    output,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from covcal_cli.calibrate.estimate import Estimation, Expectation, ExpectedCalibration
    from covcal_cli.estimators.inputs import Estimate
    from covcal_cli.evaluate.gates import GateResult, Outcome
    from covcal_cli.evaluate.limits import Limit
    from covcal_cli.report.tables import Table

EndName = StrEnum("EndName", ["low", "middle", "high"])
LabelsName = StrEnum("LabelsName", ["auto", "marked", "none"])


def estimate(
    context: typer.Context,
    file: InputFile = None,
    calibration: Annotated[
        list[Path] | None, calibrations("A calibration to compare with the estimate; repeats.")
    ] = None,
    output: Annotated[
        Path | None,
        output("Write estimate.json to this file; - prints it instead of the table.", printed=True),
    ] = None,
    target_prior: TargetPrior = "source",
    labels: Annotated[
        LabelsName,
        typer.Option(
            help="Labels to use: marked (rows you labelled with covcal label), none, or "
            "auto: marked rows if there are any."
        ),
    ] = LabelsName.auto,
    max_weight: MaxWeight = 1000.0,
    seed: Seed = 0,
    networks: Networks = None,
    allow_other_preprocessing: AllowOtherPreprocessing = False,
    fail_below: Annotated[
        str | None,
        typer.Option(
            metavar="accuracy=LEAST",
            help="Exit with 3 if the estimated accuracy is below this, such as accuracy=0.8.",
        ),
    ] = None,
    end: Annotated[
        EndName,
        typer.Option(help="The end of the interval that --fail-below compares with the limit."),
    ] = EndName.low,
    junit: Annotated[
        Path | None, typer.Option(help="Write the gate's result as a JUnit report.")
    ] = None,
    format: ResultFormat = FormatName.table,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Estimate accuracy on the target, without labels or with a few.

    No target label is read, except those of rows you labelled (covcal label). The range is a rule
    of thumb and grows with the estimated fall in accuracy. Without labels, no number can show that
    the task itself has changed. With -v, the command shows every estimator with its assumption.

    With -c, the missing options --max-weight, --seed and --target-prior come from the calibrations.
    If the estimate is right, the ECE of a calibration is at least the difference of its mean
    confidence and the estimated accuracy. With labels, the ECE by labels is shown too.

    \b
    Examples:
      covcal estimate
      covcal estimate features.h5 --target-prior uniform
      covcal estimate features.h5 -c cal.json
      covcal estimate features.h5 --fail-below accuracy=0.8 --junit gate.xml
      covcal estimate adapted.h5 --format markdown -o estimate.json
      covcal estimate adapted.h5 -o - | jq .estimates[0].accuracy
    """
    from covcal_cli.calibrate.estimate import expect, write_expectation
    from covcal_cli.calibrate.settings import EstimateSettings
    from covcal_cli.errors import LimitExceededError
    from covcal_cli.estimators.guards import sentences_of_failed
    from covcal_cli.forecast.forecaster import split_names
    from covcal_cli.formats.lineage import notes_on_named

    def given(option: str) -> bool:
        source = context.get_parameter_source(option)
        return source is not None and source.name != "DEFAULT"

    options: dict[str, Any] = {
        "target_prior": target_prior,
        "max_weight": max_weight,
        "seed": seed,
        "labels": labels.value,
    }
    asked = {name: value for name, value in options.items() if given(name)}
    with usage():
        EstimateSettings(**asked)
    console = Console(quiet=quiet, verbose=verbose)
    limits = parsed([fail_below] if fail_below else None, _estimated, "--fail-below")
    report = GatedOutput(
        command="estimate",
        output=output,
        format=format,
        junit=junit,
        force=force,
        has_gates=bool(limits),
        gate_options="--fail-below",
    )
    if not limits and given("end"):
        raise typer.BadParameter("needs --fail-below", param_hint="--end")
    path, (documents, names) = file_to_read(file, console), split_names(calibration or [])
    with report.errors_in_report():
        report.check([path, *documents, Path(target_prior)])
        expectation = expect(
            path,
            documents,
            asked,
            names=names,
            networks=networks,
            allow_other_preprocessing=allow_other_preprocessing,
        )
    estimation = expectation.estimation
    gates = [_gate(estimation.estimates[0], limit, end.value) for limit in limits]

    def write() -> None:
        if report.document is not None:
            write_expectation(expectation, report.document, force=force)

    def remark() -> None:
        for text in (*notes_on_named(file), *expectation.notes):
            console.note(text)
        for text in estimation.notes:
            console.detail(f"note: {text}")
        if estimation.source_accuracy is not None and estimation.source_accuracy.doubt:
            console.warn([estimation.source_accuracy.doubt])
        console.warn(sentences_of_failed(estimation.estimates[0].guards))

    def render(kind: str) -> str:
        return _rendered(expectation, kind, verbose=verbose)

    try:
        report.publish(console, render, gates, write=write)
    except LimitExceededError:
        remark()
        raise
    remark()


def _estimated(text: str) -> "Limit":
    """Read ``accuracy=LIMIT``; raise ValueError for a metric that is not estimated."""
    from covcal_cli.evaluate.limits import parse_least

    limit = parse_least(text)
    if limit.metric != "accuracy":
        raise ValueError(f"{limit.metric} is not estimated: give accuracy=LEAST, as accuracy=0.8")
    return limit


def _gate(estimate: "Estimate", limit: "Limit", end: str) -> "GateResult":
    """Return the result of the gate, with the failed checks of the estimate."""
    from covcal_cli.estimators.guards import sentences_of_failed
    from covcal_cli.evaluate.gates import GateResult

    value = {"low": estimate.low, "middle": estimate.accuracy, "high": estimate.high}[end]
    failed = value < limit.limit
    gate = f"{limit.metric} >= {limit.limit:g}"
    whole = f"estimated {estimate.accuracy:.4g}, {estimate.low:.4g} to {estimate.high:.4g}"
    judged = "the estimate" if end == "middle" else f"the {end} end"
    outcome: Outcome = "failed" if failed else "passed"
    state = "FAILED" if failed else "passed"
    sentence = f"gate {gate} {state} by {judged}: {value:.4g} ({whole})"
    sentence = "; ".join([sentence, *sentences_of_failed(estimate.guards)])
    return GateResult("target", gate, sentence, outcome)


def _rendered(expectation: "Expectation", kind: str, *, verbose: bool) -> str:
    """Return estimates as ``table``, ``json``, ``markdown`` or ``github``."""
    from covcal_cli.calibrate.estimate import expectation_document
    from covcal_cli.cli import tables
    from covcal_cli.records import document_text

    if kind == "json":
        document = expectation_document(expectation, Path("estimate.json"))
        return document_text(document, Path("estimate.json"))
    estimates = _estimates(expectation.estimation)
    calibrations = _calibrations(expectation.calibrations)
    if kind == "table":
        parts = [_answer(expectation.estimation)]
        if calibrations.rows:
            parts.append(tables.text(calibrations))
        if verbose:
            parts.append(_details(expectation.estimation, estimates))
        return "\n\n".join(parts)
    parts = [tables.markdown(estimates), tables.markdown(calibrations)]
    return "\n\n".join(parts if calibrations.rows else parts[:1])


def _answer(estimation: "Estimation") -> str:
    """Return the estimated accuracy and its range, in a few lines."""
    from covcal_cli.cli import tables
    from covcal_cli.cli.calibration_screen import checks, in_percent, interval

    best, source = estimation.estimates[0], estimation.source_accuracy
    labels = "" if estimation.labelled_rows is None else f", {estimation.labelled_rows.n} labels"
    accuracy = f"{in_percent(best.accuracy)} % ({interval(best.low, best.high)})"
    accuracy += "" if best.bounds else ": too wide to be of use, label some rows (covcal pick)"
    facts = {"Estimated accuracy": accuracy, "Range": best.interval}
    if source is not None:
        facts["Source accuracy"] = f"{in_percent(source.share)} % of {source.rows} rows"
    facts["Rows"] = f"{estimation.source_rows} source and {estimation.target_rows} target{labels}"
    facts["Checks"] = checks(best.guards)
    return tables.aligned({name: text for name, text in facts.items() if text})


def _details(estimation: "Estimation", estimates: "Table") -> str:
    """Return the table of estimators, and below it the assumption of each."""
    from covcal_cli.cli import tables
    from covcal_cli.estimators.inputs import SAMPLING
    from covcal_cli.report.tables import Table

    # The assumptions, the last column, are too long for a table on a terminal.
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
                f"{estimate.name}: {guard.name} {'passed' if guard.passed else 'failed'}: "
                f"{guard.sentence}"
                for estimate in estimation.estimates
                for guard in estimate.guards
            ),
        ]
    )


def _estimates(estimation: "Estimation") -> "Table":
    from covcal_cli.report.tables import Table

    rows = [
        [
            estimate.name,
            f"{estimate.accuracy:.1%}",
            f"{estimate.low:.1%} to {estimate.high:.1%}",
            _trust(estimate),
            estimate.assumption,
        ]
        for estimate in estimation.estimates
    ]
    columns = ("estimate", "accuracy", "interval", "trusted", "assumption")
    return Table(columns, rows, texts=(0, 3, 4))


def _trust(estimate: "Estimate") -> str:
    """Return ``yes``, the failed checks, or a text for an estimate without checks."""
    if not estimate.checked:
        return "no check available"
    return "yes" if estimate.trusted else f"no: {', '.join(estimate.failed)}"


def _calibrations(calibrations: "Sequence[ExpectedCalibration]") -> "Table":
    from covcal_cli.maths.scaling import shown_temperatures
    from covcal_cli.report.tables import Table

    rows = [
        [
            entry.name,
            shown_temperatures(entry.temperature, entry.aligned_temperature, 4),
            f"{entry.mean_confidence_before:.1%}",
            f"{entry.mean_confidence:.1%}",
            f"{entry.estimated_accuracy:.1%}",
            f"{entry.distance:.1%}",
            *(
                []
                if entry.ece is None
                else [f"{entry.ece:.1%} ({entry.ece_low:.1%} to {entry.ece_high:.1%})"]
            ),
        ]
        for entry in calibrations
    ]
    columns = ["calibration", "T", "confidence before", "after", "est. accuracy", "difference"]
    widest = max((len(row) for row in rows), default=0)
    if widest > len(columns):
        columns.append("ECE by labels")
    return Table(columns, [row + ["-"] * (len(columns) - len(row)) for row in rows])
