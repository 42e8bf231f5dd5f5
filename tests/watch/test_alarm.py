"""The alarm: its formula, its rate of false alarms, and how soon it is raised."""

import math

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from covcal_cli.arrays import Float64s
from covcal_cli.watch.verdict import alarm

THRESHOLD = 52 / 0.05
VARIANCE = np.full(2, 1 / 12)


def evidence(rows: Float64s, means: Float64s, kept: Float64s, variances: Float64s) -> float:
    """R by its definition, one start, signal and size at a time, as a ratio of densities."""
    total = 0.0
    for start in range(len(rows)):
        bets = []
        for signal in range(rows.shape[1]):
            n = rows[:, signal]
            before, after = kept[signal] + n[:start].sum(), n[start:].sum()
            if after == 0:
                bets.append(1.0)
                continue
            sums = n * means[:, signal]
            difference = sums[start:].sum() / after - sums[:start].sum() / before
            noise = variances[signal] * (1 / before + 1 / after)
            for_size = [
                norm.pdf(difference, scale=math.sqrt(noise + size**2 * variances[signal]))
                / norm.pdf(difference, scale=math.sqrt(noise))
                for size in (0.05, 0.15, 0.5, 1.5)
            ]
            bets.append(float(np.mean(for_size)))
        total += float(np.mean(bets))
    return total


@pytest.mark.parametrize("periods", [1, 2, 7])
def test_the_evidence_is_the_sum_of_the_bets(periods: int) -> None:
    rng = np.random.default_rng(periods)
    rows = rng.integers(20, 90, size=(periods, 3)).astype(np.float64)
    rows[-1, 2] = 0  # a signal that the last period lacks
    means = 0.03 * rng.normal(size=rows.shape)
    kept, variances = np.array([150.0, 300.0, 80.0]), np.array([0.08, 0.05, 0.083])
    found = alarm(rows, means, kept, variances, THRESHOLD)
    assert found.log_evidence == pytest.approx(math.log(evidence(rows, means, kept, variances)))
    assert found.log_threshold == pytest.approx(math.log(1040))


def test_signals_that_are_bet_on_together() -> None:
    """As a ratio of densities of the whole vector, correlated as the reference's ranks are."""
    rng = np.random.default_rng(5)
    correlations = np.array([[1.0, 0.6, 0.1], [0.6, 1.0, -0.3], [0.1, -0.3, 1.0]])
    joint = np.linalg.inv(np.linalg.cholesky(correlations))
    rows, means = np.full((3, 4), 70.0), 0.03 * rng.normal(size=(3, 4))
    kept, variances = np.full(4, 200.0), np.array([0.08, 0.05, 0.083, 0.07])
    covariance = correlations * np.sqrt(np.outer(variances[1:], variances[1:]))
    total = 0.0
    for start in range(3):
        before, after = 200 + 70 * start, 70 * (3 - start)
        sums = 70 * means
        difference = sums[start:].sum(axis=0) / after - sums[:start].sum(axis=0) / before
        noise = 1 / before + 1 / after
        alone, together = [], []
        for size in (0.05, 0.15, 0.5, 1.5):
            spreads = (noise + size**2, noise)
            one, usual = (norm.pdf(difference[0], scale=(v * variances[0]) ** 0.5) for v in spreads)
            alone.append(one / usual)
            one, usual = (
                multivariate_normal.pdf(difference[1:], cov=v * covariance) for v in spreads
            )
            together.append(one / usual)
        total += float(np.mean(alone) + np.mean(together)) / 2
    found = alarm(rows, means, kept, variances, THRESHOLD, joint)
    assert found.log_evidence == pytest.approx(math.log(total))


def year(n: int, kept: int, moved: float, start: int, rng: np.random.Generator) -> int | None:
    """Return the week of the first alarm in a year of weeks of two numbers per row.

    The reference is a sample too, whose error all weeks share.
    """
    reference = np.sort(rng.normal(size=(kept, 2)), axis=0)
    rows, means = [], []
    for week in range(52):
        values = rng.normal(size=(n, 2)) + moved * (week >= start)
        columns = zip(values.T, reference.T, strict=True)
        ranks = [np.searchsorted(own, column).mean() / kept for column, own in columns]
        rows.append(np.full(2, float(n)))
        means.append(np.array(ranks) - 0.5)
        counts = np.full(2, float(kept))
        if alarm(np.array(rows), np.array(means), counts, VARIANCE, THRESHOLD).raised:
            return week
    return None


@pytest.mark.parametrize(("n", "kept"), [(56, 100), (250, 60)])
def test_false_alarms_are_as_rare_as_promised(n: int, kept: int) -> None:
    """At most 5 % of years and two standard errors, though the reference is small beside a year."""
    rng = np.random.default_rng(n)
    false = sum(year(n, kept, 0.0, 0, rng) is not None for _ in range(10))
    assert false <= 10 * 0.05 + 2 * math.sqrt(10 * 0.05 * 0.95)


def test_a_change_is_seen_and_when_it_began() -> None:
    rng = np.random.default_rng(0)
    weeks = [year(100, 400, 0.5, 10, rng) for _ in range(3)]
    assert all(week is not None and 10 <= week <= 13 for week in weeks)
    rows = np.full((6, 2), 200.0)
    means = np.zeros((6, 2))
    means[4:, 1] = 0.15
    found = alarm(rows, means, np.full(2, 500.0), VARIANCE, THRESHOLD)
    assert (found.raised, found.start, found.signal) == (True, 4, 1)


def test_a_difference_within_the_references_own_noise_is_none_however_long_it_stays() -> None:
    """Two standard errors of a reference of 100 rows, over 500 weeks of 1000."""
    off = 2 * math.sqrt(1 / 12 / 100)
    rows, means = np.full((500, 1), 1000.0), np.full((500, 1), off)
    assert not alarm(rows, means, np.array([100.0]), VARIANCE[:1], THRESHOLD).raised


def test_evidence_beyond_the_largest_float_is_a_number() -> None:
    found = alarm(np.array([[1e9]]), np.array([[0.4]]), np.array([1e9]), VARIANCE[:1], 2.0)
    assert found.raised
    assert math.isfinite(found.log_evidence)
