"""Table 1 and the running-time table as Markdown that can be pasted."""

from collections.abc import Mapping, Sequence
from typing import Any

from reproduction.shifts import METHODS

Entry = Mapping[str, Any]


def markdown(document: Entry) -> str:
    """Return the content of table.md from that of table.json."""
    shifts: Mapping[str, Entry] = document["shifts"]
    methods = [name for name in METHODS if any(name in s["methods"] for s in shifts.values())]
    decay = document["weight_decay"]
    preset = document["preset"] + ("" if decay is None else f", weight decay {decay:g}")
    counts = {len(entry["seeds"]) for entry in shifts.values()} - {0}
    seeds = " or ".join(map(str, sorted(counts)))
    run = f"preset {preset}, {seeds} seed{'' if seeds == '1' else 's'}" if seeds else "no training"
    parts = [
        f"### Calibration error ({run})",
        "ECE / over-confident ECE on the target's test rows in percent, 15 bins; mean ± sample "
        "standard deviation over seeds (none and temp involve no chance). **Lowest ECE** of a "
        "row, <u>second lowest</u>. Below each row the paper's published one, as far as our "
        "sources give it.",
        "\n".join(_error_table(shifts, methods)),
        "\n".join(_notes(shifts)),
    ]
    if seeds:
        parts += [
            f"### Running time ({run})",
            "Mean seconds per run on one thread, CPU seconds in parentheses. Alignment and "
            "discriminators are for all members together; temperatures include the weights. The "
            "paper's table swaps its labels: of its two numbers the second is the overhead, and "
            "the total is the sum.",
            "\n".join(_time_table(shifts)),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _error_table(shifts: Mapping[str, Entry], methods: Sequence[str]) -> list[str]:
    trained = any(entry["auto"] for entry in shifts.values())
    heads = ["shift", *methods, *(["auto took"] if trained else []), "beside the paper's"]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for name, entry in shifts.items():
        best, second = entry["best"], entry["second"]
        cells = [
            _marked(_ours(entry["methods"].get(method)), method in best, method in second)
            for method in methods
        ]
        auto = [_auto(entry["auto"])] if trained else []
        lines.append(_row([name, *cells, *auto, entry["comparable"]]))
        published = [_theirs(entry["methods"].get(method)) for method in methods]
        if any(published):
            blank = [""] if trained else []
            lines.append(_row([f"{name}, paper", *published, *blank, ""]))
    return lines


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _marked(text: str, best: bool, second: bool) -> str:
    if best:
        return f"**{text}**"
    return f"<u>{text}</u>" if second else text


def _ours(cell: Entry | None) -> str:
    if cell is None:
        return ""
    return f"{_spread(cell['ece'])} / {_spread(cell['over_ece'])}"


def _spread(values: Entry) -> str:
    deviation = values["sd"]
    return f"{values['mean']:.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")


def _theirs(cell: Entry | None) -> str:
    published = cell["paper"] if cell else None
    if published is None:
        return ""
    over = "" if published["over"] is None else f" / {published['over']:.2f}"
    return _spread({"mean": published["ece"], "sd": published["sd"]}) + over


def _auto(auto: Entry | None) -> str:
    if auto is None:
        return ""
    chosen: Mapping[str, int] = auto["chosen"]
    runs = sum(chosen.values())
    names = [
        name if count == runs else f"{name} ({count} of {runs})" for name, count in chosen.items()
    ]
    return f"{', '.join(names)}: {_ours(auto)}"


def _notes(shifts: Mapping[str, Entry]) -> list[str]:
    lines = []
    for name, entry in shifts.items():
        text = (
            f"- {name}: {entry['source']} to {entry['target']}; {entry['classifier']}; accuracy "
            f"{entry['accuracy']:.2f} on {entry['n_test']} test rows"
        )
        if entry["overlap"]:
            shares = entry["overlap"]
            text += (
                f"; effective rows {_spread(shares['iw+temp'])} % on phi, "
                f"{_spread(shares['fl+iw+temp'])} % on psi"
            )
        if everything := entry["none_on_all_rows"]:
            text += f"; none on all {everything['n']} rows {_pair(everything)}"
        lines.append(text)
    return lines


def _pair(values: Entry) -> str:
    return f"{values['ece']:.2f} / {values['over_ece']:.2f}"


def _time_table(shifts: Mapping[str, Entry]) -> list[str]:
    fits = METHODS[1:]
    heads = ["shift", "alignment", "discriminators", *(f"T of {name}" for name in fits), "paper"]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for name, entry in shifts.items():
        seconds = entry["seconds"]
        stages = [
            f"{seconds[stage]['wall']:.1f} ({seconds[stage]['cpu']:.1f})"
            if stage in seconds
            else ""
            for stage in ("alignment", "discriminators")
        ]
        times = seconds.get("temperatures", {})
        cells = [f"{times[fit]:.2f}" if fit in times else "" for fit in fits]
        printed = entry["paper_seconds"]
        paper = "{} + {} = {}".format(*printed) if printed else ""
        lines.append(_row([name, *stages, *cells, paper]))
    return lines
