"""Decide whether a classifier's outputs are logits or some form of probabilities.

Each row of probabilities sums to 1, up to rounding. Votes of trees, percentages, and bytes (0 to
255) sum to another constant. The values -p and p - 1 sum to a negative constant. The sums
of logits differ from row to row.
"""

import math
from typing import Literal

import numpy as np

from covcal_cli.arrays import SMALLEST_FLOAT32, AnyArray, Booleans, Float64s, Floats
from covcal_cli.maths.softmax import DEPTH, by_columns, extremes

# The user must decide in three cases: "bounded" (values in [0, 1] that do not sum to 1), "mixed"
# (many rows are probabilities) and "reversed" (transformed probabilities, or ranks).
Form = Literal[
    "logits", "bounded", "mixed", "reversed", "probabilities", "clipped", "percentages", "shares"
]
Reversal = Literal["negated", "complements", "logarithms", "log odds", "ranks"]
DISTRIBUTIONS = ("probabilities", "clipped", "percentages", "shares")

BELOW = 1e-5
ABOVE = 1e-3
EXACT = 1e-3
_SEVERAL = 1.5  # The outputs of several classifiers have a larger sum.
_SLIGHTLY_ABOVE_1 = 1.2  # Upper bounds of probabilities can be above 1.
_SUM_TOLERANCE = 1e-2
_WIDEST_TOLERANCE = 0.5
_LOG_TOLERANCE = 6e-3
_LARGEST_LOG = 746.0
# Each formula times its key is the natural logarithm of p.
_LOGARITHMS = {
    1.0: "log p",
    -1.0: "-log p",
    math.log(2): "log2 p",
    -math.log(2): "-log2 p",
    math.log(10): "log10 p",
    -math.log(10): "-log10 p",
    -math.log(10) / 10: "-10 log10 p",
}
# Each logarithm times its key is the natural logarithm.
_ODDS = {1.0: "log", math.log(2): "log2", math.log(10): "log10"}
_EXACT_SUM = 1e-4
_DECIMALS = (1, 2, 3)
_MOST = 0.5
_MANY = 0.1  # At least this share of rows must have the sum 1, or the sum may be chance.
_TIED = 0.1
_FEWEST_TIED = 8
_FEW_ROWS = 50
# Columns look like ranks if the values of nearly all rows have the same order.
_FIRST_ROWS = 64
_SAME_ORDER = {2: 1.0, 3: 0.99}  # number of columns: minimum share of rows in one order
_SAME_ORDER_OF_MORE = 0.95
_FEWEST_ROWS = 4
_BLOCK_VALUES = 1 << 16
# the largest value of a softmax of probabilities is near e / (e + K - 1)
_NEAR = 0.9
_LEAST_INTEGERS = (-128.0, -32768.0)
_GREATEST_INTEGERS = (255.0, 65535.0)
# The lowest and the highest probability must differ from 1/K by this share of 1/K.
_UNLIKE_UNIFORM = 0.25
_CERTAIN = 0.05
_FAR = 500.0  # Rounding errors of smaller numbers do not matter.
_LARGEST_STEP = 0.05
# Signs that a column is not the output of a class.
_EXTRA = {
    "largest": "the {place} column equals the largest of the other columns",
    "whole": "only the {place} column has whole numbers",
}


