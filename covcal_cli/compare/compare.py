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
    """Adapt, calibrate and evaluate every file with every seed; reuse the records of done runs.

    Parameters
    ----------
    paths : sequence of str or Path
        Features files whose target test rows have labels, or adapted files, which are not adapted
        again. A shift has the name of its file.
    folder : str or Path
        For adapted files and records, which the next call uses again. It is made if it is missing.
    settings : CompareSettings
    progress : callable, optional
        Called with a `Progress` whenever a run is done.

    Raises
    ------
    CovcalError
        If two files have one name, or a run fails as a whole, for example without labels. The
        records of done runs stay.
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
    """Compare on given runs, where every seed of a shift may have its own file.

    The record of a run is named after its file and seed, so no two runs may share both.
    """
    folder, tell = Path(folder), progress or silent
    if folder.exists() and not folder.is_dir():
        raise CovcalError(
            f"{folder} is a file, and compare needs a folder for its records: name another"
        )
    done: dict[Run, Record] = {}
    tell(Progress("compare", 0, len(runs)))
    with closing(finished(runs, folder, settings)) as records:
        for run, record in records:
            done[run] = record
            tell(Progress("compare", len(done), len(runs)))
    shifts: dict[str, tuple[Record, ...]] = {}
    for run in runs:
        shifts[run.shift] = (*shifts.get(run.shift, ()), done[run])
    return Comparison(METRICS[settings.metric], settings.fitted, shifts)


def _named(paths: Sequence[str | Path]) -> dict[str, Path]:
    """Return the files by the names of their shifts."""
    shifts: dict[str, Path] = {}
    for path in map(Path, paths):
        if path.stem in shifts:
            raise CovcalError(
                f"{shifts[path.stem]} and {path} are both called {path.stem}, and a shift has the "
                "name of its file: rename one"
            )
        shifts[path.stem] = path
    if not shifts:
        raise CovcalError("there is no file to compare on: name one features file or more")
    return shifts
