"""The curve of ECE and accuracy against labels: what it must do at either end, and resuming."""

from pathlib import Path

import numpy as np
import pytest
from benchmark import label_curve
from benchmark.families import Case
from benchmark.label_curve import (
    LABELLED,
    MATCHED,
    METHODS,
    RANDOM,
    TRUE,
    Point,
    by_shift,
    markdown,
    over_shifts,
    points_of,
)

from tests.made_files import made_domain, write_features

NUMBERS = 0, 20, 500


def write_made(path: Path, seed: int) -> None:
    write_features(path, target=made_domain("target", sizes=(100, 60, 300), shift=1.0 + seed))


@pytest.fixture(autouse=True)
def numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_curve, "NUMBERS", NUMBERS)


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> list[Point]:
    folder = tmp_path_factory.mktemp("curve")
    case = Case("made", "near", "choose", make=write_made, redrawn=True)

    def found() -> list[Point]:
        return list(points_of(case, folder, seeds=2, draws=3, adapting=False))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(label_curve, "NUMBERS", NUMBERS)
        first = found()
        patch.setattr(label_curve, "curve", None)  # a shift with records is not run again
        assert found() == first
    return first


def test_both_ends_of_the_curve(points: list[Point]) -> None:
    """No label leaves what auto does; all rows leave no error of the accuracy."""
    none, few, every = ([point for point in points if point.labels == number] for number in NUMBERS)
    assert len(none) == len(few) == len(every) == 2
    for point in none:
        assert set(point.ece) == {LABELLED, TRUE}
        assert point.covered is None
    for point in few:
        assert set(point.ece) == set(METHODS)
        assert point.width is not None
        assert 0 < point.width < 0.6
    for point in every:
        assert point.error[MATCHED] == pytest.approx(0, abs=1e-12)
        assert point.error[LABELLED] < 0.02
        assert (point.covered, point.width) == (1, 0)
        assert point.ece[MATCHED] == pytest.approx(point.ece[TRUE], abs=0.01)
    # Neither fit to 160 rows is far from the other's ECE, nor from what the accuracy allows.
    for name in (RANDOM, LABELLED):
        found, before = (over_shifts(points, "ece", n, LABELLED) for n in (500, 0))
        assert found is not None
        assert before is not None
        assert found < before
        assert over_shifts(points, "ece", 500, name) == pytest.approx(
            np.mean([point.ece[name] for point in every])
        )


def test_seeds_are_averaged_before_shifts(points: list[Point]) -> None:
    other = [Point("made", "far", "choose", 20, {RANDOM: 0.5}, {})]
    found = by_shift([*points, *other], "ece", 20, RANDOM)
    first = [point.ece[RANDOM] for point in points if point.labels == 20]
    assert found == {"made near": pytest.approx(np.mean(first)), "made far": 0.5}
    mean = over_shifts([*points, *other], "ece", 20, RANDOM)
    assert mean == pytest.approx((np.mean(first) + 0.5) / 2)


def test_the_table_has_every_number(points: list[Point]) -> None:
    text = markdown(points)
    assert text.startswith("## choose: 1 shifts")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == "| number of labels | 0 | 20 | 500 |"
    assert {line.count("|") for line in rows} == {5}
    assert f"| ECE in %, {METHODS[RANDOM]} | - |" in text
