"""The steps of a run: the public functions behind the commands, each result in a file of its own.

A result has the name that its own command would give it. It is made again only when its settings or
what it is made of have changed, which the journal knows.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from covcal_cli import __version__
from covcal_cli.calibrate.calibrate import CalibrateSettings, calibrate
from covcal_cli.calibrate.methods import AUTO, METHODS
from covcal_cli.classifiers.classifier import OpenedClassifier
from covcal_cli.classifiers.open import open_classifier
from covcal_cli.errors import CovcalError, LimitExceededError, UnlabelledError
from covcal_cli.evaluate.evaluate import EvaluateSettings, evaluate
from covcal_cli.evaluate.result import Evaluation, write_metrics
from covcal_cli.extract.settings import ExtractSettings
from covcal_cli.files import sha256_of
from covcal_cli.forecast.forecaster import read_named
from covcal_cli.forecast.source_accuracy import require_accuracy, source_accuracy
from covcal_cli.formats.calibration import Calibration, read_calibration
from covcal_cli.formats.features import ALL, FeatureFile
from covcal_cli.formats.lineage import unmarked_sha256
from covcal_cli.progress import ProgressCallback
from covcal_cli.records import write_document
from covcal_cli.report.report import report
from covcal_cli.run.journal import Given, Journal, Said, data_digest, step_key
from covcal_cli.watch.measurement import make_reference
from covcal_cli.watch.reference import reference_path
from covcal_cli.watch.sketches import sketched_rows

if TYPE_CHECKING:
    from covcal_cli.extract.extract import ExtractReport

FEATURES, ADAPTED, CALIBRATION, REPORT = "features.h5", "adapted.h5", "cal.json", "report.html"
REFERENCE = reference_path(Path(CALIBRATION)).name
WITH_WEIGHTS = " with "  # between a model's name and that of its weights
_RESAMPLES = 1000
_RESULT_FREE = {"batch", "threads", "trust_model"}  # settings that change no result
Make = Callable[[Path], Said | None]  # writes a result; returns what is to be said of it


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run's steps; the seed of the extraction is that of every step."""

    extraction: ExtractSettings = field(default_factory=ExtractSettings)
    method: str = AUTO  # of ``covcal calibrate``
    device: str = "auto"  # of ``covcal adapt``
    # Of the classifier on unseen source rows: with less, beyond noise, nothing is made of them.
    expect_accuracy: float | None = None

    def __post_init__(self) -> None:
        method = METHODS.get(self.method)
        if method is not None and method.needs_prior:
            raise CovcalError(
                f"method {self.method} needs a target prior, and run takes none: run by another, "
                f"then covcal calibrate its file with --method {self.method} --target-prior"
            )

    @property
    def seed(self) -> int:
        """The seed of every step."""
        return self.extraction.seed


@dataclass(frozen=True)
class Step:
    """One result of a run."""

    output: Path
    reused: bool  # whether an earlier run's still stood
    said: Said


@dataclass(frozen=True)
class Earlier:
    """What an earlier run left that another goes on from."""

    features: Path
    calibration: Path
    given: Mapping[str, Given]  # by role
    model: str | None  # as it is opened from here; None for tables of outputs
    options: tuple[str, ...]  # of the extraction
    method: str  # that was asked for


