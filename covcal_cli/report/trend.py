"""Draw the history of ``covcal watch``, as an HTML page or as an SVG picture.

Horizontal positions are in percent of the width, so the drawing fits phones and wide screens.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from covcal_cli.errors import CovcalError, percent, printable
from covcal_cli.files import write_text
from covcal_cli.report.metric_estimates import MOST_CLASSES, metric_table
from covcal_cli.report.page import STYLE, section, whole_page
from covcal_cli.report.tables import Table, html, safe
from covcal_cli.watch.calendar import missing_between
from covcal_cli.watch.history import History, in_time
from covcal_cli.watch.period import (
    UNCHANGED,
    VERDICTS,
    Period,
    SegmentVerdict,
    Verdict,
)

PAGE, PICTURE = ".html", ".svg"
_MOST_PERIODS = 1000
_MOST_LISTED = 60
_MOST_DOTS = 400
_LABELS = 7
_LONGEST_LABEL = 12
_LONGEST_GAP = 60
_TONES: dict[Verdict, str] = {"holds": "good", "off": "bad", "not known": "mixed"}

_STYLE = """
:root { --confidence: #005f9e; --estimate: #007a5e; --alarm: #b3261e; --new: #6b3fa0; }
@media screen and (prefers-color-scheme: dark) { :root { --confidence: #6db9f2; --estimate: #4fd1a5;
  --alarm: #ff8f84; --new: #c3a6ff; } }
figure.trend { max-width: none; margin: .5rem 0 1rem; }
.plot { display: flex; } .plot svg { flex: none; overflow: visible; }
.plot .field { flex: 1; min-width: 0; }
.plot text, .key svg text { font-size: 12px; fill: var(--faint); }
.grid { stroke: var(--rule); } .hit { fill: transparent; }
.gap { fill: var(--rule); fill-opacity: .45; }
.line { fill: none; stroke-width: 2; vector-effect: non-scaling-stroke; }
.confidence { stroke: var(--confidence); } .dot.confidence { fill: var(--confidence); }
.before { stroke: var(--confidence); stroke-width: 1; stroke-dasharray: 2 3; }
.dot.before, .dot.threshold { fill: currentColor; }
.estimate { stroke: var(--estimate); stroke-dasharray: 7 4; }
.dot.estimate { fill: var(--estimate); stroke-dasharray: none; }
.band { fill: var(--estimate); fill-opacity: .18; stroke: none; }
.measured { stroke: var(--ink); fill: var(--page); stroke-width: 1.5; }
.evidence { stroke: var(--ink); } .dot.evidence { fill: var(--ink); }
.threshold { stroke: var(--alarm); stroke-dasharray: 5 4; }
.alarm { stroke: var(--alarm); stroke-width: 1.5; fill: none; }
.alarm.due { fill: var(--alarm); }
.change { stroke: var(--new); stroke-dasharray: 6 2 1 2; } .plot text.change { stroke: none;
  fill: var(--new); font-weight: 600; }
td:last-child:not(.number) { min-width: 10rem; }
@media (min-width: 45.1rem) { td:nth-child(n+5):not(.number) { min-width: 10rem; } }
@media (max-width: 45rem) { .more { display: none; } }
"""


@dataclass(frozen=True)
class Timeline:
    """The latest periods of a history, with their positions in a drawing."""

    periods: Sequence[Period]
    earlier: int = 0
    history: History = field(default_factory=lambda: History(Path("watch.jsonl")))

    @cached_property
    def with_rows(self) -> list[Period]:
        """The periods that have rows."""
        return [period for period in self.periods if period.measured.rows]

    @cached_property
    def names(self) -> list[str]:
        """The names of all periods in time order, including periods without rows."""
        names = list(dict.fromkeys(period.measured.period for period in self.periods))
        names = [names[place] for place in in_time(names)]
        drawn = names[:1]
        for before, after in pairwise(names):
            drawn += [*missing_between(before, after)[:_LONGEST_GAP], after]
        return drawn

    @cached_property
    def places(self) -> dict[str, int]:
        """The position of each period on the time axis, by name."""
        return {name: place for place, name in enumerate(self.names)}

    @cached_property
    def calibrations(self) -> dict[str, list[Period]]:
        """The periods of each calibration, by the SHA-256 of the calibration."""
        periods: dict[str, list[Period]] = {}
        for period in sorted(self.periods, key=lambda entry: self.places[entry.measured.period]):
            periods.setdefault(period.calibration.sha256, []).append(period)
        return periods

    def x(self, period: Period) -> float:
        """Return the horizontal position of the middle of a period, in percent of the width."""
        return self.at(self.places[period.measured.period] + 0.5)

    def at(self, place: float) -> float:
        """Return the horizontal position of a place on the time axis, in percent of the width."""
        return 100 * place / len(self.names)

    def runs(self, has: Callable[[Period], object]) -> Iterator[list[Period]]:
        """Yield lists of successive periods with the same calibration and a value from `has`."""
        for periods in self.calibrations.values():
            run: list[Period] = []
            for period in periods:
                if not period.measured.rows:
                    continue
                place = self.places[period.measured.period]
                follows = run and place == self.places[run[-1].measured.period] + 1
                if run and (has(period) is None or not follows):
                    yield run
                    run = []
                if has(period) is not None:
                    run.append(period)
            if run:
                yield run

    def shares(self) -> tuple[float, float]:
        """Return the lowest and the highest value of the vertical axis (multiples of 0.1)."""
        shares: list[float] = []
        for period in self.with_rows:
            numbers = period.measured
            shares += [numbers.confidence, numbers.confidence_before]
            for accuracy in (numbers.estimate, period.by_labels):
                if accuracy is not None:
                    shares += [accuracy.low, accuracy.high, accuracy.accuracy]
        low = math.floor(10 * min(shares, default=0.0) + 1e-9) / 10
        high = math.ceil(10 * max(shares, default=1.0) - 1e-9) / 10
        return max(0.0, low - 0.1 * (low == high)), min(1.0, max(high, low + 0.1))


def check_trend(path: Path) -> None:
    """Refuse a file name that does not end in .html or .svg."""
    if path.suffix.lower() not in (PAGE, PICTURE):
        raise CovcalError(f"{path}: the name of a trend must end in {PAGE} or {PICTURE}")


def write_trend(history: History, path: Path, *, force: bool) -> None:
    """Write a drawing of a history, completely or not at all.

    Raises `CovcalError` if the history has no period, or `path` does not end in .html or .svg.
    """
    check_trend(path)
    if not history.periods:
        raise CovcalError(f"{history.path} has no period to draw: give files to watch")
    periods = history.periods
    order = in_time([period.measured.period for period in periods])
    drawn = [periods[place] for place in order][-_MOST_PERIODS:]
    trend = Timeline(drawn, len(periods) - len(drawn), history)
    draw = page if path.suffix.lower() == PAGE else picture
    write_text(path, draw(trend), force=force)


def page(trend: Timeline) -> str:
    """Return the HTML page of a history. The same periods always give the same bytes."""
    last = trend.periods[-1]
    title = f"Is the calibration still good? {last.calibration.path.name}"
    verdicts = Counter(period.verdict for period in trend.periods)
    verdict_counts = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in VERDICTS)
    changed = sum(period.alarm.raised for period in trend.periods)
    n_periods = _counted(len({period.measured.period for period in trend.periods}), "period")
    n_calibrations = _counted(len(trend.calibrations), "calibration")
    counts = f"{n_periods}, {n_calibrations}: {verdict_counts}; rows changed in {changed}."
    reason = last.answer.removeprefix(f"{last.verdict}: ")
    reason = reason[:1].upper() + reason[1:]
    left_out = f" {_counted(trend.earlier, 'earlier period')} not drawn." if trend.earlier else ""
    parts = [
        f'<p class="origin">{safe(counts + left_out)}</p>',
        f'<div class="verdict {_TONES[last.verdict]}"><strong>'
        f"{safe(f'{last.measured.period}: {last.verdict}')}</strong><p>{safe(reason)}.</p>"
        f"<p>Rows: {safe(trend.history.change_of(last))}.</p>{_of_decision(last)}</div>",
        section("Confidence and accuracy", f'<p class="key">{_key()}</p>{_accuracy(trend).figure}'),
        section(
            "Evidence for a change", f"<p>{_EVIDENCE_NOTE}</p>{_evidence_drawing(trend).figure}"
        ),
        section("Periods", _periods_table(trend)),
        _metrics_section(trend),
    ]
    if last.measured.columns:
        body = f"<p>{_DRIFT_NOTE}</p>{html(column_table(last))}"
        parts.append(section("Columns of the last period", body))
    if last.measured.segments:
        table = segment_table(last.measured.segments)
        parts.append(section("Segments of the last period", html(table)))
    parts.append(section("Calibrations", _calibrations_table(trend)))
    return whole_page(title, STYLE + _STYLE, parts)


def picture(trend: Timeline) -> str:
    """Return all figures as one SVG picture, for a light background."""
    drawings = _accuracy(trend), _evidence_drawing(trend)
    parts, y = [], _KEY
    for drawing in drawings:
        parts.append(drawing.nested(y))
        y += drawing.height + 8
    # The style sheet defines each colour twice, first for a light background.
    colours = dict(reversed(re.findall(r"(--[a-z]+): (#[0-9a-f]+);", STYLE + _STYLE)))
    style = _STYLE[_STYLE.index("figure.trend") : _STYLE.rindex("@media")]
    style = re.sub(r"var\((--[a-z]+)\)", lambda match: colours[match[1]], style)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" role="img">',
        f"<title>{safe(' '.join(drawing.words for drawing in drawings))}</title>",
        f"<style>svg {{ overflow: visible; font-family: sans-serif; }} {style}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<g class="plot">{_picture_key()}</g>',
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _of_decision(period: Period) -> str:
    if period.promise is None:
        return ""
    return f"<p>Accepted: {safe(period.accepted)}.</p><p>Promise {safe(period.promise_answer)}.</p>"


def _periods_table(trend: Timeline) -> str:
    rows, has_promise = [], any(period.promise is not None for period in trend.periods)
    for period in reversed(trend.periods[-_MOST_LISTED:]):
        numbers = period.measured
        gap = "-"
        if period.gap is not None:
            value, low, high = (
                f"{100 * end:+.0f}" for end in (period.gap.value, period.gap.low, period.gap.high)
            )
            gap = f"{value} ({low} to {high})"
        rows.append(
            [
                *(numbers.period, period.verdict),
                percent(numbers.confidence, 0) if numbers.rows else "-",
                *(str(numbers.estimate or "-"), by_labels_in_words(period), gap),
                str(numbers.rows),
                trend.history.change_of(period).replace(UNCHANGED, "no change found"),
                *([_promise(period)] if has_promise else []),
            ]
        )
    columns = [
        "period",
        "verdict",
        "confidence",
        "estimated",
        "by labels",
        "too high by",
        "rows",
        "change of the rows",
        *(["promise"] if has_promise else []),
    ]
    left_out = len(trend.periods) - len(rows)
    note = f"<p>{_counted(left_out, 'earlier period')} not listed.</p>" if left_out else ""
    return html(Table(columns, rows, texts=(0, 1, 4, 7, 8))) + note


def _promise(period: Period) -> str:
    if period.promise is None:
        return "-"
    error = period.promise.error
    return period.promise.verdict + (
        ""
        if error is None
        else f" ({percent(error.value, 1)}, {percent(error.low, 1)} to {percent(error.high, 1)})"
    )


def column_table(period: Period) -> Table:
    """Return a table of the column changes that covcal found in a period."""
    drifted = [column.name for column in period.drifts]
    rows = [
        [
            column.name,
            f"{column.psi:.2f}",
            f"{column.p:.2g}" if column.p >= _LEAST_P else f"<{_LEAST_P:g}",
            percent(column.missing_before, 1),
            percent(column.missing, 1),
            percent(column.new, 1),
            column.words.partition(": ")[2] if column.name in drifted else "no drift",
        ]
        for column in period.measured.columns
    ]
    columns = (
        *(f"column, {period.measured.period}", "PSI", "p"),
        *("missing before", "missing now", "new values", "change"),
    )
    return Table(columns, rows, texts=(0, 6))


def period_metrics(periods: Sequence[Period], most_classes: int) -> Table:
    """Return a table of metrics by period and class, for the `most_classes` worst classes."""
    estimates = [
        replace(metric, group=period.measured.period)
        for period in periods
        for metric in period.measured.metrics
    ]
    return metric_table(estimates, most_classes, group="period")


def kinds_of_metrics(periods: Sequence[Period]) -> list[str]:
    """Return the sentences that explain the ranges of metrics, each sentence once."""
    metrics = [metric for period in periods for metric in period.measured.metrics]
    return list(dict.fromkeys(metric.interval for metric in metrics))


def _metrics_section(trend: Timeline) -> str:
    periods = trend.periods[: -_MOST_LISTED - 1 : -1]
    table = period_metrics(periods, MOST_CLASSES)
    kinds = safe(" ".join(kinds_of_metrics(periods)))
    return section("Metrics", f"<p>{kinds}</p>{html(table)}") if table.rows else ""


def segment_table(segments: Sequence[SegmentVerdict]) -> Table:
    """Return a table of the verdict and the drift of each segment of a period."""
    rows = [
        [
            part.segment,
            str(part.rows),
            percent(part.confidence, 0),
            str(part.accuracy or "-"),
            part.verdict,
            "; ".join(drift.words for drift in part.drifts[:1]) or "no drift",
        ]
        for part in segments
    ]
    columns = (f"segment, {segments[0].period}", "rows", "confidence", "accuracy", "verdict")
    return Table((*columns, "drift"), rows, texts=(0, 3, 4, 5))


def by_labels_in_words(period: Period) -> str:
    """Return a period's accuracy from labels, and name the labels. Return ``-`` without labels."""
    accuracy = period.by_labels
    return "-" if accuracy is None else f"{accuracy}, {accuracy.of}"


def _calibrations_table(trend: Timeline) -> str:
    rows = []
    for number, (digest, periods) in enumerate(trend.calibrations.items(), start=1):
        used = periods[-1].calibration
        names = [periods[0].measured.period, periods[-1].measured.period]
        rows.append(
            [str(number), used.method, f"{names[0]} to {names[1]}", used.path.name, digest[:12]]
        )
    columns = ("", "method", "periods", "file", "sha256")
    return html(Table(columns, rows, texts=range(5)))


_ACCURACY, _EVIDENCE = 240, 120
_TOP, _BOTTOM, _AXIS = 26, 24, 46
_WIDTH, _KEY = 1000, 56
_EVIDENCE_NOTE = (
    "An evidence of 10 means: a change explains the rows ten times better than no change. "
    "Evidence above the dashed line raises an alarm."
)
_LEAST_P = 0.0001
_DRIFT_NOTE = (
    "The values of each column are compared with the values in the rows that made the "
    "calibration. PSI is the population stability "
    "index (0.1 is a moderate change). p is the corrected p-value of the Kolmogorov-Smirnov "
    "or chi-square test."
)


@dataclass(frozen=True)
class _Drawing:
    words: str  # for screen readers
    height: int
    axis: str
    field: str

    @property
    def figure(self) -> str:
        return (
            '<figure class="trend"><div class="plot">\n'
            f'<svg width="{_AXIS}" height="{self.height}" aria-hidden="true">{self.axis}</svg>\n'
            f'<svg class="field" height="{self.height}" role="img">'
            f"<title>{safe(self.words)}</title>\n{self.field}\n</svg></div></figure>"
        )

    def nested(self, y: int) -> str:
        width = _WIDTH - _AXIS - 24
        return (
            f'<g class="plot"><svg y="{y}" width="{_AXIS}" height="{self.height}">{self.axis}</svg>'
            f'<svg class="field" x="{_AXIS}" y="{y}" width="{width}" height="{self.height}">'
            f"{self.field}</svg></g>"
        )


@dataclass(frozen=True)
class _Field:
    """The plot area of a figure: x in percent of the width, y in pixels."""

    trend: Timeline
    height: int
    low: float
    high: float

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return _TOP + self.height * (1 - min(1.0, max(0.0, share)))

    def drawing(
        self, words: str, ticks: Iterable[tuple[float, str]], marks: Iterable[str]
    ) -> _Drawing:
        axis, grid = [], []
        for value, text in ticks:
            y = self.y(value)
            axis.append(f'<text x="{_AXIS - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
            grid.append(f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines = [*grid, *self._gaps(), *self._names(), *self._changes(), *marks, *self._hints()]
        return _Drawing(words, self.height + _TOP + _BOTTOM, "".join(axis), "\n".join(lines))

    def scaled(self, shapes: Iterable[str]) -> str:
        return (
            f'<svg y="{_TOP}" width="100%" height="{self.height}" viewBox="0 {_TOP} 100 '
            f'{self.height}" preserveAspectRatio="none">{"".join(shapes)}</svg>'
        )

    def path(self, run: Sequence[Period], value: Callable[[Period], float]) -> str:
        return " ".join(f"{self.trend.x(period):.3f},{self.y(value(period)):.1f}" for period in run)

    def line(
        self, kind: str, value: Callable[[Period], float | None], *, dotted: bool = True
    ) -> Iterator[str]:
        def number(period: Period) -> float:
            return value(period) or 0.0

        runs = list(self.trend.runs(value))
        dotted = dotted and len(self.trend.names) <= _MOST_DOTS
        yield self.scaled(
            f'<polyline class="line {kind}" points="{self.path(run, number)}"/>'
            for run in runs
            if len(run) > 1
        )
        for run in runs:
            for period in run if dotted or len(run) == 1 else ():
                yield (
                    f'<circle class="dot {kind}" cx="{self.trend.x(period):.3f}%" '
                    f'cy="{self.y(number(period)):.1f}" r="2.5"/>'
                )

    def _names(self) -> Iterator[str]:
        names = self.trend.names
        count = min(len(names), _LABELS)
        on_phones = {0, (count - 1) // 2, count - 1}
        for number in range(count):
            place = number * (len(names) - 1) // max(1, count - 1)
            x = self.trend.at(place + 0.5)
            anchor = "start" if x < 10 else "end" if x > 90 else "middle"
            text = printable(names[place])
            if len(text) > _LONGEST_LABEL:
                text = f"{text[: _LONGEST_LABEL - 1]}…"
            more = "" if number in on_phones else ' class="more"'
            yield (
                f'<text{more} x="{x:.3f}%" y="{self.height + _TOP + 17}" text-anchor="{anchor}">'
                f"{safe(text)}</text>"
            )

    def _changes(self) -> Iterator[str]:
        for number, periods in enumerate(self.trend.calibrations.values(), start=1):
            x = self.trend.at(self.trend.places[periods[0].measured.period])
            bottom = self.height + _TOP
            if number > 1:
                first = periods[0]
                method, since = first.calibration.method, first.measured.period
                yield (
                    f'<line class="change" x1="{x:.3f}%" x2="{x:.3f}%" y1="0" y2="{bottom}">'
                    f"<title>{safe(f'calibration {number} ({method}) from {since}')}</title></line>"
                )
            if number > 1 and self.height == _ACCURACY:
                yield f'<text class="change" x="{x:.3f}%" dx="4" y="{bottom - 5}">{number}</text>'

    def _gaps(self) -> Iterator[str]:
        with_rows = {period.measured.period for period in self.trend.with_rows}
        for place, name in enumerate(self.trend.names):
            if name not in with_rows:
                yield (
                    f'<rect class="gap" x="{self.trend.at(place):.3f}%" y="{_TOP}" '
                    f'width="{self.trend.at(1):.3f}%" height="{self.height}"><title>'
                    f"{safe(name)}: no rows</title></rect>"
                )

    def _hints(self) -> Iterator[str]:
        width = self.trend.at(1)
        for period in self.trend.with_rows:
            yield (
                f'<rect class="hit" x="{self.trend.x(period) - width / 2:.3f}%" y="0" '
                f'width="{width:.3f}%" height="{self.height + _TOP}"><title>{safe(_hint(period))}'
                "</title></rect>"
            )


def _hint(period: Period) -> str:
    numbers = period.measured
    estimated = "" if numbers.estimate is None else f", estimated {numbers.estimate}"
    measured = "" if period.by_labels is None else f", by labels {by_labels_in_words(period)}"
    return (
        f"{numbers.period}: confidence {percent(numbers.confidence, 1)}{estimated}{measured}, "
        f"{numbers.rows} rows; {period.verdict}"
    )


def _accuracy(trend: Timeline) -> _Drawing:
    low, high = trend.shares()
    field = _Field(trend, _ACCURACY, low, high)
    steps = round(10 * (high - low))
    ticks = [(low + step / 10, f"{low + step / 10:.0%}") for step in range(steps + 1)]
    last = (
        f", last {percent(trend.with_rows[-1].measured.confidence, 1)}" if trend.with_rows else ""
    )
    words = (
        f"Confidence from {trend.names[0]} to {trend.names[-1]}{last}, and the estimated accuracy "
        "with its interval"
    )
    marks = [
        field.scaled(_band(field)),
        *field.line("before", lambda period: period.measured.confidence_before, dotted=False),
        *field.line("estimate", _estimated),
        *field.line("confidence", lambda period: period.measured.confidence),
        *_measured(field),
        *_alarms(field),
    ]
    return field.drawing(words, ticks, marks)


def _estimated(period: Period) -> float | None:
    estimate = period.measured.estimate
    return None if estimate is None else estimate.accuracy


def _band(field: _Field) -> Iterator[str]:
    for run in field.trend.runs(_estimated):
        estimates = [(field.trend.x(period), period.measured.estimate) for period in run]
        points = [(x, estimate) for x, estimate in estimates if estimate is not None]
        if len(points) == 1:
            half, ((x, estimate),) = field.trend.at(1) / 6, points
            points = [(x - half, estimate), (x + half, estimate)]
        upper = [f"{x:.3f},{field.y(estimate.high):.1f}" for x, estimate in points]
        lower = [f"{x:.3f},{field.y(estimate.low):.1f}" for x, estimate in reversed(points)]
        yield f'<polygon class="band" points="{" ".join([*upper, *lower])}"/>'


def _measured(field: _Field) -> Iterator[str]:
    for period in field.trend.periods:
        accuracy = period.by_labels
        if accuracy is None or period.measured.labels is None:
            continue
        x, top, bottom = field.trend.x(period), field.y(accuracy.high), field.y(accuracy.low)
        yield (
            f'<line class="measured" x1="{x:.3f}%" x2="{x:.3f}%" y1="{top:.1f}" y2="{bottom:.1f}"/>'
        )
        yield _mark(x, field.y(accuracy.accuracy), f'<path class="measured point" d="{_DIAMOND}"/>')


_DIAMOND, _TRIANGLE = "M0 -5L5 0L0 5L-5 0Z", "M0 -6L6 5L-6 5Z"


def _alarms(field: _Field) -> Iterator[str]:
    for period in field.trend.periods:
        if period.alarm.raised or period.verdict == "off":
            due = " due" if period.verdict == "off" else ""
            yield _mark(field.trend.x(period), 8, f'<path class="alarm{due}" d="{_TRIANGLE}"/>')


def _mark(x: float, y: float, shape: str) -> str:
    return f'<svg x="{x:.3f}%" y="{y:.1f}" width="1" height="1">{shape}</svg>'


def _evidence_drawing(trend: Timeline) -> _Drawing:
    thresholds = [_threshold(period) for period in trend.periods]
    evidence = [_evidence(period) for period in trend.periods]
    high = max(1.25 * max(thresholds), min(max(evidence), 4 * max(thresholds)))
    field = _Field(trend, _EVIDENCE, min(0.0, max(min(evidence), -1.0)), high)
    step = max(1, round(high / 4))
    ticks = [(float(power), _power(power)) for power in range(0, math.floor(high) + 1, step)]
    marks = [
        *field.line("threshold", _threshold, dotted=False),
        *field.line("evidence", _evidence),
        *_alarms(field),
    ]
    words = f"The evidence for a change is now {_power(round(evidence[-1]))} to 1"
    return field.drawing(words, ticks, marks)


def _evidence(period: Period) -> float:
    return period.alarm.log_evidence / math.log(10)


def _threshold(period: Period) -> float:
    return period.alarm.log_threshold / math.log(10)


def _power(power: int) -> str:
    return f"{10**power:,}" if 0 <= power < 5 else f"1e{power}"


_SWATCHES = {
    "calibrated confidence": '<line class="line confidence" x2="24" y1="7" y2="7"/>',
    "confidence before calibration": '<line class="line before" x2="24" y1="7" y2="7"/>',
    "estimated accuracy": '<rect class="band" width="24" height="14"/>'
    '<line class="line estimate" x2="24" y1="7" y2="7"/>',
    "accuracy by labels": f'<g transform="translate(12 7)"><line class="measured" y1="-7" y2="7"'
    f'/><path class="measured" d="{_DIAMOND}"/></g>',
    "rows changed": f'<path class="alarm" transform="translate(12 8)" d="{_TRIANGLE}"/>',
    "confidence off": f'<path class="alarm due" transform="translate(12 8)" d="{_TRIANGLE}"/>',
    "no rows": '<rect class="gap" width="24" height="14"/>',
    "another calibration": '<line class="line change" x1="12" x2="12" y2="14"/>',
}


def _key() -> str:
    return "".join(
        f'<span><svg viewBox="0 0 24 14" aria-hidden="true">{shape}</svg> {name}</span> '
        for name, shape in _SWATCHES.items()
    )


def _picture_key() -> str:
    step = (_WIDTH - _AXIS) // 4
    return "".join(
        f'<g transform="translate({_AXIS + step * (number % 4)} {8 + 24 * (number // 4)})">{shape}'
        f'<text x="30" y="12">{name}</text></g>'
        for number, (name, shape) in enumerate(_SWATCHES.items())
    )
