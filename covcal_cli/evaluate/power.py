"""What a number of rows can find: how many would decide a gate, and the smallest fault they find.

The width of an interval shrinks with the square root of the rows. A gate decides in four of five
cases if the true value is 1.96 + 0.84 standard errors away from the limit (for a level of 95 %).
"""

import math
from statistics import NormalDist

from covcal_cli.evaluate.bootstrap import Interval
from covcal_cli.maths.odds import quantile

POWER = 0.8  # share of cases in which a fault is found
_MOST = 1000  # times as many rows are no advice


def rows_to_decide(n: int, value: float, interval: Interval, limit: float) -> int | None:
    """Return about how many rows would decide between a value and a limit within its interval.

    The true value is taken to be `value`. None: more than a thousand times as many as `n`.
    """
    reach, distance = (interval[1] - interval[0]) / 2, abs(value - limit)
    if distance == 0:
        return None
    # The power adds to the reach of a 95 % interval; for other levels about as much.
    times = (reach * (1 + NormalDist().inv_cdf(POWER) / quantile(0.95)) / distance) ** 2
    return None if times > _MOST else _rounded(n * max(1.0, times))


def detectable(interval: Interval, level: float) -> float:
    """Return how far beyond a limit a true value is found in four of five cases.

    `interval` has the `level` of the gate, and about the width that it would have there.
    """
    error = (interval[1] - interval[0]) / 2 / quantile(level)
    return error * (quantile(level) + NormalDist().inv_cdf(POWER))


def _rounded(rows: float) -> int:
    """Return a number rounded up to two significant digits."""
    unit = int(10 ** max(0, math.floor(math.log10(rows)) - 1))
    return math.ceil(rows / unit) * unit
