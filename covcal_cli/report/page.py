"""Make the page: HTML, CSS and SVG in one file, without scripts.

The page is readable on a phone, on paper and without colour.
"""

from collections.abc import Iterable

import numpy as np

from covcal_cli import __version__
from covcal_cli.errors import interval, percent
from covcal_cli.evaluate.bins import SMALL_GROUP
from covcal_cli.evaluate.metrics import Metrics
from covcal_cli.report.tables import (
    acceptance,
    candidates_table,
    checks_table,
    class_table,
    differences_table,
    estimates_table,
    html,
    labels_table,
    metrics_table,
    provenance_table,
    safe,
    weights_table,
)
from covcal_cli.report.verdict import (
    ReportContent,
    Verdict,
    basis,
    commands,
    measured_rows,
    verdict,
)

_OVER, _UNDER, _BAR = "var(--over)", "var(--under)", "var(--bar)"
_WIDTH, _HEIGHT = 328, 360
_LEFT, _TOP, _SIDE = 44, 12, 262
_COUNTS_TOP, _COUNTS_HEIGHT = 284, 36
DEFINITIONS = f"""<svg width="0" height="0" aria-hidden="true" class="definitions"><defs>
<pattern id="over" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<rect width="6" height="6" fill="{_OVER}" fill-opacity="0.18"/>
<line x1="0" y1="0" x2="0" y2="6" stroke="{_OVER}" stroke-width="2.4"/></pattern>
<pattern id="under" width="6" height="6" patternUnits="userSpaceOnUse">
<rect width="6" height="6" fill="{_UNDER}" fill-opacity="0.18"/>
<circle cx="3" cy="3" r="1.4" fill="{_UNDER}"/></pattern>
</defs></svg>"""


def swatch(kind: str) -> str:
    """Return the coloured box of a legend entry as HTML, without a text and ``</span>``."""
    return (
        f'<span><svg viewBox="0 0 24 14" aria-hidden="true"><rect width="24" height="14" '
        f'fill="url(#{kind})" stroke="var(--faint)"/></svg> '
    )


def reliability_diagram(name: str, metrics: Metrics) -> str:
    """Return a reliability diagram as SVG: accuracy, confidence and number of rows per bin."""
    bins = metrics.bins
    most = int(bins.counts.max())
    parts = [
        f'<svg class="diagram" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{safe(_in_words(name, metrics))}</title>",
        *_frame(),
    ]
    for index in np.flatnonzero(bins.counts):
        left, right = float(bins.edges[index]), float(bins.edges[index + 1])
        accuracy, confidence = float(bins.accuracy[index]), float(bins.confidence[index])
        label = (
            f"confidence {percent(confidence, 1)}, accuracy {percent(accuracy, 1)}, "
            f"{bins.counts[index]} rows"
        )
        low, high = sorted((accuracy, confidence))
        kind, colour = ("over", _OVER) if confidence > accuracy else ("under", _UNDER)
        share = float(bins.counts[index]) / most
        parts += [
            f"<g><title>{label}</title>",
            _bar(left, right, 0.0, accuracy, f'fill="{_BAR}" stroke="var(--page)"'),
            _bar(left, right, low, high, f'fill="url(#{kind})" stroke="{colour}"'),
            f'<rect x="{_x(left):.1f}" y="{_COUNTS_TOP + _COUNTS_HEIGHT * (1 - share):.1f}" '
            f'width="{_x(right) - _x(left):.1f}" height="{_COUNTS_HEIGHT * share:.1f}" '
            f'fill="{_BAR}" stroke="var(--page)"/></g>',
        ]
    parts.append(
        f'<line x1="{_x(0):.0f}" y1="{_y(0):.0f}" x2="{_x(1):.0f}" y2="{_y(1):.0f}" '
        'stroke="var(--ink)" stroke-dasharray="5 4"/></svg>'
    )
    return "\n".join(parts)


