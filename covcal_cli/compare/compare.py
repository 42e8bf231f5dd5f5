"""``covcal compare``: every method on every shift with every seed."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from covcal_cli.compare.ranking import Comparison
from covcal_cli.compare.runs import CompareSettings, Record, Run, finished
from covcal_cli.errors import CovcalError
from covcal_cli.evaluate.metrics import METRICS
from covcal_cli.progress import Progress, ProgressCallback, silent

DEFAULTS = CompareSettings()


def compare(
    paths: Sequence[str | Path],
    folder: str | Path,
    settings: CompareSettings = DEFAULTS,
    *,
    progress: ProgressCallback | None = None,
) -> Comparison:
    """Adapt, calibrate and evaluate every file with every seed, or find that this was done.

    Parameters
    ----------
    paths : sequence of str or Path
        Features files (or adapted ones, taken as they are for every seed) whose target test rows
        have labels; a shift is called like its file.
    folder : str or Path
        For adapted files and records, which the next call finds again; made if it is missing.
    settings : CompareSettings
    progress : callable, optional
        Called with a `Progress` whenever a run is done.

    Raises
    ------
    CovcalError
        If two files have one name, or a run fails as a whole (no labels, say); runs that are done
        stay.
    """
    shifts = _named(paths)
    runs = [
        Run(name, path, seed) for name, path in shifts.items() for seed in range(settings.seeds)
    ]
    return compare_runs(runs, folder, settings, progress=progress)


def compare_runs(
    runs: Sequence[Run],
    folder: str | Path,
    settings: CompareSettings = DEFAULTS,
    *,
    progress: ProgressCallback | None = None,
) -> Comparison:
    """Do as `compare` on given runs, where the seeds of a shift may have files of their own.

    What is kept of a run is called after its file and its seed: no two may share both.
    """
    folder, tell = Path(folder), progress or silent
    if folder.exists() and not folder.is_dir():
        raise CovcalError(
            f"{folder} is a file, and what compare keeps needs a folder: name another"
        )
    found: dict[Run, Record] = {}
    tell(Progress("compare", 0, len(runs)))
    with closing(finished(runs, folder, settings)) as records:
        for run, record in records:
            found[run] = record
            tell(Progress("compare", len(found), len(runs)))
    shifts: dict[str, tuple[Record, ...]] = {}
    for run in runs:
        shifts[run.shift] = (*shifts.get(run.shift, ()), found[run])
    return Comparison(METRICS[settings.metric], settings.fitted, shifts)


def _named(paths: Sequence[str | Path]) -> dict[str, Path]:
    """Return the files by the names of their shifts."""
    found: dict[str, Path] = {}
    for path in map(Path, paths):
        if path.stem in found:
            raise CovcalError(
                f"{found[path.stem]} and {path} are both called {path.stem}, and a shift is called "
                "like its file: rename one"
            )
        found[path.stem] = path
    if not found:
        raise CovcalError("there is no file to compare on: name one features file or more")
    return found
