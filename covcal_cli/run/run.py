"""``covcal run``: all steps in one folder, from a classifier and two domains to a calibrated model.

The steps are the public functions behind the commands, and every result is kept under the name that
its own command would give it. It is made again only when its settings or what it is made of have
changed, which the journal knows.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from covcal_cli import __version__
from covcal_cli.calibrate.calibrate import CalibrateSettings, calibrate
from covcal_cli.calibrate.methods import AUTO, METHODS
from covcal_cli.classifiers.open import open_classifier
from covcal_cli.errors import CovcalError, UnlabelledError
from covcal_cli.evaluate.evaluate import EvaluateSettings, evaluate
from covcal_cli.evaluate.result import Evaluation, write_metrics
from covcal_cli.extract.settings import ExtractSettings
from covcal_cli.files import sha256_of
from covcal_cli.formats.calibration import Calibration, read_calibration
from covcal_cli.formats.features import FeatureFile
from covcal_cli.formats.forecaster import read_named
from covcal_cli.progress import ProgressCallback
from covcal_cli.records import write_document
from covcal_cli.report.report import report
from covcal_cli.run.journal import Journal, data_digest, step_key

JOURNAL = "run.json"
_RESAMPLES = 1000
_RESULT_FREE = {"batch", "threads"}  # settings that change no result
Make = Callable[[Path], Iterable[str] | None]  # writes a result; returns what is to be said of it


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run's steps; the seed of the extraction is that of every step."""

    extraction: ExtractSettings = field(default_factory=ExtractSettings)
    method: str = AUTO  # of ``covcal calibrate``
    device: str = "auto"  # of ``covcal adapt``

    @property
    def seed(self) -> int:
        """The seed of every step."""
        return self.extraction.seed


@dataclass(frozen=True)
class Step:
    """One result of a run."""

    output: Path
    reused: bool  # whether an earlier run's still stood
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class RunReport:
    """What a run found and wrote."""

    calibration: Calibration
    evaluation: Evaluation | None  # None where the target's test rows have no labels
    model: Path  # calibrated
    page: Path  # the report


def run(
    model: str | Path,
    source: str | Path,
    target: str | Path,
    folder: str | Path,
    settings: RunSettings,
    *,
    tell: Callable[[Step], None],
    force: bool = False,
    progress: ProgressCallback | None = None,
) -> RunReport:
    """Take every step whose result does not stand already.

    Parameters
    ----------
    model : str or Path
        The classifier: a file, or ``module:function``.
    source, target : str or Path
        The data.
    folder : str or Path
        Where the results lie; made if it is missing.
    settings : RunSettings
    tell : callable
        Called with every `Step` when it is done.
    force : bool
        Make every result anew.
    progress : callable, optional
        Called with a `Progress` while a step works.

    Raises
    ------
    CovcalError
        If a step fails, or `folder` holds something else. What was made before stays, and the
        next run goes on there.
    """
    folder = Path(folder)
    if not folder.exists():
        folder.mkdir(parents=True)
    elif not folder.is_dir() or (any(folder.iterdir()) and not (folder / JOURNAL).exists()):
        raise CovcalError(f"{folder} exists and covcal run did not make it: name another with -o")
    steps = _Steps(folder, settings, tell, progress, Journal(folder / JOURNAL), force)
    features = steps.extract(model, Path(source), Path(target))
    file = steps.adapt(features)
    document, calibration = steps.calibrate(file)
    evaluation = steps.evaluate(file, document)
    exported = steps.export(model, document)
    return RunReport(calibration, evaluation, exported, steps.report(file, document))


