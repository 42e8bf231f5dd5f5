"""Hugging Face datasets saved as Parquet: columns of image files, labels with names."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from covcal_cli.arrays import ModelInput
from covcal_cli.data.classes import choose_classes, named_classes, numbered_classes
from covcal_cli.data.domain import DomainData
from covcal_cli.data.outputs import open_outputs
from covcal_cli.data.preprocessing.settings import Preprocessing
from covcal_cli.data.stores import open_store
from covcal_cli.data.stores import parquet as parquet_store
from covcal_cli.errors import CovcalError
from tests.classifiers.onnx.onnx_graphs import grey_classifier
from tests.cli_runner import covcal
from tests.made_rows import opened, parquet, png

arrow = pytest.importorskip("pyarrow", reason="Parquet needs covcal[parquet]")

GREY = ModelInput("pixels", (None, 1, 4, 4), np.dtype(np.float32))
TWO = ModelInput("x", (None, 2), np.dtype(np.float32))


def features(**columns: dict[str, Any]) -> dict[bytes, bytes]:
    """Return the metadata with which Hugging Face datasets describe their columns."""
    return {b"huggingface": json.dumps({"info": {"features": columns}}).encode()}


IMAGE = {"_type": "Image"}
ANIMALS = {"_type": "ClassLabel", "names": ["eel", "cat", "dog"]}


def write_dataset(
    path: Path, columns: dict[str, Any], described: dict[bytes, bytes] | None = None
) -> Path:
    """Write columns in row groups of two rows."""
    table = arrow.table(columns)
    parquet().write_table(table.replace_schema_metadata(described), path, row_group_size=2)
    return path


def pictures(values: Sequence[int | None], names: Sequence[str | None] | None = None) -> Any:
    """Return a column of structs of PNG files of one grey value each."""
    rows = [
        None
        if value is None
        else {"bytes": png(value), "path": None if names is None else names[row]}
        for row, value in enumerate(values)
    ]
    kind = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    return arrow.array(rows, kind)


def greys(data: DomainData, rows: Sequence[int]) -> tuple[list[int], dict[int, str]]:
    """Return the grey value of every readable row, and why the others are not."""
    assert data.holds_images
    pipeline = Preprocessing().resolve(GREY.shape, GREY.dtype)
    batches = data.batches(pipeline, np.array(rows), size=2, threads=2)
    found: list[int] = []
    skipped: dict[int, str] = {}
    for batch in batches:
        found += np.rint(255 * batch.inputs["pixels"][:, 0, 0, 0]).astype(int).tolist()
        skipped |= dict(batch.skipped)
    return found, skipped


class TestImageColumns:
    @pytest.mark.parametrize("kind", ["struct", "binary", "large_binary"])
    def test_the_bytes_of_image_files_are_decoded(self, kind: str, tmp_path: Path) -> None:
        values = (10, 200, 30, 40, 50)
        column: Any = pictures(values)
        if kind != "struct":
            column = arrow.array([png(value) for value in values], kind)
        columns = {"image": column, "label": [0, 1, 2, 1, 0], "age": [7, 8, 9, 10, 11]}
        data = opened(write_dataset(tmp_path / "rows.parquet", columns), GREY)
        assert greys(data, range(5)) == ([10, 200, 30, 40, 50], {})
        assert greys(data, [1, 3, 4]) == ([200, 40, 50], {})
        assert data.ids == ["0", "1", "2", "3", "4"]
        assert data.labels(numbered_classes(3)).tolist() == [0, 1, 2, 1, 0]
        assert data.columns["age"].tolist() == [7, 8, 9, 10, 11]
        assert data.notes == ()

    def test_a_row_without_an_image_or_with_a_broken_one_is_skipped(self, tmp_path: Path) -> None:
        column = [png(5), None, b"not an image", png(80)[:40], png(9)]
        path = write_dataset(tmp_path / "rows.parquet", {"image": arrow.array(column)})
        found, skipped = greys(opened(path, GREY), range(5))
        assert found == [5, 9]
        assert skipped[1] == "this row of the table has no image"
        assert skipped[2] == "this is not an image, or its format is unknown"
        assert list(skipped) == [1, 2, 3]

    def test_rows_go_by_the_names_of_the_files_where_each_has_its_own(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.parquet"
        write_dataset(path, {"image": pictures((1, 2, 3), ("c.png", "a.png", "b.png"))})
        assert opened(path, GREY).ids == ["c.png", "a.png", "b.png"]
        for names in (("a.png", "a.png", "b.png"), ("a.png", None, "b.png")):
            write_dataset(path, {"image": pictures((1, 2, 3), names)})
            assert opened(path, GREY).ids == ["0", "1", "2"]
        write_dataset(path, {"image": pictures((1, 2), ("a.png", "b.png")), "id": ["p", "q"]})
        assert opened(path, GREY).ids == ["p", "q"]

    def test_a_file_that_was_not_embedded_is_read_beside_the_table(self, tmp_path: Path) -> None:
        (tmp_path / "a.png").write_bytes(png(70))
        rows = [{"bytes": None, "path": "a.png"}, {"bytes": png(4), "path": "b.png"}]
        kind = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
        columns = {"image": arrow.array(rows, kind)}
        path = write_dataset(tmp_path / "rows.parquet", columns, features(image=IMAGE))
        assert greys(opened(path, GREY), [0, 1]) == ([70, 4], {})

    def test_of_several_the_one_called_image_is_taken(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.parquet"
        write_dataset(path, {"mask": pictures((1, 2)), "Image": pictures((3, 4))})
        data = opened(path, GREY)
        assert greys(data, [0, 1]) == ([3, 4], {})
        assert data.notes == (f"{path}: mask not used",)
        write_dataset(path, {"mask": pictures((1, 2)), "photo": pictures((3, 4))})
        message = (
            r"has several columns of images \(mask, photo\): give the name image to the column"
        )
        with pytest.raises(CovcalError, match=message):
            opened(path, GREY)

    def test_a_model_of_the_numbers_beside_a_picture_gets_the_numbers(self, tmp_path: Path) -> None:
        columns = {"a": [1.0, 2.0], "b": [3.0, 4.0], "image": pictures((1, 2)), "group_c": [5, 6]}
        path = write_dataset(tmp_path / "rows.parquet", columns)
        data = opened(path, TWO)
        assert not data.holds_images
        (batch,) = data.batches(None, np.arange(2), size=2, threads=1)
        assert batch.inputs["x"].tolist() == [[1, 3], [2, 4]]
        assert list(data.columns) == ["c"]
        assert data.notes == (f"{path}: image not used",)

    def test_bytes_that_are_no_images_are_not_used(self, tmp_path: Path) -> None:
        columns = {"a": [1.0], "b": [2.0], "sound": arrow.array([b"RIFF1234WAVE"])}
        data = opened(write_dataset(tmp_path / "rows.parquet", columns), TWO)
        assert not data.holds_images
        assert data.notes == (f"{data.path}: sound not used",)

    def test_an_image_model_with_several_inputs_is_refused(self, tmp_path: Path) -> None:
        path = write_dataset(tmp_path / "rows.parquet", {"image": pictures((1, 2))})
        with pytest.raises(CovcalError, match=r"holds images, but the model has 2 inputs"):
            opened(path, GREY, TWO)

    def test_large_images_come_a_few_at_a_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(parquet_store, "WINDOW_BYTES", 200)
        path = tmp_path / "rows.parquet"
        contents = [bytes([row]) * 100 for row in range(50)]
        columns = {"image": arrow.array(contents)}
        described = arrow.table(columns).replace_schema_metadata(features(image=IMAGE))
        parquet().write_table(described, path, use_dictionary=False)
        store = open_store(path)
        pieces = list(store.pieces(["image"], np.arange(50), 32))
        assert max(len(rows) for rows, _ in pieces) == 1
        assert [value for _, arrays in pieces for value in arrays["image"]] == contents


class TestClassNames:
    """Labels of Hugging Face datasets are numbers whose names stand in the file."""

    def domain(self, folder: Path, label: Sequence[int | None] = (0, 2, None, -1, 1)) -> DomainData:
        columns = {"image": pictures(range(len(label))), "label": label}
        described = features(image=IMAGE, label=ANIMALS)
        return opened(write_dataset(folder / "rows.parquet", columns, described), GREY)

    def test_they_find_their_class_of_the_model_by_name(self, tmp_path: Path) -> None:
        data = self.domain(tmp_path)
        classes = choose_classes(None, ("cat", "dog", "eel", "fox"), [data], 4)
        assert data.labels(classes).tolist() == [2, 1, -1, -1, 0]

    def test_they_name_the_classes_of_a_model_without_names_in_their_order(
        self, tmp_path: Path
    ) -> None:
        data = self.domain(tmp_path)
        classes = choose_classes(None, None, [data], 3)
        assert classes.names == ("eel", "cat", "dog")
        assert data.labels(classes).tolist() == [0, 2, -1, -1, 1]
        with pytest.raises(CovcalError, match=r"names 3 classes \(eel, cat, dog\) but the model"):
            choose_classes(None, None, [data], 4)

    def test_a_class_without_rows_need_not_be_one_of_the_model(self, tmp_path: Path) -> None:
        classes = named_classes(("cat", "eel"))
        assert self.domain(tmp_path, (0, 1)).labels(classes).tolist() == [1, 0]
        with pytest.raises(CovcalError, match=r"label 'dog' is not a class of the model"):
            self.domain(tmp_path, (0, 2)).labels(classes)

    def test_without_names_on_the_other_side_they_are_numbers(self, tmp_path: Path) -> None:
        data = self.domain(tmp_path)
        assert data.labels(numbered_classes(3)).tolist() == [0, 2, -1, -1, 1]
        with pytest.raises(CovcalError, match=r"label in row 1 is 2, but the model has 2 classes"):
            data.labels(numbered_classes(2))

    def test_a_number_without_a_name_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(CovcalError, match=r"label in row 1 is 3, but there are 3 classes"):
            self.domain(tmp_path, (0, 3))

    def test_they_hold_for_tables_of_logits_too(self, tmp_path: Path) -> None:
        columns: dict[str, Any] = {f"logit_{k}": [1.0 * k, 2.0, 3.0] for k in range(3)}
        columns["label"] = [2, 0, 1]
        path = write_dataset(tmp_path / "rows.parquet", columns, features(label=ANIMALS))
        table = open_outputs(None, path, "logits")["target"]
        classes = choose_classes(None, table.class_names, [table], 3)
        assert classes.names == ("eel", "cat", "dog")
        assert table.labels(classes).tolist() == [2, 0, 1]

    @pytest.mark.parametrize("content", [b"no JSON", b"[]", b'{"info": null}', b'{"info": {}}'])
    def test_a_description_that_says_nothing_is_passed_over(
        self, content: bytes, tmp_path: Path
    ) -> None:
        columns = {"a": [1.0, 2.0], "label": [1, 0]}
        path = write_dataset(tmp_path / "rows.parquet", columns, {b"huggingface": content})
        assert opened(path).class_folders is None


def test_extract_reads_a_dataset_and_a_partitioned_folder_of_images(tmp_path: Path) -> None:
    grey_classifier(tmp_path)
    columns = {"image": pictures(range(0, 240, 8)), "label": [row % 3 for row in range(30)]}
    described = features(image=IMAGE, label=ANIMALS)
    write_dataset(tmp_path / "source.parquet", columns, described)
    for row, name in enumerate(("cat", "dog", "eel")):
        folder = tmp_path / "target" / f"label={name}"
        folder.mkdir(parents=True)
        write_dataset(folder / "0.parquet", {"image": pictures([10 * row, 10 * row + 5])})
    arguments = ("extract", "model.onnx", "source.parquet", "target", "-o", "features.h5")
    done = covcal(*arguments, cwd=tmp_path).require_success()
    assert "source    30 rows" in done.out
    with h5py.File(tmp_path / "features.h5") as file:
        assert [name.decode() for name in file["classes"][()]] == ["eel", "cat", "dog"]
        assert file["source/labels"][()].tolist() == columns["label"]
        assert file["target/labels"][()].tolist() == [1, 1, 2, 2, 0, 0]
        pixels = np.rint(255 * file["target/features"][:, 0]).astype(int)
    assert pixels.tolist() == [0, 5, 10, 15, 20, 25]
