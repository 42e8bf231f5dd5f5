"""The estimates of ``covcal estimate`` as text: percent with one decimal, fractions in JSON."""

from collections.abc import Sequence
from pathlib import Path

from covcal_cli.calibrate.estimate import (
    Estimation,
    Expectation,
    ExpectedCalibration,
    expectation_document,
)
from covcal_cli.cli import tables
from covcal_cli.estimators.estimate import Estimate
from covcal_cli.records import document_text
from covcal_cli.report.tables import Table


def rendered(expectation: Expectation, kind: str) -> str:
    """Return estimates as ``table``, ``json`` or ``markdown``."""
    if kind == "json":
        document = expectation_document(expectation, Path("estimate.json"))
        return document_text(document, Path("estimate.json"))
    estimates = _estimates(expectation.estimation)
    calibrations = _calibrations(expectation.calibrations)
    if kind == "table":
        parts = [_as_text(expectation.estimation, estimates), tables.text(calibrations)]
    else:
        parts = [tables.markdown(estimates), tables.markdown(calibrations)]
    return "\n\n".join(parts if calibrations.rows else parts[:1])


def _as_text(estimation: Estimation, estimates: Table) -> str:
    """Return the table with the assumptions, its last column, below it, where they have room."""
    narrow = Table(estimates.columns[:-1], [row[:-1] for row in estimates.rows], estimates.texts)
    best = estimation.estimates[0]
    width = max(len(one.name) for one in estimation.estimates)
    return "\n".join(
        [
            f"accuracy on the target: {best.accuracy:.1%} ({best.low:.1%} to {best.high:.1%}), "
            f"from {estimation.source_rows} source and {estimation.target_rows} target rows",
            "",
            tables.text(narrow),
            "",
            "each is right if",
            *(f"{one.name:<{width}}  {one.assumption}" for one in estimation.estimates),
        ]
    )


def _estimates(estimation: Estimation) -> Table:
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


def _trust(estimate: Estimate) -> str:
    """Return ``yes``, or the guards that failed."""
    failed = [guard.name for guard in estimate.guards if not guard.passed]
    return f"no: {', '.join(failed)}" if failed else "yes"


def _calibrations(calibrations: Sequence[ExpectedCalibration]) -> Table:
    rows = [
        [
            entry.name,
            f"{entry.temperature:.4g}",
            f"{entry.mean_confidence_before:.1%}",
            f"{entry.mean_confidence:.1%}",
            f"{entry.estimated_accuracy:.1%}",
            f"{entry.distance:.1%}",
        ]
        for entry in calibrations
    ]
    columns = ("calibration", "T", "confidence before", "after", "est. accuracy", "distance")
    return Table(columns, rows)
