"""Decide the verdict of a report: advice, and its reasons.

With target labels, the verdict states only significant results. Every class is tested, because an
average can hide a class with a wrong confidence. Without labels, the verdict uses the estimated
accuracy, and says that nothing was measured.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from shlex import quote
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from covcal_cli.calibrate.methods import AUTO
from covcal_cli.data.classes import listed
from covcal_cli.errors import in_percent, interval, percent, short_percent
from covcal_cli.estimators.inputs import ESTIMATED
from covcal_cli.evaluate.bootstrap import Difference
from covcal_cli.evaluate.claims import ClassGaps, MeanGap, direction_of, ece_sentence, points
from covcal_cli.evaluate.evaluate import EvaluateSettings
from covcal_cli.evaluate.result import UNCALIBRATED, DecisionMetrics, Evaluation
from covcal_cli.files import as_word
from covcal_cli.forecast import NONE
from covcal_cli.formats.calibration import CONTRADICTED, Calibration
from covcal_cli.formats.decision import Decision
from covcal_cli.formats.features import ALL, FEATURES_FILE, ONE_CONFIDENCE, ONE_TABLE, OPTIONS
from covcal_cli.labels.draws import FOR_DECISION, Batch
from covcal_cli.labels.score import region_of
from covcal_cli.maths.odds import wilson
from covcal_cli.maths.source_accuracy import SourceAccuracy
from covcal_cli.records import parsed_json

if TYPE_CHECKING:
    from covcal_cli.calibrate.estimate import Estimation

DEFAULTS = EvaluateSettings(resamples=1000)
_REPORT_OPTIONS = {
    "split": "--split",
    "bins": "--bins",
    "resamples": "--bootstrap",
    "seed": "--seed",
}
_EVALUATE_OPTIONS = _REPORT_OPTIONS | {"predictions": "--predictions", "by": "--by"}


@dataclass(frozen=True)
class ReportContent:
    """Everything that a report shows."""

    path: Path
    documents: tuple[Path, ...]
    calibrations: Mapping[str, Calibration]
    evaluation: Evaluation | None  # None without target labels.
    estimation: "Estimation | None"  # None if there are too few rows.
    attributes: Mapping[str, str]
    origins: Mapping[Path, Mapping[str, str]]
    rows: Mapping[str, str]
    source_accuracy: SourceAccuracy | None
    settings: EvaluateSettings
    networks: Path | None
    notes: tuple[str, ...]
    decision: Decision | None = None
    decided: Path | None = None
    names: tuple[str, ...] = ()
    batches: Mapping[Path, tuple[Batch, ...]] = field(default_factory=dict)
    # The content for each label, if rows can have several labels. The other fields describe the
    # first label.
    labels: Mapping[str, "ReportContent"] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the first calibration."""
        return next(iter(self.calibrations))

    @property
    def reading(self) -> str | None:
        """A sentence about the source accuracy."""
        if self.source_accuracy is None:
            return None
        doubt = self.source_accuracy.doubt
        warning = f" Warning: {doubt}." if doubt else ""
        return (
            f"The classifier gets {self.source_accuracy} right. Compare this with the "
            f"accuracy that you measured in training.{warning}"
        )

    @property
    def calibration(self) -> Calibration:
        """The first calibration."""
        return self.calibrations[self.name]


