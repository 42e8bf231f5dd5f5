"""The head of an ONNX classifier is found by structure, proved by numbers, and equals torch's."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from covcal_cli.arrays import ModelInput
from tests.classifiers.onnx.onnx_case import head_of, run_whole
from tests.classifiers.onnx.onnx_graphs import (
    CHANNELS,
    CONV_HIDDEN,
    D_IN,
    GEMM,
    HIDDEN,
    IMAGE,
    SIDE,
    WEIGHTS,
    D,
    Graph,
    K,
    constant,
    node,
)
from tests.classifiers.opening import open_classifier, open_onnx

W, B = WEIGHTS["w"], WEIGHTS["b"]
SOFTMAX = node("Softmax", "z", "y", axis=1)
TEMPERATURE = np.float32(1.7)

# name -> (graph, operator of the head, tail, whether the bias is b or zero)
DENSE: dict[str, tuple[Graph, str, str]] = {
    "gemm_transposed": (Graph([*HIDDEN, node("Gemm", "phi w b", "y", transB=1)]), "Gemm", "none"),
    "gemm_plain": (
        Graph([*HIDDEN, node("Gemm", "phi wt b", "y")], constants={"wt": W.T.copy()}),
        "Gemm",
        "none",
    ),
    "gemm_alpha_beta": (
        Graph(
            [*HIDDEN, node("Gemm", "phi w2 b4", "y", transB=1, alpha=0.5, beta=0.25)],
            constants={"w2": 2 * W, "b4": 4 * B},
        ),
        "Gemm",
        "none",
    ),
    "matmul_add": (
        Graph(
            [*HIDDEN, node("MatMul", "phi wt", "m"), node("Add", "b m", "y")],
            constants={"wt": W.T.copy()},
        ),
        "MatMul",
        "none",
    ),
    "matmul_sub": (
        Graph(
            [*HIDDEN, node("MatMul", "phi wt", "m"), node("Sub", "m minus_b", "y")],
            constants={"wt": W.T.copy(), "minus_b": -B},
        ),
        "MatMul",
        "none",
    ),
    "softmax": (Graph([*HIDDEN, GEMM, SOFTMAX]), "Gemm", "softmax"),
    "log_softmax": (
        Graph([*HIDDEN, GEMM, node("LogSoftmax", "z", "y", axis=1)]),
        "Gemm",
        "log_softmax",
    ),
    "log_of_softmax": (
        Graph([*HIDDEN, GEMM, node("Softmax", "z", "p", axis=1), node("Log", "p", "y")]),
        "Gemm",
        "log_softmax",
    ),
    "decomposed_softmax": (
        Graph(
            [
                *HIDDEN,
                GEMM,
                node("ReduceMax", "z", "top", axes=[1], keepdims=1),
                node("Sub", "z top", "below"),
                node("Exp", "below", "e"),
                node("ReduceSum", "e axes", "total", keepdims=1),
                node("Div", "e total", "y"),
            ],
            constants={"axes": np.array([1], np.int64)},
        ),
        "Gemm",
        "softmax",
    ),
    "identity_and_casts": (
        Graph(
            [
                *HIDDEN,
                GEMM,
                node("Identity", "z", "z1"),
                node("Cast", "z1", "z2", to=onnx.TensorProto.DOUBLE),
                node("Cast", "z2", "z3", to=onnx.TensorProto.FLOAT),
                node("Softmax", "z3", "y", axis=1),
            ]
        ),
        "Gemm",
        "softmax",
    ),
    "constant_nodes": (
        Graph(
            [
                *HIDDEN,
                constant("cw", W),
                constant("cb", B),
                node("Gemm", "phi cw cb", "y", transB=1),
            ]
        ),
        "Gemm",
        "none",
    ),
    "transposed_weights": (
        Graph(
            [
                *HIDDEN,
                node("Transpose", "w", "wt", perm=[1, 0]),
                node("MatMul", "phi wt", "m"),
                node("Add", "m b", "y"),
            ]
        ),
        "MatMul",
        "none",
    ),
    "cast_and_dequantised_bias": (
        Graph(
            [
                *HIDDEN,
                node("Cast", "w16", "wf", to=onnx.TensorProto.FLOAT),
                node("Gemm", "phi wf b", "y", transB=1),
            ],
            constants={"w16": W.astype(np.float64)},
        ),
        "Gemm",
        "none",
    ),
    "dropout_before": (
        Graph([*HIDDEN, node("Dropout", "phi", "kept"), node("Gemm", "kept w b", "y", transB=1)]),
        "Gemm",
        "none",
    ),
    "reshapes_around": (
        Graph(
            [
                *HIDDEN,
                node("Shape", "phi", "size"),
                node("Reshape", "phi size", "same"),
                node("Gemm", "same w b", "z", transB=1),
                node("Unsqueeze", "z last", "z3"),
                node("Squeeze", "z3 last", "z2"),
                node("Softmax", "z2", "y", axis=1),
            ],
            constants={"last": np.array([2], np.int64)},
        ),
        "Gemm",
        "softmax",
    ),
    "features_output": (
        Graph(
            [*HIDDEN, node("Gemm", "phi w b", "y", transB=1), node("Identity", "phi", "features")],
            outputs=("features", "y"),
        ),
        "Gemm",
        "none",
    ),
    "logits_and_probabilities": (
        Graph([*HIDDEN, GEMM, node("Identity", "z", "logits"), SOFTMAX], outputs=("y", "logits")),
        "Gemm",
        "softmax",
    ),
    "labels_and_probabilities": (
        Graph(
            [*HIDDEN, GEMM, node("ArgMax", "z", "label", axis=1, keepdims=0), SOFTMAX],
            outputs=("label", "y"),
            types={"label": onnx.TensorProto.INT64},
            shapes={"label": ["N"]},
        ),
        "Gemm",
        "softmax",
    ),
    "fixed_batch_1": (
        Graph([*HIDDEN, GEMM, SOFTMAX], shape=(1, D_IN), shapes={"y": [1, K]}),
        "Gemm",
        "softmax",
    ),
    "fixed_batch_8": (
        Graph([*HIDDEN, GEMM, SOFTMAX], shape=(8, D_IN), shapes={"y": [8, K]}),
        "Gemm",
        "softmax",
    ),
    "half_precision": (Graph([*HIDDEN, GEMM, SOFTMAX], half=True), "Gemm", "softmax"),
}


def dense_rows(n: int = 13) -> NDArray[np.float32]:
    return np.random.default_rng(1).normal(size=(n, D_IN)).astype(np.float32)


def image_rows(n: int = 13) -> NDArray[np.float32]:
    shape = (n, CHANNELS, SIDE, SIDE)
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def dense_in_torch(x: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Run the same network in torch, layer by layer."""
    first = torch.nn.Linear(D_IN, D)
    last = torch.nn.Linear(D, K)
    with torch.no_grad():
        first.weight.copy_(torch.from_numpy(WEIGHTS["w1"].T.copy()))
        first.bias.copy_(torch.from_numpy(WEIGHTS["b1"]))
        last.weight.copy_(torch.from_numpy(W))
        last.bias.copy_(torch.from_numpy(B))
        phi = torch.relu(first(torch.from_numpy(x)))
        return phi.numpy(), last(phi).numpy()


