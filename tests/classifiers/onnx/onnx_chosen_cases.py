"""Classifiers of ONNX's machine learning operators, and features chosen with ``--phi``."""

import numpy as np
import onnx

from tests.classifiers.onnx.onnx_case import Array, Case
from tests.classifiers.onnx.onnx_float_cases import SOFTMAX, WT, B, W
from tests.classifiers.onnx.onnx_graphs import CONV_HIDDEN, GEMM, HIDDEN, IMAGE, Graph, node
from tests.classifiers.onnx.onnx_quantised_cases import CONVOLUTION, FLOAT_SOFTMAX
from tests.classifiers.onnx.onnx_wide_cases import KERNEL, TURNED, slice_of

ML = "ai.onnx.ml:"
NAMES = ["cat", "dog", "eel"]
STRING = onnx.TensorProto.STRING
W6 = np.random.default_rng(11).normal(size=(3, 6)).astype(np.float32)


def linear_classifier(transform: str, weight: Array, bias: Array, *, zipped: bool) -> Graph:
    """Return what exporters make of a logistic regression."""
    names = NAMES[: max(2, len(weight))]
    nodes = [
        node(
            f"{ML}LinearClassifier",
            "x",
            "label scores",
            coefficients=weight.ravel().tolist(),
            intercepts=bias.tolist(),
            classlabels_strings=names,
            post_transform=transform,
        ),
        node(f"{ML}Normalizer", "scores", "p", norm="L1"),
        node(f"{ML}ZipMap", "p", "y", classlabels_strings=names)
        if zipped
        else node("Identity", "p", "y"),
    ]
    return Graph(
        nodes,
        outputs=("label", "y"),
        types={"label": STRING},
        shapes={"label": ["N"]},
        dictionaries=("y",) if zipped else (),
    )


def tree() -> Graph:
    """Return one decision tree whose leaves hold probabilities, some of them zero."""
    leaves = [[0.7, 0.3, 0.0], [0.0, 0.2, 0.8]]
    nodes = [
        node(
            f"{ML}TreeEnsembleClassifier",
            "x",
            "label y",
            nodes_treeids=[0, 0, 0],
            nodes_nodeids=[0, 1, 2],
            nodes_featureids=[2, 0, 0],
            nodes_values=[0.0, 0.0, 0.0],
            nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
            nodes_truenodeids=[1, 0, 0],
            nodes_falsenodeids=[2, 0, 0],
            class_treeids=[0] * 6,
            class_nodeids=[1, 1, 1, 2, 2, 2],
            class_ids=[0, 1, 2] * 2,
            class_weights=[*leaves[0], *leaves[1]],
            classlabels_strings=NAMES,
            post_transform="NONE",
        )
    ]
    return Graph(nodes, outputs=("label", "y"), types={"label": STRING}, shapes={"label": ["N"]})


BINARY = np.stack([-W6[0], W6[0]])
NOT_AFFINE = Graph(
    [
        *CONV_HIDDEN,
        node("Conv", "maps k b", "scores"),
        node("Relu", "scores", "positive"),
        node("GlobalAveragePool", "positive", "pooled"),
        node("Flatten", "pooled", "z", axis=1),
        SOFTMAX,
    ],
    constants=KERNEL,
    shape=IMAGE,
)
DEEPER = Graph(
    [
        *HIDDEN,
        node("Gemm", "phi w55 b5", "middle", transB=1),
        node("Gemm", "middle w b", "z", transB=1),
        SOFTMAX,
    ],
    constants={
        "w55": np.random.default_rng(2).normal(size=(5, 5)).astype(np.float32),
        "b5": np.ones(5, np.float32),
    },
)

