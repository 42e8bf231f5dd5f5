"""Optimal transport and COT: against assignment, linear programming and the bootstrap."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment, linprog
from scipy.special import softmax

from covcal_cli.estimators.cot import cot, transport
from covcal_cli.estimators.inputs import EstimatorInputs
from tests.estimators.made_inputs import made_inputs, made_rows

Floats = NDArray[np.float64]


def assignment_cost(costs: Floats, counts: NDArray[np.int64]) -> float:
    """Return the mean cost of the best assignment of rows (K, n) to `counts` places per class."""
    expanded = costs[np.repeat(np.arange(len(counts)), counts)]
    return float(expanded[linear_sum_assignment(expanded)].mean())


def linear_program_cost(costs: Floats, masses: Floats, rows: Floats | None = None) -> float:
    """Return the transport cost of rows, by default of mass 1/n, to classes of the given masses."""
    K, n = costs.shape
    of_rows = np.kron(np.ones((1, K)), np.eye(n))
    of_classes = np.kron(np.eye(K), np.ones((1, n)))
    answer = linprog(
        costs.ravel(),
        A_eq=np.vstack([of_rows, of_classes]),
        b_eq=np.concatenate([np.full(n, 1 / n) if rows is None else rows, masses]),
        method="highs",
    )
    return float(answer.fun)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("n", "classes", "sharpness"),
    [(2, 2, 1), (5, 3, 2), (200, 10, 2), (200, 10, 0), (200, 10, 50), (300, 2, 3), (400, 60, 4)],
)
def test_cost_is_that_of_the_best_assignment(
    n: int, classes: int, sharpness: float, seed: int
) -> None:
    """To 1e-4, with ties everywhere (sharpness 0) and with saturated rows; the gap says so."""
    rng = np.random.default_rng(seed)
    costs = 1 - softmax(sharpness * rng.normal(size=(n, classes)), axis=1).T
    counts = rng.multinomial(n, rng.dirichlet(np.ones(classes)))
    found = transport(costs.astype(np.float32), counts / n)
    exact = assignment_cost(costs, counts)
    assert found.cost == pytest.approx(exact, abs=1e-4)
    assert abs(found.cost - exact) <= found.gap / 2 + 1e-6
    assert found.gap < 1e-4
    assert float(counts / n @ found.prices) == pytest.approx(0, abs=1e-9)
    assert found.net_costs.mean() == pytest.approx(found.cost, abs=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_many_classes_and_many_rows(seed: int) -> None:
    """Five times more rows than the pilot has, against assignment on two classes with ties."""
    rng = np.random.default_rng(seed)
    margins = rng.normal(size=20_000).round(2)
    chance = 1 / (1 + np.exp(-margins))
    costs = np.stack([1 - chance, chance]).astype(np.float32)
    found = transport(costs, np.array([0.3, 0.7]))
    first = np.argsort(-margins, kind="stable")[:6000]  # two classes: the surest rows go first
    chosen = np.zeros(20_000, dtype=bool)
    chosen[first] = True
    exact = float(np.where(chosen, 1 - chance, chance).mean())
    assert found.cost == pytest.approx(exact, abs=1e-4)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("n", "classes"), [(60, 4), (40, 41), (12, 90), (2, 30)])
def test_rows_of_any_mass_and_more_classes_than_rows(n: int, classes: int, seed: int) -> None:
    """The linear program's cost, from whichever side is smaller; prices that no row undercuts."""
    rng = np.random.default_rng(seed)
    costs = 1 - softmax(3 * rng.normal(size=(n, classes)), axis=1).T
    masses, rows = rng.dirichlet(np.ones(classes)), rng.dirichlet(np.ones(n))
    masses[0], masses[1] = 0.0, masses[0] + masses[1]
    found = transport(costs.astype(np.float32), masses, rows)
    assert found.cost == pytest.approx(linear_program_cost(costs, masses, rows), abs=1e-4)
    assert found.gap < 1e-4
    assert float(rows @ found.net_costs) == pytest.approx(found.cost, abs=1e-4)
    used = masses > 0
    net = (costs[used] - found.prices[used, None]).min(axis=0)
    assert found.net_costs == pytest.approx(net, abs=1e-6)


def test_ten_thousand_classes_keep_the_gap_small() -> None:
    """Most of the classes have no row."""
    rng = np.random.default_rng(0)
    n, classes = 60, 10_000
    labels = rng.integers(classes, size=n)
    logits = rng.normal(size=(n, classes))
    logits[np.arange(n), labels] += rng.uniform(6, 14, size=n)
    counts = np.bincount(labels, minlength=classes) + 0.5
    found = transport((1 - softmax(logits, axis=1).T).astype(np.float32), counts / counts.sum())
    assert found.gap < 1e-3


def cot_by_linear_programs(inputs: EstimatorInputs, prior: Floats | None) -> float:
    """Return the anchored COT accuracy straight from its definition."""
    n, counts = inputs.n_source, np.bincount(inputs.source_labels, minlength=4)
    masses = (counts + 0.5) / (counts + 0.5).sum() if prior is None else prior
    rows = np.full(n, 1 / n) if prior is None else (prior / counts)[inputs.source_labels]
    costs = [
        1 - softmax(logits / inputs.temperature, axis=1).T
        for logits in (inputs.source_logits, inputs.target_logits)
    ]
    rise = linear_program_cost(costs[1], masses) - linear_program_cost(costs[0], masses, rows)
    wrong = inputs.source_logits.argmax(axis=1) != inputs.source_labels
    return 1 - ((n * float(rows @ wrong) + 0.5) / (n + 1) + rise)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("given", [False, True])
