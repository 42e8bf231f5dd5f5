"""The outputs of an ONNX model that may hold the classes, and its names for them."""

from dataclasses import dataclass

import onnx

from covcal_cli.errors import CovcalError
from covcal_cli.models.onnx_graph import OnnxGraph
from covcal_cli.models.onnx_linear import attributes_of

_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE}
_INTEGERS = {onnx.TensorProto.INT64, onnx.TensorProto.INT32}
_LABELS = ("classlabels_strings", "classlabels_int64s", "classlabels_ints")


@dataclass(frozen=True)
class ClassOutput:
    """One output that may hold the classes."""

    name: str
    tensor: str  # to be read: the output itself, or what a ZipMap turns into dictionaries
    is_label: bool = False  # whether it holds the index of the most likely class alone
    is_vector: bool = False  # whether it holds one number per row, without an axis of classes
    # The keys of the dictionaries, in the order of the tensor.
    zipped: tuple[str | int, ...] = ()

    @property
    def rank(self) -> int:
        """How unlikely it is to hold the classes where the model has other outputs."""
        return 2 if self.is_label else int(self.is_vector)


def class_outputs(graph: OnnxGraph, output: str | None) -> list[ClassOutput]:
    """Return the outputs that may hold the classes; labels only where nothing else does."""
    names = [value.name for value in graph.outputs]
    if output is not None and output not in names:
        raise CovcalError(
            f"{graph.file.path} has no output {output!r}: choose one of {', '.join(names)}"
        )
    chosen = [value for value in graph.outputs if output in (None, value.name)]
    found = [candidate for value in chosen if (candidate := _candidate(graph, value)) is not None]
    if found:
        # One number per row beside a row of scores is a loss or a by-product; labels are the last
        # resort.
        best = min(candidate.rank for candidate in found)
        return [candidate for candidate in found if candidate.rank == best]
    described = ", ".join(f"{value.name} ({_kind(value)})" for value in chosen)
    raise CovcalError(
        f"{graph.file.path} is not a classifier that covcal can use: its output must be numbers of "
        f"shape [N, classes], but it gives {described}: export the logits or probabilities of "
        "every row, or choose another output with --model-output NAME"
    )


def class_labels(graph: OnnxGraph, count: int) -> tuple[str, ...] | None:
    """Return the names that operators of the graph give the classes, where there are `count`."""
    for node in graph.nodes:
        found = zip_labels(node)
        if not found and node.op_type == "ArrayFeatureExtractor":
            found = _chosen_labels(graph, node)
        if len(found) == count:
            return tuple(str(label) for label in found)
    return None


def any_labels(graph: OnnxGraph) -> int:
    """Return how many classes an operator of the graph names, 0 if none does."""
    return max((len(zip_labels(node)) for node in graph.nodes), default=0)


def zip_labels(node: onnx.NodeProto) -> tuple[str | int, ...]:
    """Return the class labels among a node's attributes."""
    attributes = attributes_of(node)
    labels = next((attributes[name] for name in _LABELS if attributes.get(name)), ())
    return tuple(
        label.decode("utf-8", "replace") if isinstance(label, bytes) else int(label)
        for label in labels
    )


def _chosen_labels(graph: OnnxGraph, node: onnx.NodeProto) -> tuple[str | int, ...]:
    """Return the labels that an ArgMax chooses from, where that is what the node is for."""
    maker = graph.maker(node.input[1])
    if node.input[0] not in graph.constants or maker is None or maker.op_type != "ArgMax":
        return ()
    values = graph.constant(node.input[0]).reshape(-1).tolist()
    return tuple(
        value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for value in values
        if isinstance(value, (str, bytes, int))
    )


def _candidate(graph: OnnxGraph, value: onnx.ValueInfoProto) -> ClassOutput | None:
    if not value.type.HasField("tensor_type"):
        maker = graph.maker(value.name)
        if maker is None or maker.op_type != "ZipMap":
            return None
        return ClassOutput(value.name, maker.input[0], zipped=zip_labels(maker))
    tensor = value.type.tensor_type
    dims = [dim.dim_value for dim in tensor.shape.dim]
    ranked = tensor.HasField("shape")
    if tensor.elem_type in _FLOATS and (not ranked or (dims and all(d == 1 for d in dims[2:]))):
        return ClassOutput(value.name, value.name, is_vector=ranked and len(dims) == 1)
    if tensor.elem_type in _INTEGERS and (not ranked or (dims and all(d == 1 for d in dims[1:]))):
        return ClassOutput(value.name, value.name, is_label=True)
    return None


def _kind(value: onnx.ValueInfoProto) -> str:
    if not value.type.HasField("tensor_type"):
        return "not a tensor"
    tensor = value.type.tensor_type
    sizes = [str(dim.dim_value or dim.dim_param or "?") for dim in tensor.shape.dim]
    name = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    return f"{name} [{', '.join(sizes)}], rank {len(sizes)}"
