"""What a classifier's outputs are: logits, or probabilities in one form or another.

All rows tell, never a name, the first batch or its size: `OutputEvidence` counts, and comes to the
same `Form` in whatever batches the rows come. Rows of K numbers in [0, 1] that sum to 1, up to
rounding, are probabilities, whatever made them: logits do that on no more than a few rows.
"""

import math
from typing import Literal

import numpy as np

from covcal_cli.arrays import SMALLEST_FLOAT32, Float64s, Floats

# In between stand outputs that are in doubt: "bounded" ones lie in [0, 1] and do not sum to 1, as
# sigmoids do, and any single column of probabilities; of "mixed" ones most rows are probabilities.
Form = Literal["logits", "bounded", "mixed", "probabilities", "clipped", "percentages"]
DISTRIBUTIONS = ("probabilities", "clipped", "percentages")

BELOW = 1e-5  # of a probability below 0: forests sum float32
ABOVE = 1e-3  # of one above 1
EXACT = 1e-3  # of a sum that counts as not rounded
_SUM = 1e-2  # of a sum: half precision, and values of any digits
_WIDEST = 0.5  # of a sum, of however many rounded values
_DECIMALS = (1, 2, 3)
_MOST = 0.5  # of the rows: a classifier may have failed on some
_TIED = 0.1  # of the rows: values that are equal to the least or greatest of all
_FEWEST_TIED = 8
_FEW_ROWS = 50  # what holds for fewer may be chance
_NEAR = 0.9  # of what a softmax of probabilities can reach


class OutputEvidence:
    """What rows of outputs, shape (m, w) at a time, show of their form.

    One column, w = 1, stands for two classes. Values that are not finite are those of no
    probability.
    """

    def __init__(self) -> None:
        self.rows = self.width = 0
        self.low, self.high = math.inf, -math.inf  # of all values
        self._at_low = self._at_high = 0  # values equal to them
        self.below_half = 0  # rows of one column below 1/2
        self.unit, self._percent = ScaleEvidence(1), ScaleEvidence(100)

    def add(self, values: Floats) -> None:
        """Count the next rows."""
        if not len(values):
            return
        exact = values.astype(np.float64)
        self.width = exact.shape[1]
        low, high = float(exact.min()), float(exact.max())
        if low <= self.low:
            before = self._at_low if low == self.low else 0
            self.low, self._at_low = low, before + int((exact == low).sum())
        if high >= self.high:
            before = self._at_high if high == self.high else 0
            self.high, self._at_high = high, before + int((exact == high).sum())
        self.below_half += int((exact < 0.5).any(axis=1).sum())
        self.unit.add(exact)
        self._percent.add(exact)
        self.rows += len(exact)

    @property
    def form(self) -> Form:
        """What all rows so far are."""
        unit = self.unit
        if self.width > 1:
            if unit.summing == self.rows:
                return "probabilities"
            if self._percent.summing == self.rows:
                return "percentages"
            if self._are_clipped():
                return "clipped"
            if unit.summing >= _MOST * self.rows:
                return "mixed"
        return "bounded" if self.rows and unit.bounded == self.rows else "logits"

    @property
    def may_be_distributions(self) -> bool:
        """Whether no row is outside of what probabilities can be, however they sum."""
        return self.rows in (self.unit.bounded, self._percent.bounded)

    @property
    def may_be_confidences(self) -> bool:
        """Whether one column is nowhere below 1/2, as the confidence of the answer is."""
        return self.width == 1 and self.rows >= _FEW_ROWS and not self.below_half

    @property
    def may_be_squashed_twice(self) -> bool:
        """Whether probabilities reach what the softmax of probabilities can, and no further.

        With K classes that is from 1/(e + K - 1) to e/(e + K - 1).
        """
        if self.width < 3 or self.rows < _FEW_ROWS or self.form != "probabilities":
            return False
        most = math.e / (math.e + self.width - 1)
        least = most / math.e
        return _NEAR * most <= self.high <= most + ABOVE and self.low >= least - BELOW

    def _are_clipped(self) -> bool:
        """Return whether probabilities were cut off at a least or greatest value.

        Then many values are equal to it, and a sum is off by no more than what was cut.
        """
        ties = max(_TIED * self.rows, _FEWEST_TIED)
        from_below = self.low > 0 and self._at_low >= ties
        from_above = self.high < 1 and self._at_high >= ties
        if not (from_below or from_above) or self.unit.bounded < self.rows:
            return False
        least, greatest = self.unit.sums
        added = (self.width - 1) * self.low if from_below else 0.0
        taken = 1 - self.high if from_above else 0.0
        return 1 - taken - _SUM <= least and greatest <= 1 + added + _SUM


