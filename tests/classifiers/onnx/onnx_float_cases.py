"""Float classifiers with one dense head, with what must be found."""

import numpy as np
import onnx

from tests.classifiers.onnx.onnx_case import Case
from tests.classifiers.onnx.onnx_graphs import (
    D_IN,
    GEMM,
    HIDDEN,
    WEIGHTS,
    D,
    Graph,
    K,
    node,
)

W, B = WEIGHTS["w"], WEIGHTS["b"]
WT = {"wt": W.T.copy()}
SOFTMAX = node("Softmax", "z", "y", axis=1)
ROW1 = {"w1row": W[:1], "b1row": B[:1]}
ONE_LOGIT = [*HIDDEN, node("Gemm", "phi w1row b1row", "z", transB=1)]
ONE_COLUMN = {"y": ["N", 1]}
HALF = onnx.TensorProto.FLOAT16
FLOAT = onnx.TensorProto.FLOAT
INT64 = onnx.TensorProto.INT64


def scaled(op: str, value: float) -> Graph:
    nodes = [*HIDDEN, GEMM, node(op, "z t", "s"), node("Softmax", "s", "y", axis=1)]
    return Graph(nodes, constants={"t": np.array(value, np.float32)})


FLOAT_CASES: dict[str, Case] = {
    "logits": Case(Graph([*HIDDEN, node("Gemm", "phi w b", "y", transB=1)]), "Gemm y", "none"),
    "matmul and add": Case(
        Graph([*HIDDEN, node("MatMul", "phi wt", "m"), node("Add", "m b", "y")], constants=WT),
        "MatMul m",
        "none",
    ),
    "no bias": Case(
        Graph([*HIDDEN, node("MatMul", "phi wt", "y")], constants=WT), "MatMul y", "none"
    ),
    "softmax": Case(Graph([*HIDDEN, GEMM, SOFTMAX]), "Gemm z", "softmax"),
    "log-softmax": Case(
        Graph([*HIDDEN, GEMM, node("LogSoftmax", "z", "y", axis=1)]), "Gemm z", "log_softmax"
    ),
    "logits [N, 1, K]": Case(
        Graph(
            [*HIDDEN, GEMM, node("Unsqueeze", "z axis", "y")],
            constants={"axis": np.array([1], np.int64)},
            shapes={"y": ["N", 1, K]},
        ),
        "Gemm z",
        "none",
    ),
    "softmax [1, N, K]": Case(
        Graph(
            [*HIDDEN, GEMM, node("Unsqueeze", "z axis", "u"), node("Softmax", "u", "y", axis=2)],
            constants={"axis": np.array([0], np.int64)},
            shapes={"y": [1, "N", K]},
        ),
        "Gemm z",
        "softmax",
    ),
    "all of it [1, N, K]": Case(
        Graph(
            [
                node("Unsqueeze", "x axis", "x1"),
                node("MatMul", "x1 w1", "h"),
                node("Relu", "h", "phi"),
                node("MatMul", "phi wt", "y"),
            ],
            constants=WT | {"axis": np.array([0], np.int64)},
            shapes={"y": [1, "N", K]},
        ),
        "MatMul y",
        "none",
    ),
    "a sigmoid per class": Case(
        Graph([*HIDDEN, GEMM, node("Sigmoid", "z", "y")]), "Gemm z", "sigmoid"
    ),
    "one logit and its sigmoid": Case(
        Graph([*ONE_LOGIT, node("Sigmoid", "z", "y")], constants=ROW1, shapes=ONE_COLUMN),
        "Gemm z",
        "sigmoid",
        classes=2,
    ),
    "one logit as it is": Case(
        Graph([*ONE_LOGIT, node("Identity", "z", "y")], constants=ROW1, shapes=ONE_COLUMN),
        "Gemm z",
        "none",
        classes=2,
    ),
    "one logit squeezed to a vector": Case(
        Graph(
            [*ONE_LOGIT, node("Sigmoid", "z", "p"), node("Squeeze", "p axis", "y")],
            constants=ROW1 | {"axis": np.array([1], np.int64)},
            shapes={"y": ["N"]},
        ),
        "Gemm z",
        "sigmoid",
        classes=2,
    ),
    "one sigmoid made two probabilities": Case(
        Graph(
            [
                *ONE_LOGIT,
                node("Sigmoid", "z", "p"),
                node("Sub", "one p", "q"),
                node("Concat", "q p", "y", axis=1),
            ],
            constants=ROW1 | {"one": np.array(1, np.float32)},
        ),
        "Gemm z",
        "softmax",
        classes=2,
    ),
    "argmax alone": Case(
        Graph(
            [*HIDDEN, GEMM, node("ArgMax", "z", "y", axis=1, keepdims=0)],
            types={"y": INT64},
            shapes={"y": ["N"]},
        ),
        "Gemm z",
        "argmax",
    ),
    "argmax and softmax": Case(
        Graph(
            [*HIDDEN, GEMM, node("ArgMax", "z", "label", axis=1, keepdims=0), SOFTMAX],
            outputs=("label", "y"),
            types={"label": INT64},
            shapes={"label": ["N"]},
        ),
        "Gemm z",
        "softmax",
    ),
    "temperature": Case(scaled("Div", 1.7), "Gemm z", "softmax"),
    "cosine scale": Case(scaled("Mul", 16.0), "Gemm z", "softmax"),
    "normalised weights": Case(
        Graph(
            [
                *HIDDEN,
                node("ReduceL2", "w", "norm", axes=[1], keepdims=1),
                node("Div", "w norm", "unit"),
                node("Transpose", "unit", "unit_t", perm=[1, 0]),
                node("MatMul", "phi unit_t", "y"),
            ]
        ),
        "MatMul y",
        "none",
    ),
    "batch normalisation after the head": Case(
        Graph(
            [*HIDDEN, GEMM, node("BatchNormalization", "z s b m v", "y")],
            constants={
                "s": np.array([1, 2, 3], np.float32),
                "m": np.array([0.1, 0, -1], np.float32),
                "v": np.array([1, 0.5, 2], np.float32),
            },
        ),
        "Gemm z",
        "none",
    ),
    "casts to double and back": Case(
        Graph(
            [
                *HIDDEN,
                GEMM,
                node("Cast", "z", "z2", to=onnx.TensorProto.DOUBLE),
                node("Softmax", "z2", "p", axis=1),
                node("Cast", "p", "y", to=FLOAT),
            ]
        ),
        "Gemm z",
        "softmax",
    ),
    "half precision": Case(Graph([*HIDDEN, GEMM, SOFTMAX], half=True), "Gemm z", "softmax"),
    "half precision inside": Case(
        Graph(
            [
                node("Cast", "x", "x16", to=HALF),
                node("MatMul", "x16 w16", "h"),
                node("Relu", "h", "phi"),
                node("MatMul", "phi wt16", "m"),
                node("Cast", "m", "z", to=FLOAT),
                SOFTMAX,
            ],
            constants={"w16": WEIGHTS["w1"].astype(np.float16), "wt16": W.T.astype(np.float16)},
        ),
        "MatMul m",
        "softmax",
    ),
    "batch fixed at 1": Case(
        Graph([*HIDDEN, GEMM, SOFTMAX], shape=(1, D_IN), shapes={"y": [1, K]}), "Gemm z", "softmax"
    ),
    "batch fixed at 8": Case(
        Graph([*HIDDEN, GEMM, SOFTMAX], shape=(8, D_IN), shapes={"y": [8, K]}), "Gemm z", "softmax"
    ),
    "fused matrix multiply": Case(
        Graph(
            [
                *HIDDEN,
                node("com.microsoft:FusedMatMul", "phi w", "m", transB=1, alpha=0.5),
                node("Add", "m b", "y"),
            ],
        ),
        "FusedMatMul m",
        "none",
    ),
    "fused dense layer with a sigmoid": Case(
        Graph(
            [
                *HIDDEN,
                node("com.microsoft:FusedGemm", "phi w b", "y", transB=1, activation="Sigmoid"),
            ],
        ),
        "FusedGemm y",
        "sigmoid",
    ),
    "tokens and a mask": Case(
        Graph(
            [
                node("Gather", "table input_ids", "embedded"),
                node("Cast", "attention_mask", "mask", to=FLOAT),
                node("Unsqueeze", "mask last", "mask3"),
                node("Mul", "embedded mask3", "kept"),
                node("ReduceMean", "kept", "phi", axes=[1], keepdims=0),
                node("Gemm", "phi w b", "y", transB=1),
            ],
            constants={
                "table": np.random.default_rng(5).normal(size=(2, D)).astype(np.float32),
                "last": np.array([2], np.int64),
            },
            typed_inputs=(
                ("input_ids", INT64, ["batch", "length"]),
                ("attention_mask", INT64, ["batch", "length"]),
            ),
        ),
        "Gemm y",
        "none",
    ),
    "a linear model of its input": Case(
        Graph(
            [node("Gemm", "x w6 b", "z", transB=1), SOFTMAX], constants={"w6": WEIGHTS["w1"].T[:K]}
        ),
        "Gemm z",
        "softmax",
        d=D_IN,
    ),
    "one number per row beside the classes": Case(
        Graph(
            [
                *HIDDEN,
                GEMM,
                SOFTMAX,
                node("MatMul", "phi column", "c"),
                node("Squeeze", "c axis", "loss"),
            ],
            outputs=("loss", "y"),
            constants={"column": np.ones((D, 1), np.float32), "axis": np.array([1], np.int64)},
            shapes={"loss": ["N"]},
        ),
        "Gemm z",
        "softmax",
    ),
}
