"""A row of the table of ONNX classifiers: how it is made, and what must be found in it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from covcal_cli.classifiers.classifier import Classifier
from tests.classifiers.onnx.onnx_graphs import D_IN, D, Graph, K

Array = NDArray[Any]
TOKENS = 4
TOKEN_ROWS = ("N", TOKENS, D_IN)


def inputs_of(graph: Graph, n: int = 13) -> dict[str, Array]:
    """Made rows for the inputs of a graph."""
    rng = np.random.default_rng(1)
    found: dict[str, Array] = {}
    for value in graph.model().graph.input:
        tensor = value.type.tensor_type
        sizes = [dim.dim_value or 3 for dim in tensor.shape.dim][1:]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if np.issubdtype(dtype, np.integer):
            found[value.name] = rng.integers(0, 2, size=(n, *sizes)).astype(dtype)
        else:
            found[value.name] = rng.normal(size=(n, *sizes)).astype(dtype)
    return found


def run_whole(classifier: Classifier, batch: dict[str, Array]) -> tuple[Array, Array]:
    """Return the features and logits of a classifier that gives both."""
    features, logits = classifier.run(batch)
    assert features is not None
    return features, logits


def head_of(classifier: Classifier) -> tuple[Array, Array]:
    """Return W and b of a classifier that has them."""
    assert classifier.weight is not None
    assert classifier.bias is not None
    return classifier.weight, classifier.bias


@dataclass(frozen=True)
class Case:
    """One classifier and its expected head.

    Attributes
    ----------
    graph : Graph
        The float model.
    layer : str
        What the description of the head starts with.
    tail : str
        What makes the output of the logits.
    d : int or None
        Length of phi; None without features.
    classes : int
        K.
    head : bool
        Whether W and b must be found.
    convert : callable, optional
        Makes another file of the saved one (quantised, say) and returns its path.
    step : callable, optional
        Largest distance between two stored logits, read from the converted file.
    tail_step : float
        The same of the output.
    options : dict
        What to pass to ``open_classifier``.
    output : str
        The output to compare with.
    """

    graph: Graph
    layer: str
    tail: str
    d: int | None = D
    classes: int = K
    head: bool = True
    convert: Callable[[Path, dict[str, Array]], Path] | None = None
    step: Callable[[onnx.ModelProto], float] | None = None
    tail_step: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    output: str = "y"

    def save(self, folder: Path) -> Path:
        path = self.graph.save(folder)
        return path if self.convert is None else self.convert(path, inputs_of(self.graph, 64))
