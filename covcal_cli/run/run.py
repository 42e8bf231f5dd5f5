"""``covcal run``: make a calibrated model from a classifier and two domains, in one folder.

Each step runs one command, and writes one file with the default name. A file is made again only if
its settings or inputs have changed.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from covcal_cli import __version__
from covcal_cli.calibrate.calibrate import calibrate
from covcal_cli.calibrate.methods import AUTO, METHODS
from covcal_cli.calibrate.problem import CalibrateSettings
from covcal_cli.classifiers.classifier import OpenedClassifier
from covcal_cli.classifiers.open import open_classifier
from covcal_cli.errors import CovcalError, LimitExceededError, UnlabelledError
from covcal_cli.evaluate.evaluate import EvaluateSettings, evaluate
from covcal_cli.evaluate.gates import Gates, assess
from covcal_cli.evaluate.macro import LabelAssessments, assess_labels
from covcal_cli.evaluate.result import Evaluation, metrics_document
from covcal_cli.extract.settings import ExtractSettings
from covcal_cli.files import hidden_sibling, sha256_of
from covcal_cli.forecast import read_named, require_accuracy, source_accuracy
from covcal_cli.formats.calibration import Calibration, read_calibration
from covcal_cli.formats.features import ALL, FeatureFile, labels_in
from covcal_cli.formats.lineage import unmarked_sha256
from covcal_cli.multilabel import for_each_label, for_first_label, gathered
from covcal_cli.progress import ProgressCallback
from covcal_cli.records import of_labels, write_document
from covcal_cli.report.report import report
from covcal_cli.run.journal import (
    ADAPTED,
    CALIBRATION,
    FEATURES,
    JOURNAL,
    METRICS,
    PROBABILITIES,
    REFERENCE,
    REPORT,
    Journal,
    Messages,
    RunInput,
    data_digest,
    finish_placing,
    own_path,
    step_key,
)
from covcal_cli.watch.measurement import make_reference
from covcal_cli.watch.reference import Reference, identity_of
from covcal_cli.watch.sketches import sketched_rows

WITH_WEIGHTS = " with "  # Separates a model's name from its weights.
RESAMPLES = 1000
_RESULT_FREE = {"batch", "threads", "trust_model"}  # Settings that do not change results.
Make = Callable[[Path], Messages | None]  # A function that writes a result and returns messages.


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run. All steps use the seed of the extraction."""

    extraction: ExtractSettings = field(default_factory=ExtractSettings)
    method: str = AUTO  # The method of ``covcal calibrate``.
    adapt: bool = False  # Whether to run adapt even if the method does not need it.
    device: str = "auto"  # Device of ``covcal adapt``.
    # Expected accuracy on the source; a clearly lower accuracy stops the run.
    expect_accuracy: float | None = None

    def __post_init__(self) -> None:
        method = METHODS.get(self.method)
        if method is not None and method.needs_prior:
            raise CovcalError(
                f"method {self.method} needs a target prior, which covcal run does not take: "
                f"run covcal calibrate --method {self.method} --target-prior on the features"
            )
        if self.extraction.multilabel and self.adapts:
            raise CovcalError(
                "--multilabel does not work with --adapt or methods that adapt: leave out "
                "--adapt, and use another --method"
            )

    @property
    def adapts(self) -> bool:
        """Whether adapt is a step of this run."""
        method = METHODS.get(self.method)
        return self.adapt or (method is not None and method.needs_adapt)

    @property
    def seed(self) -> int:
        """The seed of every step."""
        return self.extraction.seed


@dataclass(frozen=True)
class Step:
    """One result of a run."""

    output: Path
    reused: bool  # Whether the result was up to date.
    messages: Messages


@dataclass(frozen=True)
class Earlier:
    """The results of an earlier run that a new run needs."""

    features: Path
    calibration: Path
    given: Mapping[str, RunInput]  # The inputs, with the keys "model", "source" and "target".
    model: str | None  # Path or ``module:function`` of the model; None for tables of outputs.
    options: tuple[str, ...]
    method: str  # The method that the user asked for.
    is_adapted: bool  # Whether the calibration was fitted on an adapted file.


