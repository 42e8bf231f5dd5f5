"""Make tables of results, and the diagram of a decision.

`Table` makes texts from users and files safe to print.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from covcal_cli.errors import in_percent, interval, percent, printable, short_percent
from covcal_cli.evaluate.bins import GroupMetrics
from covcal_cli.evaluate.metrics import METRICS, Metrics, in_report
from covcal_cli.evaluate.result import DecisionMetrics, Evaluation
from covcal_cli.forecast import NONE
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.decision import CurvePoint, Decision
from covcal_cli.maths.softmax import shown_temperatures
from covcal_cli.records import Guard
from covcal_cli.report.verdict import ReportContent, accepted_sentence, sentence

if TYPE_CHECKING:
    from covcal_cli.calibrate.estimate import Estimation

MAX_CLASSES = 50
_DIRECTIONS = {1: "worse", 0: "neither", -1: "better"}
_WIDTH, _HEIGHT = 420, 300
_LEFT, _TOP, _ACROSS, _DOWN = 52, 12, 350, 236
_EXPECTED, _MEASURED, _LIMIT = "var(--under)", "var(--ink)", "var(--over)"
_STEPS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
_POINTS = 60
Points = Sequence[tuple[float, float]]  # accepted shares with their errors


class Lines(str):
    """A table cell with several lines. The lines must not contain text from a user or a file."""

    __slots__ = ()


class Raw(str):
    """A table cell of LaTeX or Markdown code that is not escaped."""

    __slots__ = ()


@dataclass(frozen=True)
class Table:
    """A table that can be drawn as text, Markdown, LaTeX or HTML.

    Unprintable characters are replaced, except in cells of type `Lines` and `Raw`.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    # indices of left-aligned columns
    texts: Collection[int] = (0,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", [printable(text) for text in self.columns])
        rows = [
            [cell if isinstance(cell, Lines | Raw) else printable(cell) for cell in row]
            for row in self.rows
        ]
        object.__setattr__(self, "rows", rows)


_TEX = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    ">": "$>$",
    "<": "$<$",
}


def latex(table: Table) -> str:
    """Return a table in LaTeX, for the package booktabs."""
    aligned = "".join("l" if index in table.texts else "r" for index in range(len(table.columns)))
    lines = [rf"\begin{{tabular}}{{{aligned}}}", r"\toprule", _tex_row(table.columns), r"\midrule"]
    lines += [_tex_row(row) for row in table.rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _tex_row(cells: Sequence[str]) -> str:
    texts = (
        cell if isinstance(cell, Raw) else "".join(_TEX.get(c, c) for c in cell) for cell in cells
    )
    return " & ".join(texts) + r" \\"


_MARKS = re.compile(r"[\\`*_\[\]|~]")  # characters that Markdown would read as markup
_TAG, _ENTITY = re.compile("<(?=[A-Za-z/!?])"), re.compile("&(?=[A-Za-z#])")


def markdown(table: Table) -> str:
    """Return a table in Markdown, with escaped cells."""
    rules = ["---" if index in table.texts else "---:" for index in range(len(table.columns))]
    lines = [f"| {' | '.join(map(in_markdown, row))} |" for row in (table.columns, *table.rows)]
    return "\n".join([lines[0], f"|{'|'.join(rules)}|", *lines[1:]])


def in_markdown(text: str) -> str:
    """Escape a text for Markdown."""
    if isinstance(text, Raw):
        return text
    escaped = _MARKS.sub(r"\\\g<0>", printable(text))
    return _TAG.sub("&lt;", _ENTITY.sub("&amp;", escaped))


def safe(text: str) -> str:
    """Escape a text for HTML. A number and its % stay on one line."""
    return escape(printable(text)).replace(" %", "\N{NO-BREAK SPACE}%")


def html(table: Table, *, long_words: bool = False) -> str:
    """Return a table as HTML, with escaped cells.

    On a narrow screen, each row of a wide table becomes a list. `long_words` allows line breaks
    within hashes and paths.
    """
    last = len(table.columns) - 1
    stacks = last > 2 or (last in table.texts and last > 0)

    def attributes(index: int) -> str:
        label = f' data-label="{escape(table.columns[index])}"' if stacks else ""
        return label + ("" if index in table.texts else " class=number")

    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{attributes(index) if tag == 'td' or index not in table.texts else ''}>"
            f"{escape(text).replace(chr(10), '<br>')}</{tag}>"
            for index, text in enumerate(row)
        )

    body = "\n".join(f"<tr>{cells(row, 'td')}</tr>" for row in table.rows)
    kind = f"table{' long' if long_words else ''}{' stack' if stacks else ''}"
    return (
        f'<div class="{kind}" tabindex="0"><table>'
        f"<thead><tr>{cells(table.columns, 'th')}</tr></thead>\n"
        f"<tbody>{body}</tbody></table></div>"
    )


