"""``covcal calibrate`` with labels: temperature and offset from some labelled target rows.

No label is read here. They are handed in as a `LabelledDraw`: rows that ``covcal label`` marked, or
as many random ones as the user asked for. Its cal.json names the rows, which ``evaluate`` leaves
out. `labels.posterior` has the rule, with all constants.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from covcal_cli.arrays import Booleans, Float32s, Float64s, Floats, Rows
from covcal_cli.calibrate.problem import (
    MethodFit,
    Problem,
    fitted_fields,
    warnings_on_reading,
)
from covcal_cli.estimators.guards import sentences_of_failed
from covcal_cli.estimators.inputs import Estimate
from covcal_cli.forecast.forecaster import ScaledLogits
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.features import Domain, FeatureFile, thinned
from covcal_cli.labels.accuracy import LabelledSample, labelled
from covcal_cli.labels.ece import LabelledError, folds, label_ece
from covcal_cli.labels.labelled_draw import LabelledDraw
from covcal_cli.labels.posterior import MAX_FRAME, Posterior, posterior
from covcal_cli.labels.score import forecast
from covcal_cli.maths.odds import confidences
from covcal_cli.maths.scaling import Scaling
from covcal_cli.maths.softmax import class_major, with_offsets
from covcal_cli.maths.temperature import ROW_LOSSES, Loss
from covcal_cli.maths.weights import DEFAULT_MAX_WEIGHT
from covcal_cli.progress import silent
from covcal_cli.records import Guard

LABELLED = "labelled"


@dataclass(frozen=True)
class LabelledRowsFit:
    """What labels say of the accuracy, with what is known without them."""

    prior: Estimate | None  # the label-free estimate; None where the file allows none
    by_labels: Estimate  # by the design alone, with an interval that covers
    posterior: Posterior

    @property
    def guards(self) -> tuple[Guard, ...]:
        """Whether the labels bear the label-free estimate out."""
        if self.prior is None:
            return ()
        low, high, found = self.by_labels.low, self.by_labels.high, self.prior.accuracy
        passed = low <= found <= high
        text = (
            f"the estimate without labels, {found:.1%}, lies {'within' if passed else 'outside'} "
            f"what the labels allow, {low:.1%} to {high:.1%}"
        )
        if not passed:
            text += ": it counts for less, and more labels tell more"
        nearest = low if abs(found - low) < abs(found - high) else high
        return (Guard("contradicted by labels", found, nearest, passed, text),)

    @property
    def accuracy(self) -> Estimate:
        """The accuracy to act on, with the interval of the labels."""
        alone, accuracy = self.by_labels, self.posterior.accuracy
        return Estimate(
            "combined",
            accuracy,
            min(alone.low, accuracy),
            max(alone.high, accuracy),
            "the labels are right; the estimate without labels counts as far as it mostly errs. A "
            "fit row by row joins the two, and what it says may lie outside both",
            self.guards,
            alone.interval,
        )


def sample_of(target: Domain, draw: LabelledDraw) -> LabelledSample:
    """Return in which of the rows the classifier is right."""
    right = target.logits(draw.rows).argmax(axis=1) == draw.labels
    return LabelledSample(draw.population, right.astype(np.float64), draw.inclusion, draw.batch)


class LabelledProblem:
    """One open file with labels that may be fitted to."""

    def __init__(self, file: FeatureFile, draw: LabelledDraw, problem: Problem | None) -> None:
        seed = 0 if problem is None else problem.settings.seed
        target = file.require_target()
        self.draw = draw
        self.logits = target.logits(draw.rows)
        self.frame: Float32s = target.logits(thinned(draw.frame, MAX_FRAME, seed))
        self.sample = sample_of(target, draw)
        self._forecasts = [
            forecast(file, rows, None, seed=seed, progress=silent).right
            for rows in (draw.frame, draw.rows)
        ]
        self.prior = (
            problem.accuracy
            if problem is not None and problem.missing_for_estimate is None
            else None
        )

    def fit(self) -> LabelledRowsFit:
        """Fit to all rows."""
        return LabelledRowsFit(
            self.prior,
            labelled(self.sample, *self._forecasts),
            posterior(self.frame, self.logits, self.sample, self.prior),
        )

    def histories(self) -> list[Posterior]:
        """Return what was known after each batch but the last."""
        batch = self.draw.batch
        return [self._without(batch > last) for last in range(int(batch.max()))]

    def ece(self, found: Posterior) -> LabelledError:
        """Return the ECE of a fit to these rows, by fits that leave some of them out."""
        held = np.empty(len(self.sample))
        parts, fold = folds(len(held), self.draw.seed)
        for number in range(parts):
            out = fold == number
            held[out] = confidence_of(self.logits[out], self._without(out))
        return label_ece(confidence_of(self.frame, found), held, self.sample)

    def _without(self, out: Booleans) -> Posterior:
        """Return the fit to all rows but some."""
        return posterior(self.frame, self.logits[~out], self.sample.without(out), self.prior)


def confidence_of(logits: Floats, found: Posterior) -> Float64s:
    """Return the confidence in the classifier's label, shape (n,)."""
    moved = with_offsets(logits, found.temperature, None, found.offset)
    return confidences(moved, found.temperature, logits.argmax(axis=1))


