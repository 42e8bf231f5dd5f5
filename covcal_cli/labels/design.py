"""The sampling design: a fixed number of rows, exact inclusion probabilities, well spread rows.

Let s_i be the score of row i, the probability that the classifier is right. The number of right
rows is estimated by the difference estimator sum_i s_i + sum_{drawn} (right_i - s_i) / pi_i
(Cassel, Särndal & Wretman 1976). If s is right, the variance of this estimate is smallest on
average for pi_i in proportion to sqrt(s_i (1 - s_i)), the standard deviation of right_i (Isaki &
Fuller 1982; Särndal, Swensson & Wretman 1992, section 12.2). So rows whose outcome is nearly
certain are rarely drawn. This is active testing (Kossen et al. 2021) with a fixed number of rows.

Because s may be wrong, a share `FLOOR` of the draw is uniform over all rows. So every pi_i is above
0 and every weight is below N / (n FLOOR). The estimate is unbiased for any s.

Rows are drawn by ordered pivotal sampling (Deville & Tillé 1998). The rows are put in an order and
placed one after the other on a line, each with length pi_i. One row is drawn from every unit of
length, so the sample is spread along the whole order. Its variance is never above that of a draw
with replacement (Chauvet 2012; Chauvet & Ruiz-Gazen 2017), so intervals by the usual formula of
Hansen & Hurwitz (1943) are valid. For systematic draws, which use a single random number, no
formula is valid.

Both steps process the rows in parts, so that arrays of all rows need not be in memory.
"""

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from covcal_cli.arrays import AnyArray, Booleans, Float64s, Floats, Integers
from covcal_cli.maths.acceptance import OUTSIDE

FLOOR = 0.2  # share of the draw that is uniform over all rows
_ROUNDING = 1e-9  # rounding of sums of lengths
_SIGMAS = 6.0  # the largest error of an estimated population, in standard errors
_BANDS = 5  # number of bands of the score
_CHUNK = 1 << 18  # rows processed at a time


def inclusion_probabilities(scores: Float64s, n: int) -> Float64s:
    """Return pi, shape (N,): above 0, at most 1, and with sum n; see `inclusion_rule`."""
    return inclusion_rule(lambda: (scores,), n)(scores)


def inclusion_rule(
    parts: Callable[[], Iterable[Float64s]], n: int
) -> Callable[[Float64s], Float64s]:
    """Return the function that maps scores to pi, which is above 0, at most 1, and has sum n.

    - `parts`: returns the scores of all N rows, in [0, 1], in parts; it is called several times.
    - `n`: number of rows to draw, from 1 to N.
    """
    total, N = 0.0, 0
    for scores in parts():
        total, N = total + float(_spread(scores).sum()), N + len(scores)

    def size(scores: Float64s) -> Float64s:
        if total == 0:
            return np.full(len(scores), 1 / N)
        return np.asarray((1 - FLOOR) * _spread(scores) / total + FLOOR * (1 / N))

    # A row with a length above 1 is drawn with certainty. The other rows share the rest of the
    # draw, which may make more rows certain. Each round stores the rest of the draw and the length
    # of the other rows.
    rounds: list[tuple[int, float]] = []

    def is_certain(sizes: Float64s) -> Booleans:
        certain = np.zeros(len(sizes), dtype=np.bool_)
        for left, length in rounds:
            certain |= left * sizes / length >= 1
        return certain

    while True:
        certain, rest = 0, 0.0
        for scores in parts():
            sizes = size(scores)
            is_out = is_certain(sizes)
            certain, rest = certain + int(is_out.sum()), rest + float(sizes[~is_out].sum())
        if rounds and certain == n - rounds[-1][0]:
            break
        rounds.append((n - certain, max(rest, 1e-300)))

    def probabilities(scores: Float64s) -> Float64s:
        sizes, (left, length) = size(scores), rounds[-1]
        return np.where(is_certain(sizes), 1.0, left * sizes / length)

    return probabilities


def is_possible(inclusion: Float64s, population: int, *, for_decision: bool) -> bool:
    """Return whether inclusion probabilities, shape (n,), can be those of n drawn rows.

    Each is at least the uniform share of the draw. The sum of their inverses estimates the
    population, within the noise of a draw with replacement (Hansen & Hurwitz 1943). A draw for a
    decision has few or no rows outside its region, so `decide` checks it instead.
    """
    n, N = len(inclusion), population
    floor = OUTSIDE if for_decision else FLOOR
    possible = n <= N and bool(((inclusion >= floor * n / N * (1 - 1e-6)) & (inclusion <= 1)).all())
    if not possible or for_decision:
        return possible
    certain = inclusion == 1
    left, rest = N - int(certain.sum()), 1 / inclusion[~certain]
    spread = float(rest.std(ddof=1)) if len(rest) > 1 else float(rest.sum())
    # The floor limits every weight, so a few missing rows cannot cause a large error.
    noise = _SIGMAS * spread * math.sqrt(len(rest)) + (N / FLOOR / n if len(rest) else 0.0)
    return abs(float(rest.sum()) - left) <= noise + 1e-6 * N


