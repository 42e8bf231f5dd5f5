"""Arrays in .npz files: checked, streamed, and fed as they are or through preprocessing."""

import io
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from covcal_cli.arrays import ModelInput
from covcal_cli.data.classes import choose_classes, named_classes, numbered_classes
from covcal_cli.data.domain import DomainData
from covcal_cli.data.preprocessing.settings import Preprocessing
from covcal_cli.data.stores.arrays import NpyStream
from covcal_cli.errors import CovcalError
from tests.made_rows import opened

VECTORS = ModelInput("x", (None, 4), np.dtype(np.float32))
GREY = ModelInput("x", (None, 1, 6, 6), np.dtype(np.float32))
ROWS = np.arange(40, dtype=np.float32).reshape(10, 4)


def save(folder: Path, *, compressed: bool = False, **arrays: Any) -> Path:
    path = folder / "data.npz"
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


def fed(data: DomainData, size: int = 3) -> NDArray[Any]:
    pipeline = Preprocessing().resolve(GREY.shape, GREY.dtype) if data.holds_images else None
    batches = list(data.batches(pipeline, np.arange(len(data.ids)), size=size, threads=2))
    rows = np.concatenate([batch.rows for batch in batches])
    np.testing.assert_array_equal(rows, np.arange(len(rows)))
    return np.concatenate([batch.inputs["x"] for batch in batches])


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64])
def test_numbers_of_the_models_shape_go_in_as_they_are(
    dtype: type, order: Any, compressed: bool, tmp_path: Path
) -> None:
    x: NDArray[Any] = np.array(ROWS.astype(dtype), order=order)
    data = opened(save(tmp_path, compressed=compressed, x=x))
    found = fed(data)
    np.testing.assert_array_equal(found, ROWS)
    assert found.dtype == np.float32
    assert data.ids == [str(i) for i in range(10)]
    assert data.labels(numbered_classes(3)).tolist() == [-1] * 10
    assert data.given_split is None


def test_labels_split_and_ids_are_read(tmp_path: Path) -> None:
    data = opened(
        save(
            tmp_path,
            x=ROWS,
            y=np.array([0, 1, 2, -1] * 2 + [0, 0], np.int8),
            split=np.array([0, 1, 2, 0, 0] * 2),
            id=np.array([f"é{i}" for i in range(10)]),
            extra=np.zeros(1),
            site=np.array(["here", "there"] * 5),
            weight=np.linspace(0, 1, 10),
        )
    )
    assert data.labels(numbered_classes(3)).tolist() == [0, 1, 2, -1, 0, 1, 2, -1, 0, 0]
    assert data.given_split is not None
    assert data.given_split.tolist() == [0, 1, 2, 0, 0] * 2
    assert data.ids[3] == "é3"
    assert data.split_names == data.ids
    assert data.notes == (f"{data.path}: extra not used",)
    assert {name: len(values) for name, values in data.columns.items()} == {
        "site": 10,
        "weight": 10,
    }


@pytest.mark.parametrize(
    ("y", "found"),
    [
        (np.array([0.0, 2.0, np.nan]), [0, 2, -1]),
        (np.array([True, False, True]), [1, 0, 1]),
        (np.array([[1], [0], [2]]), [1, 0, 2]),
        (np.array(["2", "0", "-1"]), [2, 0, -1]),
    ],
)
def test_class_numbers_come_in_many_forms(
    y: NDArray[Any], found: list[int], tmp_path: Path
) -> None:
    data = opened(save(tmp_path, x=ROWS[:3], y=y))
    assert data.labels(choose_classes(None, None, [data], 3)).tolist() == found


def test_names_of_classes_are_mapped_by_name(tmp_path: Path) -> None:
    y = np.array(["eel", "cat", "", "dog"])
    data = opened(save(tmp_path, x=ROWS[:4], y=y))
    assert data.class_folders == ("cat", "dog", "eel")
    assert data.labels(named_classes(("dog", "eel", "cat"))).tolist() == [1, 2, -1, 0]
    with pytest.raises(CovcalError, match=r"y 'dog' is not a class of the model \(cat, eel\)"):
        data.labels(named_classes(("cat", "eel")))


def test_numbers_that_are_names_are_mapped_by_name(tmp_path: Path) -> None:
    """Angles, and classes from 1 to K, are no positions when the classes are called so."""
    data = opened(save(tmp_path, x=ROWS[:4], y=np.array([270, 0, -1, 90])))
    assert data.labels(named_classes(("0", "90", "180", "270"))).tolist() == [3, 0, -1, 1]
    with pytest.raises(CovcalError, match=r"y '270' is not a class of the model \(0, 90, 180\)"):
        data.labels(named_classes(("0", "90", "180")))


