"""``covcal estimate``: the target accuracy by every estimator, and the confidence of calibrations.

If the file holds labels that ``covcal label`` put in, the accuracy by labels comes first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from covcal_cli.calibrate.labelled import LabelledFit, error_of, groups_of, labels_for
from covcal_cli.calibrate.methods import TAKE_PRIOR
from covcal_cli.calibrate.problem import EstimateSettings, Problem, input_of
from covcal_cli.decide.thresholds import read_costs
from covcal_cli.errors import TooFewRowsError
from covcal_cli.estimators.consensus import Estimates
from covcal_cli.estimators.guards import guards_on_weights, prior_drift
from covcal_cli.estimators.inputs import ESTIMATED, Estimate, most_rows
from covcal_cli.estimators.metrics import MetricEstimate, Wanted, expected_metrics
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
from covcal_cli.maths.source_accuracy import SourceAccuracy
from covcal_cli.records import (
    Count,
    Document,
    Guard,
    Input,
    Positive,
    Share,
    at,
    encoded,
    write_document,
)

DEFAULTS = EstimateSettings()


@dataclass(frozen=True, kw_only=True)
class Estimation(Document):
    """The result of ``covcal estimate``."""

    schema: ClassVar[str] = "covcal.estimate/1"

    estimates: tuple[Estimate, ...]  # the combined one first
    metrics: tuple[MetricEstimate, ...] = ()  # the metrics that were asked for
    guards: tuple[Guard, ...]  # checks that concern several estimates: overlap, prior drift
    temperature: Positive  # T_s, at which confidences are calibrated on the source
    source_rows: Count = field(metadata=at("rows.source"))  # the number of rows that were read
    target_rows: Count = field(metadata=at("rows.target"))
    # the accuracy on labelled rows outside the train split
    source_accuracy: SourceAccuracy | None = None
    # the name of the prior, as the user gave it
    prior_name: str = field(metadata=at("target_prior.name"))
    # Class frequencies on the target; None for the frequencies of the source.
    prior: tuple[Share, ...] | None = field(metadata=at("target_prior.shares"))
    used_target_labels: bool = False
    labelled_rows: LabelledRows | None = None  # the rows whose labels were used
    notes: tuple[str, ...]
    seed: int
    max_weight: float  # U
    classes: tuple[str, ...]
    model: Mapping[str, str]  # name and sha256 of the classifier
    inputs: tuple[Input, ...]

    @property
    def checks(self) -> tuple[Guard, ...]:
        """The checks of the first estimate and, without labels, of the source rows.

        These are the checks that a calibration to this estimate shows too.
        """
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
    """Estimate the target accuracy of a file's classifier, and other metrics.

    No target label is read, except labels of ``covcal label``. `metrics` holds pairs of a metric
    and a class, or None for every class, as ``("recall", "fraud")``. `by` is a column of the file;
    the metrics are then estimated for each of its values too. `costs` is a costs.json as `decide`
    reads it; it adds the mean cost of a row if every row is accepted.

    Raises
    ------
    TooFewRowsError
        If the file has too few rows for an estimate.
    CovcalError
        If the prior or a value of the file cannot be used, or it has no such class.
    """
    with FeatureFile(Path(path)) as file:
        return estimate_file(Problem(file, settings), metrics, by, costs)


def estimate_file(
    problem: Problem,
    metrics: Sequence[Wanted] = (),
    by: str | None = None,
    costs: Path | None = None,
) -> Estimation:
    """Estimate the target accuracy and metrics on an open file, as `estimate` does."""
    if metrics or costs is not None:
        problem.file.require_all_classes("--metrics" if metrics else "--cost")
    wrong = None if costs is None else read_costs(costs, problem.file.classes).wrong
    file, settings = problem.file, problem.settings
    lacking = problem.missing_for_estimate
    if lacking is not None:
        raise TooFewRowsError(f"{file.path}: an estimate needs {lacking}")
    inputs = problem.inputs
    notes = problem.validation.notes(file.classes)
    guards = [prior_drift(*inputs.predicted_shares())]
    # Importance weights and aligned forecasters allow one more estimate each.
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
    draw = labels_for(file, settings)
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


# The expected errors of calibrations on a target without labels. The accuracy is estimated. The
# mean confidence of each calibration is measured, which needs no labels. If the estimate is right,
# the ECE is at least the distance between the two.


@dataclass(frozen=True)
class ExpectedCalibration:
    """A calibration's confidence on target training and validation rows."""

    name: str
    temperature: float
    rows: int
    mean_confidence_before: float  # confidence of the uncalibrated classifier
    mean_confidence: float
    estimated_accuracy: float  # the combined estimate
    distance: float  # distance of accuracy and mean confidence; a lower bound of the ECE
    aligned_temperature: float | None = None  # T_a of a blend
    # With labels: the ECE by them, a fraction, and the ends of its interval.
    ece: float | None = None
    ece_low: float | None = None
    ece_high: float | None = None


