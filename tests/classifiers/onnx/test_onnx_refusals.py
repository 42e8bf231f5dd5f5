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
from tests.classifiers.onnx.onnx_graphs import D_IN, GEMM, HIDDEN, Graph, K, node
from tests.classifiers.onnx.test_onnx_heads import DENSE, dense_rows
from tests.classifiers.opening import open_classifier

GEMM_WEIGHTS = {"w": np.ones((K, D_IN), np.float32), "b": np.ones(K, np.float32)}


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


UNREADABLE = (
    r"is cut short or is not an ONNX model \(\d+ bytes\): copy or download it again, or export"
)
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
BAD_FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", r"is empty \(0 bytes\)"),
    "lfs": (lambda: LFS, r"is a Git LFS pointer, not an ONNX model: run git lfs pull"),
    "html": (lambda: b"\n<!DOCTYPE html><html>", "web page.*download the file itself"),
    "zip": (archive, "is a zip archive"),
    "hdf5": (lambda: b"\x89HDF\r\n\x1a\n" + bytes(99), "is an HDF5 file"),
    "pickle": (lambda: b"\x80\x04\x95" + bytes(99), "is a Python pickle"),
    "png": (png, "is a PNG image, not an ONNX model"),
    "text": (lambda: b"weights: none\n" * 20, UNREADABLE),
    "noise": (lambda: bytes(range(255, 0, -1)) * 9, UNREADABLE),
    "truncated": (lambda: whole()[:200], UNREADABLE),
    "cut in a number": (lambda: whole()[:1], UNREADABLE),
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


@pytest.mark.parametrize("name", ["model.pkl", "model.joblib", "model.sav", "model.onnx"])
def test_a_pickled_model_is_told_of_the_way_without_a_model(name: str, tmp_path: Path) -> None:
    """Compressed pickles are told by their names."""
    content = b"\x80\x04\x95" + bytes(99) if name == "model.onnx" else b"x\x9c" + bytes(99)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CovcalError, match=r"Python pickle.* predict_proba .*instead of the model"):
        open_classifier(tmp_path / name)


def test_a_model_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path, data = tmp_path / "model.onnx", whole()
    for length in range(1, len(data) - 1, 17):
        path.write_bytes(data[:length])
        with pytest.raises(CovcalError):
            open_classifier(path)


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        CovcalError, match="does not exist: the first argument must be the classifier"
    ):
        open_classifier(tmp_path / "none.onnx")
    with pytest.raises(CovcalError, match="is a folder, not a file"):
        open_classifier(tmp_path)


def test_an_unknown_opset_is_refused_in_one_line(tmp_path: Path) -> None:
    model = DENSE["softmax"][0].model()
    model.opset_import[0].version = 9999
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(
        CovcalError, match=r"onnxruntime .* cannot load the model with opset 9999"
    ) as caught:
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
    with pytest.raises(
        CovcalError,
        match=r"needs the file gone\.data with weights such as 'w1': copy",
    ):
        open_classifier(path)


@pytest.mark.parametrize("location", ["../m.data", "/etc/passwd", "a/../../m.data"])
def test_external_weights_outside_the_folder_are_refused(location: str, tmp_path: Path) -> None:
    with pytest.raises(CovcalError, match="outside its own folder"):
        open_classifier(external_model(tmp_path, location))


def test_a_tail_that_looks_right_on_small_logits_is_caught_later(tmp_path: Path) -> None:
    """A cap far out is invisible on the first batch, so every batch is held to the proof."""
    graph = Graph(
        [*HIDDEN, GEMM, node("Clip", "z low high", "y")],
        constants={"low": np.array(-500, np.float32), "high": np.array(500, np.float32)},
    )
    opened = open_classifier(graph.save(tmp_path))
    classifier = opened.prove({"x": dense_rows()})
    assert classifier.tail == "none"
    with pytest.raises(CovcalError, match="computed from the logits"):
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
    opened = open_classifier(DENSE["softmax"][0].save(tmp_path))
    with pytest.raises(CovcalError, match=rf"expects float32 \[N, 6\] as x, .* {found}"):
        opened.prove({"x": batch})


def test_a_missing_input_is_named_with_those_given(tmp_path: Path) -> None:
    opened = open_classifier(DENSE["softmax"][0].save(tmp_path))
    with pytest.raises(CovcalError, match=r"expects float32 \[N, 6\] as x, but the data has image"):
        opened.prove({"image": dense_rows()})


