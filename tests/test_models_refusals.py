"""A file that is no usable classifier is refused in one line with the reason and the remedy."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from PIL import Image

from covcal_cli.errors import CovcalError
from covcal_cli.models.classifier import open_classifier
from tests.onnx_graphs import CONV_HIDDEN, D_IN, GEMM, HIDDEN, IMAGE, WEIGHTS, Graph, K, node
from tests.test_models_heads import DENSE, dense_rows, image_rows

W = WEIGHTS["w"]


def png() -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (8, 8)).save(buffer, "PNG")
    return buffer.getvalue()


def archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("data.pkl", b"")
    return buffer.getvalue()


def whole() -> bytes:
    return bytes(DENSE["softmax"][0].model().SerializeToString())


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
BAD_FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", r"is empty \(0 bytes\)"),
    "lfs": (lambda: LFS, r"Git LFS pointer \(\d+ bytes\), not the model: run git lfs pull"),
    "png": (png, "is a PNG image, not an ONNX model"),
    "html": (lambda: b"\n<!DOCTYPE html><html>", "web page.*download the raw file"),
    "text": (lambda: b"weights: none\n" * 20, "is a text file, not an ONNX model"),
    "zip": (archive, "is a zip archive"),
    "hdf5": (lambda: b"\x89HDF\r\n\x1a\n" + bytes(99), "is an HDF5 file"),
    "noise": (lambda: bytes(range(255, 0, -1)) * 9, "not an ONNX model|not a readable"),
    "truncated": (lambda: whole()[:200], r"is truncated \(200 bytes are left of at least \d+\)"),
    "cut in a number": (lambda: whole()[:1], "is truncated"),
    "no graph": (lambda: whole()[:2], "holds no ONNX graph"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_is_no_model_is_named_for_what_it_is(name: str, tmp_path: Path) -> None:
    content, message = BAD_FILES[name]
    path = tmp_path / "model.onnx"
    path.write_bytes(content())
    with pytest.raises(CovcalError, match=message) as caught:
        open_classifier(path)
    assert "model.onnx" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path, data = tmp_path / "model.onnx", whole()
    for length in range(1, len(data) - 1, 17):
        path.write_bytes(data[:length])
        with pytest.raises(CovcalError):
            open_classifier(path)


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(CovcalError, match="does not exist: give the classifier"):
        open_classifier(tmp_path / "none.onnx")
    with pytest.raises(CovcalError, match="is a folder, not a file"):
        open_classifier(tmp_path)


def test_a_torch_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    path.write_bytes(archive())
    with pytest.raises(CovcalError, match="torch file, which is not supported yet"):
        open_classifier(path)


def test_an_unknown_opset_is_refused_in_one_line(tmp_path: Path) -> None:
    model = DENSE["softmax"][0].model()
    model.opset_import[0].version = 9999
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(CovcalError, match=r"onnxruntime .* cannot load the model") as caught:
        open_classifier(path)
    assert "\n" not in str(caught.value)


def external_model(folder: Path, location: str) -> Path:
    path = folder / "model.onnx"
    onnx.save(
        DENSE["softmax"][0].model(),
        path,
        save_as_external_data=True,
        location="m.data",
        size_threshold=0,
    )
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    path.write_bytes(model.SerializeToString())
    return path


def test_missing_external_weights_are_named(tmp_path: Path) -> None:
    path = external_model(tmp_path, "gone.data")
    with pytest.raises(CovcalError, match=r"needs gone\.data beside it \(weights such as 'w1'\)"):
        open_classifier(path)


@pytest.mark.parametrize("location", ["../m.data", "/etc/passwd", "a/../../m.data"])
def test_external_weights_outside_the_folder_are_refused(location: str, tmp_path: Path) -> None:
    with pytest.raises(CovcalError, match="outside its own folder"):
        open_classifier(external_model(tmp_path, location))


TWO = {"w2": -W}
# name -> (graph, message when it is opened or run)
REFUSED: dict[str, tuple[Graph, str]] = {
    "no head": (
        Graph([node("Mul", "x x", "y")]),
        r"no matrix multiply with constant weights before output y \(a tree model\?\)",
    ),
    "two heads": (
        Graph(
            [
                *HIDDEN,
                node("Gemm", "phi w b", "age", transB=1, name="fc_age"),
                node("Gemm", "phi w2 b", "sex", transB=1, name="fc_sex"),
            ],
            outputs=("age", "sex"),
            constants=TWO,
        ),
        r"2 outputs .* age \(from Gemm fc_age\), sex \(from Gemm fc_sex\): choose one with "
        "--model-output",
    ),
    "with and without temperature": (
        Graph(
            [*HIDDEN, GEMM, node("Div", "z t", "soft"), node("Identity", "z", "hard")],
            outputs=("hard", "soft"),
            constants={"t": np.array(2, np.float32)},
        ),
        "2 outputs that could hold the classes",
    ),
    "averaged heads": (
        Graph(
            [
                *HIDDEN,
                node("Gemm", "phi w b", "z1", transB=1),
                node("Gemm", "phi w2 b", "z2", transB=1),
                node("Add", "z1 z2", "y"),
            ],
            constants=TWO,
        ),
        r"2 layers feed output y \(Gemm z\d, Gemm z\d\); averaged or summed heads",
    ),
    "relu after the 1x1 convolution": (
        Graph(
            [
                *CONV_HIDDEN,
                node("Conv", "maps k b", "scores"),
                node("Relu", "scores", "positive"),
                node("GlobalAveragePool", "positive", "pooled"),
                node("Flatten", "pooled", "y", axis=1),
            ],
            constants={"k": W[:, :, None, None]},
            shape=IMAGE,
        ),
        "Conv scores gives .* per row and Relu follows, so the logits are not affine",
    ),
    "3x3 convolution": (
        Graph(
            [
                node("Conv", "x conv1 conv1_b", "scores"),
                node("GlobalAveragePool", "scores", "pooled"),
                node("Flatten", "pooled", "y", axis=1),
            ],
            shape=IMAGE,
        ),
        "Conv scores is the last layer .* not a 1x1 convolution",
    ),
    "relu as the tail": (
        Graph([*HIDDEN, GEMM, node("Relu", "z", "y")]),
        r"output y is neither the logits of Gemm z nor .* \(Relu follows them\)",
    ),
    "sigmoid per class": (
        Graph([*HIDDEN, GEMM, node("Sigmoid", "z", "y")]),
        "neither the logits of Gemm z nor their softmax",
    ),
    "one logit": (
        Graph(
            [*HIDDEN, node("Gemm", "phi w1row b1row", "z", transB=1), node("Sigmoid", "z", "y")],
            constants={"w1row": W[:1], "b1row": np.zeros(1, np.float32)},
        ),
        "gives a single logit; binary models with one logit are not supported yet",
    ),
    "rank 3": (
        Graph(
            [
                node("MatMul", "x w1", "h"),
                node("MatMul", "h wt", "y"),
            ],
            constants={"wt": W.T.copy()},
            shape=("N", 4, D_IN),
            shapes={"y": ["N", 4, K]},
        ),
        r"not a classifier .* y \(float \[N, 4, 3\], rank 3\)",
    ),
    "labels only": (
        Graph(
            [*HIDDEN, GEMM, node("ArgMax", "z", "y", axis=1, keepdims=0)],
            types={"y": onnx.TensorProto.INT64},
            shapes={"y": ["N"]},
        ),
        r"y \(int64 \[N\], rank 1\): export the logits or probabilities",
    ),
    "several inputs": (
        Graph(
            [node("Concat", "x state", "both", axis=1), node("Gemm", "both w8 b", "y", transB=1)],
            constants={"w8": np.ones((K, D_IN + 1), np.float32)},
            more_inputs=("state",),
        ),
        r"has 2 inputs \(x, state\) and covcal feeds one",
    ),
    "head on every token": (
        Graph(
            [
                node("MatMul", "x w1", "h"),
                node("MatMul", "h wt", "tokens"),
                node("Gather", "tokens first", "y", axis=1),
            ],
            constants={"wt": W.T.copy(), "first": np.array(0, np.int64)},
            shape=("N", 4, D_IN),
        ),
        r"reads features of shape \[N, 4, 5\], not one vector per row",
    ),
    "quantised": (
        Graph(
            [
                node("DynamicQuantizeLinear", "x", "xq xs xz"),
                node("MatMulInteger", "xq wq xz", "zi"),
                node("Cast", "zi", "y", to=onnx.TensorProto.FLOAT),
            ],
            constants={"wq": np.ones((D_IN, K), np.int8)},
        ),
        "MatMulInteger layers are not supported yet",
    ),
}


def rows_for(graph: Graph) -> NDArray[np.float32]:
    if graph.shape == IMAGE:
        return image_rows()
    if len(graph.shape) == 3:
        return np.random.default_rng(0).normal(size=(5, 4, D_IN)).astype(np.float32)
    return dense_rows()


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_without_a_usable_head_is_refused_with_the_reason(
    name: str, tmp_path: Path
) -> None:
    graph, message = REFUSED[name]
    path = graph.save(tmp_path)
    with pytest.raises(CovcalError, match=message) as caught:
        open_classifier(path).run({"x": rows_for(graph)})
    assert "model.onnx" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_output_is_refused_with_the_names(tmp_path: Path) -> None:
    path = DENSE["features_output"][0].save(tmp_path)
    with pytest.raises(CovcalError, match="no output 'probs': choose one of features, y"):
        open_classifier(path, output="probs")


def test_a_tail_that_looks_right_on_small_logits_is_caught_later(tmp_path: Path) -> None:
    """A cap far out is invisible on the first batch, so every batch is held to the proof."""
    graph = Graph(
        [*HIDDEN, GEMM, node("Clip", "z low high", "y")],
        constants={"low": np.array(-500, np.float32), "high": np.array(500, np.float32)},
    )
    classifier = open_classifier(graph.save(tmp_path))
    classifier.run({"x": dense_rows()})
    assert classifier.tail == "none"
    with pytest.raises(CovcalError, match="neither the logits"):
        classifier.run({"x": 1000 * dense_rows()})


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        (np.zeros((4, 7), np.float32), r"float32 \[N, 7\]"),
        (np.zeros((4, D_IN), np.float64), r"float64 \[N, 6\]"),
        (np.zeros((4, 1, D_IN), np.float32), r"float32 \[N, 1, 6\]"),
    ],
)
def test_a_batch_of_another_shape_is_refused_with_both(
    batch: NDArray[np.generic], found: str, tmp_path: Path
) -> None:
    classifier = open_classifier(DENSE["softmax"][0].save(tmp_path))
    with pytest.raises(CovcalError, match=rf"wants float32 \[N, 6\] as x, .* {found}"):
        classifier.run({"x": batch})


def test_a_batch_size_fixed_inside_the_graph_is_explained(tmp_path: Path) -> None:
    graph = Graph(
        [
            node("ReduceMean", "x", "mean", axes=[0], keepdims=1),
            node("Gemm", "mean w6 b", "y", transB=1),
        ],
        constants={"w6": np.ones((K, D_IN), np.float32)},
    )
    with pytest.raises(CovcalError, match=r"gives .* for 13 rows: .* pass --batch 1"):
        open_classifier(graph.save(tmp_path)).run({"x": dense_rows()})
