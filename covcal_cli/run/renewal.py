"""``covcal run --from``: calibrate again for new target rows, and keep the better calibration.

The source rows are taken from the earlier run. All results are made in the subfolder ``next/``.
Then both calibrations are compared on the new rows. If the new rows have labels, the new
calibration is used if the labels prove that it is better. However, the new calibration is not used
if the labels prove that its confidence is far from the accuracy. Without labels, the new
calibration is used only at the user's request.

New rows that raised an alarm of ``covcal watch`` may not be normal. After an alarm, the new
calibration gets the reference data of the earlier calibration.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from covcal_cli.calibrate.estimate import expect
from covcal_cli.errors import CovcalError, TooFewRowsError, UnlabelledError
from covcal_cli.evaluate.claims import MARGIN, MeanGap
from covcal_cli.evaluate.evaluate import EvaluateSettings, evaluate
from covcal_cli.files import as_word
from covcal_cli.formats.calibration import read_calibration
from covcal_cli.formats.features import ALL, OPTIONS, FeatureFile, labels_in
from covcal_cli.progress import ProgressCallback
from covcal_cli.records import parsed_json
from covcal_cli.run.journal import (
    CALIBRATION,
    FEATURES,
    JOURNAL,
    NEXT,
    Journal,
    data_digest,
    finish_placing,
    own_path,
    place,
)
from covcal_cli.run.run import (
    RESAMPLES,
    WITH_WEIGHTS,
    Earlier,
    RunReport,
    RunSettings,
    Step,
    Steps,
    all_after,
    results_folder,
)
from covcal_cli.watch.period import WatchSettings
from covcal_cli.watch.reference import read_reference
from covcal_cli.watch.watch import watch

LEAST_LABELS = 50  # Minimum number of labels for a reliable interval.
_OLD, _NEW = "in use", "new"


@dataclass(frozen=True)
class LabelledComparison:
    """Metrics of both calibrations on the same labelled target rows."""

    labels: int  # Number of labelled rows.
    old: float  # ECE of the old calibration.
    new: float
    low: float  # Lower end of the interval for (new ECE - old ECE).
    high: float
    brier_is_worse: bool  # Whether the new Brier score is significantly higher.
    gap: MeanGap  # Mean confidence minus accuracy, with the new calibration.

    @property
    def is_better(self) -> bool:
        """Whether the labels prove that the new calibration is better."""
        return self.labels >= LEAST_LABELS and self.high < 0 and not self.brier_is_worse

    @property
    def is_off(self) -> bool:
        """Whether the labels prove that the confidence of the new calibration is far off."""
        return self.gap.low > MARGIN or self.gap.high < -MARGIN

    @property
    def is_worse(self) -> bool:
        """Whether the labels prove that the new calibration is worse."""
        return self.labels >= LEAST_LABELS and (self.low > 0 or self.brier_is_worse)


@dataclass(frozen=True)
class Comparison:
    """Confidence, estimated accuracy and verdict for both calibrations on the new rows."""

    accuracy: float  # Accuracy, estimated without labels.
    low: float  # Lower end of the range for the accuracy.
    high: float
    old: float  # Mean confidence with the old calibration.
    new: float  # Mean confidence with the new calibration.
    answer: str  # The verdict of ``covcal watch`` on the old calibration, with its reason.
    change: str  # A sentence on how the rows have changed.
    is_alarm_raised: bool
    by_labels: LabelledComparison | None  # None without labels


@dataclass(frozen=True)
class Renewal:
    """The result of ``covcal run --from``."""

    report: RunReport
    comparison: Comparison | None  # None if the results for the new rows already existed.
    is_in_use: bool  # Whether the new calibration is now in use.
    second_names: tuple[Path, ...] = ()  # New names of the old results, such as cal.1.json.
    is_reference_kept: bool = False  # Whether the old reference data are used again.


def renew(
    model: str | Path | None,
    target: str | Path,
    folder: str | Path,
    settings: RunSettings,
    *,
    tell: Callable[[Step], None],
    begin: Callable[[str], None] = lambda _: None,
    history: Path | None = None,
    replace_unproved: bool = False,
    force: bool = False,
    progress: ProgressCallback | None = None,
) -> Renewal:
    """Run all steps for another target, and use the new results if they are better.

    - `model`: the classifier of the earlier run, perhaps under another name.
    - `target`: the new data.
    - `folder`: the folder of the earlier run.
    - `settings`: the settings of the earlier run; the method may differ.
    - `history`: a history of ``covcal watch``, as evidence about the old calibration. The new rows
      are appended as a period.
    - `replace_unproved`: use the new results even if there are no labels.
    - `force`: always use the new results, and accept a temperature at the limit of its range.
    - `tell`, `begin`, `progress`: as in `covcal_cli.run.run.run`.

    Raises `CovcalError` if the folder does not come from a run, or if the classifier or its
    preprocessing has changed.
    """
    folder, target = Path(folder), Path(target)
    _require_trusted(folder, model, settings)
    finish_placing(folder)
    earlier = earlier_run(folder)
    journal = Journal(folder)
    before = journal.given.get("target")
    if before is not None and before.sha256 == data_digest(target):
        steps = Steps(folder, settings, tell, progress, journal, False, force, folder)
        begin("extract")
        tell(Step(earlier.features, reused=True, messages=journal.messages(earlier.features)))
        return Renewal(all_after(steps, earlier.features, model, begin), None, is_in_use=True)
    with results_folder(own_path(folder, NEXT)) as new_folder:
        steps = Steps(
            new_folder, settings, tell, progress, Journal(new_folder), False, force, folder
        )
        begin("extract")
        features = steps.extract(model, None, target, earlier)
        report = all_after(steps, features, model, begin)
    begin("compare")
    period = f"{target.stem}={features}"
    comparison = compare(features, earlier.calibration, new_folder / CALIBRATION, period, history)
    by_labels = comparison.by_labels
    is_proved = by_labels is not None and by_labels.is_better and not by_labels.is_off
    if not (force or is_proved or (replace_unproved and by_labels is None)):
        return Renewal(report, comparison, is_in_use=False)
    is_asked_for = force or replace_unproved
    keeps_reference = comparison.is_alarm_raised and not is_asked_for
    if keeps_reference:
        reference = read_reference(read_calibration(earlier.calibration))
        if reference is not None:
            steps.carry_over(reference, new_folder / CALIBRATION)
    old = place(folder)
    steps = replace(steps, folder=folder, journal=Journal(folder))
    # The user has already seen the messages of the steps.
    report = all_after(replace(steps, tell=lambda _: None), folder / FEATURES, model)
    return Renewal(report, comparison, True, tuple(old), keeps_reference)


def earlier_run(folder: Path) -> Earlier:
    """Return the results of the run in a folder.

    Raises `CovcalError` if the folder does not come from a run, or if its features or its
    calibration have changed.
    """
    again = f"run covcal run MODEL SOURCE TARGET -o {as_word(folder)}"
    if not (folder / JOURNAL).is_file():
        raise CovcalError(f"{folder} has no {JOURNAL}, so covcal run did not make it: {again}")
    journal = Journal(folder)
    for name in (FEATURES, CALIBRATION):
        path = own_path(folder, name)
        if not journal.is_as_made(path):
            state = "has changed since covcal run made it" if path.exists() else "is not there"
            raise CovcalError(f"--from needs {path}, which {state}: {again}")
    if labels_in(folder / FEATURES):
        raise CovcalError(
            f"{folder} holds results of several labels, but --from is for one label: run "
            "covcal run MODEL SOURCE TARGET with another -o"
        )
    with FeatureFile(folder / FEATURES) as file:
        try:
            options = parsed_json(file.attributes[OPTIONS])
        except (KeyError, TypeError, ValueError) as error:
            raise CovcalError(f"{file.path} does not say how it was extracted: {again}") from error
    calibration = read_calibration(folder / CALIBRATION)
    return Earlier(
        folder / FEATURES,
        folder / CALIBRATION,
        journal.given,
        _model(folder, journal, options),
        tuple(map(str, options)),
        calibration.method,
        calibration.inputs[0].role == "adapted",
    )


def _model(folder: Path, journal: Journal, options: Sequence[object]) -> str | None:
    recorded = journal.given.get("model")
    if recorded is None:
        return None
    name = recorded.name
    if any(str(option).startswith("--weights=") for option in options):
        name = name.partition(WITH_WEIGHTS)[0]
    path = folder.resolve() / name
    if path.exists():
        return os.path.relpath(path)
    if _is_code(name):
        return name
    raise CovcalError(
        f"{folder} was made with the model {name}, which is missing: put the model back"
    )


def _is_code(name: str | None) -> bool:
    return name is not None and ":" in name and not Path(name).exists()


def _require_trusted(folder: Path, model: str | Path | None, settings: RunSettings) -> None:
    extraction = settings.extraction
    for name in (None if model is None else str(model), extraction.preprocess):
        if _is_code(name) and not extraction.trust_model:
            raise CovcalError(
                f"{folder} uses {name}, which can run any code: if you trust it, pass --trust-model"
            )


def compare(features: Path, old: Path, new: Path, period: str, history: Path | None) -> Comparison:
    """Compare two calibrations on the new rows."""
    # `expect` uses the class frequencies of the first calibration in its list.
    expectation = expect(features, [new, old], names=[_NEW, _OLD])
    estimate = expectation.estimation.estimates[0]
    confidences = {entry.name: entry.mean_confidence for entry in expectation.calibrations}
    is_alarm_raised = False
    try:
        settings = WatchSettings(target_labels=True)
        (judged,) = watch([Path(period)], old, settings, history=history, force=True).periods
        answer, change, is_alarm_raised = judged.answer, judged.change, judged.alarm.raised
    except TooFewRowsError:
        answer, change = "not known", "the calibration in use has too few rows to compare with"
    return Comparison(
        estimate.accuracy,
        estimate.low,
        estimate.high,
        confidences[_OLD],
        confidences[_NEW],
        answer,
        change,
        is_alarm_raised,
        measure(features, old, new),
    )


def measure(features: Path, old: Path, new: Path) -> LabelledComparison | None:
    """Measure two calibrations on all labelled target rows; None without labels.

    Rows whose labels were used for calibration are left out.
    """
    documents = [old, new]
    calibrations = dict(zip((_OLD, _NEW), map(read_calibration, documents), strict=True))
    settings = EvaluateSettings(split=ALL, resamples=RESAMPLES)
    try:
        evaluation = evaluate(features, calibrations, settings, documents=documents)
    except UnlabelledError:
        return None
    ece = evaluation.difference(_NEW, _OLD, "ece")
    brier = evaluation.difference(_NEW, _OLD, "brier")
    before, after = (evaluation.metrics[name].ece for name in (_OLD, _NEW))
    return LabelledComparison(
        evaluation.n,
        before,
        after,
        after - before if ece is None else ece.low,
        after - before if ece is None else ece.high,
        brier is not None and brier.low > 0,
        MeanGap.of(evaluation.metrics[_NEW].bins, evaluation.level),
    )
