"""Guards on what a fit rests on: importance weights, confusion matrices, pseudo-labels, limits."""

from typing import Literal

import numpy as np

from covcal_cli.labelfree.guards import Guard
from covcal_cli.softmax import Array
from covcal_cli.weights import ImportanceWeights, effective_sample_size

MIN_ESS_SHARE = 0.05
MIN_ESS = 50.0
MIN_DISCRIMINATOR_ERROR = 0.1
CHANCE_ERROR = 0.25
MAX_CONDITION = 1e3
MIN_PSEUDO_ACCURACY = 0.5


def ess_share(weights: Array) -> Guard:
    """Return whether the weights are worth at least 5 % of the rows: the domains overlap."""
    share = effective_sample_size(weights) / max(1, len(weights))
    passed = share >= MIN_ESS_SHARE
    verdict = "the domains overlap" if passed else "the domains hardly overlap"
    return Guard(
        "ess share",
        share,
        MIN_ESS_SHARE,
        passed,
        f"{verdict}: the importance weights are worth {share:.1%} of {len(weights)} rows "
        f"(at least {MIN_ESS_SHARE:.0%})",
    )


def ess_count(weights: Array) -> Guard:
    """Return whether the weights are worth at least 50 rows: a weighted mean is not noise."""
    count = effective_sample_size(weights)
    passed = count >= MIN_ESS
    return Guard(
        "ess",
        count,
        MIN_ESS,
        passed,
        f"a weighted mean rests on {count:.1f} effective rows of {len(weights)} "
        f"(at least {MIN_ESS:.0f})",
    )


def domain_overlap(discriminator_error: float) -> Guard:
    """Return whether the source discriminator errs enough for a density ratio to mean anything.

    Its squared error with each domain weighing one half is 0.25 at chance; below 0.1 it separates
    the domains, and the ratio between them rests on the rows it is unsure of.
    """
    passed = discriminator_error >= MIN_DISCRIMINATOR_ERROR
    verdict = "leaves the domains overlapping" if passed else "separates the domains"
    return Guard(
        "discriminator error",
        discriminator_error,
        MIN_DISCRIMINATOR_ERROR,
        passed,
        f"the source discriminator {verdict}: squared error {discriminator_error:.3f} "
        f"where chance has {CHANCE_ERROR} (at least {MIN_DISCRIMINATOR_ERROR})",
    )


def guards_on_weights(weights: ImportanceWeights) -> tuple[Guard, ...]:
    """Return the three guards on importance weights."""
    return (
        ess_share(weights.weights),
        ess_count(weights.weights),
        domain_overlap(weights.health.discriminator_error),
    )


def condition(number: float) -> Guard:
    """Return whether the confusion matrix can be inverted: condition number at most 1000."""
    value = float(min(number, np.finfo(float).max))
    passed = value <= MAX_CONDITION
    return Guard(
        "confusion condition",
        value,
        MAX_CONDITION,
        passed,
        f"the confusion matrix has condition number {value:.3g} (at most {MAX_CONDITION:.0f}): "
        f"class frequencies {'can' if passed else 'cannot'} be read off the predictions",
    )


def pseudo_accuracy(share: float) -> Guard:
    """Return whether the classifier follows the pseudo-labels of mixed rows at least half the time.

    Mixing two classes must mostly give the heavier one, or the classes are no clusters.
    """
    return Guard(
        "pseudo accuracy",
        share,
        MIN_PSEUDO_ACCURACY,
        share >= MIN_PSEUDO_ACCURACY,
        f"mixed rows keep the label of their heavier half {share:.1%} of the time "
        f"(at least {MIN_PSEUDO_ACCURACY:.0%})",
    )


def not_at_limit(temperature: float, at_limit: Literal["lower", "upper"] | None) -> Guard:
    """Return whether a fitted temperature lies inside its search interval."""
    where = "inside its interval" if at_limit is None else f"at its {at_limit} limit"
    return Guard(
        "temperature limit",
        float(at_limit is not None),
        0.0,
        at_limit is None,
        f"the temperature {temperature:.4g} stands {where}",
    )


def not_clamped(wanted: float, used: float, why: str) -> Guard:
    """Return whether the mean confidence that was matched is the accuracy that was wanted."""
    gap = abs(wanted - used)
    return Guard(
        "clamp",
        gap,
        0.0,
        gap == 0,
        f"the mean confidence was matched to {used:.2%}"
        + ("" if gap == 0 else f" instead of {wanted:.2%}: {why}"),
    )