def test_the_only_wide_array_is_the_input_whatever_its_name(tmp_path: Path) -> None:
    data = opened(save(tmp_path, images=ROWS, y=np.zeros(10, int), group_site=np.arange(10)))
    np.testing.assert_array_equal(fed(data), ROWS)
    assert list(data.columns) == ["site"]


def test_two_wide_arrays_without_an_x_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path, train=ROWS, test=ROWS[:3])
    with pytest.raises(CovcalError, match=r"there is no array x, only train, test"):
        opened(path, VECTORS)


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (1e300, np.float32, r"x is 1e\+300 in row 4, but the model needs float32"),
        (300, np.uint8, "x is 300 in row 4, but the model needs uint8"),
        (-1, np.uint8, "x is -1 in row 4, but the model needs uint8"),
    ],
)
def test_a_value_beyond_the_models_type_is_named(
    value: float, dtype: type, message: str, tmp_path: Path
) -> None:
    x = ROWS.astype(np.float64 if dtype == np.float32 else np.int64)
    x[4, 1] = value
    data = opened(save(tmp_path, x=x), ModelInput("x", (None, 4), np.dtype(dtype)))
    with pytest.raises(CovcalError, match=message):
        fed(data)


@pytest.mark.parametrize("ids", [np.arange(10), np.array([f"{i}" for i in range(10)], dtype="S")])
def test_ids_may_be_numbers_or_bytes(ids: NDArray[Any], tmp_path: Path) -> None:
    assert opened(save(tmp_path, x=ROWS, id=ids)).ids == [str(i) for i in range(10)]


@pytest.mark.parametrize("shape", [(9, 6, 6), (9, 6, 6, 1), (9, 6, 6, 3), (9, 6, 6, 4), (9, 3, 4)])
def test_uint8_images_are_preprocessed(shape: tuple[int, ...], tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, size=shape, dtype=np.uint8)
    data = opened(save(tmp_path, x=x), GREY)
    assert data.holds_images
    found = fed(data)
    assert found.shape == (9, 1, 6, 6)
    if shape in ((9, 6, 6), (9, 6, 6, 1)):
        np.testing.assert_allclose(found[:, 0], x.reshape(9, 6, 6) / 255, rtol=1e-6)


def test_uint8_rows_for_a_uint8_model_go_in_as_they_are(tmp_path: Path) -> None:
    x = np.arange(40, dtype=np.uint8).reshape(10, 4)
    wanted = ModelInput("x", (None, 4), np.dtype(np.uint8))
    np.testing.assert_array_equal(fed(opened(save(tmp_path, x=x), wanted)), x)


def objects(folder: Path) -> Path:
    return save(folder, x=np.array([{}, {}], dtype=object))


def text(folder: Path) -> Path:
    path = folder / "data.npz"
    path.write_text("not a zip")
    return path


def empty(folder: Path) -> Path:
    path = folder / "data.npz"
    path.write_bytes(b"")
    return path


def cut(folder: Path) -> Path:
    path = save(folder, x=ROWS)
    path.write_bytes(path.read_bytes()[:-40])
    return path