def _in_words(name: str, metrics: Metrics) -> str:
    return (
        f"Reliability of {name}: ECE {percent(metrics.ece, 1)}, over-confident "
        f"{percent(metrics.over_ece, 1)}, "
        f"under-confident {percent(metrics.under_ece, 1)}, {metrics.n} rows"
    )


def _frame() -> list[str]:
    lines = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        lines += [
            f'<line x1="{_x(0):.0f}" y1="{_y(tick):.1f}" x2="{_x(1):.0f}" y2="{_y(tick):.1f}" '
            'stroke="var(--rule)"/>',
            f'<text x="{_x(0) - 5:.0f}" y="{_y(tick) + 4:.1f}" text-anchor="end">{tick:.0%}</text>',
            f'<text x="{_x(tick):.1f}" y="{_COUNTS_TOP + _COUNTS_HEIGHT + 15}" '
            f'text-anchor="middle">{tick:.0%}</text>',
        ]
    lines.append(
        f'<text x="{_x(0.5):.0f}" y="{_HEIGHT - 8}" text-anchor="middle">confidence</text>'
        f'<text transform="translate(13 {_y(0.5):.0f}) rotate(-90)" text-anchor="middle">'
        "accuracy</text>"
        f'<text transform="translate(13 {_COUNTS_TOP + _COUNTS_HEIGHT / 2:.0f}) rotate(-90)" '
        'text-anchor="middle">rows</text>'
    )
    return lines


def _bar(left: float, right: float, low: float, high: float, style: str) -> str:
    return (
        f'<rect x="{_x(left):.1f}" y="{_y(high):.1f}" width="{_x(right) - _x(left):.1f}" '
        f'height="{_y(low) - _y(high):.1f}" {style}/>'
    )


def _x(share: float) -> float:
    return _LEFT + _SIDE * share


def _y(share: float) -> float:
    return _TOP + _SIDE * (1 - share)


_SCALE_WIDTH, _SCALE_LEFT, _SCALE_SPAN, _ROW = 360, 16, 328, 46


def estimate_diagram(content: ReportContent) -> str:
    """Return an SVG diagram of the estimated accuracy and the mean confidence."""
    assert content.estimation is not None
    best = content.estimation.estimates[0]
    before, after = content.calibration.target_confidence
    marks: list[tuple[str, float, str]] = [("estimated accuracy", best.accuracy, "var(--ink)")]
    if before is not None and after is not None:
        marks += [
            ("confidence before", before, _OVER),
            (f"confidence with {content.name}", after, _UNDER),
        ]
    if content.source_accuracy is not None:
        marks.append(("accuracy on the source", content.source_accuracy.share, "var(--faint)"))
    height = _ROW * len(marks) + 34
    text = (
        f"Estimated accuracy {percent(best.accuracy, 0)}, between {percent(best.low, 0)} and "
        f"{percent(best.high, 0)}; "
        + ", ".join(f"{name} {percent(value, 0)}" for name, value, _ in marks[1:])
    )
    parts = [
        f'<svg class="diagram" viewBox="0 0 {_SCALE_WIDTH} {height}" role="img">',
        f"<title>{safe(text)}</title>",
        f'<rect x="{_at(best.low):.1f}" y="8" width="{_at(best.high) - _at(best.low):.1f}" '
        f'height="{height - 34}" fill="{_BAR}" fill-opacity="0.55"/>',
    ]
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        anchor = "start" if tick == 0 else "end" if tick == 1 else "middle"
        parts.append(
            f'<line x1="{_at(tick):.1f}" y1="8" x2="{_at(tick):.1f}" y2="{height - 26}" '
            f'stroke="var(--rule)"/><text x="{_at(tick):.1f}" y="{height - 10}" '
            f'text-anchor="{anchor}">{tick:.0%}</text>'
        )
    for row, (name, value, colour) in enumerate(marks):
        y = 8 + _ROW * row + 16
        anchor, shift = ("end", 9) if value > 0.5 else ("start", -9)
        parts.append(
            f'<circle cx="{_at(value):.1f}" cy="{y + 14}" r="5" fill="{colour}"/>'
            f'<text x="{_at(value) + shift - (2 * shift if anchor == "start" else 0):.1f}" '
            f'y="{y}" text-anchor="{anchor}">{safe(name)} {percent(value, 0)}</text>'
        )
    return "\n".join([*parts, "</svg>"])


