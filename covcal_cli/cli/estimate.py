"""``covcal estimate``: the target accuracy without target labels, or by a few."""

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
        list[Path] | None, calibrations("A calibration to see against the estimate; repeats.")
    ] = None,
    output: Annotated[
        Path | None,
        output("Write estimate.json there; - prints it instead of the table.", printed=True),
    ] = None,
    target_prior: TargetPrior = "source",
    labels: Annotated[
        LabelsName,
        typer.Option(help="Marked by covcal label, or none; auto: if any are."),
    ] = LabelsName.auto,
    max_weight: MaxWeight = 1000.0,
    seed: Seed = 0,
    networks: Networks = None,
    allow_other_preprocessing: AllowOtherPreprocessing = False,
    fail_below: Annotated[
        str | None,
        typer.Option(
            metavar="accuracy=LEAST",
            help="Exit with 3 if the combined estimate is below, as accuracy=0.8.",
        ),
    ] = None,
    end: Annotated[
        EndName, typer.Option(help="Of the interval: what --fail-below judges.")
    ] = EndName.low,
    junit: Annotated[Path | None, typer.Option(help="Write the gate as a JUnit report.")] = None,
    format: ResultFormat = FormatName.table,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Estimate the accuracy on the target; reads no target label but marked ones.

    The combined estimate is the one to act on. Its interval grows with the fall that it sees,
    as no estimate knows whether its own assumption holds; it has no level. Those of the others
    are 95 % for sampling alone. No unlabelled number can see a change of the concept itself.

    With -c, --max-weight and --seed are those of the first calibration unless given, and
    --target-prior is that of the first to which one matters. The distance of a calibration's mean
    confidence from the estimated accuracy is the least that its ECE can be, if the estimate is
    right. With marked labels the ECE by them stands beside it.

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
    from covcal_cli.estimators.guards import sentences_of_failed
    from covcal_cli.forecast.forecaster import split_names
    from covcal_cli.formats.lineage import notes_on_named

    def given(option: str) -> bool:
        source = context.get_parameter_source(option)
        return source is not None and source.name != "DEFAULT"

    said: dict[str, Any] = {
        "target_prior": target_prior,
        "max_weight": max_weight,
        "seed": seed,
        "labels": labels.value,
    }
    asked = {name: value for name, value in said.items() if given(name)}
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
        found = expect(
            path,
            documents,
            asked,
            names=names,
            networks=networks,
            allow_other_preprocessing=allow_other_preprocessing,
        )
    gates = [_gate(found.estimation.estimates[0], limit, end.value) for limit in limits]
    for text in (*notes_on_named(file), *found.notes, *found.estimation.notes):
        console.note(text)
    if (accuracy := found.estimation.source_accuracy) is not None and accuracy.doubt:
        console.warn([accuracy.doubt])
    console.warn(sentences_of_failed(found.estimation.estimates[0].guards))
    if verbose:
        for estimate in found.estimation.estimates:
            for guard in estimate.guards:
                state = "passed" if guard.passed else "failed"
                console.detail(f"{estimate.name}, {guard.name} {state}: {guard.sentence}")

    def write() -> None:
        if report.document is not None:
            write_expectation(found, report.document, force=force)

    report.publish(console, lambda kind: _rendered(found, kind), gates, write=write)


def _estimated(text: str) -> "Limit":
    """Read ``accuracy=LEAST``; raise ValueError for what is not estimated without labels."""
    from covcal_cli.evaluate.limits import parse_least

    limit = parse_least(text)
    if limit.metric != "accuracy":
        raise ValueError(f"{limit.metric} is not estimated without labels: accuracy=0.8 is meant")
    return limit


def _gate(estimate: "Estimate", limit: "Limit", end: str) -> "GateResult":
    """Return what the gate found of an estimate, and why that is in doubt."""
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


def _rendered(expectation: "Expectation", kind: str) -> str:
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
        parts = [_estimates_as_text(expectation.estimation, estimates), tables.text(calibrations)]
    else:
        parts = [tables.markdown(estimates), tables.markdown(calibrations)]
    return "\n\n".join(parts if calibrations.rows else parts[:1])


def _estimates_as_text(estimation: "Estimation", estimates: "Table") -> str:
    """Return the table with the assumptions, its last column, below it, where they have room."""
    from covcal_cli.cli import tables
    from covcal_cli.estimators.inputs import SAMPLING
    from covcal_cli.report.tables import Table

    narrow = Table(estimates.columns[:-1], [row[:-1] for row in estimates.rows], estimates.texts)
    best = estimation.estimates[0]
    width = max(len(one.name) for one in estimation.estimates)
    source = estimation.source_accuracy
    return "\n".join(
        [
            f"accuracy on the target: {best.accuracy:.1%} ({best.low:.1%} to {best.high:.1%}"
            f"{'' if best.bounds else ', too wide to be of use'}), "
            f"from {estimation.source_rows} source and {estimation.target_rows} target rows"
            f"{_of_labels(estimation)}",
            *([] if source is None else [f"accuracy on the source: {source}"]),
            f"interval: {best.interval}",
            f"of the other estimates without labels: {SAMPLING}"
            if estimation.used_target_labels
            else f"of the other estimates: {SAMPLING}",
            "",
            tables.text(narrow),
            "",
            "each is right if",
            *(f"{one.name:<{width}}  {one.assumption}" for one in estimation.estimates),
        ]
    )


def _of_labels(estimation: "Estimation") -> str:
    found = estimation.labelled_rows
    return "" if found is None else f" and the labels of {found.n}"


def _estimates(estimation: "Estimation") -> "Table":
    from covcal_cli.report.tables import Table

    rows = [
        [
            one.name,
            f"{one.accuracy:.1%}",
            f"{one.low:.1%} to {one.high:.1%}",
            _trust(one),
            one.assumption,
        ]
        for one in estimation.estimates
    ]
    columns = ("estimate", "accuracy", "interval", "trusted", "assumption")
    return Table(columns, rows, texts=(0, 3, 4))


def _trust(estimate: "Estimate") -> str:
    """Return ``yes``, or the guards that failed, or that there is none."""
    if not estimate.checked:
        return "not checked"
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
    columns = ["calibration", "T", "confidence before", "after", "est. accuracy", "gap to estimate"]
    widest = max((len(row) for row in rows), default=0)
    if widest > len(columns):
        columns.append("ECE by labels")
    return Table(columns, [row + ["-"] * (len(columns) - len(row)) for row in rows])