def original_output(path: Path, x: NDArray[np.generic], name: str) -> NDArray[np.generic]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    output: NDArray[np.generic] = session.run([name], {"x": x})[0]
    return output


@pytest.mark.parametrize("name", DENSE)
def test_dense_head_is_found_and_equals_torch(name: str, tmp_path: Path) -> None:
    graph, operator, tail = DENSE[name]
    opened = open_onnx(graph.save(tmp_path))
    x = dense_rows()
    classifier = opened.prove({"x": x.astype(opened.inputs[0].dtype)})
    features, logits = run_whole(classifier, {"x": x.astype(opened.inputs[0].dtype)})
    phi, z = dense_in_torch(x)
    close = 2e-2 if graph.half else 1e-5
    np.testing.assert_allclose(features, phi, rtol=close, atol=close)
    np.testing.assert_allclose(logits, z, rtol=close, atol=close)
    assert (classifier.n_classes, classifier.n_features) == (K, D)
    np.testing.assert_allclose(head_of(classifier)[0], W, rtol=1e-2 if graph.half else 1e-6)
    np.testing.assert_allclose(head_of(classifier)[1], B, rtol=1e-2 if graph.half else 1e-6)
    assert classifier.tail == tail
    assert classifier.proof.error <= (5e-3 if graph.half else 1e-5)
    assert classifier.describe().startswith(f"{operator} ")
    assert features.dtype == logits.dtype == np.float32