def commands(content: ReportContent) -> list[str]:
    """Return the commands that reproduce this report.

    Words in capitals, such as SOURCE, stand for unknown names.
    """
    fitted = [calibration.inputs[0].path for calibration in content.calibrations.values()]
    lines: dict[str, None] = {}
    for path in (content.path, *fitted):
        attributes = content.attributes if path == content.path else content.origins.get(path)
        if attributes is not None:
            lines |= dict.fromkeys(_extract_and_adapt(path, attributes))
    for document, calibration in zip(content.documents, content.calibrations.values(), strict=True):
        path = calibration.inputs[0].path
        same = path == content.path or path not in content.origins
        fitted_to = as_word(content.path if same else path)
        labels = _label(content, content.path if same else path, calibration)
        lines |= dict.fromkeys(labels)
        command = _calibrate(fitted_to, document, calibration)
        if not labels and calibration.method == AUTO and calibration.labelled_rows is None:
            command += " --labels none" * any(line.startswith("covcal label") for line in lines)
        lines[command] = None
    file = as_word(content.path)
    rows_file = content.path if content.decision is None else content.decision.rows_file
    lines |= dict.fromkeys(_label(content, rows_file))
    last = [] if content.decision is None else _decide(content, content.decision)
    options = " ".join(
        f"-c {as_word(f'{name}={document}' if name else document)}"
        for name, document in zip_longest(content.names, content.documents)
    )
    if content.networks is not None:
        options += f" --networks {as_word(content.networks)}"
    if content.decided is not None:
        options += f" --decide {as_word(content.decided)}"
    if content.settings.allow_other_preprocessing:
        options += " --allow-other-preprocessing"
    if content.evaluation is not None:
        changed = _changed(_EVALUATE_OPTIONS, content.settings, EvaluateSettings())
        last.append(f"covcal evaluate {file} {options}{changed}")
    changed = _changed(_REPORT_OPTIONS, content.settings, DEFAULTS)
    return [*lines, *last, f"covcal report {file} {options} -o report.html{changed}"]


def _label(content: ReportContent, path: Path, fit: Calibration | None = None) -> list[str]:
    """Return the commands for the labels in a file, or for the labels that a fit has seen."""
    batches, lines = content.batches.get(path, ()), []
    if fit is not None and not any(FOR_DECISION in text for text in fit.notes):
        rows = fit.labelled_rows
        is_marked = rows is not None and rows.design == "marked"
        if is_marked and not batches:
            return [f"covcal label {as_word(path)} CSV"]
        batches = batches[: len(rows.batches) if rows is not None and is_marked else 0]
    for number, batch in enumerate(batches, 1):
        pick, label = _pick(path, number, batch)
        if region_of(batch.score) is None:
            lines += [pick, label]
        elif content.decision is None:
            decide = f"covcal decide {as_word(path)} -c CALIBRATION --error ERROR -o DECISION"
            force = " --force" * (decide in lines)
            lines += [f"{decide}{force}", f"{pick} --for DECISION", label]
    return lines


def _pick(path: Path, number: int, batch: Batch) -> tuple[str, str]:
    file, sheet = as_word(path), f"CSV{'' if number == 1 else number}"
    splits = "" if batch.splits == ESTIMATED else "".join(f" --split {s}" for s in batch.splits)
    pick = f"covcal pick {file} -n {batch.drawn} -o {sheet}{splits}{_seed(batch.seed)}"
    return pick, f"covcal label {file} {sheet}"


def _decide(content: ReportContent, decision: Decision) -> list[str]:
    path, document = as_word(decision.rows_file), as_word(content.decided or "decide.json")
    decide = f"covcal decide {path} -c {as_word(decision.calibration.path)}"
    sets = decision.sets
    certainty: float | None = decision.certainty
    if certainty == 0.9 and (sets is None or sets.certainty is None):  # the default
        certainty = None
    coverage = None if sets is None else sets.coverage
    shares = {"--error": decision.error, "--set": coverage, "--certainty": certainty}
    decide += "".join(f" {name} {share!r}" for name, share in shares.items() if share is not None)
    if decision.cost is not None:
        decide += " --cost COSTS"
    for option, column in (("--by", decision.by), ("--promise-by", decision.promise_by)):
        if column is not None:
            decide += f" {option} {quote(column)}"
    if decision.covers == "these rows":
        decide += " --these-rows"
    if content.networks is not None:
        decide += f" --networks {as_word(content.networks)}"
    decide += f" -o {document}"
    lines: list[str] = []
    for number, batch in enumerate(content.batches.get(decision.rows_file, ()), 1):
        if region_of(batch.score) is not None:
            pick, label = _pick(decision.rows_file, number, batch)
            again = " --force" if lines else ""
            lines += [f"{decide}{again}", f"{pick} --for {document}", label]
    return [*lines, f"{decide}{' --force' if lines else ''}"]


