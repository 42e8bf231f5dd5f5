"""Convert logits to probabilities and log odds, and compute intervals of a proportion.

`anytime_interval` stays valid if you look at it after every label. The classifier is right with
probability a. So far, the classifier was right on S rows and wrong on F rows. The likelihood ratio
is

    E(a) = B(p + S, q + F) / (B(p, q) a^S (1 - a)^F).

For every fixed prior Beta(p, q), E(a) is a martingale with mean 1 if a is the true accuracy. By
Ville's inequality, all a with E(a) < 1/alpha form a confidence sequence. Sources: Robbins 1970;
Howard et al. 2021, "Time-uniform, nonparametric, nonasymptotic confidence sequences". S and F may
be fractions, because rows have weights.
"""

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from covcal_cli.arrays import Float64s, Floats, Labels
from covcal_cli.maths.softmax import blocks_of, class_major, exp

# p + q of the beta prior.
_CONCENTRATION = 20.0
_NEAREST = 0.02
_HALVINGS = 50
_ROUNDING = 1e-12
# Minimum number of hits for Wilson's interval. `FEW` is for levels up to 0.95.
FEW, _FEW_ABOVE = 12, 1000


def sigmoid(log_odds: Float64s) -> Float64s:
    """Return probabilities from log odds, without overflow."""
    return np.asarray(np.exp(-np.logaddexp(0, -log_odds)))


def logit(probability: Float64s, nearest: float) -> Float64s:
    """Return log odds. Probabilities are clipped to [`nearest`, 1 - `nearest`]."""
    clipped = np.clip(probability, nearest, 1 - nearest)
    return np.asarray(np.log(clipped) - np.log1p(-clipped))


def probabilities(logits: Floats, temperature: float) -> Float64s:
    """Return softmax(z / T), shape (K, n), of logits (n, K)."""
    shares = np.empty(logits.shape[::-1])
    for rows, scaled in _scaled(logits, temperature):
        block = exp(scaled)
        block /= block.sum(axis=0)
        shares[:, rows] = block
    return shares


def confidences(logits: Floats, temperature: float, labels: Labels | None = None) -> Float64s:
    """Return the probability of each row's label (default: its most probable class), (n,)."""
    blocks = (class_major(block) for block in blocks_of(logits)())
    return confidences_of(blocks, temperature, labels)


def confidences_of(
    blocks: Iterable[Float64s], temperature: float, labels: Labels | None = None
) -> Float64s:
    """Return the probability of each row's label at T, (n,), from blocks made by `class_major`."""
    values, start = [np.empty(0)], 0
    for logits in blocks:
        block = exp(logits / temperature)
        stop = start + block.shape[1]
        term = 1.0 if labels is None else block[labels[start:stop], np.arange(stop - start)]
        values.append(term / block.sum(axis=0))
        start = stop
    return np.concatenate(values)


def top_log_odds(logits: Floats, temperature: float) -> Float64s:
    """Return the log odds of the most probable class at T, shape (n,).

    Log odds can rank rows even if all probabilities round to 1.
    """
    values = np.empty(len(logits))
    for rows, scaled in _scaled(logits, temperature):
        scaled[scaled.argmax(axis=0), np.arange(scaled.shape[1])] = -np.inf
        second = scaled.max(axis=0)
        scaled -= np.where(second > -np.inf, second, 0.0)
        rest = np.exp(scaled).sum(axis=0)
        values[rows] = -(second + np.log(np.maximum(rest, np.finfo(np.float64).tiny)))
    return values


def _scaled(logits: Floats, temperature: float) -> Iterator[tuple[slice, Float64s]]:
    start = 0
    for block in blocks_of(logits)():
        stop = start + len(block)
        yield slice(start, stop), class_major(block) / temperature
        start = stop


def quantile(level: float) -> float:
    """Return the two-sided normal quantile, such as 1.96 for the level 0.95."""
    return NormalDist().inv_cdf((1 + level) / 2)


def wilson(share: float, n: float, level: float) -> tuple[float, float]:
    """Return Wilson's (1927) interval of a proportion, from n effective rows."""
    z = quantile(level)
    pull = z**2 / n
    centre = (share + pull / 2) / (1 + pull)
    half = z * math.sqrt(share * (1 - share) / n + pull / (4 * n)) / (1 + pull)
    return max(0.0, centre - half), min(1.0, centre + half)


@lru_cache(1 << 12)
def interval_of_counts(hits: int, n: int, level: float) -> tuple[float, float]:
    """Return the confidence interval of a proportion.

    The interval is Wilson's, or exact (Clopper & Pearson 1934) if there are few hits or few misses.
    Wilson's interval at a high level often misses a proportion near 0 or 1.
    """
    if 2 * hits > n:
        low, high = interval_of_counts(n - hits, n, level)
        return 1 - high, 1 - low
    if hits >= (FEW if level <= 0.95 else _FEW_ABOVE):
        return wilson(hits / n, n, level)
    numbers = np.arange(hits + 1.0)
    steps = np.log((n - numbers[1:] + 1) / numbers[1:])
    logs = np.append(0.0, np.cumsum(steps))  # logarithms of the binomial coefficients

    def share(count: int, chance: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            p = (low + high) / 2
            terms = logs[: count + 1] + numbers[: count + 1] * math.log(p)
            total = float(np.exp(terms + (n - numbers[: count + 1]) * math.log1p(-p)).sum())
            low, high = (p, high) if total > chance else (low, p)
        return high

    beyond = (1 - level) / 2
    return share(hits - 1, 1 - beyond) if hits else 0.0, share(hits, beyond)


def anytime_interval(
    right: Float64s | float,
    wrong: Float64s | float,
    expected: Float64s | float,
    error: Float64s | float,
) -> tuple[Float64s, Float64s]:
    """Return the ends of intervals of the accuracy that stay valid after every label.

    - `right`, `wrong`: S and F, the total weights of right and of wrong rows.
    - `expected`: prior mean of the accuracy, chosen before labelling.
    - `error`: probability that the interval ever misses the accuracy.
    """
    s, f, mean, level = np.broadcast_arrays(right, wrong, expected, error)
    mean = np.clip(mean, _NEAREST, 1 - _NEAREST)
    p, q = _CONCENTRATION * mean, _CONCENTRATION * (1 - mean)
    limit = -np.log(level) - _log_beta(p + s, q + f) + _log_beta(p, q)

    def edge(outside: float) -> Float64s:
        total = s + f
        inside = np.where(total > 0, s / np.where(total > 0, total, 1.0), 0.5)
        beyond = np.full_like(inside, outside)
        for _ in range(_HALVINGS):
            middle = (inside + beyond) / 2
            a = np.clip(middle, _ROUNDING, 1 - _ROUNDING)
            is_inside = -s * np.log(a) - f * np.log1p(-a) < limit
            inside = np.where(is_inside, middle, inside)
            beyond = np.where(is_inside, beyond, middle)
        return beyond

    low = np.where(s > _ROUNDING, edge(0.0), 0.0)
    return low, np.where(f > _ROUNDING, edge(1.0), 1.0)


def _log_beta(p: Float64s, q: Float64s) -> Float64s:
    return np.asarray(_log_gamma(p) + _log_gamma(q) - _log_gamma(p + q), dtype=np.float64)


_log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])
