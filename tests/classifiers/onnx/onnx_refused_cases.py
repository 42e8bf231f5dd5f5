"""ONNX models that are no usable classifiers, and what must be said about each."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from tests.classifiers.onnx.onnx_case import TOKEN_ROWS
from tests.classifiers.onnx.onnx_chosen_cases import DEEPER, NOT_AFFINE, W6, linear_classifier, tree
from tests.classifiers.onnx.onnx_float_cases import ROW1, WT, B, W
from tests.classifiers.onnx.onnx_graphs import (
    CONV_HIDDEN,
    D_IN,
    GEMM,
    HIDDEN,
    IMAGE,
    Graph,
    K,
    node,
)
from tests.classifiers.onnx.onnx_wide_cases import KERNEL, TURNED, TWO_HEADS

FLOAT = onnx.TensorProto.FLOAT
INT64 = onnx.TensorProto.INT64


@dataclass(frozen=True)
class Refused:
    """A graph, the message when it is opened or run, and what was asked of it."""

    graph: Graph
    message: str
    options: dict[str, Any] = field(default_factory=dict)


TWO = {"w2": -W}
CHOICE = "pass --phi none to keep only the logits, or --phi NAME"

REFUSED: dict[str, Refused] = {
    "no layer": Refused(
        Graph([node("Mul", "x x", "y")]),
        r"has no linear layer before output y: choose the features with "
        "--phi input or --phi NAME, or pass --phi none",
    ),
    "a tree": Refused(tree(), "choose the features with --phi input"),
    "two heads": Refused(
        Graph(
            [
                *HIDDEN,
                node("Gemm", "phi w b", "age", transB=1, name="fc_age"),
                node("Gemm", "phi w2 b", "sex", transB=1, name="fc_sex"),
            ],
            outputs=("age", "sex"),
            constants=TWO,
        ),
        r"2 outputs .*age \(from Gemm fc_age\), sex \(from Gemm fc_sex\)\): choose one with "
        "--model-output NAME",
    ),
    "two heads and no features": Refused(
        Graph([node("Mul", "x x", "age"), node("Add", "x x", "sex")], outputs=("age", "sex")),
        r"2 outputs that could hold the classes \(age, sex\): choose one with --model-output NAME",
        {"phi": "none"},
    ),
    "with and without temperature": Refused(
        Graph(
            [*HIDDEN, GEMM, node("Div", "z t", "soft"), node("Identity", "z", "hard")],
            outputs=("hard", "soft"),
            constants={"t": np.array(2, np.float32)},
        ),
        "2 outputs that could hold the classes",
    ),
    "the larger of two heads": Refused(
        Graph([*TWO_HEADS, node("Max", "z1 z2", "y")], constants=TWO),
        r"output y combines 2 layers \(Gemm z1, Gemm z2\) in an unknown way: "
        rf"{CHOICE}",
    ),
    "two heads side by side": Refused(
        Graph([*TWO_HEADS, node("Concat", "z1 z2", "y", axis=1)], constants=TWO),
        "in an unknown way",
    ),
    "relu after the 1x1 convolution": Refused(
        NOT_AFFINE, rf"Conv scores gives .* per row before Relu, not one per class: {CHOICE}"
    ),
    "3x3 convolution": Refused(
        Graph(
            [
                node("Conv", "x conv1 conv1_b", "scores"),
                node("GlobalAveragePool", "scores", "pooled"),
                node("Flatten", "pooled", "y", axis=1),
            ],
            shape=IMAGE,
        ),
        rf"Conv scores, the last layer, .* not a 1x1 convolution.*: {CHOICE}",
    ),
    "classes along the rows for a while": Refused(
        TURNED,
        r"is computed from the logits of Gemm z, which Transpose changes.*: pass --phi none",
    ),
    "relu as the tail": Refused(
        Graph([*HIDDEN, GEMM, node("Relu", "z", "y")]),
        r"is computed from the logits of Gemm z, which Relu changes.*: pass --phi none",
    ),
    "softmax over the rows": Refused(
        Graph([*HIDDEN, GEMM, node("Softmax", "z", "y", axis=0)]),
        "is computed from the logits of .*: ",
    ),
    "a bias from the input": Refused(
        Graph(
            [
                *HIDDEN,
                node("MatMul", "x wide", "extra"),
                node("Gemm", "phi w extra", "y", transB=1),
            ],
            constants={"wide": np.ones((D_IN, K), np.float32)},
        ),
        f"the bias of the last layer .* depends on the input, .*: {CHOICE}",
    ),
    "quantised scores": Refused(
        Graph(
            [*HIDDEN, GEMM, node("QuantizeLinear", "z step zero", "y")],
            constants={"step": np.array(0.1, np.float32), "zero": np.array(128, np.uint8)},
            types={"y": onnx.TensorProto.UINT8},
            shapes={"y": ["N", K]},
        ),
        r"gives y \(uint8 \[N, 3\], rank 2\), but y holds quantised scores .* DequantizeLinear",
    ),
    "quantised scores of unknown shape": Refused(
        Graph(
            [*HIDDEN, GEMM, node("QuantizeLinear", "z step zero", "y")],
            constants={"step": np.array(0.1, np.float32), "zero": np.array(128, np.uint8)},
            types={"y": onnx.TensorProto.UINT8},
            shapes={"y": None},
        ),
        r"gives y \(uint8 of unknown shape\), but y holds quantised scores .* DequantizeLinear",
    ),
    "rank 3": Refused(
        Graph(
            [node("MatMul", "x w1", "h"), node("MatMul", "h wt", "y")],
            constants=WT,
            shape=TOKEN_ROWS,
            shapes={"y": ["N", 4, K]},
        ),
        r"gives y \(float \[N, 4, 3\], rank 3\), but .* --model-output NAME",
    ),
    "rank 3, undeclared": Refused(
        Graph(
            [node("MatMul", "x w1", "h"), node("MatMul", "h wt", "y")],
            constants=WT,
            shape=TOKEN_ROWS,
        ),
        r"MatMul y gives \[4, 3\] values per row",
    ),
    "a state": Refused(
        Graph(
            [
                node("ReduceMean", "state", "s", axes=[0], keepdims=0),
                node("Add", "x s", "both"),
                node("Gemm", "both w6 b", "y", transB=1),
            ],
            constants={"w6": W6},
            typed_inputs=(("x", FLOAT, ["batch", D_IN]), ("state", FLOAT, [2, "batch", D_IN])),
        ),
        r"has inputs that do not have one row per example: state \(all inputs: x \[\?, 6\], state "
        r"\[2, \?, 6\]\)\. Export the model without these inputs, or .* --logits",
    ),
    "a parameter": Refused(
        Graph(
            [
                node("Cast", "sr", "rate", to=FLOAT),
                node("Mul", "x rate", "both"),
                node("Gemm", "both w6 b", "y", transB=1),
            ],
            constants={"w6": W6},
            typed_inputs=(("x", FLOAT, ["batch", D_IN]), ("sr", INT64, [])),
        ),
        r"do not have one row per example: sr \(all .*sr \(a single number\)",
    ),
    "an input of another width than its weights": Refused(
        Graph(
            linear_classifier("SOFTMAX", W6[:, :4], B, zipped=False).nodes,
            outputs=("y",),
            shape=(3, 2),
        ),
        r"declares input x as \[3, 2\], but the weights need 4 columns: export the model again "
        r"with \[N, 4\]",
    ),
    "labels without a layer": Refused(
        Graph(
            [node("ArgMax", "x", "y", axis=1, keepdims=0)],
            types={"y": INT64},
            shapes={"y": ["N"]},
        ),
        "gives only labels .* export the model with its probabilities",
        {"phi": "none"},
    ),
    "an unknown tensor": Refused(
        DEEPER,
        "has no tensor 'midle' that depends on the input: pass --phi input, --phi none or one of "
        "middle, y, z",
        {"phi": "midle"},
    ),
    "a constant as features": Refused(
        DEEPER, "has no tensor 'w55' that depends on the input", {"phi": "w55"}
    ),
    "maps as features": Refused(
        NOT_AFFINE,
        r"the features of positive have shape \[N, 3, 4, 4\] instead of one vector per "
        r"row: pass --phi NAME",
        {"phi": "positive"},
    ),
    "the input of several": Refused(
        Graph(
            [node("Concat", "x more", "both", axis=1), node("Gemm", "both w7 b", "y", transB=1)],
            constants={"w7": np.ones((K, D_IN + 1), np.float32)},
            more_inputs=("more",),
        ),
        "has 2 inputs: choose the features with --phi x or --phi more",
        {"phi": "input"},
    ),
    "one unexplained number": Refused(
        Graph(
            [*HIDDEN, node("Gemm", "phi w1row b1row", "z", transB=1), node("Tanh", "z", "y")],
            constants=ROW1,
            shapes={"y": ["N", 1]},
        ),
        r"gives one number per row, from -.* to .*, with unknown meaning",
        {"phi": "none"},
    ),
    "maps that are not pooled": Refused(
        Graph(
            [*CONV_HIDDEN, node("Conv", "maps k b", "y")],
            constants=KERNEL,
            shape=IMAGE,
            shapes={"y": ["N", K, 4, 4]},
        ),
        r"gives .* rank 4",
    ),
    "an unknown output": Refused(
        DEEPER, "has no output 'probs': choose one of y", {"output": "probs"}
    ),
}