def metrics_table(evaluation: Evaluation) -> str:
    """Return a table of the metrics of all calibrations, with intervals if there are any."""
    names = list(evaluation.metrics)
    rows = [["Rows", *(str(evaluation.metrics[name].n) for name in names)]]
    rows.append(["Temperature", *(evaluation.scalings[name].shown(3) for name in names)])
    for metric, display in in_report():
        cells = [display.label]
        for name in names:
            text = _number(evaluation.metrics[name].value(metric), display.percent)
            ends = evaluation.intervals.get(name, {}).get(metric)
            if ends is not None:
                low, high = (_number(end, display.percent) for end in ends)
                text = Lines(f"{text}\n({low.removesuffix(' %')} to {high})")
            cells.append(text)
        rows.append(cells)
    return html(Table(["", *names], rows))


def labels_table(labels: Mapping[str, ReportContent], advice: Mapping[str, str]) -> str:
    """Return a table with accuracy, confidence, ECE, T and advice for each label."""
    rows = []
    for label, content in labels.items():
        accuracy, eces = "", ["-", "-"]
        if content.evaluation is not None:
            metrics = content.evaluation.metrics
            accuracy = percent(metrics[NONE].accuracy)
            eces = [percent(metrics[name].ece) for name in (NONE, content.name)]
        elif content.estimation is not None:
            best = content.estimation.estimates[0]
            ends = interval(best.low, best.high, best.accuracy)
            accuracy = f"about {in_percent(best.accuracy)} % {ends}"
        confidence = map(percent, content.calibration.target_confidence)
        temperature = content.calibration.scaling.shown(3)
        rows.append([label, accuracy, *confidence, *eces, temperature, advice[label]])
    header = [
        "label",
        "accuracy",
        "confidence before",
        "confidence after",
        "ECE before",
        "ECE after",
    ]
    return html(Table([*header, "T", "advice"], rows, texts=(0, 7)))


def differences_table(
    evaluation: Evaluation, metrics: Collection[str] = tuple(METRICS), *, on_screen: bool = False
) -> Table:
    """Return a table of the differences between calibrations on the same rows.

    `metrics` maps each metric to its heading.
    """
    rows = []
    for difference in evaluation.differences:
        metric = METRICS[difference.metric]
        display = metric.screen if on_screen else metric.report
        if metric.name not in metrics:
            continue
        # Precise differences need more digits.
        is_precise = difference.high - difference.low < 4 * 0.0005
        digits = 2 if is_precise else 1
        value, low, high = (
            f"{100 * number:+.{digits}f} %" if display and display.percent else f"{number:+.4f}"
            for number in (difference.value, difference.low, difference.high)
        )
        name = display.label if display else metric.name
        names = (difference.calibration, difference.against, name)
        direction = _DIRECTIONS[difference.direction]
        rows.append([*names, value, f"{low} to {high}", direction])
    columns = ("calibration", "compared with", "metric", "difference", "interval", "proved")
    return Table(columns, rows, texts=(0, 1, 2, 5))