@dataclass(frozen=True)
class Expectation:
    """Estimates of the accuracy, with the confidence of calibrations beside them."""

    estimation: Estimation
    calibrations: tuple[ExpectedCalibration, ...] = ()
    inputs: tuple[Input, ...] = ()  # the calibrations' files
    notes: tuple[str, ...] = ()  # notes on calibrations with a different prior


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
    """Estimate the target accuracy, and compare the confidence of calibrations with it.

    `documents` are calibrations of the file's classifier, called `names` as in `read_named`.
    `asked` holds fields of `EstimateSettings`. Missing fields come from the first calibration. A
    missing prior comes from the first calibration with a prior. `networks` is the adapted file with
    an fl method's networks, if it has moved. `metrics`, `by` and `costs` are as in `estimate`.
    Raises `TooFewRowsError` if the file has too few rows for an estimate. Raises `CovcalError` if
    the prior or a value of the file cannot be used, or a calibration does not fit. Raises
    `UnusedOptionError` if `networks` are given and no calibration needs any.
    """
    calibrations = read_named(documents, networks, names)
    settings: dict[str, Any] = dict(asked or {})
    notes: list[str] = []
    if calibrations:
        first = next(iter(calibrations.values()))
        settings = {"max_weight": first.max_weight, "seed": first.seed} | settings
    if "target_prior" not in settings:
        prior, notes = _prior_of(calibrations, documents)
        settings |= {"target_prior": prior.name, "prior_shares": prior.shares}
    with FeatureFile(path) as file:
        scaled = scaled_logits(
            file,
            calibrations,
            documents,
            networks,
            allow_other_preprocessing=allow_other_preprocessing,
        )
        estimation = estimate_file(Problem(file, EstimateSettings(**settings)), metrics, by, costs)
        target, accuracy = file.require_target(), estimation.estimates[0].accuracy
        rows = target.count(*ESTIMATED)
        unscaled = ScaledLogits(UNSCALED)
        before = unscaled.mean_confidence(target, *ESTIMATED) if scaled else 0.0
        expected = []
        draw = labels_for(file, EstimateSettings(**settings)) if scaled else None
        for name, entry in scaled.items():
            ends = None if draw is None else error_of(target, draw, calibrations[name], entry)
            after, scaling = entry.mean_confidence(target, *ESTIMATED), entry.scaling
            numbers = (before, after, accuracy, abs(after - accuracy), scaling.aligned_temperature)
            expected.append(
                ExpectedCalibration(name, scaling.temperature, rows, *numbers, *(ends or ()))
            )
    inputs = (Input("calibration", document, sha256_of(document)) for document in documents)
    return Expectation(estimation, tuple(expected), tuple(inputs), tuple(notes))


def _prior_of(
    calibrations: Mapping[str, Calibration], documents: Sequence[Path]
) -> tuple[TargetPrior, list[str]]:
    """Return the prior of the first calibration with a prior, and notes on different priors."""
    taking = [
        (document, calibration.target_prior)
        for document, calibration in zip(documents, calibrations.values(), strict=True)
        if calibration.method in TAKE_PRIOR
    ]
    if not taking:
        return SOURCE_PRIOR, []
    (first, prior), *others = taking
    return prior, [
        f"{document} has the target prior {other.name} but {first} has {prior.name}: run "
        "estimate once per calibration, or pass --target-prior"
        for document, other in others
        if other.shares != prior.shares
    ]


def expectation_document(expectation: Expectation, document: Path) -> dict[str, Any]:
    """Return the content of estimate.json; paths are relative to `document`."""
    content: dict[str, Any] = encoded(expectation.estimation, document)
    if not expectation.estimation.metrics:
        del content["metrics"]
    if expectation.calibrations:
        content["calibrations"] = encoded(expectation.calibrations, document)
        content["inputs"] += encoded(expectation.inputs, document)
        content["notes"] += expectation.notes
    return content


def write_expectation(expectation: Expectation, path: Path, *, force: bool) -> None:
    """Write estimate.json, whole or not at all."""
    write_document(expectation_document(expectation, path), path, force=force)
