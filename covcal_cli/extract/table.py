"""A table of outputs in the place of a classifier, for ``extract --logits``.

It shares everything else with an extraction that runs a model: choice of rows, shards, splits,
labels, statistics and the file.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from covcal_cli.arrays import Float32s, Inputs, ModelInput
from covcal_cli.classifiers.proof import Proof
from covcal_cli.classifiers.settlement import Outputs
from covcal_cli.data.outputs import OutputKind, OutputTable


class TableClassifier:
    """Gives the outputs that it is fed: opened and proved, as there is nothing to be proved.

    See `covcal_cli.classifiers.classifier.OpenedClassifier` and `Classifier`.
    """

    name, sha256 = "logits", ""
    logits_tensor = "logits"
    tail: str | None = "none"
    # The tables have settled what they hold.
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
            "no model is known: what is fitted to these "
            f"{kind} holds for tables of the same classifier alone",
            *(note for one in tables for note in one.index_notes),
        )
        self.proof = Proof()
        self._kind = kind

    def prove(self, batch: Inputs | None) -> "TableClassifier":
        """Return itself: the outputs are what is given."""
        del batch
        return self

    def run(self, batch: Inputs) -> tuple[Float32s | None, Float32s]:
        """Return features, where there are any, and logits."""
        return batch.get("features"), batch["logits"]

    def describe(self) -> str:
        """Return what there is, in one line."""
        logged = "" if self._kind == "logits" else ", as logarithms of probabilities"
        width = "no features" if self.n_features is None else f"{self.n_features} features"
        return f"none: {self.n_classes} classes as given{logged}, {width}"
