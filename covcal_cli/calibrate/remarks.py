"""Warnings and notes on a fit, in words. A warning says what follows and what to do."""

from pathlib import Path

from covcal_cli.errors import CovcalError
from covcal_cli.estimators.guards import MIN_ESS_SHARE
from covcal_cli.formats.calibration import Calibration
from covcal_cli.maths.scaling import Scaling
from covcal_cli.maths.source_accuracy import SourceAccuracy
from covcal_cli.maths.temperature import MIN_ERRORS, Limit, TemperatureFit
from covcal_cli.maths.weights import ImportanceWeights

MIN_ESS_FIT = 100.0  # the effective sample size that a weighted fit of T_f needs
MAX_MEAN_WEIGHT_GAP = 0.2
MAX_CLIPPED_SHARE = 0.01
_LARGE = 10.0  # T above which the outputs are seldom the logits that a model was trained with
_LIMITS: dict[Limit, str] = {
    "lower": (
        "T is at its lower limit: the rows that it was fitted to call for ever more confidence, "
        "which no data can justify"
    ),
    "upper": (
        "T is at its upper limit: on the rows that it was fitted to, the logits say nothing about "
        "the labels, or the opposite"
    ),
}
_REMEDIES: dict[Limit, str] = {
    "lower": "give more labelled rows, or choose another method",
    "upper": "check the labels and the order of the classes",
}


def warnings_on_temperature(fit: TemperatureFit, errors: int, rows: int) -> list[str]:
    """Warn of a T that is kept at 1, lies at a limit, or cannot help some rows."""
    warnings = []
    if fit.ruled_out:
        warnings.append(
            f"{fit.ruled_out} of {rows} source validation rows have a label that the classifier "
            "rules out (a masked logit): its probability is 0 at every T. Check the labels, or the "
            "mask"
        )
    if fit.held_at_one:
        warnings.append(
            f"{errors} errors among {rows} source validation rows are too few to justify more "
            f"confidence (at least {MIN_ERRORS} needed): T is kept at {fit.temperature:.4g}"
        )
    if fit.at_limit:
        warnings.append(f"do not trust these confidences: {_LIMITS[fit.at_limit]}")
    return warnings


def require_inside(path: Path, calibration: Calibration, *, allow_limit: bool) -> Calibration:
    """Return the calibration; refuse a T at a limit of its search interval unless allowed."""
    limit: Limit | None = calibration.fit["at_limit"]
    if limit is not None and not allow_limit:
        raise CovcalError(
            f"{path}: method {calibration.method_used}: {_LIMITS[limit]} "
            f"(T = {calibration.forecaster_temperature:.3g}): {_REMEDIES[limit]}, or accept this T "
            "with --force (allow_limit=True in Python)"
        )
    return calibration


def warnings_on_reading(accuracy: SourceAccuracy | None, scaling: Scaling) -> list[str]:
    """Warn if the model seems to be read wrongly: near chance, or far too confident."""
    doubt = None if accuracy is None else accuracy.doubt
    warnings = [] if doubt is None else [doubt]
    temperature = min(scaling.temperatures.values())
    if temperature > _LARGE:
        right = "" if accuracy is None else f" It gets {accuracy} right."
        warnings.append(
            f"T = {temperature:.4g} is very large: the outputs are far more confident than "
            f"accurate.{right} Check the preprocessing, and that the output that is read holds "
            "logits"
        )
    return warnings


def notes_on_weights(weights: ImportanceWeights) -> list[str]:
    """Note that the discriminators find no difference between the domains."""
    if all(fit.at_limit == "upper" for fit in weights.temperatures):
        return ["the discriminator finds no shift: all importance weights are about 1"]
    return []


def warnings_on_weights(weights: ImportanceWeights) -> list[str]:
    """Warn of importance weights that a fit must not use."""
    health, warnings = weights.health, []
    few = []
    if health.ess_share < MIN_ESS_SHARE:
        few.append(f"at least {MIN_ESS_SHARE * health.n:.1f} needed")
    if health.ess_fit < MIN_ESS_FIT:
        few.append(f"{health.ess_fit:.1f} in the fit, at least {MIN_ESS_FIT:.0f} needed")
    if few:
        warnings.append(
            f"the effective sample size of the importance weights is {health.ess:.1f} of "
            f"{health.n} rows ({'; '.join(few)}): do not use a method with iw here"
        )
    if abs(health.mean_weight - 1) > MAX_MEAN_WEIGHT_GAP:
        warnings.append(
            f"the mean importance weight is {health.mean_weight:.2f} instead of 1, so the source "
            "discriminator is wrong: do not use a method with iw here"
        )
    if health.clipped_share > MAX_CLIPPED_SHARE:
        warnings.append(
            f"{health.clipped_share:.1%} of the importance weights are cut at the limit U: parts "
            "of the target have almost no source rows"
        )
    return warnings
