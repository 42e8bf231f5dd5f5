"""A classifier's logits of made rows, after the first rows have settled how all are read."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from covcal_cli.arrays import Float32s
from covcal_cli.classifiers.classifier import Classifier
from covcal_cli.maths.output_form import OutputEvidence


def settled(
    classifier: Classifier, batch: Mapping[str, NDArray[Any]]
) -> tuple[Float32s | None, Float32s]:
    """Run the rows, settle what the outputs are, and return the features and logits."""
    features, made = classifier.run(batch)
    seen = OutputEvidence()
    seen.add(classifier.outputs.shown(made))
    classifier.outputs.settle(seen)
    return features, classifier.outputs.logits(made)