def test_cot_against_linear_programs(seed: int, given: bool) -> None:
    """Anchored on the source, with the source's prior and with one that is given (one class 0)."""
    inputs, _ = made_inputs(seed, n_v=120, n_t=90, classes=4)
    prior = np.array([0.5, 0.3, 0.2, 0.0]) if given else None
    expected = cot_by_linear_programs(inputs, prior)
    assert cot(inputs, prior).accuracy == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("seed", "prior"), [(0, None), (1, np.array([0.4, 0.3, 0.15, 0.1, 0.05]))])
def test_interval_is_that_of_the_bootstrap(seed: int, prior: Floats | None) -> None:
    """The delta method's standard error is within 30 % of that of 40 resamples of both domains."""
    inputs, _ = made_inputs(seed, n_v=150, n_t=200)
    found = cot(inputs, prior)
    rng = np.random.default_rng(seed)
    resampled = []
    for _ in range(40):
        source, target = rng.integers(150, size=150), rng.integers(200, size=200)
        copy = replace(
            inputs,
            source_logits=inputs.source_logits[source],
            source_labels=inputs.source_labels[source],
            target_logits=inputs.target_logits[target],
        )
        resampled.append(cot(copy, prior).accuracy)
    standard_error = (found.high - found.low) / (2 * 1.96)
    assert standard_error == pytest.approx(float(np.std(resampled)), rel=0.3)


def test_order_of_rows_does_not_matter() -> None:
    """Nor does it for any number of the estimate."""
    inputs, _ = made_inputs()
    rng = np.random.default_rng(0)
    source, target = rng.permutation(inputs.n_source), rng.permutation(inputs.n_target)
    shuffled = replace(
        inputs,
        source_logits=inputs.source_logits[source],
        source_labels=inputs.source_labels[source],
        target_logits=inputs.target_logits[target],
    )
    first, second = cot(inputs), cot(shuffled)
    assert first.accuracy == pytest.approx(second.accuracy, abs=1e-6)
    assert first.low == pytest.approx(second.low, abs=1e-5)


def test_no_shift_is_rarely_taken_for_one() -> None:
    """Two samples of one world: the two-sigma gate opens in at most 2 of 20 cases."""
    opened = 0
    for seed in range(20):
        inputs, _ = made_inputs(seed, n_v=300, n_t=500, moved=0.0)
        opened += cot(inputs).guard("detectable shift").passed
    assert opened <= 2


@pytest.mark.parametrize("seed", range(3))
def test_it_follows_a_shift(seed: int) -> None:
    """On clusters that move, the shift is detected and the estimate is within three points."""
    inputs, truth = made_inputs(seed, n_v=2000, n_t=2000, moved=0.5)
    found = cot(inputs)
    true = float((inputs.target_predictions == truth).mean())
    source = float(inputs.source_correct.mean())
    assert source - true > 0.05
    assert found.guard("detectable shift").passed
    assert abs(found.accuracy - true) < min(0.05, source - true)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("prior", [(0.6, 0.2, 0.1, 0.06, 0.04), (0.02, 0.02, 0.06, 0.3, 0.6)])
@pytest.mark.parametrize("moved", [0.0, 0.3])
def test_a_given_prior_undoes_a_change_of_class_frequencies(
    moved: float, prior: tuple[float, ...], seed: int
) -> None:
    """Within its interval or three points where classes became rarer; none without the prior."""
    given = np.array(prior)
    source, labels = made_rows(3000, classes=5, moved=0.0, seed=2 * seed)
    target, truth = made_rows(3000, classes=5, moved=moved, seed=2 * seed + 1, prior=given)
    inputs = EstimatorInputs(source, labels, target, 2.0)
    true = float((inputs.target_predictions == truth).mean())
    plain, informed = cot(inputs), cot(inputs, given)
    assert [guard.name for guard in informed.guards] == ["detectable shift", "precision"]
    assert abs(informed.accuracy - true) < max(0.03, informed.high - informed.accuracy)
    assert abs(informed.accuracy - true) < abs(plain.accuracy - true)
    if moved == 0:
        assert not informed.guard("detectable shift").passed


def test_the_fall_in_confidence_doubts_classes_that_became_more_frequent() -> None:
    """Where the frequent classes are as easy as the others, the confidence does not fall."""
    source, labels = made_rows(3000, classes=5, moved=0.0, seed=1)
    prior = np.array([0.6, 0.2, 0.1, 0.06, 0.04])
    target, _ = made_rows(3000, classes=5, moved=0.0, seed=2, prior=prior)
    assert not cot(EstimatorInputs(source, labels, target, 2.0)).guard("fall in confidence").passed


def test_a_prior_of_classes_without_a_row_leaves_the_rows_alike() -> None:
    """There is no row to weigh up, and nothing breaks."""
    inputs, _ = made_inputs(classes=3)
    kept = inputs.source_labels < 2
    few = replace(
        inputs,
        source_logits=inputs.source_logits[kept],
        source_labels=inputs.source_labels[kept],
    )
    assert 0 < cot(few, np.array([0.0, 0.0, 1.0])).accuracy < 1
