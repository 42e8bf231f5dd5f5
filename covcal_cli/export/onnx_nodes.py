"""Nodes appended to an ONNX graph, in the operators of the graph's own opset.

The operators are used as every opset from 7 up has them; the axes of maxima and means, which moved
from an attribute to an input, are the one exception.
"""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from covcal_cli.classifiers.onnx.file import opset_of

LEAST_OPSET = 7  # broadcasting came with it
_INITIALIZERS_ARE_INPUTS_BELOW = 4  # in files of an IR version below it
_AXES_ARE_INPUT_FROM = 18


class NodeBuilder:
    """Appends nodes to a model's graph; every method returns the name of the tensor it makes."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph, self._opset = model.graph, opset_of(model)
        self._lists_constants = model.ir_version < _INITIALIZERS_ARE_INPUTS_BELOW
        self._taken = names_in(model.graph)
        self._count = 0

    def node(self, op: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Append one node with one output, which gets a name of its own unless one is given."""
        made = output or self._new_name(op)
        name = f"{made}_node" if output else made
        self.graph.node.append(helper.make_node(op, inputs, [made], name=name, **attributes))
        return made

    def constant(self, value: NDArray[Any]) -> str:
        """Append a constant."""
        made = self._new_name("constant")
        tensor = numpy_helper.from_array(np.asarray(value, order="C"), made)
        self.graph.initializer.append(tensor)
        if self._lists_constants:
            self.graph.input.append(
                helper.make_tensor_value_info(made, tensor.data_type, tensor.dims)
            )
        return made

    def number(self, value: float) -> str:
        """Append a scalar float32 constant."""
        return self.constant(np.array(value, dtype=np.float32))

    def reduced(
        self, op: str, tensor: str, axis: int, *, keepdims: bool = False, output: str | None = None
    ) -> str:
        """Append ReduceMax or ReduceMean over one axis."""
        keep = int(keepdims)
        if self._opset < _AXES_ARE_INPUT_FROM:
            return self.node(op, tensor, output=output, axes=[axis], keepdims=keep)
        axes = self.constant(np.array([axis], dtype=np.int64))
        return self.node(op, tensor, axes, output=output, keepdims=keep)

    def vectors(self, tensor: str, token: int | str | None, width: int) -> str:
        """Append what makes one vector per row, [N, width], of a tensor [N, ...].

        `token` is which of several vectors of a row to take, or "mean"; None where there is one.
        """
        if token is None:
            return self.node("Flatten", tensor, axis=1)
        shape = self.constant(np.array([0, -1, width], dtype=np.int64))
        tokens = self.node("Reshape", tensor, shape)
        if token == "mean":
            return self.reduced("ReduceMean", tokens, 1)
        return self.node("Gather", tokens, self.constant(np.array(token, dtype=np.int64)), axis=1)

    def as_float(self, tensor: str) -> str:
        """Append a cast to float32."""
        return self.node("Cast", tensor, to=onnx.TensorProto.FLOAT)

    def _new_name(self, op: str) -> str:
        while True:
            self._count += 1
            name = f"covcal_{self._count}_{op}"
            if name not in self._taken:
                return name


def names_in(graph: onnx.GraphProto) -> set[str]:
    """Return the names of all tensors and nodes of the main graph."""
    names = {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    names |= {tensor.values.name for tensor in graph.sparse_initializer}
    for node in graph.node:
        names.update(node.input, node.output, [node.name])
    return names
