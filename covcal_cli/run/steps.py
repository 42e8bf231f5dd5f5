"""The steps of ``covcal run``: the public functions behind the commands, each result journalled.

A result is made again only when its settings or what it is made of have changed.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from covcal_cli import __version__
from covcal_cli.calibration import Calibration, read_calibration, write_calibration
from covcal_cli.errors import UnlabelledError
from covcal_cli.evaluate.evaluation import Evaluation, evaluate, write_metrics
from covcal_cli.extract.settings import ExtractSettings
from covcal_cli.featurefile import FeatureFile
from covcal_cli.files import sha256_of
from covcal_cli.fitting import calibrate
from covcal_cli.methods import AUTO, METHODS
from covcal_cli.models.classifier import is_torch, open_classifier
from covcal_cli.namedcalibrations import read_named
from covcal_cli.progress import ProgressCallback
from covcal_cli.run.datadigest import data_digest
from covcal_cli.run.journal import Journal, step_key

_RESAMPLES = 1000
_CONFIGURATIONS = ("preprocessor_config.json", "processor_config.json", "config.json")


@dataclass(frozen=True)
class RunSettings:
    """What a run does besides extracting.

    Attributes
    ----------
    method : str
        Of ``covcal calibrate``.
    device : str
        Of ``covcal adapt``.
    seed : int
        Of every step.
    """

    method: str = AUTO
    device: str = "auto"
    seed: int = 0


@dataclass(frozen=True)
class Step:
    """One result of a run.

    Attributes
    ----------
    output : Path
    reused : bool
        Whether an earlier run's still stood.
    warnings : tuple of str
        What was to be said about it.
    """

    output: Path
    reused: bool
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Steps:
    """The steps of one run, each given the results before it.

    Attributes
    ----------
    folder : Path
    settings : RunSettings
    extraction : ExtractSettings
    tell : callable
        Called with every `Step` when it is done.
    progress : callable or None
        Called with a `Progress` while a step works.
    journal : Journal
    force : bool
        Make every result anew.
    """

    folder: Path
    settings: RunSettings
    extraction: ExtractSettings
    tell: Callable[[Step], None]
    progress: ProgressCallback | None
    journal: Journal
    force: bool

    def extract(self, model: str | Path, source: Path, target: Path) -> Path:
        """Return features.h5."""
        from covcal_cli.extract.extraction import extract
        from covcal_cli.extract.spool import was_stopped

        settings = self.extraction
        # Opening the model is cheap, and its hash covers weights that lie beside it.
        classifier = open_classifier(
            model,
            weights=settings.weights,
            output=settings.model_output,
            phi=settings.phi,
            providers=settings.providers,
        )
        output = self.folder / "features.h5"
        inputs = {"model": classifier.sha256}
        inputs |= {
            name: data_digest(path) for name, path in _files(model, source, target, settings)
        }

        result_free = {"batch", "threads"}
        kept = {name: text for name, text in asdict(settings).items() if name not in result_free}
        key = _key(inputs, kept)
        was_begun = self.journal.was_begun(output, key)

        def make(output: Path) -> Iterable[str]:
            report = extract(
                model,
                source,
                target,
                output,
                force=True,
                resume=was_begun and was_stopped(output),
                progress=self.progress,
                **{entry.name: getattr(settings, entry.name) for entry in fields(settings)},
            )
            skipped = [
                f"skipped {name}: {reason}"
                for domain in report.domains
                for name, reason in domain.skipped
            ]
            return [*report.warnings, *skipped]

        return self._step(output, key, make)

    def adapt(self, features: Path) -> Path:
        """Return adapted.h5, or `features` where there is nothing to adapt or no use for it."""
        method = METHODS.get(self.settings.method)
        with FeatureFile(features) as file:
            has_features = file.require_source().n_features is not None
        if not has_features or (
            method is not None and method.forecaster == "original" and not method.weighted
        ):
            return features

        def make(output: Path) -> Iterable[str]:
            from covcal_cli.adapt.adaptation import adapt

            return adapt(
                features,
                output,
                seed=self.settings.seed,
                device=self.settings.device,
                force=True,
                progress=self.progress,
            ).warnings

        settings = {"seed": self.settings.seed, "device": self.settings.device}
        inputs = {"features": sha256_of(features)}
        return self._step(self.folder / "adapted.h5", _key(inputs, settings), make)

    def calibrate(self, file: Path) -> tuple[Path, Calibration]:
        """Return cal.json and what it holds."""

        def make(output: Path) -> Iterable[str]:
            found = calibrate(file, method=self.settings.method, seed=self.settings.seed)
            write_calibration(found, output, force=True)
            return found.warnings

        settings = {"method": self.settings.method, "seed": self.settings.seed}
        inputs = {"file": sha256_of(file)}
        document = self._step(self.folder / "cal.json", _key(inputs, settings), make)
        return document, read_calibration(document)

    def evaluate(self, file: Path, document: Path) -> Evaluation | None:
        """Write metrics.json and return it; None where the target's test rows have no labels."""
        try:
            found = evaluate(
                file,
                read_named([document]),
                documents=[document],
                resamples=_RESAMPLES,
                seed=self.settings.seed,
            )
        except UnlabelledError:
            # Those of labels that have gone would be taken for measured.
            (self.folder / "metrics.json").unlink(missing_ok=True)
            return None

        def make(output: Path) -> Iterable[str]:
            write_metrics(found, [], output, force=True)
            return ()

        inputs = {"file": sha256_of(file), "calibration": sha256_of(document)}
        self._step(self.folder / "metrics.json", _key(inputs, {"seed": self.settings.seed}), make)
        return found

    def export(self, model: str | Path, document: Path) -> Path:
        """Return the calibrated model."""
        from covcal_cli.export.exporting import export

        def make(output: Path) -> Iterable[str]:
            export(
                model,
                document,
                output,
                weights=self.extraction.weights,
                model_output=self.extraction.model_output,
                force=True,
            )
            return ()

        name = f"calibrated{'.pt2' if is_torch(model) else '.onnx'}"
        inputs = {"calibration": sha256_of(document)}
        return self._step(self.folder / name, _key(inputs, {}), make)

    def report(self, file: Path, document: Path) -> Path:
        """Return report.html."""
        from covcal_cli.report.reporting import report

        def make(output: Path) -> Iterable[str]:
            report(
                file,
                [document],
                output,
                resamples=_RESAMPLES,
                seed=self.settings.seed,
                force=True,
            )
            return ()

        inputs = {"file": sha256_of(file), "calibration": sha256_of(document)}
        return self._step(self.folder / "report.html", _key(inputs, {}), make)

    def _step(self, output: Path, key: str, make: Callable[[Path], Iterable[str]]) -> Path:
        entry = None if self.force else self.journal.standing(output, key)
        reused = entry is not None
        if entry is None:
            self.journal.begin(output, key)
            entry = self.journal.record(output, key, tuple(make(output)))
        self.tell(Step(output, reused, entry.warnings))
        return output


def _key(inputs: dict[str, str], settings: dict[str, Any]) -> str:
    return step_key(version=__version__, inputs=inputs, settings=settings)


def _files(
    model: str | Path, source: Path, target: Path, settings: ExtractSettings
) -> Iterable[tuple[str, Path]]:
    """Yield what extraction reads besides the model."""
    for name, path in (("source", source), ("target", target), ("classes", settings.classes)):
        if path is not None:
            yield name, path
    given = settings.preprocess
    beside = [Path(model).parent / name for name in _CONFIGURATIONS]
    for path in (*beside, *([] if given is None else [Path(given)])):
        if path.is_file():
            yield path.name, path
