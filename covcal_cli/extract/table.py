"""A table of outputs in the place of a classifier, for ``extract --logits``.

Choice of rows, shards, splits, labels, statistics and the file are the same as with a model.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from covcal_cli.arrays import Float32s, Inputs, ModelInput
from covcal_cli.classifiers.proof import Proof
from covcal_cli.classifiers.settlement import Outputs
from covcal_cli.data.outputs import OutputKind, OutputTable


class TableClassifier:
    """A classifier whose outputs are read from a table: both `OpenedClassifier` and `Classifier`.

    Both protocols are in `covcal_cli.classifiers.classifier`.
    """

    name, sha256 = "logits", ""
    logits_tensor = "logits"
    tail: str | None = "none"
    # Opening the tables has settled what they hold.
    outputs = Outputs("the table", None, is_single=False, has_layer=False)
    fixed_batch: int | None = None
    weight: Float32s | None = None
    bias: Float32s | None = None

    def __init__(self, tables: Sequence[OutputTable], kind: OutputKind) -> None:
        table = tables[0]
        self.n_classes: int = table.n_classes
        self.n_features: int | None = table.n_features
        self.class_names: tuple[str, ...] | None = table.class_names
        self.inputs: tuple[ModelInput, ...] = (
            ModelInput("logits", (None, table.n_classes), np.dtype(np.float32)),
        )
        self.metadata: Mapping[str, str] = {}
        self.features_tensor: str | None = None if table.n_features is None else "features"
        self.notes: tuple[str, ...] = (
            f"use a calibration of these {kind} only with {kind} of the same classifier: a table "
            "does not say which model made it",
            *(note for opened in tables for note in opened.index_notes),
        )
        self.proof = Proof()
        self._kind = kind

    def prove(self, batch: Inputs | None) -> "TableClassifier":
        """Return itself: a table needs no proof."""
        del batch
        return self

    def run(self, batch: Inputs) -> tuple[Float32s | None, Float32s]:
        """Return features, where there are any, and logits."""
        return batch.get("features"), batch["logits"]

    def describe(self) -> str:
        """Return what the tables hold, in one line."""
        logged = "" if self._kind == "logits" else ", as logarithms of probabilities"
        width = "no features" if self.n_features is None else f"{self.n_features} features"
        return f"none: {self.n_classes} classes as given{logged}, {width}"