def _extract_and_adapt(path: Path, attributes: Mapping[str, str]) -> list[str]:
    is_adapted = FEATURES_FILE in attributes
    features = path.parent / attributes[FEATURES_FILE] if is_adapted else path
    try:
        options = [str(option) for option in parsed_json(attributes[OPTIONS])]
    except (KeyError, ValueError, TypeError):
        seed = attributes.get("extract_seed" if is_adapted else "seed", "0")
        options = [] if seed == "0" else ["--seed", seed]
    tables = {"--logits", "--probabilities", "--confidence"} & set(options)
    model = [] if tables else [attributes.get("model_name") or "MODEL"]
    if ONE_TABLE in attributes:
        data = ["TABLE"]
    else:
        alone = "target_rows" in attributes and "source_rows" not in attributes
        data = ["--target", "TARGET"] if alone else ["SOURCE", "TARGET"]
    words = ["covcal", "extract", *model, *data, "-o", str(features), *options]
    lines = [" ".join(map(quote, words))]
    if is_adapted:
        words = ["--preset", attributes["preset"], "--members", attributes["members"]]
        if "weight_decay" in attributes:
            words += ["--weight-decay", attributes["weight_decay"]]
        if attributes.get("threads", "1") != "1":
            words += ["--threads", attributes["threads"]]
        adapt = f"covcal adapt {as_word(features)} -o {as_word(path)}"
        lines.append(" ".join([adapt, *map(quote, words)]) + _seed(attributes["seed"]))
    return lines


def _changed(
    options: Mapping[str, str], settings: EvaluateSettings, defaults: EvaluateSettings
) -> str:
    values = {option: getattr(settings, name) for name, option in options.items()}
    standard = {option: getattr(defaults, name) for name, option in options.items()}
    differing = (option for option in values if values[option] != standard[option])
    return "".join(f" {option} {quote(str(values[option]))}" for option in differing)


def _calibrate(file: str, document: Path, calibration: Calibration) -> str:
    output = f"-o {as_word(document)}{_seed(calibration.seed)}"
    if calibration.fit.get("at_limit"):
        output += " --force"
    loss = "" if calibration.loss == "brier" else f" --loss {calibration.loss}"
    if calibration.labelled_rows is not None:
        rows = calibration.labelled_rows
        labels = f" --labels {rows.n if rows.design == 'random' else rows.design}"
        labels *= calibration.method != AUTO  # auto leaves out labels for a decision
        return f"covcal calibrate {file}{labels}{loss} {output}"
    options = f"--method {calibration.method}{loss}"
    if calibration.max_weight != 1000:
        options += f" --max-weight {calibration.max_weight!r}"
    prior = calibration.target_prior.name
    if prior != "source":
        options += f" --target-prior {quote(str(prior))}"
    return f"covcal calibrate {file} {options} {output}"


def _seed(seed: object) -> str:
    return "" if str(seed) == "0" else f" --seed {seed}"


