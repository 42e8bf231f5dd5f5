"""Write table.md, with the results for each half of the benchmark, each family and each shift."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmark.families import HALVES, Case
from benchmark.harm import DISAGREE, cause_of_harm
from benchmark.kinds import CAPTION, by_kind
from benchmark.labels import CEILINGS, ORACLE, TRUE_ACCURACY, Results
from covcal_cli.calibrate.methods import AUTO
from covcal_cli.compare.compare import HARMS, Comparison, Coverage
from covcal_cli.compare.tables import counted, harm_heads
from covcal_cli.evaluate.metrics import METRICS
from covcal_cli.report.tables import Raw, Table
from covcal_cli.report.tables import markdown as escaped

# Columns of the table of families: the baselines, the paper's method, cot and auto.
_COLUMNS = ("none", "temp", "fl+iw+temp", "cot", AUTO)
_CAPTION_OF_ECE = (
    "ECE (15 bins) on the target's test rows, in percent. The ECE of a shift is the mean over "
    "seeds. All shifts have the same weight in the mean. The lowest mean is **bold**. Rank 1 is "
    "the best method. Regret is the ECE minus the ECE of the best method on each shift, in points. "
    "Without labels, nobody can know the best method. "
    f"The columns {', '.join(f'> {100 * by:.0f}' for by in HARMS)} count the shifts on which a "
    "method is worse than the baseline by more than the points in the column name. The "
    "baseline of a shift is `none` or `temp`, whichever has the lower ECE. The two rows in italics "
    "use target labels, so methods without labels can hardly be better."
)


@dataclass(frozen=True)
class Group:
    """The results of all shifts in one half of the benchmark, or in one family."""

    title: str  # name of the group, with its number of shifts
    half: str
    results: Results

    @property
    def comparison(self) -> Comparison:
        """The comparison of all methods on these shifts."""
        return self.results.comparison


def markdown(table: Table) -> str:
    """Return a Markdown table. Markdown in the cells is not escaped."""
    return escaped(Table(table.columns, [[*map(Raw, row)] for row in table.rows], table.texts))


def markdown_text(cases: Sequence[Case], states: Sequence[Results]) -> str:
    """Return the content of table.md."""
    parts = [part for results in states for part in _of_state(cases, results)]
    return "\n\n".join(parts) + "\n"


def _of_state(cases: Sequence[Case], results: Results) -> Iterator[str]:
    """Yield the paragraphs and tables of the results, for one setting of ``covcal adapt``."""
    seeds = f"seeds: {results.comparison.seeds}"
    yield f"## State: {results.state} ({len(results.comparison.records)} shifts, {seeds})"
    families, halves = groups(cases, results)
    for half in halves:
        own = [family for family in families if family.half == half.half]
        yield f"### Kinds of shift: {half.title}"
        yield CAPTION
        yield markdown(by_kind([case for case in cases if case.half == half.half], half.results))
        yield f"### Calibration error: {half.title}"
        yield _CAPTION_OF_ECE
        yield markdown(_methods(half))
        yield f"### Every metric: {half.title}"
        yield "The table has means over the shifts on which the metric is defined, as fractions."
        yield markdown(_metrics(half.comparison))
        yield f"### Families: {half.title}"
        yield (
            f"Mean ECE in percent. The column *regret* has the ECE of `{AUTO}` minus the ECE of "
            f"the best method. The last columns count the shifts on which `{AUTO}` is worse than "
            "the baseline."
        )
        yield markdown(_families([*own, half]))
        yield f"### Harm of {AUTO}: {half.title}"
        yield _harm(half)
        yield f"### The estimated accuracy: {half.title}"
        yield (
            "*error* is the mean error of the estimated accuracy in points. *contained* is the "
            "share of shifts whose range contains the true accuracy. *width* is the mean width of "
            "the range. The accuracy is estimated on the target's training and validation rows, "
            "without labels. The range does not include the sampling noise of the test rows."
        )
        yield markdown(_intervals([*own, half]))
        yield f"### Shift by shift: {half.title}"
        yield (
            "The table has ECEs and accuracies in percent, as means over seeds. The range of the "
            "estimated accuracy is in brackets."
        )
        yield markdown(_shifts(half))
    for family in families:
        yield f"### {family.title}"
        yield markdown(_methods(family))


def groups(cases: Sequence[Case], results: Results) -> tuple[list[Group], list[Group]]:
    """Return one group for each family, and one group for each half of the benchmark."""

    def group(name: str, half: str, shifts: Sequence[str]) -> Group:
        size = f"{len(shifts)}" if name == half else f"{half}, {len(shifts)}"
        return Group(f"{name} ({size})", half, results.of(shifts))

    by_half = {half: [case for case in cases if case.half == half] for half in HALVES}
    families = [
        group(name, half, [case.shift for case in members if case.family == name])
        for half, members in by_half.items()
        for name in dict.fromkeys(case.family for case in members)
    ]
    halves = [
        group(half, half, [case.shift for case in members])
        for half, members in by_half.items()
        if members
    ]
    return families, halves


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


def _methods(group: Group) -> Table:
    """Return the table of methods. The last two rows have the ideal temperatures."""
    comparison, rows = group.comparison, []
    best = comparison.best()
    for method in comparison.methods:
        ran = [shift for shift, entries in comparison.shifts.items() if method in entries]
        if not ran:
            continue
        own = comparison.of(ran)
        worst = own.worst(method)
        mean = _percent(own.mean(method))
        count = "" if len(ran) == len(comparison.shifts) else f" (on {len(ran)})"
        rows.append(
            [
                method,
                (f"**{mean}**" if method == best else mean) + count,
                f"{_percent(own.score(worst, method))} ({worst})",
                "" if count else f"{comparison.mean_rank(method):.1f}",
                _percent(own.regret(method)),
                *(str(len(comparison.harmed(method, by))) for by in HARMS),
            ]
        )
    ceilings = group.results.ceilings
    for method in CEILINGS:
        worst = ceilings.worst(method)
        mean, score = (_percent(v) for v in (ceilings.mean(method), ceilings.score(worst, method)))
        rows.append([f"*{method}*", mean, f"{score} ({worst})", *[""] * 5])
    return Table(["method", "mean", "worst", "rank", "regret", *harm_heads(comparison)], rows)


def _metrics(comparison: Comparison) -> Table:
    """Return a table with the mean of every metric over shifts, for each method."""
    rows = []
    for method in comparison.everywhere:
        names = {name for entries in comparison.shifts.values() for name in entries[method].means}
        rows.append(
            [
                method,
                *(f"{comparison.mean(method, n):.4f}" if n in names else "" for n in METRICS),
            ]
        )
    return Table(["method", *METRICS], rows)


def _families(groups: Sequence[Group]) -> Table:
    overall = groups[-1].comparison.best()
    columns = tuple(dict.fromkeys((*_COLUMNS, overall)))
    rows = []
    for group in groups:
        comparison = group.comparison
        best = comparison.best()
        rows.append(
            [
                group.title,
                *(
                    _percent(comparison.mean(m)) if m in comparison.everywhere else ""
                    for m in columns
                ),
                f"{_percent(comparison.mean(best))} ({best})",
                _percent(group.results.ceilings.mean(TRUE_ACCURACY)),
                _percent(comparison.regret(AUTO)),
                *(str(len(comparison.harmed(AUTO, by))) for by in HARMS),
            ]
        )
    heads = ["family", *columns, "best method", f"*{TRUE_ACCURACY}*", "regret"]
    return Table([*heads, *harm_heads(groups[-1].comparison)], rows)


def _harm(group: Group) -> str:
    """Return a text and a table about the shifts on which auto increased the ECE."""
    comparison, truths = group.comparison, group.results.truths
    causes = {
        shift: cause_of_harm(comparison.records[shift], truths[shift])
        for shift in comparison.harmed(AUTO)
    }
    counts = []
    for by in HARMS:
        harmed = comparison.harmed(AUTO, by)
        unwarned = sum(causes[shift] != DISAGREE for shift in harmed)
        points = "1 point" if by == HARMS[0] else f"{100 * by:.0f} points"
        counts.append(
            f"On {len(harmed)} of {len(comparison.shifts)} shifts, `{AUTO}` is more than {points} "
            f"worse than the baseline. On {unwarned} of these shifts, there is no warning that "
            "the estimators disagree."
        )
    text = " ".join(counts)
    if not causes:
        return text
    rows = []
    for shift, cause in causes.items():
        records = comparison.records[shift]
        true = fmean(truth.accuracy for truth in truths[shift])
        first = records[0].fits[AUTO]
        failed = "; ".join(
            f"{guard.name} {guard.value:.3g} ({guard.threshold:.3g})"
            for guard in first.guards
            if not guard.passed
        )
        rows.append(
            [
                shift,
                f"{100 * (comparison.harm(shift, AUTO) or 0):+.2f}",
                counted(comparison.took(shift), len(records)),
                f"{_estimated(comparison, shift)} / {100 * true:.1f}",
                cause,
                failed or "none",
                "; ".join(first.warnings) or "none",
            ]
        )
    heads = ["harmed shift", "points", "auto chose", "accuracy estimated / true, %"]
    heads += ["reason", "failed checks of seed 0: value (threshold)", "warnings of seed 0"]
    return f"{text}\n\n{markdown(Table(heads, rows, (0, 2, 4, 5, 6)))}"


def _estimated(comparison: Comparison, shift: str) -> str:
    estimate = comparison.estimate(shift)
    return (
        "" if estimate is None else "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * v for v in estimate))
    )


def _intervals(groups: Sequence[Group]) -> Table:
    rows = []
    for group in groups:
        of_read_rows = group.comparison.coverage(group.results.accuracy)
        of_test_rows = group.comparison.coverage()
        if of_read_rows is not None and of_test_rows is not None:
            rows.append(
                [
                    group.title,
                    *_error_and_share(of_read_rows),
                    *_error_and_share(of_test_rows),
                    f"{100 * of_read_rows.width:.1f}",
                    ", ".join(of_read_rows.missed) or "none",
                ]
            )
    heads = ["family", "error", "contained", "error, test rows"]
    heads += ["contained, test rows", "width", "shifts missed in most seeds"]
    return Table(heads, rows, (0, 6))


def _error_and_share(coverage: Coverage) -> list[str]:
    return [f"{100 * coverage.error:.1f}", f"{coverage.held:.0%}"]


def _shifts(group: Group) -> Table:
    comparison, rows = group.comparison, []
    for shift, entries in comparison.shifts.items():
        alone = comparison.of([shift])
        best = alone.best()
        choice = counted(comparison.took(shift), len(comparison.records[shift]))
        true = fmean(truth.accuracy for truth in group.results.truths[shift])
        rows.append(
            [
                shift,
                *(_percent(entries[name].means["ece"]) for name in ("none", "temp")),
                f"{_percent(entries[AUTO].means['ece'])} ({choice})",
                f"{_percent(alone.mean(best))} ({best})",
                _percent(group.results.ceilings.score(shift, ORACLE)),
                _estimated(comparison, shift),
                f"{100 * true:.1f}",
            ]
        )
    heads = ["shift", "none", "temp", f"{AUTO} (chosen method)", "best method", ORACLE]
    return Table([*heads, "estimated accuracy", "true"], rows)
