"""covcal against scikit-learn and SciPy: temperature, metrics, AUC and the discriminator."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import log_softmax as reference
from scipy.special import logsumexp
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from covcal_cli.calibrate.problem import LogisticDiscriminator, fit_discriminator
from covcal_cli.evaluate.metrics import LabelledRows, MetricsAccumulator
from covcal_cli.formats.features import FeatureFile
from covcal_cli.maths.softmax import class_major, log_mean_softmax, log_softmax, softmax
from covcal_cli.maths.temperature import fit_temperature
from covcal_cli.maths.weights import importance_weights
from tests.made_files import Arrays, made_domain, write_features

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


def made_rows(optimum: float, n: int = 2000, classes: int = 4) -> tuple[Floats, Labels, Floats]:
    rng = np.random.default_rng(int(10 * optimum))
    truth = 1.5 * rng.normal(size=(n, classes))
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)
    return optimum * truth, labels, rng.exponential(size=n) ** 2


def sklearn_temperature(logits: Floats, labels: Labels, weights: Floats | None) -> float:
    """Return T of scikit-learn's public temperature scaling, of a classifier with given logits."""
    classes = logits.shape[1]
    passes_on = LogisticRegression().fit(np.eye(classes), np.arange(classes))
    passes_on.coef_, passes_on.intercept_ = np.eye(classes), np.zeros(classes)
    calibrated = CalibratedClassifierCV(FrozenEstimator(passes_on), method="temperature")
    calibrated.fit(logits, labels, sample_weight=weights)
    return 1 / float(calibrated.calibrated_classifiers_[0].calibrators[0].beta_)


@pytest.mark.filterwarnings("ignore:Since FrozenEstimator does not appear")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("optimum", [0.05, 0.5, 2.0, 20.0, 100.0])
def test_the_nll_temperature_equals_scikit_learns(optimum: float, weighted: bool) -> None:
    """The negative log-likelihood has one minimum, and both find it, with sample weights too."""
    logits, labels, weights = made_rows(optimum)
    fit = fit_temperature(logits, labels, weights if weighted else None, loss="nll")
    expected = sklearn_temperature(logits, labels, weights if weighted else None)
    assert fit.temperature == pytest.approx(expected, rel=1e-4)
    assert fit.local_minima == 1


def test_nll_and_brier_equal_scikit_learns() -> None:
    """NLL is log_loss, the multi-class Brier score is brier_score_loss."""
    logits, labels, _ = made_rows(2.0)
    logs = log_softmax(class_major(logits), 1.5)
    accumulator = MetricsAccumulator(15, 4)
    accumulator.add(softmax(class_major(logits), 1.5), LabelledRows(logits.argmax(axis=1), labels))
    found = accumulator.result()
    p = np.exp(logs.T)
    p /= p.sum(axis=1, keepdims=True)
    assert found.nll == pytest.approx(log_loss(labels, p), rel=1e-6)
    expected = brier_score_loss(labels, p, labels=range(4), scale_by_half=False)
    assert found.brier == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("decimals", [1, 9])
def test_the_scores_of_correctness_equal_scikit_learns(decimals: int) -> None:
    """Brier score, log loss and AUROC of the confidence as a forecast of being right."""
    logits, labels, _ = made_rows(2.0)
    logits = np.round(logits, decimals)
    predictions = logits.argmax(axis=1)
    accumulator = MetricsAccumulator(15, 4)
    for rows in np.array_split(np.arange(len(labels)), 3):
        accumulator.add(
            softmax(class_major(logits[rows]), 1.5), LabelledRows(predictions[rows], labels[rows])
        )
    found = accumulator.result()
    confidence = np.exp(reference(logits / 1.5, axis=1)).max(axis=1)
    right = predictions == labels
    assert found.correctness_brier == pytest.approx(brier_score_loss(right, confidence), rel=1e-6)
    assert found.correctness_nll == pytest.approx(log_loss(right, confidence), rel=1e-6)
    # Ranked as float32, whose rounding makes ties.
    area = roc_auc_score(right, np.float32(np.round(confidence, 6)))
    assert found.correctness_auroc == pytest.approx(area, abs=1e-5)


