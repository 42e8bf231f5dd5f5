"""``--preprocess module:function``: preprocessing by a function of the user's own."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from covcal_cli.data.domain import ImagePipeline
from covcal_cli.data.preprocessing.configs import load_preprocessing
from covcal_cli.data.preprocessing.settings import Preprocessing
from covcal_cli.errors import CovcalError
from tests.made_rows import row_of

F4 = np.dtype(np.float32)


SOURCE = """
import numpy as np

def row(image):
    pixels = np.asarray(image.convert("L").resize((4, 4)))
    return pixels[None] / 51.0

def wide(image):
    return np.asarray(image.convert("L"))[None].astype("f4")

def batch(image):
    return np.zeros((1, 1, 4, 4))

def undefined(image):
    return np.full((1, 4, 4), np.nan)

def words(image):
    return ["a", "b"]

def bytes_(image):
    return np.asarray(image.convert("L").resize((4, 4)))[None]

def fails(image):
    raise KeyError("no such thing")
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module in the current folder."""
    name = f"prep_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield name
    assert sys.path == path
    sys.modules.pop(name, None)


def pipeline_of(text: str, shape: tuple[int | None, ...], dtype: Any = F4) -> ImagePipeline:
    return load_preprocessing(text, metadata={}).resolve(shape, np.dtype(dtype))


def test_a_function_of_ones_own_does_everything(functions: str) -> None:
    pipeline = pipeline_of(f"{functions}:row", (None, 1, 4, 4))
    image = Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4) * 15)
    np.testing.assert_allclose(row_of(pipeline, image)[0], np.asarray(image) / 51.0, rtol=1e-6)
    assert (pipeline.row_shape, pipeline.dtype) == ((1, 4, 4), "float32")
    assert pipeline.describe().startswith(f"{functions}:row (sha256 ")
    integers = pipeline_of(f"{functions}:bytes_", (None, 1, 4, 4), np.uint8)
    np.testing.assert_array_equal(row_of(integers, image)[0], np.asarray(image))


def test_a_function_is_known_by_its_name_and_source(functions: str, tmp_path: Path) -> None:
    before = pipeline_of(f"{functions}:row", (None, 1, 4, 4)).to_json()
    assert before == pipeline_of(f"{functions}:row", (None, 1, 4, 4)).to_json()
    assert before != pipeline_of(f"{functions}:bytes_", (None, 1, 4, 4)).to_json()
    with (tmp_path / f"{functions}.py").open("a", encoding="utf-8") as file:
        file.write("\n# changed\n")
    assert before != pipeline_of(f"{functions}:row", (None, 1, 4, 4)).to_json()


def test_sizes_that_the_model_leaves_open_are_those_of_the_function(functions: str) -> None:
    assert pipeline_of(f"{functions}:row", (None, None, None, None)).row_shape == (1, 4, 4)


@pytest.mark.parametrize(
    ("function", "dtype", "message"),
    [
        ("wide", F4, r"returns an array of shape \[1, 5, 6\] but one row .* shape \[1, 4, 4\]"),
        ("batch", F4, r"shape \[1, 1, 4, 4\] .*: return one row, without the batch"),
        ("undefined", F4, "returns NaN or infinity for an image: return finite numbers"),
        ("words", F4, "returns .*: return numbers"),
        ("row", np.uint8, "returns float64 but the model's input is uint8: return integers"),
        (
            "fails",
            F4,
            r"failed on an RGB image of 5x6 pixels \(KeyError: 'no such thing'\): correct",
        ),
    ],
)
def test_a_function_that_returns_no_row_stops_the_run(
    function: str, dtype: Any, message: str, functions: str
) -> None:
    pipeline = pipeline_of(f"{functions}:{function}", (None, 1, 4, 4), dtype)
    with pytest.raises(CovcalError, match=message):
        row_of(pipeline, Image.new("RGB", (6, 5)))


def test_a_broken_file_is_no_fault_of_the_function(functions: str, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, size=(64, 64), dtype=np.uint8)
    path = tmp_path / "cut.png"
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:2000])
    pipeline = pipeline_of(f"{functions}:row", (None, 1, 4, 4))
    with Image.open(path) as image, pytest.raises((OSError, SyntaxError)):
        row_of(pipeline, image)


def test_flags_beside_a_function_are_refused(functions: str) -> None:
    asked = load_preprocessing(f"{functions}:row", metadata={})
    with pytest.raises(CovcalError, match=r"--scale has no effect, because .* does all"):
        asked.overridden_by(Preprocessing(scale=1.0))


def test_a_module_that_fails_to_load_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_prep.py").write_text("import no_such_dependency\n", encoding="utf-8")
    with pytest.raises(CovcalError, match=r"cannot be imported .*no_such_dependency.*: correct"):
        load_preprocessing("broken_prep:f", metadata={})
