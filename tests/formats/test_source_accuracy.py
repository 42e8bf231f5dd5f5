"""The accuracy on unseen source rows: which rows count, and what chance or noise explains."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from covcal_cli.formats.features import FeatureFile
from covcal_cli.formats.source_accuracy import SourceAccuracy, source_accuracy
from tests.made_files import made_domain, write_features


def drawn(accuracy: float, classes: int, rows: int) -> SourceAccuracy:
    """Draw labels of equal classes, and predictions that are right with a given probability."""
    rng = np.random.default_rng(3)
    labels = rng.integers(classes, size=rows)
    wrong = (labels + rng.integers(1, classes, size=rows)) % classes
    predictions = np.where(rng.random(rows) < accuracy, labels, wrong)
    found = SourceAccuracy.of(labels, predictions, classes)
    assert found is not None
    return found


def test_labelled_validation_and_test_rows_count(tmp_path: Path) -> None:
    domain = made_domain("source")
    domain["labels"][::7] = -1
    path = write_features(tmp_path / "f.h5", source=domain, target=made_domain("target"))
    with FeatureFile(path) as file:
        found = source_accuracy(file)
    counts = (domain["split"] > 0) & (domain["labels"] >= 0)
    right = domain["logits"].argmax(axis=1) == domain["labels"]
    assert found is not None
    assert (found.rows, found.right) == (counts.sum(), right[counts].sum())


@pytest.mark.parametrize("splits", [(0, 0, 0), (1, 2, -1)])
def test_there_is_none_without_unseen_labels(splits: tuple[int, int, int], tmp_path: Path) -> None:
    """Where all rows are training rows, or none of the others has a label."""
    domain = made_domain("source")
    if splits[2] < 0:
        domain["labels"][domain["split"] > 0] = -1
    else:
        domain["split"][:] = 0
    path = write_features(tmp_path / "f.h5", source=domain, target=made_domain("target"))
    with FeatureFile(path) as file:
        assert source_accuracy(file) is None


@pytest.mark.parametrize(
    ("accuracy", "classes", "words"),
    [
        (0.10, 10, "no better than guessing"),
        (0.15, 10, "little better than guessing"),
        (0.25, 10, "little better than guessing"),
        (0.55, 2, "little better than guessing"),
        (0.63, 10, None),
        (0.96, 10, None),
        (0.75, 2, None),
        (0.25, 1000, None),
    ],
)
def test_an_accuracy_near_chance_is_doubted(
    accuracy: float, classes: int, words: str | None
) -> None:
    doubt = drawn(accuracy, classes, 4000).doubt
    assert doubt is None if words is None else words in (doubt or "")


def test_few_rows_are_not_doubted() -> None:
    assert drawn(0.1, 10, 49).doubt is None


@pytest.mark.parametrize("rows", [1, 20, 479, 20_000])
@pytest.mark.parametrize("expected", [0.05, 0.5, 0.96, 0.999])
def test_what_noise_explains_is_the_exact_tail(rows: int, expected: float) -> None:
    """Against SciPy's binomial distribution, at every number of hits near the edge."""
    edge = int(binom.ppf(0.01, rows, expected))
    for right in range(max(0, edge - 30), min(rows, edge + 30) + 1):
        below = SourceAccuracy(rows, right, 0.1).is_below(expected)
        assert below == (right < expected * rows and binom.cdf(right, rows, expected) < 0.01)


def test_an_expectation_of_every_row_allows_no_error() -> None:
    assert SourceAccuracy(100, 99, 0.1).is_below(1.0)
    assert not SourceAccuracy(100, 100, 0.1).is_below(1.0)
    assert not SourceAccuracy(100, 0, 0.1).is_below(0.0)
