"""Findings of a calibration in words that a user can act on: notes inform, warnings warn."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from covcal_cli.labelfree.fit_guards import MIN_ESS_SHARE
from covcal_cli.methods import MIN_ERRORS
from covcal_cli.records import Guard
from covcal_cli.temperature import TemperatureFit
from covcal_cli.weights import ImportanceWeights

MIN_ESS_FIT = 100.0
"""A weighted T_f should rest on at least this many effective rows."""
MAX_MEAN_WEIGHT_GAP = 0.2
MAX_CLIPPED_SHARE = 0.01


def notes_on_rows(labels: NDArray[np.int64], unlabelled: int, classes: list[str]) -> list[str]:
    """Return notes on source validation rows without a label, and classes without a row."""
    notes = []
    if unlabelled:
        notes.append(f"{unlabelled} source validation rows without a label are left out")
    absent = np.setdiff1d(np.arange(len(classes)), labels)
    if len(absent):
        names = ", ".join(classes[index] for index in absent[:5])
        more = ", ..." if len(absent) > 5 else ""
        notes.append(f"classes without a source validation row: {names}{more}")
    return notes


def warnings_on_classifier(errors: int, rows: int) -> list[str]:
    """Return a warning when the classifier is right on every source validation row."""
    if errors:
        return []
    return [
        f"the classifier makes no error on its {rows} source validation rows: were they used to "
        "train it? They must not be"
    ]


def warnings_on_temperature(
    fit: TemperatureFit, errors: int, rows: int, *, of: str = "source validation rows"
) -> list[str]:
    """Return warnings on a T that was held at 1 or stands at a limit."""
    if fit.held_at_one:
        return [
            f"{errors} errors among {rows} {of} are too few to justify "
            f"sharpening (at least {MIN_ERRORS}): T is kept at {fit.temperature:.4g}"
        ]
    if fit.at_limit == "lower":
        return [
            "T is at its lower limit: the validation rows call for ever sharper probabilities, "
            "which no data can justify; do not trust these confidences"
        ]
    if fit.at_limit == "upper":
        return [
            "T is at its upper limit: on the validation rows the logits say nothing about the "
            "labels, or the opposite; check labels and class order"
        ]
    return []


def notes_on_weights(weights: ImportanceWeights) -> list[str]:
    """Return a note when the discriminators cannot tell the domains apart."""
    if all(fit.at_limit == "upper" for fit in weights.temperatures):
        return ["no shift between the domains is detectable: all importance weights are 1"]
    return []


def warnings_on_weights(weights: ImportanceWeights) -> list[str]:
    """Return warnings on weights that a fit must not rest on."""
    health, warnings = weights.health, []
    few = []
    if health.ess_share < MIN_ESS_SHARE:
        few.append(f"fewer than the {MIN_ESS_SHARE * health.n:.1f} needed")
    if health.ess_fit < MIN_ESS_FIT:
        few.append(
            f"{health.ess_fit:.1f} in the fit, fewer than the {MIN_ESS_FIT:.0f} needed there"
        )
    if few:
        warnings.append(
            f"the importance weights are worth {health.ess:.1f} of {health.n} rows, "
            f"{', and '.join(few)}: prefer the method without iw"
        )
    if abs(health.mean_weight - 1) > MAX_MEAN_WEIGHT_GAP:
        warnings.append(
            f"the mean importance weight is {health.mean_weight:.2f} and should be 1: the source "
            "discriminator is off"
        )
    if health.clipped_share > MAX_CLIPPED_SHARE:
        warnings.append(
            f"{health.clipped_share:.1%} of the weights are cut at the limit U: the target "
            "reaches where the source has almost no rows"
        )
    return warnings


def warnings_on_guards(guards: Iterable[Guard]) -> list[str]:
    """Return what the guards that fail say."""
    return [guard.sentence for guard in guards if not guard.passed]