def error_of(
    target: Domain, draw: LabelledDraw, calibration: Calibration, scaled: ScaledLogits
) -> LabelledError | None:
    """Return the ECE of a calibration by labels.

    Of one that was fitted to some of them it is what its own fit found, by folds; None where an
    older one found none.
    """
    fitted = calibration.labelled_rows
    if fitted is not None and not set(fitted.ids).isdisjoint(target.ids(draw.rows)):
        found = calibration.estimates.get(LABELLED)
        if found is None:
            return None
        return LabelledError(found["ece"], found["ece_low"], found["ece_high"])

    def confidence(rows: Rows) -> Float64s:
        labels, places = target.logits(rows).argmax(axis=1), np.arange(len(rows))
        return np.asarray(scaled.forecast(target, rows).probabilities[labels, places])

    frame = thinned(draw.frame, MAX_FRAME, draw.seed)
    return label_ece(confidence(frame), confidence(draw.rows), sample_of(target, draw))


def calibrate_labelled(
    file: FeatureFile, draw: LabelledDraw, problem: Problem | None, *, asked: str, loss: Loss
) -> Calibration:
    """Fit temperature and offset of the classifier's own logits to labelled target rows.

    `problem` is None for a file without labelled source rows, which allows no other estimate.
    """
    known = LabelledProblem(file, draw, problem)
    found = known.fit()
    fit = _fit(known, found, loss)
    errors = len(draw) - int(known.sample.right.sum())
    seed = draw.seed if problem is None else problem.settings.seed
    fitted = fitted_fields(file, fit.scaling, fit, len(draw), errors)
    fitted["estimates"] |= {LABELLED: _estimates(known, found)}
    warnings = [*fit.warnings, *warnings_on_reading(fitted["source_accuracy"], fit.scaling)]
    return Calibration(
        method=asked,
        method_used=LABELLED,
        reason=_reason(found, len(draw)),
        discriminator_temperatures=(),
        discriminator=None,
        max_weight=DEFAULT_MAX_WEIGHT if problem is None else problem.settings.max_weight,
        loss=loss,
        weights=None,
        bound=None,
        seed=seed,
        warnings=tuple(warnings),
        guards=fit.guards,
        used_target_labels=True,
        labelled_rows=draw.recorded(file.require_target()),
        notes=(*draw.notes, *_history(known, found)),
        **fitted,
    )


def _fit(known: LabelledProblem, found: LabelledRowsFit, loss: Loss) -> MethodFit:
    temperature, offset = found.posterior.temperature, found.posterior.offset

    def mean_loss(at: float, of_label: float) -> float:
        moved = class_major(with_offsets(known.logits, at, None, of_label))
        return float(ROW_LOSSES[loss](moved, known.draw.labels, at, False)[0].mean())

    return MethodFit(
        Scaling("original", temperature, of_label=offset),
        mean_loss(temperature, offset),
        mean_loss(1.0, 0.0),
        guards=found.guards,
        warnings=tuple(sentences_of_failed(found.guards)),
    )


def _estimates(known: LabelledProblem, found: LabelledRowsFit) -> dict[str, Any]:
    """Return what cal.json says of the accuracy and of the ECE on the rows drawn from."""
    ece = known.ece(found.posterior)
    return {
        "accuracy": found.posterior.accuracy,
        "accuracy_without_labels": None if found.prior is None else found.prior.accuracy,
        "accuracy_by_labels": found.by_labels.accuracy,
        "accuracy_low": found.accuracy.low,
        "accuracy_high": found.accuracy.high,
        "ece": ece.ece,
        "ece_low": ece.low,
        "ece_high": ece.high,
    }


def _reason(found: LabelledRowsFit, n: int) -> str:
    alone = found.by_labels
    text = (
        f"{n} labels say an accuracy of {alone.accuracy:.1%} ({alone.low:.1%} to {alone.high:.1%})"
    )
    if found.prior is None:
        return text
    return (
        f"{text}; with the estimate of {found.prior.accuracy:.1%} without labels, "
        f"{found.posterior.accuracy:.1%}"
    )


def _history(known: LabelledProblem, found: LabelledRowsFit) -> Sequence[str]:
    """Return what each batch of labels changed, in words."""
    before = "" if found.prior is None else f"; without labels {found.prior.accuracy:.1%}"
    sizes = np.bincount(known.draw.batch)
    after = [*known.histories(), found.posterior]
    return [
        f"batch {number} of labels, {total} in all: accuracy {one.accuracy:.1%}, "
        f"T = {one.temperature:.4g}, offset {one.offset:+.2f}{before if number == 1 else ''}"
        for number, (total, one) in enumerate(zip(np.cumsum(sizes), after, strict=True), 1)
    ]
