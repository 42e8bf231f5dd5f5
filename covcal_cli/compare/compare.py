"""``covcal compare``: every method on every shift with every seed, a record of each kept.

A shift is a features file whose target has labels to judge by, or an adapted file, taken as it is.
Its runs are independent of each other, so that several can go at a time, and one that was cut off
goes on where it was: adapted files and records stay in a folder, each known by what it was made of.
"""

import hashlib
import json
import statistics
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import ClassVar

from covcal_cli import __version__
from covcal_cli.calibrate.calibrate import CalibrateSettings, calibrate
from covcal_cli.calibrate.methods import AUTO, METHODS
from covcal_cli.compare.ranking import BASELINES, Comparison, Entry
from covcal_cli.errors import CovcalError
from covcal_cli.evaluate.evaluate import evaluate
from covcal_cli.evaluate.metrics import METRICS
from covcal_cli.files import sha256_of
from covcal_cli.formats.features import FeatureFile
from covcal_cli.formats.forecaster import NONE
from covcal_cli.progress import Progress, ProgressCallback, silent
from covcal_cli.records import (
    Document,
    read_document,
    require_at_least,
    require_one_of,
    write_document,
)

# What needs no word of the user on each shift.
ALL = (AUTO, *(name for name, method in METHODS.items() if not method.needs_prior))


@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    """What ``covcal compare`` can be told."""

    methods: tuple[str, ...] = ALL  # to fit; `BASELINES` are always beside them
    seeds: int = 5  # of adapt and calibrate: 0, 1, ...
    metric: str = "ece"  # that ranks the methods
    preset: str = "default"  # of adapt
    jobs: int = 1  # processes at a time

    def __post_init__(self) -> None:
        for method in self.methods:
            require_one_of("method", method, ALL)
        ranking = [name for name, metric in METRICS.items() if metric.better != "neither"]
        require_one_of("metric to rank by", self.metric, ranking)
        require_at_least("seeds", self.seeds, 1)
        require_at_least("jobs", self.jobs, 1)

    @property
    def fitted(self) -> tuple[str, ...]:
        """The methods with the baselines, in the order of the table of methods."""
        return tuple(name for name in ALL if name in (*self.methods, *BASELINES))


_AS_IT_COMES = CompareSettings()


@dataclass(frozen=True)
class Record(Document):
    """One run: a shift with a seed."""

    schema: ClassVar[str] = "covcal.compare-run/1"

    key: str  # hash of everything that the numbers depend on
    n: int  # target rows judged
    metrics: Mapping[str, Mapping[str, float | None]]  # by method, then by metric
    temperatures: Mapping[str, float]  # by method
    refused: Mapping[str, str]  # methods that the file does not fit, and why


