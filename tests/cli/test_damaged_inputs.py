"""What once ended in a traceback: damaged models, names that are no UTF-8, numbers too large."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.cli_runner import covcal


@pytest.fixture
def work(few_digits: Path, small_files: Path, tmp_path: Path) -> Path:
    for name in ("digits.onnx", "source.npz", "target.npz"):
        shutil.copy(few_digits / name, tmp_path)
    for name in ("features.h5", "temp.json"):
        shutil.copy(small_files / name, tmp_path)
    return tmp_path


def wrong_bias(model: onnx.ModelProto) -> None:
    tensor = next(one for one in reversed(model.graph.initializer) if len(one.dims) == 1)
    tensor.CopyFrom(numpy_helper.from_array(np.zeros(3, np.float32), tensor.name))


def wrong_offset(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[-1]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "²")):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value


def random_operator(model: onnx.ModelProto) -> None:
    node = next(node for node in model.graph.node if node.op_type == "Relu")
    node.op_type = "RandomNormalLike"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (wrong_bias, "has weights for 10 classes but a bias for 3: export the model again"),
        (wrong_offset, "in weights.bin are not numbers ('²' and '0')"),
        (random_operator, "gives different outputs for the same rows"),
    ],
)
def test_a_damaged_model(change: Callable[[onnx.ModelProto], None], line: str, work: Path) -> None:
    model = onnx.load(work / "digits.onnx")
    change(model)
    (work / "bad.onnx").write_bytes(model.SerializeToString())
    (work / "weights.bin").write_bytes(bytes(1000))
    done = covcal("extract", "bad.onnx", "source.npz", "target.npz", "-o", "n.h5", cwd=work)
    assert done.error_line().startswith("bad.onnx")
    assert line in done.err


@pytest.mark.parametrize("place", ["op_type", "input"])
def test_a_model_whose_names_are_no_texts(place: str, work: Path) -> None:
    path = work / "digits.onnx"
    node = onnx.load(path).graph.node[-1]
    name = (node.op_type if place == "op_type" else node.input[0]).encode()
    (work / "bad.onnx").write_bytes(path.read_bytes().replace(name, b"\xff" * len(name)))
    done = covcal("extract", "bad.onnx", "source.npz", "target.npz", "-o", "n.h5", cwd=work)
    assert "bad.onnx is damaged (a name in it is not UTF-8)" in done.error_line()


@pytest.mark.parametrize(
    ("name", "values", "line"),
    [
        (
            "y",
            np.array([2**64 - 1, 0], np.uint64),
            "y[0] is 18446744073709551615: save class numbers as integers",
        ),
        ("y", [1e30, 0.0], r"y[0] is 1e+30: save class numbers as integers"),
        ("y", [b"\xff\xfe", b"1"], "is not a readable .npz file"),
        ("y", ["\ud800", "1"], "y holds '\\ud800' in row 0, which is not Unicode text"),
        ("id", ["\ud800", "1"], "id holds '\\ud800' in row 0, which is not Unicode text"),
        ("site", ["a", "\udc80"], "site holds '\\udc80' in row 1, which is not Unicode text"),
        ("path", ["a", "\udc80"], "path holds '\\udc80' in row 1, which is not Unicode text"),
    ],
)
def test_what_an_array_says_of_the_rows(name: str, values: Any, line: str, work: Path) -> None:
    arrays: Any = {"x": np.zeros((2, 1, 8, 8), np.float32), name: np.array(values)}
    np.savez(work / "bad.npz", **arrays)
    done = covcal("extract", "digits.onnx", "source.npz", "bad.npz", "-o", "n.h5", cwd=work)
    assert line in done.error_line()


def test_a_weight_whose_power_is_no_number(work: Path) -> None:
    weight = ("--method", "iw+temp", "--max-weight", "1e300", "-o", "new.json")
    line = covcal("calibrate", "features.h5", *weight, cwd=work).usage_error()
    assert "max_weight must be a number from 1 to 1e100, not 1e+300" in line


def test_names_that_are_no_utf8_all_the_way(work: Path) -> None:
    """Linux allows any bytes; what one command wrote of them the next one reads."""
    names = {
        name: os.fsdecode(name.encode() + b"\xff") + suffix
        for name, suffix in (("m", ".onnx"), ("s", ".npz"), ("f", ".h5"), ("c", ".json"))
    }
    shutil.copy(work / "digits.onnx", work / names["m"])
    shutil.copy(work / "source.npz", work / names["s"])
    file, document = names["f"], names["c"]
    page, folder = os.fsdecode(b"r\xff.html"), os.fsdecode(b"o\xff")
    run = ("run", names["m"], names["s"], "target.npz", "--method", "temp", "-o", folder)
    for command in (
        ("extract", names["m"], names["s"], "target.npz", "-o", file),
        ("calibrate", file, "--method", "temp", "--force", "-o", document),
        ("inspect", document),
        ("evaluate", file, "-c", document, "-o", os.fsdecode(b"e\xff.json")),
        ("report", file, "-c", document, "-o", page),
        ("export", names["m"], "-c", document, "-o", os.fsdecode(b"x\xff.onnx")),
        run,
        run,
    ):
        covcal(*command, cwd=work).require_success()


def test_a_demo_in_the_place_of_a_link_to_itself(tmp_path: Path) -> None:
    (tmp_path / "here").symlink_to("here")
    line = covcal("demo", "-o", "here", cwd=tmp_path).error_line()
    assert line == "here is a link that leads nowhere: name another folder with -o"
