"""A calibration as a function of logits: temperatures, and offsets added after them.

Most calibrations scale one forecaster: softmax(z / T + b + a 1[k = f]), with an offset b for every
class and an offset a for the label f. A blend is the mean of two distributions without offsets:
softmax(z / T_f) of the classifier's logits and softmax(z / T_a) of the aligned logits. All readers
handle one T and one set of logits, so they get the logarithm of this mean as logits at T = 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from covcal_cli.arrays import Float64s, Labels
from covcal_cli.maths.softmax import (
    Softmax,
    class_major,
    log_mean,
    log_softmax,
    softmax,
    with_offsets,
)

ForecasterName = Literal["original", "aligned"]  # the classifier, or the forecaster of adapt
# The forecasters that a calibration scales; a blend scales both.
Forecasters = Literal["original", "aligned", "blend"]


def scaled_by(forecasters: Forecasters) -> tuple[ForecasterName, ...]:
    """Return the names of the forecasters that a calibration scales."""
    return ("original", "aligned") if forecasters == "blend" else (forecasters,)


@dataclass(frozen=True)
class Scaling:
    """The temperatures and offsets of one calibration."""

    forecaster: Forecasters
    temperature: float  # T_f; in a blend, for the classifier's logits
    aligned_temperature: float | None = None  # T_a, in a blend
    # b, shape (K,), added after T_f; None in a blend.
    offsets: Float64s | None = field(default=None, kw_only=True)
    # a, added for the classifier's label; 0 in a blend.
    of_label: float = field(default=0.0, kw_only=True)

    @property
    def is_moved(self) -> bool:
        """Whether there are offsets."""
        return self.offsets is not None or self.of_label != 0

    @property
    def can_move_the_top(self) -> bool:
        """Whether another class can become more probable than the classifier's label."""
        return self.is_moved or self.reads_aligned

    @property
    def temperatures(self) -> dict[ForecasterName, float]:
        """The temperature of every forecaster that the calibration scales."""
        values = (self.temperature, self.aligned_temperature)
        named = zip(scaled_by(self.forecaster), values, strict=False)
        return {name: value for name, value in named if value is not None}

    @property
    def reads_aligned(self) -> bool:
        """Whether the calibration reads aligned logits, which ``covcal adapt`` makes."""
        return "aligned" in self.temperatures

    def prepared(self, blocks: Sequence[Float64s]) -> tuple[Float64s, float]:
        """Return logits and a T whose softmax is the calibrated distribution.

        `blocks` are the logits of each forecaster in `temperatures`, in that order. They and the
        returned logits have shape (K, m), as `covcal_cli.maths.softmax.class_major` makes them.
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
        """Return the calibrated distribution of `blocks`; their form is that of `prepared`."""
        return softmax(*self.prepared(blocks))

    def confidence(self, blocks: Sequence[Float64s], labels: Labels) -> Float64s:
        """Return the calibrated probability of `labels`, (m,); `blocks` are as in `prepared`."""
        probabilities = self.forecast(blocks).probabilities
        return np.asarray(probabilities[labels, np.arange(len(labels))])

    def shown(self, digits: int) -> str:
        """Return the temperatures as text with `digits` significant digits."""
        return shown_temperatures(self.temperature, self.aligned_temperature, digits)


def shown_temperatures(temperature: float, aligned: float | None, digits: int) -> str:
    """Return T_f, and in a blend T_a, as text with `digits` significant digits."""
    values = (temperature,) if aligned is None else (temperature, aligned)
    return ", ".join(f"{value:.{digits}g}" for value in values)
