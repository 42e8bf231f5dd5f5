"""Show by simulation that ``covcal decide`` keeps its promises in the worst case.

    python examples/research/benchmark/decide_exact.py [--draws 10000]

The region, the draw, the candidates and their tests are computed as in the command. Only the labels
are simulated. In the worst case, a promise is broken if any row is accepted. For a promise about
future rows, their error equals the limit. The error is the same for all rows, or it grows to twice
the limit for rows with low scores. For a promise about these rows, the candidate has one wrong row
too many. Each line of the output has a setting, and the shares of draws in which a promise is
broken.
"""

import argparse
from dataclasses import dataclass
from functools import cache

import numpy as np

from covcal_cli.arrays import Booleans, Float64s, Integers
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
    (60, 5, 0.5),
    (60, 20, 0.2),
    (60, 60, 0.1),
    (300, 50, 0.1),
    (300, 200, 0.05),
    (2_000, 50, 0.2),
    (2_000, 100, 0.1),
    (2_000, 500, 0.02),
    (20_000, 200, 0.05),
    (100_000, 50, 0.1),
    (100_000, 500, 0.05),
)
_TWICE = ((60, 20), (300, 50), (2_000, 100))


@dataclass(frozen=True)
class Setting:
    """A set of rows to draw from, and the error and the certainty that are promised."""

    rows: int
    labels: int  # number of labels of one batch
    error: float
    values: int = 0  # number of different scores; 0: all scores differ

    @property
    def ranking(self) -> Ranking:
        """The rows ranked by score, with three assumptions about their errors."""
        scores = np.random.default_rng(self.rows).beta(4, 1, size=self.rows)
        if self.values:
            scores = np.ceil(scores * self.values) / (self.values + 1)
        shares = np.linspace(0, 1, 101)
        # The probability of an error grows from a third of the limit to twice the limit.
        beliefs = [shares * self.error * (0.3 + power * shares) for power in (0.2, 0.6, 1.7)]
        return Ranking(scores, beliefs)


