"""Look up nodes and tensors in an ONNX graph."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper, numpy_helper

from covcal_cli.arrays import AnyArray, Float64s, ModelInput, shape_text
from covcal_cli.classifiers.onnx.file import OnnxFile
from covcal_cli.errors import OUTPUTS_AS_TABLE, CovcalError, shown

_RANDOM = {
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    *("Multinomial", "Bernoulli"),
}
_SHAPE_ONLY = {"Shape", "Size"}
# DynamicQuantizeLinear also returns a scale and a zero point.
_DYNAMIC_QUANTIZE = "DynamicQuantizeLinear"
# Operators that accept NaN as a missing value, and operators that return NaN for NaN.
_TAKE_MISSING = {
    *("TreeEnsembleClassifier", "TreeEnsembleRegressor", "TreeEnsemble", "Imputer", "IsNaN")
}
_HAND_ON = {"Identity", "Cast", "Concat", "Reshape", "Flatten", "FeatureVectorizer", "Scaler"}


class OnnxGraph:
    """The main graph of an ONNX model."""

    def __init__(self, file: OnnxFile) -> None:
        self.file = file
        self._graph = file.model.graph
        self._initializers = {tensor.name: tensor for tensor in self._graph.initializer}
        stored = {*self._initializers}
        stored.update(tensor.values.name for tensor in self._graph.sparse_initializer)
        # Old files also list stored tensors as inputs.
        self.inputs = [value for value in self._graph.input if value.name not in stored]
        self.input_names = {value.name for value in self.inputs}
        self.outputs = list(self._graph.output)
        self.nodes: Sequence[onnx.NodeProto] = self._graph.node  # in topological order
        self._maker: dict[str, int] = {}
        self._readers: dict[str, list[int]] = {}
        for index, node in enumerate(self._graph.node):
            self._maker |= {name: index for name in node.output if name}
            for name in _reads(node):
                self._readers.setdefault(name, []).append(index)
        # Tensors that do not depend on any input, such as stored or transposed weights.
        self.constants = self._computed_from(stored, shapes=False)
        self._valueless = self._computed_from(stored, shapes=True)

    def maker(self, tensor: str) -> onnx.NodeProto | None:
        """Return the node that computes `tensor`; None for inputs and stored tensors."""
        index = self._maker.get(tensor)
        return None if index is None else self._graph.node[index]

    def value_inputs(self, node: onnx.NodeProto) -> list[str]:
        """Return the inputs of `node` that depend on the model's input."""
        return [
            name
            for name in _reads(node)
            if name not in self._valueless and not self._is_scale(name)
        ]

    def ancestors(self, tensors: Iterable[str]) -> set[str]:
        """Return `tensors` and all tensors from which they are computed."""
        visited: set[str] = set()
        pending = list(tensors)
        while pending:
            tensor = pending.pop()
            if tensor not in visited:
                visited.add(tensor)
                node = self.maker(tensor)
                pending += [] if node is None else self.value_inputs(node)
        return visited

    def readers(self, tensor: str, within: set[str] | None = None) -> list[onnx.NodeProto]:
        """Return the nodes that read `tensor`. `within` selects nodes with a result in this set."""
        nodes = (self._graph.node[index] for index in sorted({*self._readers.get(tensor, [])}))
        return [
            node
            for node in nodes
            if node.op_type not in _SHAPE_ONLY
            and (within is None or within.intersection(node.output))
        ]

    def has(self, tensor: str) -> bool:
        """Return whether the graph has a tensor of this name that depends on the model's input."""
        exists = tensor in self.input_names or tensor in self._maker
        return exists and tensor not in self.constants

    def evaluate(self, tensor: str) -> Float64s:
        """Return the value of a constant tensor as float64."""
        with np.errstate(invalid="ignore"):  # A damaged file may have signalling NaNs.
            return np.asarray(self.constant(tensor), dtype=np.float64)

    def constant(self, tensor: str) -> AnyArray:
        """Return the value of a constant tensor."""
        stored = self._initializers.get(tensor)
        if stored is not None and stored.data_location != onnx.TensorProto.EXTERNAL:
            try:
                return numpy_helper.to_array(stored)
            except (ValueError, TypeError, KeyError) as error:
                raise CovcalError(
                    f"{self.file.path} is damaged: the values of {shown(tensor)} do not fit "
                    "the declared type and shape: copy, download or export the model again"
                ) from error
        nodes, initializers = self.part_before([tensor])
        out = f"{tensor}__covcal"
        nodes = [*nodes, helper.make_node("Identity", [tensor], [out])]
        data = self.submodel(nodes, initializers, [], [out])
        value: AnyArray = self.file.session(data).run([out], {})[0]
        return value

    def submodel(
        self,
        nodes: Sequence[onnx.NodeProto],
        initializers: Sequence[onnx.TensorProto],
        inputs: Sequence[onnx.ValueInfoProto],
        outputs: Sequence[str],
    ) -> bytes:
        """Return a model with only the given nodes, as bytes."""
        graph = helper.make_graph(
            nodes,
            "part",
            inputs=inputs,
            outputs=[onnx.ValueInfoProto(name=name) for name in outputs],
            initializer=initializers,
        )
        source = self.file.model
        model = helper.make_model(
            graph, opset_imports=list(source.opset_import), functions=list(source.functions)
        )
        model.ir_version = source.ir_version
        return bytes(model.SerializeToString())

    def part_before(
        self, tensors: Iterable[str], cut: Iterable[str] = ()
    ) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
        """Return the nodes and initialisers between the tensors in `cut` and `tensors`."""
        indices: set[int] = set()
        visited = set(cut)
        pending = list(tensors)
        while pending:
            name = pending.pop()
            if name in visited:
                continue
            visited.add(name)
            index = self._maker.get(name)
            if index is not None:
                indices.add(index)
                pending += _reads(self._graph.node[index])
        nodes = [self._graph.node[index] for index in sorted(indices)]
        return nodes, [value for value in self._graph.initializer if value.name in visited]

    def _is_scale(self, tensor: str) -> bool:
        node = self.maker(tensor)
        return node is not None and node.op_type == _DYNAMIC_QUANTIZE and tensor != node.output[0]

    def _computed_from(self, stored: set[str], *, shapes: bool) -> set[str]:
        computed = set(stored)
        # In ONNX, a node comes after the nodes whose results it reads.
        for node in self._graph.node:
            if node.op_type in _RANDOM or any(value.HasField("g") for value in node.attribute):
                continue
            inputs = [name for name in node.input if name]
            if (shapes and node.op_type in _SHAPE_ONLY) or all(name in computed for name in inputs):
                computed.update(name for name in node.output if name)
        return computed


