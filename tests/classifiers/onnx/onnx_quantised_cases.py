"""Quantised classifiers of every form, made by ONNX Runtime's own tools."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnxruntime.quantization import (
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from tests.classifiers.onnx.onnx_case import Array, Case
from tests.classifiers.onnx.onnx_float_cases import SOFTMAX, WT, W
from tests.classifiers.onnx.onnx_graphs import CONV_HIDDEN, GEMM, HIDDEN, IMAGE, Graph, node
from tests.classifiers.onnx.onnx_wide_cases import KERNEL

FLOAT_SOFTMAX = Graph([*HIDDEN, GEMM, SOFTMAX])
MATMUL = Graph(
    [*HIDDEN, node("MatMul", "phi wt", "m"), node("Add", "m b", "z"), SOFTMAX], constants=WT
)
CONVOLUTION = Graph(
    [
        *CONV_HIDDEN,
        node("Conv", "maps k b", "scores"),
        node("GlobalAveragePool", "scores", "pooled"),
        node("Flatten", "pooled", "y", axis=1),
    ],
    constants=KERNEL,
    shape=IMAGE,
)
BYTE = 1 / 255  # a softmax is stored in steps of this


class _Rows:
    """Rows for the calibration of a statically quantised model."""

    def __init__(self, rows: dict[str, Array]) -> None:
        self._left = [rows]

    def get_next(self) -> dict[str, Array] | None:
        return self._left.pop() if self._left else None


def static(form: Any, **more: Any) -> Callable[[Path, dict[str, Array]], Path]:
    def convert(path: Path, rows: dict[str, Array]) -> Path:
        made = path.with_name("quantised.onnx")
        quantize_static(
            path, made, _Rows(rows), quant_format=form, activation_type=QuantType.QUInt8, **more
        )
        return made

    return convert


def dynamic(path: Path, _: dict[str, Array]) -> Path:
    made = path.with_name("quantised.onnx")
    quantize_dynamic(path, made, weight_type=QuantType.QUInt8)
    return made


def scales(*names: str) -> Callable[[onnx.ModelProto], float]:
    """Return a reader of the sum of some scales of a model."""

    def read(model: onnx.ModelProto) -> float:
        known = {value.name: value for value in model.graph.initializer}
        return float(sum(numpy_helper.to_array(known[name]).max() for name in names))

    return read


QUANTISED_CASES: dict[str, Case] = {
    "QDQ": Case(
        FLOAT_SOFTMAX,
        "Gemm",
        "softmax",
        convert=static(QuantFormat.QDQ),
        step=scales("z_scale"),
        tail_step=2 * BYTE,
    ),
    "QDQ, a scale per class": Case(
        FLOAT_SOFTMAX,
        "Gemm",
        "softmax",
        convert=static(QuantFormat.QDQ, per_channel=True, weight_type=QuantType.QInt8),
        step=scales("z_scale"),
        tail_step=2 * BYTE,
    ),
    "QDQ, 1x1 convolution": Case(
        CONVOLUTION,
        "Conv",
        "none",
        convert=static(QuantFormat.QDQ),
        step=scales("scores_scale", "pooled_scale", "pooled_scale"),
    ),
    "QGemm and QLinearSoftmax": Case(
        FLOAT_SOFTMAX,
        "QGemm",
        "softmax",
        convert=static(QuantFormat.QOperator),
        step=scales("z_scale"),
        tail_step=2 * BYTE,
    ),
    "QLinearMatMul and QLinearAdd": Case(
        MATMUL,
        "QLinearMatMul",
        "softmax",
        convert=static(QuantFormat.QOperator),
        step=scales("m_scale", "z_scale"),
        tail_step=2 * BYTE,
    ),
    "QLinearConv": Case(
        CONVOLUTION,
        "QLinearConv",
        "none",
        convert=static(QuantFormat.QOperator),
        step=scales("scores_scale", "pooled_scale"),
    ),
    "QLinearConv, a scale per class": Case(
        CONVOLUTION,
        "QLinearConv",
        "none",
        convert=static(QuantFormat.QOperator, per_channel=True, weight_type=QuantType.QInt8),
        step=scales("scores_scale", "pooled_scale"),
    ),
    "dynamic, Gemm": Case(FLOAT_SOFTMAX, "MatMulInteger", "softmax", convert=dynamic),
    "dynamic, MatMul": Case(MATMUL, "MatMulInteger", "softmax", convert=dynamic),
    "dynamic, 1x1 convolution": Case(CONVOLUTION, "ConvInteger", "none", convert=dynamic),
    "dynamic and fused": Case(
        Graph(
            [
                *HIDDEN,
                node("com.microsoft:DynamicQuantizeMatMul", "phi wq ws wz b", "z"),
                SOFTMAX,
            ],
            constants={
                "wq": np.clip(np.round(W.T / 0.02), -127, 127).astype(np.int8),
                "ws": np.array(0.02, np.float32),
                "wz": np.array(0, np.int8),
            },
        ),
        "DynamicQuantizeMatMul z",
        "softmax",
    ),
}