BAD: dict[str, tuple[Any, str]] = {
    "texts": ({"x": np.array([["a"], ["b"]])}, "x holds <U1, not numbers"),
    "one axis": ({"x": np.zeros(3)}, r"x has shape \[3\]: give one row per example"),
    "nothing": ({}, "is empty: save the rows as an array x"),
    "short y": ({"x": ROWS, "y": np.zeros(9, int)}, r"y has shape \[9\] but there are 10 rows"),
    "one-hot y": (
        {"x": ROWS, "y": np.eye(3, dtype=int)[np.arange(10) % 3]},
        r"y has shape \[10, 3\] .*: give one class number per row .for one-hot rows",
    ),
    "multi-hot y": (
        {"x": ROWS, "y": np.ones((10, 3), int)},
        r"y has shape \[10, 3\] .*: if rows have several labels, pass --multilabel",
    ),
    "float y": ({"x": ROWS, "y": np.full(10, 0.5)}, r"y\[0\] is 0.5: save class numbers as int"),
    "huge y": ({"x": ROWS, "y": np.full(10, 1e39)}, r"y\[0\] is 1e\+39: save class numbers"),
    "infinite y": ({"x": ROWS, "y": np.full(10, np.inf)}, r"y\[0\] is inf: save class numbers"),
    "complex y": ({"x": ROWS, "y": np.zeros(10, complex)}, "y holds complex128: save class"),
    "two labels": (
        {"x": ROWS, "y": np.zeros(10), "label": np.zeros(10)},
        "y and label have the same meaning",
    ),
    "bad split": (
        {"x": ROWS, "split": np.repeat([0, 3], 5)},
        "split holds 3 in row 5: write train, validation or test, or 0, 1 or 2",
    ),
    "bad split name": (
        {"x": ROWS, "split": np.repeat(["Train", "dev"], 5)},
        "split holds 'dev' in row 5",
    ),
    "float split": ({"x": ROWS, "split": np.zeros(10)}, r"split holds 0.0 \(float64\) in row 0"),
    "float id": ({"x": ROWS, "id": np.zeros(10)}, "id holds float64: save texts or integers"),
    "object y": ({"x": ROWS, "y": np.array([None] * 10)}, "it holds Python objects"),
    "objects": (objects, "it holds Python objects: save plain numeric arrays"),
    "text": (text, "is not a readable .npz file"),
    "empty": (empty, "is empty .0 bytes."),
    "cut": (cut, "is not a readable .npz file"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    content, message = BAD[name]
    path = save(tmp_path, **content) if isinstance(content, dict) else content(tmp_path)
    with pytest.raises(CovcalError, match=message) as caught:
        opened(path, VECTORS)
    assert "data.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("label", [-2, 3])
def test_a_label_outside_the_classes_is_named(label: int, tmp_path: Path) -> None:
    y = np.zeros(10, int)
    y[7] = label
    data = opened(save(tmp_path, x=ROWS, y=y))
    with pytest.raises(CovcalError, match=rf"y\[7\] is {label}, but the model has 3 classes"):
        data.labels(numbered_classes(3))


@pytest.mark.parametrize(
    ("x", "wanted"),
    [
        (np.zeros((5, 6, 6), np.float32), GREY),
        (np.zeros((5, 3, 6, 6), np.float32), GREY),
        (np.zeros((5, 1, 6, 6), np.uint8), GREY),
        (np.zeros((5, 6, 6), np.uint16), GREY),
        (np.zeros((5, 5), np.float32), VECTORS),
        (np.zeros((5, 4), np.uint8), VECTORS),
        (np.zeros((5, 4), np.float32), ModelInput("x", (None, 4), np.dtype(np.int64))),
    ],
)
def test_rows_of_another_shape_are_refused_with_both(
    x: NDArray[Any], wanted: ModelInput, tmp_path: Path
) -> None:
    path = save(tmp_path, x=x)
    with pytest.raises(CovcalError, match=rf"x is {x.dtype} \[N, .* but the model expects"):
        opened(path, wanted)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_finite_is_named(value: float, tmp_path: Path) -> None:
    x = ROWS.copy()
    x[8, 1] = value
    data = opened(save(tmp_path, x=x, id=np.array([f"row{i}" for i in range(10)])))
    with pytest.raises(CovcalError, match=r"x row 8 \(row8\) is NaN or infinite"):
        fed(data)


def test_damage_inside_the_rows_is_found_while_reading(tmp_path: Path) -> None:
    path = save(tmp_path, x=np.zeros((500, 4), np.float32))
    content = bytearray(path.read_bytes())
    content[4000] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(CovcalError, match=r"is not a readable \.npz file"):
        fed(opened(path, VECTORS), size=50)


def test_a_stream_that_ends_early_is_refused() -> None:
    buffer = io.BytesIO()
    np.save(buffer, ROWS)
    short = io.BytesIO(buffer.getvalue()[:-8])
    with pytest.raises(ValueError, match="cut short"):
        list(NpyStream(short).blocks(3))


def test_an_array_that_a_file_holds_twice_is_refused(tmp_path: Path) -> None:
    """NumPy would read the last of the two."""
    path = save(tmp_path, x=ROWS)
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings(action="ignore"):
        archive.writestr("x.npy", archive.read("x.npy"))
    with pytest.raises(CovcalError, match=r"data\.npz: the array x occurs twice: save"):
        opened(path)


def test_only_a_block_of_x_is_in_memory(tmp_path: Path) -> None:
    """A member that is read lazily yields its first block before damage further on is met."""
    path = save(tmp_path, x=np.ones((5000, 64), np.float32))
    with zipfile.ZipFile(path) as archive, archive.open("x.npy") as member:
        first = next(iter(NpyStream(member).blocks(10)))
        assert first.shape == (10, 64)
        assert member.tell() < 64 * 4 * 10 + 1000
