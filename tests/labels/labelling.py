"""Sheets filled in as a person would, with the labels that the made files know."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

from covcal_cli.formats.features import FeatureFile
from covcal_cli.labels.target_labels import target_labels

Lines = list[dict[str, str]]


def lines_of(path: Path) -> Lines:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_lines(path: Path, lines: Sequence[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


def truth(path: Path) -> dict[str, str]:
    """Return the class of every target row, by id."""
    with FeatureFile(path) as file:
        target = file.require_target()
        rows = target.rows("all")
        labels = target_labels(target, rows)
        return {
            known: file.classes[label]
            for known, label in zip(target.ids(rows), labels, strict=True)
        }


def fill(sheet: Path, path: Path, change: Callable[[Lines], Lines] = list) -> None:
    """Fill in the labels of a sheet of the file at `path`, then change its lines."""
    known = truth(path)
    write_lines(sheet, change([line | {"label": known[line["id"]]} for line in lines_of(sheet)]))
