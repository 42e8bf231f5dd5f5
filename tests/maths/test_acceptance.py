"""The exact bound keeps its level at the edge, for the draws that covcal makes."""

from functools import cache
from math import comb

import numpy as np
import pytest

from covcal_cli.arrays import Float64s, Integers
from covcal_cli.labels.draws import drawn_along
from covcal_cli.maths import acceptance
from covcal_cli.maths.acceptance import (
    Candidate,
    Ranking,
    Sampling,
    best_region,
    chance,
    level_of_look,
    most_wrong,
    sampling,
)

# Before tests/conftest.py takes most of them away.
WHOLE = {name: getattr(acceptance, name) for name in ("_REGIONS", "_GROWTH")}
LEVEL = 0.1
DRAWS = 400
# Three standard deviations of a share of `DRAWS` at the level.
MOST_BROKEN = LEVEL + 3 * (LEVEL * (1 - LEVEL) / DRAWS) ** 0.5


@cache
def equal_draws(rows: int, labels: int) -> list[Integers]:
    """Return the rows of `DRAWS` draws in which all rows have the same probability."""
    rng, inclusion = np.random.default_rng(0), np.full(rows, labels / rows)
    return [drawn_along([(np.arange(rows), inclusion)], rng) for _ in range(DRAWS)]


@pytest.fixture(autouse=True)
def all_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in WHOLE.items():
        monkeypatch.setattr(acceptance, name, value)


def wrong_in_draw(wrong: Float64s, inclusion: Float64s, rng: np.random.Generator) -> float:
    rows = drawn_along([(np.arange(len(wrong)), inclusion)], rng)
    return float(wrong[rows].sum())


@pytest.mark.parametrize(
    ("rows", "labels", "error"),
    [(60, 5, 0.3), (60, 50, 0.1), (500, 30, 0.1), (100, 100, 0.2)],
)
@pytest.mark.parametrize("where", ["first", "anywhere"])
def test_a_promise_about_these_rows_is_broken_at_most_as_often_as_allowed(
    rows: int, labels: int, error: float, where: str
) -> None:
    """One wrong row too many, wherever it is along the order of the draw."""
    rng = np.random.default_rng(1)
    wrong = np.zeros(rows)
    many = int(error * rows + 1e-9) + 1
    wrong[np.arange(many) if where == "first" else rng.permutation(rows)[:many]] = 1
    allowed = most_wrong(rows, [sampling(labels / rows, rows)], error, LEVEL, these_rows=True)
    counts = [wrong[drawn].sum() for drawn in equal_draws(rows, labels)]
    assert np.mean(np.array(counts) <= allowed) <= MOST_BROKEN


@pytest.mark.parametrize(("rows", "labels"), [(60, 50), (500, 30), (1000, 100)])
def test_a_promise_about_future_rows_counts_the_chance_of_the_rows_too(
    rows: int, labels: int
) -> None:
    rng, error = np.random.default_rng(1), 0.1
    p = labels / rows
    allowed = most_wrong(rows, [sampling(p, rows)], error, LEVEL, these_rows=False)
    counts = [(rng.random(rows)[drawn] < error).sum() for drawn in equal_draws(rows, labels)]
    assert np.mean(np.array(counts) <= allowed) <= MOST_BROKEN
    assert allowed <= most_wrong(rows, [sampling(p, rows)], error, LEVEL, these_rows=True)


def test_unequal_inclusion_is_bounded_by_the_least() -> None:
    """The wrong rows are the rows that are drawn least often."""
    rng, rows, error = np.random.default_rng(2), 300, 0.2
    inclusion = np.where(np.arange(rows) % 3 == 0, 0.1, 0.4)
    inclusion *= 90 / inclusion.sum()
    wrong = np.zeros(rows)
    wrong[np.argsort(inclusion, kind="stable")[: int(error * rows) + 1]] = 1
    batch = Sampling(float(inclusion.min()), 90)
    allowed = most_wrong(rows, [batch], error, LEVEL, these_rows=True)
    counts = [wrong_in_draw(wrong, inclusion, rng) for _ in range(DRAWS)]
    assert np.mean(np.array(counts) <= allowed) <= MOST_BROKEN
    # The usual test of 90 labels drawn alike is broken far more often here.
    equal = most_wrong(rows, [sampling(0.3, rows)], error, LEVEL, these_rows=True)
    assert np.mean(np.array(counts) <= equal) > 2 * LEVEL


