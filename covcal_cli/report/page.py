"""The page: HTML, CSS and SVG in one file, without a script, a font or the network.

It opens on a phone and on paper. A diagram tells the direction of a gap by colour and by hatching,
which survives colour blindness and a black-and-white printer; an empty bin is drawn as nothing.
"""

from collections.abc import Iterable

import numpy as np

from covcal_cli import __version__
from covcal_cli.evaluate.bins import SMALL_GROUP
from covcal_cli.evaluate.metrics import Metrics
from covcal_cli.report.content import ReportContent, commands
from covcal_cli.report.style import STYLE, section
from covcal_cli.report.tables import (
    candidates_table,
    class_table,
    differences_table,
    estimates_table,
    guards_table,
    metrics_table,
    provenance_table,
    safe,
    weights_table,
)
from covcal_cli.report.verdict import verdict

_OVER, _UNDER, _BAR = "#c04e00", "#005f9e", "#c3cad3"
_WIDTH, _HEIGHT = 328, 360  # of a diagram
_LEFT, _TOP, _SIDE = 44, 12, 262  # of the unit square in it
_COUNTS_TOP, _COUNTS_HEIGHT = 284, 36  # of the rows per bin below
# The two hatchings, once in a page, before the first diagram.
_DEFINITIONS = f"""<svg width="0" height="0" aria-hidden="true" class="definitions"><defs>
<pattern id="over" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<rect width="6" height="6" fill="{_OVER}" fill-opacity="0.18"/>
<line x1="0" y1="0" x2="0" y2="6" stroke="{_OVER}" stroke-width="2.4"/></pattern>
<pattern id="under" width="6" height="6" patternUnits="userSpaceOnUse">
<rect width="6" height="6" fill="{_UNDER}" fill-opacity="0.18"/>
<circle cx="3" cy="3" r="1.4" fill="{_UNDER}"/></pattern>
</defs></svg>"""


def page(content: ReportContent) -> str:
    """Return the whole page; the same content gives the same bytes."""
    title = f"Is the confidence honest? {content.path.name}"
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{safe(title)}</title>",
        f"<style>{STYLE}</style></head><body>",
        f"<h1>{safe(title)}</h1>",
        f'<p class="origin">{safe(_origin(content))}</p>',
        "" if content.reading is None else f"<p>{safe(content.reading)}</p>",
        _verdict(content),
        *_measured(content),
        *_expected(content),
        *_calibrations(content),
        section("Where it comes from", provenance_table(content)),
        section("Commands", f"<pre>{chr(10).join(map(safe, commands(content)))}</pre>"),
        f'<p class="origin">covcal {safe(__version__)}</p>',
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _origin(content: ReportContent) -> str:
    classes = len(content.calibration.classes)
    model = content.attributes.get("model_name") or "a classifier that is not recorded"
    rows = "; ".join(f"{name}: {text}" for name, text in content.rows.items())
    return f"{model}, {classes} classes. {rows}."


def _verdict(content: ReportContent) -> str:
    found = verdict(content)
    sentences = "".join(f"<p>{safe(text)}</p>" for text in found.sentences)
    return (
        f'<div class="verdict {found.tone}"><strong>{safe(found.headline)}</strong>'
        f"{sentences}</div>"
    )


