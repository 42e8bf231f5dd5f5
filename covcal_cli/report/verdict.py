"""The verdict in words: what was found, how sure that is, and what to do.

With labels, it rests on the interval of the ECE: an interval that reaches 0 does not contradict an
honest confidence, and two that overlap do not show a difference. Without labels, it says what is
expected and that nothing was measured.
"""

from dataclasses import dataclass
from typing import Literal

from covcal_cli.evaluate.bootstrap import Interval
from covcal_cli.evaluate.metrics import Metrics
from covcal_cli.evaluate.result import Evaluation
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.forecaster import NONE
from covcal_cli.report.content import ReportContent

Tone = Literal["good", "mixed", "bad"]
# An interval of the ECE that starts below NEGLIGIBLE does not contradict an honest confidence; one
# that ends above NARROW leaves room for an error that matters.
NEGLIGIBLE, NARROW = 0.01, 0.05


@dataclass(frozen=True)
class Verdict:
    """A headline and the sentences under it."""

    tone: Tone
    headline: str
    sentences: tuple[str, ...]


def verdict(content: ReportContent) -> Verdict:
    """Return what the first calibration is worth on the target."""
    if content.evaluation is None:
        return _expected(content)
    return _measured(content, content.evaluation)


def _measured(content: ReportContent, evaluation: Evaluation) -> Verdict:
    before, after = evaluation.metrics[NONE], evaluation.metrics[content.name]
    known = evaluation.intervals
    old, new = known.get(NONE, {}).get("ece"), known.get(content.name, {}).get("ece")
    compared: Tone | None = None if content.name == NONE else _compared(before, after, old, new)
    sentences = [
        f"Measured on {evaluation.n} labelled target rows, of which the classifier gets "
        f"{after.accuracy:.1%} right."
    ]
    if compared is not None:
        sentences.append(
            f"As the classifier came, its confidence was off by {_off(before, old)} on average "
            f"(expected calibration error); with {content.name} it is off by {_off(after, new)}."
        )
        sentences.append(
            {
                "good": "The improvement stands out of the noise of this many rows.",
                "mixed": "The two are too close for this many rows to tell them apart.",
                "bad": "The calibration made the confidence worse: do not use it here.",
            }[compared]
        )
    else:
        sentences.append(f"The confidence is off by {_off(after, new)} on average.")
    sentences.append(_direction(after))
    # The headline: harm first, then whether the interval contradicts an honest confidence.
    if compared == "bad":
        return Verdict("bad", "The calibration does harm on this data", tuple(sentences))
    if new is not None and new[0] < NEGLIGIBLE:
        if new[1] < NARROW:
            return Verdict("good", "The confidence can be taken at its word", tuple(sentences))
        return Verdict(
            "mixed",
            f"No fault is seen, but {evaluation.n} rows leave room for {100 * new[1]:.0f} points",
            tuple(sentences),
        )
    if compared == "good":
        return Verdict(
            "mixed", "The confidence is closer to the truth, but not yet honest", tuple(sentences)
        )
    return Verdict("bad", "The confidence cannot be taken at its word", tuple(sentences))


def _compared(before: Metrics, after: Metrics, old: Interval | None, new: Interval | None) -> Tone:
    if old is not None and new is not None and old[0] <= new[1] and new[0] <= old[1]:
        return "mixed"
    return "good" if after.ece < before.ece else "bad"


def _off(metrics: Metrics, interval: Interval | None) -> str:
    text = f"{100 * metrics.ece:.1f} points"
    if interval is None:
        return text
    return f"{text} (95 % interval {100 * interval[0]:.1f} to {100 * interval[1]:.1f})"


def _direction(metrics: Metrics) -> str:
    gap = 100 * (metrics.mean_confidence - metrics.accuracy)
    if abs(gap) < 1:
        return "On average it promises what it keeps, within one point."
    word = "more" if gap > 0 else "less"
    return f"On average it promises {abs(gap):.1f} points {word} than it keeps."


def _expected(content: ReportContent) -> Verdict:
    found = content.calibration
    sentences = ["The target rows have no labels, so nothing here is measured: it is expected."]
    sentences += _confidences(found)
    if content.estimation is not None:
        best = content.estimation.estimates[0]
        sentences.append(
            f"The classifier is expected to get {best.accuracy:.1%} of the target right "
            f"({best.low:.1%} to {best.high:.1%}, which reaches as far as the other estimates lie)."
        )
    failed = [guard for guard in found.guards if not guard.passed]
    sentences += [f"A guard did not pass: {guard.sentence}." for guard in failed]
    sentences.append(
        "Label a few hundred target rows and run covcal evaluate: that is the only proof."
    )
    doubtful = bool(failed or found.warnings)
    headline = (
        "Expected, not measured, and with reasons for doubt"
        if doubtful
        else "Expected, not measured: no reason for doubt was found"
    )
    return Verdict("mixed", headline, tuple(sentences))


def _confidences(found: Calibration) -> list[str]:
    before = found.estimates.get("target_confidence_before")
    after = found.estimates.get("target_confidence")
    if before is None or after is None:
        return []
    return [
        f"The mean confidence on the target goes from {before:.1%} to {after:.1%}; an honest one "
        "equals the share of right answers."
    ]
