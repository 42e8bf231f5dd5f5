"""Marks: rows drawn to be labelled, as a file keeps them, apart from the labels of evaluate."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from covcal_cli.errors import CovcalError
from covcal_cli.formats.features import FeatureFile
from covcal_cli.labels.draws import NO_MARKS, Batch, Marks, frame_rows, read_marks
from covcal_cli.labels.picked_labels import marked_rows
from tests.made_files import mark, write_features

SPLITS = ("train", "validation")
MARKS = Marks(
    rows=np.array([3, 5, 310, 799]),
    inclusion=np.array([0.25, 1.0, 0.5, 0.125]),
    batch=np.array([0, 1, 0, 0]),
    stratum=np.array([2, 0, 0, 1]),
    labelled=np.array([True, True, True, True]),
    batches=(Batch(3, 800, 7, SPLITS, "confidence"), Batch(1, 797, 8, SPLITS, "another")),
)
LABELS = np.array([2, 0, 1, 1])


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    path = write_features(tmp_path / "features.h5")
    mark(path, MARKS, LABELS)
    return path


def test_marks_are_read_as_they_were_written(marked: Path) -> None:
    with FeatureFile(marked) as file:
        found, rows = read_marks(file), marked_rows(file)
        left = found.left(file.require_target(), 1)
        frame = frame_rows(file.require_target(), SPLITS)
    for name in ("rows", "inclusion", "batch", "stratum", "labelled"):
        assert getattr(found, name).tolist() == getattr(MARKS, name).tolist()
    assert found.batches == MARKS.batches
    assert rows is not None
    assert rows.labels.tolist() == LABELS.tolist()
    assert rows.inclusion.tolist() == MARKS.inclusion.tolist()
    assert rows.incomplete == 0
    assert frame.tolist() == list(range(800))
    assert sorted({*frame.tolist()} - {*left.tolist()}) == [3, 310, 799]


def test_a_file_without_marks_has_none(tmp_path: Path) -> None:
    with FeatureFile(write_features(tmp_path / "features.h5")) as file:
        assert read_marks(file) is NO_MARKS
        assert marked_rows(file) is None


def test_rows_without_a_label_scale_the_others_of_their_batch(tmp_path: Path) -> None:
    """Two of three labelled: they stand for the third as well, and the file says so."""
    path = write_features(tmp_path / "features.h5")
    mark(path, MARKS, np.array([2, 0, -1, 1]))
    with FeatureFile(path) as file:
        rows = marked_rows(file)
    assert rows is not None
    assert rows.rows.tolist() == [3, 5, 799]
    assert rows.inclusion == pytest.approx([0.25 * 2 / 3, 1.0, 0.125 * 2 / 3])
    assert rows.incomplete == 1


@pytest.mark.parametrize(
    ("name", "place", "value", "said"),
    [
        ("rows", 3, 5, "or of one twice"),
        ("rows", 3, 1000, "the target does not have"),
        ("inclusion", 0, 0.0, "an inclusion probability that is none"),
        ("inclusion", 0, np.nan, "an inclusion probability that is none"),
        ("batch", 0, 2, "a batch that is not there"),
        ("batch", 0, 1, "not of all rows of a batch"),
        ("stratum", 0, 1, "not of all rows of a batch"),
        ("batches/population", 1, 800, "another number of rows"),
        ("batches/splits", 1, b"test", "other splits"),
        ("labels", 0, 3, "a label that is no class"),
        ("stratum", None, None, "lack stratum"),
        ("batches/seed", None, None, "lack batches/seed"),
    ],
)
def test_damaged_marks_are_one_line(
    marked: Path, name: str, place: int | None, value: object, said: str
) -> None:
    with h5py.File(marked, "r+") as file:
        if place is None:
            del file[f"marked/{name}"]
        else:
            file[f"marked/{name}"][place] = value
    with FeatureFile(marked) as file, pytest.raises(CovcalError, match=said) as caught:
        marked_rows(file)
    assert "covcal label" in str(caught.value)
