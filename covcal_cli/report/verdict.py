"""The verdict: one sentence that says what to do, and the sentences that support it.

With labels, every sentence follows from an interval. A calibration does harm, or helps, only where
a paired difference on the same rows proves it. A class counts as wrong only where its own interval
proves it, because an average can hide a class. Without labels, the verdict rests on the estimated
accuracy, and says that nothing was measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from covcal_cli.evaluate.bootstrap import Interval
from covcal_cli.evaluate.claims import ClassGaps, MeanGap, ece_sentence, percent, points
from covcal_cli.evaluate.paired import Difference
from covcal_cli.evaluate.result import Evaluation
from covcal_cli.forecast.forecaster import NONE
from covcal_cli.maths.odds import short_percent
from covcal_cli.report.content import ReportContent

Tone = Literal["good", "mixed", "bad"]
# An ECE whose interval starts below NEGLIGIBLE may be 0; one that ends above NARROW may matter.
NEGLIGIBLE, NARROW = 0.01, 0.05
_NAMES = {"ece": "ECE", "brier": "Brier score", "nll": "log loss"}
_NAMED = 4  # classes
_LABELS_HELP = "Label about 50 rows with covcal pick for an estimate, or a few hundred to measure."


@dataclass(frozen=True)
class Verdict:
    """What to do, and why."""

    tone: Tone
    headline: str
    sentences: tuple[str, ...]


def verdict(content: ReportContent) -> Verdict:
    """Return the verdict on the first calibration."""
    if content.evaluation is None:
        return _expected(content)
    return _measured(content, content.evaluation)


# With labels.


def _measured(content: ReportContent, evaluation: Evaluation) -> Verdict:
    name, level = content.name, evaluation.level
    ece = evaluation.intervals.get(name, {}).get("ece")
    changes = [
        change
        for metric in _NAMES
        if (change := evaluation.difference(name, NONE, metric)) is not None
    ]
    classes = ClassGaps.of(evaluation.classes.get(name, ()), level)
    sentences = [
        f"Measured on {evaluation.n} labelled target rows. The classifier gets "
        f"{evaluation.metrics[name].accuracy:.1%} of them right.{_left_out(evaluation)}",
        *_errors(evaluation, name),
        *_compared(changes),
    ]
    if ece is not None and classes.n > 1:
        sentences += [_sentence(text) for text in (classes.worst, classes.count) if text]
    return Verdict(*_action(name, changes, ece, classes, evaluation), tuple(sentences))


def _action(
    name: str,
    changes: Sequence[Difference],
    ece: Interval | None,
    classes: ClassGaps,
    evaluation: Evaluation,
) -> tuple[Tone, str]:
    """Return tone and headline: harm first, then what the interval of the ECE proves."""
    directions = {change.direction for change in changes} - {0}
    if directions == {1}:
        return "bad", f"Do not use {name} here: it makes the confidence worse"
    if ece is None:
        return "mixed", "Measured without intervals: make the report again with --bootstrap 1000"
    off = f"off by {points(ece[0])} to {points(ece[1])} points on average"
    if ece[0] >= NEGLIGIBLE and directions == {-1}:
        return "mixed", f"Better than before, but do not rely on it: the confidence is {off}"
    if ece[0] >= NEGLIGIBLE:
        return "bad", f"Do not trust the confidence: it is {off}"
    if classes.off:
        names = _either([group.name for group in classes.off])
        return "bad", f"Do not trust the confidence where {names} is predicted"
    if ece[1] < NARROW:
        return (
            "good",
            f"Use this confidence: it is off by at most {points(ece[1])} points on average",
        )
    return "mixed", (
        f"Label more rows: the confidence may be off by up to {points(ece[1])} points, and "
        f"{evaluation.n} rows cannot decide"
    )


def _either(names: Sequence[str]) -> str:
    """Return the names of classes, such as ``3, 7 or 9``, or the first and how many more."""
    if len(names) > _NAMED:
        return f"{', '.join(names[:_NAMED])} or one of {len(names) - _NAMED} others"
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _left_out(evaluation: Evaluation) -> str:
    counts = {
        "without a label": evaluation.unlabelled,
        "whose labels a calibration was fitted to": evaluation.left_out,
    }
    parts = [f"{count} {reason}" for reason, count in counts.items() if count]
    return f" Left out: {' and '.join(parts)}." if parts else ""


def _errors(evaluation: Evaluation, name: str) -> list[str]:
    """Return a sentence on the calibration error before and after."""
    sentences = []
    for calibration in dict.fromkeys((NONE, name)):
        before = calibration == NONE and name != NONE
        whose = (
            "Before calibration"
            if before
            else f"After calibration ({name})"
            if name != NONE
            else "As it is"
        )
        ece = evaluation.intervals.get(calibration, {}).get("ece")
        if ece is None:
            error = f"{points(evaluation.metrics[calibration].ece)} points, without an interval"
            sentences.append(f"{whose}, the measured calibration error (ECE) is {error}.")
            continue
        gap = MeanGap.of(evaluation.metrics[calibration].bins, evaluation.level)
        sentences.append(
            f"{whose}, the calibration error (ECE) is {ece_sentence(ece)} "
            f"({short_percent(evaluation.level)} interval). On average: {gap.sentence}."
        )
    return sentences


def _compared(changes: Sequence[Difference]) -> list[str]:
    """Return what the rows prove about the calibration compared with none."""
    if not changes:
        return []
    worse, better = (
        " and ".join(_NAMES[change.metric] for change in changes if change.direction == direction)
        for direction in (1, -1)
    )
    if worse and better:
        conclusion = f"it is better by {better} and worse by {worse}"
    elif worse:
        conclusion = f"it is worse by {worse}"
    elif better:
        conclusion = f"it is better by {better}"
    else:
        conclusion = "these rows prove neither that it is better nor that it is worse"
    return [f"Compared with the uncalibrated classifier on the same rows, {conclusion}."]


# Without labels.


def _expected(content: ReportContent) -> Verdict:
    calibration = content.calibration
    sentences = [
        f"No {content.settings.split} row of the target has a label, so nothing here is measured."
    ]
    vague = True
    if content.estimation is not None:
        best = content.estimation.estimates[0]
        vague = not best.bounds
        sentences.append(
            f"Estimated accuracy on the target: {percent(best.accuracy)} (between "
            f"{100 * best.low:.0f} and {percent(best.high)}). {_sentence(best.interval)}"
        )
    before = calibration.estimates.get("target_confidence_before")
    after = calibration.estimates.get("target_confidence")
    if before is not None and after is not None:
        sentences.append(
            f"Mean confidence on the target: {percent(before)} before calibration, "
            f"{percent(after)} after. It should equal the accuracy."
        )
    labelled = calibration.estimates.get("labelled")
    if labelled is not None:
        sentences.append(
            f"On the rows that you labelled, the ECE is {points(labelled['ece_low'])} to "
            f"{points(labelled['ece_high'])} points. Each row was tested with a fit without it."
        )
    sentences += [f"Warning: {_sentence(warning)}" for warning in calibration.warnings]
    sentences.append(
        f"No number without labels can show that the task itself has changed. {_LABELS_HELP}"
    )
    if vague or calibration.warnings:
        reason = "the estimated accuracy is too vague" if vague else "there is a warning"
        return Verdict("mixed", f"Label 50 rows first: {reason}", tuple(sentences))
    return Verdict(
        "mixed",
        "Use the calibration, and label some rows when you can: nothing was measured",
        tuple(sentences),
    )


def _sentence(text: str) -> str:
    """Return a text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
