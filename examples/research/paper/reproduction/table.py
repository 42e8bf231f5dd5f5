"""Write the reproduced Table 1 and the table of running times as Markdown."""

import statistics
from collections.abc import Iterator, Mapping, Sequence

from covcal_cli.adapt.settings import AdaptSettings
from covcal_cli.compare.compare import Comparison, Entry
from covcal_cli.compare.runs import Record
from covcal_cli.compare.tables import counted
from covcal_cli.evaluate.evaluate import EvaluateSettings, evaluate
from covcal_cli.report.tables import Raw, Table
from covcal_cli.report.tables import markdown as drawn
from reproduction.features import Extracted
from reproduction.shifts import METHODS, PAPER, PAPER_SECONDS, Published

_STAGES = {"align": "alignment", "discriminators": "discriminators"}


def markdown(
    found: Comparison, prepared: Mapping[str, Extracted], adapt: AdaptSettings | None
) -> str:
    """Return the content of table.md; `adapt` is None if nothing was trained."""
    run = "no training"
    if adapt is not None:
        decay = "" if adapt.weight_decay is None else f", weight decay {adapt.weight_decay:g}"
        run = f"preset {adapt.preset}{decay}, {found.seeds} seed{'s' * (found.seeds != 1)}"
    parts = [
        f"### Calibration error ({run})",
        "ECE / over-confident ECE on the target's test rows in percent, 15 bins; mean ± sample "
        "standard deviation over seeds (none and temp do not depend on the seed). **Bold** is the "
        "lowest ECE of a row, and <u>underlined</u> the second lowest. The row below each shift "
        "has the paper's numbers, as far as our sources have them.",
        drawn(_errors(found, prepared)),
        "\n".join(_notes(found, prepared)),
    ]
    if adapt is not None:
        parts += [
            f"### Running time ({run})",
            "The table has mean seconds per run on one thread, with CPU seconds in "
            "parentheses. The times of alignment and discriminators are sums over all networks. "
            "The time to fit T includes the computation of importance weights. In the paper's "
            "table, two headings are swapped: the second number is the overhead, and the total "
            "is the sum of both numbers.",
            drawn(_times(found)),
        ]
    return "\n\n".join(parts) + "\n"


def _errors(found: Comparison, prepared: Mapping[str, Extracted]) -> Table:
    methods = [name for name in METHODS if name in found.methods]
    trained = "auto" in found.methods
    rows = []
    for shift, entries in found.shifts.items():
        best, second = ranked({m: 100 * entries[m].means["ece"] for m in methods})
        cells = [_marked(_ours(entries[m]), m in best, m in second) for m in methods]
        if trained:
            took = counted(found.took(shift), len(found.records[shift]))
            cells.append(f"{took}: {_ours(entries['auto'])}")
        rows.append([shift, *cells, prepared[shift].comparable])
        if shift in PAPER:
            published = [_theirs(PAPER[shift][method]) for method in methods]
            rows.append([f"{shift}, paper", *published, *[""] * trained, ""])
    heads = ["shift", *methods, *(["auto chose"] if trained else []), "compared with the paper"]
    return Table(heads, rows, (0, len(heads) - 1))


def ranked(means: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """Return the methods with the lowest mean, and the methods with the second-lowest mean.

    Means are compared as they are printed, with two decimals.
    """
    printed = {name: f"{mean:.2f}" for name, mean in means.items()}
    levels = sorted(set(printed.values()), key=float)
    best, second = (
        [name for name, text in printed.items() if text in levels[place : place + 1]]
        for place in (0, 1)
    )
    # With only two methods, the second-lowest mean is not marked.
    return best, second if len(printed) > 2 else []


def _marked(text: str, best: bool, second: bool) -> str:
    if best:
        return Raw(f"**{text}**")
    return Raw(f"<u>{text}</u>") if second else text


def _ours(entry: Entry) -> str:
    return " / ".join(
        _spread(100 * entry.means[name], 100 * entry.deviations[name])
        for name in ("ece", "over_ece")
    )


def _theirs(cell: Published) -> str:
    over = "" if cell.over is None else f" / {cell.over:.2f}"
    return _spread(cell.ece, cell.sd) + over


def _spread(mean: float, deviation: float | None) -> str:
    return f"{mean:.2f} ± {deviation:.2f}" if deviation else f"{mean:.2f}"


def _notes(found: Comparison, prepared: Mapping[str, Extracted]) -> Iterator[str]:
    for name, one in prepared.items():
        none, records = found.shifts[name]["none"], found.records[name]
        text = (
            f"- {name}: {one.source} to {one.target}, classified by {one.classifier}. The accuracy "
            f"is {100 * none.means['accuracy']:.2f} % on {records[0].n} test rows."
        )
        if "auto" in found.methods:
            iw, fl_iw = (_overlap(records, method) for method in ("iw+temp", "fl+iw+temp"))
            text += f" The effective sample size is {iw} % for iw+temp, {fl_iw} % for fl+iw+temp."
        if one.shift.all_rows:
            whole = evaluate(one.path, {}, EvaluateSettings(split="all")).metrics["none"]
            ece, over_ece = 100 * whole.ece, 100 * whole.over_ece
            text += f" Without calibration, all {whole.n} rows have ECE {ece:.2f}"
            text += f" and over-confident ECE {over_ece:.2f}."
        yield text


def _overlap(records: Sequence[Record], method: str) -> str:
    """Return the effective sample size of a method with weights, in % of the validation rows."""
    shares = [100 * (record.fits[method].ess_share or 0.0) for record in records]
    return _spread(statistics.fmean(shares), statistics.stdev(shares) if len(shares) > 1 else None)


def _times(found: Comparison) -> Table:
    fits = METHODS[1:]
    rows = []
    for name, records in found.records.items():
        cells = []
        for stage in _STAGES:
            spent = [one.seconds[stage] for one in records if stage in one.seconds]
            wall, cpu = (
                statistics.fmean(values) if spent else None
                for values in ([s.wall for s in spent], [s.cpu for s in spent])
            )
            cells.append("" if wall is None else f"{wall:.1f} ({cpu:.1f})")
        times = (statistics.fmean(one.seconds[fit].wall for one in records) for fit in fits)
        printed = PAPER_SECONDS.get(name)
        paper = "{} + {} = {}".format(*printed) if printed else ""
        rows.append([name, *cells, *(f"{seconds:.2f}" for seconds in times), paper])
    heads = ["shift", *_STAGES.values(), *(f"T of {name}" for name in fits), "paper"]
    return Table(heads, rows)
