"""One run: a shift with a seed is adapted, every method fitted and judged, and a record kept.

Runs are independent of each other, so that several can go at a time, and one that was cut off goes
on where it was: adapted files and records stay in a folder, each known by what it was made of.
"""

import hashlib
import json
import os
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import ClassVar

from covcal_cli.adapt.settings import AdaptSettings
from covcal_cli.calibrate.calibrate import calibrate
from covcal_cli.calibrate.estimate import estimate
from covcal_cli.calibrate.methods import AUTO, METHODS
from covcal_cli.calibrate.settings import CalibrateSettings, EstimateSettings
from covcal_cli.compare.code import code_sha256
from covcal_cli.compare.stopwatch import Duration, Stopwatch
from covcal_cli.errors import CovcalError
from covcal_cli.estimators.inputs import Estimate
from covcal_cli.evaluate.evaluate import evaluate
from covcal_cli.evaluate.metrics import METRICS
from covcal_cli.files import sha256_of
from covcal_cli.forecast.forecaster import NONE
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.features import FEATURES_SHA256, FeatureFile
from covcal_cli.records import (
    Document,
    Guard,
    read_document,
    require_at_least,
    require_one_of,
    write_document,
)

# What needs no word of the user on each shift.
ALL = (AUTO, *(name for name, method in METHODS.items() if not method.needs_prior))
# The classifier as it is, and the calibration without a look at the target: what a method that
# looks at it must beat.
BASELINES = (NONE, "temp")
# What numerical libraries ask how many threads they may use.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    """What ``covcal compare`` can be told."""

    methods: tuple[str, ...] = ALL  # to fit; `BASELINES` are always beside them
    seeds: int = 5  # of adapt and calibrate: 0, 1, ...
    metric: str = "ece"  # that ranks the methods
    # How files are adapted, but for the seed, which is the run's; None: they are taken as they are.
    adapt: AdaptSettings | None = field(default_factory=AdaptSettings)
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

    @property
    def state(self) -> str:
        """What files are brought into: the name of the folder for what is kept of it."""
        asked = self.adapt
        if asked is None:
            return "without-adapt"
        decay = "" if asked.weight_decay is None else f"-wd{asked.weight_decay:g}"
        return f"{asked.preset}{decay}" + (f"-{asked.members}members" if asked.members else "")


@dataclass(frozen=True)
class Run:
    """What is measured at a time."""

    shift: str
    path: Path  # a features file, or an adapted one, which is taken as it is
    seed: int


