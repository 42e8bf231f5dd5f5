"""The section on a decision: a diagram of the error against the share of rows that is accepted."""

from collections.abc import Iterable, Sequence

import numpy as np

from covcal_cli.evaluate.decided import DecisionMetrics
from covcal_cli.evaluate.metrics import Metrics
from covcal_cli.formats.decision import CurvePoint, Decision
from covcal_cli.maths.odds import percent, short_percent
from covcal_cli.report.tables import safe

_WIDTH, _HEIGHT = 420, 300
_LEFT, _TOP, _ACROSS, _DOWN = 52, 12, 350, 236  # of the plane in it
_EXPECTED, _MEASURED, _LIMIT = "#005f9e", "#1f2933", "#c04e00"
_POINTS = 60  # of the measured curve
Points = Sequence[tuple[float, float]]  # share accepted and error


def acceptance(
    decision: Decision, measured: DecisionMetrics | None, metrics: Metrics | None
) -> str:
    """Return the body of the section as HTML; `metrics` are those of the decision's calibration."""
    curve = () if metrics is None else measured_curve(metrics)
    key = "The line shows the expected error, and the area its range."
    if curve:
        key += " The dashed line shows the error that was measured on test rows."
    texts = [f"{sentence(decision)} {key}", *(() if measured is None else _in_words(measured))]
    figure = diagram(decision, curve) if decision.accepts_rows else ""
    paragraphs = "".join(f"<p>{safe(text)}</p>" for text in texts)
    return f'<figure class="wide">{figure}</figure>{paragraphs}'


def sentence(decision: Decision) -> str:
    """Return what the decision accepts, and what that is worth."""
    if not decision.accepts_rows:
        return "The decision makes sets of classes."
    limit = None if decision.error is None else short_percent(decision.error)
    if decision.threshold is None:
        return "No row is accepted" + (
            "." if limit is None else f" at an error of at most {limit}."
        )
    rows = (
        f"Rows with a confidence above {short_percent(decision.threshold)} are accepted: "
        f"{percent(decision.share)} of the rows."
    )
    if decision.is_promise:
        return (
            f"{rows} At most {limit} of them are wrong, with {short_percent(decision.certainty)} "
            "certainty."
        )
    if limit is None:
        return f"{rows} This is the cheapest share by an estimate."
    return f"{rows} That at most {limit} of them are wrong is an estimate."


def _in_words(measured: DecisionMetrics) -> Iterable[str]:
    if measured.accepted:
        yield (
            f"On {measured.n} labelled rows, {percent(measured.accepted_share)} are accepted, and "
            f"{percent(measured.accepted_error)} of these are wrong."
        )
    if measured.coverage is not None:
        yield (
            f"Sets have {measured.set_size:.2f} classes on average, and contain the right one in "
            f"{percent(measured.coverage)} of the rows."
        )


def measured_curve(metrics: Metrics) -> Points:
    """Return the measured error of the most confident rows, for shares of the rows."""
    rows = metrics.ranked
    n = len(rows)
    starts = np.unique(np.linspace(0, n, min(n, _POINTS), endpoint=False).astype(np.int64))
    _, hits = rows.sums_from(starts)
    sizes = np.diff(starts, append=n)
    accepted = np.cumsum(sizes[::-1])
    errors = np.cumsum((sizes - hits)[::-1]) / accepted
    return list(zip((accepted / n).tolist(), errors.tolist(), strict=True))


def diagram(decision: Decision, measured: Points) -> str:
    """Return a diagram as SVG: the error of accepted rows by their share."""
    limit = decision.error or 0.0
    errors = (*(point.high for point in decision.curve), *(error for _, error in measured))
    highest = max(limit * 1.5, 0.01, *errors)

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
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = place(tick, tick * highest).split(",")
        parts += [
            line([(0, tick * highest), (1, tick * highest)], 'stroke="#e3e7ec"'),
            f'<text x="{_LEFT - 5}" y="{y}" text-anchor="end">{tick * highest:.1%}</text>',
            f'<text x="{x}" y="{_TOP + _DOWN + 16}" text-anchor="middle">{tick:.0%}</text>',
        ]
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
    if decision.threshold is not None:
        end = [(decision.share, 0), (decision.share, highest)]
        parts.append(line(end, f'stroke="{_LIMIT}" stroke-dasharray="2 3"'))
    parts.append(
        f'<text x="{_LEFT + _ACROSS / 2:.0f}" y="{_HEIGHT - 12}" text-anchor="middle">share of '
        f'rows accepted</text><text transform="translate(12 {_TOP + _DOWN / 2:.0f}) rotate(-90)" '
        'text-anchor="middle">wrong among them</text></svg>'
    )
    return "\n".join(parts)
