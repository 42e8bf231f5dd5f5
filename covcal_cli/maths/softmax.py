"""Compute the softmax of logits, detect masked classes, and scale logits.

Blocks of m rows have shape (K, m) and dtype float64, because sums over the first axis are fast.

A class is masked if its logit is -inf, or a padding value far below real logits, such as -1e9 or
-65504. A masked class has probability 0 at every temperature, and is ignored in the scale of the
logits.

The probabilities of a calibration (`Scaling`) are

    softmax(z / T + b + a 1[k = f])

b are class offsets, and a is an offset for the predicted class f. A blend is the mean of two
softmaxes: softmax(z / T_f) for the classifier's logits, and softmax(z / T_a) for aligned logits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from covcal_cli.arrays import AnyArray, Booleans, Float32s, Float64s, Floats, Labels

# A function that yields logits (m, K), and can be called several times.
LogitBlocks = Callable[[], Iterator[Floats]]
_BLOCK_VALUES = 1 << 16
_SHORT = 64
_MOST_RANKS = 255  # the largest uint8
_FAR = 1 << 12
# Maximum log loss of a row (about 708), for a class with probability 0.
MOST_NLL = -float(np.log(np.finfo(np.float64).tiny))
# A logit is masked if it is more than DEPTH below the highest logit of its row. Unmasked logits of
# naive Bayes can be as low, so DEPTH is multiplied by the usual distance of the two highest logits.
DEPTH = 5e3
_DEEPEST = 1e30  # A logit this far below the highest logit is always masked.
# The usual distance is this quantile, which must be low because most rows may have masked logits.
_USUAL = 0.25
_LEAST_SHARE = 1e-6


def blocks_of(logits: Floats) -> LogitBlocks:
    """Return a function that yields logits, (n, K), in blocks that fit in the processor's cache."""
    rows = max(1, _BLOCK_VALUES // max(1, logits.shape[1]))

    def blocks() -> Iterator[Floats]:
        for start in range(0, len(logits), rows):
            yield logits[start : start + rows]

    return blocks


def class_major(logits: Floats) -> Float64s:
    """Copy logits, (m, K), to float64, (K, m), and subtract each row's highest logit.

    The softmax stays the same, and exponentials cannot overflow.
    """
    block = np.array(logits.T, dtype=np.float64, order="C")
    block -= block.max(axis=0)
    return block


def to_float32(logits: AnyArray) -> Float32s:
    """Convert logits, (m, K), to float32. Subtract the highest logit first if digits would be lost.

    Subtracting a constant from a row does not change its softmax.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        single = logits.astype(np.float32)
        if logits.dtype in (np.float16, np.float32):
            return single
        exact = logits.astype(np.float64, copy=False)
        highest = exact.max(axis=1)
        ranges = highest - exact.min(axis=1)
        is_far = np.abs(highest) > _FAR * np.minimum(1, ranges)
        if is_far.any():
            rows = exact[is_far]
            rounded = single[is_far]
            is_exact = (rounded == rows).all(axis=1, keepdims=True)
            single[is_far] = np.where(is_exact, rounded, rows - highest[is_far, None])
    return single


def with_offsets(
    logits: Floats, temperature: float, offsets: Float64s | None, of_label: float = 0.0
) -> Floats:
    """Add the class offsets b and the label offset a of a calibration to logits, (m, K).

    `offsets` are b, (K,), and `of_label` is a. The offsets are multiplied by T, because the result
    will be divided by T.
    """
    moved = logits if offsets is None else logits + temperature * offsets
    if of_label:
        moved = moved.astype(np.float64)
        moved[np.arange(len(logits)), logits.argmax(axis=1)] += temperature * of_label
    return moved


def prior_offsets(prior: Float64s, source_labels: Labels) -> Float64s:
    """Return log(target frequency / source frequency) of each class, (K,).

    Half a row is added to each source count, and target frequencies are at least 1e-6.
    """
    counts = np.bincount(source_labels, minlength=len(prior)) + 0.5
    return np.asarray(np.log(np.maximum(prior, _LEAST_SHARE) / (counts / counts.sum())))


def exp(block: Float64s) -> Float64s:
    """Return e^x for x <= 0, computed in float32 for speed (relative error 1e-7)."""
    with np.errstate(over="ignore"):
        powers = block.astype(np.float32)
    return np.exp(powers, out=np.empty(block.shape))


def log_softmax(block: Float64s, temperature: float) -> Float64s:
    """Return log softmax(z / T), (K, m), of a block from `class_major`."""
    scaled = block / temperature
    scaled -= np.log(exp(scaled).sum(axis=0))
    return scaled


@dataclass(frozen=True)
class Softmax:
    """The probabilities softmax(z / T) of a block of rows."""

    logits: Float64s  # (K, m), highest logit of each row is 0
    temperature: float
    log_sums: Float64s  # (m,): log sum_k e^(z_k / T).
    probabilities: Float64s  # (K, m)

    def logs_at(self, places: Labels) -> Float64s:
        """Return log probabilities at flat indices: class k of row j has index k m + j."""
        return self.logs_of(self.logits.take(places))

    def logs_of(self, logits: Float64s) -> Float64s:
        """Return the log probabilities that belong to `logits`, one per row, (m,)."""
        logs: Float64s = logits / self.temperature
        logs -= self.log_sums
        return logs

    def logs_beside(self, rows: Labels, labels: Labels) -> Float64s:
        """Return log(1 - p), where p is the probability of a row's label.

        The result is exact even if p rounds to 1.
        """
        others = self.logits[:, rows] / self.temperature
        others[labels, np.arange(len(rows))] = -np.inf
        highest = others.max(axis=0)
        finite = np.isfinite(highest)
        others[:, finite] -= highest[finite]
        with np.errstate(divide="ignore"):
            sums: Float64s = np.log(exp(others).sum(axis=0))
        sums[finite] += highest[finite]
        return sums - self.log_sums[rows]


def softmax(block: Float64s, temperature: float) -> Softmax:
    """Return the `Softmax` of a block from `class_major`."""
    scaled = block if temperature == 1 else block / temperature
    probabilities = exp(scaled)
    sums = probabilities.sum(axis=0)
    probabilities /= sums
    return Softmax(block, temperature, np.log(sums), probabilities)


def top_class(block: Floats, highest: Floats | float = 0.0) -> Labels:
    """Return the predicted classes, (m,), of a block (K, m), faster than argmax.

    `highest` are the highest logits, (m,).
    """
    classes = len(block)
    if classes > _MOST_RANKS:
        return np.asarray(block.argmax(axis=0), dtype=np.int64)
    ranks = (block == highest).view(np.uint8)
    ranks *= np.arange(classes, 0, -1, dtype=np.uint8)[:, None]
    top: Labels = classes - ranks.max(axis=0).astype(np.int64)
    return top


def top_of_rows(logits: Floats) -> tuple[Labels, Floats]:
    """Return the predicted classes and the highest logits of rows (m, K)."""
    if logits.shape[1] > _MOST_RANKS:
        top = logits.argmax(axis=1)
        return top, logits[np.arange(len(top)), top]
    columns = np.ascontiguousarray(logits.T)
    highest = columns.max(axis=0)
    return top_class(columns, highest), highest


def top_confidence(logits: Floats, temperature: float) -> tuple[Labels, Float64s]:
    """Return the predicted classes and their softmax(z / T), of logits (m, K)."""
    labels, confidence = np.empty(len(logits), dtype=np.int64), np.empty(len(logits))
    start = 0
    for part in blocks_of(logits)():
        block, rows = class_major(part), slice(start, start + len(part))
        labels[rows] = top_class(block)
        confidence[rows] = 1 / exp(block if temperature == 1 else block / temperature).sum(axis=0)
        start = rows.stop
    return labels, confidence


def log_mean_softmax(members: Floats) -> Float64s:
    """Return log mean_m softmax(z_m), shape (K, n), of members' logits (M, n, K)."""
    return log_mean([log_softmax(class_major(member), 1.0) for member in members])


def log_mean(logs: Sequence[Float64s]) -> Float64s:
    """Return log mean_m e^(l_m) of arrays l_m of one shape."""
    every = np.stack(logs)
    highest = every.max(axis=0)
    combined: Float64s = highest + np.log(exp(every - highest).mean(axis=0))
    return combined


def mask_depth(logits: Floats, weights: Float64s | None = None) -> float:
    """Return the distance below the highest logit of a row at which a logit counts as masked.

    `logits` have shape (n, K), `weights` (n,). Invalid rows and rows with weight 0 are ignored.
    """
    values = np.asarray(logits, dtype=np.float64)
    if values.shape[1] < 2 or len(values) == 0:
        return DEPTH
    highest = np.partition(values, -2, axis=1)[:, -2:]
    with np.errstate(over="ignore", invalid="ignore"):
        margins = np.subtract(highest[:, 1], highest[:, 0])
    masses = np.ones(len(values)) if weights is None else weights
    counted = (margins > 0) & (margins < np.inf) & (masses > 0)
    if not counted.any():
        return DEPTH
    order = np.argsort(margins[counted], kind="stable")
    cumulated = np.cumsum(masses[counted][order])
    place = int(np.searchsorted(cumulated, _USUAL * cumulated[-1]))
    usual = float(margins[counted][order][min(place, len(order) - 1)])
    return min(DEPTH * max(1.0, usual), _DEEPEST)


def masked(logits: Floats, depth: float | None = None) -> Booleans:
    """Return which logits, (n, K), are masked. By default, `depth` is `mask_depth(logits)`."""
    if depth is None and logits.size and float(logits.max()) - float(logits.min()) <= DEPTH:
        return np.zeros(logits.shape, dtype=bool)
    highest = logits.max(axis=1, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):
        if depth is None and not (highest[:, 0] - logits.min(axis=1) > DEPTH).any():
            return np.zeros(logits.shape, dtype=bool)
        gaps = highest - logits
    masks: Booleans = gaps > (mask_depth(logits) if depth is None else depth)
    return masks


def valid_rows(logits: Floats) -> Booleans:
    """Return whether the highest logit of each row is finite, (n,)."""
    if logits.size and np.isfinite(logits).all():
        return np.ones(len(logits), dtype=bool)
    valid: Booleans = np.isfinite(logits.max(axis=1))
    return valid


def extremes(rows: Floats) -> tuple[AnyArray, AnyArray]:
    """Return minimum and maximum of each row, both of shape (n,)."""
    rows = by_columns(rows)
    return rows.min(axis=1), rows.max(axis=1)


def by_columns(rows: Floats) -> Floats:
    """Store short rows, (n, K), in column order, because NumPy then reduces them faster."""
    return rows if rows.shape[1] > _SHORT else np.asfortranarray(rows)


def spread(logits: Floats, out: Booleans, weights: Float64s | None = None) -> float:
    """Return the root mean square of the centred logits, (n, K), without masked logits (`out`)."""
    unmasked = ~out
    counts = unmasked.sum(axis=1)
    values = np.where(unmasked, logits, 0.0).astype(np.float64)
    values -= (values.sum(axis=1) / counts)[:, None]
    squares = np.einsum("nk,nk,nk->n", values, values, unmasked)
    masses = np.ones(len(values)) if weights is None else weights
    return float(np.sqrt((masses * squares).sum() / (masses * counts).sum()))


ForecasterName = Literal["original", "aligned"]
Forecasters = Literal["original", "aligned", "blend"]


def scaled_by(forecasters: Forecasters) -> tuple[ForecasterName, ...]:
    """Return the names of the forecasters that a calibration scales."""
    return ("original", "aligned") if forecasters == "blend" else (forecasters,)


@dataclass(frozen=True)
class Scaling:
    """The temperatures and offsets of a calibration."""

    forecaster: Forecasters
    temperature: float
    aligned_temperature: float | None = None
    offsets: Float64s | None = field(default=None, kw_only=True)
    of_label: float = field(default=0.0, kw_only=True)

    @property
    def is_moved(self) -> bool:
        """Whether the calibration has offsets."""
        return self.offsets is not None or self.of_label != 0

    @property
    def can_move_the_top(self) -> bool:
        """Whether calibration may change the most probable class."""
        return self.is_moved or self.reads_aligned

    @property
    def temperatures(self) -> dict[ForecasterName, float]:
        """The temperatures, by forecaster."""
        values = (self.temperature, self.aligned_temperature)
        named = zip(scaled_by(self.forecaster), values, strict=False)
        return {name: value for name, value in named if value is not None}

    @property
    def reads_aligned(self) -> bool:
        """Whether the calibration needs the aligned logits of ``covcal adapt``."""
        return "aligned" in self.temperatures

    def prepared(self, blocks: Sequence[Float64s]) -> tuple[Float64s, float]:
        """Return logits z and T, so that softmax(z / T) are the calibrated probabilities.

        `blocks` are the logits of each forecaster, (K, m), as returned by `class_major`.
        """
        logits, temperature = blocks[0], self.temperature
        if len(blocks) > 1:
            pairs = zip(blocks, self.temperatures.values(), strict=True)
            logits, temperature = log_mean([log_softmax(*pair) for pair in pairs]), 1.0
            logits -= logits.max(axis=0)
        if self.is_moved:
            moved = with_offsets(logits.T, temperature, self.offsets, self.of_label)
            logits = class_major(moved)
        return logits, temperature

    def forecast(self, blocks: Sequence[Float64s]) -> Softmax:
        """Return calibrated probabilities of the logits in `blocks` (see `prepared`)."""
        return softmax(*self.prepared(blocks))

    def confidence(self, blocks: Sequence[Float64s], labels: Labels) -> Float64s:
        """Return the calibrated probabilities of `labels`, (m,). For `blocks`, see `prepared`."""
        probabilities = self.forecast(blocks).probabilities
        return np.asarray(probabilities[labels, np.arange(len(labels))])

    def shown(self, digits: int) -> str:
        """Return the temperatures as text."""
        return shown_temperatures(self.temperature, self.aligned_temperature, digits)


def shown_temperatures(temperature: float, aligned: float | None, digits: int) -> str:
    """Return the temperatures as text with `digits` significant digits."""
    values = (temperature,) if aligned is None else (temperature, aligned)
    return ", ".join(f"{value:.{digits}g}" for value in values)
