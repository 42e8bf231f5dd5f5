"""Small ONNX classifiers made on the spot, with weights that a test can recompute from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Node = tuple[str, list[str], str, dict[str, Any]]
Array = NDArray[Any]

D_IN, D, K = 6, 5, 3
CHANNELS, SIDE = 2, 4


def _weights() -> dict[str, Array]:
    rng = np.random.default_rng(7)
    shapes = {
        "w1": (D_IN, D),
        "b1": (D,),
        "w": (K, D),
        "b": (K,),
        "conv1": (D, CHANNELS, 3, 3),
        "conv1_b": (D,),
        "w_flat": (K, CHANNELS * SIDE * SIDE),
    }
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


WEIGHTS = _weights()


def node(op: str, inputs: str, output: str, **attributes: Any) -> Node:
    """One node, ``domain:op`` outside the standard; `inputs` are separated by spaces."""
    return op, inputs.split(), output, attributes


HIDDEN = [
    node("MatMul", "x w1", "h1"),
    node("Add", "h1 b1", "h2"),
    node("Relu", "h2", "phi"),
]
CONV_HIDDEN = [
    node("Conv", "x conv1 conv1_b", "c1", pads=[1, 1, 1, 1]),
    node("Relu", "c1", "maps"),
]
GEMM = node("Gemm", "phi w b", "z", transB=1)
IMAGE = ("N", CHANNELS, SIDE, SIDE)


def _domain(op: str) -> str:
    return op.rpartition(":")[0]


def _dictionaries() -> onnx.TypeProto:
    """Return the type of a list of dictionaries from strings to probabilities."""
    value = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    return helper.make_sequence_type_proto(
        helper.make_map_type_proto(onnx.TensorProto.STRING, value)
    )


@dataclass(frozen=True)
class Graph:
    """A made graph: nodes, outputs, and constants beyond `WEIGHTS`."""

    nodes: Sequence[Node]
    outputs: Sequence[str] = ("y",)
    constants: dict[str, Array] = field(default_factory=dict)
    shape: tuple[Any, ...] = ("N", D_IN)
    shapes: Mapping[str, list[Any] | None] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)
    half: bool = False
    input_type: int | None = None
    more_inputs: Sequence[str] = ()
    typed_inputs: Sequence[tuple[str, int, Sequence[Any]]] = ()
    dictionaries: Sequence[str] = ()
    metadata: dict[str, str] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        dtype = np.float16 if self.half else np.float32
        kind = onnx.TensorProto.FLOAT16 if self.half else onnx.TensorProto.FLOAT
        known = {name: value.astype(dtype) for name, value in WEIGHTS.items()} | self.constants
        used = {name for _, inputs, _, _ in self.nodes for name in inputs}
        inputs = [helper.make_tensor_value_info("x", self.input_type or kind, self.shape)]
        inputs += [helper.make_tensor_value_info(name, kind, ["N", 1]) for name in self.more_inputs]
        if self.typed_inputs:
            inputs = [helper.make_tensor_value_info(*given) for given in self.typed_inputs]
        outputs = [
            helper.make_value_info(name, _dictionaries())
            if name in self.dictionaries
            else helper.make_tensor_value_info(
                name, self.types.get(name, kind), self.shapes.get(name, ["N", "K"])
            )
            for name in self.outputs
        ]
        graph = helper.make_graph(
            [
                helper.make_node(
                    op.split(":")[-1], inputs, output.split(), domain=_domain(op), **attributes
                )
                for op, inputs, output, attributes in self.nodes
            ],
            "made",
            inputs,
            outputs,
            [numpy_helper.from_array(value, name) for name, value in known.items() if name in used],
        )
        domains = {"": 17} | {_domain(op): 1 for op, *_ in self.nodes if ":" in op}
        if "ai.onnx.ml" in domains:
            domains["ai.onnx.ml"] = 3
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(name, version) for name, version in domains.items()],
            ir_version=8,
        )
        helper.set_model_props(model, self.metadata)
        return model

    def save(self, folder: Path, name: str = "model.onnx") -> Path:
        path = folder / name
        path.write_bytes(self.model().SerializeToString())
        return path


def image_classifier(folder: Path, name: str = "model.onnx", *, scale: float = 1.0) -> Path:
    """Save a linear classifier on [N, 2, 4, 4] images: K = 3, d = 32."""
    nodes = [
        node("Mul", "x scale", "scaled"),
        node("Flatten", "scaled", "phi", axis=1),
        node("Gemm", "phi w_flat b", "y", transB=1),
    ]
    constants = {"scale": np.array(scale, np.float32)}
    return Graph(nodes, constants=constants, shape=IMAGE).save(folder, name)


def grey_classifier(folder: Path, name: str = "model.onnx", *, n_classes: int = 3) -> Path:
    """Save a classifier on [N, 1, 4, 4] grey images whose phi are the 16 pixels."""
    rng = np.random.default_rng(3)
    constants = {
        "wk": rng.normal(size=(n_classes, SIDE * SIDE)).astype(np.float32),
        "bk": rng.normal(size=n_classes).astype(np.float32),
    }
    nodes = [node("Flatten", "x", "phi", axis=1), node("Gemm", "phi wk bk", "y", transB=1)]
    return Graph(nodes, constants=constants, shape=("N", 1, SIDE, SIDE)).save(folder, name)


def constant(name: str, value: Array) -> Node:
    """A Constant node that holds `value`."""
    return ("Constant", [], name, {"value": numpy_helper.from_array(value, name)})
