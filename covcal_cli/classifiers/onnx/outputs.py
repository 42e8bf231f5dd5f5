"""Find the outputs of an ONNX model that may be the class scores, and the class names."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from covcal_cli.arrays import AnyArray
from covcal_cli.classifiers.onnx.graph import OnnxGraph
from covcal_cli.classifiers.onnx.layers import attributes_of, has_fixed_weights
from covcal_cli.errors import CovcalError
from covcal_cli.records import parsed_json

_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE}
_INTEGERS = {onnx.TensorProto.INT64, onnx.TensorProto.INT32}
# The integer types of quantised scores.
_STORED_SCORES = {
    *(onnx.TensorProto.UINT8, onnx.TensorProto.INT8),
    *(onnx.TensorProto.UINT16, onnx.TensorProto.INT16),
}
# Metadata keys that may have class names; "character" is for PaddleOCR and PaddleX.
_METADATA_NAMES = ("names", "class_names", "classes", "labels", "id2label", "character")
_LABELS = ("classlabels_strings", "classlabels_int64s", "classlabels_ints")


@dataclass(frozen=True)
class ClassOutput:
    """An output that may be the scores of the classes."""

    name: str
    tensor: str  # The tensor to read: the output, or the input of its ZipMap.
    is_label: bool = False  # Whether the output is the number of the most probable class.
    is_vector: bool = False  # Whether the output has one number per row, instead of one per class.
    columns: int = 0  # The declared number of columns; 0 if unknown.
    zipped: tuple[str | int, ...] = ()  # Dictionary keys in the order of the columns.

    @property
    def rank(self) -> int:
        """Return 0 for scores per class, 1 for one number per row, and 2 for labels."""
        return 2 if self.is_label else int(self.is_vector)


def class_outputs(graph: OnnxGraph, output: str | None) -> list[ClassOutput]:
    """Return the outputs that may be the class scores; if there are none, the labels.

    Raises `CovcalError` if no output can be the classes, or if the user must choose an output.
    """
    names = [value.name for value in graph.outputs]
    if output is not None and output not in names:
        raise CovcalError(
            f"{graph.file.path} has no output {output!r}: choose one of {', '.join(names)}"
        )
    chosen = [value for value in graph.outputs if output in (None, value.name)]
    usable = [candidate for value in chosen if (candidate := _candidate(graph, value)) is not None]
    if usable:
        # If another output has several scores per row, an output with one number may be a loss.
        best = min(candidate.rank for candidate in usable)
        best_outputs = [candidate for candidate in usable if candidate.rank == best]
        for other in usable:
            if (
                other.is_vector
                and other.rank > best
                and all(_feeds(graph, candidate, other) for candidate in best_outputs)
            ):
                raise CovcalError(
                    f"{graph.file.path} has several outputs that may hold the classes: choose "
                    f"--model-output {other.name} or --model-output {best_outputs[0].name}"
                )
        return best_outputs
    raise _no_class_output(graph, chosen)


def _no_class_output(graph: OnnxGraph, outputs: Sequence[onnx.ValueInfoProto]) -> CovcalError:
    described = ", ".join(f"{value.name} ({_kind(value)})" for value in outputs)
    path = graph.file.path
    stored = [
        value.name
        for value in outputs
        if value.type.tensor_type.elem_type in _STORED_SCORES
        and (len(_row_sizes(graph, value)) == 1 or not value.type.tensor_type.HasField("shape"))
    ]
    if stored:
        return CovcalError(
            f"{path} gives {described}, but {stored[0]} holds quantised scores without their "
            "scale: export the model with DequantizeLinear at its end, or choose another "
            "output with --model-output NAME"
        )
    return CovcalError(
        f"{path} gives {described}, but covcal needs numbers of shape [N, classes]: export "
        "the logits or probabilities, or choose another output with --model-output NAME"
    )


def _feeds(graph: OnnxGraph, inner: ClassOutput, outer: ClassOutput) -> bool:
    """Return whether `inner` is an embedding, from which a linear layer computes `outer`."""
    path = graph.ancestors([outer.tensor])
    return inner.tensor in path and any(
        has_fixed_weights(graph, node) and inner.tensor in graph.ancestors(graph.value_inputs(node))
        for node in graph.nodes
        if path.intersection(node.output)
    )


def _candidate(graph: OnnxGraph, value: onnx.ValueInfoProto) -> ClassOutput | None:
    if not value.type.HasField("tensor_type"):
        maker = graph.maker(value.name)
        if maker is None or maker.op_type != "ZipMap":
            return None
        return ClassOutput(value.name, maker.input[0], zipped=zip_labels(maker))
    tensor = value.type.tensor_type
    dims = [dim.dim_value for dim in tensor.shape.dim]
    if not tensor.HasField("shape"):
        if tensor.elem_type in _FLOATS | _INTEGERS:
            return ClassOutput(value.name, value.name, is_label=tensor.elem_type in _INTEGERS)
        return None
    sizes = _row_sizes(graph, value)
    if tensor.elem_type in _FLOATS and dims and len(sizes) <= 1:
        columns = sizes[0] if sizes else int(len(dims) > 1)
        return ClassOutput(value.name, value.name, is_vector=len(dims) == 1, columns=columns)
    if tensor.elem_type in _INTEGERS and dims and not sizes:
        return ClassOutput(value.name, value.name, is_label=True)
    return None


def _row_sizes(graph: OnnxGraph, value: onnx.ValueInfoProto) -> list[int]:
    """Return the lengths of the axes of one row of an output, without axes of length 1.

    An axis without a declared length counts as 0. Usually the first axis is the rows. In shape [1,
    N, K], the second axis is the rows if the model's input has N > 1 rows.
    """
    dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    batches = [item.type.tensor_type.shape.dim[:1] for item in graph.inputs]
    batch = next((dim[0].dim_value for dim in batches if dim), 0)
    if len(dims) == 3 and dims[0] == 1 and batch != 1 and dims[1] == batch:
        dims = dims[1:]
    return [size for size in dims[1:] if size != 1]


def _kind(value: onnx.ValueInfoProto) -> str:
    if not value.type.HasField("tensor_type"):
        return "not a tensor"
    tensor = value.type.tensor_type
    sizes = [str(dim.dim_value or dim.dim_param or "?") for dim in tensor.shape.dim]
    name = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    if not tensor.HasField("shape"):
        return f"{name} of unknown shape"
    return f"{name} [{', '.join(sizes)}], rank {len(sizes)}"


# A model's label may differ from the most probable class: support vector machines count votes.

_LABEL_TYPES = {onnx.TensorProto.STRING, onnx.TensorProto.INT64, onnx.TensorProto.INT32}
_NOTE = (
    "covcal predicts the most probable class. In some rows, the label that the model returns is "
    "another class"
)


class OwnLabels:
    """The model's own labels.

    The labels are compared with the most probable classes until a label differs. `names` are the
    class names in the order of the logits. `others` are the names of outputs with probabilities.
    """

    def __init__(
        self, graph: OnnxGraph, names: Sequence[str] | None, others: Sequence[str]
    ) -> None:
        self._index = {name: index for index, name in enumerate(names or ())}
        labels = []
        for value in graph.outputs:
            tensor = value.type.tensor_type
            sizes = [dim.dim_value for dim in tensor.shape.dim]
            is_vector = len(sizes) > 0 and all(size == 1 for size in sizes[1:])
            if value.name not in others and tensor.elem_type in _LABEL_TYPES and is_vector:
                labels.append(value.name)
        self._output = labels[0] if len(labels) == 1 and self._index else None

    @property
    def tensors(self) -> list[str]:
        """The name of the output with labels; empty if no labels are compared."""
        return [] if self._output is None else [self._output]

    def note(self, values: Mapping[str, AnyArray], logits: AnyArray) -> tuple[str, ...]:
        """Return a note if the model's label is not the most probable class of a row."""
        if self._output is None:
            return ()
        labels = values[self._output].reshape(-1).tolist()
        own = np.array([self._index.get(str(_decoded(label)), -1) for label in labels])
        if len(own) == len(logits) and (own == logits.argmax(axis=1)).all():
            return ()
        self._output = None
        return (_NOTE,) if len(own) == len(logits) and (own >= 0).all() else ()


