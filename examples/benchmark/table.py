"""table.md from the records."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmark.families import HALVES
from benchmark.harm import Harm, harmed
from benchmark.runs import CEILINGS, ORACLE, TRUE_ACCURACY
from benchmark.summary import (
    MAX_HARM,
    TEMP,
    Coverage,
    Row,
    ShiftErrors,
    best_single,
    coverage,
    groups,
    is_single,
    per_shift,
    rows,
)
from covcal_cli.calibrate.methods import AUTO
from covcal_cli.formats.forecaster import NONE

Record = Mapping[str, Any]
# Beside auto in the table of families: the base lines, the paper's method, the perfect estimate.
_SHOWN = (NONE, TEMP, "fl+iw+temp", "cot", AUTO, TRUE_ACCURACY)


def markdown(records: Sequence[Record]) -> str:
    """Return the content of table.md."""
    shifts = per_shift(records)
    grouped = groups(shifts)
    by_group = {name: rows(members) for name, members in grouped.items()}
    seeds = " or ".join(str(count) for count in sorted({one.seeds for one in shifts}))
    parts = [
        f"### Calibration error by half ({len(shifts)} shifts, seeds: {seeds})",
        "Mean ECE / worst shift's ECE on the target's test rows in percent, 15 bins; a shift's "
        "error is the mean over its seeds. **Lowest mean** of the single methods of a column. "
        "Settings, thresholds and the rule of auto are chosen on the half *choose*; *test* judges "
        "them; *seen* has been looked at too often to do either. The two ceilings read target "
        "labels.",
        _overview({half: grouped[half] for half in HALVES if half in grouped}, by_group),
        "### Calibration error by family",
        _families(grouped, by_group),
        f"### Regret and harm of {AUTO}",
        "Points of ECE, negative is better. Regret is to none, to temp, to the best single method "
        "of the half and of the family itself, and to the best single method of every shift, "
        "which nobody knows beforehand. Harm: shifts more than "
        f"{MAX_HARM:.0f} point worse than the better of none and temp.",
        _regret(grouped, by_group),
        _harm(harmed(records), len(shifts)),
        "### The interval of covcal estimate",
        "Share of shifts whose true accuracy the combined interval covers: on the target's "
        "training and validation rows, which the estimate reads without labels, and on its test "
        "rows.",
        _coverage(records, grouped),
        f"### Shift by shift (seeds: {seeds})",
        f"ECE in percent of none, temp, {AUTO}, the best single method and the oracle temperature; "
        "the estimated accuracy with its interval and the true one, means over seeds in percent.",
        _each(records, shifts),
        *(
            part
            for name, members in grouped.items()
            if name not in HALVES
            for part in (f"### {_titled(name, members)}", _details(by_group[name], members))
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _lines(heads: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    table = [heads, ["---"] * len(heads), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in table)


def _titled(name: str, members: Sequence[ShiftErrors]) -> str:
    """Return a group's name, the half that it belongs to if it is a family, and its size."""
    half = "" if name in HALVES else f"{members[0].half}, "
    return f"{name} ({half}{len(members)})"


def _families(
    grouped: Mapping[str, Sequence[ShiftErrors]], by_group: Mapping[str, Sequence[Row]]
) -> str:
    body = []
    for name, members in grouped.items():
        found = {row.method: row for row in by_group[name]}
        best = best_single(members)
        cells = [f"{found[method].mean:.2f}" if method in found else "" for method in _SHOWN]
        body.append([_titled(name, members), *cells, f"{found[best].mean:.2f} ({best})"])
    return _lines(["family", *_SHOWN, "its best single"], body)


def _overview(
    grouped: Mapping[str, Sequence[ShiftErrors]], by_group: Mapping[str, Sequence[Row]]
) -> str:
    methods = dict.fromkeys(row.method for found in by_group.values() for row in found)
    found = {name: {row.method: row for row in table} for name, table in by_group.items()}
    best = {name: best_single(members) for name, members in grouped.items()}
    body = []
    for method in (*(m for m in methods if m not in CEILINGS), *CEILINGS):
        cells = [f"*{method}*" if method in CEILINGS else method]
        for name, members in grouped.items():
            row = found[name].get(method)
            if row is None:
                cells.append("")
                continue
            mean = f"**{row.mean:.2f}**" if method == best[name] else f"{row.mean:.2f}"
            partly = "" if row.shifts == len(members) else f" (on {row.shifts})"
            cells.append(f"{mean} / {row.worst:.2f}{partly}")
        body.append(cells)
    return _lines(["method", *(_titled(*group) for group in grouped.items())], body)


