"""Show by simulation that promises of ``covcal decide`` are kept at the boundary.

    python examples/research/benchmark/decide_exact.py [--draws 10000]

Everything is as the command does it: the region, the draw, the candidates and their tests. Only the
labels are made, so that accepting any row breaks the promise. For a promise on future rows, each
row is wrong with a probability just above the limit. For a promise on these rows, every candidate
has one wrong row too many. A line of the output is one setting, with the share of draws in which
the promise is broken.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from covcal_cli.arrays import Integers
from covcal_cli.labels.design import drawn_along
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
Part = tuple[float, float, int, int]  # a batch: p, q, rows of its region, labels
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
    """A pool of rows, and the error and certainty of the promise."""

    rows: int
    labels: int  # of one batch
    error: float
    values: int = 0  # different scores; 0: all scores differ
    batches: int = 1

    def ranking(self) -> Ranking:
        """Return scores, and beliefs by which a promise is likely."""
        scores = np.random.default_rng(self.rows).beta(4, 1, size=self.rows)
        if self.values:
            scores = np.ceil(scores * self.values) / (self.values + 1)
        shares = np.linspace(0, 1, 101)
        # The error grows from a third of the limit to twice the limit.
        beliefs = [shares * self.error * (0.3 + power * shares) for power in (0.2, 0.6, 1.7)]
        return Ranking(scores, beliefs)


def broken(setting: Setting, draws: int) -> list[float]:
    """Return the share of draws with a broken promise: on future rows, and on these rows."""
    counts = [0, 0]
    for draw in range(draws):
        rng = np.random.default_rng([draw, setting.rows, setting.labels])
        left, drawn = np.arange(setting.rows), list[Integers]()
        parts: list[Part] = []
        for look in range(1, setting.batches + 1):
            region = _region(setting, look)
            if region is None:
                break
            if drawn:
                left = np.setdiff1d(left, drawn[-1], assume_unique=True)
            inside = int((left < region).sum())
            labels = min(setting.labels, len(left))
            p, q = inclusions(labels, inside, len(left) - inside)
            parts.append((p, q, region, labels))
            drawn.append(drawn_along([(left, np.where(left < region, p, q))], rng))
        for these_rows in (False, True):
            counts[these_rows] += any(
                _passes(setting, tuple(parts[:look]), drawn[:look], rng, these_rows=these_rows)
                for look in range(1, len(parts) + 1)
            )
    return [count / draws for count in counts]


@cache
def _region(setting: Setting, look: int) -> int | None:
    """Return the number of rows of the region that a batch is drawn from."""
    level = level_of_look(CERTAINTY, look)
    region = best_region(setting.ranking(), setting.labels, setting.error, level)
    return None if region is None else region.rows


def _passes(
    setting: Setting,
    parts: tuple[Part, ...],
    drawn: list[Integers],
    rng: np.random.Generator,
    *,
    these_rows: bool,
) -> bool:
    """Return whether the first candidate is accepted with the batches up to a look."""
    before = tuple(tuple(rows.tolist()) for rows in drawn[:-1])
    first = _first_candidate(setting, parts, before, these_rows)
    if first is None:
        return False
    rows, allowed = first
    inside = np.concatenate(drawn)
    inside = inside[inside < rows]
    if these_rows:
        wrong = rng.permutation(rows)[: int(setting.error * rows + 1e-9) + 1]
        return int(np.isin(inside, wrong).sum()) <= allowed
    return bool(rng.binomial(len(inside), setting.error) <= allowed)


@cache
def _first_candidate(
    setting: Setting,
    parts: tuple[Part, ...],
    before: tuple[tuple[int, ...], ...],
    these_rows: bool,
) -> tuple[int, int] | None:
    """Return the rows of the first candidate, and the most wrong labels that it allows."""
    ranking, level = setting.ranking(), level_of_look(CERTAINTY, len(parts))
    earlier = np.array([row for rows in before for row in rows], dtype=np.int64)
    ends = np.cumsum([0, *(len(rows) for rows in before)])

    def batches(count: int) -> list[Sampling]:
        samplings = []
        for number, (p, q, region, labels) in enumerate(parts):
            taken = int((earlier[: ends[min(number, len(ends) - 1)]] < count).sum())
            inclusion = p if count <= region else min(p, q)
            most = None if count <= region else labels
            samplings.append(sampling(inclusion, count - taken, most))
        return samplings

    def allowed(count: int, drawn: Sequence[Sampling]) -> int:
        return most_wrong(count, drawn, setting.error, level, these_rows=these_rows)

    most = max(region for _, _, region, _ in parts)
    candidates = plan(ranking, most, batches, allowed).candidates
    return (candidates[0].rows, candidates[0].wrong) if candidates else None


def main() -> None:
    """Print a line per setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=10_000)
    draws = parser.parse_args().draws
    print("rows labels error scores batches future-rows these-rows allowed")
    for rows, labels, error in _SETTINGS:
        for values, batches in ((0, 1), (6, 1), (0, 2)):
            # A second batch needs a plan for every draw.
            if batches == 2 and (rows, labels) not in _TWICE:
                continue
            setting = Setting(rows, labels, error, values, batches)
            shares = broken(setting, draws if batches == 1 else draws // 20)
            level = sum(level_of_look(CERTAINTY, look) for look in range(1, batches + 1))
            print(
                rows, labels, error, values or "all differ", batches,
                *(f"{share:.4f}" for share in shares), f"{level:.3f}", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