def _decoded(label: Any) -> Any:
    return label.decode("utf-8", "replace") if isinstance(label, bytes) else label


def class_names(
    graph: OnnxGraph, metadata: Mapping[str, str], count: int
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Return the K class names in the order of the logits (or None), and notes for the user.

    The names come from an operator with labels, such as ZipMap, or from the metadata. The metadata
    may have a dictionary by class number, a list, or one name per line. A note gives the reason if
    names are not used.
    """
    labels = _class_labels(graph, count)
    if labels is not None and len(set(labels)) == count:
        return labels, ()
    notes = []
    for key in _METADATA_NAMES:
        if key not in metadata:
            continue
        names = _parse(metadata[key])
        if names is None:
            continue
        if len(names) != count:
            notes.append(
                f"the model's metadata {key!r} holds {len(names)} class names instead of {count}"
            )
        elif len(set(names)) < count:
            twice = next(name for name in names if names.count(name) > 1)
            notes.append(f"the model's metadata {key!r} has the class name {twice!r} twice")
        else:
            return names, ()
    return None, tuple(f"{note}, so covcal does not use these names" for note in notes)


def zip_labels(node: onnx.NodeProto) -> tuple[str | int, ...]:
    """Return the class labels in a node's attributes."""
    attributes = attributes_of(node)
    labels = next((attributes[name] for name in _LABELS if attributes.get(name)), ())
    return tuple(map(_decoded, labels))


def _class_labels(graph: OnnxGraph, count: int) -> tuple[str, ...] | None:
    for node in graph.nodes:
        labels = zip_labels(node)
        if not labels and node.op_type == "ArrayFeatureExtractor":
            labels = _chosen_labels(graph, node)
        if len(labels) == count:
            return tuple(str(label) for label in labels)
    return None


def _chosen_labels(graph: OnnxGraph, node: onnx.NodeProto) -> tuple[str | int, ...]:
    maker = graph.maker(node.input[1])
    if node.input[0] not in graph.constants or maker is None or maker.op_type != "ArgMax":
        return ()
    values = graph.constant(node.input[0]).reshape(-1).tolist()
    return tuple(_decoded(value) for value in values if isinstance(value, str | bytes | int))


def _parse(text: str) -> tuple[str, ...] | None:
    value = _literal(text)
    lines = [line.strip() for line in text.splitlines()]
    if value is None and len(lines) > 1 and all(lines):
        value = lines
    if isinstance(value, dict):
        try:
            numbered = {int(key): name for key, name in value.items()}
        except (TypeError, ValueError):
            return None
        if sorted(numbered) != list(range(len(numbered))):
            return None
        value = [numbered[index] for index in range(len(numbered))]
    if not isinstance(value, (list, tuple)) or not value:
        return None
    if any(not isinstance(name, (str, int)) or name == "" for name in value):
        return None
    return tuple(str(name) for name in value)


def _literal(text: str) -> Any:
    try:
        return parsed_json(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
