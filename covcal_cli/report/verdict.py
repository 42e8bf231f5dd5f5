"""The verdict in words: what was found, how sure that is, and what to do.

With labels, it rests on intervals: one of the ECE that reaches 0 does not contradict an honest
confidence, and whether a calibration is better or worse is told by differences on the same rows.
An average may hide a class, so every predicted class is looked at as far as its rows tell. Without
labels, the verdict says what is expected and that nothing was measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from covcal_cli.evaluate.bins import GroupMetrics
from covcal_cli.evaluate.bootstrap import Interval
from covcal_cli.evaluate.metrics import Metrics
from covcal_cli.evaluate.paired import Difference
from covcal_cli.evaluate.result import Evaluation
from covcal_cli.forecast.forecaster import NONE
from covcal_cli.formats.calibration import Calibration
from covcal_cli.maths.odds import short_percent, wilson
from covcal_cli.report.content import ReportContent

Tone = Literal["good", "mixed", "bad"]
# An interval of the ECE that starts below NEGLIGIBLE does not contradict an honest confidence; one
# that ends above NARROW leaves room for an error that matters. So much is tolerated of a predicted
# class too.
NEGLIGIBLE, NARROW = 0.01, 0.05
_NAMES = {"ece": "ECE", "brier": "Brier score", "nll": "log loss"}  # of what is compared


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
    name, level = content.name, evaluation.level
    after, ece = evaluation.metrics[name], evaluation.intervals.get(name, {}).get("ece")
    found = (evaluation.difference(name, NONE, metric) for metric in _NAMES)
    differences = [one for one in found if one is not None]
    classes = _Classes.of(evaluation.classes.get(name, ()), level)
    sentences = [
        f"Measured on {evaluation.n} labelled target rows, of which the classifier gets "
        f"{after.accuracy:.1%} right.{_left_out(evaluation)}",
        *_off(evaluation, name),
        *_compared(differences, level),
        _direction(after, evaluation.intervals.get(name, {})),
        *classes.sentences(),
    ]
    return Verdict(*_headline(differences, ece, classes, evaluation), tuple(sentences))


def _headline(
    differences: Sequence[Difference],
    ece: Interval | None,
    classes: "_Classes",
    evaluation: Evaluation,
) -> tuple[Tone, str]:
    """Return tone and headline: harm first, then whether an honest confidence is contradicted."""
    directions = {one.direction for one in differences} - {0}
    if directions == {1}:
        return "bad", "The calibration does harm on this data"
    if ece is None:
        return "mixed", "Measured, but without intervals: what is chance was not told from error"
    if ece[0] >= NEGLIGIBLE and directions == {-1}:
        return "mixed", "The confidence is closer to the truth, but not yet honest"
    if ece[0] >= NEGLIGIBLE:
        return "bad", "The confidence cannot be taken at its word"
    if classes.off:
        worst = classes.off[0].name
        return "bad", f"The confidence cannot be taken at its word where {worst} is predicted"
    points, level = 100 * ece[1], short_percent(evaluation.level)
    if ece[1] < NARROW:
        return "good", (
            f"The confidence can be taken at its word: at most {points:.1f} points off on average "
            f"({level})"
        )
    return "mixed", (
        f"Between 0 and {points:.0f} points of miscalibration are compatible with these "
        f"{evaluation.n} rows"
    )


def _left_out(evaluation: Evaluation) -> str:
    counts = {
        "without a label": evaluation.unlabelled,
        "whose labels a calibration was fitted to": evaluation.left_out,
    }
    parts = [f"{count} {what}" for what, count in counts.items() if count]
    return f" Left out: {' and '.join(parts)}." if parts else ""


def _off(evaluation: Evaluation, name: str) -> list[str]:
    """Return how far off the confidence is, before and after."""

    def points(one: str) -> str:
        text = f"{100 * evaluation.metrics[one].ece:.1f} points"
        interval = evaluation.intervals.get(one, {}).get("ece")
        if interval is None:
            return text
        low, high = (f"{100 * end:.1f}" for end in interval)
        return f"{text} ({short_percent(evaluation.level)} interval {low} to {high})"

    bins = len(evaluation.metrics[name].bins.counts)
    if name == NONE:
        return [f"The confidence is off by {points(NONE)} on average (ECE of {bins} bins)."]
    return [
        f"As the classifier came, its confidence was off by {points(NONE)} on average (expected "
        f"calibration error of {bins} bins); with {name}, as it was fitted, it is off by "
        f"{points(name)}."
    ]


def _compared(differences: Sequence[Difference], level: float) -> list[str]:
    """Return what the rows say of the calibration against the classifier as it came."""
    if not differences:
        return []
    numbers = ", ".join(_difference(one) for one in differences)
    worse, better = (
        " and ".join(_NAMES[one.metric] for one in differences if one.direction == direction)
        for direction in (1, -1)
    )
    if worse and better:
        conclusion = f"It is better by {better} and worse by {worse}."
    elif worse:
        conclusion = f"It is worse by {worse}: do not use it here."
    elif better:
        conclusion = f"It is better by {better}."
    else:
        conclusion = "So these rows show neither that it is better nor that it is worse."
    return [f"On the same rows it changes {numbers} ({short_percent(level)}, paired). {conclusion}"]


def _difference(one: Difference) -> str:
    if one.metric == "ece":
        value, low, high = (f"{100 * number:+.1f}" for number in (one.value, one.low, one.high))
        return f"the ECE by {value} points [{low}, {high}]"
    value, low, high = (f"{number:+.4f}" for number in (one.value, one.low, one.high))
    return f"the {_NAMES[one.metric]} by {value} [{low}, {high}]"


def _direction(metrics: Metrics, intervals: dict[str, Interval]) -> str:
    gap = 100 * (metrics.mean_confidence - metrics.accuracy)
    if abs(gap) < 1:
        text = "On average it promises what it keeps, within one point"
    else:
        word = "more" if gap > 0 else "less"
        text = f"On average it promises {abs(gap):.1f} points {word} than it keeps"
    # An average hides what cancels out.
    if all(intervals.get(part, (0.0, 0.0))[0] > 0 for part in ("over_ece", "under_ece")):
        over, under = 100 * metrics.over_ece, 100 * metrics.under_ece
        text += (
            f": {over:.1f} points too much where it is over-confident, and {under:.1f} too little "
            "where it is under-confident"
        )
    return f"{text}."


@dataclass(frozen=True)
class _Classes:
    """What the rows tell of each predicted class."""

    off: tuple[GroupMetrics, ...]  # beyond doubt by more than NARROW, the worst first
    unclear: int  # have too few rows to tell
    n: int  # that are predicted at all

    @classmethod
    def of(cls, groups: Sequence[GroupMetrics], level: float) -> "_Classes":
        """Judge every class at a level that holds for all of them together (Bonferroni)."""
        predicted = [group for group in groups if group.n]
        off: list[tuple[float, GroupMetrics]] = []
        unclear = 0
        for group in predicted:
            if group.accuracy is None or group.mean_confidence is None:
                continue
            ends = wilson(group.accuracy, group.n, 1 - (1 - level) / len(predicted))
            gaps = [group.mean_confidence - end for end in ends]
            least = 0.0 if min(gaps) < 0 < max(gaps) else min(map(abs, gaps))
            if least > NARROW:
                off.append((least, group))
            elif max(map(abs, gaps)) > NARROW:
                unclear += 1
        worst_first = sorted(off, key=lambda entry: -entry[0])
        return cls(tuple(group for _, group in worst_first), unclear, len(predicted))

    def sentences(self) -> list[str]:
        """Return the worst class, or how many could not be told, for more than one class."""
        margin = f"{100 * NARROW:.0f} points"
        if self.off:
            worst = self.off[0]
            more = f" {len(self.off)} of {self.n} classes are off by more than {margin}."
            return [
                f"Where {worst.name} is predicted it promises {worst.mean_confidence:.0%} and "
                f"keeps {worst.accuracy:.0%}, on {worst.n} rows.{more}"
            ]
        if self.unclear:
            return [
                f"No predicted class is shown to be off by more than {margin}, but {self.unclear} "
                f"of {self.n} have too few rows to tell."
            ]
        return []


def _expected(content: ReportContent) -> Verdict:
    found = content.calibration
    sentences = [
        f"No label of target {content.settings.split} rows is known, so nothing here is measured: "
        "it is expected."
    ]
    sentences += _confidences(found)
    labels = found.estimates.get("labelled")
    if labels is not None:
        sentences.append(
            f"By labels of other rows, which the calibration was fitted to, its ECE is "
            f"{labels['ece']:.1%} ({labels['ece_low']:.1%} to {labels['ece_high']:.1%}), each row "
            "judged by a fit without it."
        )
    if content.estimation is not None:
        best = content.estimation.estimates[0]
        sentences.append(
            f"The classifier is expected to get {best.accuracy:.1%} of the target right (range "
            f"{best.low:.1%} to {best.high:.1%}: {best.interval})."
            f"{'' if best.bounds else ' That is too wide to be of use.'}"
        )
    failed = [guard for guard in found.guards if not guard.passed]
    sentences += [f"A guard did not pass: {guard.sentence}." for guard in failed]
    sentences.append(
        "No number without labels can see a change of the concept itself. covcal pick draws target "
        "rows to label, of which fifty tell much, and covcal evaluate measures on a few hundred."
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
        "equals, on average, the share of right answers."
    ]
