"""``covcal estimate``: estimate the target accuracy, and compare it with calibrations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from covcal_cli.calibrate.labelled import LabelledFit, error_of, groups_of, labels_for
from covcal_cli.calibrate.methods import MARKED_LABELS, TAKE_PRIOR
from covcal_cli.calibrate.problem import EstimateSettings, Problem, input_of
from covcal_cli.errors import TooFewRowsError
from covcal_cli.estimators.consensus import Estimates
from covcal_cli.estimators.guards import guards_on_weights, prior_drift
from covcal_cli.estimators.inputs import ESTIMATED, Estimate, most_rows
from covcal_cli.estimators.metrics import MetricEstimate, Wanted, expected_metrics, read_costs
from covcal_cli.files import sha256_of
from covcal_cli.forecast import (
    SOURCE_ERRORS,
    UNSCALED,
    ScaledLogits,
    read_named,
    scaled_logits,
    source_accuracy,
)
from covcal_cli.formats.calibration import SOURCE_PRIOR, Calibration, LabelledRows, TargetPrior
from covcal_cli.formats.features import FeatureFile
from covcal_cli.labels.draws import Draw, read_draw
from covcal_cli.labels.score import region_of
from covcal_cli.maths.source_accuracy import SourceAccuracy
from covcal_cli.records import Count, Document, Guard, Input, Positive, Share, Within, at, encoded

DEFAULTS = EstimateSettings()


@dataclass(frozen=True, kw_only=True)
class Estimation(Document):
    """The result of ``covcal estimate``."""

    schema: ClassVar[str] = "covcal.estimate/1"

    estimates: tuple[Estimate, ...]  # The combined estimate comes first.
    metrics: tuple[MetricEstimate, ...] = ()
    guards: tuple[Guard, ...]
    temperature: Positive  # T_s, the temperature fitted to source rows
    source_rows: Count = field(metadata=at("rows.source"))
    target_rows: Count = field(metadata=at("rows.target"))
    source_accuracy: SourceAccuracy | None = None
    # "source", "uniform", "bbse" or a path
    prior_name: str = field(metadata=at("target_prior.name"))
    prior: tuple[Share, ...] | None = field(metadata=at("target_prior.shares"))
    used_target_labels: bool = False
    labelled_rows: LabelledRows | None = None
    notes: tuple[str, ...]
    seed: int
    max_weight: Annotated[float, Within(1)]  # U, maximum importance weight
    classes: tuple[str, ...]
    model: Mapping[str, str]
    inputs: tuple[Input, ...]

    @property
    def checks(self) -> tuple[Guard, ...]:
        """The checks of the combined estimate, and the check for enough source errors."""
        first, *others = self.estimates
        if self.used_target_labels:
            return first.guards
        of_rows = {
            guard.name: guard
            for other in others
            for guard in other.guards
            if guard.name == SOURCE_ERRORS
        }
        return *first.guards, *of_rows.values()


def estimate(
    path: str | Path,
    settings: EstimateSettings = DEFAULTS,
    *,
    metrics: Sequence[Wanted] = (),
    by: str | None = None,
    costs: Path | None = None,
) -> Estimation:
    """Estimate the target accuracy, and on request metrics and the mean cost.

    No target label is used, except labels from ``covcal label``.

    - `metrics`: pairs of a metric and a class, such as ``("recall", "fraud")``. None means all
      classes.
    - `by`: a column. The metrics are also estimated for each value of the column.
    - `costs`: a JSON file of costs, to estimate the mean cost if every row is accepted.

    Raises
    ------
    TooFewRowsError
        If the file has too few rows for an estimate.
    CovcalError
        If the file or the class frequencies are invalid, or a metric names an unknown class.
    """
    with FeatureFile(Path(path)) as file:
        return estimate_file(Problem(file, settings), metrics, by, costs)


def estimate_for_decision(
    path: Path, calibration: Calibration, costs: Path | None, error: float | None
) -> tuple[Estimate | None, MetricEstimate | None, list[str]]:
    """For `decide`, estimate the accuracy, and the mean cost of a row if all rows are accepted.

    Without an estimate, the accuracy and the cost are None, and the notes give the reason. Labels
    that `decide` will use for tests are left out, because the order of the tests must not depend on
    the labels.
    """
    fitted, labels = calibration.labelled_rows, "none"
    if fitted is not None:
        with FeatureFile(path) as file:
            draw = read_draw(file)
        labels = "marked" if draw.labelled.any() else "auto"
        has_tests = any(region_of(batch.score) is not None for batch in draw.batches)
        if costs is None and (fitted.design == "random" or (error is not None and has_tests)):
            note = "the expected error has no range, because the calibration was fitted to labels"
            return None, None, [note]
    prior = calibration.target_prior
    settings = EstimateSettings(
        labels=labels,
        seed=calibration.seed,
        max_weight=calibration.max_weight,
        target_prior=prior.name,
        prior_shares=prior.shares,
    )
    try:
        estimation = estimate(path, settings, costs=costs)
    except TooFewRowsError as why:
        return None, None, [f"the expected error has no range: {why}"]
    return estimation.estimates[0], next(iter(estimation.metrics), None), []


def estimate_file(
    problem: Problem,
    metrics: Sequence[Wanted] = (),
    by: str | None = None,
    costs: Path | None = None,
) -> Estimation:
    """Estimate the target accuracy and metrics for an open file. See `estimate`."""
    if metrics or costs is not None:
        problem.file.require_all_classes("--metrics" if metrics else "--cost")
    wrong = None
    if costs is not None:
        wrong = read_costs(costs, problem.file.classes, needs_review=False)[0]
    file, settings = problem.file, problem.settings
    lacking = problem.missing_for_estimate
    if lacking is not None:
        raise TooFewRowsError(f"{file.path}: an estimate needs {lacking}")
    inputs = problem.inputs
    notes = problem.validation.notes(file.classes, problem.errors("original"))
    guards = [prior_drift(*inputs.predicted_shares())]
    lacking = problem.missing_for_weights
    if lacking is None:
        weights = problem.weights(problem.fullest)
        inputs = problem.inputs_with(weights.weights)
        guards += guards_on_weights(weights)
    else:
        notes.append(f"importance weighting gives no estimate: it needs {lacking}")
    if not file.is_adapted:
        notes.append("agreement gives no estimate: it needs a file from covcal adapt")
    by_name = Estimates(inputs, problem.prior)
    every = tuple(by_name.values())
    estimates = (by_name.combined, *every)
    draw = _labels(file, settings)
    if draw is not None:
        fit = LabelledFit(file, draw, problem)
        unlabelled = replace(estimates[0], name="without labels")
        estimates = (fit.accuracy, fit.by_labels, unlabelled, *every)
        of_classes = fit.metrics(file, metrics, by, wrong)
        notes += draw.notes
    else:
        offsets = None if problem.prior is None else problem.prior_offsets
        target = file.require_target()
        rows = target.drawn(most_rows(target.n_classes), settings.seed, *ESTIMATED)
        groups = groups_of(target, by, rows)
        of_classes = expected_metrics(
            inputs, estimates[0], metrics, file.classes, offsets, groups, wrong
        )
    return Estimation(
        estimates=estimates,
        metrics=tuple(of_classes),
        used_target_labels=draw is not None,
        labelled_rows=None if draw is None else draw.recorded(file.require_target()),
        guards=tuple(guards),
        temperature=inputs.temperature,
        source_rows=inputs.n_source,
        target_rows=inputs.n_target,
        source_accuracy=source_accuracy(file),
        prior_name=settings.target_prior,
        prior=None if problem.prior is None else tuple(problem.prior.tolist()),
        seed=settings.seed,
        max_weight=settings.max_weight,
        classes=tuple(file.classes),
        model=file.model,
        inputs=(
            input_of(file),
            *([] if costs is None else [Input("costs", costs, sha256_of(costs))]),
        ),
        notes=tuple(notes),
    )


def _labels(file: FeatureFile, settings: EstimateSettings) -> Draw | None:
    """Return the labelled rows for an estimate, or None.

    Labels for a decision say little about rows with a low confidence. So these labels are used only
    if the user asks for it.
    """
    draw = labels_for(file, settings)
    is_left_out = draw is not None and draw.is_for_decision and settings.labels != MARKED_LABELS
    return None if is_left_out else draw


@dataclass(frozen=True)
class ExpectedCalibration:
    """The mean target confidence of a calibration, and its distance from the estimated accuracy."""

    name: str
    temperature: float
    rows: int
    mean_confidence_before: float
    mean_confidence: float
    estimated_accuracy: float
    distance: float
    aligned_temperature: float | None = None
    ece: float | None = None
    ece_low: float | None = None
    ece_high: float | None = None


@dataclass(frozen=True)
class Expectation:
    """An estimate of the target accuracy, and the mean target confidence of calibrations."""

    estimation: Estimation
    calibrations: tuple[ExpectedCalibration, ...] = ()
    inputs: tuple[Input, ...] = ()
    notes: tuple[str, ...] = ()


def expect(
    path: Path,
    documents: Sequence[Path] = (),
    asked: Mapping[str, Any] | None = None,
    *,
    names: Sequence[str] = (),
    networks: Path | None = None,
    allow_other_preprocessing: bool = False,
    metrics: Sequence[Wanted] = (),
    by: str | None = None,
    costs: Path | None = None,
) -> Expectation:
    """Estimate the target accuracy, and compare it with the confidence of calibrations.

    - `documents`, `names`: calibration files, and their names in the result.
    - `asked`: the fields of `EstimateSettings` that the user gave.
    - `networks`: the new path of the adapted file, if the file was moved.
    - `metrics`, `by`, `costs`: see `estimate`.

    Raises `TooFewRowsError` if there are too few rows. Raises `CovcalError` if a calibration was
    made for another classifier. Raises `UnusedOptionError` if no calibration needs `networks`.
    """
    calibrations = read_named(documents, networks, names)
    settings: dict[str, Any] = dict(asked or {})
    notes: list[str] = []
    if calibrations:
        first = next(iter(calibrations.values()))
        settings = {"max_weight": first.max_weight, "seed": first.seed} | settings
    if "target_prior" not in settings:
        prior, notes = _prior_of(calibrations)
        settings |= {"target_prior": prior.name, "prior_shares": prior.shares}
    with FeatureFile(path) as file:
        scaled = scaled_logits(
            file, calibrations, networks, allow_other_preprocessing=allow_other_preprocessing
        )
        estimation = estimate_file(Problem(file, EstimateSettings(**settings)), metrics, by, costs)
        target, accuracy = file.require_target(), estimation.estimates[0].accuracy
        rows = target.count(*ESTIMATED)
        unscaled = ScaledLogits(UNSCALED)
        before = unscaled.mean_confidence(target, *ESTIMATED) if scaled else 0.0
        expected = []
        draw = _labels(file, EstimateSettings(**settings)) if scaled else None
        for name, entry in scaled.items():
            ends = None if draw is None else error_of(target, draw, calibrations[name], entry)
            after, scaling = entry.mean_confidence(target, *ESTIMATED), entry.scaling
            numbers = (before, after, accuracy, abs(after - accuracy), scaling.aligned_temperature)
            expected.append(
                ExpectedCalibration(name, scaling.temperature, rows, *numbers, *(ends or ()))
            )
    inputs = (Input("calibration", document, sha256_of(document)) for document in documents)
    return Expectation(estimation, tuple(expected), tuple(inputs), tuple(notes))


def _prior_of(calibrations: Mapping[str, Calibration]) -> tuple[TargetPrior, list[str]]:
    taking = [
        (calibration.path, calibration.target_prior)
        for calibration in calibrations.values()
        if calibration.method in TAKE_PRIOR
    ]
    if not taking:
        return SOURCE_PRIOR, []
    (first, prior), *others = taking
    return prior, [
        f"{first} and {document} have different target priors ({prior.name} and "
        f"{other.name}): run estimate once per calibration, or pass --target-prior"
        for document, other in others
        if other.shares != prior.shares
    ]


def expectation_document(expectation: Expectation, document: Path) -> dict[str, Any]:
    """Return the content of estimate.json, with relative paths."""
    content: dict[str, Any] = encoded(expectation.estimation, document)
    if not expectation.estimation.metrics:
        del content["metrics"]
    if expectation.calibrations:
        content["calibrations"] = encoded(expectation.calibrations, document)
        content["inputs"] += encoded(expectation.inputs, document)
        content["notes"] += expectation.notes
    return content
