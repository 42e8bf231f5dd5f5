"""The accuracy of a period by labels that a person put in for rows that `pick` drew.

With p the calibrated confidence of a row, N rows in the frame and weights w that count what each
drawn row stands for, the difference estimator (Cassel, Särndal & Wretman 1976) is

    A = mean_frame(p) + sum_drawn w (right - p) / N,

whose variance the design gives. The interval is Wilson's (1927) at the sample size at which labels
alone would be as sure.
"""

import numpy as np

from covcal_cli.arrays import Float64s, Integers
from covcal_cli.forecast.forecaster import ScaledLogits
from covcal_cli.formats.features import FeatureFile, thinned
from covcal_cli.labels.accuracy import LabelledSample
from covcal_cli.labels.draws import frame_rows
from covcal_cli.labels.picked_labels import marked_rows
from covcal_cli.maths.odds import wilson
from covcal_cli.watch.period import PeriodAccuracy
from covcal_cli.watch.sketches import calibrated_confidence

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
    frame = frame_rows(target, found.batches[0].splits)
    right = target.logits(found.rows).argmax(axis=1) == found.labels
    ends = difference_estimate(
        len(frame),
        calibrated_confidence(target, thinned(frame, _MOST_ROWS, seed), scaled),
        calibrated_confidence(target, found.rows, scaled),
        right.astype(np.float64),
        found.inclusion,
        found.batch,
        false_alarms,
    )
    return PeriodAccuracy(*ends, f"the labels of {len(right)} rows")


def difference_estimate(
    population: int,
    of_frame: Float64s,
    expected: Float64s,
    right: Float64s,
    inclusion: Float64s,
    batch: Integers,
    false_alarms: float,
) -> tuple[float, float, float]:
    """Return the accuracy on a frame and the ends of its interval.

    Parameters
    ----------
    population : int
        N.
    of_frame : ndarray of shape (m,) float64
        p of all rows of the frame, or of some that stand for them.
    expected, right, inclusion : ndarrays of shape (n,) float64
        p of the drawn rows, whether they are right (1 or 0), and with what probability their batch
        drew them from what earlier ones left.
    batch : ndarray of shape (n,) int64
        0 .. B - 1.
    false_alarms : float
        How often the interval may miss.
    """
    sample = LabelledSample(population, right, inclusion, batch)
    n = len(sample)
    accuracy = float(of_frame.mean() + sample.weights @ (right - expected) / population)
    # What p expects, or what was found where that is more: p may be wrong, and rows few.
    per_row = sample.variances
    spread = max(per_row @ (expected * (1 - expected)), per_row @ (right - expected) ** 2)
    variance = float(spread) / population**2 * n / max(n - 1, 1)
    accuracy = min(max(accuracy, 0.0), 1.0)
    if variance == 0:  # every row has a label
        return accuracy, accuracy, accuracy
    mean = float(of_frame.mean())
    return accuracy, *wilson(accuracy, mean * (1 - mean) / variance, 1 - false_alarms)
