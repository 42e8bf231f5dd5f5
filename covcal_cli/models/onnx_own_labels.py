"""A model's own labels, compared with the classes of its largest probabilities.

A support vector machine votes for its label and computes probabilities by another way, so that the
two can differ. What covcal says of labels follows the probabilities.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from covcal_cli.models.onnx_graph import OnnxGraph

_LABEL_TYPES = {onnx.TensorProto.STRING, onnx.TensorProto.INT64, onnx.TensorProto.INT32}
_NOTE = (
    "the model's own label is not always the class of its largest probability (a support vector "
    "machine votes, say): labels and accuracy here follow the probabilities"
)


class OwnLabels:
    """The output that holds a model's labels beside its probabilities, compared until they differ.

    `names` is what its operators call the classes, in the order of the logits, and `others` are
    outputs that hold the classes otherwise.
    """

    def __init__(
        self, graph: OnnxGraph, names: Sequence[str] | None, others: Sequence[str]
    ) -> None:
        self._index = {name: index for index, name in enumerate(names or ())}
        found = [value.name for value in graph.outputs if _holds_labels(value, others)]
        self._output = found[0] if len(found) == 1 and self._index else None

    @property
    def wanted(self) -> list[str]:
        """The output to read; nothing where there is none, or no more to be found out."""
        return [] if self._output is None else [self._output]

    def note(self, values: Mapping[str, NDArray[Any]], logits: NDArray[Any]) -> tuple[str, ...]:
        """Compare a batch; return what a user should know, the first time."""
        if self._output is None:
            return ()
        labels = values[self._output].reshape(-1).tolist()
        own = np.array([self._index.get(_text(label), -1) for label in labels])
        if len(own) == len(logits) and (own == logits.argmax(axis=1)).all():
            return ()
        self._output = None
        # Labels by other names than the operators' say nothing.
        return (_NOTE,) if len(own) == len(logits) and (own >= 0).all() else ()


def _holds_labels(value: onnx.ValueInfoProto, others: Sequence[str]) -> bool:
    tensor = value.type.tensor_type
    sizes = [dim.dim_value for dim in tensor.shape.dim]
    return (
        value.name not in others
        and tensor.elem_type in _LABEL_TYPES
        and len(sizes) > 0
        and all(size == 1 for size in sizes[1:])
    )


def _text(label: Any) -> str:
    return label.decode("utf-8", "replace") if isinstance(label, bytes) else str(label)