@dataclass(frozen=True)
class Steps:
    """The steps of one run, each given the results before it."""

    folder: Path
    settings: RunSettings
    tell: Callable[[Step], None]
    progress: ProgressCallback | None
    journal: Journal
    force: bool  # make every result anew
    allow_limit: bool  # take a T at a limit of its interval
    home: Path  # the folder that names of what was given are relative to

    def extract(self, model: str | Path | None, source: Path | None, target: Path) -> Path:
        """Return features.h5, of a classifier run over both domains."""
        from covcal_cli.extract.extract import extract

        def make(output: Path, *, resume: bool) -> "ExtractReport":
            return extract(
                model,
                source,
                target,
                output,
                self.settings.extraction,
                force=True,
                resume=resume,
                progress=self.progress,
            )

        data = {} if source is None else {"source": self._given(source)}
        output = self.folder / FEATURES
        return self._features(model, data | {"target": self._given(target)}, make, output)

    def extract_target(self, model: str | Path | None, earlier: Earlier, target: Path) -> Path:
        """Return features.h5, of a classifier run over the target; its source is an earlier run's.

        Raises
        ------
        CovcalError
            If the classifier, its classes or the preprocessing are not those of the earlier run.
        """
        from covcal_cli.extract.extract import extract
        from covcal_cli.extract.merge import merge_target

        settings = self.settings.extraction
        # The source, which may be what named the classes, is not looked at.
        named = replace(settings, classes=settings.classes or earlier.calibration)
        alone = self.folder / "target.h5"

        def make(output: Path, *, resume: bool) -> "ExtractReport":
            report = extract(
                model,
                None,
                target,
                alone,
                named,
                force=True,
                resume=resume,
                beside=earlier.features,
                progress=self.progress,
            )
            merge_target(earlier.features, alone, output, force=True)
            alone.unlink()
            return report

        data = {role: one for role, one in earlier.given.items() if role == "source"}
        self.journal.forget_given()  # the rows of a period that came to nothing are no loss
        return self._features(model, data | {"target": self._given(target)}, make, alone)

    def _features(
        self,
        model: str | Path | None,
        data: Mapping[str, Given],
        extracted: Callable[..., "ExtractReport"],
        spooled: Path,
    ) -> Path:
        """Take the step that makes features.h5; `spooled` is what is extracted on the way."""
        from covcal_cli.extract.parts import was_stopped

        settings = self.settings.extraction
        # Opening the model is cheap, and its hash covers weights that lie beside it.
        opened = None if model is None else self._opened(model)
        given = {}
        if opened is not None:
            given["model"] = Given(self._model_name(str(model)), opened.sha256)
        given |= data
        self.journal.take(given, force=self.force)
        inputs = {name: one.sha256 for name, one in given.items()}
        if settings.classes is not None:
            inputs["classes"] = data_digest(settings.classes)
        if opened is not None:
            inputs["preprocessing"] = self._preprocessing(opened, model)
        kept = {name: value for name, value in asdict(settings).items() if name not in _RESULT_FREE}
        output = self.folder / FEATURES
        goes_on = self.journal.was_begun(output, _key(inputs, kept)) and was_stopped(spooled)

        def make(output: Path) -> Said:
            report = extracted(output, resume=goes_on)
            # Whatever else lies here was made of other features.
            self.journal.discard_others(output)
            skipped = (entry for domain in report.domains for entry in domain.skipped)
            warnings = (*report.warnings, *(f"skipped {name}: {why}" for name, why in skipped))
            return Said(warnings, report.notes, report.facts)

        return self._step(output.name, inputs, make, kept)

    def _given(self, path: Path) -> Given:
        return Given(self._name(path), data_digest(path))

    def require_accuracy(self, features: Path, expected: float) -> None:
        """Refuse features whose source accuracy is below the one expected.

        What an earlier run made of the same features, and expected less of, stays and is named.
        """
        try:
            with FeatureFile(features) as file:
                require_accuracy(source_accuracy(file), expected, features)
        except LimitExceededError as error:
            earlier = [path.name for path in self.journal.others(features) if path.is_file()]
            if not earlier:
                raise
            raise LimitExceededError(
                f"{error}; {', '.join(earlier)} in {self.folder} are an earlier run's, of the same "
                "accuracy: do not use them"
            ) from error

    def _model_name(self, model: str) -> str:
        """Return how run.json names a model, with the weights that it was given."""
        weights = self.settings.extraction.weights
        name = self._name(Path(model)) if Path(model).exists() else model
        return name if weights is None else f"{name}{WITH_WEIGHTS}{self._name(weights)}"

    def _opened(self, model: str | Path) -> OpenedClassifier:
        settings = self.settings.extraction
        return open_classifier(
            model,
            weights=settings.weights,
            output=settings.model_output,
            phi=settings.phi,
            providers=settings.providers,
            trusted=settings.trust_model,
        )

    def _preprocessing(self, opened: OpenedClassifier, model: str | Path | None) -> str:
        """Return the preprocessing that the model or the user brings along, wherever it stands."""
        from covcal_cli.extract.plan import base_preprocessing

        try:
            found, _ = base_preprocessing(opened, self.settings.extraction, model)
        except CovcalError as error:  # which extraction raises itself, if there are images
            return str(error)
        return found.to_json()

    def _name(self, path: Path) -> str:
        """Return a path relative to the folder, which may move with its data."""
        return Path(os.path.relpath(path.resolve(), self.home.resolve())).as_posix()

    def adapt(self, features: Path) -> Path:
        """Return adapted.h5, or `features` where there is nothing to adapt or no use for it."""
        method = METHODS.get(self.settings.method)
        with FeatureFile(features) as file:
            has_features = file.require_source().n_features is not None
        if not has_features or (method is not None and not method.gains_by_adapt):
            return features

        settings: dict[str, Any] = {"seed": self.settings.seed, "device": self.settings.device}

        def make(output: Path) -> Said:
            from covcal_cli.adapt.adapt import adapt
            from covcal_cli.adapt.settings import AdaptSettings

            asked = AdaptSettings(**settings)
            report = adapt(features, output, asked, force=True, progress=self.progress)
            return Said(tuple(report.warnings))

        return self._step(ADAPTED, {"features": unmarked_sha256(features)}, make, settings)

    def calibrate(self, file: Path) -> tuple[Path, Calibration]:
        """Return cal.json and what it holds."""
        settings: dict[str, Any] = {"method": self.settings.method, "seed": self.settings.seed}

        def make(output: Path) -> Said:
            found = calibrate(file, CalibrateSettings(**settings, allow_limit=self.allow_limit))
            write_document(found, output, force=True)
            return Said(found.warnings, found.notes)

        document = self._step(CALIBRATION, {"file": sha256_of(file)}, make, settings)
        return document, read_calibration(document)

    def reference(self, document: Path, calibration: Calibration) -> None:
        """Make the reference data that watch needs; a file with few labelled rows allows none."""
        sha256 = sha256_of(document)
        with FeatureFile(calibration.inputs[0].path) as opened:
            if sketched_rows(opened, calibration.seed) is None:
                return

        def make(output: Path) -> None:
            write_document(make_reference(calibration, document, sha256), output, force=True)

        self._step(REFERENCE, {"calibration": sha256}, make)

    def evaluate(self, file: Path, document: Path) -> Evaluation | None:
        """Write metrics.json and return it; None where the rows to judge have no labels."""
        settings = self._judging(file)
        try:
            found = evaluate(file, read_named([document]), settings, documents=[document])
        except UnlabelledError:
            # Those of labels that have gone would be taken for measured.
            (self.folder / "metrics.json").unlink(missing_ok=True)
            return None

        def make(output: Path) -> None:
            write_metrics(found, [], output, force=True)

        inputs = {"file": sha256_of(file), "calibration": sha256_of(document)}
        self._step("metrics.json", inputs, make, {"seed": settings.seed})
        return found

    def export(self, model: str | Path, document: Path) -> Path:
        """Return the calibrated model."""
        from covcal_cli.export.export import default_output, export

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

        name = default_output(model).name
        return self._step(name, {"calibration": sha256_of(document)}, make)

    def apply(self, file: Path, document: Path) -> Path:
        """Return calibrated probabilities of the target, where there is no model to export."""
        from covcal_cli.apply.apply import apply

        def make(output: Path) -> None:
            apply(file, document, output, force=True, progress=self.progress)

        inputs = {"file": sha256_of(file), "calibration": sha256_of(document)}
        return self._step("probs.csv", inputs, make)

    def report(self, file: Path, document: Path) -> Path:
        """Return report.html."""

        def make(output: Path) -> None:
            report(file, [document], output, self._judging(file), force=True)

        inputs = {"file": sha256_of(file), "calibration": sha256_of(document)}
        return self._step(REPORT, inputs, make)

    def _judging(self, file: Path) -> EvaluateSettings:
        """Return how a calibration is judged: on test rows, or on all where there are none.

        No label of any target row was read before.
        """
        with FeatureFile(file) as opened:
            split = "test" if len(opened.require_target().rows("test")) else ALL
        return EvaluateSettings(split=split, resamples=_RESAMPLES, seed=self.settings.seed)

    def _step(
        self,
        name: str,
        inputs: Mapping[str, str],
        make: Make,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> Path:
        """Make a result, unless one of the same inputs and settings stands, and return its file."""
        output, key = self.folder / name, _key(inputs, settings)
        entry = None if self.force else self.journal.standing(output, key)
        reused = entry is not None
        if entry is None:
            self.journal.begin(output, key)
            entry = self.journal.record(output, key, make(output) or Said())
        self.tell(Step(output, reused, entry.said))
        return output


def _key(inputs: Mapping[str, str], settings: Mapping[str, Any]) -> str:
    return step_key(version=__version__, inputs=inputs, settings=dict(settings))
