"""covcal's errors of calibration against the packages that people compare them with."""

import sys
import types
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from covcal_cli.evaluate.bins import ClasswiseBins, debiased_ece
from covcal_cli.evaluate.ranked import adaptive_bins, smooth_ece
from tests.evaluate.made_bins import binned, ranked

pytestmark = [
    pytest.mark.real,
    pytest.mark.filterwarnings("ignore"),  # of packages that are not ours
]

Floats = NDArray[np.float64]
CASES = [(0, 300, 0.0), (1, 5000, 0.05), (2, 5000, -0.04), (3, 100_000, 0.004), (4, 2000, 0.3)]


def made_rows(seed: int, n: int, gap: float) -> tuple[Floats, NDArray[np.int64]]:
    """Return confidences that float32 holds exactly, and 0 or 1 for each."""
    rng = np.random.default_rng(seed)
    confidence = rng.beta(5, 1.2, size=n).astype(np.float32).astype(np.float64)
    return confidence, (rng.random(n) < np.clip(confidence - gap, 0, 1)).astype(np.int64)


@pytest.fixture
def netcal(monkeypatch: pytest.MonkeyPatch) -> Any:
    """netcal's metrics; its other parts load training packages that they do not use."""
    for name in ("netcal.scaling", "netcal.regression", "netcal.presentation"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    return pytest.importorskip("netcal.metrics")


@pytest.mark.parametrize(("seed", "n", "gap"), CASES)
def test_smooth_ece_equals_relplot(seed: int, n: int, gap: float) -> None:
    """smECE of Blasiok & Nakkiran, by the authors' package, which halves rows at the very ends."""
    relplot = pytest.importorskip("relplot")
    confidence, correct = made_rows(seed, n, gap)
    confidence = np.clip(confidence, 0.001, 0.999)
    expected = relplot.smECE(confidence, correct.astype(float))
    assert smooth_ece(ranked(confidence, correct == 1)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("seed", "n", "gap"), CASES)
def test_debiased_ece_equals_uncertainty_calibration(
    seed: int, n: int, gap: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kumar et al.'s own code, with evenly spread quantiles instead of random normals.

    The code averages over a thousand draws; with the quantiles, it gives the expectation itself.
    """
    calibration = pytest.importorskip("calibration.utils")
    scipy_stats = pytest.importorskip("scipy.stats")
    confidence, correct = made_rows(seed, n, gap)
    confidence = np.clip(confidence, 0.36, 1)  # it refuses bins of fewer than two rows
    bins = [number / 15 for number in range(1, 16)]
    data = np.column_stack([confidence, correct])
    filled = [rows for rows in calibration.fast_bin(data, bins) if len(rows) > 1]
    draws = 40_001
    normals = iter(scipy_stats.norm.ppf((np.arange(draws) + 0.5) / draws))
    monkeypatch.setattr(
        calibration.np.random, "normal", lambda loc, scale: loc + scale * next(normals)
    )
    expected = calibration.normal_debiased_ce(filled, power=1, resamples=draws)
    kept = np.concatenate(filled)
    assert debiased_ece(binned(kept[:, 0], kept[:, 1] == 1)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("seed", "n", "gap"), CASES)
def test_adaptive_ece_equals_netcal(seed: int, n: int, gap: float, netcal: Any) -> None:
    """netcal's ECE in bins of equal mass."""
    confidence, correct = made_rows(seed, n, gap)
    expected = netcal.ECE(15, equal_intervals=False).measure(confidence, correct)
    found = adaptive_bins(ranked(confidence, correct == 1), 15).ece()
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_classwise_ece_equals_netcal(seed: int, netcal: Any) -> None:
    """The mean over classes of netcal's binary ECE of each class's probability."""
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet([0.4, 0.3, 0.5, 0.2, 0.6], size=4000)
    labels = np.array([rng.choice(5, p=row**1.2 / (row**1.2).sum()) for row in probabilities])
    expected = np.mean(
        [
            netcal.ECE(15).measure(probabilities[:, number], (labels == number).astype(int))
            for number in range(5)
        ]
    )
    counted = ClasswiseBins(15, 5)
    of_labels = probabilities[np.arange(len(labels)), labels]
    counted.add(np.ascontiguousarray(probabilities.T), labels, of_labels, 0.0)
    assert counted.ece() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("seed", "n", "gap"), CASES)
def test_ece_and_its_maximum_equal_netcal(seed: int, n: int, gap: float, netcal: Any) -> None:
    """netcal's ECE and MCE in bins of equal width."""
    confidence, correct = made_rows(seed, n, gap)
    counted = binned(confidence, correct == 1)
    expected = netcal.ECE(15).measure(confidence, correct)
    assert counted.ece() == pytest.approx(expected, abs=1e-6)
    assert counted.mce() == pytest.approx(netcal.MCE(15).measure(confidence, correct), abs=1e-6)
