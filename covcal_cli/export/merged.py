"""What is merged into a model, whatever its framework: the forecaster and its three outputs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.export.agreement import Agreement
from covcal_cli.forecasters import log_probabilities
from covcal_cli.networks import aligned_logits
from covcal_cli.softmax import class_major, log_mean_softmax

ADDED = ("probabilities", "label", "confidence")
"""Names of the outputs that are added, where the model does not have them."""


@dataclass(frozen=True)
class Forecaster:
    """The calibrated forecaster that is merged into a model.

    Attributes
    ----------
    temperature : float
        T_f.
    networks : mapping of str to array, or None
        ``/networks`` of an adapted file; None scales the classifier's own logits.
    """

    temperature: float
    networks: Mapping[str, NDArray[Any]] | None

    def probabilities(
        self, features: NDArray[np.float32] | None, logits: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """Return calibrated probabilities, shape (n, K), in float64.

        Parameters
        ----------
        features : array, shape (n, d), or None
            phi; needed with networks.
        logits : array, shape (n, K)
            The classifier's own.
        """
        if self.networks is None or features is None:
            scaled = class_major(logits)
        else:
            scaled = log_mean_softmax(aligned_logits(self.networks, features))
        return np.exp(log_probabilities(scaled, self.temperature)).T


@dataclass(frozen=True)
class Exported:
    """A model that was written.

    Attributes
    ----------
    output : Path
    kept : tuple of str
        The outputs of the original, as they were.
    added : tuple of str
        The names of probabilities, label and confidence.
    weights : Path or None
        The file of external weights beside it.
    agreement : Agreement
    """

    output: Path
    kept: tuple[str, ...]
    added: tuple[str, ...]
    weights: Path | None
    agreement: Agreement


def free_name(name: str, taken: set[str]) -> str:
    """Return `name`, or where the model has it already ``calibrated_NAME``, then numbered."""
    if name not in taken:
        return name
    free, number = f"calibrated_{name}", 2
    while free in taken:
        free, number = f"calibrated_{name}_{number}", number + 1
    return free
