"""An index over an ONNX graph: who makes a tensor, who reads it, and what is constant."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from covcal_cli.models.onnx_file import OnnxFile

_RANDOM = {
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Multinomial",
    "Bernoulli",
}
# These read a tensor's shape, never its values.
_SHAPE_ONLY = {"Shape", "Size"}


class OnnxGraph:
    """The main graph of an ONNX model, indexed for walking.

    Attributes
    ----------
    inputs, outputs : list of onnx.ValueInfoProto
        The inputs that must be fed (initialisers that are listed as inputs are left out), and the
        outputs.
    constants : set of str
        Tensors that do not depend on any input: initialisers, Constant nodes, and whatever is
        computed from those alone (transposed or dequantised weights).
    """

    def __init__(self, file: OnnxFile) -> None:
        self.file = file
        self._graph = file.model.graph
        initializers = [tensor.name for tensor in self._graph.initializer]
        initializers += [tensor.values.name for tensor in self._graph.sparse_initializer]
        self._initializers = set(initializers)
        self.inputs = [value for value in self._graph.input if value.name not in self._initializers]
        self.outputs = list(self._graph.output)
        self._maker: dict[str, int] = {}
        self._readers: dict[str, list[int]] = {}
        for index, node in enumerate(self._graph.node):
            self._maker |= {name: index for name in node.output if name}
            for name in node.input:
                self._readers.setdefault(name, []).append(index)
        self.constants = self._computed_from(self._initializers, shapes=False)
        self._valueless = self._computed_from(self._initializers, shapes=True)

    def maker(self, tensor: str) -> onnx.NodeProto | None:
        """Return the node whose output `tensor` is, or None for an input or initialiser."""
        index = self._maker.get(tensor)
        return None if index is None else self._graph.node[index]

    def value_inputs(self, node: onnx.NodeProto) -> list[str]:
        """Return the inputs of `node` whose values depend on the model's input."""
        return [name for name in node.input if name and name not in self._valueless]

    def ancestors(self, tensors: Iterable[str]) -> set[str]:
        """Return `tensors` and every tensor whose values they depend on."""
        found: set[str] = set()
        pending = list(tensors)
        while pending:
            tensor = pending.pop()
            if tensor in found:
                continue
            found.add(tensor)
            node = self.maker(tensor)
            if node is not None:
                pending += self.value_inputs(node)
        return found

    def readers(self, tensor: str, within: set[str]) -> list[onnx.NodeProto]:
        """Return the nodes that read the values of `tensor` and make a tensor of `within`."""
        nodes = (self._graph.node[index] for index in sorted({*self._readers.get(tensor, [])}))
        return [
            node
            for node in nodes
            if node.op_type not in _SHAPE_ONLY and within.intersection(node.output)
        ]

    def evaluate(self, tensor: str) -> NDArray[np.float64]:
        """Return the value of a constant tensor, as float64.

        ONNX Runtime computes it from the constant part of the graph, so transposed, cast or
        dequantised weights and weights in external files need no algebra here.
        """
        nodes, initializers = self._constant_part(tensor)
        out = f"{tensor}__covcal"
        graph = helper.make_graph(
            [*nodes, helper.make_node("Identity", [tensor], [out])],
            "constant",
            inputs=[],
            outputs=[onnx.ValueInfoProto(name=out)],
            initializer=initializers,
        )
        source = self.file.model
        model = helper.make_model(
            graph, opset_imports=list(source.opset_import), functions=list(source.functions)
        )
        model.ir_version = source.ir_version
        values: Any = self.file.session(model.SerializeToString()).run([out], {})[0]
        return np.asarray(values, dtype=np.float64)

    def _constant_part(
        self, tensor: str
    ) -> tuple[Sequence[onnx.NodeProto], Sequence[onnx.TensorProto]]:
        indices: set[int] = set()
        needed: set[str] = set()
        pending = [tensor]
        while pending:
            name = pending.pop()
            if name in needed:
                continue
            needed.add(name)
            index = self._maker.get(name)
            if index is not None:
                indices.add(index)
                pending += [name for name in self._graph.node[index].input if name]
        nodes = [self._graph.node[index] for index in sorted(indices)]
        return nodes, [value for value in self._graph.initializer if value.name in needed]

    def _computed_from(self, known: set[str], *, shapes: bool) -> set[str]:
        found = set(known)
        for node in self._graph.node:  # in topological order, as ONNX requires
            if node.op_type in _RANDOM or any(value.HasField("g") for value in node.attribute):
                continue
            inputs = [name for name in node.input if name]
            if (shapes and node.op_type in _SHAPE_ONLY) or all(name in found for name in inputs):
                found.update(name for name in node.output if name)
        return found
