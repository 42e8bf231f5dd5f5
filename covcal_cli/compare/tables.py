"""A comparison as a table: for a screen, a page, a paper, a data frame."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from covcal_cli.compare.ranking import HARMS, Comparison
from covcal_cli.compare.runs import BASELINES
from covcal_cli.errors import CovcalError
from covcal_cli.evaluate.metrics import METRICS
from covcal_cli.files import write_text

# The most shifts that are columns; more are rows of a table of their own.
_WIDE = 8
_TEX = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    ">": "$>$",
    "<": "$<$",
}


@dataclass(frozen=True)
class Grid:
    """Columns, and rows of as many cells."""

    heads: list[str]
    rows: list[list[str]]
    texts: tuple[int, ...] = (0,)  # columns of text; the others are numbers


def grids(
    comparison: Comparison, *, plus_minus: str = " ± ", bold: Callable[[str], str] = str
) -> list[Grid]:
    """Return the comparison as a table, or as two where there are many shifts.

    The table has a row per method and a column per shift; with several shifts there are the mean
    over them, the worst score, the mean rank and the numbers of shifts with harm as well, of which
    a method that did not run on all of them has the last alone. Many shifts are rows, and behind
    what there is of all together. `bold` marks the best cell.
    """
    shifts = _by_shift(comparison, plus_minus, bold)
    if len(comparison.shifts) == 1:
        return [shifts]
    overall = _over_shifts(comparison, bold)
    if len(comparison.shifts) > _WIDE:
        heads, *rows = map(list, zip(shifts.heads, *shifts.rows, strict=True))
        return [overall, Grid(["shift", *heads[1:]], rows)]
    rows = [row + more[1:] for row, more in zip(shifts.rows, overall.rows, strict=True)]
    return [Grid(shifts.heads + overall.heads[1:], rows)]


def _by_shift(comparison: Comparison, plus_minus: str, bold: Callable[[str], str]) -> Grid:
    """Return a row per method and a column per shift."""
    columns = []
    for shift in comparison.shifts:
        ranks = comparison.ranks(shift)
        first = min(ranks.values(), default=0)  # 0 is no rank
        texts = {m: _score(comparison, shift, m, plus_minus) for m in comparison.methods}
        columns.append([bold(t) if ranks.get(m) == first else t for m, t in texts.items()])
    rows = [list(row) for row in zip(comparison.methods, *columns, strict=True)]
    return Grid(["method", *comparison.shifts], rows)


def _over_shifts(comparison: Comparison, bold: Callable[[str], str]) -> Grid:
    """Return a row per method: what there is of all shifts together."""
    everywhere = comparison.everywhere
    sign = 1 if comparison.metric.better == "lower" else -1
    best = min((sign * comparison.mean(method) for method in everywhere), default=None)
    rows = []
    for method in comparison.methods:
        cells = ["-", "-", "-"]
        if method in everywhere:
            mean = comparison.mean(method)
            worst = comparison.score(comparison.worst(method), method)
            cells = [
                bold(number(comparison, mean)) if sign * mean == best else number(comparison, mean),
                "-" if worst is None else number(comparison, worst),
                f"{comparison.mean_rank(method):.1f}",
            ]
        ran = any(method in entries for entries in comparison.shifts.values())
        harmed = [str(len(comparison.harmed(method, by))) if ran else "-" for by in HARMS]
        rows.append([method, *cells, *harmed])
    return Grid(["method", "mean", "worst", "rank", *harm_heads(comparison)], rows)


def harm_heads(comparison: Comparison) -> list[str]:
    """Return the heads of columns that count harmed shifts."""
    return [f"> {100 * by:.0f}" if percent(comparison) else f"> {by}" for by in HARMS]


def caption(comparison: Comparison) -> str:
    """Return what the numbers of the table are, in a sentence or two."""
    shown = comparison.metric.report or comparison.metric.screen
    name = comparison.metric.name if shown is None else shown.label
    unit = " in percent" if percent(comparison) else ""
    over = (
        f", mean and standard deviation over {comparison.seeds} seeds"
        if comparison.seeds > 1
        else ", one seed"
    )
    text = f"{name}{unit} on target test rows{over}."
    if len(comparison.shifts) == 1:
        return text
    unit = "points" if percent(comparison) else "in all"
    return (
        f"{text} Rank: mean over shifts, 1 is best. {', '.join(harm_heads(comparison))}: shifts on "
        f"which a method is so many {unit} worse than the better of {' and '.join(BASELINES)}."
    )


def of_auto(comparison: Comparison) -> Grid | None:
    """Return what auto took on each shift, what it had estimated, and the guards that failed.

    None where auto did not run, or no file allowed an estimate.
    """
    rows = []
    for shift in comparison.shifts:
        found, took = comparison.estimate(shift), comparison.took(shift)
        true = comparison.shifts[shift][BASELINES[0]].means["accuracy"]
        if found is None or not took:
            continue
        estimated = "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * value for value in found))
        failed = counted(comparison.failed(shift), len(comparison.records[shift]))
        method = counted(took, len(comparison.records[shift]))
        rows.append([shift, method, estimated, f"{100 * true:.1f}", failed or "none"])
    heads = ["shift", "auto took", "estimated accuracy", "true", "failed guards"]
    return Grid(heads, rows, (0, 1, 4)) if rows else None


def caption_of_auto(comparison: Comparison) -> str:
    """Return how the estimates of `of_auto` fared, in a sentence or two."""
    found = comparison.coverage()
    text = "Accuracies are in percent, the true ones on the rows judged."
    if found is None:
        return text
    return (
        f"{text} The estimates are off by {100 * found.error:.1f} points on average; the intervals "
        f"hold {found.held:.0%} of the true ones and are {100 * found.width:.1f} points wide."
    )


def counted(seeds: Mapping[str, int], of: int) -> str:
    """Return names, each with its number of seeds where it is not all of them."""
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
    """Return whether the ranking metric is shown in percent."""
    shown = comparison.metric.report or comparison.metric.screen
    return shown is None or shown.percent


def number(comparison: Comparison, value: float) -> str:
    """Return a value of the ranking metric as tables have it."""
    return f"{100 * value:.2f}" if percent(comparison) else f"{value:.4f}"


# Formats of files, by suffix.


def as_markdown(comparison: Comparison) -> str:
    """Return Markdown tables, the best of each shift in bold."""
    parts = [markdown(grid) for grid in grids(comparison, bold=lambda text: f"**{text}**")]
    parts.append(caption(comparison))
    auto = of_auto(comparison)
    if auto is not None:
        parts += [markdown(auto), caption_of_auto(comparison)]
    return "\n\n".join(parts) + "\n"


def markdown(grid: Grid) -> str:
    """Return one table as Markdown; numbers may have markup."""
    rules = ["---" if i in grid.texts else "---:" for i in range(len(grid.heads))]
    rows = [
        [_in_markdown(cell) if i in grid.texts else cell for i, cell in enumerate(row)]
        for row in grid.rows
    ]
    lines = [map(_in_markdown, grid.heads), rules, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _in_markdown(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def as_tex(comparison: Comparison) -> str:
    """Return LaTeX tabulars (package booktabs), the best of each shift in bold."""
    found = grids(comparison, plus_minus=r" $\pm$ ", bold=lambda text: rf"\textbf{{{text}}}")
    return f"% {caption(comparison)}\n" + "\n".join(map(_tabular, found))


def _tabular(grid: Grid) -> str:
    def line(texts: Iterable[str]) -> str:
        return " & ".join(texts) + r" \\"

    body = [
        rf"\begin{{tabular}}{{l{'r' * (len(grid.heads) - 1)}}}",
        r"\toprule",
        line(map(_in_tex, grid.heads)),
        r"\midrule",
        *(line([_in_tex(row[0]), *row[1:]]) for row in grid.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(body) + "\n"


def _in_tex(text: str) -> str:
    return "".join(_TEX.get(sign, sign) for sign in text)


def as_csv(comparison: Comparison) -> str:
    """Return a line per shift and method, with every metric; fractions, not percent.

    What was estimated of a shift stands in each of its lines.
    """
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    both = [key for name in METRICS for key in (name, f"{name}_sd")]
    heads = ["shift", "method", "seeds", "n", "temperature", "rank", "harm", "method_used"]
    heads += ["failed_guards", "ess_share", "seconds"]
    heads += ["estimated_accuracy", "estimate_low", "estimate_high"]
    writer.writerow([*heads, *both])
    for shift, entries in comparison.shifts.items():
        ranks, records = comparison.ranks(shift), comparison.records[shift]
        for method, entry in entries.items():
            known = dict(entry.means)
            known |= {f"{name}_sd": value for name, value in entry.deviations.items()}
            fits = [record.fits[method] for record in records if method in record.fits]
            shares = [fit.ess_share for fit in fits if fit.ess_share is not None]
            spent = [r.seconds[method].wall for r in records if method in r.seconds]
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
                    fmean(spent) if spent else "",
                    *(comparison.estimate(shift) or ("", "", "")),
                    *(known.get(name, "") for name in both),
                ]
            )
    return page.getvalue()


FORMATS = {".csv": as_csv, ".md": as_markdown, ".tex": as_tex}


def require_format(path: Path) -> Callable[[Comparison], str]:
    """Return what makes the text of a file from its suffix."""
    found = FORMATS.get(path.suffix.lower())
    if found is None:
        raise CovcalError(f"{path}: a comparison is written as {', '.join(FORMATS)}: name it so")
    return found


def write_comparison(comparison: Comparison, path: str | Path, *, force: bool) -> None:
    """Write a comparison in the format of the path's suffix, whole or not at all."""
    path = Path(path)
    write_text(path, require_format(path)(comparison), force=force)
