"""Show by simulation that ``covcal decide`` keeps the promised error rate in the worst case.

    python examples/research/benchmark/decide_exact.py [--draws 10000] [--least-batches 1]

Labels are simulated. Rows are drawn and tested by the functions of ``covcal decide``. In the worst
case, the promise is broken whenever ``decide`` accepts any row. To simulate this case for future
rows, the true error rate is exactly the promised limit. Either all rows have the same error
probability, or the error probability grows from 0 to twice the limit as the score falls. For the
rows of the file, the number of wrong rows is the smallest number that breaks the promise. The
output shows for each setting how often the promise is broken.

All simulations of a setting draw their rows at once (`drawn_together`). Later batches of all
simulations use the score thresholds that were chosen in the first simulation.

In simulations with a promise for each group, the output shows how often at least one promise is
broken. Rows are drawn either within each group, or from all rows.

The last lines are for users who choose the size of the second batch after they have seen the labels
of the first batch. For these lines, the number of rows is infinite, and the user chooses the worst
size.
"""

import argparse
import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from covcal_cli.arrays import Booleans, Float64s, Integers
from covcal_cli.labels.draws import inclusions_of_groups
from covcal_cli.maths.acceptance import (
    Ranking,
    Sampling,
    best_region,
    inclusions,
    level_of_look,
    most_wrong,
    plan,
    sampling,
)

CERTAINTY = 0.9
_SETTINGS = (
    (60, (5,), 0.5),
    (60, (20,), 0.2),
    (60, (60,), 0.1),
    (300, (50,), 0.1),
    (300, (200,), 0.05),
    (2_000, (50,), 0.2),
    (2_000, (100,), 0.1),
    (2_000, (500,), 0.02),
    (20_000, (200,), 0.05),
    (100_000, (50,), 0.1),
    (100_000, (500,), 0.05),
    (60, (5, 5), 0.5),
    (60, (20, 20), 0.2),
    (60, (5, 20, 30), 0.3),
    (300, (50, 50), 0.1),
    (300, (20, 50, 100), 0.2),
    (2_000, (100, 100), 0.1),
    (2_000, (500, 500), 0.02),
    (2_000, (50, 100, 200), 0.1),
    (20_000, (200, 200), 0.05),
    (20_000, (100, 200, 500), 0.05),
    (100_000, (50, 100), 0.1),
    (100_000, (500, 500), 0.05),
    (100_000, (5, 50, 500), 0.2),
)
# Entries: group sizes, labels, error limit, and number of different scores (0: all differ).
_GROUPS = (
    ((200, 60), 80, 0.2, 0),
    ((2_000, 2_000), 200, 0.1, 0),
    ((2_000, 500), 200, 0.1, 6),
    ((3_000, 300, 60), 150, 0.2, 0),
    ((20_000, 2_000, 500, 100), 400, 0.1, 0),
    ((1_000, 1_000, 1_000, 1_000), 600, 0.1, 6),
    ((50_000, 20_000, 5_000, 2_000, 1_000), 1_000, 0.05, 0),
    ((4_000, 3_000, 2_000, 1_000, 500, 300, 200, 100), 800, 0.2, 0),
    ((10_000,) * 8, 1_200, 0.1, 0),
    ((10_000,) * 8, 1_200, 0.1, 6),
)
_LATER = (5, 10, 20, 30, 50, 80, 100, 150, 200, 300, 500, 1000, 2000)


@dataclass(frozen=True)
class Setting:
    """The number of rows, the numbers of labels, and the promised error rate of a simulation."""

    rows: int
    labels: tuple[int, ...]  # number of labels of each batch
    error: float
    values: int = 0  # number of different scores; 0: all scores differ

    @property
    def scores(self) -> Float64s:
        """Simulated scores of the rows in descending order."""
        scores = np.random.default_rng(self.rows).beta(4, 1, size=self.rows)
        if self.values:
            scores = np.ceil(scores * self.values) / (self.values + 1)
        return np.sort(scores)[::-1]

    def ranking(self, scores: Float64s) -> Ranking:
        """Return a ranking of the scores, with three assumed error probabilities of each row."""
        shares = np.linspace(0, 1, 101)
        # The assumed error probability of a row grows as its score falls.
        beliefs = [shares * self.error * (0.3 + power * shares) for power in (0.2, 0.6, 1.7)]
        return Ranking(np.sort(scores), beliefs)