@dataclass(frozen=True)
class Fit:
    """What a record keeps of a calibration."""

    method_used: str
    reason: str
    forecaster: str  # whose logits the temperature divides
    temperature: float
    ess_share: float | None  # effective share of source validation rows, where there are weights
    guards: tuple[Guard, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Record(Document):
    """What one run found."""

    schema: ClassVar[str] = "covcal.compare-run/1"

    key: str  # hash of everything that the numbers depend on
    seed: int
    measured: Path  # the file that was judged
    n: int  # its target rows that were
    metrics: Mapping[str, Mapping[str, float | None]]  # by method, then by metric
    fits: Mapping[str, Fit]  # by method, but for `none`
    refused: Mapping[str, str]  # methods that the file does not fit, and why
    estimates: tuple[Estimate, ...]  # of the accuracy, the combined one first; perhaps none
    seconds: Mapping[
        str, Duration
    ]  # on the stages of adapt, unless done before, and on each method

    def temperature(self, method: str) -> float:
        """Return T of a method that ran."""
        return self.fits[method].temperature if method in self.fits else 1.0


def finished(
    runs: Sequence[Run], folder: Path, settings: CompareSettings
) -> Generator[tuple[Run, Record]]:
    """Yield runs with their records as they are done, or found to be done."""
    if settings.jobs == 1:
        for run in runs:
            yield run, record_of(run, folder, settings)
        return
    with (
        _one_thread_each(),
        ProcessPoolExecutor(settings.jobs, mp_context=get_context("spawn")) as pool,
    ):
        # No more than are worked on: what waits in the pool is begun even after Ctrl-C.
        left, going = iter(runs), dict[Future[Record], Run]()
        while True:
            for run in islice(left, settings.jobs - len(going)):
                going[pool.submit(record_of, run, folder, settings)] = run
            if not going:
                return
            for future in wait(going, return_when=FIRST_COMPLETED).done:
                yield going.pop(future), future.result()


@contextmanager
def _one_thread_each() -> Generator[None]:
    """Let processes that start meanwhile use one thread unless told otherwise: more compete."""
    added = [name for name in _THREADS if name not in os.environ]
    os.environ.update(dict.fromkeys(added, "1"))
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def record_of(run: Run, folder: Path, settings: CompareSettings) -> Record:
    """Return the record of one run, made anew where it does not stand already.

    Raises
    ------
    CovcalError
        If the file has no labelled target rows to judge, or cannot be adapted.
    """
    stem = folder / settings.state / f"{run.path.stem}-seed{run.seed}"
    place, adapted = stem.with_name(f"{stem.name}.json"), stem.with_name(f"{stem.name}.h5")
    sha256 = sha256_of(run.path)
    asked = None if settings.adapt is None else asdict(settings.adapt)
    made_of = [code_sha256(), sha256, run.seed, asked, settings.fitted]
    key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()
    if place.exists():
        try:
            record = read_document(Record, place, remedy="it is made again")
            if record.key == key:
                return record
        except CovcalError:
            pass  # damaged or of another kind: made again below
    place.parent.mkdir(parents=True, exist_ok=True)
    watch = Stopwatch()
    measured = _adapted(run, sha256, adapted, settings, watch)
    record = _measured(key, measured, run.seed, settings, watch)
    write_document(record, place, force=True)
    return record


def _adapted(
    run: Run, sha256: str, output: Path, settings: CompareSettings, watch: Stopwatch
) -> Path:
    """Return the adapted file of a run, or the run's own where there is nothing to adapt."""
    wanted = any(name == AUTO or METHODS[name].gains_by_adapt for name in settings.fitted)
    if settings.adapt is None or not wanted:
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

        asked = AdaptSettings(**asdict(settings.adapt) | {"seed": run.seed})
        adapt(run.path, output, asked, force=True, progress=watch)
    return output


def _is_made_of(output: Path, attributes: Mapping[str, object]) -> bool:
    try:
        with FeatureFile(output) as file:
            return all(file.attributes.get(name) == value for name, value in attributes.items())
    except CovcalError:
        return False


def _measured(
    key: str, path: Path, seed: int, settings: CompareSettings, watch: Stopwatch
) -> Record:
    """Fit every method on a file, and judge all in one pass over its labelled test rows."""
    fitted, refused = {}, {}
    watch.start()
    for name in settings.fitted:
        if name == NONE:  # `evaluate` has it beside the others
            continue
        try:
            fitted[name] = calibrate(
                path,
                # Labels judge, marked ones too.
                CalibrateSettings(method=name, seed=seed, allow_limit=True, labels="none"),
            )
        except CovcalError as error:
            refused[name] = str(error)
        watch.stop(name)
    evaluation = evaluate(path, fitted)
    try:
        estimates = estimate(path, EstimateSettings(seed=seed, labels="none")).estimates
    except CovcalError:  # the file allows none
        estimates = ()
    return Record(
        key=key,
        seed=seed,
        measured=path,
        n=evaluation.n,
        metrics={
            name: {metric: found.value(metric) for metric in METRICS}
            for name, found in evaluation.metrics.items()
        },
        fits={name: _kept(calibration) for name, calibration in fitted.items()},
        refused=refused,
        estimates=estimates,
        seconds=watch.spent,
    )


def _kept(calibration: Calibration) -> Fit:
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
