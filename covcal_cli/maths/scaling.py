"""What a calibration does to logits: whose it divides, by which temperatures, and what is added.

Most scale one forecaster: softmax(z / T + b + a 1[k = f]), b being of the classes and a of the
label f. A blend is the mean of two distributions, softmax(z / T_f) of the classifier's own logits
and softmax(z / T_a) of the aligned ones, without offsets. The logarithms of a mean are logits too,
at T = 1, so that whatever reads one temperature reads a blend.
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
Forecasters = Literal["original", "aligned", "blend"]  # that a calibration scales: one, or both


def scaled_by(forecasters: Forecasters) -> tuple[ForecasterName, ...]:
    """Return the forecasters that a calibration scales, one by one."""
    return ("original", "aligned") if forecasters == "blend" else (forecasters,)


@dataclass(frozen=True)
class Scaling:
    """Temperatures of one forecaster or of a blend, and offsets of the one."""

    forecaster: Forecasters
    temperature: float  # T_f; of a blend that of the classifier's logits
    aligned_temperature: float | None = None  # T_a of a blend
    # b, shape (K,), added after T_f; not of a blend.
    offsets: Float64s | None = field(default=None, kw_only=True)
    of_label: float = field(default=0.0, kw_only=True)  # a of the classifier's label, likewise

    @property
    def is_moved(self) -> bool:
        """Whether there are offsets."""
        return self.offsets is not None or self.of_label != 0

    @property
    def temperatures(self) -> dict[ForecasterName, float]:
        """The temperature of every forecaster whose distribution enters the mean."""
        given = (self.temperature, self.aligned_temperature)
        named = zip(scaled_by(self.forecaster), given, strict=False)
        return {name: value for name, value in named if value is not None}

    @property
    def reads_aligned(self) -> bool:
        """Whether it reads the logits that adapt learnt."""
        return "aligned" in self.temperatures

    def prepared(self, blocks: Sequence[Float64s]) -> tuple[Float64s, float]:
        """Return the logits and the T whose softmax is the calibrated distribution.

        `blocks` are the logits of `temperatures`, in that order, each from
        `covcal_cli.maths.softmax.class_major`, shape (K, m); so are those that are returned.
        """
        found, temperature = blocks[0], self.temperature
        if len(blocks) > 1:
            scaled = zip(blocks, self.temperatures.values(), strict=True)
            found, temperature = log_mean([log_softmax(*one) for one in scaled]), 1.0
            found -= found.max(axis=0)
        if self.is_moved:
            moved = with_offsets(found.T, temperature, self.offsets, self.of_label)
            found = class_major(moved)
        return found, temperature

    def forecast(self, blocks: Sequence[Float64s]) -> Softmax:
        """Return the calibrated distribution of `blocks`, as `prepared` takes them."""
        return softmax(*self.prepared(blocks))

    def confidence(self, blocks: Sequence[Float64s], labels: Labels) -> Float64s:
        """Return the calibrated probability of `labels`, shape (m,), as `prepared` takes blocks."""
        probabilities = self.forecast(blocks).probabilities
        return np.asarray(probabilities[labels, np.arange(len(labels))])

    def shown(self, digits: int) -> str:
        """Return the temperatures for a cell of a table, with so many significant digits."""
        return shown_temperatures(self.temperature, self.aligned_temperature, digits)


def shown_temperatures(temperature: float, aligned: float | None, digits: int) -> str:
    """Return T_f, or T_f and T_a of a blend, with so many significant digits."""
    given = (temperature,) if aligned is None else (temperature, aligned)
    return ", ".join(f"{value:.{digits}g}" for value in given)
