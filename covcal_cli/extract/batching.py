"""Runs a classifier so that a row's result depends on that row alone.

A shard, a resumed run and an undisturbed one cut the rows into different batches, and must agree
to the last bit. So every run of the model is of one size: a batch that is shorter is filled up,
because numerical libraries choose their way by the size. And where the rows of a batch influence
each other, as under dynamic quantisation, whose scale is that of the whole batch, each row is run
alone.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.classifiers.classifier import Classifier, Floats, Inputs, OpenedClassifier

_NOISE = 1e-5  # relative to the largest logit: what rounding in another order explains


def prove(opened: OpenedClassifier, inputs: Inputs | None, size: int) -> "BatchRunner":
    """Prove the head on the first rows, and find out whether they influence each other.

    `inputs` are up to `size` rows; None where there is none.
    """
    classifier = opened.prove(None if inputs is None else _filled(inputs, size))
    runner = BatchRunner(classifier, size)
    if inputs is None:
        return runner
    _, logits = runner.run(inputs)
    if not np.isfinite(logits).all():
        return runner  # the row is named when it is its turn
    # The first row among copies of itself must get the logits that it got among the others.
    repeated = {name: np.repeat(values[:1], size, axis=0) for name, values in inputs.items()}
    _, same = runner.run(repeated)
    noise = _NOISE * float(np.abs(logits).max())
    return BatchRunner(classifier, size, alone=float(np.abs(same - logits[0]).max()) > noise)


class BatchRunner:
    """A classifier that is fed batches of one size."""

    def __init__(self, classifier: Classifier, size: int, *, alone: bool = False) -> None:
        self.classifier = classifier
        self.size = size  # rows per run
        self._alone = alone  # whether every row is run alone

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
            batches = [
                {name: values[row : row + 1] for name, values in inputs.items()}
                for row in range(rows)
            ]
        elif rows < self.size:
            batches = [_filled(inputs, self.size)]
        else:
            batches = [dict(inputs)]
        found = [self.classifier.run(batch) for batch in batches]
        logits = np.concatenate([piece[1] for piece in found])[:rows]
        features = [piece[0] for piece in found if piece[0] is not None]
        return np.concatenate(features)[:rows] if features else None, logits


def _filled(inputs: Inputs, size: int) -> dict[str, NDArray[Any]]:
    """Repeat the last row until there are `size`: a row of zeros might be no valid input."""
    rows = len(next(iter(inputs.values())))
    places = np.minimum(np.arange(size), rows - 1)
    return {name: values[places] for name, values in inputs.items()}
