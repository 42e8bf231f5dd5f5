"""The calibrated forecaster as ONNX nodes, all of it in float32.

The same mathematics as ``networks.py`` (projection, psi, head), ``softmax.log_mean_softmax``
(the members' average) and ``forecasters.log_probabilities`` (the temperature).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.export.onnx_nodes import NodeBuilder

Networks = Mapping[str, NDArray[Any]]


def add_aligned_logits(build: NodeBuilder, features: str, networks: Networks) -> str:
    """Append psi and the forecaster's head to phi, float32 [N, d]; return its logits, [N, K]."""
    values = build.node("Sub", features, build.constant(_float(networks["projection/mean"])))
    if "projection/components" in networks:
        components = build.constant(_float(networks["projection/components"]))
        values = build.node("MatMul", values, components)
    values = build.node("Div", values, build.constant(_float(networks["projection/scale"])))
    relu = bool(networks["psi/output_relu"][0])
    values = _add_perceptrons(build, values, networks, "psi", output_relu=relu)
    values = _add_perceptrons(build, values, networks, "head", output_relu=False)
    # Axis 2 is the last: before opset 13 all axes before it are flattened into one.
    logs = build.node("LogSoftmax", values, axis=2)
    highest = build.reduced("ReduceMax", logs, 0)
    shares = build.node("Exp", build.node("Sub", logs, highest))
    return build.node("Add", highest, build.node("Log", build.reduced("ReduceMean", shares, 0)))


def add_probabilities(build: NodeBuilder, logits: str, temperature: float, output: str) -> str:
    """Append softmax(logits / T) of float32 logits [N, K].

    The maximum goes first: a float32 product of large logits and a small T would lose digits.
    """
    highest = build.reduced("ReduceMax", logits, 1, keepdims=True)
    shifted = build.node("Sub", logits, highest)
    scaled = build.node("Div", shifted, build.number(temperature))
    return build.node("Softmax", scaled, output=output, axis=1)


def add_label(build: NodeBuilder, logits: str, output: str) -> str:
    """Append the number of the first largest logit of every row, int64 [N]."""
    return build.node("ArgMax", logits, output=output, axis=1, keepdims=0)


def add_confidence(
    build: NodeBuilder, logits: str, probabilities: str, n_classes: int, output: str
) -> str:
    """Append the probability, [N], of the class with the first largest logit."""
    label = build.node("ArgMax", logits, axis=1, keepdims=1)
    numbers = build.constant(np.arange(n_classes, dtype=np.int64)[None])
    chosen = build.as_float(build.node("Equal", label, numbers))
    only = build.node("Mul", probabilities, chosen)
    return build.reduced("ReduceMax", only, 1, output=output)


def _add_perceptrons(
    build: NodeBuilder, values: str, networks: Networks, name: str, *, output_relu: bool
) -> str:
    """Append M perceptrons; the first MatMul broadcasts [N, inputs] to [M, N, outputs]."""
    layers = sum(key.startswith(f"{name}/weight_") for key in networks)
    for layer in range(layers):
        weight = build.constant(_float(networks[f"{name}/weight_{layer}"]))
        bias = build.constant(_float(networks[f"{name}/bias_{layer}"])[:, None])
        values = build.node("Add", build.node("MatMul", values, weight), bias)
        if layer < layers - 1 or output_relu:
            values = build.node("Relu", values)
    return values


def _float(values: NDArray[Any]) -> NDArray[np.float32]:
    return np.asarray(values, dtype=np.float32)
