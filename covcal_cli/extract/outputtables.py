"""Tables of a classifier's outputs in the place of a classifier and its data.

``extract --logits`` then shares everything else with an extraction that runs a model: choice of
rows, shards, splits, labels, statistics and the file.
"""

from collections.abc import Generator, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.extract.settings import OutputKind, Rows
from covcal_cli.inputs.classes import ClassMap
from covcal_cli.inputs.classfile import read_classes
from covcal_cli.inputs.domain import Batch
from covcal_cli.inputs.domaincolumn import holds_both_domains
from covcal_cli.inputs.logits import OutputTable, open_outputs
from covcal_cli.inputs.pipeline import ImagePipeline
from covcal_cli.inputs.rowfacts import GROUP_PREFIX
from covcal_cli.modelinput import ModelInput
from covcal_cli.models.classifier import Floats, Inputs


class TableData:
    """The rows of a table of outputs; see `covcal_cli.inputs.domain.DomainData`."""

    def __init__(self, table: OutputTable) -> None:
        self.table = table
        self.path = table.path
        self.ids: list[str] = table.ids
        self.split_names: list[str] = table.split_names
        self.given_split: NDArray[np.uint8] | None = table.given_split
        self.class_folders: tuple[str, ...] | None = table.class_folders
        self.columns: Mapping[str, NDArray[Any]] = table.columns
        self.notes: tuple[str, ...] = table.notes

    def labels(self, classes: ClassMap) -> NDArray[np.int64]:
        """Return the class index of every row; -1 where unknown."""
        return self.table.labels(classes)

    def holds_images(self, wanted: Sequence[ModelInput]) -> bool:
        """Return False: outputs are finished."""
        del wanted
        return False

    def batches(
        self,
        wanted: Sequence[ModelInput],
        pipeline: ImagePipeline | None,
        rows: Rows,
        *,
        size: int,
        threads: int,
    ) -> Generator[Batch, None, None]:
        """Yield logits, and features where there are any."""
        del wanted, pipeline, threads
        for chosen, features, logits in self.table.blocks(rows, size):
            arrays = {"logits": logits}
            if features is not None:
                arrays["features"] = features
            self.notes = self.table.notes  # some rows are the first to show something
            yield Batch(arrays, chosen)


class TableClassifier:
    """Gives the outputs that it is fed; see `covcal_cli.models.classifier.Classifier`."""

    fixed_batch: int | None = None
    weight: Floats | None = None
    bias: Floats | None = None
    affine_error: float | None = None
    largest_affine_difference = 0.0
    largest_logit = 0.0

    def __init__(self, table: OutputTable, kind: OutputKind) -> None:
        self.name, self.sha256 = "logits", ""
        self.n_classes: int = table.n_classes
        self.n_features: int | None = table.n_features
        self.class_names: tuple[str, ...] | None = table.class_names
        self.inputs: tuple[ModelInput, ...] = (
            ModelInput("logits", (None, table.n_classes), np.dtype(np.float32)),
        )
        self.metadata: Mapping[str, str] = {}
        self.logits_tensor = "logits"
        self.features_tensor: str | None = None if table.n_features is None else "features"
        self.tail: str | None = "none"
        self.notes: tuple[str, ...] = (
            "no model is known: what is fitted to these "
            f"{kind} holds for tables of the same classifier alone",
        )
        self._kind = kind

    def run(self, batch: Inputs) -> tuple[Floats | None, Floats]:
        """Return features, where there are any, and logits."""
        return batch.get("features"), batch["logits"]

    def describe(self) -> str:
        """Return what there is, in one line."""
        logged = "" if self._kind == "logits" else ", as logarithms of probabilities"
        width = "no features" if self.n_features is None else f"{self.n_features} features"
        return f"none: {self.n_classes} classes as given{logged}, {width}"


def open_tables(
    source: Path | None, target: Path, kind: OutputKind, classes: Path | None = None
) -> tuple[TableClassifier, dict[str, TableData]]:
    """Open tables of outputs.

    Parameters
    ----------
    source : Path or None
        None also where `target` has rows of both in a column ``domain``.
    target : Path
    kind : {"logits", "probabilities"}
        What the tables hold.
    classes : Path, optional
        What names the classes in order, as `covcal_cli.inputs.classfile.read_classes` reads it.

    Raises
    ------
    CovcalError
        If a table cannot be used, or the two do not agree.
    """
    probabilities = kind == "probabilities"
    if source is None and holds_both_domains(target):
        tables = {
            name: open_outputs(target, probabilities=probabilities, domain=name)
            for name in ("source", "target")
        }
    else:
        paths = {"source": source, "target": target}
        tables = {
            name: open_outputs(path, probabilities=probabilities, probe=False)
            for name, path in paths.items()
            if path is not None
        }
        for name, table in tables.items():
            others = [path for other, path in paths.items() if other != name]
            table.require_domain(name, others[0])
        _require_same_classes(list(tables.values()))
        for table in tables.values():
            table.probe()
    first = next(iter(tables.values()))
    _match_classes(list(tables.values()), classes)
    for table in tables.values():
        for what, one, two in (
            ("classes", first.n_classes, table.n_classes),
            ("features", first.n_features, table.n_features),
            ("class names", first.class_names, table.class_names),
        ):
            if one != two:
                raise CovcalError(
                    f"{first.path} and {table.path} differ in their {what} ({_said(one)} and "
                    f"{_said(two)}): give outputs of the same classifier"
                )
    classifier = TableClassifier(first, kind)
    classifier.notes += tuple(note for table in tables.values() for note in table.index_notes)
    return classifier, {name: TableData(table) for name, table in tables.items()}


def _require_same_classes(tables: Sequence[OutputTable]) -> None:
    """Refuse a table that lacks classes which another one has.

    Of a table without a class the probabilities sum to less than 1, which leads nowhere.
    """
    for table, other in permutations(tables, 2):
        ours, theirs = table.class_columns, other.class_columns
        lacking = [name for name in theirs if name not in ours]
        if not lacking or not ours or not set(ours) < set(theirs):
            continue
        name, more = lacking[0], len(lacking) - 1
        beyond = f" and {more} more" if more else ""
        column = theirs[name]
        no_class = f", or call it {GROUP_PREFIX}{name} where it is no class" * (column == name)
        raise CovcalError(
            f"{table.path} has no {column} (class {name}{beyond}), which {other.path} has: add "
            f"it{no_class}"
        )


def _match_classes(tables: Sequence[OutputTable], classes: Path | None) -> None:
    """Bring the classes of all tables into one order, where the columns have their names."""
    first = tables[0]
    asked = read_classes(classes, first.n_classes).names if classes is not None else None
    order = _binary_classes(tables, asked)
    if order is None and first.class_names is not None:
        order = first.class_names
        if asked is not None and set(asked) == set(order):
            order = asked
    for table in tables:
        named = (table.positive,) if table.positive else table.class_names
        if order is None or named is None or not set(named) <= set(order):
            continue
        if table.positive is not None or len(named) == len(order):
            table.match_classes(order)


def _binary_classes(
    tables: Sequence[OutputTable], asked: tuple[str, ...] | None
) -> tuple[str, ...] | None:
    """Return two classes in order where every table has one column, named like one of them."""
    named = {table.positive for table in tables}
    labels = next((t.class_folders for t in tables if t.class_folders), None)
    for known in (asked, labels, ("0", "1") if labels is None else None):
        if known is not None and len(known) == 2 and named <= set(known):
            return known
    return None


def _said(value: int | tuple[str, ...] | None) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value or "none")