@dataclass(frozen=True)
class Steps:
    """The steps of one run. Each step uses the results of earlier steps."""

    folder: Path
    settings: RunSettings
    tell: Callable[[Step], None]
    progress: ProgressCallback | None
    journal: Journal
    force: bool  # Whether to make every result again.
    allow_limit: bool  # Whether to accept a temperature at the limit of its range.
    home: Path  # Names of inputs are relative to this folder.

    def extract(
        self,
        model: str | Path | None,
        source: Path | None,
        target: Path,
        earlier: Earlier | None = None,
    ) -> Path:
        """Run the classifier on both domains, and return features.h5.

        With an `earlier` run, only the target is new: the source rows come from the earlier run.
        Raises `CovcalError` if the classifier, its classes or the preprocessing have changed.
        """
        from covcal_cli.extract.extract import extract
        from covcal_cli.extract.merge import merge_target
        from covcal_cli.extract.parts import was_stopped

        output, settings = own_path(self.folder, FEATURES), self.settings.extraction
        extracted, extraction, beside = output, settings, None
        # The hash of an opened model includes its external weights.
        opened = None if model is None else open_classifier(model, settings)
        sources = {}
        if opened is not None:
            sources["model"] = RunInput(self._model_name(str(model)), opened.sha256)
        if source is not None:
            sources["source"] = self._input(source)
        if earlier is not None:
            extracted, beside = own_path(self.folder, "target.h5"), earlier.features
            # The class names come from the calibration, because the source is not read again.
            extraction = replace(settings, classes=settings.classes or earlier.calibration)
            sources |= {role: data for role, data in earlier.given.items() if role == "source"}
            # Results in `next/` are not in use, so they may be replaced.
            self.journal.given = {}
        sources["target"] = self._input(target)
        self.journal.take(sources, force=self.force)
        inputs = {role: entry.sha256 for role, entry in sources.items()}
        if settings.classes is not None:
            inputs["classes"] = data_digest(settings.classes)
        if opened is not None:
            inputs["preprocessing"] = self._preprocessing(opened, model)
        relevant = {
            name: value for name, value in asdict(settings).items() if name not in _RESULT_FREE
        }
        goes_on = self.journal.was_begun(output, _key(inputs, relevant)) and was_stopped(extracted)

        def make(output: Path) -> Messages:
            report = extract(
                model,
                source,
                target,
                extracted,
                extraction,
                force=True,
                resume=goes_on,
                beside=beside,
                progress=self.progress,
            )
            if beside is not None:
                merge_target(beside, extracted, output)
                extracted.unlink()
            self.journal.discard_others(output)
            skipped = (entry for domain in report.domains for entry in domain.skipped)
            warnings = (*report.warnings, *(f"skipped {name}: {why}" for name, why in skipped))
            return Messages(warnings, report.notes, report.facts)

        return self._step(output.name, inputs, make, relevant)

    def _input(self, path: Path) -> RunInput:
        return RunInput(self._name(path), data_digest(path))

    def require_accuracy(self, features: Path, expected: float) -> None:
        """Stop if the source accuracy is clearly below the expected accuracy."""

        def require() -> None:
            with FeatureFile(features) as file:
                require_accuracy(source_accuracy(file), expected, features)

        try:
            for_each_label(labels_in(features), require)
        except LimitExceededError as error:
            earlier = [path.name for path in self.journal.others(features) if path.is_file()]
            if not earlier:
                raise
            raise LimitExceededError(
                f"{error}. An earlier run used the same features: do not use "
                f"{', '.join(earlier)} in {self.folder}"
            ) from error

    def _model_name(self, model: str) -> str:
        weights = self.settings.extraction.weights
        name = self._name(Path(model)) if Path(model).exists() else model
        return name if weights is None else f"{name}{WITH_WEIGHTS}{self._name(weights)}"

    def _preprocessing(self, opened: OpenedClassifier, model: str | Path | None) -> str:
        from covcal_cli.extract.plan import base_preprocessing

        try:
            preprocessing, _ = base_preprocessing(opened, self.settings.extraction, model)
        except CovcalError as error:  # ``covcal extract`` will report this error.
            return str(error)
        return preprocessing.to_json()

    def _name(self, path: Path) -> str:
        return Path(os.path.relpath(path.resolve(), self.home.resolve())).as_posix()

    def adapt(self, features: Path) -> Path:
        """Return adapted.h5."""
        settings: dict[str, Any] = {"seed": self.settings.seed, "device": self.settings.device}

        def make(output: Path) -> Messages:
            from covcal_cli.adapt.adapt import adapt
            from covcal_cli.adapt.settings import AdaptSettings

            report = adapt(
                features, output, AdaptSettings(**settings), force=True, progress=self.progress
            )
            return Messages(tuple(report.warnings))

        return self._step(ADAPTED, {"features": unmarked_sha256(features)}, make, settings)

    def calibrate(self, file: Path) -> tuple[Path, dict[str, Calibration]]:
        """Return cal.json and its calibrations by label; the label is "" if rows have one label."""
        settings: dict[str, Any] = {"method": self.settings.method, "seed": self.settings.seed}

        labels = labels_in(file)

        def fit() -> Calibration:
            return calibrate(file, CalibrateSettings(**settings, allow_limit=self.allow_limit))

        def make(output: Path) -> Messages:
            fitted = for_each_label(labels, fit)
            content = of_labels(fitted, output) if labels else fitted[""]
            write_document(content, output, force=True)
            warnings = gathered({label: label_fit.warnings for label, label_fit in fitted.items()})
            notes = gathered({label: label_fit.notes for label, label_fit in fitted.items()})
            return Messages(tuple(warnings), tuple(notes))

        document = self._step(CALIBRATION, {"file": sha256_of(file)}, make, settings)
        return document, for_each_label(labels, lambda: read_calibration(document))

    def reference(self, document: Path, calibration: Calibration) -> None:
        """Make the reference data for watch, if there are enough labelled rows."""
        sha256 = sha256_of(document)
        with FeatureFile(calibration.inputs[0].path) as opened:
            if sketched_rows(opened, calibration.seed) is None:
                return

        def make(output: Path) -> None:
            write_document(make_reference(calibration, document), output, force=True)

        self._step(REFERENCE, {"calibration": sha256}, make)

    def carry_over(self, earlier: Reference, document: Path) -> None:
        """Use the reference data of an earlier calibration for a new calibration."""
        sha256, path = sha256_of(document), own_path(self.folder, REFERENCE)
        reference = earlier.carried_over(identity_of(read_calibration(document)))
        write_document(reference, path, force=True)
        self.journal.record(path, _key({"calibration": sha256}, {}), Messages())

    def evaluate(self, file: Path, document: Path) -> Evaluation | LabelAssessments | None:
        """Write metrics.json and return its content; None without target labels."""
        settings, labels = self._judging(file), labels_in(file)
        evaluation: Evaluation | LabelAssessments
        try:
            if labels:
                assess_one = partial(assess, file, [document], settings)
                evaluation = assess_labels(labels, Gates(), assess_one)
            else:
                evaluation = evaluate(file, read_named([document]), settings, documents=[document])
        except UnlabelledError:
            own_path(self.folder, METRICS).unlink(missing_ok=True)
            return None

        def make(output: Path) -> None:
            if isinstance(evaluation, LabelAssessments):
                content = evaluation.document(output)
            else:
                content = metrics_document(evaluation, [])
            write_document(content, output, force=True)

        inputs = {"file": sha256_of(file), "calibration": sha256_of(document)}
        self._step(METRICS, inputs, make, {"seed": settings.seed})
        return evaluation

    def export(
        self, model: str | Path, document: Path, calibrations: Iterable[Calibration]
    ) -> Path | None:
        """Return the calibrated model; None if its classes seem to be in the wrong order."""
        from covcal_cli.export.export import default_output, export

        name = default_output(model).name
        accuracies = [calibration.source_accuracy for calibration in calibrations]
        if any(a is not None and a.class_order is not None for a in accuracies):
            own_path(self.folder, name).unlink(missing_ok=True)
            return None

        def make(output: Path) -> None:
            settings = self.settings.extraction
            export(
                model,
                document,
                output,
                weights=settings.weights,
                model_output=settings.model_output,
                trust_model=settings.trust_model,
                force=True,
            )

        return self._step(name, {"calibration": sha256_of(document)}, make)

    def apply(self, file: Path, document: Path) -> Path:
        """Write calibrated probabilities, because tables have no model to export."""
        from covcal_cli.apply.apply import apply

        def make(output: Path) -> None:
            apply(file, document, output, force=True, progress=self.progress)

        inputs = {"file": sha256_of(file), "calibration": sha256_of(document)}
        return self._step(PROBABILITIES, inputs, make)

    def report(self, file: Path, document: Path) -> Path:
        """Return report.html."""

        def make(output: Path) -> None:
            report(file, [document], output, self._judging(file), force=True)

        inputs = {"file": sha256_of(file), "calibration": sha256_of(document)}
        return self._step(REPORT, inputs, make)

    def _judging(self, file: Path) -> EvaluateSettings:
        """Return settings that measure on the test rows, or on all rows if there are no test rows.

        A measurement on all rows is unbiased, because no other step uses target labels.
        """

        def has_test_rows() -> bool:
            with FeatureFile(file) as opened:
                return opened.require_target().count("test") > 0

        split = "test" if for_first_label(labels_in(file), has_test_rows) else ALL
        return EvaluateSettings(split=split, resamples=RESAMPLES, seed=self.settings.seed)

    def _step(
        self,
        name: str,
        inputs: Mapping[str, str],
        make: Make,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> Path:
        """Run a step unless its result is up to date, and return the path of the result."""
        output, key = own_path(self.folder, name), _key(inputs, settings)
        result = None if self.force else self.journal.current(output, key)
        reused = result is not None
        if result is None:
            self.journal.begin(output, key)
            result = self.journal.record(output, key, make(output) or Messages())
        self.tell(Step(output, reused, result))
        return output


def _key(inputs: Mapping[str, str], settings: Mapping[str, Any]) -> str:
    return step_key(version=__version__, inputs=inputs, settings=dict(settings))


@dataclass(frozen=True)
class RunReport:
    """The results of a run."""

    # The calibrations by label. If rows have one label, the only key is "".
    calibrations: Mapping[str, Calibration]
    # Rows with one label have an evaluation, and other rows have assessments; None without labels.
    evaluation: Evaluation | None
    assessments: LabelAssessments | None
    # Calibrated model or probabilities; None if the classes seem to be in the wrong order.
    model: Path | None
    page: Path

    @property
    def calibration(self) -> Calibration:
        """The calibration, or the calibration of the first label."""
        return next(iter(self.calibrations.values()))


def run(
    model: str | Path | None,
    source: str | Path | None,
    target: str | Path,
    folder: str | Path,
    settings: RunSettings,
    *,
    tell: Callable[[Step], None],
    begin: Callable[[str], None] = lambda _: None,
    force: bool = False,
    progress: ProgressCallback | None = None,
) -> RunReport:
    """Run every step whose result is not up to date.

    - `model`: the classifier: a file, or ``module:function``. None for tables of outputs.
    - `source`, `target`: the data. If one table has both domains, `source` is None.
    - `folder`: the folder of the results. A missing folder is created.
    - `tell`: called with each `Step` after its end.
    - `begin`: called with the name of the command before each step.
    - `force`: make every result again.
    - `progress`: called with a `Progress` during a step.

    Raises `CovcalError` if a step fails, or if `folder` exists and does not come from a run.
    Finished results are kept, and the next run continues with them. Raises `LimitExceededError`
    after the extraction if the source accuracy is clearly below the expected accuracy.
    """
    source = None if source is None else Path(source)
    with results_folder(Path(folder)) as folder:
        finish_placing(folder)
        steps = Steps(folder, settings, tell, progress, Journal(folder), force, force, folder)
        begin("extract")
        features = steps.extract(model, source, Path(target))
        return all_after(steps, features, model, begin)


def all_after(
    steps: Steps,
    features: Path,
    model: str | Path | None,
    begin: Callable[[str], None] = lambda _: None,
) -> RunReport:
    """Run the steps after the extraction, as `run` does."""
    if steps.settings.expect_accuracy is not None:
        steps.require_accuracy(features, steps.settings.expect_accuracy)
    file = features
    if steps.settings.adapts:
        begin("adapt")
        file = steps.adapt(features)
    begin("calibrate")
    document, calibrations = steps.calibrate(file)
    # With several labels, the first covcal watch makes the reference data.
    if "" in calibrations:
        steps.reference(document, calibrations[""])
    begin("evaluate")
    evaluation = steps.evaluate(file, document)
    begin("export" if model is not None else "apply")
    written: Path | None
    if model is None:
        written = steps.apply(file, document)
    else:
        written = steps.export(model, document, calibrations.values())
    begin("report")
    page = steps.report(file, document)
    of_labels = evaluation if isinstance(evaluation, LabelAssessments) else None
    single = None if isinstance(evaluation, LabelAssessments) else evaluation
    return RunReport(calibrations, single, of_labels, written, page)


@contextmanager
def results_folder(folder: Path) -> Iterator[Path]:
    """Create the folder if missing, and remove the folder again if it stays empty."""
    try:
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        if missing:
            folder.mkdir(parents=True)
        is_own = bool(missing) or (folder.is_dir() and _is_own(folder))
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            fault = f"no permission to write the folder {folder}"
        else:
            fault = f"the folder {folder} cannot be written ({(error.strerror or '').lower()})"
        raise CovcalError(f"{fault}: name another folder with -o") from error
    if not is_own:
        raise CovcalError(
            f"{folder} exists, but covcal run did not make it: move this folder, or name another "
            "folder with -o"
        )
    try:
        yield folder
    finally:
        if missing and {path.name for path in folder.iterdir()} <= {JOURNAL}:
            (folder / JOURNAL).unlink(missing_ok=True)
            for path in missing:
                path.rmdir()


def _is_own(folder: Path) -> bool:
    """Return whether a folder is empty or comes from a run."""
    journal = folder / JOURNAL
    unfinished = hidden_sibling(journal, "partial").name
    return journal.exists() or all(entry.name == unfinished for entry in folder.iterdir())
