"""Findings on importance weights in words: notes inform, warnings warn."""

from covcal_cli.estimators.guards import MIN_ESS_SHARE
from covcal_cli.maths.weights import ImportanceWeights

MIN_ESS_FIT = 100.0


"""A weighted T_f should rest on at least this many effective rows."""
MAX_MEAN_WEIGHT_GAP = 0.2
MAX_CLIPPED_SHARE = 0.01


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
