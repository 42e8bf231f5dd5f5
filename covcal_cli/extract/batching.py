"""Runs a classifier so that a row's result depends on that row alone.

A shard, a resumed run and an undisturbed one cut the rows into different batches, and must agree
to the last bit. So every run of the model is of one size: a batch that is shorter is filled up,
because numerical libraries choose their way by the size. And where the rows of a batch influence
each other, as under dynamic quantisation, whose scale is that of the whole batch, each row is run
alone.
"""

import numpy as np

from covcal_cli.models.classifier import Classifier, Floats, Inputs, OpenedClassifier

_NOISE = 1e-5  # relative to the largest logit: what rounding in another order explains


def prove(opened: OpenedClassifier, inputs: Inputs | None, size: int) -> "BatchRunner":
    """Prove the head on a first batch, and find out whether its rows influence each other.

    Parameters
    ----------
    opened : OpenedClassifier
    inputs : mapping of str to array, shape (m, ...), or None
        Up to `size` rows, at least one; None where there is none.
    size : int
        Rows per run.
    """
    classifier = opened.prove(None if inputs is None else _filled(inputs, size))
    runner = BatchRunner(classifier, size)
    if inputs is None:
        return runner
    _, logits = runner.run(inputs)
    if not np.isfinite(logits).all():
        return runner  # the row is named when it is its turn
    repeated = {name: np.repeat(values[:1], size, axis=0) for name, values in inputs.items()}
    _, same = runner.run(repeated)
    largest = float(np.abs(logits).max())
    return BatchRunner(
        classifier, size, alone=float(np.abs(same - logits[0]).max()) > _NOISE * largest
    )


class BatchRunner:
    """A classifier that is fed batches of one size."""

    def __init__(self, classifier: Classifier, size: int, *, alone: bool = False) -> None:
        self.classifier, self.size = classifier, size
        self._alone = alone  # whether every row is run alone

    @property
    def widths(self) -> dict[str, int]:
        """Columns of each array that a run gives per row."""
        features = self.classifier.n_features
        found = {} if features is None else {"features": features}
        return {**found, "logits": self.classifier.n_classes}

    @property
    def note(self) -> str | None:
        """Say that every row is run alone, and why; None where that is not so."""
        if not self._alone:
            return None
        return (
            f"{self.classifier.name} gives a row other logits beside other rows (dynamic "
            "quantisation or batch statistics): every row is run alone, which is slower"
        )

    def run(self, inputs: Inputs) -> tuple[Floats | None, Floats]:
        """Return phi(x), shape (m, d), and the logits, shape (m, K), of up to `size` rows."""
        rows = len(next(iter(inputs.values())))
        if self._alone:
            return self._one_by_one(inputs, rows)
        features, logits = self.classifier.run(_filled(inputs, self.size))
        return None if features is None else features[:rows], logits[:rows]

    def _one_by_one(self, inputs: Inputs, rows: int) -> tuple[Floats | None, Floats]:
        pieces = [
            self.classifier.run({name: values[row : row + 1] for name, values in inputs.items()})
            for row in range(rows)
        ]
        logits = np.concatenate([piece[1] for piece in pieces])
        features = [piece[0] for piece in pieces if piece[0] is not None]
        return np.concatenate(features) if features else None, logits


def _filled(inputs: Inputs, size: int) -> Inputs:
    """Repeat the last row until there are `size`: a row of zeros might be no valid input."""
    return {
        name: np.concatenate([values, np.repeat(values[-1:], size - len(values), axis=0)])
        for name, values in inputs.items()
    }
