"""The accuracy on unseen source rows: which rows count, and what chance or noise explains."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.metrics import roc_auc_score

from covcal_cli.forecast import source_accuracy
from covcal_cli.formats.calibration import read_calibration
from covcal_cli.formats.features import FeatureFile
from covcal_cli.maths.source_accuracy import SourceAccuracy, mean_auroc
from covcal_cli.records import write_document
from tests.cli_runner import covcal
from tests.made_files import made_domain, write_features


def drawn(accuracy: float, classes: int, rows: int) -> SourceAccuracy:
    """Draw labels of equal classes, and predictions that are right with a given probability."""
    rng = np.random.default_rng(3)
    labels = rng.integers(classes, size=rows)
    wrong = (labels + rng.integers(1, classes, size=rows)) % classes
    predictions = np.where(rng.random(rows) < accuracy, labels, wrong)
    accuracy_of_them = SourceAccuracy.of(labels, predictions, list(map(str, range(classes))))
    assert accuracy_of_them is not None
    return accuracy_of_them


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
        (0.10, 10, "no better than always answering"),
        (0.16, 10, "little better than always answering"),
        (0.25, 10, "little better than always answering"),
        (0.55, 2, "little better than always answering"),
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


def imbalanced(skill: float, classes: int, share: float = 0.95) -> SourceAccuracy:
    """Return the accuracy of a classifier that answers the majority nearly always.

    `skill` is how far its logit of a row's own class lies above chance.
    """
    rng = np.random.default_rng(5)
    labels = np.where(rng.random(3000) < share, 0, rng.integers(1, classes, 3000))
    logits = rng.normal(size=(3000, classes)) + 6 * (np.arange(classes) == 0)
    logits[np.arange(3000), labels] += skill
    names = ["other", *(f"c{index}" for index in range(1, classes))]
    accuracy = SourceAccuracy.of(labels, logits.argmax(axis=1), names, lambda rows: logits[rows])
    assert accuracy is not None
    return accuracy


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("share", [0.95, 0.6])
def test_an_imbalanced_table_is_doubted_only_without_skill(classes: int, share: float) -> None:
    """The accuracy is that of the majority class either way; only the ranking tells them apart."""
    skilled = imbalanced(2.0, classes, share=share)
    assert skilled.doubt is None
    # calibrate and estimate then say how little the accuracy shows.
    assert ("better than always answering other (94.5 %)" in (skilled.imbalance or "")) == (
        share > 0.9
    )
    assert imbalanced(0.0, classes, share=share).imbalance is None
    doubt = imbalanced(0.0, classes, share=share).doubt or ""
    assert "no better than always answering other (" in doubt
    assert "; the AUROC is 0.5" in doubt or "; the AUROC is 0.4" in doubt


def test_skill_excuses_no_balanced_table() -> None:
    """A balanced model that is read wrongly may still rank a little better than chance."""
    assert imbalanced(1.0, 2, share=0.5).doubt is not None


@pytest.mark.parametrize("classes", [2, 4])
def test_auroc_is_that_of_scikit_learn(classes: int) -> None:
    rng = np.random.default_rng(classes)
    labels, logits = rng.integers(0, classes, 500), rng.normal(size=(500, classes))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = (
        roc_auc_score(labels, shares[:, 1])
        if classes == 2
        else roc_auc_score(labels, shares, multi_class="ovr")
    )
    assert mean_auroc(labels, logits) == pytest.approx(expected, abs=1e-6)
    assert mean_auroc(np.zeros(500, dtype=np.int64), logits) is None


def test_the_warning_is_the_same_from_the_file(tmp_path: Path) -> None:
    """Calibrate, report and export read it from features.h5 or cal.json, not from extract."""
    domain = made_domain("source")
    domain["labels"] = 2 - domain["labels"]
    path = write_features(tmp_path / "f.h5", source=domain, target=made_domain("target"))
    with FeatureFile(path) as file:
        accuracy = source_accuracy(file)
    assert accuracy is not None
    assert "class 2 and class 0 seem exchanged" in str(accuracy.class_order)
    covcal("calibrate", path, "--force", "-o", "cal.json", cwd=tmp_path).require_success()
    stored = read_calibration(tmp_path / "cal.json").source_accuracy
    assert stored == accuracy


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


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every kind of file that holds the accuracy; not to be changed."""
    folder = tmp_path_factory.mktemp("documents")
    features = write_features(folder.with_suffix(".h5"))
    covcal("calibrate", features, "--method", "temp", "-o", folder / "cal.json").require_success()
    covcal("estimate", features, "-o", folder / "estimate.json").require_success()
    return folder


@pytest.mark.parametrize(
    ("name", "value"), [("rows", 0), ("rows", 10), ("right", -1), ("chance", 1.5), ("chance", -1)]
)
def test_one_that_no_rows_can_have_is_damaged(
    name: str, value: float, documents: Path, tmp_path: Path
) -> None:
    """In every file that holds one: it divides by the rows."""
    for path in documents.iterdir():
        document = json.loads(path.read_text())
        document["source_accuracy"] |= {"rows": 100, "right": 50, "chance": 0.3, name: value}
        write_document(document, tmp_path / path.name, force=False)
        line = covcal("inspect", path.name, cwd=tmp_path).error_line()
        assert line.startswith(f"{path.name} is damaged (source_accuracy: ")


@pytest.mark.parametrize("classes", [3, 10])
def test_negated_outputs_are_no_wrong_order(classes: int) -> None:
    """Distances or energies are largest for the wrong classes; exchanged classes are not."""
    rng = np.random.default_rng(classes)
    labels = rng.integers(0, classes, 900)
    logits = rng.normal(size=(900, classes))
    logits[np.arange(900), labels] += 3
    for values, order, words in (
        (-logits, labels, "the outputs are negated"),
        (logits, (labels + 1) % classes, "in another order"),
    ):
        accuracy = SourceAccuracy.of(
            order, values.argmax(axis=1), [*map(str, range(classes))], values.__getitem__
        )
        assert accuracy is not None
        assert words in str(accuracy.doubt)
        assert accuracy.doubt == accuracy.class_order
