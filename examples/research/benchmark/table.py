"""table.md: halves, families and shifts of the benchmark, in each state that files were in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmark.families import HALVES, Case
from benchmark.harm import CONTRADICTION, to_blame
from benchmark.labels import CEILINGS, ORACLE, TRUE_ACCURACY, Measured
from covcal_cli.calibrate.methods import AUTO
from covcal_cli.compare.ranking import HARMS, Comparison, Coverage
from covcal_cli.compare.tables import Grid, counted, harm_heads, markdown
from covcal_cli.evaluate.metrics import METRICS

# Beside auto in the table of families: the base lines, the paper's method.
_SHOWN = ("none", "temp", "fl+iw+temp", "cot", AUTO)
_OF_ECE = (
    "ECE of 15 bins on the target's test rows in percent, a shift's being the mean over its "
    "seeds; every shift weighs the same. **Best mean** of the single methods. Rank: 1 is best. "
    "Regret, in points: to the best single method of each shift, which nobody knows beforehand. "
    f"{', '.join(f'> {100 * by:.0f}' for by in HARMS)}: shifts on which a method is so many points "
    "worse than the better of none and temp. The two ceilings, in italics, read target labels."
)


@dataclass(frozen=True)
class Group:
    """A half of the benchmark, or a family of it."""

    title: str  # its name and size
    half: str
    measured: Measured

    @property
    def found(self) -> Comparison:
        """The methods on its shifts."""
        return self.measured.found


def markdown_text(cases: Sequence[Case], states: Sequence[Measured]) -> str:
    """Return the content of table.md."""
    parts = [part for one in states for part in _of_state(cases, one)]
    return "\n\n".join(parts) + "\n"


def _of_state(cases: Sequence[Case], one: Measured) -> Iterator[str]:
    seeds = f"seeds: {one.found.seeds}"
    yield f"## State: {one.state} ({len(one.found.records)} shifts, {seeds})"
    families, halves = groups(cases, one)
    for half in halves:
        own = [family for family in families if family.half == half.half]
        yield f"### Calibration error: {half.title}"
        yield _OF_ECE
        yield markdown(_methods(half))
        yield f"### Every metric: {half.title}"
        yield "Means over the shifts where a metric has a value: fractions, and scores as they are."
        yield markdown(_metrics(half.found))
        yield f"### Families: {half.title}"
        yield f"Mean ECE in percent; regret, and harmed shifts, are those of {AUTO}."
        yield markdown(_families([*own, half]))
        yield f"### Harm of {AUTO}: {half.title}"
        yield _harm(half)
        yield f"### The estimate of the accuracy: {half.title}"
        yield (
            "Mean error in points, share of shifts whose interval holds the true accuracy, and its "
            "mean width: on the target's training and validation rows, which the estimate reads "
            "without labels, and on its test rows, whose own noise no interval accounts for."
        )
        yield markdown(_intervals([*own, half]))
        yield f"### Shift by shift: {half.title}"
        yield (
            "ECE in percent; the estimated accuracy with its interval and the true one, means over "
            "seeds in percent."
        )
        yield markdown(_shifts(half))
    for family in families:
        yield f"### {family.title}"
        yield markdown(_methods(family))


def groups(cases: Sequence[Case], one: Measured) -> tuple[list[Group], list[Group]]:
    """Return the families and the halves that were run."""

    def group(name: str, half: str, shifts: Sequence[str]) -> Group:
        size = f"{len(shifts)}" if name == half else f"{half}, {len(shifts)}"
        return Group(f"{name} ({size})", half, one.of(shifts))

    by_half = {half: [case for case in cases if case.half == half] for half in HALVES}
    families = [
        group(name, half, [case.shift for case in some if case.family == name])
        for half, some in by_half.items()
        for name in dict.fromkeys(case.family for case in some)
    ]
    halves = [group(h, h, [case.shift for case in some]) for h, some in by_half.items() if some]
    return families, halves


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


def _methods(group: Group) -> Grid:
    """Return a row per method, and one per ceiling."""
    found, rows = group.found, []
    best = found.best()
    for method in found.methods:
        ran = [shift for shift in found.shifts if method in found.shifts[shift]]
        if not ran:
            continue
        own = found.of(ran)
        worst = own.worst(method)
        mean = _percent(own.mean(method))
        partly = "" if len(ran) == len(found.shifts) else f" (on {len(ran)})"
        rows.append(
            [
                method,
                (f"**{mean}**" if method == best else mean) + partly,
                f"{_percent(own.score(worst, method))} ({worst})",
                "" if partly else f"{found.mean_rank(method):.1f}",
                _percent(own.regret(method)),
                *(str(len(found.harmed(method, by))) for by in HARMS),
            ]
        )
    ceilings = group.measured.ceilings
    for method in CEILINGS:
        worst = ceilings.worst(method)
        mean, most = (_percent(v) for v in (ceilings.mean(method), ceilings.score(worst, method)))
        rows.append([f"*{method}*", mean, f"{most} ({worst})", *[""] * 5])
    return Grid(["method", "mean", "worst", "rank", "regret", *harm_heads(found)], rows)


def _metrics(found: Comparison) -> Grid:
    """Return the mean of every metric over the shifts where it has a value."""
    rows = []
    for method in found.everywhere:
        known = {name for entries in found.shifts.values() for name in entries[method].means}
        values = (f"{found.mean(method, name):.4f}" if name in known else "" for name in METRICS)
        rows.append([method, *values])
    return Grid(["method", *METRICS], rows)


def _families(groups: Sequence[Group]) -> Grid:
    """Return a row per family, and one for the half, which is the last group."""
    overall = groups[-1].found.best()
    shown = tuple(dict.fromkeys((*_SHOWN, overall)))
    rows = []
    for group in groups:
        found = group.found
        best = found.best()
        rows.append(
            [
                group.title,
                *(_percent(found.mean(m)) if m in found.everywhere else "" for m in shown),
                f"{_percent(found.mean(best))} ({best})",
                _percent(group.measured.ceilings.mean(TRUE_ACCURACY)),
                _percent(found.regret(AUTO)),
                *(str(len(found.harmed(AUTO, by))) for by in HARMS),
            ]
        )
    heads = ["family", *shown, "its best single", f"*{TRUE_ACCURACY}*", "regret"]
    return Grid([*heads, *harm_heads(groups[-1].found)], rows)


def _harm(group: Group) -> str:
    """Return how often auto harms, and each case with what auto said of it."""
    found, truths = group.found, group.measured.truths
    harmed = found.harmed(AUTO)
    silent = [
        shift for shift in harmed if to_blame(found.records[shift], truths[shift]) != CONTRADICTION
    ]
    counts = (
        f"more than {100 * by:.0f} point{'s' * (by > HARMS[0])} on {len(some)} of "
        f"{len(found.shifts)} ({sum(shift in silent for shift in some)} without the warning "
        f"{CONTRADICTION})"
        for by in HARMS
        for some in [found.harmed(AUTO, by)]
    )
    text = f"{AUTO} is worse than the better of none and temp by {', by '.join(counts)}."
    if not harmed:
        return text
    rows = []
    for shift in harmed:
        records = found.records[shift]
        true = fmean(truth.accuracy for truth in truths[shift])
        first = records[0].fits[AUTO]
        guards = "; ".join(
            f"{guard.name} {guard.value:.3g} ({guard.threshold:.3g})"
            for guard in first.guards
            if not guard.passed
        )
        rows.append(
            [
                shift,
                f"{100 * (found.harm(shift, AUTO) or 0):+.2f}",
                counted(found.took(shift), len(records)),
                f"{_estimated(found, shift)} / {100 * true:.1f}",
                to_blame(records, truths[shift]),
                guards or "none",
                "; ".join(first.warnings) or "none",
            ]
        )
    heads = ["harmed shift", "points", "auto took", "accuracy estimated / true, %"]
    heads += ["guard that failed", "failed guards of seed 0: value (threshold)", "its warnings"]
    return f"{text}\n\n{markdown(Grid(heads, rows, (0, 2, 4, 5, 6)))}"


def _estimated(found: Comparison, shift: str) -> str:
    estimate = found.estimate(shift)
    return (
        "" if estimate is None else "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * e for e in estimate))
    )


def _intervals(groups: Sequence[Group]) -> Grid:
    rows = []
    for group in groups:
        read = group.found.coverage(group.measured.accuracy)
        judged = group.found.coverage()
        if read is not None and judged is not None:
            rows.append(
                [
                    group.title,
                    *_fared(read),
                    *_fared(judged),
                    f"{100 * read.width:.1f}",
                    ", ".join(read.missed) or "none",
                ]
            )
    heads = ["family", "error, rows it reads", "held", "error, test rows", "held", "width"]
    return Grid([*heads, "missed in most seeds"], rows, (0, 6))


def _fared(found: Coverage) -> list[str]:
    return [f"{100 * found.error:.1f}", f"{found.held:.0%}"]


def _shifts(group: Group) -> Grid:
    found, rows = group.found, []
    for shift, entries in found.shifts.items():
        alone = found.of([shift])
        best = alone.best()
        took = counted(found.took(shift), len(found.records[shift]))
        true = fmean(truth.accuracy for truth in group.measured.truths[shift])
        rows.append(
            [
                shift,
                *(_percent(entries[name].means["ece"]) for name in ("none", "temp")),
                f"{_percent(entries[AUTO].means['ece'])} ({took})",
                f"{_percent(alone.mean(best))} ({best})",
                _percent(group.measured.ceilings.score(shift, ORACLE)),
                _estimated(found, shift),
                f"{100 * true:.1f}",
            ]
        )
    heads = ["shift", "none", "temp", f"{AUTO} (took)", "best single", ORACLE]
    return Grid([*heads, "estimated accuracy", "true"], rows)