@pytest.mark.parametrize(
    "name", [name for name in DENSE if not DENSE[name][0].half and "fixed" not in name]
)
def test_exposing_the_tensors_changes_no_logit(name: str, tmp_path: Path) -> None:
    path = DENSE[name][0].save(tmp_path)
    opened = open_onnx(path)
    x = dense_rows()
    classifier = opened.prove({"x": x})
    _, logits = classifier.run({"x": x})
    assert classifier.exposure_error == 0.0
    if classifier.tail == "none":
        np.testing.assert_array_equal(logits, original_output(path, x, "y"))


def test_matmul_without_bias_has_bias_zero(tmp_path: Path) -> None:
    graph = Graph([*HIDDEN, node("MatMul", "phi wt", "y")], constants={"wt": W.T.copy()})
    opened = open_onnx(graph.save(tmp_path))
    classifier = opened.prove({"x": dense_rows()})
    features, logits = run_whole(classifier, {"x": dense_rows()})
    assert not head_of(classifier)[1].any()
    np.testing.assert_allclose(logits, features @ W.T, rtol=1e-5, atol=1e-5)


def test_a_temperature_in_the_graph_is_folded_into_the_weights(tmp_path: Path) -> None:
    nodes = [*HIDDEN, GEMM, node("Div", "z t", "scaled"), node("Softmax", "scaled", "y", axis=1)]
    graph = Graph(nodes, constants={"t": np.array(TEMPERATURE)})
    opened = open_onnx(graph.save(tmp_path))
    classifier = opened.prove({"x": dense_rows()})
    _, logits = classifier.run({"x": dense_rows()})
    np.testing.assert_allclose(head_of(classifier)[0], W / TEMPERATURE, rtol=1e-6)
    np.testing.assert_allclose(logits, dense_in_torch(dense_rows())[1] / 1.7, rtol=1e-4, atol=1e-5)
    assert (classifier.tail, classifier.logits_tensor) == ("softmax", "scaled")


