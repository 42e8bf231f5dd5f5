"""``covcal run``: from a classifier and two domains to a calibrated model, in one folder."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from covcal_cli.errors import CovcalError
from covcal_cli.evaluate.result import Evaluation
from covcal_cli.files import hidden_sibling
from covcal_cli.formats.calibration import Calibration
from covcal_cli.progress import ProgressCallback
from covcal_cli.run.journal import JOURNAL, Journal, finish_placing
from covcal_cli.run.steps import RunSettings, Step, Steps


@dataclass(frozen=True)
class RunReport:
    """The results of a run."""

    calibration: Calibration
    evaluation: Evaluation | None  # None if the target's test rows have no labels
    model: Path  # the calibrated model; for tables of outputs, the calibrated probabilities
    page: Path  # the report


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
    """Take every step whose result is not up to date.

    - `model`: the classifier: a file, or ``module:function``. None for tables of a classifier's
      outputs.
    - `source`, `target`: the data. One table of outputs may hold both domains; then `source` is
      None.
    - `folder`: the folder for the results; it is made if it is missing.
    - `tell`: called with every `Step` when it is done.
    - `begin`: called with the name of a step's command before it is taken.
    - `force`: make every result again.
    - `progress`: called with a `Progress` while a step works.

    Raises `CovcalError` if a step fails, or `folder` was not made by a run. Finished results are
    kept, and the next run continues from them. Raises `LimitExceededError` if the source accuracy
    is below the expected accuracy; the run then stops after the extraction.
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
    """Take the steps after the extraction, as `run` does."""
    if steps.settings.expect_accuracy is not None:
        steps.require_accuracy(features, steps.settings.expect_accuracy)
    file = features
    if steps.settings.adapts:
        begin("adapt")
        file = steps.adapt(features)
    begin("calibrate")
    document, calibration = steps.calibrate(file)
    steps.reference(document, calibration)
    begin("evaluate")
    evaluation = steps.evaluate(file, document)
    begin("export" if model is not None else "apply")
    written = steps.apply(file, document) if model is None else steps.export(model, document)
    begin("report")
    return RunReport(calibration, evaluation, written, steps.report(file, document))


@contextmanager
def results_folder(folder: Path) -> Iterator[Path]:
    """Make the folder if it is missing; remove it again if it remains empty."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    if missing:
        folder.mkdir(parents=True)
    elif not folder.is_dir() or not _is_own(folder):
        raise CovcalError(
            f"{folder} exists and covcal run did not make it: move it, or name another folder with "
            "-o"
        )
    try:
        yield folder
    finally:
        if missing and {path.name for path in folder.iterdir()} <= {JOURNAL}:
            (folder / JOURNAL).unlink(missing_ok=True)
            for path in missing:
                path.rmdir()


def _is_own(folder: Path) -> bool:
    """Return whether a folder is empty or belongs to a run, even a run that was killed early."""
    journal = folder / JOURNAL
    unfinished = hidden_sibling(journal, "partial").name
    return journal.exists() or all(entry.name == unfinished for entry in folder.iterdir())
