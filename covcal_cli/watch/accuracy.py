"""Estimate the accuracy of a period."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from covcal_cli.arrays import Float64s, Floats, Labels, Rows
from covcal_cli.estimators.clusters import (
    ASSUMPTION,
    CLUSTERING,
    FIXED_CLUSTERING,
    MOST_ROWS,
    Centres,
    Places,
    directions,
    move,
    places,
    strays,
)
from covcal_cli.estimators.confidences import atc, doc, predicted_classes
from covcal_cli.estimators.consensus import DISAGREE, Estimates, by_confidence, combined
from covcal_cli.estimators.guards import (
    clusters_know_classes,
    fall_in_confidence,
    shift_within_classes,
)
from covcal_cli.estimators.inputs import (
    MAX_ROWS,
    MAX_VALUES,
    Estimate,
    EstimatorInputs,
    from_variance,
    variance_of_mean,
)
from covcal_cli.estimators.metrics import (
    MetricEstimate,
    Wanted,
    cost_estimate,
    expected_metrics,
    unknown_metrics,
)
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.features import ONE_CONFIDENCE, FeatureFile, thinned
from covcal_cli.formats.lineage import is_unchanged
from covcal_cli.maths.odds import top_log_odds
from covcal_cli.maths.softmax import prior_offsets
from covcal_cli.records import Guard
from covcal_cli.watch.period import PeriodAccuracy
from covcal_cli.watch.reference import Reference
from covcal_cli.watch.sketches import shares

_LEAST_ROWS = 16  # minimum number of rows for an estimate
_LEAST_SOURCE = 2


@dataclass(frozen=True)
class SourceRows:
    """Labelled source rows: real rows, or artificial rows made from the reference data."""

    logits: Floats  # (n_v, K).
    labels: Labels  # (n_v,).
    sketch: Reference | None  # The reference data of artificial rows; None for real rows.
    temperature: float  # T_s, from temperature scaling on the source.
    prior: Float64s | None  # (K,), target class frequencies that the user gave.
    has_all_classes: bool  # Whether the logits of every class are known.
    of_source: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def metrics(
        self,
        logits: Floats,
        accuracy: PeriodAccuracy | None,
        wanted: Sequence[Wanted],
        classes: Sequence[str],
        costs: Float64s | None,
    ) -> Iterator[MetricEstimate]:
        """Estimate metrics on rows with logits (n, K) whose estimated accuracy is `accuracy`."""
        if accuracy is None:
            yield from unknown_metrics(wanted, classes, len(logits))
            if costs is not None:
                yield cost_estimate(None, len(logits))
            return
        inputs = self._inputs(logits, self.has_all_classes and self.sketch is None)
        offsets = None
        if self.prior is not None and self.sketch is None:  # artificial rows have no true classes
            offsets = prior_offsets(self.prior, self.labels)
        ends = accuracy.accuracy, accuracy.low, accuracy.high
        estimate = Estimate("combined", *ends, ASSUMPTION)
        yield from expected_metrics(inputs, estimate, wanted, classes, offsets, costs=costs)

    def estimate(self, logits: Floats) -> PeriodAccuracy | None:
        """Estimate the accuracy on rows with logits (n, K); None if there are too few rows."""
        if len(logits) < _LEAST_ROWS or len(self.logits) < _LEAST_SOURCE:
            return None
        if self.sketch is None:
            inputs = self._inputs(logits, self.has_all_classes)
            estimate = Estimates(inputs, self.prior).combined
            of = "the calibration's source rows"
        else:
            estimate = self._from_sketch(self.sketch, logits)
            of = "the summary of the calibration's source rows"
        contradicted = DISAGREE in estimate.failed
        return PeriodAccuracy(estimate.accuracy, estimate.low, estimate.high, of, contradicted)

    def _inputs(self, logits: Floats, has_all_classes: bool) -> EstimatorInputs:
        return EstimatorInputs(
            self.logits,
            self.labels,
            logits,
            self.temperature,
            has_all_classes=has_all_classes,
            of_source=self.of_source,
        )

    def _from_sketch(self, sketch: Reference, logits: Floats) -> Estimate:
        n_classes = logits.shape[1]
        odds = top_log_odds(logits, self.temperature)
        rows = _top_against_rest(odds, n_classes, self.temperature)
        inputs = EstimatorInputs(
            self.logits, self.labels, rows, self.temperature, of_source=self.of_source
        )
        source, target = inputs.source_confidence, inputs.target_confidence
        predicted = shares(logits.argmax(axis=1), n_classes)
        drift = 0.5 * float(np.abs(sketch.source.predicted.values - predicted).sum())
        fall = fall_in_confidence(
            float(source.mean() - target.mean()),
            math.sqrt(variance_of_mean(source) + variance_of_mean(target)),
            drift,
        )
        estimates = [doc(inputs), atc(inputs)]
        if not self.has_all_classes:
            on_source = np.asarray(sketch.source.predicted.values, dtype=np.float64)
            if np.count_nonzero(on_source) > 1:
                on_target = np.asarray(predicted, dtype=np.float64)
                estimates.append(predicted_classes(inputs, on_source, on_target))
            by_name = {estimate.name: estimate for estimate in estimates}
            return by_confidence(inputs, by_name, fall, drift)
        estimates += _by_strays(sketch, logits)
        by_name = {estimate.name: estimate for estimate in estimates}
        checks = [fall, *_checks_of_classes(sketch, logits)]
        return combined(inputs, by_name, checks, drift)


def source_rows(calibration: Calibration, reference: Reference) -> SourceRows:
    """Return the source rows of a calibration's features file, or artificial rows."""
    entry = calibration.inputs[0]
    if is_unchanged(entry):
        with FeatureFile(entry.path) as file:
            return source_rows_of(file, calibration, reference)
    sketch, n_classes = reference.source, len(calibration.classes)
    share = min(1.0, (MAX_VALUES // n_classes) / (sketch.right + sketch.wrong))
    right, wrong = round(share * sketch.right), round(share * sketch.wrong)
    odds = np.concatenate(
        [_spread(sketch.right_odds.values, right), _spread(sketch.wrong_odds.values, wrong)]
    )
    labels = np.repeat([0, 1], [right, wrong])
    logits = _top_against_rest(odds, n_classes, reference.temperature)
    return SourceRows(
        logits, labels, reference, reference.temperature, *_prior_and_kind(calibration)
    )


def source_rows_of(
    file: FeatureFile, calibration: Calibration, reference: Reference, rows: Rows | None = None
) -> SourceRows:
    """Return labelled source rows of an open features file (default: its validation rows)."""
    source = file.require_source()
    rows = source.require_rows("validation") if rows is None else rows
    rows = thinned(
        rows[source.labels(rows) >= 0],
        min(MAX_ROWS, MAX_VALUES // source.n_classes),
        calibration.seed,
    )
    return SourceRows(
        source.logits(rows),
        source.labels(rows),
        None,
        reference.temperature,
        *_prior_and_kind(calibration),
    )


def _prior_and_kind(calibration: Calibration) -> tuple[Float64s | None, bool]:
    prior = calibration.target_prior.shares
    has_all_classes = calibration.reading.get("tail") != ONE_CONFIDENCE
    return None if prior is None else np.array(prior), has_all_classes


def _checks_of_classes(sketch: Reference, logits: Floats) -> Iterator[Guard]:
    clusters, of_source = sketch.source.clusters, sketch.source.places
    if clusters is None or logits.shape[1] == 2:
        return
    if of_source is not None:
        source = Places(
            np.array(of_source.classes),
            np.array(of_source.counts),
            of_source.means.values.astype(np.float64),
            of_source.spreads.values.astype(np.float64),
            sum(of_source.counts),
        )
        yield shift_within_classes(move(source, places(logits)))
    yield clusters_know_classes(clusters.strays)


def _by_strays(sketch: Reference, logits: Floats) -> Iterator[Estimate]:
    source, clusters = sketch.source, sketch.source.clusters
    # Two classes have only one dimension of logits, which is too few for clustering.
    if clusters is None or logits.shape[1] == 2:
        return
    centres = Centres(np.array(clusters.classes), clusters.centres.values)
    some = logits[thinned(np.arange(len(logits)), MOST_ROWS, 0)]
    right = source.right / (source.right + source.wrong)
    free, fixed = strays(
        directions(some), some.argmax(axis=1), centres, clusters.shares.values.astype(np.float64)
    )
    for name, before, now in (
        (CLUSTERING, clusters.strays, free),
        (FIXED_CLUSTERING, clusters.held_strays, fixed),
    ):
        accuracy = right + before - float(now.mean())
        yield from_variance(name, accuracy, variance_of_mean(now), ASSUMPTION)


def _spread(quantiles: Floats, count: int) -> Floats:
    if count == 0 or len(quantiles) == 0:
        return quantiles[:0]
    return quantiles[((np.arange(count) + 0.5) / count * len(quantiles)).astype(np.int64)]


def _top_against_rest(odds: Floats, n_classes: int, temperature: float) -> Float64s:
    """Return logits (n, K) in which class 0 is predicted with the log odds `odds`.

    The log odds apply after temperature scaling. All other classes have equal logits.
    """
    logits = np.zeros((len(odds), n_classes))
    logits[:, 0] = temperature * np.maximum(odds + math.log(max(1, n_classes - 1)), 0.0)
    return logits