class ScaleEvidence:
    """What rows show of being probabilities that sum to 1, or to 100, which is `whole`."""

    def __init__(self, whole: float) -> None:
        self.whole = whole
        self.bounded = 0  # rows within [0, 1]
        self.first_outside: tuple[int, float] | None = None  # the first other row, and its value
        self.sums = (math.inf, -math.inf)  # the least and the greatest of all rows
        self._rows = self._width = 0
        # Values with few decimals may each be half a unit off, which shows when all are seen: by
        # the decimals, or None for any digits, the rows within, and the first other with its sum.
        self._rounded = dict.fromkeys(_DECIMALS, True)
        self._within: dict[int | None, int] = dict.fromkeys((None, *_DECIMALS), 0)
        self._first_off: dict[int | None, tuple[int, float]] = {}

    def add(self, values: Float64s) -> None:
        """Count the next rows, (m, w)."""
        scaled = values / self.whole
        self._width = scaled.shape[1]
        low, high, total = scaled.min(axis=1), scaled.max(axis=1), scaled.sum(axis=1)
        is_bounded = (low >= -BELOW) & (high <= 1 + ABOVE)
        if self.first_outside is None and not is_bounded.all():
            row = int(np.argmin(is_bounded))
            value = low[row] if not low[row] >= -BELOW else high[row]
            self.first_outside = self._rows + row, float(value) * self.whole
        self.bounded += int(is_bounded.sum())
        least, greatest = self.sums
        self.sums = min(least, float(total.min())), max(greatest, float(total.max()))
        for decimals in self._within:
            if decimals is not None and self._rounded[decimals]:
                units = scaled * 10.0**decimals
                with np.errstate(invalid="ignore"):
                    self._rounded[decimals] = bool((np.abs(units - np.rint(units)) < 1e-4).all())
            within = is_bounded & (np.abs(total - 1) <= self._tolerance(decimals) + 1e-6)
            self._within[decimals] += int(within.sum())
            if decimals not in self._first_off and not within.all():
                row = int(np.argmin(within))
                self._first_off[decimals] = self._rows + row, float(total[row]) * self.whole
        self._rows += len(scaled)

    @property
    def tolerance(self) -> float:
        """By how much a sum may be off, as the digits of all values explain."""
        return self._tolerance(self._decimals)

    @property
    def summing(self) -> int:
        """How many rows are probabilities that sum to the whole, within the tolerance."""
        return self._within[self._decimals]

    @property
    def first_off(self) -> tuple[int, float] | None:
        """The first row that does not, and its sum."""
        return self._first_off.get(self._decimals)

    @property
    def _decimals(self) -> int | None:
        return next((decimals for decimals, all_so in self._rounded.items() if all_so), None)

    def _tolerance(self, decimals: int | None) -> float:
        if decimals is None:
            return _SUM
        return max(_SUM, min(_WIDEST, self._width * 0.5 * 10.0**-decimals))


def log_probabilities(values: Floats) -> Float64s:
    """Return the logarithms of probabilities in any unit, shape (m, K), each row summing to 1.

    `values` has shape (m, K), or (m, 1) for the probability of the second of two classes. What is
    0, or below it by rounding, counts as the smallest float32.
    """
    parts = np.maximum(values.astype(np.float64), 0)
    if parts.shape[1] == 1:
        parts = np.hstack([1 - np.minimum(parts, 1), parts])
    parts /= parts.sum(axis=1, keepdims=True)
    found: Float64s = np.log(np.maximum(parts, SMALLEST_FLOAT32))
    return found