def test_a_second_batch_draws_from_the_rows_that_the_first_left() -> None:
    rng, rows, error = np.random.default_rng(3), 200, 0.1
    wrong = np.zeros(rows)
    wrong[rng.permutation(rows)[: int(error * rows) + 1]] = 1
    batches = [sampling(0.2, rows), sampling(0.25, rows - 40)]
    allowed = most_wrong(rows, batches, error, LEVEL, these_rows=True)
    assert allowed >= most_wrong(rows, batches[:1], error, LEVEL, these_rows=True)
    broken = 0
    for _ in range(DRAWS):
        first = drawn_along([(np.arange(rows), np.full(rows, 0.2))], rng)
        left = np.delete(wrong, first)
        count = wrong[first].sum() + wrong_in_draw(left, np.full(len(left), 0.25), rng)
        broken += count <= allowed
    assert broken / DRAWS <= MOST_BROKEN


@pytest.mark.parametrize(
    ("rows", "labels"), [(700, [47, 200]), (20_000, [200, 500]), (3000, [50, 100, 200])]
)
def test_several_random_batches_prove_nearly_as_much_as_one(rows: int, labels: list[int]) -> None:
    """Several plain random draws are one draw: its number of wrong rows is hypergeometric."""
    error, level = 0.05, 0.001
    left = rows - np.cumsum([0, *labels[:-1]])
    batches = [sampling(n / of, int(of)) for n, of in zip(labels, left, strict=True)]
    allowed = most_wrong(rows, batches, error, level, these_rows=True)
    wrong, n = int(error * rows) + 1, sum(labels)
    ways = [comb(wrong, k) * comb(rows - wrong, n - k) for k in range(allowed + 4)]
    risk = [sum(ways[: k + 1]) / comb(rows, n) for k in range(allowed + 4)]
    assert risk[allowed] <= level < risk[allowed + 3]


def test_the_bound_is_close_to_the_binomial_test_in_a_large_set() -> None:
    """Clopper and Pearson accept 0 of 22, 1 of 38, 2 of 52 and 5 of 91 at 10 %."""
    for labels, wrong in ((22, 0), (38, 1), (52, 2), (91, 5)):
        batch = sampling(labels / 1e6, 10**6)
        for these_rows in (False, True):
            assert most_wrong(10**6, [batch], 0.1, 0.1, these_rows=these_rows) == wrong
    assert most_wrong(10**6, [sampling(21 / 1e6, 10**6)], 0.1, 0.1, these_rows=False) == -1


def test_labels_of_all_rows_decide_as_they_are() -> None:
    assert most_wrong(50, [Sampling(1.0, 50)], 0.1, 0.1, these_rows=True) == 5
    assert most_wrong(0, [Sampling(1.0, 50)], 0.1, 0.1, these_rows=True) == -1
    # Rows that were taken out before may all be wrong.
    assert most_wrong(50, [Sampling(1.0, 47)], 0.1, 0.1, these_rows=True, lost=3) == 2


def test_fifty_labels_can_promise_five_percent_at_the_first_look() -> None:
    scores = np.linspace(0.999, 0.5, 2000)
    level = level_of_look(0.9, 1)
    region = best_region(Ranking(np.sort(scores), [np.zeros(101)]), 50, 0.05, level)
    assert region is not None
    assert region[1].share > 0.9
    assert sum(level_of_look(0.9, look) for look in range(1, 40)) <= 0.1