class Draws:
    """Many draws of the same batches from one set of rows. After each batch comes a test."""

    def __init__(self, setting: Setting, batches: int, draws: int, *, pool: bool) -> None:
        """Draw the batches. With `pool`, rows inside and outside the region are tested together."""
        self.setting, self.ranking, self.pool = setting, setting.ranking, pool
        self.rng = np.random.default_rng([setting.rows, setting.labels])
        self.regions: list[int] = []
        self.rows: list[Integers] = []  # The drawn rows of each batch, shape (draws, labels).
        self.inclusions: list[Float64s] = []  # p and q of each batch, shape (draws, 2).
        for look in range(1, batches + 1):
            level = level_of_look(CERTAINTY, look)
            region = best_region(self.ranking, setting.labels, setting.error, level)
            if region is not None:
                self._draw(region.rows, draws)

    def _draw(self, region: int, draws: int) -> None:
        """Draw a batch from the rows that earlier batches did not draw, for many draws at once."""
        n, lost = self.setting.rows, sum(rows.shape[1] for rows in self.rows)
        labels = min(self.setting.labels, n - lost)
        inside = np.full(draws, region)
        for earlier in self.rows:
            inside -= (earlier < region).sum(axis=1)
        rows = np.empty((draws, labels), dtype=np.int64)
        parts = np.empty((draws, 2))
        for number in np.unique(inside):
            group = np.flatnonzero(inside == number)
            p, q = parts[group] = inclusions(labels, int(number), n - lost - int(number))
            of_places = np.where(np.arange(n - lost) < number, p, q)
            places = drawn_together(of_places, len(group), self.rng)
            if lost:
                left = np.ones((len(group), n), dtype=bool)
                for earlier in self.rows:
                    np.put_along_axis(left, earlier[group], False, axis=1)
                rows_left = np.nonzero(left)[1].reshape(len(group), n - lost)
                places = np.take_along_axis(rows_left, places, axis=1)
            rows[group] = places
        self.regions.append(region)
        self.rows.append(rows)
        self.inclusions.append(parts)

    def samplings(self, count: int, looks: int, draw: int) -> list[Sampling]:
        """Return, for one draw, the `Sampling` of each batch, from the first `count` rows."""
        samplings = []
        for batch in range(looks):
            left = count - sum(int((rows[draw] < count).sum()) for rows in self.rows[:batch])
            p, q = self.inclusions[batch][draw]
            if count <= self.regions[batch]:
                samplings.append(sampling(p, left))
            else:
                samplings.append(sampling(min(p, q), left, self.rows[batch].shape[1]))
        return samplings

    def broken(self, *, these_rows: bool) -> list[float]:
        """Return the share of draws with a broken promise, for each placement of errors."""
        passes = [self._passes(look, these_rows) for look in range(1, len(self.rows) + 1)]
        return [float(np.any(of_place, axis=0).mean()) for of_place in zip(*passes, strict=True)]

    def _passes(self, look: int, these_rows: bool) -> list[Booleans]:
        """Return whether each draw accepts the first candidate, for each placement of errors."""
        level, error = level_of_look(CERTAINTY, look), self.setting.error
        drawn = np.concatenate(self.rows[:look], axis=1)

        @cache
        def most(count: int, *batches: Sampling) -> int:
            return most_wrong(count, batches, error, level, these_rows=these_rows)

        count = self.setting.rows
        if not self.pool:

            def limits_of(threshold: float) -> tuple[int, int]:
                above = self.ranking.above(threshold)
                batches = self.samplings(above, look, 0)
                labels = round(sum(batch.inclusion for batch in batches) * above)
                return labels, most(above, *batches)

            candidates = plan(self.ranking, max(self.regions[:look]), limits_of).candidates
            count = candidates[0].rows if candidates else 0
        if not count:
            return [np.zeros(len(drawn), dtype=bool)] * (1 if these_rows else 2)
        limits = [most(count, *self.samplings(count, look, draw)) for draw in range(len(drawn))]
        inside = drawn < count
        wrong = [is_wrong[:, : drawn.shape[1]] for is_wrong in self._wrong(count, these_rows)]
        return [(inside & is_wrong).sum(axis=1) <= limits for is_wrong in wrong]

    def _wrong(self, count: int, these_rows: bool) -> list[Booleans]:
        """Return whether each drawn row is wrong, for each placement of errors."""
        rng, error = np.random.default_rng([7, count]), self.setting.error
        rows = np.concatenate(self.rows, axis=1)
        if not these_rows:
            chances = rng.random(rows.shape)
            return [chances < error, chances < 2 * error * (rows + 0.5) / count]
        most = int(error * count + 1e-9) + 1
        # The wrong rows are a random set.
        # So a drawn row is wrong with a probability of (wrong rows left) / (rows left).
        anywhere, wrong, before = np.zeros(rows.shape, dtype=bool), np.zeros(len(rows)), 0.0
        for place, inside in enumerate((rows < count).T):
            anywhere[:, place] = inside & (rng.random(len(rows)) * (count - before) < most - wrong)
            wrong, before = wrong + anywhere[:, place], before + inside
        return [anywhere]


def drawn_together(inclusion: Float64s, draws: int, rng: np.random.Generator) -> Integers:
    """Return the rows of many draws by ordered pivotal sampling, shape (draws, n).

    The order of the rows and the ends of the strata are equal for all draws.
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


def main() -> None:
    """Print a line per setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=10_000)
    draws = parser.parse_args().draws
    print("rows labels error scores candidate batches future growing these-rows allowed")
    for rows, labels, error in _SETTINGS:
        kinds = [(0, 1, False), (6, 1, False), (0, 1, True)]
        if (rows, labels) in _TWICE:
            kinds.append((0, 2, False))
        for values, batches, pool in kinds:
            setting = Setting(rows, labels, error, values)
            made = Draws(setting, batches, draws, pool=pool)
            shares = [*made.broken(these_rows=False), *made.broken(these_rows=True)]
            level = sum(level_of_look(CERTAINTY, look) for look in range(1, batches + 1))
            print(
                rows, labels, error, values or "differ", "all" if pool else "first", batches,
                *(f"{share:.4f}" for share in shares), f"{level:.3f}", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
