"""``covcal run``: all steps in one folder, from a classifier and two domains to a calibrated model.

Every result is kept under the name that its own command would give it; ``steps.py`` makes them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from covcal_cli.calibration import Calibration
from covcal_cli.errors import CovcalError
from covcal_cli.evaluate.evaluation import Evaluation
from covcal_cli.extract.settings import ExtractSettings
from covcal_cli.progress import ProgressCallback
from covcal_cli.run.journal import Journal
from covcal_cli.run.steps import RunSettings, Step, Steps

__all__ = ["RunReport", "RunSettings", "Step", "run"]

JOURNAL = "run.json"


@dataclass(frozen=True)
class RunReport:
    """What a run found.

    Attributes
    ----------
    calibration : Calibration
    evaluation : Evaluation or None
        None where the target's test rows have no labels.
    model, page : Path
        The calibrated model and the report.
    """

    calibration: Calibration
    evaluation: Evaluation | None
    model: Path
    page: Path


def run(
    model: str | Path,
    source: Path,
    target: Path,
    folder: Path,
    *,
    settings: RunSettings,
    extraction: ExtractSettings,
    tell: Callable[[Step], None],
    force: bool = False,
    progress: ProgressCallback | None = None,
) -> RunReport:
    """Take every step whose result does not stand already.

    Parameters
    ----------
    model : str or Path
        The classifier: a file, or ``module:function``.
    source, target : Path
        The data.
    folder : Path
        Where the results lie; made if it is missing.
    settings : RunSettings
    extraction : ExtractSettings
        Of ``covcal extract``.
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
    _prepare(folder)
    steps = Steps(folder, settings, extraction, tell, progress, Journal(folder / JOURNAL), force)
    features = steps.extract(model, source, target)
    file = steps.adapt(features)
    document, calibration = steps.calibrate(file)
    evaluation = steps.evaluate(file, document)
    exported = steps.export(model, document)
    return RunReport(calibration, evaluation, exported, steps.report(file, document))


def _prepare(folder: Path) -> None:
    if not folder.exists():
        folder.mkdir(parents=True)
    elif not folder.is_dir() or (any(folder.iterdir()) and not (folder / JOURNAL).exists()):
        raise CovcalError(f"{folder} exists and covcal run did not make it: name another with -o")
