"""Run one shift of a comparison with one seed: adapt, calibrate and evaluate.

A record stores the result of a run. Later calls reuse the record if file, settings and code are
unchanged.
"""

import hashlib
import json
import os
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import ClassVar

from covcal_cli.adapt.settings import AdaptSettings
from covcal_cli.calibrate.calibrate import calibrate
from covcal_cli.calibrate.estimate import estimate
from covcal_cli.calibrate.methods import AUTO, METHODS
from covcal_cli.calibrate.problem import CalibrateSettings, EstimateSettings
from covcal_cli.errors import CovcalError, checked_settings, require_at_least, require_one_of
from covcal_cli.estimators.inputs import Estimate
from covcal_cli.evaluate.evaluate import evaluate
from covcal_cli.evaluate.metrics import METRICS, require_possible
from covcal_cli.files import sha256_of
from covcal_cli.forecast import NONE
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.features import FEATURES_SHA256, FeatureFile
from covcal_cli.progress import Progress
from covcal_cli.records import (
    Document,
    Guard,
    NonNegative,
    Number,
    Positive,
    Share,
    read_document,
    write_document,
)

ALL = (AUTO, *(name for name, method in METHODS.items() if not method.needs_prior))
BASELINES = (NONE, "temp")  # The methods that do not use the target.
MAX_SEEDS = 10_000
# Environment variables that limit the threads of libraries.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@checked_settings
@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    """Options of ``covcal compare``."""

    methods: tuple[str, ...] = ALL
    seeds: int = 5  # The seeds are 0, 1, ..., seeds - 1.
    metric: str = "ece"
    # Settings of adapt without the seed; None to leave files unadapted.
    adapt: AdaptSettings | None = field(default_factory=AdaptSettings)
    jobs: int = 1

    def __post_init__(self) -> None:
        for method in self.methods:
            require_one_of("method", method, ALL)
        ranking = [name for name, metric in METRICS.items() if metric.better != "neither"]
        require_one_of("metric to rank by", self.metric, ranking)
        require_at_least("seeds", self.seeds, 1)
        if self.seeds > MAX_SEEDS:
            raise CovcalError(f"at most {MAX_SEEDS} seeds can be compared, not {self.seeds}")
        require_at_least("jobs", self.jobs, 1)

    @property
    def fitted(self) -> tuple[str, ...]:
        """The chosen methods and the baselines."""
        return tuple(name for name in ALL if name in (*self.methods, *BASELINES))

    @property
    def state(self) -> str:
        """The name of the subfolder for adapted files and records with these settings."""
        adapt = self.adapt
        if adapt is None:
            return "without-adapt"
        decay = "" if adapt.weight_decay is None else f"-wd{adapt.weight_decay:g}"
        return f"{adapt.preset}{decay}" + (f"-{adapt.members}members" if adapt.members else "")


@dataclass(frozen=True)
class Run:
    """One shift with one seed."""

    shift: str
    path: Path
    seed: int


