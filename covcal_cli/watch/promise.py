"""Test whether the error rate of accepted rows is at most A, as a decision promised.

The labels of accepted rows are pooled over periods, as `watch.labels` explains. Each pool gives an
interval of the error rate. The verdict is "broken" if the whole interval of any pool is above A.
Over all periods together, the verdict "broken" is wrong with a probability of at most 5 %. The
verdict is "holds so far" if no value in the interval of the chosen pool is above A.

A row with weight w counts as u = w / max w rows. The test stays valid by Bernoulli's inequality L^u
<= 1 + u (L - 1), where L is the likelihood ratio of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covcal_cli.arrays import Rows
from covcal_cli.decide.thresholds import Sample
from covcal_cli.errors import CovcalError
from covcal_cli.files import sha256_of
from covcal_cli.forecast import ScaledLogits
from covcal_cli.formats.decision import Decision, read_decision
from covcal_cli.formats.features import Domain
from covcal_cli.maths.odds import anytime_interval
from covcal_cli.watch.labels import FileLabels, labels_needed, pools, spent
from covcal_cli.watch.period import Accepted, Measured, PeriodAccuracy, Promise


@dataclass(frozen=True)
class WatchedDecision:
    """A decision with a maximum error rate, which labels can test."""

    decision: Decision
    sha256: str  # Hash of decide.json.
    error: float  # A, the maximum error rate of accepted rows.


def watched_decision(path: Path, document: Path) -> WatchedDecision:
    """Read a decision that was made with the calibration `document`.

    Raises `CovcalError` if the file cannot be read, belongs to another calibration, or makes no
    promise.
    """
    decision = read_decision(path, document)
    if decision.error is None:
        raise CovcalError(
            f"{path} does not limit the error of accepted rows: run covcal decide with --error"
        )
    if not decision.share:
        raise CovcalError(
            f"{path} accepts no row, so there is no promise to watch: run covcal decide again"
        )
    return WatchedDecision(decision, sha256_of(path), decision.error)


def accepted_in_period(
    target: Domain,
    accepted: Rows,
    sample: Rows,
    scaled: ScaledLogits,
    by: WatchedDecision,
    estimate: PeriodAccuracy | None,
    labels: FileLabels | None,
) -> Accepted:
    """Measure the accepted rows of a period.

    - `sample`: a random sample of all rows of the period.
    - `estimate`: the estimated accuracy of all rows, or None.
    - `labels`: the labelled rows of the file.
    """
    expected = None
    if estimate is not None and len(accepted):
        predictions = target.logits(sample).argmax(axis=1)
        logits, temperature = scaled.prepared(target, sample)
        moved = predictions if scaled.scaling.can_move_the_top else None
        accuracy = estimate.low, estimate.accuracy, estimate.high
        forecast = Sample(logits.T, temperature, accuracy, moved)
        is_accepted = by.decision.accepts(forecast.confidence[0], target, sample)
        expected = forecast.expected(is_accepted, is_accepted, int(is_accepted.sum()), len(sample))
    of_labels = None if labels is None else labels.weighted(accepted)
    return Accepted(by.sha256, by.error, len(accepted), expected, of_labels)


def promise_after(entries: Sequence[Measured], start: int) -> Promise | None:
    """Test the promise of a decision after the last period; return None without a decision.

    Labels of periods before the number `start`, and labels of other decisions, are not used.
    """
    accepted = entries[-1].accepted
    if accepted is None:
        return None
    limit = accepted.error
    labelled = [
        (place, entry.accepted.labels)
        for place, entry in enumerate(entries)
        if entry.accepted is not None
        and entry.accepted.decision == accepted.decision
        and entry.accepted.labels is not None
    ]
    labelled_places = [place for place, _ in labelled]
    all_pools = pools(
        np.array([labels.size for _, labels in labelled]),
        np.array([labels.accuracy for _, labels in labelled]),
        np.ones(len(labelled)),
        [k for k, place in enumerate(labelled_places) if place >= start],
        expected=1 - limit,
    )
    if all_pools is None:
        k, right, wrong, labels = 0, 0.0, 0.0, 0
        error = None
    else:
        starts, gaps = all_pools.starts, all_pools.gaps
        worst = max(range(len(gaps)), key=lambda i: gaps[i].low)
        chosen = worst if gaps[worst].low > limit else all_pools.chosen
        k, error = starts[chosen], gaps[chosen]
        total = sum(labels.size for _, labels in labelled[k:])
        right, wrong = (1 - error.value) * total, error.value * total
        labels = sum(labels.rows for _, labels in labelled[k:])
    if error is not None and error.low > limit:
        return Promise("broken", labels, error, None)
    if error is not None and error.high <= limit:
        return Promise("holds so far", labels, error, None)
    rate = limit if accepted.expected is None else accepted.expected.error
    needed = labels_needed(
        (right, wrong),
        1 - rate,
        1 - limit,
        k,
        lambda low, high: (1 - high > limit) | (1 - low <= limit),
    )
    return Promise("not known", labels, error, needed)


def error_proved_by(labels: int, confidence: float, tolerance: float) -> float | None:
    """Return the smallest over-confidence that `labels` labels can prove, or None."""
    errors = np.arange(0.01, confidence, 0.01)
    right = labels * (confidence - errors)
    _, high = anytime_interval(right, labels - right, confidence, spent(np.array(0)))
    proved = errors[confidence - high > tolerance]
    return float(proved[0]) if len(proved) else None