def _regret(
    grouped: Mapping[str, Sequence[ShiftErrors]], by_group: Mapping[str, Sequence[Row]]
) -> str:
    body = []
    for name, members in grouped.items():
        table = {row.method: row for row in by_group[name]}
        auto, overall = table[AUTO], best_single(grouped[members[0].half])
        body.append(
            [
                _titled(name, members),
                f"{auto.over_none:+.2f}",
                f"{auto.over_temp:+.2f}",
                _to_best(auto, table, overall),
                f"{_points(auto.over_best)} ({best_single(members)})",
                f"{auto.over_each:+.2f}",
                str(len(auto.harmed)),
            ]
        )
    heads = ["family", "to none", "to temp", "to the best of the half", "to the family's best"]
    return _lines([*heads, "to each shift's best", "harmed shifts"], body)


def _harm(found: Sequence[Harm], shifts: int) -> str:
    if not found:
        return f"No shift of {shifts} is harmed by more than {MAX_HARM:.0f} point."
    body = [
        [
            f"{one.shift} ({one.family})",
            f"{one.points:+.2f}",
            ", ".join(f"{method} {count}x" for method, count in one.took.items()),
            f"{one.estimated:.1f} / {one.true:.1f}",
            one.guard,
            "; ".join(f"{name} {v:.3g} ({t:.3g})" for name, (v, t) in one.guards.items()),
        ]
        for one in found
    ]
    heads = ["harmed shift", "points", "auto took", "accuracy estimated / true, %"]
    return _lines([*heads, "guard that failed", "guards: value (threshold)"], body)


def _coverage(records: Sequence[Record], grouped: Mapping[str, Sequence[ShiftErrors]]) -> str:
    body = []
    for name, members in grouped.items():
        some = [record for record in records if name in (record["family"], record["half"])]
        body.append([_titled(name, members), *_covered(coverage(some))])
    heads = ["family", "rows it reads", "test rows", "mean width, points", "mean error, points"]
    return _lines([*heads, "missed in most seeds"], body)


def _each(records: Sequence[Record], shifts: Sequence[ShiftErrors]) -> str:
    body = []
    for one in shifts:
        runs = [r for r in records if (r["family"], r["shift"]) == (one.family, one.shift)]
        took = Counter(run["auto"]["method_used"] for run in runs)
        chosen = ", ".join(m if n == len(runs) else f"{m} {n}x" for m, n in took.most_common())
        best = best_single([one])
        middle, low, high = (
            100 * statistics.fmean(run["estimates"]["combined"][key] for run in runs)
            for key in ("accuracy", "low", "high")
        )
        true = 100 * statistics.fmean(run["truth"]["accuracy"] for run in runs)
        body.append(
            [
                one.shift,
                one.half,
                *(f"{one.errors[name]:.2f}" for name in (NONE, TEMP)),
                f"{one.errors[AUTO]:.2f} ({chosen})",
                f"{one.errors[best]:.2f} ({best})",
                f"{one.errors[ORACLE]:.2f}" if ORACLE in one.errors else "",
                f"{middle:.1f} [{low:.1f}, {high:.1f}]",
                f"{true:.1f}",
            ]
        )
    heads = ["shift", "half", NONE, TEMP, f"{AUTO} (took)", "best single", "oracle T"]
    return _lines([*heads, "estimated accuracy", "true"], body)


def _covered(found: Coverage) -> list[str]:
    return [
        f"{found.seen:.0%}",
        f"{found.test:.0%}",
        f"{found.width:.1f}",
        f"{found.error:.1f}",
        ", ".join(found.missed) or "none",
    ]


def _details(table: Sequence[Row], members: Sequence[ShiftErrors]) -> str:
    best = best_single(members)
    body = [
        [
            f"*{row.method}*" if row.method in CEILINGS else row.method,
            f"**{row.mean:.2f}**" if row.method == best else f"{row.mean:.2f}",
            f"{row.worst:.2f} ({row.worst_shift})",
            f"{row.over_none:+.2f}",
            f"{row.over_temp:+.2f}",
            _points(row.over_best),
            f"{row.over_each:+.2f}",
            str(len(row.harmed)) if is_single(row.method) or row.method == AUTO else "",
        ]
        for row in sorted(table, key=lambda row: row.method in CEILINGS)
    ]
    heads = ["method", "mean", "worst", "to none", "to temp", f"to {best}"]
    return _lines([*heads, "to each shift's best", "harmed"], body)


def _to_best(auto: Row, table: Mapping[str, Row], best: str) -> str:
    """Return the regret to a method, which may have refused a shift of the family."""
    return f"{auto.mean - table[best].mean:+.2f} ({best})" if best in table else f"({best})"


def _points(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}"
