"""Judge whether the confidence of a period is right, and whether its rows changed.

Most changes of the rows leave the confidence right, so these two questions have separate answers.
The verdict compares the gap (mean confidence minus accuracy) with a tolerance. The alarm says
whether the rows changed.

The alarm detects a change at an unknown time, with a guaranteed rate of false alarms. A change may
have begun in any period j. For every signal, two groups of rows are compared. The group "after" has
the rows from period j on. The group "before" has the earlier rows and the reference rows. Let u be
the rank of a row among the reference rows. D is the mean of u in the group "after" minus the mean
of u in the group "before". The variance of D is v = var(u) (1 / n_after + 1 / n_before). Without a
change, D is approximately normal with mean 0. Suppose that a change moves the mean rank by a random
amount from N(0, tau^2). Then the likelihood ratio of change to no change is

    E_j = sqrt(v / (v + tau^2)) exp(D^2 / 2 * tau^2 / (v (v + tau^2))).

The test is group-invariant, so the true mean of the reference is not needed (Perez-Ortiz et al.,
"E-statistics, group invariance and anytime-valid testing", 2024). Without a change, E_j has mean 1.
If p uncorrelated signals are tested together, the square root is raised to the power p, and D^2 is
the sum of the p squares. An average of E_j over values of tau and signals has mean 1 too, even if
the signals are correlated.

The sum R of E_j over all j so far is the Shiryaev-Roberts e-detector (Shin, Ramdas and Rinaldo,
"E-detectors", 2024). Without a change, R minus the number of periods is a martingale. By Ville's
inequality, R reaches c within n periods with probability n / c at most (MATHEMATICS, section 12).
The alarm is raised if R reaches c = periods per year / allowed false alarms per year.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from covcal_cli.arrays import Float64s
from covcal_cli.errors import in_points, percent, short_percent
from covcal_cli.evaluate.gates import GateResult, Outcome
from covcal_cli.maths.softmax import log_mean
from covcal_cli.watch.labels import ERROR, Pool
from covcal_cli.watch.period import (
    Gap,
    Measured,
    Period,
    PeriodAccuracy,
    PromiseVerdict,
    RaisedAlarm,
    Verdict,
    Watched,
)
from covcal_cli.watch.reference import CONFIDENCE, SMALLEST_RANK_VARIANCE, Reference, Signal

# E_j is averaged over these values of tau. The unit is the standard deviation of a row's rank.
_SIZES = (0.05, 0.15, 0.5, 1.5)
# A change is looked for in this many of the last periods.
_MOST_STARTS = 1000


@dataclass(frozen=True)
class Alarm:
    """The evidence for a change of the rows, after the last period."""

    log_evidence: float  # Logarithm of the evidence R.
    log_threshold: float  # Logarithm of the threshold c.
    raised: bool  # Whether the evidence has reached the threshold.
    start: int  # Index of the period in which the change most likely began.
    signal: int  # Index of the strongest signal; for the axes together, index of the first axis.


def alarm(
    rows: Float64s,
    means: Float64s,
    reference_rows: Float64s,
    variances: Float64s,
    threshold: float,
    joint: Float64s | None = None,
) -> Alarm:
    """Return the alarm after the last period.

    - `rows`, (t, S): number of rows, by period and signal. A missing signal has 0 rows.
    - `means`, (t, S): mean rank of these rows, minus the mean rank of the reference rows.
    - `reference_rows`, (S,): number of reference rows of each signal.
    - `variances`, (S,): variance of the ranks of the reference rows, above 0.
    - `threshold`: c, above 1. The alarm is raised if the evidence R reaches c.
    - `joint`, (p, p): the whitening matrix of the last p standardised signals, which are tested
      together.
    """
    periods = len(rows)
    counts = np.vstack([np.zeros(rows.shape[1]), rows.cumsum(axis=0)])
    sums = np.vstack([np.zeros(rows.shape[1]), (rows * means).cumsum(axis=0)])
    first = max(0, periods - _MOST_STARTS)
    starts = np.arange(first, periods)
    # For each possible start of a change, compare later rows with earlier rows.
    before, after = reference_rows + counts[starts], counts[-1] - counts[starts]
    difference = (sums[-1] - sums[starts]) / np.maximum(after, 1) - sums[starts] / before
    noise = variances * (1 / np.maximum(after, 1) + 1 / before)
    standard, noise = difference / np.sqrt(variances), noise / variances
    single = standard.shape[1] - (0 if joint is None else len(joint))
    bets = _bets(standard[:, :single] ** 2, noise[:, :single], 1)
    if joint is not None:
        squares = ((standard[:, single:] @ joint.T) ** 2).sum(axis=1, keepdims=True)
        bets = np.hstack([bets, _bets(squares, noise[:, single : single + 1], len(joint))])
    # If no rows follow a possible start, log E is 0, which is no evidence.
    bets = np.where(after[:, : bets.shape[1]] > 0, bets, 0.0)
    by_start = log_mean(list(bets.T))
    best = int(by_start.argmax())
    evidence = float(by_start[best] + math.log(np.exp(by_start - by_start[best]).sum()))
    limit = math.log(threshold)
    return Alarm(evidence, limit, evidence >= limit, first + best, int(bets[best].argmax()))


def _bets(squares: Float64s, noise: Float64s, p: int) -> Float64s:
    """Return log E of p standardised differences D, from `squares` = |D|^2 and `noise` = v."""
    logs = [
        0.5 * p * np.log(noise / (noise + size**2))
        + squares / 2 * size**2 / (noise * (noise + size**2))
        for size in _SIZES
    ]
    return log_mean(logs)


FailOn = Literal["off", "unknown", "changed", "promise"]
# A smaller change of the share of a class is not mentioned. The unit is the standard deviation of
# the share in one row.
_SMALLEST = 0.02
_RAREST = 1e-4
_ALIKE = 0.55  # Below this AUC, old and new rows count as equal.


def verdict_on(
    entry: Measured, pool: Pool | None, tolerance: float
) -> tuple[Verdict, Gap | None, str]:
    """Return the verdict, the gap of the period, and the reason.

    The gap from labels (`pool`) is preferred. If the interval from labels is too wide and contains
    the gap that is estimated without labels, the estimated gap is used. The interval of the
    estimated gap comes from the middle half of the estimated range. In the benchmark, estimates
    gave 116 verdicts "holds", and labels contradict 10 of these verdicts.
    """
    if not entry.rows:
        return "not known", None, "the period has no rows"
    by_labels = best = None if pool is None else pool.accuracy(entry)
    estimate = entry.estimate
    if estimate is not None and (pool is None or pool.gap.verdict(tolerance) == "not known"):
        low, high = ((estimate.accuracy + end) / 2 for end in (estimate.low, estimate.high))
        middle = replace(estimate, low=low, high=high)
        estimated = gap_of(entry.confidence, middle)
        is_known = estimated.verdict(tolerance) != "not known" and not estimate.contradicted
        if pool is None or (is_known and pool.gap.low <= estimated.value <= pool.gap.high):
            best, pool = middle, None
    if best is None:
        return "not known", None, f"{entry.rows} rows are too few: watch longer periods"
    gap = gap_of(entry.confidence, best) if pool is None else pool.gap
    confidence = percent(entry.confidence, 0)
    numbers = f"the confidence is {confidence}, and the accuracy is {_with_labels(best)}"
    if pool is None and estimate is not None:
        numbers = f"the confidence is {confidence}, and the estimated accuracy is {estimate}"
        if by_labels is not None:
            numbers += f". The accuracy from labels agrees: {_with_labels(by_labels)}"
        numbers += ". The verdict uses the middle half of the estimated range"
    verdict = gap.verdict(tolerance)
    if verdict == "holds" and best.contradicted:
        return "not known", gap, f"{numbers}; the estimators disagree"
    if verdict == "not known":
        limit = in_points(f"{100 * tolerance:g}")
        if gap.low > 0 or gap.high < 0:
            direction = "high" if gap.low > 0 else "low"
            numbers += f". The confidence is too {direction}, but perhaps by less than {limit}"
        else:
            range_ = "This range" if pool is not None else "This half of the range"
            numbers += f". {range_} is too wide for a tolerance of {limit}"
    return verdict, gap, numbers


def _with_labels(accuracy: PeriodAccuracy) -> str:
    level = short_percent(1 - ERROR)
    return f"{str(accuracy).removesuffix(')')}, {level} interval from {accuracy.of})"


def gap_of(confidence: float, accuracy: PeriodAccuracy) -> Gap:
    """Return mean confidence minus accuracy, with an interval."""
    low, high = confidence - accuracy.high, confidence - accuracy.low
    return Gap(min(max(confidence - accuracy.accuracy, low), high), low, high)


def alarm_after(
    entries: Sequence[Measured],
    reference: Reference,
    classes: Sequence[str],
    threshold: float,
    *,
    is_own_baseline: bool,
) -> RaisedAlarm:
    """Return the alarm after the last period, with a description of the change.

    Periods are compared with the reference data, or with the first period if `is_own_baseline`.
    """
    if is_own_baseline:
        state, signal = _alarm_within(entries, reference, threshold)
    else:
        signals = [(entry.signal_rows, entry.signals) for entry in entries]
        state, signal = alarm_of(signals, reference, threshold)
    change = ""
    if state.raised:
        baseline = entries[0] if is_own_baseline else None
        change = change_in_words(entries[state.start :], reference, classes, signal, baseline)
    since = entries[state.start].period
    return RaisedAlarm(state.log_evidence, state.log_threshold, state.raised, since, signal, change)


def alarm_of(
    signals: Sequence[tuple[int, Mapping[str, float]]], reference: Reference, threshold: float
) -> tuple[Alarm, str]:
    """Return the alarm after the last period, and the signal with the strongest evidence.

    For each period, `signals` has the number of rows, and the differences of mean ranks by signal.
    """
    moving = [signal for signal in reference.signals if signal.variance > 0]
    if not moving:
        return Alarm(0.0, float(np.log(threshold)), False, len(signals) - 1, 0), "no signal"
    rows, means = _table(signals, [signal.name for signal in moving])
    result = alarm(
        rows,
        means,
        np.array([float(signal.rows) for signal in moving]),
        np.array([signal.variance for signal in moving]),
        threshold,
        None if reference.joint is None else reference.joint.values.astype(np.float64),
    )
    return result, _named(moving[result.signal], reference)


def _alarm_within(
    entries: Sequence[Measured], reference: Reference, threshold: float
) -> tuple[Alarm, str]:
    first, *following = entries
    moving = [
        signal
        for signal in reference.signals
        if signal.name in first.signals
        and first.variances.get(signal.name, 0) >= SMALLEST_RANK_VARIANCE
        and first.signal_rows > 0
    ]
    if not moving or not following:
        return Alarm(0.0, float(np.log(threshold)), False, len(entries) - 1, 0), "no signal"
    names = [signal.name for signal in moving]
    rows, means = _table([(entry.signal_rows, entry.signals) for entry in following], names)
    usual = np.array([first.signals[name] for name in names])
    variances = np.array([[entry.variances.get(name, 0.0) for name in names] for entry in entries])
    weights = np.array([float(entry.signal_rows) for entry in entries])
    result = alarm(
        rows,
        np.where(rows > 0, means - usual, 0.0),
        np.full(len(names), float(first.signal_rows)),
        weights @ variances / weights.sum(),
        threshold,
    )
    return replace(result, start=result.start + 1), _named(moving[result.signal], reference)


def _table(
    signals: Sequence[tuple[int, Mapping[str, float]]], names: Sequence[str]
) -> tuple[Float64s, Float64s]:
    rows = np.zeros((len(signals), len(names)))
    means = np.zeros_like(rows)
    for place, (count, period) in enumerate(signals):
        for number, name in enumerate(names):
            if (mean := period.get(name)) is not None:
                rows[place, number], means[place, number] = count, mean
    return rows, means


def _named(signal: Signal, reference: Reference) -> str:
    together = f"the {reference.coordinates.of} together"
    return signal.name if signal.axis is None else together


def change_in_words(
    entries: Sequence[Measured],
    reference: Reference,
    classes: Sequence[str],
    signal: str,
    baseline: Measured | None = None,
) -> str:
    """Describe the change of the rows in `entries`, the periods since the change began.

    `signal` is the name of the signal with the strongest evidence. `entries` are compared with the
    calibration's rows, or with `baseline`.
    """
    rows = np.array([entry.rows for entry in entries], dtype=np.float64)
    rows = rows / max(rows.sum(), 1.0)
    confidence = float(rows @ [entry.confidence for entry in entries])
    predicted = rows @ np.array([entry.predicted for entry in entries])

    def share_in_words(number: int) -> str:
        words = _share_in_words(classes[number], float(predicted[number]), before[number])
        return words if len(entries) == 1 else f"{words}, on average since then"

    def squared_change(number: int) -> float:
        return (float(predicted[number]) - before[number]) ** 2 / max(before[number], _RAREST)

    # Share of rows with each predicted class before the change. A class is predicted if its margin
    # is above 0.
    before = {
        entry.class_number: 1 - float(entry.ranks(np.zeros(1))[0])
        for entry in reference.signals
        if entry.class_number is not None
    }
    if baseline is not None:
        before = {number: float(baseline.predicted[number]) for number in before}
    if len(classes) == 2:  # Only one of two classes has a signal, so add the other class.
        before |= {1 - number: 1 - share for number, share in before.items()}
    most = max(before, key=squared_change, default=None)
    strongest = next((entry for entry in reference.signals if entry.name == signal), None)
    if strongest is not None and strongest.name == CONFIDENCE:
        usual = float(strongest.quantiles.values.mean())
        if baseline is not None:
            usual = baseline.confidence
        return f"the mean confidence is {percent(confidence, 0)} instead of {percent(usual, 0)}"
    if strongest is not None and strongest.class_number is not None:
        named = most if len(classes) == 2 else None
        return share_in_words(strongest.class_number if named is None else named)
    auc = entries[-1].auc_target or entries[-1].auc_source
    text = f"the {reference.coordinates.of} differ"
    if auc is not None and baseline is None:
        scale = f"AUC {auc:.2f} between old and new rows; 0.50 means no difference"
        text += f" ({scale})"
        if len(entries) > 1 and auc < _ALIKE:
            text = (
                f"the {reference.coordinates.of} differ in earlier periods, but no longer in "
                f"{entries[-1].period} ({scale})"
            )
    if most is None or squared_change(most) < _SMALLEST**2:
        return text
    return f"{text}; {share_in_words(most)}"


def _share_in_words(name: str, share: float, usual: float) -> str:
    if abs(share - usual) < _SMALLEST * math.sqrt(max(usual, _RAREST)):
        return f"the scores of class {name} changed, but the frequency of this prediction did not"
    digits = 0 if min(share, usual) > 0.1 and percent(share, 0) != percent(usual, 0) else 1
    now, before = percent(share, digits), percent(usual, digits)
    return f"class {name} is predicted for {now} of the rows instead of {before}"


_GATES: Mapping[FailOn, str] = {
    "off": "confidence not off",
    "unknown": "confidence known",
    "changed": "rows unchanged",
    "promise": "promise kept",
}
_OF_PROMISE: Mapping[PromiseVerdict, Outcome] = {
    "broken": "failed",
    "holds so far": "passed",
    "not known": "skipped",
}


def gate_results(watched: Watched, fail_on: Sequence[FailOn]) -> list[GateResult]:
    """Return the result of each gate for each period."""
    return [_gate(period, gate) for period in watched.periods for gate in fail_on]


def _gate(period: Period, gate: FailOn) -> GateResult:
    reason, unknown = period.answer, period.verdict == "not known"
    outcome: Outcome = "passed"
    if gate == "changed":
        outcome, reason = "failed" if period.alarm.raised else "passed", period.change
    elif gate == "promise":
        verdict = "not known" if period.promise is None else period.promise.verdict
        outcome = _OF_PROMISE[verdict]
        reason = period.promise_answer or "no decision was watched"
    elif not period.measured.rows:
        outcome = "skipped"
    elif gate == "unknown":
        outcome = "failed" if unknown else "passed"
    elif period.verdict == "off" or unknown:
        outcome = "skipped" if unknown else "failed"
    name = period.measured.period
    state = {"failed": "FAILED by", "passed": "passed by", "skipped": "skipped on"}[outcome]
    return GateResult(
        name, _GATES[gate], f'gate "{_GATES[gate]}" {state} {name}: {reason}', outcome
    )