def _measured(content: ReportContent) -> Iterable[str]:
    evaluation = content.evaluation
    if evaluation is None:
        return
    diagrams = "\n".join(
        f"<figure><figcaption>{safe(name)}: ECE {100 * entry.ece:.2f} %</figcaption>"
        f"{_reliability_diagram(name, entry)}</figure>"
        for name, entry in evaluation.metrics.items()
    )
    yield section(
        "Before and after",
        f'{_DEFINITIONS}<p class="key">{_swatch("over")}over-confident</span>'
        f"{_swatch('under')}under-confident</span></p>"
        f'<div class="diagrams">{diagrams}</div>'
        "<p>Rows are grouped by how sure the model was. A bar shows how often it was right; an "
        "honest confidence ends on the dashed line.</p>",
    )
    level = f"{100 * evaluation.level:.4g} %"
    texts = [f"Target {evaluation.split} rows.", *(f"Note: {text}." for text in evaluation.notes)]
    if evaluation.resamples:
        texts[0] += (
            f" In parentheses {level} intervals from {evaluation.resamples} resamples, for the "
            "calibration as it was fitted; an ECE as found holds the part of chance that its "
            "interval takes away."
        )
    notes = "".join(f"<p>{safe(text)}</p>" for text in texts)
    yield section("Metrics", metrics_table(evaluation) + notes)
    if evaluation.differences:
        note = f"<p>Paired differences with {level} intervals.</p>"
        yield section("On the same rows", differences_table(evaluation) + note)
    groups = evaluation.classes.get(content.name)
    if groups:
        table, left_out = class_table(groups)
        more = f" The {left_out} classes with the least over-confidence are left out."
        small = f"* fewer than {SMALL_GROUP} rows: its ECE is mostly noise."
        note = f"<p>{small}{more if left_out else ''}</p>"
        yield section(f"By class, with {content.name}", table + note)


def _expected(content: ReportContent) -> Iterable[str]:
    if content.estimation is None:
        return
    yield section(
        "What is expected without labels",
        "<p>Estimates of the target accuracy; no target label was read for any of them.</p>"
        + estimates_table(content.estimation),
    )


def _calibrations(content: ReportContent) -> Iterable[str]:
    for name, found in content.calibrations.items():
        tables = [weights_table(found), candidates_table(found), guards_table(found.guards)]
        asked = "" if found.method == found.method_used else f"Asked for {found.method}. "
        texts = [f"{asked}Method {found.method_used}: {found.reason}"]
        texts += [f"Warning: {text}" for text in found.warnings]
        texts += [f"Note: {text}" for text in found.notes]
        body = "".join(f"<p>{safe(text)}</p>" for text in texts)
        yield section(f"The calibration: {name}", body + "".join(filter(None, tables)))


def _swatch(kind: str) -> str:
    return (
        f'<span><svg viewBox="0 0 24 14" aria-hidden="true"><rect width="24" height="14" '
        f'fill="url(#{kind})" stroke="#52606d"/></svg> '
    )


# The reliability diagram as SVG.


def _reliability_diagram(name: str, metrics: Metrics) -> str:
    """Return accuracy by confidence, the gap between them, and the rows per bin."""
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
        told = f"confidence {confidence:.1%}, accuracy {accuracy:.1%}, {bins.counts[index]} rows"
        low, high = sorted((accuracy, confidence))
        kind, colour = ("over", _OVER) if confidence > accuracy else ("under", _UNDER)
        share = float(bins.counts[index]) / most  # of the fullest bin
        parts += [
            f"<g><title>{told}</title>",
            _bar(left, right, 0.0, accuracy, f'fill="{_BAR}" stroke="#fff"'),
            _bar(left, right, low, high, f'fill="url(#{kind})" stroke="{colour}"'),
            f'<rect x="{_x(left):.1f}" y="{_COUNTS_TOP + _COUNTS_HEIGHT * (1 - share):.1f}" '
            f'width="{_x(right) - _x(left):.1f}" height="{_COUNTS_HEIGHT * share:.1f}" '
            f'fill="{_BAR}" stroke="#fff"/></g>',
        ]
    parts.append(
        f'<line x1="{_x(0):.0f}" y1="{_y(0):.0f}" x2="{_x(1):.0f}" y2="{_y(1):.0f}" '
        'stroke="#1f2933" stroke-dasharray="5 4"/></svg>'
    )
    return "\n".join(parts)


def _in_words(name: str, metrics: Metrics) -> str:
    return (
        f"Reliability of {name}: ECE {metrics.ece:.1%}, over-confident {metrics.over_ece:.1%}, "
        f"under-confident {metrics.under_ece:.1%}, {metrics.n} rows"
    )


def _frame() -> list[str]:
    lines = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        lines += [
            f'<line x1="{_x(0):.0f}" y1="{_y(tick):.1f}" x2="{_x(1):.0f}" y2="{_y(tick):.1f}" '
            'stroke="#e3e7ec"/>',
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
