"""``covcal calibrate``: a method's temperature on a file, and what to know about it.

`methods` is the table of methods, `on_source`, `on_target` and `on_prior` fit them on a `problem`,
`auto` chooses one; `labelled` fits to labels, where a user `marked` some.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from covcal_cli.calibrate import on_prior, on_source, on_target
from covcal_cli.calibrate.auto import choose
from covcal_cli.calibrate.labelled import LABELLED, calibrate_labelled, labels_for
from covcal_cli.calibrate.methods import (
    AUTO,
    MARKED_LABELS,
    METHODS,
    SOURCE_PRIOR,
    TAKE_PRIOR,
    Method,
)
from covcal_cli.calibrate.problem import (
    NO_PRIOR,
    EstimateSettings,
    MethodFit,
    Problem,
    fitted_fields,
    notes_on_weights,
    require_inside,
    warnings_on_reading,
)
from covcal_cli.errors import CovcalError, TooFewRowsError
from covcal_cli.estimators.consensus import kept_from_sharpening
from covcal_cli.estimators.guards import guards_on_weights, sentences_of_failed
from covcal_cli.estimators.label_shift import BBSE, given_prior
from covcal_cli.formats.calibration import Calibration, Candidate, TargetPrior
from covcal_cli.formats.features import FeatureFile
from covcal_cli.labels.draws import Draw
from covcal_cli.maths.scaling import Forecasters, scaled_by
from covcal_cli.maths.temperature import ROW_LOSSES, Loss
from covcal_cli.maths.weights import ImportanceWeights
from covcal_cli.records import Guard, require_one_of

_FAMILIES = {"on_source": on_source, "on_target": on_target, "on_prior": on_prior}


@dataclass(frozen=True, kw_only=True)
class CalibrateSettings(EstimateSettings):
    """What ``covcal calibrate`` can be told."""

    method: str = AUTO  # or a key of `METHODS`
    loss: Loss = "brier"  # what fitted temperatures minimise
    allow_limit: bool = False  # take a T at a limit of its interval

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of("method", self.method, (AUTO, *METHODS))
        require_one_of("loss", self.loss, ROW_LOSSES)
        if self.target_prior != SOURCE_PRIOR and self.method not in TAKE_PRIOR:
            raise CovcalError(
                f"method {self.method} has no use for a target prior: it is for "
                f"{', '.join(TAKE_PRIOR)}"
            )
        if self.labels == MARKED_LABELS and self.method != AUTO:
            raise CovcalError(f"method {self.method} has no use for labels: they are for {AUTO}")
        method = METHODS.get(self.method)
        if method is not None and method.needs_prior and self.target_prior == SOURCE_PRIOR:
            raise CovcalError(f"method {self.method} needs {NO_PRIOR}")


_AS_IT_COMES = CalibrateSettings()


def calibrate(
    path: str | Path,
    settings: CalibrateSettings = _AS_IT_COMES,
    labels: Draw | None = None,
) -> Calibration:
    """Fit a method on a features or adapted file.

    No target label is read but those that ``covcal label`` marked, by method auto.

    Parameters
    ----------
    path : str or Path
    settings : CalibrateSettings
    labels : Draw, optional
        Labelled target rows to fit to instead, as `random_labels` draws them.

    Raises
    ------
    CovcalError
        If the file does not hold what the method needs, or T is at a limit of its interval.
    """
    with FeatureFile(Path(path)) as file:
        if labels is not None:
            return _by_labels(file, labels, settings, LABELLED)
        if settings.method == AUTO and (draw := labels_for(file, settings)) is not None:
            asked = LABELLED if settings.labels == MARKED_LABELS else AUTO
            return _by_labels(file, draw, settings, asked)
        return calibrate_file(Problem(file, settings, settings.loss), settings)


def _by_labels(
    file: FeatureFile, draw: Draw, settings: CalibrateSettings, asked: str
) -> Calibration:
    try:
        problem = Problem(file, settings, settings.loss)
    except TooFewRowsError:  # no labelled source rows: the labels speak alone
        problem = None
    return calibrate_labelled(file, draw, problem, asked=asked, loss=settings.loss)


def calibrate_file(problem: Problem, settings: CalibrateSettings = _AS_IT_COMES) -> Calibration:
    """Fit the method that is asked for on an open file, as `calibrate` does without any label."""
    asked = settings.method
    found = _chosen(problem) if asked == AUTO else _asked_for(problem, asked)
    return require_inside(problem.file.path, found, allow_limit=settings.allow_limit)


def _asked_for(problem: Problem, asked: str) -> Calibration:
    method = METHODS[asked]
    lacking = problem.missing_for(method)
    if lacking is not None:
        raise CovcalError(f"{problem.file.path}: method {method.name} needs {lacking}")
    fit = _fit(problem, method)
    return _calibration(problem, asked, method.name, "asked for", fit, fit.weights)


def _fit(problem: Problem, method: Method) -> MethodFit:
    """Fit a method for which the file lacks nothing (`Problem.missing_for`)."""
    family, _, name = method.fit.partition(".")
    fit: Callable[[Problem, Forecasters], MethodFit] = getattr(_FAMILIES[family], name)
    return fit(problem, method.forecaster or problem.fullest)


def _chosen(problem: Problem) -> Calibration:
    """Fit every candidate of auto, and report its choice with all that it looked at."""
    fits = {
        name: _fit(problem, method)
        for name, method in METHODS.items()
        if method.candidate and problem.missing_for(method) is None
    }
    name, reason, candidates = choose(problem, fits)
    # Whatever was chosen, auto reports how far the domains overlap, and what its rule rests on.
    weights = None
    guards: list[Guard] = []
    notes: list[str] = []
    warnings: list[str] = []
    if problem.missing_for_estimate is None:
        asked = list(problem.accuracy.guards)
        guards += asked if problem.prior is None else problem.cot.guards
        if problem.prior is None:
            mean = next(one.target_confidence for one in candidates if one.chosen)
            asked.append(kept_from_sharpening(problem.accuracy.accuracy, mean or 0.0))
            guards.append(asked[-1])
        warnings = sentences_of_failed(asked)
    if problem.missing_for_weights is None:
        weights = problem.weights(problem.fullest)
        guards += guards_on_weights(weights)
        notes += notes_on_weights(weights)
    fit = fits[name]
    fit = replace(
        fit,
        guards=(*fit.guards, *(guard for guard in guards if guard not in fit.guards)),
        notes=(*fit.notes, *(note for note in notes if note not in fit.notes)),
        warnings=(*fit.warnings, *(text for text in warnings if text not in fit.warnings)),
    )
    return _calibration(problem, AUTO, name, reason, fit, weights, candidates)


def _calibration(
    problem: Problem,
    asked: str,
    name: str,
    reason: str,
    fit: MethodFit,
    weights: ImportanceWeights | None,
    candidates: tuple[Candidate, ...] = (),
) -> Calibration:
    file, validation, settings = problem.file, problem.validation, problem.settings
    temperatures = () if weights is None else weights.temperatures
    warnings = list(fit.warnings)
    if problem.errors("original") == 0:
        warnings.insert(
            0,
            f"the classifier makes no error on its {len(validation)} source validation rows: were "
            "they used to train it? They must not be",
        )
    errors = problem.errors(scaled_by(fit.scaling.forecaster)[0])  # of a blend the classifier's
    fitted = fitted_fields(file, fit.scaling, fit, len(validation), errors)
    warnings += warnings_on_reading(fitted["source_accuracy"], fit.scaling)
    return Calibration(
        method=asked,
        method_used=name,
        reason=reason,
        discriminator_temperatures=tuple(found.temperature for found in temperatures),
        discriminator=None if weights is None else "network" if file.is_adapted else "logistic",
        max_weight=settings.max_weight,
        loss=problem.loss,
        weights=None if weights is None else asdict(weights.health),
        bound=None if fit.bound is None else asdict(fit.bound),
        seed=settings.seed,
        notes=(*validation.notes(file.classes), *fit.notes),
        warnings=tuple(warnings),
        guards=fit.guards,
        candidates=candidates,
        target_prior=_prior(problem, asked),
        **fitted,
    )


def _prior(problem: Problem, asked: str) -> TargetPrior:
    """Return the prior with its shares, for wherever the calibration is used: a file may go."""
    name, shares = problem.settings.target_prior, None
    if asked in TAKE_PRIOR and problem.missing_for_estimate is None:
        shares = problem.prior
    elif name != BBSE:  # which only an estimate gives
        shares = given_prior(name, problem.file.classes)
    return TargetPrior(name, None if shares is None else tuple(shares.tolist()))