Tone = Literal["good", "mixed", "bad"]
# An ECE below NEGLIGIBLE does not matter. An ECE is good if its interval ends below NARROW.
NEGLIGIBLE, NARROW = 0.01, 0.05
# Smallest change that matters. If every confidence is wrong by NARROW, the Brier score rises by at
# least NARROW^2, and the log loss by at least 2 NARROW^2 (Pinsker's inequality).
_SMALL = {"ece": NEGLIGIBLE, "brier": NARROW**2, "nll": 2 * NARROW**2}
WIDE = 0.2  # maximum width of a useful range of the accuracy
_NAMES = {"ece": "ECE", "brier": "Brier score", "nll": "log loss"}
_NAMED = 4
_END_OF_FACT = re.compile(r"[.:;] ")  # A warning begins with the fact, and details follow.
_TONES: tuple[Tone, ...] = ("good", "mixed", "bad")
_ADVICE = (
    "Trust the confidence for {labels}.",
    "Nothing is proved about the confidence for {labels}.",
    "Do not trust the confidence for {labels}.",
)
_USE_LABEL = (
    "Calibration does not change the predicted class: use the columns label and confidence, and "
    "review rows with a confidence below 50 % first."
)
BASIS = "This verdict uses no target labels: covcal evaluate measures with labels"
_LABELS_HELP = "Label about 50 rows to estimate the accuracy, or a few hundred rows to measure it."


@dataclass(frozen=True)
class Verdict:
    """Advice, and the sentences that give its reasons."""

    tone: Tone
    headline: str
    sentences: tuple[str, ...]


def verdict(content: ReportContent) -> Verdict:
    """Return the verdict on the decision and the first calibration.

    For several labels, the verdict is on the worst label.
    """
    if content.labels:
        return _of_labels(content.labels)
    result, decision = _of_confidence(content), content.decision
    if decision is None or not decision.accepts_rows:
        return result
    is_of_file = decision.rows_file.resolve() == content.path.resolve()
    limit, certainty = short_percent(decision.error or 0.0), short_percent(decision.certainty)
    measured = None if content.evaluation is None else content.evaluation.decision
    if measured is not None and measured.accepted_error is not None and decision.error is not None:
        low, _ = wilson(measured.accepted_error, measured.accepted, decision.certainty)
        if low > decision.error:
            promises = "promises" if decision.is_promise else "expects"
            wrong = f"{measured.wrong} of {measured.accepted} accepted rows with a label"
            doubt = (
                f"{content.decided} {promises} that at most {limit} of the accepted rows are "
                f"wrong. But {wrong} are wrong."
            )
            return replace(result, sentences=(doubt, *result.sentences))
    if not decision.is_promise or not is_of_file or class_order_action(content.calibration):
        more = "" if decision.is_promise or not decision.share else " This is not a promise."
        if not is_of_file:
            more += f" The decision is about rows of {decision.rows_file}, not of {content.path}."
        elif measured is not None and measured.accepted_error is not None:
            more += f" {accepted_sentence(measured)}"
        return replace(result, sentences=(f"{sentence(decision)}{more}", *result.sentences))
    group = "" if decision.promise_by is None else " of every group"
    headline = (
        f"You may accept {in_percent(decision.share)} % of the rows: at most {limit} of these "
        f"rows{group} are wrong ({certainty} certainty)"
    )
    if result.tone != "good":
        headline += ". Do not rely on the confidence of rows that are not accepted"
    tone: Tone = "mixed" if result.tone == "bad" else result.tone
    return Verdict(tone, headline, (f"{result.headline}.", *result.sentences))


def _of_confidence(content: ReportContent) -> Verdict:
    if content.evaluation is None:
        return _expected(content)
    return _measured(content, content.evaluation)


def sentence(decision: Decision) -> str:
    """Return a sentence about the accepted rows of a decision, and about their error."""
    if not decision.accepts_rows:
        return "The decision gives each row a set of classes."
    limit = None if decision.error is None else short_percent(decision.error)
    if not decision.share:
        if limit is None:
            return "No row is accepted."
        return f"No row is accepted at an error of at most {limit}."
    above = decision.threshold
    least = "the threshold of their group" if above is None else short_percent(above)
    rows = (
        f"Rows with a confidence above {least} are accepted: {percent(decision.share)} of "
        f"{decision.counted}."
    )
    if decision.is_promise:
        certainty = short_percent(decision.certainty)
        of = "these rows" if above is not None else "these rows of every group"
        return f"{rows} At most {limit} of {of} are wrong, with {certainty} certainty."
    if limit is None:
        rows += " The estimated cost is lowest if these rows are accepted."
    expected = ""
    if decision.expected is not None:
        error = decision.expected
        ends = interval(error.low, error.high, error.error)
        expected = (
            f" An estimate expects {in_percent(error.error)} % of these rows to be wrong ({ends})."
        )
    return f"{rows}{expected}{'' if limit is None else f' The limit is {limit}.'}"