def _spread(scores: Float64s) -> Float64s:
    return np.asarray(np.sqrt(scores * (1 - scores)))


def order_of_likeness(scores: Floats, predictions: AnyArray) -> Iterator[Integers]:
    """Yield row numbers, in parts, in an order with similar neighbours.

    A part is a band of the score. Within a band, rows are sorted by predicted class and then by
    score. Every second band is reversed, so that neighbours in different bands are similar too.
    Among rows with equal scores, the first rows belong to the lower band.

    - `scores`, (N,): any increasing function of the scores.
    - `predictions`, (N,): predicted classes, of a signed type.
    """
    n = len(scores)
    ranks = [-(-band * n // _BANDS) for band in range(_BANDS + 1)]
    cuts = [rank for rank in ranks if rank < n]
    values = dict(zip(cuts, np.partition(scores, cuts)[cuts].tolist(), strict=True))
    reached = np.ones(n, dtype=np.bool_)
    for band, rank in enumerate(ranks[1:]):
        following = np.zeros(n, dtype=np.bool_)
        if rank < n:
            following = _from_rank(scores, rank, values[rank])
        reached &= ~following
        places: Integers = np.flatnonzero(reached).astype(np.int32 if n < 1 << 31 else np.int64)
        reached = following
        forth = -1 if band % 2 else 1
        yield places[np.lexsort((forth * scores[places], forth * predictions[places]))]


def _from_rank(scores: Floats, rank: int, value: float) -> Booleans:
    """Return which rows have at least this rank; `value` is the score at the rank."""
    above: Booleans = scores > value
    skipped = rank - int(np.count_nonzero(scores < value))
    for start in range(0, len(scores), _CHUNK):
        ties = start + np.flatnonzero(scores[start : start + _CHUNK] == value)
        above[ties[skipped:]] = True
        skipped = max(0, skipped - len(ties))
    return above


def drawn(probabilities: Float64s, rng: np.random.Generator) -> Integers:
    """Draw rows; return their numbers, ascending, shape (n,) int64; see `drawn_along`."""
    return drawn_along([(np.arange(len(probabilities)), probabilities)], rng)


def drawn_along(parts: Iterable[tuple[Integers, Float64s]], rng: np.random.Generator) -> Integers:
    """Draw rows; return their numbers in their order along the line, shape (n,) int64.

    - `parts`: row numbers in order, and their pi, which sum to n over all parts.
    """
    # The place in the order and the number of each drawn row.
    certain: list[tuple[int, int]] = []
    winners: list[tuple[int, int]] = []
    # The rows that no stratum has used yet, with their start and end on the line.
    rows: list[Integers] = [np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)]
    edges, first = np.zeros(1), 0
    # A row that was not drawn in its first stratum goes on with its remaining length.
    carried: tuple[int, int] | None = None

    def row(index: int) -> tuple[int, int]:
        place, number = rows
        return int(place[index]), int(number[index])

    def draw_one(last: int) -> None:
        """Draw one row from the next stratum; the row `last` extends beyond its end."""
        nonlocal carried, first
        stratum = len(winners)
        inside = edges[last] - stratum
        # Draw one of the rows inside in proportion to their lengths; it represents all of them.
        point = stratum + rng.random() * inside
        winner = carried
        if point >= edges[first]:
            index = int(np.searchsorted(edges, point, "right")) - 1
            winner = row(index) if index >= 0 else None
        # Then draw either this row or the last row; the other row goes on.
        reaching = edges[last + 1] - edges[last]
        loses = winner is None or rng.random() * (2 - inside - reaching) < 1 - inside
        if winner is None or loses:
            winners.append(row(last))
            carried = winner
        else:
            winners.append(winner)
            carried = row(last)
        first = last + 1

    start = 0
    for numbers, probabilities in parts:
        is_certain = probabilities == 1
        places = np.flatnonzero(is_certain)
        certain += zip((start + places).tolist(), numbers[places].tolist(), strict=True)
        others = np.flatnonzero(~is_certain)
        rows = [
            np.concatenate([old[first:], new])
            for old, new in zip(rows, (start + others, numbers[others]), strict=True)
        ]
        edges = np.concatenate([edges[first:], edges[-1] + np.cumsum(probabilities[others])])
        start, first = start + len(numbers), 0
        while (last := _reaching(edges, len(winners))) < len(rows[0]):
            draw_one(last)
    # Rounding may leave the last stratum short.
    for _ in range(len(winners), round(float(edges[-1]))):
        draw_one(len(rows[0]) - 1)
    return np.array([number for _, number in sorted(certain + winners)], dtype=np.int64)


def _reaching(edges: Float64s, stratum: int) -> int:
    """Return the row that extends beyond the end of a stratum."""
    return int(np.searchsorted(edges[1:], stratum + 1 - _ROUNDING))
