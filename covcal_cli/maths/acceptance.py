"""Choose the score thresholds that `decide` tests, and the rows to label for these tests.

The plan does not depend on the values of labels, but on assumed error rates ("beliefs"). If the
assumed error rates are wrong, fewer rows may be accepted, but a guarantee stays valid. MATHEMATICS,
section 13, explains the tests and their bound.

A candidate is a set of rows with the highest scores. A candidate is accepted if at most k of its
labelled rows are wrong. Rows to label are drawn from a larger set of rows with high scores (the
region). The plan maximises the expected number of accepted rows.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from covcal_cli.arrays import Booleans, Float64s

_DEVIATIONS = 9
_POINTS = 128
_ROUNDING = 1e-9
_CERTAIN = 1 - 1e-12
_TINY = 1e-300
NONE: Float64s = np.empty(0)
NO_FLAGS: Booleans = np.empty(0, dtype=bool)


@dataclass(frozen=True)
class Sampling:
    """How a batch of rows to label is drawn from a set of rows."""

    inclusion: float  # f, minimum inclusion probability of a row.
    most: int  # m, maximum number of rows drawn from the set.


def most_wrong(
    rows: int,
    batches: Sequence[Sampling],
    error: float,
    level: float,
    *,
    these_rows: bool,
    lost: int = 0,
) -> int:
    """Return the maximum number of wrong labelled rows with which the test still succeeds.

    The test proves an error rate of at most `error`, with significance level `level`. Returns -1 if
    the test cannot succeed, even with 0 wrong rows.

    - `rows`: N, the number of rows of the set.
    - `these_rows`: True for a guarantee about these N rows only, False for a guarantee about future
      rows.
    - `lost`: number of removed rows. The test assumes that all removed rows are wrong.
    """
    if not rows or not batches:
        return -1
    wrong, chances = _wrong_rows(rows, error, these_rows=these_rows)
    expected = sum(batch.inclusion for batch in batches) * float(wrong[-1])
    most = min(sum(batch.most for batch in batches), math.ceil(expected), math.ceil(error * rows))
    left = np.maximum(wrong - lost, 0)
    step = int(wrong[1] - wrong[0]) if len(wrong) > 1 else 1
    if len(batches) > 1:
        fewer = np.arange(-(-most // step) + len(batches), 0, -1)
        left = np.concatenate([wrong[0] - lost - fewer * step, left])
    bounds = [_bounds(np.maximum(left, 0), batch, most) for batch in batches]
    joined = reduce(lambda later, first: _joined(first, later, step), reversed(bounds))
    fits = joined[:, -len(wrong) :] @ chances <= level
    return int(fits.sum()) - 1 if fits.all() else int(fits.argmin()) - 1


def _wrong_rows(rows: int, error: float, *, these_rows: bool) -> tuple[Float64s, Float64s]:
    """Return the possible numbers K of wrong rows, and the probability of each K."""
    if these_rows:
        return np.array([math.floor(error * rows + _ROUNDING) + 1.0]), np.ones(1)
    mean, deviation = rows * error, math.sqrt(rows * error * (1 - error))
    low = max(0, math.floor(mean - _DEVIATIONS * deviation))
    high = min(rows, math.ceil(mean + _DEVIATIONS * deviation))
    values = np.arange(low, high + 1, dtype=np.float64)
    steps = np.log((rows - values[:-1]) / (values[:-1] + 1)) + math.log(error / (1 - error))
    logs = np.concatenate([[0.0], np.cumsum(steps)])
    chances = np.exp(logs - logs.max())
    chances /= chances.sum()
    starts = np.arange(0, len(values), max(1, -(-len(values) // _POINTS)))
    return values[starts], np.add.reduceat(chances, starts)


def _bounds(wrong: Float64s, batch: Sampling, most: int) -> Float64s:
    terms = np.minimum(max(batch.most, 1), np.maximum(wrong, 1))
    mean = batch.inclusion * wrong
    p = np.clip(mean / terms, 1e-300, _CERTAIN)
    log_odds = np.log(p) - np.log1p(-p)
    logs = terms * np.log1p(-p)
    total, rows = np.zeros_like(p), []
    with np.errstate(divide="ignore", invalid="ignore"):
        for k in range(most + 1):
            total = total + np.exp(logs)
            rows.append(np.where(k <= mean - 1 + _ROUNDING, np.minimum(total, 1.0), 1.0))
            logs = logs + np.log(np.maximum(terms - k, 0) / (k + 1)) + log_odds
    return np.array(rows)


def _joined(first: Float64s, later: Float64s, step: int) -> Float64s:
    """Combine the bounds of the first batch with the bounds of all later batches.

    If the first batch draws w of K wrong rows, K - w wrong rows remain. Summation by parts turns
    the sum over w into tail probabilities.
    """
    most, columns = len(first), np.arange(first.shape[1])
    fewer = -(-np.arange(most) // step)
    left = np.maximum(columns - fewer[:, np.newaxis], 0)
    bounds = []
    for k in range(most):
        of_second = later[np.arange(k, -1, -1)[:, np.newaxis], left[: k + 1]]
        falling = np.maximum.accumulate(of_second[::-1])[::-1]
        drops = falling - np.pad(falling[1:], ((0, 1), (0, 0)))
        bounds.append(np.minimum((first[: k + 1] * drops).sum(axis=0), 1.0))
    return np.array(bounds)


# Error rates that are assumed for the first batch, and for later batches. 0 stands for the
# estimated error rate, 1 and -1 for the upper and the lower end of its interval. A later batch
# follows a failed test, so higher error rates are assumed.
BELIEFS = (0.5, 0.0, -0.5), (0.5, 1.0)
OUTSIDE = 0.02
NEAR = 1e-5  # Tolerance for rounding errors of scores.
MOST_GROUPS = 50  # More groups would need too many labels.
_FIRST_LOOK = 0.975
_REGIONS = np.geomspace(0.05, 1, 16)
_GROWTH = 1.05
_COUNTS = 400
_STEPS = 1_000_000


@dataclass(frozen=True)
class Candidate:
    """A set of rows with high scores, and the maximum number of wrong labelled rows."""

    threshold: float
    rows: int  # Number of rows above the threshold.
    labels: int  # Approximate number of labelled rows.
    wrong: int


@dataclass(frozen=True)
class Plan:
    """Candidates in the order in which they are tested."""

    candidates: tuple[Candidate, ...]
    share: float  # expected share of accepted rows


@dataclass(frozen=True)
class Ranking:
    """The scores of N rows, and the expected numbers of wrong rows.

    Each belief is an array of expected numbers of wrong rows among the rows with the highest
    scores. The array covers evenly spaced numbers of rows, from 0 to N. The expected numbers are
    divided by N.
    """

    scores: Float64s  # (N,), ascending
    beliefs: Sequence[Float64s]

    def __len__(self) -> int:
        return len(self.scores)

    def wrong(self, rows: int, belief: Float64s) -> float:
        """Return the expected number of wrong rows among the `rows` highest scores."""
        shares = np.linspace(0, 1, len(belief))
        return float(np.interp(rows / len(self), shares, belief)) * len(self)

    def threshold(self, rows: int) -> float:
        """Return a score that at most `rows` rows exceed.

        Only scores below the threshold determine it, so the labelled rows above the threshold stay
        a random sample.
        """
        if rows >= len(self):
            return 0.0
        return (math.floor(float(self.scores[-1 - rows]) * _STEPS) + 2) / _STEPS

    def above(self, threshold: float) -> int:
        """Return the number of rows above a threshold."""
        return len(self) - int(np.searchsorted(self.scores, threshold, side="right"))

    def part(self, scores: Float64s) -> "Ranking":
        """Return the ranking of a subset of the rows, given by its `scores`."""
        ascending, beliefs = np.sort(scores), []
        places = np.searchsorted(-self.scores[::-1], -ascending[::-1])
        for belief in self.beliefs:
            rates = np.diff(belief) * (len(belief) - 1)
            of_rows = rates[places * len(rates) // len(self)]
            sums = np.concatenate([[0.0], np.cumsum(of_rows)]) / len(scores)
            shares = np.linspace(0, len(scores), len(belief))
            beliefs.append(np.interp(shares, np.arange(len(sums)), sums))
        return Ranking(ascending, beliefs)


def level_of_look(certainty: float, look: int) -> float:
    """Return the significance level of the test after batch `look` (1, 2, ...).

    The error probabilities of all batches sum to 1 - `certainty`.
    """
    share = _FIRST_LOOK if look == 1 else (1 - _FIRST_LOOK) * 0.5 ** (look - 1)
    return (1 - certainty) * share


def inclusions(labels: float, inside: int, outside: int) -> tuple[float, float]:
    """Return the probabilities that a row inside the region and a row outside are drawn."""
    p = min(1.0, labels / (inside + OUTSIDE * outside)) if inside else 0.0
    return p, (labels - p * inside) / outside if outside else 0.0


def plan(ranking: Ranking, most: int, limits: Callable[[float], tuple[int, int]]) -> Plan:
    """Return the best plan to accept some of the `most` rows with the highest scores.

    Each candidate is the smallest set of rows whose test allows a certain number of wrong rows. The
    last candidate contains all `most` rows. `limits` maps a threshold to two numbers: the number of
    labels above the threshold, and the result of `most_wrong`.
    """

    def candidate(rows: int) -> Candidate:
        threshold = ranking.threshold(rows)
        return Candidate(threshold, ranking.above(threshold), *limits(threshold))

    candidates: list[Candidate] = []
    wrong, low, last = 0, 1, candidate(most)
    while last.wrong >= wrong:
        low += bisect_left(range(low, most), wrong, key=lambda rows: candidate(rows).wrong)
        new = candidate(low)
        if new.wrong < 0:
            break
        if not candidates or new.rows > candidates[-1].rows:
            candidates.append(new)
        wrong = max(new.wrong + 1, math.ceil(new.wrong * _GROWTH))
    if candidates and last.rows > candidates[-1].rows and last.wrong >= 0:
        candidates.append(last)
    if not candidates:
        return Plan((), 0.0)
    shares = np.mean([_shares(ranking, candidates, belief) for belief in ranking.beliefs], axis=0)
    start = int(shares.argmax())
    return Plan(tuple(candidates[start:]), float(shares[start]))


def passed(candidates: Sequence[Candidate], scores: Float64s, wrong: Booleans) -> int:
    """Return the number of candidates that pass before the first failure."""
    for number, candidate in enumerate(candidates):
        if wrong[scores > candidate.threshold].sum() > candidate.wrong:
            return number
    return len(candidates)


def chance(
    ranking: Ranking,
    candidate: Candidate,
    beliefs: Sequence[Float64s],
    labelled: Float64s = NONE,
    wrong: Booleans = NO_FLAGS,
) -> float:
    """Return the probability that a candidate is accepted, averaged over assumed error rates.

    `labelled`, (m,), are the scores of labelled rows; `wrong`, (m,), says where the classifier is
    wrong. The assumed error rates and the observed error rate are weighted by their likelihood.
    """
    above = labelled > candidate.threshold
    n, n_wrong = int(above.sum()), int((above & wrong).sum())
    errors = [ranking.wrong(candidate.rows, belief) / candidate.rows for belief in beliefs]
    errors += [(n_wrong + 1) / (n + 2)] if n else []
    allowed = candidate.wrong - n_wrong
    if allowed < 0:
        return 0.0
    passed = [_binomial(candidate.labels - n, error, allowed).sum() for error in errors]
    weights = [float(_binomial(n, error, n_wrong)[-1]) + _TINY for error in errors]
    return float(np.average(passed, weights=weights))


def _shares(ranking: Ranking, candidates: Sequence[Candidate], belief: Float64s) -> Float64s:
    """For each candidate, return the expected share of accepted rows if testing starts there."""
    errors = [ranking.wrong(candidate.rows, belief) for candidate in candidates]
    shares = np.zeros(len(candidates))
    # Element w: the expected share of rows that later candidates add after w wrong labels.
    beyond = np.zeros(1)
    for place in reversed(range(len(candidates))):
        candidate, before = candidates[place], candidates[max(place - 1, 0)]
        limit = candidate.wrong
        beyond = np.pad(beyond, (0, max(limit + 1 - len(beyond), 0)))[: limit + 1]
        chances = _binomial(candidate.labels, errors[place] / candidate.rows, limit)
        shares[place] = chances @ (candidate.rows / len(ranking) + beyond[: len(chances)])
        rows = candidate.rows - before.rows
        rate = (errors[place] - errors[max(place - 1, 0)]) / max(rows, 1)
        chances = _binomial(candidate.labels - before.labels, rate, limit)
        gains = np.pad(rows / len(ranking) + beyond, (0, len(chances)))
        beyond = np.correlate(gains, chances)
    return shares


def _binomial(n: int, p: float, most: int) -> Float64s:
    p = min(max(p, 1e-12), 1 - 1e-12)
    k = np.arange(min(n, most) + 1)
    steps = np.log(np.maximum(n - k[:-1], 1) / (k[:-1] + 1)) + math.log(p) - math.log1p(-p)
    return np.asarray(np.exp(n * math.log1p(-p) + np.concatenate([[0.0], np.cumsum(steps)])))


def _allowed(n: int, error: float, level: float) -> int:
    return int((np.cumsum(_binomial(n, error, int(n * error))) <= level).sum()) - 1


def best_region(
    ranking: Ranking,
    labels: int,
    error: float,
    level: float,
    labelled: Float64s = NONE,
    groups: Sequence[Ranking] = (),
    regions: Sequence[float] = (),
) -> tuple[float, Plan] | None:
    """Return the threshold and the plan that accept the most rows with `labels` labels, or None.

    `labelled` are the scores of rows that already have a label. The plan uses a binomial
    approximation, but `most_wrong` is exact. With `groups`, each group is tested separately, and
    `labels` is the number of labels per group. `regions` lists the shares of rows from which labels
    may be drawn; the best share is used.
    """
    found: list[tuple[float, Plan]] = []
    sizes_of = np.unique(np.geomspace(1, labels + len(labelled) + 1, _COUNTS).astype(np.int64))
    table = [_allowed(n, error, level) for n in sizes_of.tolist()]

    def planned(part: Ranking, threshold: float) -> Plan:
        n, rows = len(part), part.above(threshold)
        p, _ = inclusions(min(labels, n), rows, n - rows)

        def limits(threshold: float) -> tuple[int, int]:
            above = part.above(threshold)
            before = int((labelled > threshold).sum())
            most = sampling(p, above).most + before
            place = np.searchsorted(sizes_of, most, side="right") - 1
            return round(p * above) + before, table[place] if above else -1

        return plan(part, rows, limits) if rows else Plan((), 0.0)

    parts = groups or [ranking]
    for size in sorted({round(share * len(ranking)) for share in regions or _REGIONS}):
        threshold = ranking.threshold(size)
        plans = [planned(part, threshold) for part in parts]
        candidates = next((entry.candidates for entry in plans if entry.candidates), ())
        share = float(np.average([entry.share for entry in plans], weights=list(map(len, parts))))
        if candidates:
            found.append((threshold, Plan(candidates, share)))
    return max(found, key=lambda region: region[1].share, default=None)


def sampling(inclusion: float, rows: int, most: int | None = None) -> Sampling:
    """Return how rows of one batch are drawn from the `rows` rows with the highest scores."""
    ceiling = math.ceil(inclusion * rows - 1e-9)
    return Sampling(inclusion, ceiling if most is None else min(most, rows))
