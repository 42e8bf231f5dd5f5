"""Test whether at most a share A of the accepted rows is wrong, as a decision promised.

The labels of accepted rows are added over periods. You may look at the intervals after every period
(`watch.labels.pools`). A pool contains all labelled periods from some period on. The intervals of
all pools are right together with probability 95 %. The promise is called broken if the interval of
any pool is above A. If a decision keeps its promise, the promise is called broken with a
probability of at most 5 %, however long you watch. The promise holds so far if the interval of the
longest pool without a change ends at A or below.

A random row counts as one row. If rows have different weights w, a row counts as u = w / max w
rows, which is at most 1. The test is still valid. To see this, let L be the likelihood ratio of one
row. L is a linear function of the row's error, which is 1 or 0. Bernoulli's inequality says that
L^u <= 1 + u (L - 1). If the weighted share of wrong rows is A, then 1 + u (L - 1) has mean 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covcal_cli.arrays import Booleans, Rows
from covcal_cli.decide.thresholds import Sample
from covcal_cli.errors import CovcalError
from covcal_cli.files import sha256_of
from covcal_cli.forecast import ScaledLogits
from covcal_cli.formats.decision import Decision, read_decision
from covcal_cli.formats.features import Domain
from covcal_cli.maths.odds import anytime_interval
from covcal_cli.watch.labels import FileLabels, pools, spent
from covcal_cli.watch.period import Accepted, Measured, PeriodAccuracy, Promise

# The suggested number of labels is one of these numbers.
_OFFERS = (10, 20, 30, 50, 80, 100, 150, 200, 300, 500, 1000, 2000, 5000, 10_000)
_PRIOR = 10.0  # the estimated error counts as much as this many labels


@dataclass(frozen=True)
class WatchedDecision:
    """A decision whose promise is tested."""

    decision: Decision
    sha256: str  # hash of its file
    error: float  # A, the largest share of accepted rows that may be wrong

    def was_made_on(self, sha256: str) -> bool:
        """Return whether the decision was made on the rows of this features file."""
        return sha256 in {entry.sha256 for entry in self.decision.inputs}


def watched_decision(path: Path, document: Path) -> WatchedDecision:
    """Read the decision to watch, which must use the calibration `document` and accept rows.

    Raises
    ------
    CovcalError
        If the file cannot be read, was made with another calibration, or makes no promise.
    """
    decision = read_decision(path, document)
    if decision.error is None:
        raise CovcalError(
            f"{path} does not limit the error of accepted rows: run covcal decide with --error"
        )
    if decision.threshold is None:
        raise CovcalError(
            f"{path} accepts no row, so there is no promise to watch: run covcal decide again"
        )
    return WatchedDecision(decision, sha256_of(path), decision.error)


def accepted_rows(target: Domain, rows: Rows, scaled: ScaledLogits, by: WatchedDecision) -> Rows:
    """Return the rows of a period that the decision accepts."""
    masks = [by.decision.accepts(scores) for _, scores in scaled.confidences(target, rows)]
    accepted: Booleans = np.concatenate([np.zeros(0, dtype=np.bool_), *masks])
    return rows[accepted]


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
    - `estimate`: the estimated accuracy of all rows; if it is None, no error is estimated.
    - `labels`: the labelled rows of the file.
    """
    expected = None
    if estimate is not None and len(accepted):
        predictions = target.logits(sample).argmax(axis=1)
        logits, temperature = scaled.prepared(target, sample)
        moved = predictions if scaled.scaling.can_move_the_top else None
        accuracy = estimate.low, estimate.accuracy, estimate.high
        forecast = Sample(logits.T, temperature, accuracy, moved)
        everything = np.zeros(len(sample), dtype=np.int64)
        is_accepted = by.decision.accepts(forecast.confidence[0])
        (group,) = forecast.groups(["all"], everything, is_accepted)
        expected = group.accepted
    of_labels = None if labels is None else labels.weighted(accepted)
    return Accepted(by.sha256, by.error, len(accepted), expected, of_labels)


def promise_after(entries: Sequence[Measured], start: int) -> Promise | None:
    """Judge the promise of a decision after the last period; None if no decision is watched.

    A label counts if its period is at position `start` or later, and has the decision
    of the last period.
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
    rate = (wrong + _PRIOR * rate) / (right + wrong + _PRIOR)
    return Promise("not known", labels, error, _needed(right, wrong, rate, limit, k))


def _needed(right: float, wrong: float, rate: float, limit: float, k: int) -> int | None:
    """Return how many more labels a verdict needs, if a share `rate` of these rows is wrong."""
    more = np.array(_OFFERS)
    low, high = anytime_interval(
        right + more * (1 - rate), wrong + more * rate, 1 - limit, spent(np.array(k))
    )
    decide = more[(1 - high > limit) | (1 - low <= limit)]
    return int(decide[0]) if len(decide) else None