class OutputEvidence:
    """Counts over all rows that show whether outputs are logits or probabilities.

    Rows are added in blocks, (m, w), in any order. A single column stands for two classes.
    """

    def __init__(self) -> None:
        self.rows = self.width = 0
        self.low, self.high = math.inf, -math.inf
        self.sums = (math.inf, -math.inf)
        self.bounded = 0
        # (row number, value) of the first value outside [0, 1]
        self.first_outside: tuple[int, float] | None = None
        self.are_whole = True
        self._at_low = self._at_high = 0
        self._below_half = 0
        self._finite = self._exact = self._shares_of_1 = 0
        self._sum = 0.0
        # Factors of `_LOGARITHMS` and `_ODDS` that fit all rows so far.
        self._factors, self._odds = [*_LOGARITHMS], [*_ODDS]
        self._ranks = 0
        # The columns, sorted by their median in the first rows.
        self._order: AnyArray | None = None
        self._first: list[Float64s] = []
        self._ordered = self._uneven = 0
        self._first_row: Float64s | None = None  # None if rows differ
        self._step = self._step_at = 0.0
        self._suspects = {place: {*_EXTRA} for place in (0, -1)}
        # Columns whose removal gives all rows the same sum, and this sum.
        self._rest: tuple[AnyArray, AnyArray] | None = None
        # Assumed number of decimals (None: not rounded): number of rows that then sum to 1.
        self._summing: dict[int | None, int] = dict.fromkeys((*_DECIMALS, None), 0)
        self._first_off: dict[int | None, tuple[int, float]] = {}

    def add(self, values: Floats) -> None:
        """Add the rows of a block to the counts."""
        rows = max(1, _BLOCK_VALUES // max(1, values.shape[1]))
        for start in range(0, len(values), rows):
            self._add_block(by_columns(values[start : start + rows]).astype(np.float64, copy=False))

    def _add_block(self, exact: Float64s) -> None:
        self.width = exact.shape[1]
        lows, highs = extremes(exact)
        with np.errstate(invalid="ignore"):
            sums: Float64s = exact.sum(axis=1)
        self._add_extremes(exact, float(lows.min()), float(highs.max()))
        is_bounded = (lows >= -BELOW) & (highs <= 1 + ABOVE)
        if self.first_outside is None and not is_bounded.all():
            row = int(np.argmin(is_bounded))
            value = lows[row] if not lows[row] >= -BELOW else highs[row]
            self.first_outside = self.rows + row, float(value)
        self.bounded += int(is_bounded.sum())
        self._below_half += int((lows < 0.5).sum())
        self._finite += int(np.isfinite(sums).sum())
        self._sum += float(sums.sum())
        self.sums = min(self.sums[0], float(sums.min())), max(self.sums[1], float(sums.max()))
        is_exact = np.abs(sums - 1) <= _EXACT_SUM
        self._exact += int(is_exact.sum())
        self._shares_of_1 += int((is_exact & is_bounded).sum())
        self._uneven += int((lows < highs).sum())
        self._add_sums(exact, sums, is_bounded)
        self._add_steps(exact, lows, highs)
        self._add_order(exact)
        self._add_reversed(exact)
        self._add_rest(exact, sums)
        self._add_extra_columns(exact)
        self.rows += len(exact)

    def _add_extremes(self, exact: Float64s, low: float, high: float) -> None:
        if low <= self.low:
            before = self._at_low if low == self.low else 0
            self.low, self._at_low = low, before + int((exact == low).sum())
        if high >= self.high:
            before = self._at_high if high == self.high else 0
            self.high, self._at_high = high, before + int((exact == high).sum())

    def _add_steps(self, exact: Float64s, lows: Float64s, highs: Float64s) -> None:
        largest = float(np.abs(highs).max(initial=0))
        if not _FAR < largest < math.inf:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            types = (np.float32,) if self.are_whole else (np.float16, np.float32)
            dtype = next((t for t in types if (exact == exact.astype(t)).all()), np.float64)
            step = float(np.spacing(dtype(largest)))
            if step > _LARGEST_STEP and step > 1e-3 * float((highs - lows).min()):
                self._step, self._step_at = max((step, largest), (self._step, self._step_at))

    def _add_sums(self, exact: Float64s, sums: Float64s, is_bounded: Booleans) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            self.are_whole = self.are_whole and bool((exact == np.rint(exact)).all())
            for number in [number for number in self._summing if number is not None]:
                units = exact * 10.0**number
                if not (np.abs(units - np.rint(units)) < 1e-4).all():
                    del self._summing[number]
        off = np.abs(sums - 1)
        for decimals in self._summing:
            summing = is_bounded & (off <= self._tolerance(decimals) + 1e-6)
            self._summing[decimals] += int(summing.sum())
            if decimals not in self._first_off and not summing.all():
                row = int(np.argmin(summing))
                self._first_off[decimals] = self.rows + row, float(sums[row])

    def _add_order(self, exact: Float64s) -> None:
        if self.rows == 0:
            self._first_row = exact[0]
        if self._first_row is not None and (exact != self._first_row).any():
            self._first_row = None
        if self.width < 2:
            return
        if self._order is None and self.rows < _FIRST_ROWS:
            self._first.append(exact[: _FIRST_ROWS - self.rows])
            first = np.concatenate(self._first)
            order = np.argsort(-np.median(first, axis=0), kind="stable")
            self._ordered = _in_order(first, order)
            if len(first) == _FIRST_ROWS:
                self._order, self._first = order, []
            exact = exact[_FIRST_ROWS - self.rows :]
        if self._order is not None and self._ordered >= _MOST * self.rows:
            self._ordered += _in_order(exact, self._order)

    def _add_rest(self, exact: Float64s, sums: Float64s) -> None:
        """Find columns whose removal gives all rows the same sum."""
        places, first = self._rest or (np.arange(self.width), None)
        if not len(places):
            return
        with np.errstate(invalid="ignore"):
            others = sums[:, None] - exact[:, places]
            first = others[0] if first is None else first
            is_same = np.abs(others - first) <= _EXACT_SUM * np.ptp(exact)
        rest = is_same.all(axis=0) & (first > 0) & exact[:, places].any(axis=0)
        self._rest = places[rest], first[rest]

    def _add_extra_columns(self, exact: Float64s) -> None:
        if self.width < 3 or not any(self._suspects.values()):
            return
        for place, kinds in self._suspects.items():
            column, others = exact[:, place], np.delete(exact, place, axis=1)
            with np.errstate(invalid="ignore"):
                if "largest" in kinds and (column != others.max(axis=1)).any():
                    kinds.discard("largest")
                is_whole = (column == np.rint(column)).all() and np.ptp(column) > 0
                if "whole" in kinds and not (is_whole and not (others == np.rint(others)).any()):
                    kinds.discard("whole")

    def _add_reversed(self, exact: Float64s) -> None:
        if self.width < 2:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            for factor in [*self._factors]:
                # A number above `_LARGEST_LOG` is a distance, not a logarithm.
                is_far = factor != 1 and np.abs(exact).max(initial=0) > _LARGEST_LOG
                if is_far or not _are_logarithms(factor * exact):
                    self._factors.remove(factor)
            # Two columns z and -z may be logits instead of log odds.
            for factor in [*self._odds] if self.width > 2 else ():
                sums = (1 / (1 + np.exp(-factor * exact))).sum(axis=1)
                if not (np.abs(sums - 1) <= _LOG_TOLERANCE).all():
                    self._odds.remove(factor)
        if self.are_whole and 0 <= self.low <= 1 and self._ranks == self.rows:
            ranks = np.arange(self.width) + self.low
            self._ranks += int((np.sort(exact, axis=1) == ranks).all(axis=1).sum())

    @property
    def form(self) -> Form:
        """The form of the outputs in all rows so far."""
        if self.width > 1:
            if self.summing == self.rows:
                return "probabilities"
            if self._factor == 1:
                return "logits"
            if self.reversal is not None:
                return "reversed"
            total = self.total
            if total is not None and self._are_percentages:
                return "percentages"
            if self._are_clipped():
                return "clipped"
            many = max(_FEWEST_TIED, _MANY * self.rows)
            some = self._shares_of_1 >= many and self.bounded < self.rows and not self.are_whole
            if self.summing >= _MOST * self.rows or some:
                return "mixed"
            if total is not None:
                return "shares"
        return "bounded" if self.rows and self.bounded == self.rows else "logits"

    @property
    def reversal(self) -> Reversal | None:
        """How the outputs were made from probabilities, or None."""
        if self.width < 2 or not _FEWEST_ROWS <= self._finite == self.rows:
            return None
        if self._factor is not None:
            return None if self._factor == 1 else "logarithms"
        if self._odds and self.width > 2 and self.low < self.high:
            return "log odds"
        if self.rows == self._ranks:
            return "ranks"
        if self._complement_of is not None:
            return "complements"
        if self._may_be_masked or self.total is not None or not self._are_shares(0.0, -1):
            return None
        return "negated"

    @property
    def _factor(self) -> float | None:
        is_known = self.rows >= _FEWEST_ROWS and self.low < self.high
        return self._factors[0] if self._factors and is_known else None

    @property
    def _complement_of(self) -> float | None:
        """Return A if the outputs are A - p with p from 0 to A, else None."""
        if self.width < 3:
            return None
        uniform = 1 / self.width
        size = self._whole_size(sum(self.sums) / 2 / (self.width - 1))
        if not size or size < 0:
            return None
        unit = 1.0 if self.are_whole else 0.0 if self._decimals is None else 0.1**self._decimals
        spread = max(_SUM_TOLERANCE * size, min(_WIDEST_TOLERANCE * size, self.width * unit))
        if max(abs(end - size * (self.width - 1)) for end in self.sums) > spread + 1e-9:
            return None
        low, high = 1 - self.high / size, 1 - self.low / size
        is_complement = -ABOVE <= low <= min(_CERTAIN, (1 - _UNLIKE_UNIFORM) * uniform)
        is_complement &= high - uniform > max(uniform - low, _UNLIKE_UNIFORM * uniform)
        return size if is_complement and self.low >= -BELOW * size else None

    @property
    def remedy(self) -> str:
        """How the user can repair reversed outputs."""
        if self.reversal == "complements":
            return f"subtract every value from {_short(self._complement_of or 1.0)}"
        if self.reversal == "ranks":
            return "give the scores from which the ranks were made"
        if self.reversal == "log odds":
            factor = "" if self._odds[0] == 1 else f"{self._odds[0]:.7g} * "
            return f"replace every value by -log(1 + exp(-{factor}value))"
        return f"multiply every value by {self._factor or -1:.7g}"

    @property
    def tolerance(self) -> float:
        """The allowed difference of a row's sum from 1."""
        return self._tolerance(self._decimals)

    @property
    def summing(self) -> int:
        """The number of rows that sum to 1, with values from 0 to 1."""
        return self._summing[self._decimals]

    @property
    def first_off(self) -> tuple[int, float] | None:
        """The number and the sum of the first row that does not sum to 1, or None."""
        return self._first_off.get(self._decimals)

    @property
    def lowest(self) -> float:
        """The output that stands for probability 0, such as -100 for scores from -100 to 0."""
        if self.are_whole and self.low < 0:
            for least in _LEAST_INTEGERS:
                tolerance = max(2.0, min(self.width, -least))
                total = self._total_from(least)
                if total is not None and abs(total + 2 * least) <= tolerance:
                    return least
        for part in (1.0, 0.5):
            unit = 1 - self.width * part
            if unit < 0 and self.sums[1] < 0 and not self._may_be_masked:
                size = self._whole_size(sum(self.sums) / 2 / unit)
                # No probability is above 1/2 if logits have a large negative offset.
                if size and self.high + part * size > 0.5 * size and self._are_shares(-part * size):
                    return -part * size
        return self._added

    @property
    def _added(self) -> float:
        """The constant that was added to each probability, or 0."""
        added = (sum(self.sums) / 2 - 1) / max(1, self.width)
        if self.summing == self.rows:
            return 0.0
        if not ABOVE < abs(added) < math.inf:
            return 0.0
        short = float(f"{added:.3g}")
        is_short = abs(added - short) <= ABOVE * max(1.0, abs(added))
        for number in (short, added) if is_short else (added,):
            is_near = self.low - number <= _CERTAIN and self.high - number <= 1 + ABOVE
            if number < 0:  # Small centred logits look like p - 1/K, but they are below 1/2.
                is_near &= self.low < 0 and self.high - number > 0.5 and self.width > 2
            if is_near and self._are_shares(number):
                return number
        return 0.0

    @property
    def _may_be_masked(self) -> bool:
        return self.high - self.low > DEPTH

    @property
    def total(self) -> float | None:
        """The sum of each row after `lowest` is subtracted from each value, None if sums differ."""
        total = self._total_from(self.lowest)
        if total is not None and (self._are_shares(self.lowest) or self._are_percentages):
            return total
        return None

    def _total_from(self, lowest: float, sign: int = 1) -> float | None:
        if not 0 < self._finite == self.rows or self.width < 2:
            return None
        least, greatest = sorted(sign * (total - self.width * lowest) for total in self.sums)
        middle = (least + greatest) / 2
        unit = 1.0 if self.are_whole else 0.0 if self._decimals is None else 0.1**self._decimals
        spread = min(_WIDEST_TOLERANCE * middle, self.width * unit)
        is_constant = greatest - least <= max(_SUM_TOLERANCE * middle, spread) + 1e-9
        low = self.low - lowest if sign > 0 else -self.high
        return middle if is_constant and least > 0 and low >= -BELOW * middle else None

    def _are_shares(self, lowest: float, sign: int = 1) -> bool:
        total = self._total_from(lowest, sign)
        if total is None or self.rows < _FEWEST_ROWS:
            return False
        low, high = sorted(sign * (value - lowest) for value in (self.low, self.high))
        uniform = total / self.width
        return low <= (1 - _UNLIKE_UNIFORM) * uniform and high >= (1 + _UNLIKE_UNIFORM) * uniform

    def _whole_size(self, size: float) -> float | None:
        """Round a nearly whole number. Return None if only whole numbers are possible."""
        whole = float(np.rint(size)) if math.isfinite(size) else 0.0
        if whole and abs(size - whole) <= _SUM_TOLERANCE * whole:
            return whole
        return size if self._decimals is None and not self.are_whole else None

    @property
    def is_incomplete(self) -> bool:
        """Whether every row sums to less than 1, like the probabilities of the likeliest tokens."""
        whole = self._exact if self._decimals is None else self.summing
        most = 1 + (_EXACT_SUM if self._decimals is None else self.tolerance)
        return (
            self.width > 1
            and 0 < self.rows == self.bounded
            and self.sums[0] > 0
            and self.sums[1] <= most + 1e-6
            and whole < _MOST * self.rows
        )

    @property
    def mean_sum(self) -> float:
        """The mean of the row sums."""
        return self._sum / max(1, self.rows)

    @property
    def may_be_distributions(self) -> bool:
        """Whether all values are at least 0."""
        return self._finite == self.rows and self.low >= -BELOW * max(1.0, self.high)

    @property
    def fact(self) -> str:
        """A clause that says why the outputs are not logits."""
        form = self.form
        if form == "mixed":
            return f"{self.summing} of {self.rows} rows sum to 1, as probabilities do"
        if form == "clipped":
            return (
                f"all outputs lie between {self.low:g} and {self.high:g}, like clipped "
                "probabilities"
            )
        if form == "bounded":
            several = "" if self.width == 1 else " and rows do not sum to 1"
            return f"all outputs of {self.rows} rows lie between 0 and 1{several}"
        if form == "shares":
            return self._fact_of_shares()
        if form == "reversed":
            return self._fact_of_reversed()
        number, kind = ("100", "percentages") if form == "percentages" else ("1", "probabilities")
        return f"every row sums to {number}, as {kind} do"

    def _fact_of_reversed(self) -> str:
        if self.reversal == "complements":
            size = _short(self._complement_of or 1.0)
            return (
                f"every row sums to about {_short(self.sums[0])}, so each value may be {size} "
                "minus a probability"
            )
        if self.reversal == "logarithms":
            return f"the values seem to be {_LOGARITHMS[self._factor or -1.0]} of probabilities p"
        if self.reversal == "log odds":
            return f"the values seem to be {_ODDS[self._odds[0]]}(p / (1 - p)) of probabilities p"
        if self.reversal == "ranks":
            ends = f"{self.low:g} to {self.low + self.width - 1:g}"
            return f"every row holds the ranks {ends}, which do not show the confidence"
        return (
            f"no value is above 0 and every row sums to about {_short(self.sums[0])}, as "
            "negated probabilities do"
        )

    def _fact_of_shares(self) -> str:
        total, lowest = self.total or 0.0, self.lowest
        if lowest not in (0.0, *_LEAST_INTEGERS):
            added_to = "subtracted from" if lowest > 0 else "added to"
            return (
                f"if {_short(abs(lowest))} is {added_to} each value, every row sums to "
                f"{_short(total)}, as shifted probabilities do"
                + (" (if the values are negated, change their sign)" if self.width == 2 else "")
            )
        if lowest:
            return f"the values look like quantised scores from {lowest:g} to {-lowest - 1:g}"
        least, greatest = self.sums
        if self.are_whole and least == greatest and least not in _GREATEST_INTEGERS:
            return f"every row sums to {total:g}, as votes of {total:g} trees do"
        for most in _GREATEST_INTEGERS:
            is_near = abs(total - most) <= max(2.0, self.width)
            if self.are_whole and is_near and self.high <= most + 1:
                return (
                    f"every row sums to about {most:g}, as quantised scores from 0 to {most:g} do"
                )
        return f"every row sums to about {_short(total)}, like probabilities times {_short(total)}"

    def doubts(self) -> tuple[str, ...]:
        """Return warnings about unusual outputs, except `doubt_on_order`."""
        return tuple(
            doubt
            for doubt in (
                self._doubt_on_digits(),
                self.doubt_on_columns(),
                self._doubt_on_values(),
                self._doubt_on_scale(),
            )
            if doubt
        )

    def _doubt_on_digits(self) -> str | None:
        if not self._step or self.form != "logits":
            return None
        return (
            f"outputs near {_short(self._step_at)} are rounded, because outputs are stored in "
            f"steps of {_short(self._step)}: subtract each row's largest output before storing"
        )

    def doubt_on_columns(self) -> str | None:
        """Return a warning if a column seems not to be the output of a class."""
        if self.width < 3 or self.rows < _FEW_ROWS or not self._uneven:
            return None
        rest = self._rest[0].tolist() if self._rest and self._first_row is None else []
        if rest and self.form != "probabilities":
            return (
                f"without column {rest[0] + 1} of {self.width}, all rows have the same sum: "
                "remove this column if it is not the output of a class"
            )
        is_low = 0 <= self.low <= self.high <= _SLIGHTLY_ABOVE_1
        if self.form == "shares" and self.sums[0] > _SEVERAL and is_low:
            return (
                f"every row sums to about {_short(self.sums[0])}, but no value is above "
                f"{self.high:.3g}, so the columns may hold the outputs of several classifiers: "
                "keep the columns of one classifier, or divide each row by its sum"
            )
        for place, kinds in self._suspects.items():
            for kind, sign in _EXTRA.items():
                if kind in kinds:
                    fact = sign.format(place="last" if place else "first")
                    return (
                        f"{fact} in all {self.rows} rows: remove the column if it is not the "
                        "output of a class"
                    )
        return None

    @property
    def doubt_on_order(self) -> str | None:
        """A warning if the columns may be ranks instead of classes, or None.

        If one class is far more frequent, real class scores can also have the same order in all
        rows. Then `SourceAccuracy.is_as_promised` decides.
        """
        fewest = _FEWEST_TIED if self.width > 2 else _FEW_ROWS
        share = _SAME_ORDER.get(self.width, _SAME_ORDER_OF_MORE) if self.rows >= _FEW_ROWS else 1
        are_few = self.rows < fewest or self._uneven < _MOST * self.rows
        are_few |= self._first_row is not None
        if are_few or self._ordered < share * self.rows:
            return None
        two = (
            ". If one class really is more probable in every row, ignore this warning"
            if self.width == 2
            else ""
        )
        all_or_number = "all" if self._ordered == self.rows else f"{self._ordered} of"
        return (
            f"the columns look like ranks, because the values of {all_or_number} {self.rows} rows "
            f"have the same order: give one column per class{two}"
        )

    def _doubt_on_values(self) -> str | None:
        if self.width == 1 and self.rows >= _FEW_ROWS and not self._below_half:
            return (
                f"the only output is at least 0.5 in all {self.rows} rows. If the output is the "
                "confidence of the predicted class, give the probability of one class instead"
            )
        are_logits = self.form == "logits" and self.rows >= _FEW_ROWS
        if are_logits and self.width == 1 and self.high <= 0:
            return (
                f"the only output is at most 0 in all {self.rows} rows, so the same class is "
                "always predicted. If the outputs are logarithms of probabilities, give the "
                "probabilities"
            )
        if are_logits and self.width == 2 and self.sums == (0, 0) and self.low < 0:
            return (
                f"the two outputs are z and -z in all {self.rows} rows. If z is the log odds, as "
                "in scikit-learn, give only z: with both columns, the log odds would be 2 z"
            )
        largest = max(-self.low, self.high)
        limit = 0.5 if self.width == 2 and largest <= 0.5 else 1.0
        if are_logits and self.low < 0 and 0.9 * limit < largest <= limit:
            return (
                f"all outputs of {self.rows} rows lie between {-limit:g} and {limit:g}, which "
                "is unusual for logits. If the model ends with tanh, give the values before tanh. "
                "Multiply cosines by the scale used in training"
            )
        middle = sum(self.sums) / 2
        # The sum of centred logits is constant too, but about 0.
        spread = _EXACT_SUM * self.width * (self.high - self.low)
        is_constant = self.sums[1] - self.sums[0] <= spread and middle > max(0.01, spread)
        is_constant &= not self._may_be_masked
        if are_logits and self.width > 2 and is_constant:
            return (
                f"every row sums to about {_short(middle)}, which is unusual for logits. If the "
                "outputs are scaled or shifted probabilities, give the probabilities"
            )
        is_positive = 0 <= self.low <= 0.5 * self.high
        if are_logits and is_positive:
            if self.width == 1:
                return (
                    f"the only output is at least 0 in all {self.rows} rows, so the same "
                    "class is always predicted. If the outputs are percentages or scores, "
                    "give probabilities"
                )
            whole = " and all are whole numbers" if self.are_whole else ""
            return (
                f"all outputs of {self.rows} rows are at least 0{whole}, which is unusual for "
                "logits. Multiply costs or distances by -1. For votes or percentages, divide "
                "each row by its sum and give probabilities"
            )
        return None

    def _doubt_on_scale(self) -> str | None:
        if self.width < 3 or self.rows < _FEW_ROWS or self.form != "probabilities":
            return None
        most = math.e / (math.e + self.width - 1)
        is_low = _NEAR * most <= self.high <= most + ABOVE and self.low >= most / math.e - BELOW
        if not is_low:
            return None
        return (
            f"no probability is above {self.high:.3f}, so softmax may be applied twice: check "
            "the model's last layers"
        )

    def _are_clipped(self) -> bool:
        """Return whether many probabilities equal the smallest or the largest value."""
        ties = max(_TIED * self.rows, _FEWEST_TIED)
        from_below = self.low > 0 and self._at_low >= ties
        from_above = self.high < 1 and self._at_high >= ties
        if not (from_below or from_above) or self.bounded < self.rows:
            return False
        least, greatest = self.sums
        added = (self.width - 1) * self.low if from_below else 0.0
        taken = 1 - self.high if from_above else 0.0
        return 1 - taken - _SUM_TOLERANCE <= least and greatest <= 1 + added + _SUM_TOLERANCE

    @property
    def _are_percentages(self) -> bool:
        return self.sums[0] - 0.1 <= 100 <= self.sums[1] + 0.1

    @property
    def _decimals(self) -> int | None:
        return next(iter(self._summing))

    def _tolerance(self, decimals: int | None) -> float:
        if decimals is None:
            return _SUM_TOLERANCE
        rounding = min(_WIDEST_TOLERANCE, self.width * 0.5 * 10.0**-decimals)
        return max(_SUM_TOLERANCE, rounding)


def _in_order(rows: Float64s, order: AnyArray) -> int:
    """Return the number of rows whose values fall in the given order of columns."""
    with np.errstate(invalid="ignore"):
        return int((np.diff(rows[:, order], axis=1) <= 0).all(axis=1).sum())


def _are_logarithms(values: Float64s) -> bool:
    return bool((np.abs(np.exp(values).sum(axis=1) - 1) <= _LOG_TOLERANCE).all())


def _short(number: float) -> str:
    return f"{float(f'{number:.3g}'):g}"


def log_probabilities(values: Floats, lowest: float = 0.0) -> Float64s:
    """Divide each row by its sum, and return log probabilities, (m, K).

    `values` have shape (m, K), or (m, 1) for the second of two classes. `lowest` is the value that
    stands for probability 0. Probabilities are at least the smallest float32.
    """
    parts = np.maximum(values.astype(np.float64) - lowest, 0)
    if parts.shape[1] == 1:
        parts = np.hstack([1 - np.minimum(parts, 1), parts])
    parts /= parts.sum(axis=1, keepdims=True)
    logarithms: Float64s = np.log(np.maximum(parts, SMALLEST_FLOAT32))
    return logarithms


def log_odds(values: Floats) -> Float64s:
    """Return the log odds of several labels, shape (m, L).

    p and 1 - p are at least the smallest float32.
    """
    parts = np.clip(values.astype(np.float64), 0, 1)
    present, absent = (np.log(np.maximum(part, SMALLEST_FLOAT32)) for part in (parts, 1 - parts))
    odds: Float64s = present - absent
    return odds
