"""``covcal calibrate`` with labels: temperature and offset from some labelled target rows.

The labels are those of a `Draw`: rows that you labelled with ``covcal pick`` and ``covcal label``,
or random rows with known labels, as many as you asked for. cal.json names the rows, and
``evaluate`` leaves them out. `labels.posterior` has the rule with all constants.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from covcal_cli.arrays import Booleans, Float32s, Float64s, Floats, Rows
from covcal_cli.calibrate.methods import MARKED_LABELS
from covcal_cli.calibrate.problem import (
    EstimateSettings,
    MethodFit,
    Problem,
    fitted_fields,
    warnings_on_reading,
)
from covcal_cli.errors import CovcalError
from covcal_cli.estimators.guards import sentences_of_failed
from covcal_cli.estimators.inputs import Estimate
from covcal_cli.files import as_word
from covcal_cli.forecast.forecaster import ScaledLogits
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.features import Domain, FeatureFile, thinned
from covcal_cli.labels.accuracy import LEVEL, accuracy_by_labels
from covcal_cli.labels.draws import Draw
from covcal_cli.labels.ece import folds, label_ece
from covcal_cli.labels.picked_labels import labelled_draw
from covcal_cli.labels.posterior import MAX_FRAME, Posterior, posterior
from covcal_cli.maths.odds import confidences
from covcal_cli.maths.scaling import Scaling
from covcal_cli.maths.softmax import class_major, with_offsets
from covcal_cli.maths.temperature import ROW_LOSSES, Loss
from covcal_cli.maths.weights import DEFAULT_MAX_WEIGHT
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


def labels_for(file: FeatureFile, settings: EstimateSettings) -> Draw | None:
    """Return the rows you labelled for calibration; None where there are none or none are wanted.

    Raises
    ------
    CovcalError
        If they are damaged, or asked for and there are none.
    """
    draw = labelled_draw(file) if settings.takes_labels and file.target is not None else None
    if draw is None and settings.labels == MARKED_LABELS:
        raise CovcalError(
            f"{file.path} has no rows that you labelled: draw rows with covcal pick "
            f"{as_word(file.path)}, and put their labels in with covcal label"
        )
    return draw


class LabelledProblem:
    """One open file with labels that may be fitted to."""

    def __init__(self, file: FeatureFile, draw: Draw, problem: Problem | None) -> None:
        self.file, self.draw = file, draw
        self.seed = 0 if problem is None else problem.settings.seed
        target = file.require_target()
        self.logits = target.logits(draw.rows)
        self.frame: Float32s = target.logits(thinned(draw.frame, MAX_FRAME, self.seed))
        self.prior = (
            problem.accuracy
            if problem is not None and problem.missing_for_estimate is None
            else None
        )

    def fit(self) -> LabelledRowsFit:
        """Fit to all rows."""
        return LabelledRowsFit(
            self.prior,
            accuracy_by_labels(self.file, self.draw, level=LEVEL, seed=self.seed),
            posterior(self.frame, self.logits, self.draw, self.prior),
        )

    def histories(self) -> list[Posterior]:
        """Return what was known after each batch but the last."""
        batch = self.draw.batch
        return [self._without(batch > last) for last in np.unique(batch)[:-1]]

    def ece(self, found: Posterior) -> tuple[float, float, float]:
        """Return the ECE of a fit to these rows with its interval, by fits without some of them."""
        held = np.empty(len(self.draw))
        parts, fold = folds(len(held), self.draw.seed)
        for number in range(parts):
            out = fold == number
            held[out] = confidence_of(self.logits[out], self._without(out))
        frame = confidence_of(self.frame, found)
        return label_ece(frame, held, self.draw, self.draw.right(self.logits))

    def _without(self, out: Booleans) -> Posterior:
        """Return the fit to all rows but some."""
        return posterior(self.frame, self.logits[~out], self.draw.without(out), self.prior)


def confidence_of(logits: Floats, found: Posterior) -> Float64s:
    """Return the confidence in the classifier's label, shape (n,)."""
    moved = with_offsets(logits, found.temperature, None, found.offset)
    return confidences(moved, found.temperature, logits.argmax(axis=1))


def error_of(
    target: Domain, draw: Draw, calibration: Calibration, scaled: ScaledLogits
) -> tuple[float, float, float] | None:
    """Return the ECE of a calibration by labels, and the ends of its interval.

    Of one that was fitted to some of them it is what its own fit found, by folds; None where an
    older one found none.
    """
    fitted = calibration.labelled_rows
    if fitted is not None and not set(fitted.ids).isdisjoint(target.ids(draw.rows)):
        found = calibration.estimates.get(LABELLED)
        if found is None:
            return None
        return found["ece"], found["ece_low"], found["ece_high"]

    def confidence(rows: Rows) -> Float64s:
        labels, places = target.logits(rows).argmax(axis=1), np.arange(len(rows))
        return np.asarray(scaled.forecast(target, rows).probabilities[labels, places])

    frame = thinned(draw.frame, MAX_FRAME, draw.seed)
    right = draw.right(target.logits(draw.rows))
    return label_ece(confidence(frame), confidence(draw.rows), draw, right)


def calibrate_labelled(
    file: FeatureFile, draw: Draw, problem: Problem | None, *, asked: str, loss: Loss
) -> Calibration:
    """Fit temperature and offset of the classifier's own logits to labelled target rows.

    `problem` is None for a file without labelled source rows, which allows no other estimate.
    """
    known = LabelledProblem(file, draw, problem)
    found = known.fit()
    fit = _fit(known, found, loss)
    errors = len(draw) - int(draw.right(known.logits).sum())
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
    ece, low, high = known.ece(found.posterior)
    return {
        "accuracy": found.posterior.accuracy,
        "accuracy_without_labels": None if found.prior is None else found.prior.accuracy,
        "accuracy_by_labels": found.by_labels.accuracy,
        "accuracy_low": found.accuracy.low,
        "accuracy_high": found.accuracy.high,
        "ece": ece,
        "ece_low": low,
        "ece_high": high,
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
    _, sizes = np.unique(known.draw.batch, return_counts=True)
    after = [*known.histories(), found.posterior]
    return [
        f"batch {number} of labels, {total} in all: accuracy {one.accuracy:.1%}, "
        f"T = {one.temperature:.4g}, offset {one.offset:+.2f}{before if number == 1 else ''}"
        for number, (total, one) in enumerate(zip(np.cumsum(sizes), after, strict=True), 1)
    ]
