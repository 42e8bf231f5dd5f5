"""Show a comparison as a table: on the screen, in Markdown, LaTeX or CSV."""

import csv
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean

from covcal_cli.compare.compare import HARMS, Comparison
from covcal_cli.compare.runs import BASELINES
from covcal_cli.errors import CovcalError
from covcal_cli.estimators.guards import problem_of
from covcal_cli.evaluate.metrics import METRICS
from covcal_cli.files import write_text
from covcal_cli.report.tables import Raw, Table, latex, markdown

_WIDE = 8


def grids(
    comparison: Comparison, *, plus_minus: str = " ± ", bold: Callable[[str], str] = str
) -> list[Table]:
    """Return the comparison as one table, or two if there are many shifts.

    The table has a row for each method, and a column for each shift. For several shifts, the table
    also has columns for mean, worst score, mean rank and the number of shifts where a method is
    worse. `bold` formats the text of the best cell.
    """
    shifts = _by_shift(comparison, plus_minus, bold)
    if len(comparison.shifts) == 1:
        return [shifts]
    overall = _over_shifts(comparison, bold)
    if len(comparison.shifts) > _WIDE:
        heads, *rows = map(list, zip(shifts.columns, *shifts.rows, strict=True))
        return [overall, Table(["shift", *heads[1:]], rows)]
    rows = [[*row, *more[1:]] for row, more in zip(shifts.rows, overall.rows, strict=True)]
    return [Table([*shifts.columns, *overall.columns[1:]], rows)]


def _by_shift(comparison: Comparison, plus_minus: str, bold: Callable[[str], str]) -> Table:
    columns = []
    for shift in comparison.shifts:
        ranks = comparison.ranks(shift)
        first = min(ranks.values(), default=0)
        texts = {m: _score(comparison, shift, m, plus_minus) for m in comparison.ran}
        columns.append([Raw(bold(t) if ranks.get(m) == first else t) for m, t in texts.items()])
    rows = [list(row) for row in zip(comparison.ran, *columns, strict=True)]
    return Table(["method", *comparison.shifts], rows)


def _over_shifts(comparison: Comparison, bold: Callable[[str], str]) -> Table:
    everywhere = comparison.everywhere
    sign = 1 if comparison.metric.better == "lower" else -1
    best = min((sign * comparison.mean(method) for method in everywhere), default=None)
    rows = []
    for method in comparison.ran:
        cells = ["-", "-", "-"]
        if method in everywhere:
            mean = comparison.mean(method)
            shown = number(comparison, mean)
            worst = comparison.score(comparison.worst(method), method)
            cells = [
                Raw(bold(shown)) if sign * mean == best else shown,
                "-" if worst is None else number(comparison, worst),
                f"{comparison.mean_rank(method):.1f}",
            ]
        harmed = [str(len(comparison.harmed(method, by))) for by in HARMS]
        rows.append([method, *cells, *harmed])
    return Table(["method", "mean", "worst", "rank", *harm_heads(comparison)], rows)


def harm_heads(comparison: Comparison) -> list[str]:
    """Return the headings of the columns that count shifts where a method is worse."""
    return [f"> {100 * by:.0f}" if percent(comparison) else f"> {by}" for by in HARMS]


def caption(comparison: Comparison) -> str:
    """Return a caption for the main table."""
    display = comparison.metric.report or comparison.metric.screen
    name = comparison.metric.name if display is None else display.label
    unit = " in percent" if percent(comparison) else ""
    over = f"mean and standard deviation over {comparison.seeds} seeds"
    entries = [entry for shift in comparison.shifts.values() for entry in shift.values()]
    varying = [bool(entry.deviations.get(comparison.metric.name)) for entry in entries]
    if comparison.seeds == 1:
        over = "one seed"
    elif not any(varying):
        over = f"with the same values for each of {comparison.seeds} seeds"
    elif not all(varying):
        over += " (values without a deviation are the same with every seed)"
    better = "higher" if comparison.metric.better == "higher" else "lower"
    prefixes = _prefixes(comparison)
    text = f"{name}{unit} on target test rows, {over}; {better} is better.{prefixes}"
    if len(comparison.shifts) == 1:
        return text
    return (
        f"{text} Rank is the mean rank over shifts; 1 is best. The columns "
        f"{', '.join(harm_heads(comparison))} count the shifts where a method is worse than "
        f"the better baseline ({' or '.join(BASELINES)}) by more than "
        f"{'this number of points' if unit else 'this number'}."
    )


def _prefixes(comparison: Comparison) -> str:
    parts = {part for method in comparison.ran for part in method.split("+")}
    meanings = {"fl": "fl: on adapted features", "iw": "iw: with importance weights"}
    used = [meaning for part, meaning in meanings.items() if part in parts]
    text = f" {'; '.join(used)}." if used else ""
    left_out = [method for method in comparison.methods if method not in comparison.ran]
    return f"{text} These methods could not run: {', '.join(left_out)}." if left_out else text