def accepted_sentence(measured: DecisionMetrics) -> str:
    """Return a sentence about the measured share and error of the accepted rows."""
    return (
        f"On {measured.n} labelled rows, {percent(measured.accepted_share)} are accepted. "
        f"{percent(measured.accepted_error)} of the accepted rows are wrong."
    )


def _of_labels(labels: Mapping[str, ReportContent]) -> Verdict:
    verdicts = {label: _of_confidence(content) for label, content in labels.items()}

    def badness(label: str) -> tuple[int, bool, float]:
        content = labels[label]
        is_doubtful = content.evaluation is None and bool(content.calibration.warnings)
        return _TONES.index(verdicts[label].tone), is_doubtful, off(content)

    worst, sentences = max(labels, key=badness), []
    for tone, advice in zip(_TONES, _ADVICE, strict=True):
        names = [label for label in labels if verdicts[label].tone == tone]
        if names:
            sentences.append(advice.format(labels=listed(names)))
    measured = [content.evaluation for content in labels.values() if content.evaluation is not None]
    if len(measured) < len(labels):
        names = [label for label, content in labels.items() if content.evaluation is None]
        label_names = "any label" if not measured else listed(names)
        split = labels[worst].settings.split or "test"
        follows = f"{label_names} is not measured" if measured else "nothing is measured"
        sentences.append(
            f"No target {split} row has a value for {label_names}, so {follows}. {_LABELS_HELP}"
        )
    if measured:
        before, after = (
            points(fmean(evaluation.metrics[name].ece for evaluation in measured))
            for name in (NONE, labels[worst].name)
        )
        sentences.append(
            f"On average over the labels, the calibration error (ECE) is {before} points before "
            f"calibration and {after} after."
        )
    headline = f"The worst of {len(labels)} labels is {worst}. {verdicts[worst].headline}"
    return Verdict(verdicts[worst].tone, headline, tuple(sentences))


def off(content: ReportContent) -> float:
    """Return the ECE after calibration, which is estimated if there are no labels."""
    if content.evaluation is not None:
        return content.evaluation.metrics[content.name].ece
    after = content.calibration.target_confidence[1]
    if after is None or content.estimation is None:
        return 0.0
    return abs(after - content.estimation.estimates[0].accuracy)


def _measured(content: ReportContent, evaluation: Evaluation) -> Verdict:
    name = content.name
    classes = ClassGaps.of(evaluation.classes.get(name, ()), evaluation.level)
    accuracy = percent(evaluation.metrics[name].accuracy, 1)
    sentences = [
        f"Measured on {evaluation.n} labelled target rows. The classifier gets {accuracy} of "
        f"these {measured_rows(evaluation)} right.{_left_out(evaluation)}",
        *_errors(evaluation, name),
        *_compared(_differences(evaluation, name)),
        *_better(evaluation, name, content.calibrations),
        *_overtaken(evaluation, name),
    ]
    if "ece" in evaluation.intervals.get(name, {}) and classes.n > 1:
        sentences += [_sentence(text) for text in (classes.worst, classes.count) if text]
    action = class_order_action(content.calibration) or measured_action(evaluation, name)
    return Verdict(*action, tuple(sentences))


def measured_rows(evaluation: Evaluation) -> str:
    """Return the name of the measured rows, such as "test rows"."""
    return "rows of all splits" if evaluation.split == ALL else f"{evaluation.split} rows"


