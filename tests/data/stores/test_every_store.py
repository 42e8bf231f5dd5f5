"""One set of rows in every format: the same values, labels, splits, ids and groups come out."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from covcal_cli.arrays import ModelInput
from covcal_cli.data.classes import choose_classes, named_classes
from covcal_cli.data.domain import DomainData
from covcal_cli.data.preprocessing.settings import Preprocessing
from covcal_cli.data.stores.store import regrouped, windows
from covcal_cli.errors import CovcalError
from tests.made_rows import (
    WORDS,
    made_rows,
    opened,
    write_csv,
    write_hdf5,
    write_parquet,
    write_rows,
    write_tar,
)

FORMATS = ("npz", "h5", "csv", "jsonl", "parquet")
WANTED = ModelInput("input.1", (None, 4), np.dtype(np.float32))
ROWS = made_rows()


def fed(
    data: DomainData, rows: NDArray[np.int64] | None = None, size: int = 8
) -> dict[str, NDArray[Any]]:
    """Return the inputs of the chosen rows, checking the batches on the way."""
    rows = np.arange(len(data.ids), dtype=np.int64) if rows is None else rows
    assert not data.holds_images
    batches = list(data.batches(None, rows, size=size, threads=1))
    assert [len(batch.rows) for batch in batches[:-1]] == [size] * (len(batches) - 1)
    np.testing.assert_array_equal(np.concatenate([batch.rows for batch in batches]), rows)
    return {
        name: np.concatenate([batch.inputs[name] for batch in batches])
        for name in batches[0].inputs
    }


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_says_the_same(kind: str, words: bool, tmp_path: Path) -> None:
    data = opened(write_rows(kind, tmp_path, ROWS, words=words), WANTED)
    values = fed(data)["input.1"]
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, ROWS.x)
    assert data.ids == data.split_names == ROWS.ids
    assert data.given_split is not None
    np.testing.assert_array_equal(data.given_split, ROWS.split)
    assert data.class_folders == (WORDS if words else None)
    classes = choose_classes(None, None, [data], 3)
    np.testing.assert_array_equal(data.labels(classes), ROWS.y)
    assert list(data.columns) == ["site"]
    assert data.columns["site"].tolist() == ROWS.site
    assert data.notes == ()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("chosen", [[0], [49], [3, 4, 5, 20, 33, 48], list(range(0, 50, 3))])
def test_only_the_chosen_rows_come_in_full_batches(
    kind: str, chosen: list[int], tmp_path: Path
) -> None:
    data = opened(write_rows(kind, tmp_path, ROWS), WANTED)
    rows = np.array(chosen, dtype=np.int64)
    np.testing.assert_array_equal(fed(data, rows, size=4)["input.1"], ROWS.x[rows])


def test_a_npy_file_is_rows_without_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS.x)
    np.save(tmp_path / "columns.npy", np.asfortranarray(ROWS.x))
    rows = np.array([1, 2, 30])
    for name in ("rows.npy", "columns.npy"):
        data = opened(tmp_path / name, WANTED)
        np.testing.assert_array_equal(fed(data)["input.1"], ROWS.x)
        np.testing.assert_array_equal(fed(data, rows)["input.1"], ROWS.x[rows])
        assert data.labels(named_classes(WORDS)).tolist() == [-1] * 50
        assert data.ids[:2] == ["0", "1"]


@pytest.mark.parametrize("kind", ["npz", "h5", "csv", "parquet"])
def test_inputs_are_fed_by_name_in_any_order(kind: str, tmp_path: Path) -> None:
    """scikit-learn exports have one input [N, 1] per column, in the order of the training."""
    age, pay = ROWS.x[:, 0], np.arange(50)
    columns: dict[str, Any] = {"pay": pay, "label": ROWS.y, "age": age}
    if kind == "npz":
        path = tmp_path / "rows.npz"
        np.savez(path, **columns)
    elif kind == "h5":
        path = write_hdf5(tmp_path / "rows.h5", columns)
    elif kind == "csv":
        path = write_csv(tmp_path / "rows.csv", {k: v.tolist() for k, v in columns.items()})
    else:
        path = write_parquet(tmp_path / "rows.parquet", columns)
    wanted = [
        ModelInput("age", (None, 1), np.dtype(np.float32)),
        ModelInput("pay", (None, 1), np.dtype(np.int64)),
    ]
    found = fed(opened(path, *wanted))
    np.testing.assert_array_equal(found["age"], age[:, None])
    np.testing.assert_array_equal(found["pay"], pay[:, None])
    assert found["pay"].dtype == np.int64


def test_a_wide_input_and_another_by_name(tmp_path: Path) -> None:
    tokens = np.arange(200, dtype=np.int32).reshape(50, 4)
    path = tmp_path / "rows.npz"
    np.savez(path, tokens=tokens, mask=np.ones((50, 4), bool), y=ROWS.y, spare=np.ones((50, 2)))
    wanted = [
        ModelInput("mask", (None, None), np.dtype(np.int64)),
        ModelInput("tokens", (None, None), np.dtype(np.int64)),
    ]
    data = opened(path, *wanted)
    found = fed(data)
    np.testing.assert_array_equal(found["tokens"], tokens)
    assert found["mask"].dtype == np.int64
    assert data.notes == (f"{path}: spare not used",)


def test_texts_are_fed_to_inputs_that_want_texts(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", {"site": ROWS.site, "age": list(range(50))})
    wanted = [
        ModelInput("site", (None, 1), np.dtype(object)),
        ModelInput("age", (None, 1), np.dtype(np.float32)),
    ]
    found = fed(opened(path, *wanted), np.array([1, 2, 40]))
    assert found["site"].tolist() == [["Rome"], ["Bern"], ["Bern"]]
    assert found["age"].ravel().tolist() == [1, 2, 40]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_named(kind: str, value: float, tmp_path: Path) -> None:
    rows = made_rows()
    rows.x[33, 2] = value
    data = opened(write_rows(kind, tmp_path, rows), WANTED)
    with pytest.raises(CovcalError, match=r"(row 33|line 3[45]) \(räw 33\)") as caught:
        fed(data)
    assert ("column f2" in str(caught.value)) == (kind in ("csv", "jsonl", "parquet"))
    fed(data, np.arange(33))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_width_other_than_the_models_is_refused_with_both(kind: str, tmp_path: Path) -> None:
    path = write_rows(kind, tmp_path, ROWS)
    wanted = ModelInput("input.1", (None, 5), np.dtype(np.float32))
    with pytest.raises(CovcalError, match=r"4.* expects float32 \[N, 5\]: give"):
        opened(path, wanted)


@pytest.mark.parametrize("kind", ["npy", "h5", "csv", "parquet"])
def test_a_missing_input_is_named(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows.{kind}"
    if kind == "npy":
        np.save(path, ROWS.x)
    else:
        path = write_rows(kind, tmp_path, ROWS)
    wanted = [ModelInput(name, (None, 1), np.dtype(np.float32)) for name in ("x", "f0", "weight")]
    with pytest.raises(CovcalError, match=r"the model has 3 inputs, but the data lack .*weight"):
        opened(path, *wanted)


@pytest.mark.parametrize("kind", FORMATS)
def test_wide_rows_are_never_in_memory_at_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for reader in ("arrays", "csv", "json_lines", "parquet"):
        monkeypatch.setattr(f"covcal_cli.data.stores.{reader}.WINDOW_BYTES", 1 << 15)
    n, width = 2400, 50
    rows = made_rows(n, width)
    path = write_rows(kind, tmp_path, rows)
    data = opened(path, ModelInput("x", (None, width), np.dtype(np.float32)))
    assert not data.holds_images
    # What the first batch imports is no part of the memory of the rows.
    next(iter(data.batches(None, np.arange(16), size=16, threads=1)))
    seen = 0
    tracemalloc.start()
    for batch in data.batches(None, np.arange(n), size=16, threads=1):
        seen += len(batch.rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seen == n
    assert peak < 0.7 * rows.x.nbytes


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rows.pkl", "a pickle can run code: save the arrays with numpy.savez"),
        ("rows.mat", "save its arrays with numpy.savez"),
        ("rows.xlsx", "save the sheet as .csv"),
        ("rows.tar.gz", "unpack it"),
        ("rows.onnx", "give a .npz, .npy, .h5, .csv, .jsonl or .parquet file"),
    ],
)
def test_another_kind_of_file_is_refused_with_the_way_out(
    name: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(b"something")
    with pytest.raises(CovcalError, match=f"is not a kind of file that covcal reads: {message}"):
        opened(tmp_path / name)


@pytest.mark.parametrize(
    "name", ["a.npz", "a.npy", "a.h5", "a.csv", "a.jsonl", "a.parquet", "a.tar"]
)
def test_an_empty_or_broken_file_is_named(name: str, tmp_path: Path) -> None:
    if name == "a.parquet":
        pytest.importorskip("pyarrow", reason="Parquet needs covcal[parquet]")
    path = tmp_path / name
    path.write_bytes(b"")
    with pytest.raises(CovcalError, match=r"a\..* is empty \(0 bytes\): (give|save)"):
        opened(path)
    path.write_bytes(b"\xff\x00neither this nor that\n" * 40)
    with pytest.raises(CovcalError, match=r"a\.") as caught:
        opened(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["npz", "npy", "h5"])
def test_images_in_arrays_are_preprocessed_whatever_the_file(kind: str, tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, size=(9, 6, 6), dtype=np.uint8)
    path = tmp_path / f"images.{kind}"
    if kind == "npy":
        np.save(path, pixels)
    elif kind == "npz":
        np.savez(path, images=pixels)
    else:
        write_hdf5(path, {"images": pixels})
    wanted = ModelInput("input.1", (None, 1, 6, 6), np.dtype(np.float32))
    data = opened(path, wanted)
    assert data.holds_images
    pipeline = Preprocessing().resolve(wanted.shape, wanted.dtype)
    rows = np.array([0, 3, 4, 8])
    batches = list(data.batches(pipeline, rows, size=3, threads=2))
    found = np.concatenate([batch.inputs["input.1"] for batch in batches])
    assert np.concatenate([batch.rows for batch in batches]).tolist() == rows.tolist()
    np.testing.assert_allclose(found[:, 0], pixels[rows] / 255, rtol=1e-6)


def test_a_folder_of_parquet_parts_is_one_table(tmp_path: Path) -> None:
    folder = tmp_path / "table"
    folder.mkdir()
    for part, rows in enumerate(np.split(np.arange(50), [20, 21])):
        columns = {"a": ROWS.x[rows, 0], "b": ROWS.x[rows, 1], "y": ROWS.y[rows]}
        if part == 2:
            columns = dict(reversed(columns.items()))
        write_parquet(folder / f"part-{part}.parquet", columns)
    data = opened(folder, ModelInput("x", (None, 2), np.dtype(np.float32)))
    np.testing.assert_array_equal(fed(data)["x"], ROWS.x[:, :2])
    rows = np.array([19, 20, 21, 49])
    np.testing.assert_array_equal(fed(data, rows)["x"], ROWS.x[rows, :2])
    write_parquet(folder / "part-3.parquet", {"a": ROWS.x[:, 0]})
    with pytest.raises(CovcalError, match=r"part-3.parquet and .*part-0.* have different columns"):
        opened(folder)


def test_a_missing_pyarrow_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(CovcalError, match=r"needs pyarrow to read .*rows.parquet: run pip install"):
        opened(tmp_path / "rows.parquet")


def test_windows_hold_the_chosen_rows_and_no_more() -> None:
    rows = np.array([0, 9, 10, 35, 99])
    found = [(start, stop, chosen.tolist()) for start, stop, chosen in windows(rows, 10)]
    assert found == [(0, 10, [0, 9]), (10, 20, [10]), (30, 40, [35]), (90, 100, [99])]


def test_regrouped_rows_are_the_same_rows() -> None:
    values = np.arange(17)
    pieces = [(values[a:b], {"v": 2 * values[a:b]}) for a, b in ((0, 1), (1, 12), (12, 17))]
    found = list(regrouped(pieces, 5))
    assert [len(rows) for rows, _ in found] == [5, 5, 5, 2]
    np.testing.assert_array_equal(np.concatenate([rows for rows, _ in found]), values)
    np.testing.assert_array_equal(np.concatenate([arrays["v"] for _, arrays in found]), 2 * values)


def test_a_tar_is_no_table(tmp_path: Path) -> None:
    """Each kind goes to its own reader, whatever the case of its suffix."""
    data = opened(write_tar(tmp_path / "A.TAR", {"k.png": b"x", "k.cls": "1"}), WANTED)
    assert data.holds_images
