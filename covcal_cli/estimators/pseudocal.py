"""PseudoCal: a temperature fitted on mixtures of target rows, labelled by their heavier half.

Hu et al., "Pseudo-calibration: improving predictive uncertainty estimation in unsupervised domain
adaptation", ICML 2024, in feature mode: phi_j and phi_i, with i a random partner of another
predicted class, are mixed to 0.65 phi_j + 0.35 phi_i, and the label is the one predicted for j. The
classifier's last layer is linear, W phi + b, so the mixture's logits are the same mixture of the
two rows' logits: neither phi nor W is needed. T minimises the negative log-likelihood.

The publication mixes inputs, which needs the model; mixing logits is its feature mode alone, and a
row has one partner here, under one permutation.
"""

from dataclasses import dataclass

import numpy as np

from covcal_cli.arrays import Floats, Labels
from covcal_cli.estimators.guards import not_at_limit, pseudo_accuracy
from covcal_cli.estimators.inputs import EstimatorInputs
from covcal_cli.maths.masks import masked
from covcal_cli.maths.temperature import Limit, fit_temperature
from covcal_cli.records import Guard

MIX = 0.65


@dataclass(frozen=True)
class PseudoCal:
    """A temperature with its ground."""

    temperature: float  # T, or T_s where fewer than two classes are predicted
    pairs: int  # mixtures that it was fitted on
    guards: tuple[Guard, ...]
    at_limit: Limit | None = None


def pseudocal(inputs: EstimatorInputs, *, seed: int = 0) -> PseudoCal:
    """Fit T on mixtures of target rows; `seed` chooses every row's partner."""
    mixed, labels = mixtures(inputs.target_logits, seed)
    if len(labels) == 0:
        return PseudoCal(inputs.temperature, 0, (pseudo_accuracy(0.0),))
    fit = fit_temperature(mixed, labels, loss="nll", seed=seed)
    share = float((mixed.argmax(axis=1) == labels).mean())
    guards = (pseudo_accuracy(share), not_at_limit(fit.temperature, fit.at_limit))
    return PseudoCal(fit.temperature, len(labels), guards, fit.at_limit)


def mixtures(logits: Floats, seed: int) -> tuple[Floats, Labels]:
    """Return the logits (m, K) of the mixtures and their labels (m,).

    A row is mixed once, with its partner under one permutation, and left out where both have the
    same predicted class, or allow no class together: what one of them masks has no size.
    """
    predictions = logits.argmax(axis=1).astype(np.int64)
    logits = np.where(masked(logits), -np.inf, logits)
    partner = np.random.default_rng(seed).permutation(len(logits))
    rows = np.flatnonzero(predictions != predictions[partner])
    mixed = MIX * logits[rows] + (1 - MIX) * logits[partner[rows]]
    possible = mixed.max(axis=1, initial=-np.inf) > -np.inf
    return mixed[possible], predictions[rows[possible]]
