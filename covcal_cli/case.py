"""One file as the methods see it: what several of them need, computed when first asked for."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.discriminator import fit_discriminator
from covcal_cli.errors import CovcalError
from covcal_cli.featurefile import FeatureFile, Rows, SourceDomain
from covcal_cli.forecasters import forecaster_blocks, forecaster_logits
from covcal_cli.labelfree.combined import combined
from covcal_cli.labelfree.cot import cot
from covcal_cli.labelfree.estimate import Estimate
from covcal_cli.labelfree.evidence import Aligned, Evidence
from covcal_cli.labelfree.panel import panel
from covcal_cli.labelfree.priors import target_prior
from covcal_cli.labelfree.reading import read_evidence
from covcal_cli.methods import MIN_ERRORS, SOURCE_PRIOR, Forecaster
from covcal_cli.rowlosses import brier_rows, nll_rows
from covcal_cli.softmax import Array
from covcal_cli.temperature import Loss, TemperatureFit, fit_temperature
from covcal_cli.weights import DEFAULT_MAX_WEIGHT, ImportanceWeights, importance_weights


@dataclass(frozen=True)
class Validation:
    """Labelled source validation rows, and how many have no label."""

    source: SourceDomain
    rows: Rows
    labels: NDArray[np.int64]
    unlabelled: int

    def __len__(self) -> int:
        return len(self.rows)

    def row_losses(self, forecaster: Forecaster, temperature: float, loss: Loss) -> Iterator[Array]:
        """Yield the loss of softmax(z / T) of every row, block by block."""
        of_rows = brier_rows if loss == "brier" else nll_rows
        for logits, labels in self._blocks(forecaster):
            shifted = logits - logits.max(axis=0)
            yield of_rows(shifted, labels, temperature, False)[0]

    def errors(self, forecaster: Forecaster) -> int:
        """Return how many rows the forecaster's own label is wrong on."""
        return sum(
            int((logits.argmax(axis=0) != labels).sum())
            for logits, labels in self._blocks(forecaster)
        )

    def _blocks(self, forecaster: Forecaster) -> Iterator[tuple[Array, NDArray[np.int64]]]:
        start = 0
        for block in self.source.blocks(self.rows):
            labels = self.labels[start : start + len(block)]
            yield forecaster_logits(self.source, block, forecaster), labels
            start += len(block)


def validation_of(file: FeatureFile) -> Validation:
    """Return the labelled source validation rows of a file, which must have some.

    Raises
    ------
    CovcalError
        If the file has no source, no validation row, or none with a label.
    """
    source = file.require_source()
    rows = source.require_rows("validation")
    labels = source.labels(rows)
    known = labels >= 0
    if not known.any():
        raise CovcalError(
            f"{file.path}: none of the {len(rows)} source validation rows has a label: "
            "extract the source from class folders, or give y"
        )
    return Validation(source, rows[known], labels[known], int((~known).sum()))


class Case:
    """One file with the settings of a run.

    Parameters
    ----------
    file : FeatureFile
        Open for as long as the case is used.
    loss : {"brier", "nll"}
        What fitted temperatures minimise.
    max_weight : float
        U >= 1.
    seed : int
    prior_name : str
        ``source``, ``uniform``, ``bbse`` or a file, as ``--target-prior`` takes it.
    """

    def __init__(
        self,
        file: FeatureFile,
        *,
        loss: Loss = "brier",
        max_weight: float = DEFAULT_MAX_WEIGHT,
        seed: int = 0,
        prior_name: str = SOURCE_PRIOR,
    ) -> None:
        self.file, self.loss, self.max_weight = file, loss, max_weight
        self.seed, self.prior_name = seed, prior_name
        self.validation = validation_of(file)
        self._errors: dict[Forecaster, int] = {}
        self._plain: dict[Forecaster, TemperatureFit] = {}
        self._weights: dict[Forecaster, ImportanceWeights] = {}

    def errors(self, forecaster: Forecaster) -> int:
        """Return how many labelled source validation rows the forecaster gets wrong."""
        if forecaster not in self._errors:
            self._errors[forecaster] = self.validation.errors(forecaster)
        return self._errors[forecaster]

    def fit(self, forecaster: Forecaster, weights: Array | None = None) -> TemperatureFit:
        """Fit T to the labelled source validation rows."""
        if weights is None and forecaster in self._plain:
            return self._plain[forecaster]
        found = fit_temperature(
            forecaster_blocks(self.validation.source, self.validation.rows, forecaster),
            self.validation.labels,
            weights,
            loss=self.loss,
            allow_sharpening=self.errors(forecaster) >= MIN_ERRORS,
            seed=self.seed,
        )
        if weights is None:
            self._plain[forecaster] = found
        return found

    def loss_at(self, forecaster: Forecaster, temperature: float) -> float:
        """Return the mean loss of the labelled source validation rows at a temperature."""
        losses = self.validation.row_losses(forecaster, temperature, self.loss)
        return float(np.concatenate(list(losses)).mean())

    def weights(self, forecaster: Forecaster) -> ImportanceWeights:
        """Return the importance weights of the labelled source validation rows.

        From the discriminators on psi(phi) for the aligned forecaster, else from that on phi: the
        network of an adapted file, or a logistic one fitted here.
        """
        if forecaster not in self._weights:
            on_source, on_target = self._domain_logits(forecaster)
            self._weights[forecaster] = importance_weights(
                on_source, on_target, max_weight=self.max_weight
            )
        return self._weights[forecaster]

    def _domain_logits(
        self, forecaster: Forecaster
    ) -> tuple[NDArray[np.floating[Any]], NDArray[np.floating[Any]]]:
        source, target = self.validation.source, self.file.require_target()
        rows, target_rows = self.validation.rows, target.rows("validation")
        if forecaster == "aligned":
            return source.aligned_domain_logits(rows), target.aligned_domain_logits(target_rows)
        if self.file.is_adapted:
            return source.domain_logits(rows)[None], target.domain_logits(target_rows)[None]
        logistic = fit_discriminator(source, target, seed=self.seed)
        return (
            logistic.domain_logits(source, rows)[None],
            logistic.domain_logits(target, target_rows)[None],
        )

    @cached_property
    def evidence(self) -> Evidence:
        """What estimates may know, without importance weights."""
        return self.evidence_with(None)

    def evidence_with(self, weights: Array | None) -> Evidence:
        """Return what estimates may know, with importance weights of the validation rows."""
        temperature = self.fit("original").temperature
        return read_evidence(self.file, temperature, source_weights=weights, seed=self.seed)

    @property
    def aligned(self) -> Aligned:
        """The aligned forecaster on the evidence's rows; `CovcalError` where there is none."""
        if self.evidence.aligned is None:
            raise CovcalError(f"{self.file.path} is no adapted file: run covcal adapt first")
        return self.evidence.aligned

    @cached_property
    def prior(self) -> Array | None:
        """Class frequencies on the target, shape (K,), where they are not the source's."""
        return target_prior(self.prior_name, self.evidence, self.file.classes)

    @cached_property
    def cot(self) -> Estimate:
        """The target accuracy by optimal transport."""
        return cot(self.evidence, self.prior)

    @cached_property
    def accuracy(self) -> Estimate:
        """The target accuracy to act on."""
        return combined(panel(self.evidence, self.cot))