@dataclass(frozen=True)
class Fit:
    """The parts of a calibration that a record stores."""

    method_used: str
    reason: str
    forecaster: str
    temperature: Positive
    ess_share: Share | None  # Effective sample size as a share of the source validation rows.
    guards: tuple[Guard, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Duration:
    """The time that a stage took, in seconds."""

    wall: NonNegative
    cpu: NonNegative


@dataclass(frozen=True)
class Record(Document):
    """The result of one run."""

    schema: ClassVar[str] = "covcal.compare-run/1"

    key: str  # Hash of the file, the settings and the code.
    seed: int
    measured: Path
    n: Number  # Number of labelled target test rows.
    metrics: Mapping[str, Mapping[str, float | None]]
    fits: Mapping[str, Fit]
    refused: Mapping[str, str]  # Methods that cannot be fitted, with the reasons.
    estimates: tuple[Estimate, ...]  # Estimates of the accuracy, the combined estimate first.
    seconds: Mapping[str, Duration]  # Time for each method and for each stage of adapt.
    note: str = ""  # Why an earlier record is not valid.

    def __post_init__(self) -> None:
        """Raise ValueError if metrics are impossible or missing."""
        if NONE not in self.metrics:
            raise ValueError(f"metrics has no {NONE}")
        accuracy = self.metrics[NONE].get("accuracy")
        for method, values in self.metrics.items():
            require_possible(f"metrics.{method}", values, self.n)
            # Methods never change predictions, so all methods have the same accuracy.
            if values.get("accuracy", accuracy) != accuracy:
                raise ValueError(f"metrics.{method}.accuracy differs from metrics.{NONE}.accuracy")
        names = [estimate.name for estimate in self.estimates]
        if names and (names[0] != "combined" or len({*names}) < len(names)):
            raise ValueError(
                f"estimates are {', '.join(names)}: the first must be called combined, and no name "
                "may occur twice"
            )

    def require_complete(self, methods: Collection[str]) -> None:
        """Raise ValueError if a method was neither measured nor refused."""
        missing = [name for name in methods if name not in {*self.metrics, *self.refused}]
        if missing:
            raise ValueError(f"{', '.join(missing)} is missing")
        unmeasured = self.fits.keys() - self.metrics.keys()
        if unmeasured:
            raise ValueError(f"{', '.join(sorted(unmeasured))} was fitted but has no metrics")
        for method, values in self.metrics.items():
            if set(values) != set(METRICS):
                raise ValueError(f"metrics of {method} were written by another version of covcal")

    def temperature(self, method: str) -> float:
        """Return the temperature of a method that ran."""
        return self.fits[method].temperature if method in self.fits else 1.0


def finished(
    runs: Sequence[Run], folder: Path, settings: CompareSettings
) -> Generator[tuple[Run, Record]]:
    """Execute all runs, and yield each run with its record."""
    jobs = min(settings.jobs, len(runs))
    if jobs <= 1:
        for run in runs:
            yield run, record_of(run, folder, settings)
        return
    with _one_thread_each(), ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        # Submit few runs at a time, because queued runs would start even after Ctrl-C.
        left, going = iter(runs), dict[Future[Record], Run]()
        while True:
            for run in islice(left, jobs - len(going)):
                going[pool.submit(record_of, run, folder, settings)] = run
            if not going:
                return
            for future in wait(going, return_when=FIRST_COMPLETED).done:
                yield going.pop(future), future.result()


@contextmanager
def _one_thread_each() -> Generator[None]:
    added = [name for name in _THREADS if name not in os.environ]
    os.environ.update(dict.fromkeys(added, "1"))
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def record_of(run: Run, folder: Path, settings: CompareSettings) -> Record:
    """Return the stored record of a run, or run again if no valid record exists.

    Raises `CovcalError` if the file has no labelled target rows, or cannot be adapted.
    """
    stem = folder / settings.state / f"{run.path.stem}-seed{run.seed}"
    place, adapted = stem.with_name(f"{stem.name}.json"), stem.with_name(f"{stem.name}.h5")
    sha256 = sha256_of(run.path)
    adapt = None if settings.adapt is None else asdict(settings.adapt)
    made_of = [code_sha256(), sha256, run.seed, adapt, settings.fitted]
    key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()
    note = ""
    if place.exists():
        try:
            record = read_document(Record, place, remedy="delete it")
            if record.key == key:
                record.require_complete(settings.fitted)
                return record
        except (CovcalError, ValueError) as error:
            note = f"the run is repeated, because its stored record is not valid: {error}"
    place.parent.mkdir(parents=True, exist_ok=True)
    watch = Stopwatch()
    measured = _adapted(run, sha256, adapted, settings, watch)
    record = _measured(key, measured, run.seed, settings, watch)
    write_document(record, place, force=True)
    return replace(record, note=note)


def _adapted(
    run: Run, sha256: str, output: Path, settings: CompareSettings, watch: "Stopwatch"
) -> Path:
    useful = any(name == AUTO or METHODS[name].gains_by_adapt for name in settings.fitted)
    if settings.adapt is None or not useful:
        return run.path
    with FeatureFile(run.path) as file:
        n_features = file.require_source().n_features
        if file.is_adapted or n_features is None:
            return run.path
    numbers = settings.adapt.training(n_features)
    made_of = {
        FEATURES_SHA256: sha256,
        "seed": run.seed,
        "preset": numbers.preset,
        "members": numbers.members,
    }
    if settings.adapt.weight_decay is not None:
        made_of["weight_decay"] = settings.adapt.weight_decay
    if not (output.exists() and _is_made_of(output, made_of)):
        from covcal_cli.adapt.adapt import adapt

        of_seed = AdaptSettings(**asdict(settings.adapt) | {"seed": run.seed})
        adapt(run.path, output, of_seed, force=True, progress=watch)
    return output


def _is_made_of(output: Path, attributes: Mapping[str, object]) -> bool:
    try:
        with FeatureFile(output) as file:
            return all(file.attributes.get(name) == value for name, value in attributes.items())
    except CovcalError:
        return False


def _measured(
    key: str, path: Path, seed: int, settings: CompareSettings, watch: "Stopwatch"
) -> Record:
    fitted, refused = {}, {}
    watch.start()
    for name in settings.fitted:
        if name == NONE:
            continue
        try:
            fitted[name] = calibrate(
                path, CalibrateSettings(method=name, seed=seed, allow_limit=True, labels="none")
            )
        except CovcalError as error:
            refused[name] = str(error)
        watch.stop(name)
    evaluation = evaluate(path, fitted)
    try:
        estimates = estimate(path, EstimateSettings(seed=seed, labels="none")).estimates
    except CovcalError:
        estimates = ()
    return Record(
        key=key,
        seed=seed,
        measured=path,
        n=evaluation.n,
        metrics={
            name: {metric: metrics.value(metric) for metric in METRICS}
            for name, metrics in evaluation.metrics.items()
        },
        fits={name: _fit_of(calibration) for name, calibration in fitted.items()},
        refused=refused,
        estimates=estimates,
        seconds=watch.spent,
    )


def _fit_of(calibration: Calibration) -> Fit:
    health = calibration.weights or {}
    return Fit(
        method_used=calibration.method_used,
        reason=calibration.reason,
        forecaster=calibration.forecaster,
        temperature=calibration.forecaster_temperature,
        ess_share=health.get("ess_share"),
        guards=calibration.guards,
        warnings=calibration.warnings,
    )


class Stopwatch:
    """A progress callback that adds up the time of each stage."""

    def __init__(self) -> None:
        self.spent: dict[str, Duration] = {}
        self.start()

    def start(self) -> None:
        """Start counting."""
        self._last = time.perf_counter(), time.process_time()

    def stop(self, stage: str) -> None:
        """Add the elapsed time to a stage."""
        (wall, cpu), before = self._last, self.spent.get(stage, Duration(0.0, 0.0))
        self.start()
        self.spent[stage] = Duration(
            before.wall + self._last[0] - wall, before.cpu + self._last[1] - cpu
        )

    def __call__(self, progress: Progress) -> None:
        """Add the elapsed time to the stage of `progress`."""
        self.stop(progress.stage)


PACKAGE = Path(__file__).parents[1]
# The code on which results depend.
NUMERICAL = (
    "arrays.py",
    "hdf5.py",
    "multilabel.py",
    "records.py",
    "maths",
    "forecast.py",
    "labels",
    "formats",
    "estimators",
    "adapt",
    "calibrate",
    "evaluate",
    "compare/runs.py",
)


@cache
def code_sha256(parts: Sequence[str] = NUMERICAL, folder: Path = PACKAGE) -> str:
    """Return a hash of the code in modules and packages."""
    digest = hashlib.sha256()
    for part in parts:
        path = folder / part
        for module in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(module.read_bytes())
    return digest.hexdigest()
