"""The accuracy of a period by labels that a person put in for rows that `pick` drew.

With p the calibrated confidence of a row, N rows in the frame and weights w that count what each
drawn row stands for, the difference estimator (Cassel, Särndal & Wretman 1976) is

    A = mean_frame(p) + sum_drawn w (right - p) / N,

whose variance, if p is about right, the design gives. The interval is Wilson's (1927) at the sample
size at which labels alone would be as sure.
"""

import math
from statistics import NormalDist

import numpy as np

from covcal_cli.estimators.sketches import calibrated_confidence
from covcal_cli.formats.features import FeatureFile, thinned
from covcal_cli.formats.forecaster import ScaledLogits
from covcal_cli.formats.marked_labels import marked_rows
from covcal_cli.formats.marks import frame_rows
from covcal_cli.watch.period import PeriodAccuracy

_LEAST_ROWS = 2
_MOST_ROWS = 20_000  # of the frame whose confidence is read


def accuracy_by_labels(
    file: FeatureFile, scaled: ScaledLogits, false_alarms: float, seed: int
) -> PeriodAccuracy | None:
    """Return the accuracy of a file's target by its marked labels; None for fewer than 2 of them.

    Parameters
    ----------
    file : FeatureFile
        Open.
    scaled : ScaledLogits
        Of the calibration on this file.
    false_alarms : float
        How often the interval may miss the accuracy.
    seed : int
        Chooses rows of the frame where there are many.

    Raises
    ------
    CovcalError
        If the marks are damaged.
    """
    found, target = marked_rows(file), file.require_target()
    if found is None or len(found.rows) < _LEAST_ROWS:
        return None
    frame, n = frame_rows(target, found.batches[0].splits), len(found.rows)
    of_frame = calibrated_confidence(target, thinned(frame, _MOST_ROWS, seed), scaled)
    expected = calibrated_confidence(target, found.rows, scaled)
    right = target.logits(found.rows).argmax(axis=1) == found.labels
    # Batches count by their sizes; a row of an earlier one also stands for itself in later ones.
    sizes = np.bincount(found.batch, minlength=len(found.batches)) / n
    share, later = sizes[found.batch], (1 - np.cumsum(sizes))[found.batch]
    weights = share / found.inclusion + later
    accuracy = float(of_frame.mean() + weights @ (right - expected) / len(frame))
    of_rows = share**2 * (1 - found.inclusion) / found.inclusion**2 * expected * (1 - expected)
    variance = float(of_rows.sum()) / len(frame) ** 2 * n / (n - 1)
    accuracy = min(max(accuracy, 0.0), 1.0)
    low = high = accuracy
    if variance > 0:  # else every row has a label
        mean = float(of_frame.mean())
        z = NormalDist().inv_cdf(1 - false_alarms / 2)
        low, high = _wilson(accuracy, mean * (1 - mean) / variance, z)
    return PeriodAccuracy(accuracy, low, high, f"the labels of {n} rows")


def _wilson(share: float, size: float, z: float) -> tuple[float, float]:
    middle = share + z**2 / (2 * size)
    half = z * math.sqrt(share * (1 - share) / size + z**2 / (4 * size**2))
    low, high = ((middle + sign * half) / (1 + z**2 / size) for sign in (-1, 1))
    return max(low, 0.0), min(high, 1.0)
