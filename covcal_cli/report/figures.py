"""The reliability diagram as SVG inside the page: no script, no font, no network.

Direction of the gap is shown by colour and by hatching, so that it survives colour blindness and a
black-and-white printer. An empty bin is drawn as nothing.
"""

from html import escape

import numpy as np

from covcal_cli.metrics.metrics import Metrics

OVER, UNDER, BAR = "#c04e00", "#005f9e", "#c3cad3"
_WIDTH, _HEIGHT = 328, 360
_LEFT, _TOP, _SIDE = 44, 12, 262
_COUNTS_TOP, _COUNTS_HEIGHT = 284, 36

DEFINITIONS = f"""<svg width="0" height="0" aria-hidden="true" class="definitions"><defs>
<pattern id="over" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<rect width="6" height="6" fill="{OVER}" fill-opacity="0.18"/>
<line x1="0" y1="0" x2="0" y2="6" stroke="{OVER}" stroke-width="2.4"/></pattern>
<pattern id="under" width="6" height="6" patternUnits="userSpaceOnUse">
<rect width="6" height="6" fill="{UNDER}" fill-opacity="0.18"/>
<circle cx="3" cy="3" r="1.4" fill="{UNDER}"/></pattern>
</defs></svg>"""
"""The two hatchings, once in a page, before the first diagram."""


def reliability_diagram(name: str, metrics: Metrics) -> str:
    """Return one diagram: accuracy by confidence, the gap between them, and the rows per bin."""
    bins = metrics.bins
    most = int(bins.counts.max())
    parts = [
        f'<svg class="diagram" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{escape(_in_words(name, metrics))}</title>",
        *_frame(),
    ]
    for index in np.flatnonzero(bins.counts):
        left, right = float(bins.edges[index]), float(bins.edges[index + 1])
        accuracy, confidence = float(bins.accuracy[index]), float(bins.confidence[index])
        told = f"confidence {confidence:.1%}, accuracy {accuracy:.1%}, {bins.counts[index]} rows"
        low, high = sorted((accuracy, confidence))
        kind = "over" if confidence > accuracy else "under"
        colour = OVER if confidence > accuracy else UNDER
        share = float(bins.counts[index]) / most
        parts += [
            f"<g><title>{told}</title>",
            _bar(left, right, 0.0, accuracy, f'fill="{BAR}" stroke="#fff"'),
            _bar(left, right, low, high, f'fill="url(#{kind})" stroke="{colour}"'),
            f'<rect x="{_x(left):.1f}" y="{_COUNTS_TOP + _COUNTS_HEIGHT * (1 - share):.1f}" '
            f'width="{_x(right) - _x(left):.1f}" height="{_COUNTS_HEIGHT * share:.1f}" '
            f'fill="{BAR}" stroke="#fff"/></g>',
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