def _beside_range(content: ReportContent) -> str:
    assert content.estimation is not None
    best = content.estimation.estimates[0]
    text = (
        "The grey bar is the range of the estimated accuracy "
        f"({interval(best.low, best.high)}). The mean confidence should equal the accuracy."
    )
    before, after = content.calibration.target_confidence
    inside = []
    for name, value in (("before calibration", before), (f"with {content.name}", after)):
        if value is None:
            continue
        if best.low <= value <= best.high:
            inside.append(name)
        else:
            gap = "high" if value > best.high else "low"
            text += f" The confidence {name} is outside the grey bar: it is probably too {gap}."
    if len(inside) == 2:
        text += " Both confidences are inside the grey bar, so each confidence may be right."
    elif inside:
        text += f" The confidence {inside[0]} is inside the grey bar, so it may be right."
    return text


def _at(share: float) -> float:
    return _SCALE_LEFT + _SCALE_SPAN * share


def page(content: ReportContent) -> str:
    """Return the report as an HTML page. The same content always gives the same bytes."""
    result = verdict(content)
    title = f"Can the confidence be trusted? {content.path.name}"
    parts = [
        f'<p class="origin">{safe(_origin(content))}</p>',
        _verdict_box(result),
        DEFINITIONS,
        *(_labels(content) if content.labels else _details(content)),
        section("Make this page again", _commands(content)),
        folded("Files, hashes and settings", provenance_table(content)),
    ]
    return whole_page(title, STYLE, parts)


def _commands(content: ReportContent) -> str:
    lines = commands(content)
    note = "Words in capitals, such as SOURCE, stand for names and numbers that you know."
    if any(line.startswith("covcal label ") for line in lines):
        note += " Write the labels in each CSV file before covcal label reads it."
    return f"<p>{note}</p><pre>{chr(10).join(map(safe, lines))}</pre>"


def whole_page(title: str, style: str, parts: Iterable[str]) -> str:
    """Return an HTML page with a heading. Empty parts are left out."""
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{safe(title)}</title>",
        f"<style>{style}</style></head><body>",
        f"<h1>{safe(title)}</h1>",
        *filter(None, parts),
        f'<p class="origin">covcal {safe(__version__)}</p>',
        "</body></html>",
    ]
    return "\n".join(lines) + "\n"


def _labels(content: ReportContent) -> Iterable[str]:
    verdicts = {label: verdict(of_label) for label, of_label in content.labels.items()}
    advice = {label: result.headline for label, result in verdicts.items()}
    yield section("Labels", labels_table(content.labels, advice))
    for label, of_label in content.labels.items():
        parts = (_verdict_box(verdicts[label]), *_details(of_label))
        yield folded(f"{label}: {advice[label]}", "\n".join(part for part in parts if part))


def _details(content: ReportContent) -> Iterable[str]:
    yield "" if content.reading is None else f"<p>{safe(content.reading)}</p>"
    yield from _accepted(content)
    yield from _measured(content)
    yield from _estimated(content)
    yield from _calibrations(content)


def _origin(content: ReportContent) -> str:
    classes = f"{len(content.calibration.classes)} classes"
    if content.labels:
        classes = f"{len(content.labels)} labels (a row can have several)"
    model = content.attributes.get("model_name") or "a classifier without a recorded name"
    if not content.calibration.model["sha256"]:
        model = "A table of outputs"
    rows = "; ".join(f"{name}: {text}" for name, text in content.rows.items())
    return f"{model}, {classes}. Number of rows: {rows}."