@dataclass(frozen=True)
class _Steps:
    """The steps of one run, each given the results before it."""

    folder: Path
    settings: RunSettings
    tell: Callable[[Step], None]
    progress: ProgressCallback | None
    journal: Journal
    force: bool

    def extract(self, model: str | Path, source: Path, target: Path) -> Path:
        """Return features.h5."""
        from covcal_cli.extract.extract import extract
        from covcal_cli.extract.parts import was_stopped
        from covcal_cli.extract.plan import base_preprocessing

        settings = self.settings.extraction
        # Opening the model is cheap, and its hash covers weights that lie beside it.
        classifier = open_classifier(
            model,
            weights=settings.weights,
            output=settings.model_output,
            phi=settings.phi,
            providers=settings.providers,
        )
        inputs = {"model": classifier.sha256}
        for name, path in (("source", source), ("target", target), ("classes", settings.classes)):
            if path is not None:
                inputs[name] = data_digest(path)
        try:
            preprocessing, _ = base_preprocessing(classifier, settings, model)
            inputs["preprocessing"] = preprocessing.to_json()
        except CovcalError as error:  # which extraction raises itself, if there are images
            inputs["preprocessing"] = str(error)
        kept = {name: value for name, value in asdict(settings).items() if name not in _RESULT_FREE}
        output = self.folder / "features.h5"
        goes_on = self.journal.was_begun(output, _key(inputs, kept)) and was_stopped(output)

        def make(output: Path) -> Iterable[str]:
            report = extract(
                model,
                source,
                target,
                output,
                settings,
                force=True,
                resume=goes_on,
                progress=self.progress,
            )
            skipped = (entry for domain in report.domains for entry in domain.skipped)
            return [*report.warnings, *(f"skipped {name}: {reason}" for name, reason in skipped)]

        return self._step(output.name, inputs, make, kept)

    def adapt(self, features: Path) -> Path:
        """Return adapted.h5, or `features` where there is nothing to adapt or no use for it."""
        method = METHODS.get(self.settings.method)
        with FeatureFile(features) as file:
            has_features = file.require_source().n_features is not None
        if not has_features or (method is not None and not method.gains_by_adapt):
            return features

        settings: dict[str, Any] = {"seed": self.settings.seed, "device": self.settings.device}

        def make(output: Path) -> Iterable[str]:
            from covcal_cli.adapt.adapt import adapt
            from covcal_cli.adapt.settings import AdaptSettings

            asked = AdaptSettings(**settings)
            return adapt(features, output, asked, force=True, progress=self.progress).warnings

        return self._step("adapted.h5", {"features": sha256_of(features)}, make, settings)

    def calibrate(self, file: Path) -> tuple[Path, Calibration]:
        """Return cal.json and what it holds."""
        settings: dict[str, Any] = {"method": self.settings.method, "seed": self.settings.seed}

        def make(output: Path) -> Iterable[str]:
            found = calibrate(file, CalibrateSettings(**settings))
            write_document(found, output, force=True)
            return found.warnings

        document = self._step("cal.json", {"file": sha256_of(file)}, make, settings)
        return document, read_calibration(document)

    def evaluate(self, file: Path, document: Path) -> Evaluation | None:
        """Write metrics.json and return it; None where the target's test rows have no labels."""
        seed = self.settings.seed
        settings = EvaluateSettings(resamples=_RESAMPLES, seed=seed)
        try:
            found = evaluate(file, read_named([document]), settings, documents=[document])
        except UnlabelledError:
            # Those of labels that have gone would be taken for measured.
            (self.folder / "metrics.json").unlink(missing_ok=True)
            return None

        def make(output: Path) -> None:
            write_metrics(found, [], output, force=True)

        inputs = {"file": sha256_of(file), "calibration": sha256_of(document)}
        self._step("metrics.json", inputs, make, {"seed": seed})
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
                force=True,
            )

        name = default_output(model).name
        return self._step(name, {"calibration": sha256_of(document)}, make)

    def report(self, file: Path, document: Path) -> Path:
        """Return report.html."""

        def make(output: Path) -> None:
            seed = self.settings.seed
            report(
                file,
                [document],
                output,
                EvaluateSettings(resamples=_RESAMPLES, seed=seed),
                force=True,
            )

        inputs = {"file": sha256_of(file), "calibration": sha256_of(document)}
        return self._step("report.html", inputs, make)

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
            entry = self.journal.record(output, key, tuple(make(output) or ()))
        self.tell(Step(output, reused, entry.warnings))
        return output


def _key(inputs: Mapping[str, str], settings: Mapping[str, Any]) -> str:
    return step_key(version=__version__, inputs=inputs, settings=dict(settings))
