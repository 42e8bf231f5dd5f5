"""A linear layer of an ONNX graph, and the tensors that are read of it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

Weights = NDArray[np.float64]

LOGITS_ONLY = "pass --phi none to keep its logits alone, or --phi NAME to take another tensor"


@dataclass(frozen=True)
class Exposed:
    """A tensor to read from the model, which may need nodes that the model does not have."""

    tensor: str
    nodes: tuple[onnx.NodeProto, ...] = ()  # to append to the graph so that it exists
    source: str = ""  # the tensor of the model itself that it comes from

    @property
    def name(self) -> str:
        """The tensor of the model itself, for people."""
        return self.source or self.tensor

    def then(self, op: str, *inputs: str, **attributes: Any) -> "Exposed":
        """Return the tensor that one more node makes of this one."""
        made = f"{self.name}__covcal_{len(self.nodes)}_{op}"
        node = helper.make_node(op, [self.tensor, *inputs], [made], **attributes)
        return Exposed(made, (*self.nodes, node), self.name)

    def then_affine(self, weight: Weights, bias: Weights) -> "Exposed":
        """Return phi W^T + b of this phi, in float32."""
        floats = self.then("Cast", to=onnx.TensorProto.FLOAT)
        constants = [
            helper.make_node(
                "Constant",
                [],
                [f"{self.name}__covcal_{name}"],
                value=onnx.numpy_helper.from_array(value.astype(np.float32)),
            )
            for name, value in (("weight", weight.T), ("bias", bias))
        ]
        ready = Exposed(floats.tensor, (*floats.nodes, *constants), floats.source)
        product = ready.then("MatMul", constants[0].output[0])
        return product.then("Add", constants[1].output[0])


@dataclass(frozen=True)
class Quantised:
    """How the integers of a tensor are read: names of its scale and zero point."""

    scale: str
    zero_point: str = ""


@dataclass(frozen=True)
class Linear:
    """One layer: logits = phi W^T + b."""

    layer: str  # operator and name, such as "Gemm fc2"
    features: Exposed  # phi
    # The tensor that the layer makes; None where its sums are not in the graph, because the
    # operator goes on to squash them.
    output: str | None
    weight: Weights  # W, shape (K, d)
    bias: Weights  # b, shape (K,); zeros where the layer has none
    quantised: Quantised | None = None  # how `output` is to be read where it holds integers
    # A scale that is computed from the input and still to be multiplied to `output`.
    pending: str | None = None


def describe(node: onnx.NodeProto) -> str:
    """Return the operator and the name of a node, or of its output where it has none."""
    return f"{node.op_type} {node.name or node.output[0]}"


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of a node by name."""
    return {value.name: helper.get_attribute_value(value) for value in node.attribute}
