"""Which thresholds are tested, in which order, and from which rows labels are drawn.

Everything here is fixed before a label is seen. It follows from the scores of unlabelled rows, the
number of labels, and beliefs about the errors. So the beliefs decide how much is accepted, never
whether a promise is kept.

A candidate is a set of the rows with the highest scores, and a count k of wrong labelled rows. The
set is accepted if at most k of its labelled rows are wrong. Candidates are tested from the smallest
set on, each at the full level, until one fails (fixed-sequence testing; Angelopoulos et al. 2021).
The first candidate, and the region that labels are drawn from, are those that accept the most rows
on average over the beliefs.

Looking twice at growing labels would spend the level twice. The first batch of labels may use 3/4
of it, the second 1/8, the third 1/16, and so on.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from covcal_cli.arrays import Float64s, Integers
from covcal_cli.maths.tails import Sampling

OUTSIDE = 0.05  # inclusion of rows outside the region, as a share of that of rows inside
_FIRST_LOOK = 0.75  # of the level
_REGIONS = np.geomspace(0.05, 1, 16)  # shares of the rows
_GROWTH = 1.12  # of the counts of wrong rows, from candidate to candidate
_UNLIKELY = 1e-3
_COUNTS = 400  # numbers of labels for which binomial tails are computed
_STEPS = 1_000_000  # thresholds are multiples of 1 / _STEPS, and 2 above the next row's score


@dataclass(frozen=True)
class Candidate:
    """A set of rows to accept, and the most wrong labelled rows with which it is accepted."""

    rows: int  # the number of rows above the threshold
    labels: int  # the number of labelled rows among them, about
    wrong: int


@dataclass(frozen=True)
class Plan:
    """Candidates in the order of the tests, and what to expect of them."""

    candidates: tuple[Candidate, ...]
    share: float  # of rows accepted, on average over the beliefs
    chance: float  # that any row is accepted


class Ranking:
    """The scores of rows, from the highest on, and beliefs about their errors."""

    def __init__(self, scores: Float64s, beliefs: Sequence[Float64s]) -> None:
        """Sort N scores.

        A belief holds the wrong rows that are expected among the best rows of each share: 0, and
        then evenly spaced shares up to 1. It is a share of all rows.
        """
        self.scores = np.sort(scores)[::-1]
        self.beliefs = beliefs

    def __len__(self) -> int:
        return len(self.scores)

    def wrong(self, rows: int, belief: Float64s) -> float:
        """Return the expected number of wrong rows among the first `rows`."""
        shares = np.linspace(0, 1, len(belief))
        return float(np.interp(rows / len(self), shares, belief)) * len(self)

    def threshold(self, rows: int) -> float:
        """Return the threshold above which the first `rows` lie, or fewer where scores are equal.

        It depends on the score of the next row alone. Given that score, the rows above are a random
        sample of the rows that will ever be above.
        """
        if rows >= len(self):
            return 0.0
        return (math.floor(float(self.scores[rows]) * _STEPS) + 2) / _STEPS

    def above(self, threshold: float) -> int:
        """Return how many rows have a score above a threshold."""
        return len(self) - int(np.searchsorted(self.scores[::-1], threshold, side="right"))


def level_of_look(certainty: float, look: int) -> float:
    """Return the chance of a broken promise that the test after batch `look` (from 1) may use."""
    share = _FIRST_LOOK if look == 1 else (1 - _FIRST_LOOK) * 0.5 ** (look - 1)
    return (1 - certainty) * share


def inclusions(labels: int, inside: int, outside: int) -> tuple[float, float]:
    """Return the inclusion probabilities of rows inside and outside the region."""
    p = min(1.0, labels / (inside + OUTSIDE * outside)) if inside else 0.0
    return p, (labels - p * inside) / outside if outside else 0.0


def plan(
    ranking: Ranking,
    most: int,
    batches: Callable[[int], Sequence[Sampling]],
    allowed: Callable[[int, Sequence[Sampling]], int],
) -> Plan:
    """Return the candidates among the first `most` rows that accept the most on average.

    Parameters
    ----------
    ranking : Ranking
    most : int
        The number of rows of the region that labels are drawn from.
    batches : callable
        Returns how each batch draws from the first so many rows.
    allowed : callable
        Returns `most_wrong` for the first so many rows and their batches.
    """
    candidates = _candidates(ranking, most, batches, allowed)
    best = Plan((), 0.0, 0.0)
    values = [_values(ranking, candidates, belief) for belief in ranking.beliefs]
    for start in range(len(candidates)):
        share, chance = np.mean([of_belief(start) for of_belief in values], axis=0)
        if share > best.share:
            best = Plan(tuple(candidates[start:]), float(share), float(chance))
    return best


def _candidates(
    ranking: Ranking,
    most: int,
    batches: Callable[[int], Sequence[Sampling]],
    allowed: Callable[[int, Sequence[Sampling]], int],
) -> list[Candidate]:
    """Return the smallest sets that allow 0, 1, 2, ... wrong rows, and the whole region."""

    def candidate(rows: int) -> Candidate:
        rows = ranking.above(ranking.threshold(rows))
        drawn = batches(rows)
        labels = round(sum(batch.inclusion for batch in drawn) * rows)
        return Candidate(rows, labels, allowed(rows, drawn))

    found: list[Candidate] = []
    wrong, low = 0, 1
    while True:
        high = most
        if candidate(high).wrong < wrong:
            break
        while low < high:  # the smallest set that allows so many
            middle = (low + high) // 2
            if candidate(middle).wrong >= wrong:
                high = middle
            else:
                low = middle + 1
        new = candidate(high)
        if new.wrong < 0:  # many rows of one score
            break
        if not found or new.rows > found[-1].rows:
            found.append(new)
        wrong = max(new.wrong + 1, math.ceil(new.wrong * _GROWTH))
    last = candidate(most)
    if found and last.rows > found[-1].rows:
        found.append(last)
    return found


def _values(
    ranking: Ranking, candidates: Sequence[Candidate], belief: Float64s
) -> Callable[[int], tuple[float, float]]:
    """Return the function from the first candidate to the expected share and the chance."""
    sizes = [candidate.rows for candidate in candidates]
    wrong = [ranking.wrong(rows, belief) for rows in sizes]

    def of_start(start: int) -> tuple[float, float]:
        # The chances of 0, 1, ... wrong labelled rows where no test has failed yet.
        alive, share, before, chance = np.ones(1), 0.0, -1, 0.0
        for place in range(start, len(candidates)):
            candidate = candidates[place]
            rows, labels = candidate.rows, candidate.labels
            errors = wrong[place]
            if before >= 0:
                rows, errors = rows - sizes[before], errors - wrong[before]
                labels -= candidates[before].labels
            new = _binomial(labels, errors / max(rows, 1), candidate.wrong)
            alive = np.convolve(alive, new)[: candidate.wrong + 1]
            share += float(alive.sum()) * rows / len(ranking)
            chance = chance or float(alive.sum())
            if alive.sum() < _UNLIKELY:
                break
            before = place
        return share, chance

    return of_start


def _binomial(n: int, p: float, most: int) -> Float64s:
    """Return the chances of 0 .. `most` in n trials."""
    p = min(max(p, 1e-12), 1 - 1e-12)
    k = np.arange(min(n, most) + 1)
    steps = np.log(np.maximum(n - k[:-1], 1) / (k[:-1] + 1)) + math.log(p) - math.log1p(-p)
    return np.asarray(np.exp(n * math.log1p(-p) + np.concatenate([[0.0], np.cumsum(steps)])))


@dataclass(frozen=True)
class Region:
    """The rows to draw labels from, and what to expect of the labels."""

    rows: int
    threshold: float
    plan: Plan


def best_region(ranking: Ranking, labels: int, error: float, level: float) -> Region | None:
    """Return the region for so many labels, or None where no labels of it could make a promise.

    Binomial tails stand in for the exact bound, as this choice cannot break a promise.
    """
    best: Region | None = None
    sizes_of = np.unique(np.geomspace(1, labels + 1, _COUNTS).astype(np.int64))
    table = _binomial_allowed(sizes_of, error, level)
    n, sizes = len(ranking), {round(share * len(ranking)) for share in _REGIONS}
    for size in sorted(sizes):
        threshold = ranking.threshold(size)
        rows = ranking.above(threshold)
        p, _ = inclusions(min(labels, n), rows, n - rows)
        if not rows:
            continue

        def batches(count: int, p: float = p) -> list[Sampling]:
            return [sampling(p, count)]

        def allowed(_count: int, drawn: Sequence[Sampling]) -> int:
            return int(table[np.searchsorted(sizes_of, drawn[0].most, side="right") - 1])

        found = plan(ranking, rows, batches, allowed)
        if best is None or found.share > best.plan.share:
            best = Region(rows, threshold, found)
    return best if best is not None and best.plan.candidates else None


def _binomial_allowed(sizes: Integers, error: float, level: float) -> Integers:
    """Return the most wrong of `sizes` labels that refute an error rate; -1 for none."""
    n = sizes.astype(np.float64)
    logs, total = n * math.log1p(-error), np.zeros(len(sizes))
    allowed = np.full(len(sizes), -1, dtype=np.int64)
    with np.errstate(divide="ignore"):
        for k in range(int(n.max() * error) + 1):
            total += np.exp(logs)
            allowed[total <= level] = k
            logs += np.log(np.maximum(n - k, 0) / (k + 1)) + math.log(error / (1 - error))
    return allowed


def sampling(inclusion: float, rows: int, most: int | None = None) -> Sampling:
    """Return how a batch drew from the first `rows` rows along the order of the score."""
    ceiling = math.ceil(inclusion * rows - 1e-9)
    return Sampling(inclusion, ceiling if most is None else min(most, rows))