def compare(
    paths: Sequence[str | Path],
    folder: str | Path,
    settings: CompareSettings = _AS_IT_COMES,
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
    folder, tell = Path(folder), progress or silent
    if folder.exists() and not folder.is_dir():
        raise CovcalError(
            f"{folder} is a file, and what compare keeps needs a folder: name another"
        )
    folder.mkdir(parents=True, exist_ok=True)
    runs = [(name, seed) for name in shifts for seed in range(settings.seeds)]
    found: dict[tuple[str, int], Record] = {}
    tell(Progress("compare", 0, len(runs)))
    with closing(_records(shifts, runs, folder, settings)) as records:
        for run, record in records:
            found[run] = record
            tell(Progress("compare", len(found), len(runs)))
    return Comparison(
        metric=METRICS[settings.metric],
        seeds=settings.seeds,
        methods=settings.fitted,
        shifts={
            name: _entries([found[name, seed] for seed in range(settings.seeds)], settings)
            for name in shifts
        },
        rows={name: found[name, 0].n for name in shifts},
        refused={name: dict(found[name, 0].refused) for name in shifts},
    )


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


def _records(
    shifts: Mapping[str, Path],
    runs: Sequence[tuple[str, int]],
    folder: Path,
    settings: CompareSettings,
) -> Generator[tuple[tuple[str, int], Record]]:
    """Yield the records of `runs` as they are done."""
    if settings.jobs == 1:
        for name, seed in runs:
            yield (name, seed), compare_run(shifts[name], seed, folder, settings)
        return
    with ProcessPoolExecutor(settings.jobs, mp_context=get_context("spawn")) as pool:
        futures = {
            pool.submit(compare_run, shifts[name], seed, folder, settings): (name, seed)
            for name, seed in runs
        }
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:  # after an error or Ctrl-C, what has not begun shall not
            pool.shutdown(wait=False, cancel_futures=True)


def compare_run(path: Path, seed: int, folder: Path, settings: CompareSettings) -> Record:
    """Return the record of one shift and seed, made anew where it does not stand already.

    Raises
    ------
    CovcalError
        If the file has no labelled target rows to judge, or cannot be adapted.
    """
    place = folder / f"{path.stem}-seed{seed}.json"
    made_of = [__version__, sha256_of(path), seed, settings.preset, settings.fitted, [*METRICS]]
    key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()
    if place.exists():
        try:
            record = read_document(Record, place, remedy="it is made again")
            if record.key == key:
                return record
        except CovcalError:
            pass  # damaged or of another kind: made again below
    record = _measured(key, _adapted(path, seed, folder, settings), seed, settings)
    write_document(record, place, force=True)
    return record


def _adapted(path: Path, seed: int, folder: Path, settings: CompareSettings) -> Path:
    """Return the adapted file of a features file, or `path` where there is nothing to adapt."""
    with FeatureFile(path) as file:
        has_features = file.require_source().n_features is not None
        digest = file.sha256()
        wanted = any(name == AUTO or METHODS[name].gains_by_adapt for name in settings.fitted)
        if file.is_adapted or not has_features or not wanted:
            return path
    output = folder / f"{path.stem}-seed{seed}.h5"
    if output.exists() and _stands(output, digest, seed, settings.preset):
        return output
    from covcal_cli.adapt.adapt import adapt
    from covcal_cli.adapt.settings import AdaptSettings

    adapt(path, output, AdaptSettings(seed=seed, preset=settings.preset), force=True)
    return output


def _stands(output: Path, features_sha256: str, seed: int, preset: str) -> bool:
    """Return whether an adapted file was made of these features with this seed and preset."""
    try:
        with FeatureFile(output) as file:
            made = tuple(
                file.attributes.get(name) for name in ("features_sha256", "seed", "preset")
            )
    except CovcalError:
        return False
    return made == (features_sha256, seed, preset)


def _measured(key: str, path: Path, seed: int, settings: CompareSettings) -> Record:
    """Fit every method on a file, and judge all in one pass over its labelled test rows."""
    fitted, refused = {}, {}
    for name in settings.fitted:
        if name == NONE:  # `evaluate` has it beside the others
            continue
        try:
            fitted[name] = calibrate(
                path, CalibrateSettings(method=name, seed=seed, allow_limit=True)
            )
        except CovcalError as error:
            refused[name] = str(error)
    evaluation = evaluate(path, fitted)
    return Record(
        key=key,
        n=evaluation.n,
        metrics={
            name: {metric: found.value(metric) for metric in METRICS}
            for name, found in evaluation.metrics.items()
        },
        temperatures=dict(evaluation.temperatures),
        refused=refused,
    )


def _entries(records: Sequence[Record], settings: CompareSettings) -> dict[str, Entry]:
    """Return what the runs of a shift say of every method that none of them refused."""
    found = {}
    for method in settings.fitted:
        if not all(method in record.metrics for record in records):
            continue
        of_method = [record.metrics[method] for record in records]
        values = {
            name: [value for one in of_method if (value := one.get(name)) is not None]
            for name in METRICS
        }
        found[method] = Entry(
            temperature=statistics.fmean(record.temperatures[method] for record in records),
            means={name: statistics.fmean(those) for name, those in values.items() if those},
            deviations={
                name: statistics.stdev(those) if len(those) > 1 else 0.0
                for name, those in values.items()
                if those
            },
        )
    return found