def test_inputs_with_different_numbers_of_rows_are_refused(tmp_path: Path) -> None:
    graph = Graph(
        [node("Concat", "x more", "both", axis=1), node("Gemm", "both w7 b", "y", transB=1)],
        constants={"w7": np.ones((K, D_IN + 1), np.float32)},
        more_inputs=("more",),
    )
    batch = {"x": dense_rows(4), "more": np.zeros((3, 1), np.float32)}
    with pytest.raises(CovcalError, match="gets 4 rows of x but 3 rows of more"):
        open_classifier(graph.save(tmp_path)).prove(batch)


def test_a_batch_size_fixed_inside_the_graph_is_explained(tmp_path: Path) -> None:
    graph = Graph(
        [
            node("ReduceMean", "x", "mean", axes=[0], keepdims=1),
            node("Gemm", "mean w6 b", "y", transB=1),
        ],
        constants={"w6": np.ones((K, D_IN), np.float32)},
    )
    with pytest.raises(CovcalError, match=r"gives .* for 13 rows, .*: pass --batch 1"):
        open_classifier(graph.save(tmp_path)).prove({"x": dense_rows()})


def test_a_weight_that_is_a_signalling_nan_is_read_without_a_warning(tmp_path: Path) -> None:
    """Damage may leave one, and to cast it warns; the logits are refused where they are used."""
    weights = np.ones((K, D_IN), np.float32)
    weights.view(np.uint32)[0, 0] = 0x7FA00001
    graph = Graph([node("Gemm", "x w6 b", "y", transB=1)], constants={"w6": weights})
    opened = open_classifier(graph.save(tmp_path)).prove({"x": dense_rows()})
    assert np.isnan(opened.run({"x": dense_rows()})[1][:, 0]).all()


def test_a_name_that_is_no_text_is_damage(tmp_path: Path) -> None:
    graph = Graph(
        [node("Gemm", "x other b", "y", transB=1)],
        constants={"other": np.ones((K, D_IN), np.float32)},
    )
    saved = graph.save(tmp_path)
    saved.write_bytes(saved.read_bytes().replace(b"other", b"o\xffher"))
    with pytest.raises(CovcalError, match=r"is damaged \(a name in it is not UTF-8\): copy or"):
        open_classifier(saved)


@pytest.mark.parametrize("damage", ["shape", "bytes", "type"])
@pytest.mark.parametrize("name", ["b", "w"])
def test_weights_that_do_not_fit_their_shape_are_damage(
    name: str, damage: str, tmp_path: Path
) -> None:
    model = Graph([node("Gemm", "x w b", "y", transB=1)], constants=GEMM_WEIGHTS).model()
    (stored,) = (tensor for tensor in model.graph.initializer if tensor.name == name)
    if damage == "shape":
        stored.dims[0] = 127
    elif damage == "bytes":
        stored.raw_data = stored.raw_data[:-3]
    else:
        stored.data_type = 99
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(CovcalError, match=r"m\.onnx (is damaged|holds|is not)"):
        open_classifier(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("op", "inputs", "damage"),
    [
        ("Mul", "z", "has 1 inputs but needs 2"),
        ("Add", "z", "has 1 inputs but needs 2"),
        ("Sub", "", "has 0 inputs but needs 2"),
        ("BatchNormalization", "z b b", "has 3 inputs but needs 5"),
        ("DequantizeLinear", "z", "has 1 inputs but needs 2"),
        ("Gather", "z", "has 1 inputs but needs 2"),
        ("Relu", "z b", "has 2 inputs but needs 1"),
    ],
)
def test_an_operator_without_an_input_is_damage(
    op: str, inputs: str, damage: str, tmp_path: Path
) -> None:
    graph = Graph([*HIDDEN, GEMM, node(op, inputs, "y", name="last")])
    with pytest.raises(CovcalError, match=rf"is damaged: node 'last' \({op}\) {damage}: copy or"):
        open_classifier(graph.save(tmp_path))


@pytest.mark.parametrize("damage", ["input", "output"])
def test_an_operator_whose_input_or_output_has_no_name_is_damage(
    damage: str, tmp_path: Path
) -> None:
    model = Graph([*HIDDEN, GEMM, node("Mul", "z b", "y")]).model()
    if damage == "input":
        model.graph.node[-1].input[1] = ""
    else:
        del model.graph.node[-1].output[:]
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(CovcalError, match=r"is damaged: node .* \(Mul\) has (an|no) (in|out)put"):
        open_classifier(tmp_path / "m.onnx")