class Draws:
    """Many simulations that draw batches of rows, and test the promise after each batch."""

    def __init__(self, setting: Setting, draws: int, *, pool: bool) -> None:
        """Draw all batches. With `pool`, the promise covers all rows, even with low scores."""
        self.setting, self.pool = setting, pool
        self.scores = setting.scores
        self.ranking = setting.ranking(self.scores)
        self.rng = np.random.default_rng([setting.rows, *setting.labels])
        self.regions: list[int] = []
        self.rows: list[Integers] = []  # The drawn rows of each batch, shape (draws, labels).
        self.inclusions: list[Float64s] = []  # Sampling probabilities, (draws, 2).
        for look, labels in enumerate(setting.labels, 1):
            self._draw(look, labels, draws)

    def _draw(self, look: int, labels: int, draws: int) -> None:
        """Draw one batch in every simulation, from rows that were not drawn before."""
        n, lost = self.setting.rows, sum(rows.shape[1] for rows in self.rows)
        labels = min(labels, n - lost)
        earlier = np.sort(np.concatenate([np.empty((draws, 0), np.int64), *self.rows], axis=1))
        left = self.setting.ranking(np.delete(self.scores, earlier[0]))
        best = best_region(left, labels, self.setting.error, level_of_look(CERTAINTY, look))
        region = self.ranking.above(best[0]) if best is not None else n
        inside = region - (earlier < region).sum(axis=1)
        rows, parts = np.empty((draws, labels), dtype=np.int64), np.empty((draws, 2))
        for number in np.unique(inside):
            group = np.flatnonzero(inside == number)
            p, q = parts[group] = inclusions(labels, int(number), n - lost - int(number))
            of_places = np.where(np.arange(n - lost) < number, p, q)
            rows[group] = drawn_together(of_places, len(group), self.rng)
        if lost:
            # Convert positions among the remaining rows to positions among all rows.
            for of_draw, taken in zip(rows, earlier - np.arange(lost), strict=True):
                of_draw += np.searchsorted(taken, of_draw, "right")
        self.regions.append(region)
        self.rows.append(rows)
        self.inclusions.append(parts)

    def samplings(
        self, count: int, looks: int, draws: int | None = None
    ) -> list[tuple[Sampling, ...]]:
        """Return, for each simulation, how the batches were sampled from the top `count` rows."""
        of_batches, left = [], count
        for batch in range(looks):
            rows, parts = self.rows[batch][:draws], self.inclusions[batch][:draws]
            above = np.broadcast_to(left, len(rows)).tolist()
            is_inside = count <= self.regions[batch]
            of_batches.append(
                [
                    sampling(p, number) if is_inside else sampling(min(p, q), number, rows.shape[1])
                    for (p, q), number in zip(parts.tolist(), above, strict=True)
                ]
            )
            left = left - (rows < count).sum(axis=1)
        return list(zip(*of_batches, strict=True))

    def broken(self, *, these_rows: bool) -> list[float]:
        """Return how often the promise is broken after at least one batch."""
        looks = range(1, len(self.rows) + 1)
        passes = [self._passes(look, level_of_look(CERTAINTY, look), these_rows) for look in looks]
        return [float(np.any(of_place, axis=0).mean()) for of_place in zip(*passes, strict=True)]

    def broken_together(self, *, these_rows: bool) -> list[float]:
        """Return how often a promise was broken if all batches are tested only once."""
        passes = self._passes(len(self.rows), level_of_look(CERTAINTY, 1), these_rows)
        return [float(of_place.mean()) for of_place in passes]

    def _passes(self, look: int, level: float, these_rows: bool) -> list[Booleans]:
        """Return whether each simulation accepts any row, for each result of `_wrong`."""
        error = self.setting.error
        drawn = np.concatenate(self.rows[:look], axis=1)

        def most(count: int, batches: tuple[Sampling, ...]) -> int:
            return most_wrong(count, batches, error, level, these_rows=these_rows)

        count = self.setting.rows
        if not self.pool:

            def limits_of(threshold: float) -> tuple[int, int]:
                above = self.ranking.above(threshold)
                (batches,) = self.samplings(above, look, 1)
                labels = round(sum(batch.inclusion for batch in batches) * above)
                return labels, most(above, batches)

            candidates = plan(self.ranking, min(self.regions[:look]), limits_of).candidates
            count = candidates[0].rows if candidates else 0
        if not count:
            return [np.zeros(len(drawn), dtype=bool)] * (1 if these_rows else 2)
        samplings = self.samplings(count, look)
        limit_of = {batches: most(count, batches) for batches in set(samplings)}
        limits = np.array([limit_of[batches] for batches in samplings])
        inside = drawn < count
        wrong = [is_wrong[:, : drawn.shape[1]] for is_wrong in self._wrong(count, these_rows)]
        return [(inside & is_wrong).sum(axis=1) <= limits for is_wrong in wrong]

    def _wrong(self, count: int, these_rows: bool) -> list[Booleans]:
        """Simulate labels, and return whether each drawn row is classified wrongly."""
        rng, error = np.random.default_rng([7, count]), self.setting.error
        rows = np.concatenate(self.rows, axis=1)
        if not these_rows:
            chances = rng.random(rows.shape)
            return [chances < error, chances < 2 * error * (rows + 0.5) / count]
        most = int(error * count + 1e-9) + 1
        # The wrong rows are chosen at random. So the next drawn row is wrong with probability
        # (wrong rows left) / (rows left).
        anywhere, wrong, before = np.zeros(rows.shape, dtype=bool), np.zeros(len(rows)), 0.0
        for place, inside in enumerate((rows < count).T):
            anywhere[:, place] = inside & (rng.random(len(rows)) * (count - before) < most - wrong)
            wrong, before = wrong + anywhere[:, place], before + inside
        return [anywhere]