def test_the_domain_auc_equals_scikit_learns() -> None:
    """The AUC of source against target rows, with ties, equals roc_auc_score."""
    rng = np.random.default_rng(0)
    source = np.round(rng.normal(size=300) + 0.7, 1)
    target = np.round(rng.normal(size=200), 1)
    health = importance_weights(source[None], target[None]).health
    is_source = np.repeat([1, 0], [300, 200])
    expected = roc_auc_score(is_source, np.concatenate([source, target]))
    assert health.domain_auc == pytest.approx(expected)


def test_softmax_arithmetic_equals_scipys() -> None:
    """log_softmax and the members' log-mean-softmax equal SciPy's float64 to 1e-6."""
    members = 30 * np.random.default_rng(0).normal(size=(3, 50, 5))
    for temperature in (0.1, 1.0, 70.0):
        expected = reference(members[0] / temperature, axis=1)
        found = log_softmax(class_major(members[0]), temperature)
        assert found == pytest.approx(expected.T, rel=1e-6, abs=1e-6)
    mean = logsumexp(reference(members, axis=2), axis=0) - np.log(3)
    assert log_mean_softmax(members) == pytest.approx(mean.T, rel=1e-6, abs=1e-6)


def both_discriminators(
    path: Path, source: Arrays, target: Arrays, ridge: float
) -> tuple[LogisticDiscriminator, Floats, float]:
    """Return covcal's, and scikit-learn's coefficients and intercept on the same standardisation.

    Sample weights 1/(2 n_domain), C = 1/ridge.
    """
    write_features(path, source=source, target=target)
    with FeatureFile(path) as file:
        ours = fit_discriminator(file.require_source(), file.require_target())
    parts = [domain["features"][domain["split"] == 0] for domain in (source, target)]
    sizes = [len(part) for part in parts]
    inputs = (np.concatenate(parts).astype(np.float64) - ours.mean) / ours.scale
    theirs = LogisticRegression(C=1 / ridge, tol=1e-12, solver="newton-cholesky", max_iter=1000)
    theirs.fit(inputs, np.repeat([1, 0], sizes), np.repeat([0.5 / size for size in sizes], sizes))
    return ours, theirs.coef_[0], float(theirs.intercept_[0])


@pytest.mark.parametrize(
    ("sizes", "shift", "ridge"),
    [
        *(((400, 400), 0.0, 1e-3), ((400, 400), 8.0, 1e-4), ((400, 400), 1.0, 1.0)),
        *(((2000, 12), 1.0, 1e-4), ((2000, 12), 8.0, 1e-3), ((15, 2000), 0.0, 1.0)),
        *(((15, 2000), 1.0, 1e-3), ((15, 2000), 8.0, 1e-4)),
    ],
)
def test_the_discriminator_equals_scikit_learns(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sizes: tuple[int, int],
    shift: float,
    ridge: float,
) -> None:
    """Coefficients and intercept agree: balanced and imbalanced, without shift and separable."""
    source = made_domain("source", sizes=(sizes[0], 5, 0))
    target = made_domain("target", sizes=(sizes[1], 5, 0), shift=shift)
    monkeypatch.setattr("covcal_cli.maths.weights.RIDGE", ridge)
    ours, coefficients, intercept = both_discriminators(tmp_path / "f.h5", source, target, ridge)
    assert ours.coefficients == pytest.approx(coefficients, rel=1e-4, abs=1e-5)
    assert ours.intercept == pytest.approx(intercept, rel=1e-4, abs=1e-5)


def test_the_discriminator_equals_scikit_learns_on_odd_features(tmp_path: Path) -> None:
    """Both fits agree with a constant feature, a large offset, equal features and unequal units."""
    source = made_domain("source", sizes=(500, 5, 0), width=6)
    target = made_domain("target", sizes=(200, 5, 0), width=6, shift=1.0)
    for domain in (source, target):
        domain["features"][:, 1] = 4.0
        domain["features"][:, 2] += np.float32(1000)
        domain["features"][:, 3] = domain["features"][:, 0]
        domain["features"][:, 4] *= np.float32(1e5)
    ours, coefficients, intercept = both_discriminators(tmp_path / "f.h5", source, target, 1e-3)
    assert ours.coefficients == pytest.approx(coefficients, rel=1e-4, abs=1e-5)
    assert ours.intercept == pytest.approx(intercept, rel=1e-4, abs=1e-5)
    assert ours.coefficients[1] == 0
