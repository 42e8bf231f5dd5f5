"""Row scores from logits: confidences at a temperature, and log-odds that never saturate."""

import numpy as np

from covcal_cli.arrays import Float64s, Floats, Labels
from covcal_cli.maths.softmax import blocks_of, class_major, exp


def probabilities(logits: Floats, temperature: float) -> Float64s:
    """Return softmax(z / T), classes first, shape (K, n), of logits (n, K)."""
    found = np.empty(logits.shape[::-1])
    start = 0
    for block in blocks_of(logits)():
        part = exp(class_major(block) / temperature)
        part /= part.sum(axis=0)
        found[:, start : start + len(block)] = part
        start += len(block)
    return found


def confidences(logits: Floats, temperature: float, labels: Labels | None = None) -> Float64s:
    """Return the probability of every row's label at T, shape (n,), by default of the top one."""
    found = np.empty(len(logits))
    start = 0
    for block in blocks_of(logits)():
        stop = start + len(block)
        chances = exp(class_major(block) / temperature)
        # class_major shifts every row's maximum to 0: the top label's term is 1.
        top = 1.0 if labels is None else chances[labels[start:stop], np.arange(len(block))]
        found[start:stop] = top / chances.sum(axis=0)
        start = stop
    return found


def log_odds(logits: Floats, temperature: float) -> Float64s:
    """Return log(c / (1 - c)) of the top confidence c at T, shape (n,).

    The same order as c, but rows whose c rounds to 1 keep theirs: thresholds and bins need it.
    """
    found = np.empty(len(logits))
    start = 0
    for block in blocks_of(logits)():
        scaled = class_major(block) / temperature
        columns = np.arange(len(block))
        scaled[scaled.argmax(axis=0), columns] = -np.inf
        second = scaled.max(axis=0)
        rest = np.exp(scaled - second).sum(axis=0)
        found[start : start + len(block)] = -(second + np.log(rest))
        start += len(block)
    return found