def drawn_together(inclusion: Float64s, draws: int, rng: np.random.Generator) -> Integers:
    """Return rows drawn in many simulations by ordered pivotal sampling, shape (draws, n).

    The strata are the same in all simulations.
    """
    certain = np.flatnonzero(inclusion >= 1)
    others = np.flatnonzero(inclusion < 1)
    edges = np.concatenate([[0.0], np.cumsum(inclusion[others])])
    labels = round(float(edges[-1]))
    chosen = np.empty((draws, labels), dtype=np.int64)
    carried, first = np.full(draws, -1), 0
    for stratum in range(labels):
        last = min(int(np.searchsorted(edges[1:], stratum + 1 - 1e-9)), len(others) - 1)
        inside, reaching = edges[last] - stratum, edges[last + 1] - edges[last]
        point = stratum + rng.random(draws) * inside
        index = np.searchsorted(edges, point, "right") - 1
        winner = np.where(point >= edges[first], np.minimum(index, last - 1), carried)
        loses = (winner < 0) | (rng.random(draws) * (2 - inside - reaching) < 1 - inside)
        chosen[:, stratum] = np.where(loses, last, winner)
        carried, first = np.where(loses, winner, last), last + 1
    rows = np.broadcast_to(certain, (draws, len(certain)))
    return np.concatenate([rows, others[chosen]], axis=1)