def _verdict_box(result: Verdict) -> str:
    sentences = "".join(f"<p>{safe(text)}</p>" for text in result.sentences)
    return (
        f'<div class="verdict {result.tone}"><strong>{safe(result.headline)}.</strong>'
        f"{sentences}</div>"
    )


def _accepted(content: ReportContent) -> Iterable[str]:
    if content.decision is None:
        return
    measured = None if content.evaluation is None else content.evaluation.decision
    metrics = None
    if content.evaluation is not None and measured is not None:
        metrics = content.evaluation.metrics[measured.calibration]
    yield section("Rows to accept", acceptance(content.decision, measured, metrics))


def _measured(content: ReportContent) -> Iterable[str]:
    evaluation = content.evaluation
    if evaluation is None:
        return
    diagrams = "\n".join(
        f"<figure><figcaption>{safe(name)}: ECE {percent(metrics.ece)}</figcaption>"
        f"{reliability_diagram(name, metrics)}</figure>"
        for name, metrics in evaluation.metrics.items()
    )
    yield section(
        "Before and after",
        f'<p class="key">{swatch("over")}over-confident</span>'
        f"{swatch('under')}under-confident</span></p>"
        f'<div class="diagrams">{diagrams}</div>'
        "<p>Rows are grouped by confidence. The height of a bar is the share of right answers. If "
        "the confidence is right, the bar ends on the dashed line. The calibration error (ECE) is "
        "the mean distance of the bars from the dashed line, weighted by the number of rows.</p>",
    )
    level = f"{100 * evaluation.level:.4g} %"
    texts = [
        f"Target {measured_rows(evaluation)}.",
        *(f"Note: {text}." for text in evaluation.notes),
    ]
    if evaluation.resamples:
        texts[0] += (
            f" The {level} intervals in parentheses come from {evaluation.resamples} resamples. By "
            "chance, even a perfect calibration has a measured ECE above 0. The interval of "
            "the ECE takes this chance effect into account."
        )
    notes = "".join(f"<p>{safe(text)}</p>" for text in texts)
    yield section("Metrics", metrics_table(evaluation) + notes)
    if evaluation.differences:
        note = f"<p>Paired differences with {level} intervals.</p>"
        yield section("Differences on the same rows", html(differences_table(evaluation)) + note)
    groups = evaluation.classes.get(content.name)
    if groups:
        table, left_out = class_table(groups)
        more = f" The {left_out} least over-confident classes are not shown."
        small = f"* The class has fewer than {SMALL_GROUP} rows, so its ECE is mostly noise."
        is_small = any(group.small and group.n for group in groups)
        note = f"<p>{small if is_small else ''}{more if left_out else ''}</p>"
        yield section(f"By predicted class, with {content.name}", table + note)


def _estimated(content: ReportContent) -> Iterable[str]:
    if content.estimation is None:
        return
    heading = "Confidence and estimated accuracy"
    if content.evaluation is None:
        yield section(
            heading,
            f'<figure class="wide">{estimate_diagram(content)}</figure>'
            f"<p>{safe(_beside_range(content))}</p>",
        )
    rows = content.estimation.labelled_rows
    heading, labels = "Estimates without labels", ""
    if rows is not None:
        heading = "Estimates with and without labels"
        labels = (
            f' The estimates "combined" and "labels" used the {rows.n} target labels that you gave.'
        )
    yield section(
        heading,
        "<p>Estimates of the target accuracy. covcal uses the first estimate. "
        f"{basis(content.estimation)}{labels}</p>"
        f"{html(estimates_table(content.estimation))}",
    )


