"""The forecast that the classifier is right, row by row, which a draw leans on.

It is the confidence in the classifier's label: of the calibration that is given, else of the
classifier at the temperature that fits the labelled source validation rows; and where the file
has an aligned forecaster as well, the mean of both forecasters' confidences. On the shifts that
settings may be chosen on, a draw by the mean errs by 3.5 points at 50 labels where one by the
classifier's own confidence, not calibrated, errs by 4.4.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from covcal_cli.arrays import Float64s, Floats, Labels, Rows
from covcal_cli.forecast.forecaster import ScaledLogits
from covcal_cli.formats.features import FeatureFile, SourceDomain
from covcal_cli.maths.scaling import ForecasterName, Scaling
from covcal_cli.maths.temperature import MIN_ERRORS, fit_temperature
from covcal_cli.progress import Progress, ProgressCallback

_MOST_FITTED = 20_000  # source rows; a forecast that is only leant on needs no more


@dataclass(frozen=True)
class Scores:
    """What is expected of some target rows."""

    predictions: Labels  # (N,), the classifier's labels
    right: Float64s  # (N,), the probability that they are right
    score: str  # how it was made, in words


def score(
    file: FeatureFile,
    rows: Rows,
    given: ScaledLogits | None,
    *,
    seed: int,
    progress: ProgressCallback,
) -> Scores:
    """Return the forecast of target rows, in memory that holds a few numbers per row.

    `given` are the logits of a calibration, if there is one, as they are to be scaled.
    """
    target = file.require_target()
    scaled = _forecasters(file, given, seed)
    predictions, right = np.empty(len(rows), dtype=np.int64), np.zeros(len(rows))
    read = {"logits"}.union(*(one.reads for one in scaled))
    start = 0
    for block in target.blocks(rows, *read):
        part = slice(start, start + len(block))
        predictions[part] = target.logits(block).argmax(axis=1)
        for one in scaled:
            probabilities = one.forecast(target, block).probabilities
            right[part] += probabilities[predictions[part], np.arange(len(block))] / len(scaled)
        start = part.stop
        progress(Progress("forecast", start, len(rows)))
    return Scores(predictions, np.clip(right, 0, 1), _in_words(scaled))


def _forecasters(file: FeatureFile, given: ScaledLogits | None, seed: int) -> list[ScaledLogits]:
    names: list[ForecasterName] = ["original", "aligned"] if file.is_adapted else ["original"]
    if given is not None:
        names = [name for name in names if name not in given.scaling.temperatures]
    fitted = [ScaledLogits(Scaling(name, _temperature(file.source, name, seed))) for name in names]
    return fitted if given is None else [given, *fitted]


def _temperature(source: SourceDomain | None, forecaster: ForecasterName, seed: int) -> float:
    """Return the T that fits the labelled source validation rows; 1 where there are none."""
    if source is None:
        return 1.0
    rows = source.drawn(_MOST_FITTED, seed, "validation")
    labels = source.labels(rows)
    rows, labels = rows[labels >= 0], labels[labels >= 0]
    if len(rows) == 0:
        return 1.0

    def blocks() -> Iterator[Floats]:
        for block in source.blocks(
            rows, "logits" if forecaster == "original" else "aligned_logits"
        ):
            yield source.forecaster_logits(block, forecaster)

    own = np.concatenate([block.argmax(axis=1) for block in blocks()])
    enough = np.count_nonzero(own != labels) >= MIN_ERRORS
    return fit_temperature(blocks, labels, allow_sharpening=bool(enough), seed=seed).temperature


def _in_words(scaled: Sequence[ScaledLogits]) -> str:
    whose = {"original": "classifier", "aligned": "aligned forecaster"}
    said = [
        f"{whose[name]} (T {temperature:.4g})"
        for one in scaled
        for name, temperature in one.scaling.temperatures.items()
    ]
    return f"{'mean ' if len(said) > 1 else ''}confidence of {' and '.join(said)}"