def _reads(node: onnx.NodeProto) -> list[str]:
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        inner = [attribute.g] if attribute.HasField("g") else attribute.graphs
        for graph in inner:
            own = {name for value in graph.node for name in value.output}
            own.update(value.name for value in (*graph.input, *graph.initializer))
            read = [name for value in graph.node for name in _reads(value)]
            read += [value.name for value in graph.output]
            names += [name for name in dict.fromkeys(read) if name not in own]
    return names


def read_inputs(graph: OnnxGraph) -> tuple[ModelInput, ...]:
    """Return the inputs of a model. Refuse an input that does not have one row per example."""
    inputs = tuple(_read(graph, value) for value in graph.inputs)
    if not inputs:
        raise CovcalError(f"{graph.file.path} has no input: export the model with an input")
    batches = [value.shape[0] if value.shape else 0 for value in inputs]
    # The most frequent fixed batch size; None if an input takes any number of rows.
    common = None if None in batches else max(dict.fromkeys(batches), key=batches.count)
    states = [value for value, batch in zip(inputs, batches, strict=True) if batch != common]
    if states:
        described = ", ".join(f"{value.name} {_shape(value)}" for value in inputs)
        names = " and ".join(value.name for value in states)
        raise CovcalError(
            f"{graph.file.path} has inputs that do not have one row per example: {names} (all "
            f"inputs: {described}). Export the model without these inputs, or pass its "
            "outputs as a table with --logits"
        )
    return tuple(
        replace(value, takes_missing=value.dtype.kind == "f" and _meets_trees(graph, value.name))
        for value in inputs
    )


def _meets_trees(graph: OnnxGraph, tensor: str) -> bool:
    """Return whether all readers of a tensor accept NaN as a missing value."""
    pending, seen = [tensor], set[str]()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        readers = graph.readers(name)
        for node in readers:
            if node.op_type in _HAND_ON:
                pending += node.output
            elif node.op_type not in _TAKE_MISSING:
                return False
        if not readers:  # A tensor without readers is an output.
            return False
    return True


def require_declared_width(
    graph: OnnxGraph, inputs: tuple[ModelInput, ...], tensor: str, width: int
) -> None:
    """Refuse a model whose input declares a wrong number of columns."""
    value = next((value for value in inputs if value.name == tensor), None)
    if value is None or len(value.shape) != 2 or value.shape[1] in (None, width):
        return
    raise CovcalError(
        f"{graph.file.path} declares input {value.name} as {_shape(value)}, but the "
        f"weights need {width} columns: export the model again with [N, {width}]"
    )


def _read(graph: OnnxGraph, value: onnx.ValueInfoProto) -> ModelInput:
    tensor = value.type.tensor_type
    if not tensor.elem_type or tensor.elem_type == onnx.TensorProto.STRING:
        raise CovcalError(
            f"{graph.file.path}: input {value.name} does not hold numbers: export a model that "
            f"reads numbers, or {OUTPUTS_AS_TABLE}"
        )
    if not tensor.HasField("shape"):
        raise CovcalError(
            f"{graph.file.path}: input {value.name} has no declared shape: export the model with "
            "a shape"
        )
    shape = tuple(dim.dim_value if dim.dim_value > 0 else None for dim in tensor.shape.dim)
    if not shape and len(graph.inputs) == 1:
        raise CovcalError(
            f"{graph.file.path}: input {value.name} is a single number: export a model that reads "
            "one row per example"
        )
    return ModelInput(
        value.name, shape, np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    )


def _shape(value: ModelInput) -> str:
    return shape_text(value.shape) if value.shape else "(a single number)"
