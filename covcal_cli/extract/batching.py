"""Runs a classifier so that a row's result depends on that row alone.

A shard, a resumed run and an undisturbed one cut the rows into different batches, and must agree
to the last bit. So every run of the model is of one size: a batch that is shorter is filled up,
because numerical libraries choose their way by the size. And where the rows of a batch influence
each other, as under dynamic quantisation, whose scale is that of the whole batch, each row is run
alone.
"""

import numpy as np

from covcal_cli.models.classifier import Classifier, Floats, Inputs

_NOISE = 1e-5  # relative to the largest logit: what rounding in another order explains


class BatchRunner:
    """A classifier that is fed batches of one size."""

    def __init__(self, classifier: Classifier, size: int) -> None:
        self.classifier = classifier
        self.size = size  # rows per run
        self._alone = False

    @property
    def note(self) -> str | None:
        """Say that every row is run alone, and why, once `probe` found it; else None."""
        if not self._alone:
            return None
        return (
            f"{self.classifier.name} gives a row other logits beside other rows (dynamic "
            "quantisation or batch statistics): every row is run alone, which is slower"
        )

    def probe(self, inputs: Inputs) -> None:
        """Prove the head on the first rows, and find out whether they influence each other."""
        _, logits = self.run(inputs)
        if not np.isfinite(logits).all():
            return  # the row is named when it is its turn
        # The first row among copies of itself must get the logits that it got among the others.
        repeated = {
            name: np.repeat(values[:1], self.size, axis=0) for name, values in inputs.items()
        }
        _, same = self.run(repeated)
        largest = float(np.abs(logits).max())
        self._alone = float(np.abs(same - logits[0]).max()) > _NOISE * largest

    def run(self, inputs: Inputs) -> tuple[Floats | None, Floats]:
        """Return phi(x), shape (m, d), and the logits, shape (m, K), of up to `size` rows."""
        rows = len(next(iter(inputs.values())))
        if self._alone:
            batches = [
                {name: values[row : row + 1] for name, values in inputs.items()}
                for row in range(rows)
            ]
        elif rows < self.size:
            # The last row again and again: a row of zeros might be no valid input.
            places = np.minimum(np.arange(self.size), rows - 1)
            batches = [{name: values[places] for name, values in inputs.items()}]
        else:
            batches = [dict(inputs)]
        found = [self.classifier.run(batch) for batch in batches]
        logits = np.concatenate([piece[1] for piece in found])[:rows]
        features = [piece[0] for piece in found if piece[0] is not None]
        return np.concatenate(features)[:rows] if features else None, logits