def _calibrations(content: ReportContent) -> Iterable[str]:
    for name, calibration in content.calibrations.items():
        tables = [
            weights_table(calibration),
            candidates_table(calibration),
            checks_table(calibration.guards),
        ]
        chosen = "" if calibration.method == calibration.method_used else ", chosen by auto"
        texts = [f"Method {calibration.method_used}{chosen}: {calibration.reason}"]
        used = None if content.estimation is None else content.estimation.labelled_rows
        own = calibration.labelled_rows
        if used is not None and (own is None or own.n != used.n):
            texts.append(
                f"The calibration used {own.n if own else 'no'} labels, and the estimates on this "
                f"page used {used.n} labels. So they have different accuracies."
            )
        texts += [f"Warning: {text}" for text in calibration.warnings]
        texts += [f"Note: {text}" for text in calibration.notes]
        body = "".join(f"<p>{safe(text)}</p>" for text in texts)
        details = "".join(html(table) for table in tables if table.rows)
        if details:
            body += folded("Candidates, checks and weights", details)
        yield section(f"The calibration: {name}", body)


STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --faint: #52606d; --page: #fff; --box: #f5f7fa;
  --rule: #d9dee4; --over: #c04e00; --under: #005f9e; --bar: #c3cad3;
  --good: #007a5e; --mixed: #b07d00; --bad: #b3261e; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --faint: #9aa5b1;
  --page: #14181d; --box: #1f252c; --rule: #37414c; --over: #ff9a52; --under: #6db9f2;
  --bar: #4d5966; --good: #4fd1a5; --mixed: #e0b040; --bad: #ff8f84; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1rem; color: var(--ink);
  background: var(--page);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { margin: .4rem 0; max-width: 44rem; } .origin { color: var(--faint); }
.verdict { border-left: .5rem solid; padding: .5rem 1rem; margin: 1rem 0; background: var(--box);
  max-width: 48rem; }
.verdict strong { font-size: 1.2rem; }
.good { border-color: var(--good); } .mixed { border-color: var(--mixed); }
.bad { border-color: var(--bad); }
.diagrams { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); }
figure { margin: 0; max-width: 26rem; } figcaption { font-weight: 600; }
.diagram { display: block; width: 100%; height: auto; }
.diagram text { font-size: 11px; fill: var(--ink); }
.definitions { position: absolute; }
.key span { white-space: nowrap; margin-right: 1rem; }
.key svg { width: 1.6em; height: 1em; vertical-align: -.12em; }
.table { overflow-x: auto; margin: .5rem 0 1rem; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; min-width: 4.5rem; }
th:first-child, td:first-child { min-width: 7.5rem; }
td:last-child:not(.number) { min-width: 15rem; }
.long td { overflow-wrap: anywhere; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
pre { background: var(--box); padding: .7rem; overflow-x: auto; font-size: .85rem; }
figure.wide { max-width: 40rem; }
details { margin: 2rem 0 .5rem; } summary { font-weight: 600; cursor: pointer; }
@media screen and (max-width: 40rem) {
  th, td, th:first-child, td:first-child { padding-right: .6rem; min-width: 0; }
  .number { white-space: normal; }
  .stack thead { display: none; }
  .stack table, .stack tbody { display: block; }
  .stack tr { display: block; padding: .4rem 0; border-bottom: 1px solid var(--rule); }
  .stack td { display: grid; grid-template-columns: 8.5rem 1fr; gap: .5rem; border: 0;
    padding: .1rem 0; text-align: left; min-width: 0; white-space: normal; }
  .stack td:last-child:not(.number), .stack td:first-child { min-width: 0; }
  .stack td::before { content: attr(data-label); color: var(--faint); } }
@media print { body { max-width: none; font-size: 11px; padding: 0; }
  .table, pre { overflow: visible; } pre { white-space: pre-wrap; }
  figure, tr { break-inside: avoid; } h2 { break-after: avoid; } }
"""


def section(heading: str, body: str) -> str:
    """Return a section with a heading. `body` is HTML."""
    return f"<section><h2>{safe(heading)}</h2>\n{body}</section>"


def folded(heading: str, body: str) -> str:
    """Return a section that opens on a click. `body` is HTML."""
    return f"<details><summary>{safe(heading)}</summary>\n{body}</details>"