def of_auto(comparison: Comparison) -> Table | None:
    """Return a table of auto's choice on each shift, or None."""
    rows = []
    for shift in comparison.shifts:
        estimate, took = comparison.estimate(shift), comparison.took(shift)
        true = comparison.shifts[shift][BASELINES[0]].means["accuracy"]
        if estimate is None or not took:
            continue
        estimated = Raw("{:.1f} [{:.1f}, {:.1f}]".format(*(100 * value for value in estimate)))
        failed = {problem_of(name): count for name, count in comparison.failed(shift).items()}
        problems = counted(failed, len(comparison.records[shift]))
        method = counted(took, len(comparison.records[shift]))
        rows.append([shift, method, estimated, f"{100 * true:.1f}", problems or "none"])
    heads = ["shift", "auto chose", "estimated accuracy", "true", "problems"]
    return Table(heads, rows, (0, 1, 4)) if rows else None


def caption_of_auto(comparison: Comparison) -> str:
    """Return a caption for the table of auto's choices."""
    coverage = comparison.coverage()
    text = "Accuracies in percent; the true accuracy is measured on the labelled test rows."
    if coverage is None:
        return text
    return (
        f"{text} The estimates are off by {100 * coverage.error:.1f} points on average. The "
        f"ranges of the estimates contain {100 * coverage.held:.0f} % of the true accuracies and "
        f"are {100 * coverage.width:.1f} points wide."
    )


def counted(seeds: Mapping[str, int], of: int) -> str:
    """Join names and counts, such as "temp 3x". A count is left out if it is the total `of`."""
    return ", ".join(name if n == of else f"{name} {n}x" for name, n in seeds.items())


def _score(comparison: Comparison, shift: str, method: str, plus_minus: str) -> str:
    entry = comparison.shifts[shift].get(method)
    name = comparison.metric.name
    if entry is None or name not in entry.means:
        return "-"
    text = number(comparison, entry.means[name])
    deviation = entry.deviations[name]
    return f"{text}{plus_minus}{number(comparison, deviation)}" if deviation else text


def percent(comparison: Comparison) -> bool:
    """Whether to show the ranking metric in percent."""
    display = comparison.metric.report or comparison.metric.screen
    return display is None or display.percent


def number(comparison: Comparison, value: float) -> str:
    """Return a value of the ranking metric as text."""
    return f"{100 * value:.2f}" if percent(comparison) else f"{value:.4f}"


def as_markdown(comparison: Comparison) -> str:
    """Return Markdown tables. The best method is bold."""
    parts = [markdown(grid) for grid in grids(comparison, bold=lambda text: f"**{text}**")]
    parts.append(caption(comparison))
    auto = of_auto(comparison)
    if auto is not None:
        parts += [markdown(auto), caption_of_auto(comparison)]
    return "\n\n".join(parts) + "\n"


def as_tex(comparison: Comparison) -> str:
    """Return LaTeX tables (package booktabs). The best method is bold."""
    tables = grids(comparison, plus_minus=r" $\pm$ ", bold=lambda text: rf"\textbf{{{text}}}")
    return f"% {caption(comparison)}\n" + "\n".join(map(latex, tables))


def as_csv(comparison: Comparison) -> str:
    """Return a CSV line for each shift and method, with metrics as fractions.

    ``seconds`` and ``cpu_seconds`` are the time of the fit, without adapt.
    """
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    both = [key for name in METRICS for key in (name, f"{name}_sd")]
    heads = ["shift", "method", "seeds", "n", "temperature", "rank", "harm", "method_used"]
    heads += ["failed_guards", "ess_share", "seconds", "cpu_seconds"]
    heads += ["estimated_accuracy", "estimate_low", "estimate_high"]
    writer.writerow([*heads, *both])
    for shift, entries in comparison.shifts.items():
        ranks, records = comparison.ranks(shift), comparison.records[shift]
        for method, entry in entries.items():
            values = dict(entry.means)
            values |= {f"{name}_sd": value for name, value in entry.deviations.items()}
            fits = [record.fits[method] for record in records if method in record.fits]
            shares = [fit.ess_share for fit in fits if fit.ess_share is not None]
            spent = [record.seconds[method] for record in records if method in record.seconds]
            writer.writerow(
                [
                    shift,
                    method,
                    len(records),
                    records[0].n,
                    entry.temperature,
                    ranks.get(method, ""),
                    comparison.harm(shift, method),
                    counted(comparison.took(shift, method), len(records)),
                    counted(comparison.failed(shift, method), len(records)),
                    fmean(shares) if shares else "",
                    fmean(duration.wall for duration in spent) if spent else "",
                    fmean(duration.cpu for duration in spent) if spent else "",
                    *(comparison.estimate(shift) or ("", "", "")),
                    *(values.get(name, "") for name in both),
                ]
            )
    return page.getvalue()


FORMATS = {".csv": as_csv, ".md": as_markdown, ".tex": as_tex}


def require_format(path: Path) -> Callable[[Comparison], str]:
    """Return the function that writes a comparison in the format of the file extension."""
    render = FORMATS.get(path.suffix.lower())
    if render is None:
        raise CovcalError(
            f"{path}: a comparison can be written as {', '.join(FORMATS)}: use one of these endings"
        )
    return render


def write_comparison(comparison: Comparison, path: str | Path, *, force: bool) -> None:
    """Write a comparison to a file, in the format of the file extension."""
    path = Path(path)
    write_text(path, require_format(path)(comparison), force=force)