def test_rows_above_many_tied_scores_are_never_an_empty_candidate() -> None:
    """No row lies above the highest score, which a third of the rows have."""
    scores = np.concatenate([np.full(200, 0.99), np.linspace(0.9, 0.4, 400)])
    beliefs = [0.1 * np.linspace(0, 1, 101) ** 2]
    region = best_region(Ranking(np.sort(scores), beliefs), 100, 0.1, 0.09)
    assert region is not None
    rows = [candidate.rows for candidate in region[1].candidates]
    assert min(rows) >= 200
    assert rows == sorted(set(rows))


def test_a_candidate_of_nearly_equal_scores_is_the_set_above_its_threshold() -> None:
    """Scores are nearer to each other than thresholds can be, as with an over-confident classifier.

    The tested set must be the set whose rows the bound counts.
    """
    rng = np.random.default_rng(0)
    ranking = Ranking(np.sort(1 - 1e-5 * rng.random(3000)), [0.5 * np.linspace(0, 1, 101) ** 3])
    region = best_region(ranking, 300, 0.05, 0.09)
    assert region is not None
    candidates = region[1].candidates
    assert len(candidates) > 1
    for candidate in candidates:
        assert candidate.rows == ranking.above(candidate.threshold)
    # The threshold of as many rows leaves out some of them.
    assert ranking.above(ranking.threshold(candidates[0].rows)) < candidates[0].rows


def test_the_chance_of_a_promise_is_a_mean_over_the_errors_considered() -> None:
    """A belief is a straight line if the error is the same among all rows."""
    ranking = Ranking(np.linspace(0.1, 0.9, 1000), [])
    errors = (0.02, 0.1)
    beliefs = [np.array([0, error]) for error in errors]
    exact = [sum(comb(50, k) * e**k * (1 - e) ** (50 - k) for k in range(3)) for e in errors]
    of_candidate = chance(ranking, Candidate(0.5, 400, labels=50, wrong=2), beliefs)
    assert of_candidate == pytest.approx(np.mean(exact))


def test_labels_of_an_earlier_batch_count_in_the_chance_of_a_promise() -> None:
    """Wrong labels lower the chance, right labels raise it; a candidate that they fail has none."""
    ranking = Ranking(np.linspace(0, 1, 1000), [])
    beliefs = [np.array([0, 0.02]), np.array([0, 0.2])]
    candidate = Candidate(0.5, 500, labels=150, wrong=6)

    def of(wrong: int) -> float:
        flags = np.arange(60) < wrong
        return chance(ranking, candidate, beliefs, np.full(60, 0.9), flags)

    unknown = chance(ranking, candidate, beliefs)
    assert of(0) > 0.9 > unknown > of(3) > of(6) > of(7) == 0


def test_a_region_counts_the_labels_of_an_earlier_batch() -> None:
    ranking = Ranking(np.linspace(0, 1, 1000), [np.array([0, 0.01])])
    assert best_region(ranking, 60, 0.05, 0.001) is None
    region = best_region(ranking, 60, 0.05, 0.001, labelled=np.linspace(0.1, 1, 100))
    assert region is not None
    assert region[1].candidates[0].labels > 130


def test_a_part_of_a_ranking_has_the_errors_of_its_scores() -> None:
    scores = np.sort(np.random.default_rng(0).random(2000))
    belief = np.linspace(0, 1, 101) ** 2 / 2  # rows with lower scores are wrong more often
    ranking = Ranking(scores, [belief])
    best, rest = ranking.part(scores[1000:]), ranking.part(scores[:1000])
    assert best.wrong(1000, best.beliefs[0]) == pytest.approx(ranking.wrong(1000, belief), abs=1)
    both = best.wrong(1000, best.beliefs[0]) + rest.wrong(1000, rest.beliefs[0])
    assert both == pytest.approx(ranking.wrong(2000, belief), abs=1)
    assert rest.wrong(500, rest.beliefs[0]) > best.wrong(1000, best.beliefs[0])