def class_table(groups: Sequence[GroupMetrics]) -> tuple[str, int]:
    """Return a table of the most over-confident classes, and the number of other classes."""
    filled = [group for group in groups if group.n]
    if len(filled) > MAX_CLASSES:
        filled = sorted(filled, key=lambda group: -(group.over_ece or 0.0) * group.n)
    rows = [
        [
            f"{group.name}{' *' if group.small else ''}",
            str(group.n),
            percent(group.accuracy),
            percent(group.mean_confidence),
            percent(group.ece),
            percent(group.over_ece),
        ]
        for group in filled[:MAX_CLASSES]
    ]
    header = ["predicted class", "rows", "accuracy", "mean confidence", "ECE", "over-confident"]
    return html(Table(header, rows)), max(0, len(filled) - MAX_CLASSES)


def weights_table(calibration: Calibration) -> Table:
    """Return a table of measures of the importance weights, or an empty table without weights."""
    health = calibration.weights
    rows = (
        []
        if health is None
        else [
            [
                "effective sample size (overlap of the domains)",
                f"{health['ess']:.1f} of {health['n']}",
            ],
            ["effective sample size in the fit of T", f"{health['ess_fit']:.1f} of {health['n']}"],
            ["mean weight (should be 1)", f"{health['mean_weight']:.3f}"],
            [
                "largest weight, as a share of the sum of all weights",
                percent(health["largest_share"]),
            ],
            ["weights clipped at the limit", percent(health["clipped_share"])],
            [
                "AUC of source against target (50 %: indistinguishable)",
                percent(health["domain_auc"]),
            ],
        ]
    )
    return Table(["importance weights", ""], rows)


def candidates_table(calibration: Calibration) -> Table:
    """Return a table of the methods that ``auto`` compared, or an empty table for other methods."""
    rows = [
        [
            candidate.method,
            shown_temperatures(candidate.temperature, candidate.aligned_temperature, 4),
            percent(candidate.target_confidence),
            percent(candidate.estimated_accuracy),
            "matched" if candidate.matched else percent(candidate.expected_ece),
            candidate.why,
        ]
        for candidate in calibration.candidates
    ]
    columns = ("candidate", "T", "confidence", "est. accuracy", "difference", "why")
    return Table(columns, rows, texts=(0, 5))


def checks_table(guards: Sequence[Guard]) -> Table:
    """Return a table of all checks."""
    rows = [["passed" if guard.passed else "FAILED", guard.sentence] for guard in guards]
    return Table(["check", "meaning"], rows, texts=(0, 1))


def estimates_table(estimation: "Estimation") -> Table:
    """Return a table of the target accuracy estimated by each estimator."""
    rows = []
    for estimate in estimation.estimates:
        accuracy, low, high = (
            percent(share, 1) for share in (estimate.accuracy, estimate.low, estimate.high)
        )
        cells = (accuracy, f"{low} to {high}", estimate.trust, estimate.assumption)
        rows.append([estimate.name, *cells])
    columns = ("estimate", "accuracy", "interval", "trusted", "assumption")
    return Table(columns, rows, texts=(0, 3, 4))


def provenance_table(content: ReportContent) -> str:
    """Return a table of files with their hashes, versions and seeds."""
    named = [entry for calibration in content.calibrations.values() for entry in calibration.inputs]
    if content.evaluation is not None:
        named += content.evaluation.inputs
    inputs = sorted({(entry.role, str(entry.path), entry.sha256) for entry in named})
    rows = [[role, f"{path}, sha256 {digest}"] for role, path, digest in inputs]
    rows += [[f"{name} rows", text] for name, text in content.rows.items()]
    hidden = {"schema", "complete", "training"}
    rows += [[name, text] for name, text in content.attributes.items() if name not in hidden]
    return html(Table(["", ""], rows, texts=(0, 1)), long_words=True)


def _number(value: float | None, in_percent: bool) -> str:
    return percent(value) if in_percent or value is None else f"{value:.4f}"


def acceptance(
    decision: Decision, measured: DecisionMetrics | None, metrics: Metrics | None
) -> str:
    """Return the HTML section about a decision.

    `metrics` are the metrics of the decision's calibration.
    """
    curve = () if metrics is None else measured_curve(metrics)
    texts = [sentence(decision), *(() if measured is None else _in_words(measured))]
    figure = ""
    if decision.accepts_rows:
        figure = diagram(decision, curve)
        has_range = any(point.low < point.high for point in decision.curve)
        key = f"The line shows the expected error.{' The area shows its range.' * has_range}"
        if decision.share:
            key += " The vertical line shows the share of accepted rows."
        if curve:
            key += " The dashed curve shows the error that was measured with labels."
        texts.insert(1, key)
    paragraphs = "".join(f"<p>{safe(text)}</p>" for text in texts)
    return f'<figure class="wide">{figure}</figure>{paragraphs}'


