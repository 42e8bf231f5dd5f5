"""Conversions between logits, probabilities and log odds, and the interval of a share of rows.

The log odds of a probability p are log(p / (1 - p)). They distinguish probabilities that a float
rounds to 1.
"""

import math
from collections.abc import Iterator
from statistics import NormalDist

import numpy as np

from covcal_cli.arrays import Float64s, Floats, Labels
from covcal_cli.maths.softmax import blocks_of, class_major, exp


def sigmoid(log_odds: Float64s) -> Float64s:
    """Return probabilities of any log odds, without overflow."""
    return np.asarray(np.exp(-np.logaddexp(0, -log_odds)))


def logit(probability: Float64s, nearest: float) -> Float64s:
    """Return log odds; probabilities are clipped to `nearest` and 1 - `nearest` first."""
    clipped = np.clip(probability, nearest, 1 - nearest)
    return np.asarray(np.log(clipped) - np.log1p(-clipped))


# Functions of logits (n, K) and a temperature, computed in blocks that fit the cache.


def probabilities(logits: Floats, temperature: float) -> Float64s:
    """Return softmax(z / T), classes first, shape (K, n), of logits (n, K)."""
    shares = np.empty(logits.shape[::-1])
    for rows, scaled in _scaled(logits, temperature):
        block = exp(scaled)
        block /= block.sum(axis=0)
        shares[:, rows] = block
    return shares


def confidences(logits: Floats, temperature: float, labels: Labels | None = None) -> Float64s:
    """Return the probability of every row's label at T, shape (n,); of its top class by default."""
    values = np.empty(len(logits))
    for rows, scaled in _scaled(logits, temperature):
        block = exp(scaled)
        # Every row's maximum is shifted to 0: the top class has the term 1.
        term = 1.0 if labels is None else block[labels[rows], np.arange(block.shape[1])]
        values[rows] = term / block.sum(axis=0)
    return values


def top_log_odds(logits: Floats, temperature: float) -> Float64s:
    """Return the log odds of the top class's probability at T, shape (n,).

    They rank rows as the probabilities do, and also rank rows whose probability rounds to 1.
    """
    values = np.empty(len(logits))
    for rows, scaled in _scaled(logits, temperature):
        scaled[scaled.argmax(axis=0), np.arange(scaled.shape[1])] = -np.inf
        second = scaled.max(axis=0)  # -inf if only one class is possible
        scaled -= np.where(second > -np.inf, second, 0.0)
        rest = np.exp(scaled).sum(axis=0)
        values[rows] = -(second + np.log(np.maximum(rest, np.finfo(np.float64).tiny)))
    return values


def _scaled(logits: Floats, temperature: float) -> Iterator[tuple[slice, Float64s]]:
    """Yield the rows of each block with their z / T, classes first."""
    start = 0
    for block in blocks_of(logits)():
        stop = start + len(block)
        yield slice(start, stop), class_major(block) / temperature
        start = stop


# The interval of a share of rows.


def quantile(level: float) -> float:
    """Return the half-width of an interval of this level, in standard deviations."""
    return NormalDist().inv_cdf((1 + level) / 2)


def wilson(share: float, n: float, level: float) -> tuple[float, float]:
    """Return Wilson's (1927) interval of a share of n rows.

    `n` may be an effective sample size.
    """
    z = quantile(level)
    pull = z**2 / n
    centre = (share + pull / 2) / (1 + pull)
    half = z * math.sqrt(share * (1 - share) / n + pull / (4 * n)) / (1 + pull)
    return max(0.0, centre - half), min(1.0, centre + half)


# Shares as text.


def percent(share: float | None) -> str:
    """Return a share with two decimals, as ``12.50 %``; a dash where there is none."""
    return "-" if share is None else f"{100 * share:.2f} %"


def short_percent(share: float) -> str:
    """Return a round share, such as a confidence level, as ``95 %`` or ``99.9 %``."""
    return f"{100 * share:.4g} %"