def broken_in_groups(
    sizes: tuple[int, ...], labels: int, error: float, values: int, draws: int, *, by_group: bool
) -> list[float]:
    """Return how often the promise is broken for at least one group.

    With `by_group`, every group gets the same number of labels. Otherwise, the labelled rows are
    drawn from all rows.
    """
    setting = Setting(sum(sizes), (labels,), error, values)
    rng = np.random.default_rng([*sizes, labels])
    groups = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    scores, level = setting.scores, level_of_look(CERTAINTY, 1) / len(sizes)
    ranking = setting.ranking(scores)
    parts = [ranking.part(scores[groups == group]) for group in range(len(sizes))]
    each = -(-labels // len(sizes))
    best = best_region(ranking, each, error, level, groups=parts)
    threshold = 0.0 if best is None else best[0]
    of_draw = groups if by_group else np.zeros_like(groups)
    pairs = inclusions_of_groups(labels, scores > threshold, of_draw)
    order = np.lexsort((-scores, of_draw))
    inclusion = np.where(scores > threshold, *pairs[of_draw].T)
    rows = order[drawn_together(inclusion[order], draws, rng)]
    broken = np.zeros((3, draws), dtype=bool)
    for group, part in enumerate(parts):
        p, _ = pairs[group if by_group else 0]

        def limits(
            of: float, these: bool = False, part: Ranking = part, p: float = p
        ) -> tuple[int, int]:
            count = part.above(of)
            most = math.ceil(p * count) + 1 if by_group else labels
            drawn = [sampling(p, count, most)]
            return round(p * count), most_wrong(count, drawn, error, level, these_rows=these)

        for these in (False, True):
            candidates = plan(part, part.above(threshold), partial(limits, these=these)).candidates
            if not candidates:
                continue
            count, allowed = candidates[0].rows, candidates[0].wrong
            inside = (groups[rows] == group) & (scores[rows] > candidates[0].threshold)
            n = inside.sum(axis=1)
            if these:
                wrong = int(error * count + 1e-9) + 1
                broken[2] |= rng.hypergeometric(wrong, count - wrong, n) <= allowed
                continue
            broken[0] |= rng.binomial(n, error) <= allowed
            place = np.zeros(len(scores))
            place[np.flatnonzero(groups == group)] = np.arange(sizes[group]) + 0.5
            chances = 2 * error * place[rows] / count
            broken[1] |= (inside & (rng.random(rows.shape) < chances)).sum(axis=1) <= allowed
    return [float(share) for share in broken.mean(axis=1)]


def by_labels(labels: int, error: float) -> tuple[float, float]:
    """Return the probability that the promise is broken after one batch, and after two batches.

    The number of rows is infinite. After the first batch, the user chooses the second batch size in
    `_LATER` with which the test is passed most often.
    """

    def most(n: int, level: float) -> int:
        total, k = _binomial(0, n, error), -1
        while total <= level:
            k, total = k + 1, total + _binomial(k + 2, n, error)
        return k

    first = most(labels, level_of_look(CERTAINTY, 1))
    later = {n: most(labels + n, level_of_look(CERTAINTY, 2)) for n in _LATER}
    before = sum(_binomial(k, labels, error) for k in range(first + 1))
    after = before
    for wrong in range(first + 1, max(later.values()) + 1):
        passes = max(
            sum(_binomial(k, n, error) for k in range(limit - wrong + 1))
            for n, limit in later.items()
        )
        after += _binomial(wrong, labels, error) * passes
    return before, after


def _binomial(k: int, n: int, p: float) -> float:
    if k > n:
        return 0.0
    return math.exp(
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        + k * math.log(p) + (n - k) * math.log1p(-p)
    )  # fmt: skip


def main() -> None:
    """Simulate every setting, and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument(
        "--least-batches", type=int, default=1, help="number of batches; 4: simulate only groups"
    )
    options = parser.parse_args()
    broken = (
        "broken promises for future rows with equal errors, with unequal errors, for given rows"
    )
    print(
        "The columns are: rows, labels, error limit, number of different scores, tested rows, "
        f"{broken}, allowed share of broken promises."
    )
    print(
        "If there are several batches, the last columns are for one test of all batches together: "
        f"{broken}."
    )
    for rows, labels, error in _SETTINGS:
        if len(labels) < options.least_batches:
            continue
        level = sum(level_of_look(CERTAINTY, look) for look in range(1, len(labels) + 1))
        for values, pool in ((0, False), (6, False), (0, True)):
            made = Draws(Setting(rows, labels, error, values), options.draws, pool=pool)
            shares = [*made.broken(these_rows=False), *made.broken(these_rows=True), level]
            if len(labels) > 1:
                shares += made.broken_together(these_rows=False)
                shares += made.broken_together(these_rows=True)
            print(
                rows, "+".join(map(str, labels)), error, values or "differ",
                "all" if pool else "first", *(f"{share:.4f}" for share in shares), flush=True,
            )  # fmt: skip
    print(
        "The columns are: rows of each group, labels, error limit, number of different scores, "
        f"draw (by group or from all rows), {broken}, allowed share of broken promises."
    )
    for sizes, count, error, values in _GROUPS:
        for by_group in (True, False):
            shares = broken_in_groups(sizes, count, error, values, options.draws, by_group=by_group)
            print(
                "+".join(map(str, sizes)), count, error, values or "differ",
                "by-group" if by_group else "all-rows", *(f"{share:.4f}" for share in shares),
                f"{level_of_look(CERTAINTY, 1):.4f}", flush=True,
            )  # fmt: skip
    print("Here, the user chooses the size of the second batch after labelling the first batch.")
    print("The columns are: labels, error limit, broken promises after one batch, after both.")
    for error in (0.02, 0.05, 0.1, 0.2, 0.5):
        for count in (5, 20, 50, 100, 200, 500):
            print(count, error, *(f"{share:.4f}" for share in by_labels(count, error)))


if __name__ == "__main__":
    main()
