"""Use labelled target rows to fit a temperature and an offset, and to estimate accuracy and ECE.

A `Draw` holds the labels of rows from ``covcal pick``, or of random rows with known labels.
``evaluate`` leaves out the labelled rows. `labels.posterior` explains the fit.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from covcal_cli.arrays import Booleans, Float32s, Float64s, Floats, Rows
from covcal_cli.calibrate.methods import MARKED_LABELS
from covcal_cli.calibrate.problem import EstimateSettings, MethodFit, Problem
from covcal_cli.errors import CovcalError, percent
from covcal_cli.estimators.inputs import Estimate, most_rows
from covcal_cli.estimators.metrics import Groups, MetricEstimate, Wanted
from covcal_cli.files import as_word
from covcal_cli.forecast import ScaledLogits
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.features import Domain, FeatureFile, thinned
from covcal_cli.formats.groups import column_groups
from covcal_cli.labels.draws import Draw, rows_of_fit
from covcal_cli.labels.metrics import accuracy_and_size, difference_estimate, metrics_by_labels
from covcal_cli.labels.picked_labels import labelled_draw
from covcal_cli.labels.posterior import (
    MAX_FRAME,
    combined,
    folds,
    label_ece,
    posterior,
    representative_rows,
)
from covcal_cli.labels.score import score
from covcal_cli.maths.odds import confidences
from covcal_cli.maths.softmax import Scaling, class_major, with_offsets
from covcal_cli.maths.temperature import ROW_LOSSES, Loss
from covcal_cli.maths.weights import effective_sample_size
from covcal_cli.records import Guard, sentences_of_failed

LABELLED = "labelled"
MIN_EFFECTIVE = 20  # Minimum number of effective labels.
_FALSE_CONTRADICTION = 0.01  # Significance level of the test for a wrong confidence.
RANGE_OF_BOTH = (
    "the range is for all rows that covcal pick could draw, and contains the 95 % interval from "
    "the labels alone"
)


def labels_for(file: FeatureFile, settings: EstimateSettings) -> Draw | None:
    """Return the labelled target rows that a fit should use, or None.

    Raises `CovcalError` if labels are damaged, or if labels="marked" and there are no labels.
    """
    draw = labelled_draw(file) if settings.takes_labels and file.target is not None else None
    if draw is None and settings.labels == MARKED_LABELS:
        raise CovcalError(
            f"{file.path} has no rows that you labelled: run covcal pick {as_word(file.path)}, "
            "label the rows, and run covcal label"
        )
    return draw if draw is None or settings.labels == MARKED_LABELS else draw.for_all_rows()


class LabelledFit:
    """A calibration fitted to labelled target rows, with estimates of accuracy and ECE."""

    def __init__(self, file: FeatureFile, draw: Draw, problem: Problem | None) -> None:
        self.draw = draw
        seed = 0 if problem is None else problem.settings.seed
        target = file.require_target()
        self.logits = target.logits(draw.rows)
        self._scores_of_frame, self._scores_of_drawn = (
            score(file, rows, seed=seed).right for rows in (draw.frame, draw.rows)
        )
        frame = draw.frame[representative_rows(self._scores_of_frame, MAX_FRAME)]
        self._frame: Float32s = target.logits(frame)
        self.prior: Estimate | None = None
        if problem is not None and problem.missing_for_estimate is None:
            self.prior = problem.accuracy
        right = draw.right(self.logits)
        self.by_labels = difference_estimate(
            draw, right, self._scores_of_frame, self._scores_of_drawn
        )
        self._scaling, (self._accuracy, *self._ends) = self._fitted(np.full(len(draw), True))
        unlabelled = draw.population - len(draw)
        self._guards = (
            *agreement_with_labels(self.prior, self.by_labels, unlabelled),
            *effective_labels(draw),
        )

    @property
    def accuracy(self) -> Estimate:
        """The accuracy estimated from labels and from unlabelled rows together."""
        low, high = self._ends
        return Estimate(
            "combined",
            self._accuracy,
            min(self.by_labels.low, low),
            max(self.by_labels.high, high),
            "the labels are right, and so is the estimate without labels",
            self._guards,
            RANGE_OF_BOTH,
        )

    def reason(self) -> str:
        """Return a sentence about the accuracy, with and without labels."""
        alone = self.by_labels
        text = (
            f"{len(self.draw)} labels show an accuracy of {percent(alone.accuracy, 1)} "
            f"({percent(alone.low, 1)} to "
            f"{percent(alone.high, 1)})"
        )
        if self.prior is None:
            return f"{text}."
        return (
            f"{text}. The labels and the estimate without labels "
            f"({percent(self.prior.accuracy, 1)}) together give {percent(self._accuracy, 1)}."
        )

    def method_fit(self, loss: Loss) -> MethodFit:
        """Return the fitted scaling, with its losses and checks."""

        def mean_loss(at: float, of_label: float) -> float:
            moved = class_major(with_offsets(self.logits, at, None, of_label))
            return float(ROW_LOSSES[loss](moved, self.draw.labels, at, False)[0].mean())

        return MethodFit(
            self._scaling,
            mean_loss(self._scaling.temperature, self._scaling.of_label),
            mean_loss(1.0, 0.0),
            guards=self._guards,
            warnings=tuple(sentences_of_failed(self._guards)),
        )

    def estimates(self) -> dict[str, Any]:
        """Return the estimates of accuracy and ECE for cal.json."""
        ece, low, high = self._ece()
        return {
            "accuracy": self._accuracy,
            "accuracy_without_labels": None if self.prior is None else self.prior.accuracy,
            "accuracy_by_labels": self.by_labels.accuracy,
            "accuracy_low": self.accuracy.low,
            "accuracy_high": self.accuracy.high,
            "ece": ece,
            "ece_low": low,
            "ece_high": high,
        }

    def metrics(
        self,
        file: FeatureFile,
        wanted: Sequence[Wanted],
        by: str | None,
        costs: Float64s | None = None,
    ) -> Iterator[MetricEstimate]:
        """Estimate metrics from the labels, for all rows and for each value of the column `by`."""
        target = file.require_target()
        frame = thinned(self.draw.frame, most_rows(target.n_classes), self.draw.seed)
        return metrics_by_labels(
            self.draw,
            target.logits(frame),
            self.logits,
            self._scaling,
            self.accuracy,
            wanted,
            file.classes,
            groups_of(target, by, np.concatenate([frame, self.draw.rows])),
            costs,
        )

    def history(self) -> list[str]:
        """Return a sentence about the fit for each batch, if labels came in several batches."""
        batch = self.draw.batch
        numbers, sizes = np.unique(batch, return_counts=True)
        fits = [self._fitted(batch <= last) for last in numbers]
        texts = [
            f"after batch {number} ({total} labels), the estimated accuracy is "
            f"{percent(accuracy, 1)}, with T = {scaling.temperature:.4g} and the offset "
            f"{scaling.of_label:+.2f}"
            for number, (total, (scaling, (accuracy, *_))) in enumerate(
                zip(np.cumsum(sizes), fits, strict=True), 1
            )
        ]
        if self.prior is not None:
            texts[0] += f". The estimate without labels is {percent(self.prior.accuracy, 1)}"
        return texts if len(texts) > 1 else []

    def _ece(self) -> tuple[float, float, float]:
        confidence = np.empty(len(self.draw))
        parts, fold = folds(len(confidence), self.draw.seed)
        for number in range(parts):
            out = fold == number
            scaling, _ = self._fitted(~out)
            confidence[out] = confidence_of(self.logits[out], scaling)
        frame = confidence_of(self._frame, self._scaling)
        right = self.draw.right(self.logits)
        return label_ece(frame, confidence, self.draw, right, fitted=True)

    def _fitted(self, rows: Booleans) -> tuple[Scaling, tuple[float, float, float]]:
        draw, logits = self.draw.without(~rows), self.logits[rows]
        if len(draw):
            scores = self._scores_of_frame, self._scores_of_drawn[rows]
            by_labels = accuracy_and_size(
                draw.weights, draw.variances, draw.population, draw.right(logits), *scores
            )
            both = combined(*by_labels, self.prior)
        else:  # Cross-fitting needs at least two labels.
            both = ((self.prior or self.by_labels).accuracy,) * 3
        return posterior(self._frame, logits, draw, both[0]), both


def groups_of(target: Domain, by: str | None, rows: Rows) -> Groups | None:
    """Group target rows by the values of the column `by`. Return None if `by` is None."""
    if by is None:
        return None
    groups = column_groups(target, by, rows)
    return Groups(groups.names, groups.numbers(rows))


def agreement_with_labels(
    prior: Estimate | None, by_labels: Estimate, unlabelled: int
) -> tuple[Guard, ...]:
    """Check that the interval from labels contains the accuracy estimated without labels."""
    if prior is None:
        return ()
    low, high, estimate = by_labels.low, by_labels.high, prior.accuracy
    passed = low <= estimate <= high
    # An estimate just outside the interval must not look like an end of the interval.
    is_close = min(abs(estimate - low), abs(estimate - high)) < 0.001
    digits = 1 if passed or not is_close else 3
    text = (
        f"the estimated accuracy without labels is {percent(estimate, digits)}, and the labels "
        f"give {percent(low, digits)} to {percent(high, digits)}"
    )
    if not passed:
        text += ". The estimate without labels gets less weight, because the labels contradict it"
        text += ": label more rows" if unlabelled else ""
    nearest = low if abs(estimate - low) < abs(estimate - high) else high
    return (Guard("agreement with labels", estimate, nearest, passed, text),)


def effective_labels(draw: Draw) -> tuple[Guard, ...]:
    """Check that labels for a decision have an effective sample size of at least 20."""
    if not draw.has_rows_for_decision:
        return ()
    count = effective_sample_size(draw.weights)
    all_or_some = "all" if draw.is_for_decision else "some"
    text = (
        f"{all_or_some} of the {len(draw)} labels were picked for a decision, so the labels say as "
        f"much about the accuracy as {count:.0f} labels of random rows"
    )
    passed = count >= MIN_EFFECTIVE
    if not passed:
        text += (
            ". The labels are too few: run covcal pick again without --for, or pass --labels none"
        )
    return (Guard("effective labels", count, MIN_EFFECTIVE, passed, text),)


def confidence_of(logits: Floats, scaling: Scaling) -> Float64s:
    """Return the calibrated confidence in the predicted class, shape (n,)."""
    moved = with_offsets(logits, scaling.temperature, None, scaling.of_label)
    return confidences(moved, scaling.temperature, logits.argmax(axis=1))


def labels_against(target: Domain, draw: Draw, calibration: Calibration) -> tuple[str, bool]:
    """Test whether labelled rows have as many errors as their confidence predicts.

    Return a sentence about the test, and whether the confidence is significantly wrong. The
    calibration must not have been fitted to the labels of `draw`.
    """
    blocks = ScaledLogits(calibration.scaling).confidences(target, draw.rows)
    confidence = np.concatenate([values for _, values in blocks])
    errors = len(draw) - int(draw.right(target.logits(draw.rows)).sum())
    # Poisson binomial distribution of the number of errors, if the confidence is right.
    chances = np.ones(1)
    for value in confidence:
        chances = np.convolve(chances, (value, 1 - value))
    tail = min(float(chances[: errors + 1].sum()), float(chances[errors:].sum()))
    return (
        f"{errors} of the {len(draw)} labelled rows are wrong, and the confidence predicts "
        f"{float((1 - confidence).sum()):.1f} wrong rows",
        2 * tail < _FALSE_CONTRADICTION,
    )


def error_of(
    target: Domain, draw: Draw, calibration: Calibration, scaled: ScaledLogits
) -> tuple[float, float, float] | None:
    """Return the ECE of a calibration on labelled rows, and both ends of its interval.

    If the calibration was fitted to some of the labels, return the ECE in cal.json, if any.
    """
    fitted = calibration.labelled_rows
    if fitted is not None and rows_of_fit(target, draw.rows, fitted).any():
        measured = calibration.estimates.get(LABELLED)
        if measured is None:
            return None
        return measured["ece"], measured["ece_low"], measured["ece_high"]

    frame = scaled.confidence(target, draw.frame)
    right = draw.right(target.logits(draw.rows))
    return label_ece(frame, scaled.confidence(target, draw.rows), draw, right, fitted=False)