def _in_words(measured: DecisionMetrics) -> Iterable[str]:
    if measured.accepted:
        yield accepted_sentence(measured)
    if measured.coverage is not None:
        yield (
            f"Sets have {measured.set_size:.2f} classes on average, and contain the right class in "
            f"{percent(measured.coverage)} of the rows."
        )


def measured_curve(metrics: Metrics) -> Points:
    """Return points (share of accepted rows, measured error) for the diagram of a decision."""
    rows = metrics.ranked
    n = len(rows)
    starts = np.unique(np.linspace(0, n, min(n, _POINTS), endpoint=False).astype(np.int64))
    _, hits = rows.sums_from(starts)
    sizes = np.diff(starts, append=n)
    accepted = np.cumsum(sizes[::-1])
    errors = np.cumsum((sizes - hits)[::-1]) / accepted
    return list(zip((accepted / n).tolist(), errors.tolist(), strict=True))


def diagram(decision: Decision, measured: Points) -> str:
    """Return an SVG diagram of the error against the share of accepted rows."""
    limit = decision.error or 0.0
    errors = (*(point.high for point in decision.curve), *(error for _, error in measured))
    largest = min(1.0, max(limit * 1.5, 0.01, *errors))
    step = next(size for size in _STEPS if size * 5 >= largest)
    highest = step * math.ceil(largest / step - 1e-9)

    def place(share: float, error: float) -> str:
        return f"{_LEFT + _ACROSS * share:.1f},{_TOP + _DOWN * (1 - error / highest):.1f}"

    def line(points: Iterable[tuple[float, float]], style: str) -> str:
        return f'<polyline points="{" ".join(place(*point) for point in points)}" {style}/>'

    curve: Sequence[CurvePoint] = decision.curve
    band = [(point.share, point.high) for point in curve]
    band += [(point.share, point.low) for point in reversed(curve)]
    parts = [
        f'<svg class="diagram" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{safe(sentence(decision))}</title>",
    ]
    for error in np.arange(0, highest + step / 2, step).tolist():
        y = _TOP + _DOWN * (1 - error / highest)
        parts += [
            line([(0, error), (1, error)], 'stroke="var(--rule)"'),
            f'<text x="{_LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">',
            f"{short_percent(error)}</text>",
        ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = _LEFT + _ACROSS * share
        parts.append(
            f'<text x="{x:.1f}" y="{_TOP + _DOWN + 16}" text-anchor="middle">{share:.0%}</text>'
        )
    parts += [
        line(band, f'fill="{_EXPECTED}" fill-opacity="0.15"'),
        line([(p.share, p.error) for p in curve], f'fill="none" stroke="{_EXPECTED}"'),
        line(measured, f'fill="none" stroke="{_MEASURED}" stroke-dasharray="5 4"'),
    ]
    if decision.error is not None:
        parts += [
            line([(0, limit), (1, limit)], f'stroke="{_LIMIT}" stroke-width="1.5"'),
            f'<text x="{_LEFT + 4}" y="{_TOP + _DOWN * (1 - limit / highest) - 4:.1f}">limit '
            f"{short_percent(limit)}</text>",
        ]
    if decision.share:
        end = [(decision.share, 0), (decision.share, highest)]
        parts.append(line(end, f'stroke="{_LIMIT}" stroke-dasharray="2 3"'))
    parts.append(
        f'<text x="{_LEFT + _ACROSS / 2:.0f}" y="{_HEIGHT - 12}" text-anchor="middle">share of '
        f'rows accepted</text><text transform="translate(12 {_TOP + _DOWN / 2:.0f}) rotate(-90)" '
        'text-anchor="middle">wrong among them</text></svg>'
    )
    return "\n".join(parts)