def _differences(evaluation: Evaluation, name: str, against: str = NONE) -> list[Difference]:
    changes = (evaluation.difference(name, against, metric) for metric in _NAMES)
    return [change for change in changes if change is not None]


def measured_action(evaluation: Evaluation, name: str) -> tuple[Tone, str]:
    """Return the tone and the headline of a verdict on labelled rows."""
    evaluation = evaluation.judged
    level = evaluation.level
    gap = MeanGap.of(evaluation.metrics[name].bins, level)
    classes = ClassGaps.of(evaluation.classes.get(name, ()), level)
    least, most = evaluation.intervals[name]["ece"]
    changes = _differences(evaluation, name)
    directions = {change.direction for change in changes} - {0}
    gain = max((-change.value for change in changes if change.metric == "ece"), default=0.0)
    is_worse = directions == {1}
    matters = any(change.direction == 1 and is_large(change) for change in changes)
    if is_worse and matters and evaluation.intervals[NONE]["ece"][0] < NEGLIGIBLE:
        return "bad", f"Do not use {name} here: it makes the confidence worse"
    ece = f"{points(least)} to {points(most)} points"
    if least >= NARROW or (gap.direction and least >= NEGLIGIBLE):
        off = f"has a calibration error (ECE) of {ece}"
        if gap.direction:
            off = f"is {gap.sentence} on average"
        if directions == {-1} and gain >= NEGLIGIBLE:
            return "mixed", f"Do not rely on the confidence: calibration improved it, but it {off}"
        worse = f", and {name} makes it worse" if is_worse and matters else ""
        return "bad", f"Do not trust the confidence: it {off}{worse}"
    if classes.off:
        return "bad", f"Do not trust the confidence {where_off(classes)}"
    little = (
        f". {name} makes the confidence worse, but too little to matter"
        if is_worse and not matters
        else ""
    )
    if most < NARROW:
        return "good", (
            f"Use this confidence: the calibration error (ECE) is at most {points(most)} "
            f"points{little}"
        )
    error = f"the confidence may be off by up to {points(most)} points"
    if least >= NEGLIGIBLE:
        error = f"the calibration error (ECE) is {ece}"
    few = "1 row is too few" if evaluation.n == 1 else f"{evaluation.n} rows are too few"
    action = "Label more rows"
    if evaluation.in_all_splits:
        action = f"Measure all {evaluation.in_all_splits:,} labelled rows with --split all"
    return "mixed", f"{action}: {error}, and {few} to prove a smaller error{little}"


def no_calibration(evaluation: Evaluation) -> str:
    """Return a sentence if the user gave no calibration, else ""."""
    if any(entry.role == "calibration" for entry in evaluation.inputs):
        return ""
    path = evaluation.inputs[0].path
    document = path.parent / "cal.json"
    remedy = f". To measure {document}, pass -c {as_word(document)}" if document.is_file() else ""
    return f"{UNCALIBRATED}, because no calibration was given with -c{remedy}"


def is_large(change: Difference) -> bool:
    """Return whether a change of ECE, Brier score or log loss is large enough to matter."""
    return abs(change.value) >= _SMALL[change.metric]


def where_off(classes: ClassGaps) -> str:
    """Name the classes with a wrong confidence, as in ``where 3 is predicted (too high)``."""
    named = classes.off[:_NAMED]
    parts: list[str] = []
    for word in ("too high", "too low"):
        names = [group.name for group in named if direction_of(group) == word]
        if names:
            either = " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
            parts.append(f"where {either} is predicted ({word})")
    rest = len(classes.off) - len(named)
    if rest:
        parts.append(f"for {rest} more classes" if rest > 1 else "for one more class")
    return ", or ".join(parts)


def _left_out(evaluation: Evaluation) -> str:
    counts = {
        "without a label": evaluation.unlabelled,
        "with labels that a calibration was fitted to": evaluation.left_out,
    }
    parts = [f"{count} {reason}" for reason, count in counts.items() if count]
    return f" Left out: {' and '.join(parts)}." if parts else ""


