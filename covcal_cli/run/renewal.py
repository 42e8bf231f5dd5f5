"""``covcal run --from``: the results of an earlier run made anew for other target rows.

The source half of the features is the earlier run's. All results are made in ``next/`` within its
folder and seen beside those in use on the new rows; only then they take their place, or not.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from covcal_cli.calibrate.estimate import expect
from covcal_cli.errors import CovcalError, TooFewRowsError
from covcal_cli.formats.calibration import read_calibration
from covcal_cli.formats.features import OPTIONS, FeatureFile
from covcal_cli.progress import ProgressCallback
from covcal_cli.records import parsed_json
from covcal_cli.run.journal import JOURNAL, Journal, data_digest
from covcal_cli.run.placing import NEXT, finish_placing, place
from covcal_cli.run.run import RunReport, all_after, results_folder
from covcal_cli.run.steps import (
    CALIBRATION,
    FEATURES,
    WITH_WEIGHTS,
    Earlier,
    RunSettings,
    Step,
    Steps,
)
from covcal_cli.watch.period import Verdict
from covcal_cli.watch.watch import watch


@dataclass(frozen=True)
class Comparison:
    """The calibration in use and the new one on the new target rows; no label was read."""

    accuracy: float  # estimated
    low: float
    high: float
    in_use: float  # mean confidence, calibrated
    new: float
    verdict: Verdict  # of ``covcal watch`` on the one in use, and why
    why: str

    @property
    def is_nearer(self) -> bool:
        """Whether the new one's confidence is nearer to the estimate."""
        return abs(self.new - self.accuracy) < abs(self.in_use - self.accuracy)

    @property
    def replaces(self) -> bool:
        """Whether the new one is to take the place of the one in use."""
        return self.is_nearer and self.verdict == "recalibrate"


@dataclass(frozen=True)
class Renewal:
    """What was made of new target rows."""

    report: RunReport
    comparison: Comparison | None  # None where the folder is of these rows already
    is_in_use: bool
    kept: tuple[Path, ...] = ()  # what it replaced, under other names


def renew(
    model: str | Path | None,
    target: str | Path,
    folder: str | Path,
    settings: RunSettings,
    *,
    tell: Callable[[Step], None],
    begin: Callable[[str], None] = lambda _: None,
    history: Path | None = None,
    force: bool = False,
    progress: ProgressCallback | None = None,
) -> Renewal:
    """Make the results of a run anew for another target, and put them in place where they help.

    Parameters
    ----------
    model : str, Path or None
        The classifier of the earlier run, maybe of another name.
    target : str or Path
        The new data.
    folder : str or Path
        The earlier run's folder.
    settings : RunSettings
        Those of the earlier run, but for the method.
    history : Path, optional
        A history of ``covcal watch``: its periods count for the verdict on the calibration in use,
        and this one, by the name of the target, is appended.
    force : bool
        Put the new results in place whatever the comparison says, and take a T at its limit.
    tell, begin, progress : callable
        As those of `covcal_cli.run.run.run`.

    Raises
    ------
    CovcalError
        If the folder is no run's, or classifier, classes or preprocessing are not those of the
        earlier run. What is in use stays as it was.
    """
    folder, target = Path(folder), Path(target)
    _require_trusted(folder, model, settings)
    finish_placing(folder)
    earlier = earlier_run(folder)
    journal = Journal(folder / JOURNAL)
    known = journal.given.get("target")
    if known is not None and known.sha256 == data_digest(target):
        steps = Steps(folder, settings, tell, progress, journal, False, force, folder)
        begin("extract")
        tell(Step(earlier.features, reused=True, said=journal.said(earlier.features)))
        return Renewal(all_after(steps, earlier.features, model, begin), None, is_in_use=True)
    with results_folder(folder / NEXT) as made:
        steps = Steps(made, settings, tell, progress, Journal(made / JOURNAL), False, force, folder)
        begin("extract")
        features = steps.extract_target(model, earlier, target)
        report = all_after(steps, features, model, begin)
    begin("compare")
    comparison = _compared(
        features, earlier.calibration, made / CALIBRATION, f"{target.stem}={features}", history
    )
    if not (comparison.replaces or force):
        return Renewal(report, comparison, is_in_use=False)
    kept = place(folder)
    steps = replace(steps, folder=folder, journal=Journal(folder / JOURNAL))
    report = all_after(replace(steps, tell=_silently), folder / FEATURES, model)
    return Renewal(report, comparison, is_in_use=True, kept=tuple(kept))


def earlier_run(folder: Path) -> Earlier:
    """Return what a run left in a folder.

    Raises
    ------
    CovcalError
        If there is no run's folder, or its features or calibration are not those that it made.
    """
    again = "run covcal run MODEL SOURCE TARGET with its -o"
    if not (folder / JOURNAL).is_file():
        raise CovcalError(f"{folder} has no {JOURNAL}, so covcal run did not make it: {again}")
    journal = Journal(folder / JOURNAL)
    for name in (FEATURES, CALIBRATION):
        path = folder / name
        if not journal.is_as_made(path):
            state = "has changed since covcal run made it" if path.exists() else "is not there"
            raise CovcalError(f"{path} {state}, and --from goes on from it: {again}")
    with FeatureFile(folder / FEATURES) as file:
        try:
            options = parsed_json(file.attributes[OPTIONS])
        except (KeyError, TypeError, ValueError) as error:
            raise CovcalError(f"{file.path} does not say how it was extracted: {again}") from error
    return Earlier(
        folder / FEATURES,
        folder / CALIBRATION,
        journal.given,
        _model(folder, journal, options),
        tuple(map(str, options)),
        read_calibration(folder / CALIBRATION).method,
    )


def _model(folder: Path, journal: Journal, options: Sequence[object]) -> str | None:
    """Return the classifier of a run: a file as it is named from here, or ``module:function``."""
    given = journal.given.get("model")
    if given is None:
        return None
    name = given.name
    if any(str(option).startswith("--weights=") for option in options):
        name = name.partition(WITH_WEIGHTS)[0]
    path = folder.resolve() / name
    if path.exists():
        return os.path.relpath(path)
    if _is_code(name):
        return name
    raise CovcalError(f"{folder} was made with the model {name} (from there), which is gone")


def _is_code(name: str | None) -> bool:
    return name is not None and ":" in name and not Path(name).exists()


def _require_trusted(folder: Path, model: str | Path | None, settings: RunSettings) -> None:
    """Refuse to run functions that a folder names and nobody typed."""
    extraction = settings.extraction
    for name in (None if model is None else str(model), extraction.preprocess):
        if _is_code(name) and not extraction.trust_model:
            raise CovcalError(
                f"{folder} says to run {name}, which is code: pass --trust-model if it is yours"
            )


def _compared(
    features: Path, in_use: Path, new: Path, period: str, history: Path | None
) -> Comparison:
    """See both calibrations against the estimated accuracy on the new rows."""
    # The estimate is that of the new one, whose prior may be another.
    found = expect(features, [new, in_use], names=["new", "in use"])
    first = found.estimation.estimates[0]
    confidences = {one.name: one.mean_confidence for one in found.calibrations}
    verdict: Verdict = "cannot tell"
    try:
        (seen,) = watch([Path(period)], in_use, history=history, force=True).periods
        verdict, why = seen.verdict, seen.why
    except TooFewRowsError:
        why = "the calibration in use has no reference data for watch (too few rows)"
    return Comparison(
        first.accuracy,
        first.low,
        first.high,
        confidences["in use"],
        confidences["new"],
        verdict,
        why,
    )


def _silently(_: Step) -> None:
    """Say nothing of a step that has been told of."""