TABULAR_CASES: dict[str, Case] = {
    "logistic regression with dictionaries": Case(
        linear_classifier("SOFTMAX", W6, B, zipped=True), "LinearClassifier", "softmax", d=6
    ),
    "logistic regression": Case(
        linear_classifier("SOFTMAX", W6, B, zipped=False), "LinearClassifier", "softmax", d=6
    ),
    "binary logistic regression": Case(
        linear_classifier("LOGISTIC", BINARY, np.array([0.5, -0.5]), zipped=False),
        "LinearClassifier",
        "softmax",
        d=6,
        classes=2,
    ),
    "scaled columns": Case(
        Graph(
            [
                node(f"{ML}Scaler", "x", "s", offset=[0.5] * 6, scale=[2.0] * 6),
                node("MatMul", "s w6", "m"),
                node("Add", "m b", "z"),
                SOFTMAX,
            ],
            constants={"w6": W6.T.copy()},
        ),
        "MatMul m",
        "softmax",
        d=6,
    ),
}

CHOSEN_CASES: dict[str, Case] = {
    "no features": Case(
        FLOAT_SOFTMAX, "Gemm z: no phi", "softmax", d=None, head=False, options={"phi": "none"}
    ),
    "no features of a tree": Case(
        tree(), "no phi", "softmax", d=None, head=False, options={"phi": "none"}
    ),
    "the input of a tree": Case(
        tree(), "phi x 6", "softmax", d=6, head=False, options={"phi": "input"}
    ),
    "no features of a head that is not affine": Case(
        NOT_AFFINE, "no phi", "softmax", d=None, head=False, options={"phi": "none"}
    ),
    "no features of normalised sigmoids": Case(
        Graph(
            [
                *HIDDEN,
                GEMM,
                node("Sigmoid", "z", "p"),
                node("ReduceSum", "p axis", "total", keepdims=1),
                node("Div", "p total", "y"),
            ],
            constants={"axis": np.array([1], np.int64)},
            shapes={"y": ["N", 3]},
        ),
        "no phi",
        "softmax",
        d=None,
        head=False,
        options={"phi": "none"},
    ),
    "no features of capped logits": Case(
        Graph(
            [*HIDDEN, GEMM, node("Clip", "z low high", "y")],
            constants={"low": np.array(-1, np.float32), "high": np.array(1, np.float32)},
            shapes={"y": ["N", 3]},
        ),
        "no phi",
        "none",
        d=None,
        head=False,
        options={"phi": "none"},
    ),
    "no features of classes whose choice is not seen": Case(
        Graph(
            [*HIDDEN, node("MatMul", "phi wt", "m"), node("Slice", "m from to axis", "y")],
            constants=slice_of(0, 2) | WT,
            shapes={"y": ["N", 2]},
        ),
        "no phi",
        "none",
        d=None,
        classes=2,
        head=False,
        options={"phi": "none"},
    ),
    "no features of classes along the rows": Case(
        TURNED, "no phi", "none", d=None, head=False, options={"phi": "none"}
    ),
    "pooled maps of a head that is not affine": Case(
        NOT_AFFINE, "phi pooled 3", "softmax", d=3, options={"phi": "pooled"}
    ),
    "the input of a network": Case(
        CONVOLUTION, "phi x 32", "none", d=32, head=False, options={"phi": "input"}
    ),
    "an earlier layer, affine": Case(DEEPER, "phi phi 5", "softmax", options={"phi": "phi"}),
    "an earlier layer, not affine": Case(
        DEEPER, "phi h2 5", "softmax", head=False, options={"phi": "h2"}
    ),
    "the layer that is found anyway": Case(DEEPER, "Gemm z", "softmax", options={"phi": "middle"}),
    "one of two heads": Case(
        Graph(
            [
                *HIDDEN,
                node("Gemm", "phi w b", "age", transB=1),
                node("Gemm", "phi w2 b", "z", transB=1),
                SOFTMAX,
            ],
            outputs=("age", "y"),
            constants={"w2": -W},
        ),
        "Gemm z",
        "softmax",
        options={"output": "y"},
    ),
    "a linear head of its input by name": Case(
        linear_classifier("SOFTMAX", W6, B, zipped=False),
        "LinearClassifier",
        "softmax",
        d=6,
        options={"phi": "x"},
    ),
}
