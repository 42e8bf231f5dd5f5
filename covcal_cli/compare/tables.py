"""A comparison as a table: for a screen, a page, a paper, a data frame."""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from covcal_cli.compare.ranking import MAX_HARM, Comparison
from covcal_cli.errors import CovcalError
from covcal_cli.evaluate.metrics import METRICS
from covcal_cli.files import write_text

_TEX = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def rows(
    comparison: Comparison, *, plus_minus: str = " ± ", bold: Callable[[str], str] = str
) -> tuple[list[str], list[list[str]]]:
    """Return the heads and the cells of the table: a row per method, a column per shift.

    With several shifts there are the mean over them, the mean rank and the number of shifts with
    harm as well; a method that did not run on all of them has neither of the first two. `bold`
    marks the best cell of a column.
    """
    several = len(comparison.shifts) > 1
    heads = ["method", *comparison.shifts, *(["mean", "rank", "harmed"] if several else [])]
    everywhere = comparison.everywhere()
    firsts = {
        shift: min(comparison.ranks(shift).values(), default=None) for shift in comparison.shifts
    }
    sign = 1 if comparison.metric.better == "lower" else -1
    best = min((sign * comparison.mean(method) for method in everywhere), default=None)
    found = []
    for method in comparison.methods:
        cells = [method]
        for shift in comparison.shifts:
            text = _score(comparison, shift, method, plus_minus)
            rank = comparison.ranks(shift).get(method)
            cells.append(text if rank is None or rank != firsts[shift] else bold(text))
        if several:
            mean, mean_rank = "-", "-"
            if method in everywhere:
                mean = _number(comparison, comparison.mean(method))
                mean = bold(mean) if sign * comparison.mean(method) == best else mean
                mean_rank = f"{comparison.mean_rank(method):.1f}"
            cells += [mean, mean_rank, str(len(comparison.harmed(method)))]
        found.append(cells)
    return heads, found


def caption(comparison: Comparison) -> str:
    """Return what the numbers of the table are, in a sentence or two."""
    shown = comparison.metric.report or comparison.metric.screen
    name = comparison.metric.name if shown is None else shown.label
    unit = " in percent" if _percent(comparison) else ""
    over = (
        f", mean and standard deviation over {comparison.seeds} seeds"
        if comparison.seeds > 1
        else ", one seed"
    )
    text = f"{name}{unit} on target test rows{over}."
    if len(comparison.shifts) == 1:
        return text
    harm = f"{100 * MAX_HARM:.0f} point" if _percent(comparison) else f"{MAX_HARM}"
    return (
        f"{text} Rank: mean over shifts, 1 is best. Harmed: shifts on which a method is more than "
        f"{harm} worse than the better of none and temp."
    )


def _score(comparison: Comparison, shift: str, method: str, plus_minus: str) -> str:
    entry = comparison.shifts[shift].get(method)
    name = comparison.metric.name
    if entry is None or name not in entry.means:
        return "-"
    text = _number(comparison, entry.means[name])
    deviation = entry.deviations[name]
    return f"{text}{plus_minus}{_number(comparison, deviation)}" if deviation else text


def _percent(comparison: Comparison) -> bool:
    shown = comparison.metric.report or comparison.metric.screen
    return shown is None or shown.percent


def _number(comparison: Comparison, value: float) -> str:
    return f"{100 * value:.2f}" if _percent(comparison) else f"{value:.4f}"


# Formats of files, by suffix.


def as_markdown(comparison: Comparison) -> str:
    """Return a Markdown table, the best of each column in bold."""
    heads, cells = rows(comparison, bold=lambda text: f"**{text}**")
    rules = ["---", *["---:"] * (len(heads) - 1)]
    lines = (" | ".join(_in_markdown(cell) for cell in row) for row in (heads, rules, *cells))
    table = "\n".join(f"| {line} |" for line in lines)
    return f"{table}\n\n{caption(comparison)}\n"


def _in_markdown(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def as_tex(comparison: Comparison) -> str:
    """Return a LaTeX tabular (package booktabs), the best of each column in bold."""
    heads, cells = rows(comparison, plus_minus=r" $\pm$ ", bold=lambda text: rf"\textbf{{{text}}}")

    def line(texts: Sequence[str]) -> str:
        return " & ".join(texts) + r" \\"

    escaped = [[_in_tex(row[0]), *row[1:]] for row in cells]
    body = [
        f"% {caption(comparison)}",
        rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
        r"\toprule",
        line([_in_tex(head) for head in heads]),
        r"\midrule",
        *map(line, escaped),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(body) + "\n"


def _in_tex(text: str) -> str:
    return "".join(_TEX.get(sign, sign) for sign in text)


def as_csv(comparison: Comparison) -> str:
    """Return a line per shift and method, with every metric; fractions, not percent."""
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    both = [key for name in METRICS for key in (name, f"{name}_sd")]
    writer.writerow(["shift", "method", "seeds", "n", "temperature", "rank", "harm", *both])
    for shift, entries in comparison.shifts.items():
        ranks = comparison.ranks(shift)
        for method, entry in entries.items():
            known = dict(entry.means)
            known |= {f"{name}_sd": value for name, value in entry.deviations.items()}
            writer.writerow(
                [
                    shift,
                    method,
                    comparison.seeds,
                    comparison.rows[shift],
                    entry.temperature,
                    ranks.get(method, ""),
                    comparison.harm(shift, method),
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