CONVOLUTIONS = {
    "conv_then_pool": [
        node("Conv", "maps k b", "scores"),
        node("GlobalAveragePool", "scores", "pooled"),
        node("Flatten", "pooled", "y", axis=1),
    ],
    "pool_then_conv": [
        node("GlobalAveragePool", "maps", "pooled"),
        node("Conv", "pooled k b", "scores"),
        node("Flatten", "scores", "y", axis=1),
    ],
    "conv_then_mean": [
        node("Conv", "maps k b", "scores"),
        node("ReduceMean", "scores", "y", axes=[2, 3], keepdims=0),
    ],
    "mean_then_gemm": [
        node("ReduceMean", "maps", "pooled", axes=[2, 3], keepdims=0),
        node("Gemm", "pooled w b", "y", transB=1),
    ],
    "conv_softmax_with_unit_axes": [
        node("GlobalAveragePool", "maps", "pooled"),
        node("Conv", "pooled k b", "scores"),
        node("Softmax", "scores", "soft", axis=1),
        node("Flatten", "soft", "y", axis=1),
    ],
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutional_head_equals_torch(name: str, tmp_path: Path) -> None:
    graph = Graph(
        [*CONV_HIDDEN, *CONVOLUTIONS[name]], constants={"k": W[:, :, None, None]}, shape=IMAGE
    )
    opened = open_onnx(graph.save(tmp_path))
    x = image_rows()
    classifier = opened.prove({"x": x})
    features, logits = run_whole(classifier, {"x": x})
    kernel, bias = torch.from_numpy(WEIGHTS["conv1"]), torch.from_numpy(WEIGHTS["conv1_b"])
    maps = torch.relu(torch.nn.functional.conv2d(torch.from_numpy(x), kernel, bias, padding=1))
    phi = maps.mean(dim=(2, 3)).numpy()
    np.testing.assert_allclose(features, phi, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(logits, phi @ W.T + B, rtol=1e-5, atol=1e-5)
    assert classifier.exposure_error == 0.0
    assert classifier.tail == ("softmax" if "softmax" in name else "none")


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 16])
def test_fixed_batch_is_fed_whole_and_padded(rows: int, tmp_path: Path) -> None:
    opened = open_onnx(DENSE["fixed_batch_8"][0].save(tmp_path, "fixed.onnx"))
    x = dense_rows(rows)
    assert opened.fixed_batch == 8
    fixed = opened.prove({"x": x})
    free = open_onnx(DENSE["softmax"][0].save(tmp_path, "free.onnx")).prove({"x": x})
    for found, expected in zip(run_whole(fixed, {"x": x}), run_whole(free, {"x": x}), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_logits_are_never_the_log_of_probabilities(tmp_path: Path) -> None:
    """Probabilities that vanish in float32 still have finite, exact logits."""
    graph = Graph(
        [*HIDDEN, node("Gemm", "phi big b", "z", transB=1), SOFTMAX], constants={"big": 1000 * W}
    )
    opened = open_onnx(graph.save(tmp_path))
    classifier = opened.prove({"x": dense_rows()})
    features, logits = run_whole(classifier, {"x": dense_rows()})
    assert np.isfinite(logits).all()
    assert np.ptp(logits, axis=1).max() > 1000
    np.testing.assert_allclose(logits, features @ (1000 * W).T + B, rtol=1e-4, atol=1e-2)


def test_a_choice_of_output_is_obeyed(tmp_path: Path) -> None:
    nodes = [
        *HIDDEN,
        node("Gemm", "phi w b", "first", transB=1),
        node("Gemm", "phi w2 b", "second", transB=1),
    ]
    path = Graph(nodes, outputs=("first", "second"), constants={"w2": -W}).save(tmp_path)
    classifier = open_classifier(path, output="second").prove({"x": dense_rows()})
    np.testing.assert_array_equal(classifier.weight, -W)


def test_weights_in_an_external_file_are_found_beside_the_model(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(
        DENSE["softmax"][0].model(),
        path,
        save_as_external_data=True,
        location="model.data",
        size_threshold=0,
    )
    opened = open_onnx(path)
    classifier = opened.prove({"x": dense_rows()})
    features, _ = run_whole(classifier, {"x": dense_rows()})
    np.testing.assert_allclose(features, dense_in_torch(dense_rows())[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(classifier.weight, W)


def test_what_the_model_declares_is_told(tmp_path: Path) -> None:
    opened = open_classifier(DENSE["softmax"][0].save(tmp_path))
    assert opened.name == "model.onnx"
    assert len(opened.sha256) == 64
    assert opened.inputs == (ModelInput("x", (None, D_IN), np.dtype(np.float32)),)
    assert (opened.features_tensor, opened.logits_tensor) == ("phi", "z")
    assert opened.prove(None).tail is None
    classifier = opened.prove({"x": dense_rows()})
    assert (
        "phi 5, 3 classes, output = softmax(logits), largest error of the last layer"
        in classifier.describe()
    )
