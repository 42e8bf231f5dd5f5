"""Table 1 as numbers: means and standard deviations over seeds, in percent; best and second."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from reproduction.experiment import EXACT, Preset, Record
from reproduction.features import Extracted
from reproduction.shifts import METHODS, PAPER, PAPER_SECONDS

SCHEMA = "covcal-paper-table/1"
Entry = dict[str, Any]


def summarise(
    extracted: Extracted, exact: Record, runs: Sequence[tuple[int, Record]], methods: Sequence[str]
) -> Entry:
    """Return one shift's part of table.json.

    Parameters
    ----------
    exact : mapping
        The record of `experiment.run_exact`.
    runs : sequence of (seed, record)
        Those of `experiment.run_seed`; none where only exact methods were asked for.
    methods : sequence of str
        Those to show.
    """
    cells: dict[str, Entry] = {}
    for method in methods:
        records = [exact] if method in EXACT else [record for _, record in runs]
        if not records:
            continue
        cells[method] = _cell([record["methods"][method] for record in records])
        published = PAPER.get(extracted.shift.name, {}).get(method)
        cells[method]["paper"] = None if published is None else asdict(published)
    best, second = ranked({name: cell["ece"]["mean"] for name, cell in cells.items()})
    return {
        "comparable": extracted.comparable,
        "source": extracted.source,
        "target": extracted.target,
        "classifier": extracted.classifier,
        "seeds": [seed for seed, _ in runs],
        "n_test": exact["methods"]["none"]["n"],
        "accuracy": 100 * exact["methods"]["none"]["accuracy"],
        "methods": cells,
        "best": best,
        "second": second,
        "auto": _auto([record for _, record in runs]),
        "overlap": _overlap([record for _, record in runs]),
        "none_on_all_rows": _all_rows(exact.get("none_on_all_rows")),
        "seconds": _seconds(exact, [record for _, record in runs]),
        "paper_seconds": PAPER_SECONDS.get(extracted.shift.name),
    }


def document(shifts: Mapping[str, Entry], preset: Preset) -> Entry:
    """Return the content of table.json."""
    return {
        "schema": SCHEMA,
        "preset": preset.name,
        "weight_decay": preset.weight_decay,
        "unit": "percent",
        "bins": 15,
        "shifts": dict(shifts),
    }


def over_seeds(values: Sequence[float]) -> Entry:
    """Return mean, sample standard deviation (None for one value) and the values."""
    return {
        "mean": statistics.fmean(values),
        "sd": statistics.stdev(values) if len(values) > 1 else None,
        "values": list(values),
    }


def ranked(means: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """Return the methods with the lowest and with the second-lowest mean.

    What counts is what a reader sees, two decimals, so that equal numbers look equal.
    """
    shown = {name: f"{mean:.2f}" for name, mean in means.items()}
    levels = sorted(set(shown.values()), key=float)
    best, second = (
        [name for name, text in shown.items() if text in levels[place : place + 1]]
        for place in (0, 1)
    )
    # Of two methods the second is no distinction.
    return best, second if len(shown) > 2 else []


def _cell(measured: Sequence[Mapping[str, Any]]) -> Entry:
    return {
        "ece": over_seeds([100 * entry["ece"] for entry in measured]),
        "over_ece": over_seeds([100 * entry["over_ece"] for entry in measured]),
        "temperatures": [entry["temperature"] for entry in measured],
    }


def _auto(records: Sequence[Record]) -> Entry | None:
    if not records:
        return None
    found = [record["auto"] for record in records]
    chosen = Counter(str(entry["method_used"]) for entry in found)
    return {"chosen": dict(chosen.most_common()), **_cell(found)}


def _overlap(records: Sequence[Record]) -> Entry | None:
    """Return the effective rows, in % of the source validation rows, of both weighted methods."""
    if not records:
        return None
    return {
        method: over_seeds(
            [100 * record["methods"][method]["weights"]["ess_share"] for record in records]
        )
        for method in METHODS
        if "iw" in method
    }


def _all_rows(found: Mapping[str, Any] | None) -> Entry | None:
    if found is None:
        return None
    return {"n": found["n"], "ece": 100 * found["ece"], "over_ece": 100 * found["over_ece"]}


def _seconds(exact: Record, records: Sequence[Record]) -> Entry:
    """Return mean seconds per run: of the stages of adapt, and of every fit."""
    result: Entry = {"temp": exact["seconds"]["temp"]}
    for stage in ("alignment", "discriminators"):
        spent = [record["seconds"][stage] for record in records if stage in record["seconds"]]
        if spent:
            result[stage] = {
                clock: statistics.fmean(one[clock] for one in spent) for clock in ("wall", "cpu")
            }
    if records:
        result["temperatures"] = {
            method: statistics.fmean(
                record["seconds"]["temperatures"][method] for record in records
            )
            for method in METHODS[1:]
        }
    return result
