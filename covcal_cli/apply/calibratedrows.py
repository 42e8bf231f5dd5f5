"""Calibrated probabilities of a block of rows, in float32 and as fast as NumPy does it.

`softmax` keeps float64 for sums over many rows; here every row stands alone, and its probabilities
are stored as float32 anyway.
"""

import numpy as np
from numpy.typing import NDArray

from covcal_cli.formats.features import Domain, Floats, ForecasterName, Rows
from covcal_cli.formats.forecaster import AlignedNetworks, forecaster_logits, log_probabilities
from covcal_cli.maths.softmax import exp

_FEW_CLASSES = 32
"""Below it NumPy reduces over classes far faster when they come first, above it when they follow
each other in memory."""


def calibrated_rows(
    domain: Domain,
    rows: Rows,
    forecaster: ForecasterName,
    temperature: float,
    networks: AlignedNetworks | None,
) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return label, confidence and calibrated probabilities of `rows`.

    Returns
    -------
    labels : array of int64, shape (m,)
        Those that the classifier predicted.
    confidence : array of float32, shape (m,)
        The probability that the calibrated forecaster gives to that label.
    probabilities : array of float32, shape (m, K)
    """
    logits = domain.logits(rows)
    if forecaster == "original":
        labels, distances, axis = _distances(logits)
        probabilities = _softmax(distances, axis, temperature)
        return labels, probabilities.max(axis=1), probabilities
    labels = logits.argmax(axis=1)
    aligned = forecaster_logits(domain, rows, forecaster, networks)
    probabilities = exp(log_probabilities(aligned, temperature)).astype(np.float32).T
    return labels, probabilities[np.arange(len(rows)), labels], probabilities


def _distances(logits: Floats) -> tuple[NDArray[np.int64], Floats, int]:
    """Return the labels, logits less the highest of their row, and the axis of the classes."""
    with np.errstate(over="ignore"):  # -inf is a probability of 0
        if logits.shape[1] > _FEW_CLASSES:
            return logits.argmax(axis=1), logits - logits.max(axis=1, keepdims=True), 1
        distances = np.ascontiguousarray(logits.T)
        distances = distances - distances.max(axis=0)
    labels = np.zeros(len(logits), dtype=np.int64)
    for index in reversed(range(len(distances))):  # so that the first of equals stays
        np.putmask(labels, distances[index] == 0, index)
    return labels, distances, 0


def _softmax(distances: Floats, axis: int, temperature: float) -> Floats:
    """Return softmax(z / T), shape (m, K), of `distances`, whose memory it takes."""
    with np.errstate(over="ignore"):
        # In float64, where a temperature that float32 cannot hold is no zero.
        np.divide(distances, temperature, out=distances, dtype=np.float64, casting="same_kind")
    np.exp(distances, out=distances)
    distances /= distances.sum(axis=axis, keepdims=True)
    return distances if axis == 1 else distances.T