def _errors(evaluation: Evaluation, name: str) -> list[str]:
    sentences = []
    for calibration in dict.fromkeys((NONE, name)):
        before = calibration == NONE and name != NONE
        after_calibration = (
            "Before calibration"
            if before
            else f"After calibration ({name})"
            if name != NONE
            else "Without calibration"
        )
        ece = evaluation.intervals.get(calibration, {}).get("ece")
        if ece is None:
            error = f"{points(evaluation.metrics[calibration].ece)} points, without an interval"
            sentences.append(
                f"{after_calibration}, the measured calibration error (ECE) is {error}."
            )
            continue
        gap = MeanGap.of(evaluation.metrics[calibration].bins, evaluation.level)
        sentences.append(
            f"{after_calibration}, the calibration error (ECE) is {ece_sentence(ece)} "
            f"({short_percent(evaluation.level)} interval). {_average(gap)}."
        )
    return sentences


def _overtaken(evaluation: Evaluation, name: str) -> list[str]:
    metrics = evaluation.metrics[name]
    if name == NONE or not metrics.has_all_classes or evaluation.predictions != "original":
        return []
    rows = round((1 - metrics.agreement) * metrics.n)
    if rows == 0:
        return []
    return [
        f"In {rows:,} of {metrics.n:,} rows, the predicted class is no longer the most probable "
        f"class, so the prediction is probably wrong. {_USE_LABEL}"
    ]


def _average(gap: MeanGap) -> str:
    sentence = gap.sentence
    return (
        f"On average the confidence is {sentence}"
        if gap.direction
        else sentence[:1].upper() + sentence[1:]
    )


def _compared(changes: Sequence[Difference]) -> list[str]:
    if not changes:
        return []
    worse, better = (
        " and ".join(_NAMES[change.metric] for change in changes if change.direction == direction)
        for direction in (1, -1)
    )
    if worse and better:
        conclusion = f"the calibration has a better {better}, but a worse {worse}"
    elif worse:
        conclusion = f"the calibration has a worse {worse}"
    elif better:
        conclusion = f"the calibration has a better {better}"
    else:
        conclusion = "the calibration is not significantly better or worse"
    if (worse or better) and not any(change.direction and is_large(change) for change in changes):
        conclusion += ", but the change is too small to matter"
    return [f"Compared with the uncalibrated classifier on the same rows, {conclusion}."]


def _better(evaluation: Evaluation, name: str, calibrations: Iterable[str]) -> list[str]:
    sentences = []
    for candidate in calibrations:
        changes = _differences(evaluation, candidate, name)
        better = [_NAMES[change.metric] for change in changes if change.direction == -1]
        if better and not any(change.direction == 1 for change in changes):
            sentences.append(
                f"On the same rows, {candidate} is better than {name} ({listed(better)}): "
                f"prefer {candidate}."
            )
    return sentences


def _expected(content: ReportContent) -> Verdict:
    calibration = content.calibration
    sentences = [
        f"No {content.settings.split or 'test'} row of the target has a label, so nothing "
        "here is measured."
    ]
    ends = None
    if content.estimation is not None:
        best = content.estimation.estimates[0]
        ends = best.low, best.high
        sentences.append(
            f"Estimated accuracy on the target: {percent(best.accuracy, 0)} (between "
            f"{100 * best.low:.0f} and {percent(best.high, 0)}). {basis(content.estimation)} "
            f"{_sentence(best.interval)}"
        )
    before, after = calibration.target_confidence
    if before is not None and after is not None:
        sentences.append(
            f"Mean confidence on the target: {percent(before, 0)} before calibration, "
            f"{percent(after, 0)} after. The confidence should equal the accuracy."
        )
    labelled = calibration.estimates.get("labelled")
    if labelled is not None:
        sentences.append(
            f"On the rows that you labelled, the ECE is {points(labelled['ece_low'])} to "
            f"{points(labelled['ece_high'])} points. Each row was tested with a calibration fitted "
            "to the other rows."
        )
    has_all_classes = calibration.reading.get("tail") != ONE_CONFIDENCE
    if calibration.scaling.can_move_the_top and has_all_classes:
        sentences.append(
            "In some rows, the predicted class may no longer be the most probable class. "
            f"{_USE_LABEL}"
        )
    sentences += [f"Warning: {_sentence(warning)}" for warning in calibration.warnings]
    sentences.append(
        "Label a few hundred other rows to measure the error of every class."
        if labelled is not None
        else f"Only labels can show whether the right label of an input has changed. {_LABELS_HELP}"
    )
    return Verdict(*unmeasured_action(calibration, ends), tuple(sentences))


