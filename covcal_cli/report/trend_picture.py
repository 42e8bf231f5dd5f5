"""The trend as a picture: the figures of its page, drawn by Matplotlib."""

import math
from typing import Any

from covcal_cli.report.timeline import Timeline

_CONFIDENCE, _ESTIMATE, _ALARM, _NEW, _INK = "#005f9e", "#007a5e", "#b3261e", "#6b3fa0", "#1f2933"
_MOST_TICKS = 12


def figure(trend: Timeline) -> Any:
    """Return the figure."""
    from matplotlib.figure import Figure

    whole = Figure(figsize=(11.0, 6.0), layout="constrained")
    upper, lower = whole.subplots(2, 1, sharex=True, height_ratios=[3, 1.3])
    _draw_accuracy(upper, trend)
    _draw_evidence(lower, trend)
    for number, periods in enumerate(trend.calibrations.values(), start=1):
        start = trend.places[periods[0].measured.period] - 0.5
        if number > 1:
            for axes in (upper, lower):
                axes.axvline(start, color=_NEW, linestyle="-.", linewidth=1)
            upper.text(start, 1.01, f"{number}", color=_NEW, transform=upper.get_xaxis_transform())
    step = -(-len(trend.names) // _MOST_TICKS)
    # A name is a text, not one that Matplotlib would set as mathematics.
    names = [name.replace("$", r"\$") for name in trend.names[::step]]
    lower.set_xticks(range(0, len(trend.names), step), names, rotation=30, ha="right")
    return whole


def _draw_accuracy(axes: Any, trend: Timeline) -> None:
    low, high = trend.shares()
    for run in trend.runs(lambda one: one.measured.estimate):
        x = [trend.places[one.measured.period] for one in run]
        known = [one.measured.estimate for one in run if one.measured.estimate is not None]
        axes.fill_between(
            x, [e.low for e in known], [e.high for e in known], color=_ESTIMATE, alpha=0.18, lw=0
        )
        axes.plot(x, [e.accuracy for e in known], "--.", color=_ESTIMATE)
    for run in trend.runs(lambda one: one.measured):
        x = [trend.places[one.measured.period] for one in run]
        axes.plot(x, [one.measured.confidence_before for one in run], ":", color=_CONFIDENCE, lw=1)
        axes.plot(x, [one.measured.confidence for one in run], "-o", color=_CONFIDENCE, ms=3)
    for one in trend.periods:
        place, found = trend.places[one.measured.period], one.measured.measured
        if found is not None:
            axes.plot([place, place], [found.low, found.high], color=_INK)
            axes.plot(place, found.accuracy, "D", color=_INK, mfc="white")
        if one.alarm.raised:
            fill = _ALARM if one.verdict == "recalibrate" else "none"
            axes.plot(
                place,
                1.0,
                "^",
                color=_ALARM,
                mfc=fill,
                transform=axes.get_xaxis_transform(),
                clip_on=False,
            )
    for style, colour, label in (
        ("-o", _CONFIDENCE, "confidence"),
        (":", _CONFIDENCE, "as it came"),
        ("--", _ESTIMATE, "estimated accuracy"),
        ("D", _INK, "measured accuracy"),
        ("^", _ALARM, "alarm; filled: recalibrate"),
        ("-.", _NEW, "another calibration"),
    ):
        axes.plot([], [], style, color=colour, label=label)
    axes.set_ylim(low, high)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.legend(loc="lower left", fontsize=8, ncols=2)
    axes.grid(alpha=0.4)


def _draw_evidence(axes: Any, trend: Timeline) -> None:
    for run in trend.runs(lambda one: one.alarm):
        x = [trend.places[one.measured.period] for one in run]
        axes.plot(x, [one.alarm.log_evidence / math.log(10) for one in run], "-o", color=_INK, ms=3)
        axes.plot(
            x, [one.alarm.log_threshold / math.log(10) for one in run], "--", color=_ALARM, lw=1
        )
    axes.set_ylabel("evidence, log10")
    axes.grid(alpha=0.4)
