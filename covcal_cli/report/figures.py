"""The pictures of a report as SVG: reliability diagrams, and the estimate without labels."""

import numpy as np

from covcal_cli.evaluate.metrics import Metrics
from covcal_cli.report.content import ReportContent
from covcal_cli.report.tables import safe

_OVER, _UNDER, _BAR = "#c04e00", "#005f9e", "#c3cad3"
_WIDTH, _HEIGHT = 328, 360  # of a diagram
_LEFT, _TOP, _SIDE = 44, 12, 262  # of the unit square in it
_COUNTS_TOP, _COUNTS_HEIGHT = 284, 36  # of the rows per bin below
# Both hatchings, defined once on a page before the first diagram.
DEFINITIONS = f"""<svg width="0" height="0" aria-hidden="true" class="definitions"><defs>
<pattern id="over" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<rect width="6" height="6" fill="{_OVER}" fill-opacity="0.18"/>
<line x1="0" y1="0" x2="0" y2="6" stroke="{_OVER}" stroke-width="2.4"/></pattern>
<pattern id="under" width="6" height="6" patternUnits="userSpaceOnUse">
<rect width="6" height="6" fill="{_UNDER}" fill-opacity="0.18"/>
<circle cx="3" cy="3" r="1.4" fill="{_UNDER}"/></pattern>
</defs></svg>"""


def swatch(kind: str) -> str:
    """Return the start of an entry of the legend; the caller closes it with ``</span>``."""
    return (
        f'<span><svg viewBox="0 0 24 14" aria-hidden="true"><rect width="24" height="14" '
        f'fill="url(#{kind})" stroke="#52606d"/></svg> '
    )


def reliability_diagram(name: str, metrics: Metrics) -> str:
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
        label = f"confidence {confidence:.1%}, accuracy {accuracy:.1%}, {bins.counts[index]} rows"
        low, high = sorted((accuracy, confidence))
        kind, colour = ("over", _OVER) if confidence > accuracy else ("under", _UNDER)
        share = float(bins.counts[index]) / most  # of the fullest bin
        parts += [
            f"<g><title>{label}</title>",
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


# The estimate without labels: one scale, with the range of the accuracy and the confidences on it.

_SCALE_WIDTH, _SCALE_LEFT, _SCALE_SPAN, _ROW = 360, 16, 328, 46


def estimate_diagram(content: ReportContent) -> str:
    """Return confidence before and after beside the estimated accuracy and its range."""
    assert content.estimation is not None  # the page asks only then
    best = content.estimation.estimates[0]
    estimates = content.calibration.estimates
    after = estimates.get("target_confidence")
    marks: list[tuple[str, float, str]] = [("estimated accuracy", best.accuracy, "#1f2933")]
    before = estimates.get("target_confidence_before")
    if before is not None and after is not None:
        marks += [
            ("confidence before", before, _OVER),
            (f"confidence with {content.name}", after, _UNDER),
        ]
    if content.source_accuracy is not None:
        marks.append(("accuracy on the source", content.source_accuracy.share, "#52606d"))
    height = _ROW * len(marks) + 34
    text = (
        f"Estimated accuracy {best.accuracy:.0%}, between {best.low:.0%} and {best.high:.0%}; "
        + ", ".join(f"{name} {value:.0%}" for name, value, _ in marks[1:])
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
            f'stroke="#e3e7ec"/><text x="{_at(tick):.1f}" y="{height - 10}" '
            f'text-anchor="{anchor}">{tick:.0%}</text>'
        )
    for row, (name, value, colour) in enumerate(marks):
        y = 8 + _ROW * row + 16
        # Text to the left of a mark in the right half, and to the right of one in the left half.
        anchor, shift = ("end", 9) if value > 0.5 else ("start", -9)
        parts.append(
            f'<circle cx="{_at(value):.1f}" cy="{y + 14}" r="5" fill="{colour}"/>'
            f'<text x="{_at(value) + shift - (2 * shift if anchor == "start" else 0):.1f}" '
            f'y="{y}" text-anchor="{anchor}">{safe(name)} {value:.0%}</text>'
        )
    return "\n".join([*parts, "</svg>"])


def _at(share: float) -> float:
    return _SCALE_LEFT + _SCALE_SPAN * share