def basis(estimation: "Estimation") -> str:
    """Return a sentence about the rows and labels on which the estimated accuracy is based."""
    rows = f"{estimation.target_rows:,} target {' and '.join(ESTIMATED)} rows"
    if estimation.labelled_rows is None:
        return f"The estimate uses {rows}, without labels."
    return f"The estimate uses {estimation.labelled_rows.n} labels and {rows}."


def unmeasured_action(
    calibration: Calibration, ends: tuple[float, float] | None = None
) -> tuple[Tone, str]:
    """Return the tone and the headline of a verdict for rows without labels.

    `ends` is the range of the estimated accuracy, by default the range in the calibration.
    """
    wrong_order = class_order_action(calibration)
    if wrong_order is not None:
        return wrong_order
    count, estimates = len(calibration.warnings), calibration.estimates
    if ends is None and "accuracy" in estimates:
        ends = estimates["accuracy_low"], estimates["accuracy_high"]
    if count:
        rows = "50 rows first" if calibration.labelled_rows is None else "more rows"
        (first, *_) = _END_OF_FACT.split(calibration.warnings[0])
        if first == CONTRADICTED:
            return "bad", f"Do not trust the confidence: {first}"
        if first.count("(") > first.count(")"):
            first = first[: first.rindex("(")].rstrip()
        number = "" if count == 1 else f" (the first of {count} warnings)"
        return "mixed", f"Label {rows}: {first}{number}"
    if calibration.labelled_rows is not None:
        return "mixed", (
            f"Use the calibration, which is fitted to {calibration.labelled_rows.n} labels. "
            "Measure the calibration on other labelled rows when you can"
        )
    if ends is None:
        return "mixed", "Label 50 rows first: the accuracy on the target is not estimated"
    low, high = ends
    if high - low > WIDE:
        ends_in_words = f"{100 * low:.0f} to {percent(high, 0)}"
        return "mixed", f"Label 50 rows first: the estimated accuracy is rough ({ends_in_words})"
    before, after = calibration.target_confidence
    if before is not None and after is not None and after - before > NARROW:
        return "mixed", (
            "Label 50 rows first: the calibration raises the confidence by "
            f"{points(after - before)} points, but no target label has confirmed this rise"
        )
    return "mixed", "You can use the calibration, but no label has tested it yet: label some rows"


def asks_for_labels(headline: str) -> bool:
    """Return whether the headline of a verdict asks for labels."""
    return headline.startswith("Label")


def class_order_action(calibration: Calibration) -> tuple[Tone, str] | None:
    """Return the tone and the headline if the class order seems wrong, else None."""
    accuracy = calibration.source_accuracy
    if accuracy is None or accuracy.class_order is None:
        return None
    if accuracy.negated is not None:
        fault, remedy = "the outputs are negated", "Change the sign of the outputs"
    else:
        fault = "the classes seem to be in the wrong order"
        remedy = "Name the classes in the model's order with --classes"
    return "bad", f"Do not use this calibration, because {fault}. {remedy}, and extract again"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
