"""Draws of rows to be labelled, as a file keeps them, apart from the labels of evaluate."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from covcal_cli.errors import CovcalError
from covcal_cli.formats.features import FeatureFile
from covcal_cli.labels.draws import HIDDEN_LABEL, NO_DRAW, Batch, Draw, read_draw
from covcal_cli.labels.picked_labels import draw_with_labels, labelled_draw
from tests.made_files import edited, put_in, write_features

SPLITS = ("train", "validation")
DRAW = Draw(
    rows=np.array([3, 5, 310, 799]),
    inclusion=np.array([0.25, 1.0, 0.5, 0.125]),
    batch=np.array([0, 1, 0, 0]),
    stratum=np.array([2, 0, 0, 1]),
    labels=np.array([2, 0, 1, 1]),
    batches=(Batch(3, 800, 7, SPLITS, "confidence"), Batch(1, 797, 8, SPLITS, "another")),
)


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    path = write_features(tmp_path / "features.h5")
    put_in(path, DRAW)
    return path


def test_a_draw_is_read_as_it_was_written(marked: Path) -> None:
    with FeatureFile(marked) as file:
        drawn, labelled = draw_with_labels(file), labelled_draw(file)
    assert labelled is not None
    for name in ("rows", "inclusion", "batch", "stratum", "labels"):
        assert getattr(drawn, name).tolist() == getattr(DRAW, name).tolist()
        assert getattr(labelled, name).tolist() == getattr(DRAW, name).tolist()
    assert drawn.batches == labelled.batches == DRAW.batches
    assert labelled.frame.tolist() == list(range(800))
    assert (labelled.population, labelled.seed, labelled.notes) == (800, 7, ())


def test_only_one_reader_gives_out_the_labels(marked: Path) -> None:
    """Other code sees which rows have a label, and cannot store a draw without labels."""
    with FeatureFile(marked) as file:
        drawn = read_draw(file)
    assert drawn.labels.tolist() == [HIDDEN_LABEL] * 4
    assert drawn.labelled.all()
    with pytest.raises(ValueError, match="hidden"):
        put_in(marked, drawn)
    with FeatureFile(marked) as file:
        assert draw_with_labels(file).labels.tolist() == DRAW.labels.tolist()


def test_a_file_without_a_draw_has_none(tmp_path: Path) -> None:
    with FeatureFile(write_features(tmp_path / "features.h5")) as file:
        assert read_draw(file) is NO_DRAW
        assert labelled_draw(file) is None


def test_rows_without_a_label_scale_the_others_of_their_batch(tmp_path: Path) -> None:
    """If two of three rows are labelled, they also stand for the third, and a note says so."""
    path = write_features(tmp_path / "features.h5")
    put_in(path, replace(DRAW, labels=np.array([2, 0, -1, 1])))
    with FeatureFile(path) as file:
        draw = labelled_draw(file)
    assert draw is not None
    assert draw.rows.tolist() == [3, 5, 799]
    assert draw.inclusion == pytest.approx([0.25 * 2 / 3, 1.0, 0.125 * 2 / 3])
    assert draw.notes[0].startswith("1 of the rows that covcal pick drew have no label yet")


@pytest.mark.parametrize(
    ("name", "place", "value", "said"),
    [
        ("rows", 3, 5, "or occurs twice"),
        ("rows", 3, 1000, "does not exist in the target"),
        ("inclusion", 0, 0.0, "an inclusion probability is not between 0 and 1"),
        ("inclusion", 0, np.nan, "an inclusion probability is not between 0 and 1"),
        ("batch", 0, 2, "belongs to a batch that does not exist"),
        ("batch", 0, 1, "rows of a batch are missing"),
        ("stratum", 0, 1, "rows of a batch are missing"),
        ("batches/population", 1, 800, "a batch stores a wrong number of target rows"),
        ("batches/splits", 1, b"test", "a split that does not exist"),
        ("labels", 0, 3, "a stored label is not a class"),
        ("stratum", None, None, "stratum is missing"),
        ("batches/seed", None, None, "batches/seed is missing"),
    ],
)
def test_a_damaged_draw_is_one_line(
    marked: Path, name: str, place: int | None, value: object, said: str
) -> None:
    with edited(marked) as file:
        if place is None:
            del file[f"marked/{name}"]
        else:
            file[f"marked/{name}"][place] = value
    with FeatureFile(marked) as file, pytest.raises(CovcalError, match=said) as caught:
        labelled_draw(file)
    assert "covcal label" in str(caught.value)
