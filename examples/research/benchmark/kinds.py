"""Make the table with the results of the method auto for each kind of shift."""

from collections.abc import Sequence
from statistics import fmean

from benchmark.families import SHIFT_KINDS, Case
from benchmark.labels import TRUE_ACCURACY, Results
from covcal_cli.calibrate.methods import AUTO
from covcal_cli.compare.compare import HARMS, Comparison
from covcal_cli.compare.runs import BASELINES
from covcal_cli.compare.tables import harm_heads
from covcal_cli.report.tables import Table

# auto should warn if its ECE is larger than the baseline's by more than this number.
TOLERANCE = 0.03
CAPTION = (
    "Mean ECE in percent. *ratio* is the mean ECE of `auto`, divided by the mean ECE of `none` or "
    "`temp`, whichever is lower. *error* is the mean error of the estimated accuracy in points. "
    "*contained* is the share of ranges that contain the true accuracy. *width* is the mean width "
    "of the ranges in points. *warned within 3* is the share of shifts with a warning, among the "
    "shifts on which `auto` is at most 3 points worse than the baseline. *warned beyond 3* is the "
    "share of shifts with a warning among all other shifts. The baseline of a shift is `none` or "
    "`temp`, whichever has the lower ECE."
)


def by_kind(cases: Sequence[Case], results: Results) -> Table:
    """Return a table with a row for each kind of shift, and a row for all shifts."""
    selections: list[tuple[str, list[str]]] = [
        (kind, [case.shift for case in cases if case.shift_kind == kind]) for kind in SHIFT_KINDS
    ]
    selections.append(("without a shift", [case.shift for case in cases if case.unshifted]))
    selections.append(("all", [case.shift for case in cases]))
    rows = [_row(kind, results.of(shifts)) for kind, shifts in selections if shifts]
    heads = ["kind of shift", "shifts", *BASELINES, AUTO, f"*{TRUE_ACCURACY}*", "ratio"]
    heads += [*harm_heads(results.comparison), "error", "contained", "width"]
    return Table([*heads, "warned within 3", "warned beyond 3"], rows)


def warned_share(comparison: Comparison, shifts: Sequence[str]) -> float | None:
    """Return the share of runs in which auto printed a warning; None without shifts."""
    if not shifts:
        return None
    return fmean(
        fmean(bool(record.fits[AUTO].warnings) for record in comparison.records[shift])
        for shift in shifts
    )


def _row(kind: str, results: Results) -> list[str]:
    comparison = results.comparison
    errors = [comparison.mean(method) for method in (*BASELINES, AUTO)]
    beyond = comparison.harmed(AUTO, TOLERANCE)
    within = [shift for shift in comparison.records if shift not in beyond]
    coverage = comparison.coverage(results.accuracy)
    estimate = [""] * 3
    if coverage is not None:
        estimate = [
            f"{100 * coverage.error:.1f}",
            f"{coverage.held:.0%}",
            f"{100 * coverage.width:.1f}",
        ]
    return [
        kind,
        str(len(comparison.records)),
        *(f"{100 * error:.2f}" for error in errors),
        f"{100 * results.ceilings.mean(TRUE_ACCURACY):.2f}",
        f"{errors[-1] / min(errors[:-1]):.2f}",
        *(str(len(comparison.harmed(AUTO, by))) for by in HARMS),
        *estimate,
        *(_share(warned_share(comparison, shifts)) for shifts in (within, beyond)),
    ]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
