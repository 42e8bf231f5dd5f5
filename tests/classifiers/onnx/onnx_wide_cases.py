"""Convolutions, tokens and several heads: classifiers whose phi is not simply the last tensor."""

import numpy as np

from tests.classifiers.onnx.onnx_case import TOKEN_ROWS, Array, Case
from tests.classifiers.onnx.onnx_float_cases import SOFTMAX, WT, W
from tests.classifiers.onnx.onnx_graphs import CONV_HIDDEN, GEMM, HIDDEN, IMAGE, D, Graph, node

KERNEL = {"k": W[:, :, None, None]}
TWO_HEADS = [
    *HIDDEN,
    node("MatMul", "x w1", "other"),
    node("Gemm", "phi w b", "z1", transB=1),
    node("Gemm", "other w2 b", "z2", transB=1),
]
TOKEN_HIDDEN = [node("MatMul", "x w1", "h1"), node("Relu", "h1", "phi")]
TOKEN_HEAD = [*TOKEN_HIDDEN, node("MatMul", "phi wt", "m"), node("Add", "m b", "all")]
WIDE_SOFTMAX = node("Softmax", "some", "y", axis=1)
FIRST = {"first": np.array(0, np.int64)}


def slice_of(start: int, end: int) -> dict[str, Array]:
    return {
        "from": np.array([start], np.int64),
        "to": np.array([end], np.int64),
        "axis": np.array([1], np.int64),
    }


# Another order of the classes along the rows, as the newer exporter writes it.
TURNED = Graph(
    [
        *HIDDEN,
        GEMM,
        node("Transpose", "z", "t", perm=[1, 0]),
        node("Gather", "t order", "g", axis=0),
        node("Transpose", "g", "y", perm=[1, 0]),
    ],
    constants={"order": np.array([2, 0, 1], np.int64)},
    shapes={"y": ["N", 3]},
)

WIDE_CASES: dict[str, Case] = {
    "classes in another order": Case(
        Graph(
            [*HIDDEN, GEMM, node("Gather", "z order", "some", axis=1), WIDE_SOFTMAX],
            constants={"order": np.array([2, 0], np.int64)},
            shapes={"y": ["N", 2]},
        ),
        "Gemm z",
        "softmax",
        classes=2,
    ),
    "the last classes alone": Case(
        Graph(
            [*HIDDEN, GEMM, node("Slice", "z from to axis", "y")],
            constants=slice_of(1, 3),
            shapes={"y": ["N", 2]},
        ),
        "Gemm z",
        "none",
        classes=2,
    ),
    "1x1 convolution, then the mean": Case(
        Graph(
            [
                *CONV_HIDDEN,
                node("Conv", "maps k b", "scores"),
                node("GlobalAveragePool", "scores", "pooled"),
                node("Flatten", "pooled", "y", axis=1),
            ],
            constants=KERNEL,
            shape=IMAGE,
        ),
        "Conv scores",
        "none",
    ),
    "the mean, then a 1x1 convolution": Case(
        Graph(
            [
                *CONV_HIDDEN,
                node("GlobalAveragePool", "maps", "pooled"),
                node("Conv", "pooled k b", "scores"),
                node("Flatten", "scores", "z", axis=1),
                SOFTMAX,
            ],
            constants=KERNEL,
            shape=IMAGE,
        ),
        "Conv scores",
        "softmax",
    ),
    "pooled maps and a dense layer": Case(
        Graph(
            [
                *CONV_HIDDEN,
                node("ReduceMean", "maps", "phi", axes=[2, 3], keepdims=0),
                node("Gemm", "phi w b", "y", transB=1),
            ],
            shape=IMAGE,
        ),
        "Gemm y",
        "none",
    ),
    "first token, then the head": Case(
        Graph(
            [
                *TOKEN_HIDDEN,
                node("Gather", "phi first", "cls", axis=1),
                node("Gemm", "cls w b", "z", transB=1),
                SOFTMAX,
            ],
            constants=FIRST,
            shape=TOKEN_ROWS,
        ),
        "Gemm z",
        "softmax",
    ),
    "head on all tokens, first gathered": Case(
        Graph(
            [*TOKEN_HEAD, node("Gather", "all first", "y", axis=1)],
            constants=FIRST | WT,
            shape=TOKEN_ROWS,
        ),
        "MatMul m",
        "none",
    ),
    "head on all tokens, third sliced": Case(
        Graph(
            [
                *TOKEN_HEAD,
                node("Slice", "all from to axis", "one"),
                node("Squeeze", "one axis", "z"),
                SOFTMAX,
            ],
            constants=slice_of(2, 3) | WT,
            shape=TOKEN_ROWS,
        ),
        "MatMul m",
        "softmax",
    ),
    "head on all tokens, averaged": Case(
        Graph(
            [*TOKEN_HEAD, node("ReduceMean", "all", "y", axes=[1], keepdims=0)],
            constants=WT,
            shape=TOKEN_ROWS,
        ),
        "MatMul m",
        "none",
    ),
    "mean of two heads": Case(
        Graph(
            [*TWO_HEADS, node("Add", "z1 z2", "sum"), node("Div", "sum two", "y")],
            constants={"w2": -2 * W, "two": np.array(2, np.float32)},
        ),
        "Gemm z1 + Gemm z2",
        "none",
        d=2 * D,
    ),
    "weighted sum of two heads": Case(
        Graph(
            [*TWO_HEADS, node("Mul", "z2 t", "part"), node("Sub", "z1 part", "z"), SOFTMAX],
            constants={"w2": 3 * W, "t": np.array(0.3, np.float32)},
        ),
        "Gemm z1 + Gemm z2",
        "softmax",
        d=2 * D,
    ),
    "stacked heads, averaged": Case(
        Graph(
            [
                *TWO_HEADS,
                node("Unsqueeze", "z1 axis", "a"),
                node("Unsqueeze", "z2 axis", "c"),
                node("Concat", "a c", "both", axis=1),
                node("ReduceMean", "both", "z", axes=[1], keepdims=0),
                SOFTMAX,
            ],
            constants={"w2": -2 * W, "axis": np.array([1], np.int64)},
        ),
        "Gemm z1 + Gemm z2",
        "softmax",
        d=2 * D,
    ),
    "two heads on the same features": Case(
        Graph(
            [
                *HIDDEN,
                node("Gemm", "phi w b", "z1", transB=1),
                node("Gemm", "phi w2 b", "z2", transB=1),
                node("Add", "z1 z2", "y"),
            ],
            constants={"w2": 5 * W},
        ),
        "Gemm z1 + Gemm z2",
        "none",
    ),
}
