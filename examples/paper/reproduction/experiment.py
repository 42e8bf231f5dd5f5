"""One run: adapt with one seed, fit every method, measure it on the target's test rows.

A finished run leaves a record; the same setting on the same features file is never run again.
"""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.adapt.adapt import adapt
from covcal_cli.adapt.settings import AdaptSettings
from covcal_cli.calibrate.calibrate import CalibrateSettings, calibrate
from covcal_cli.estimators.guards import MAX_HALF_WIDTH, MAX_PLAUSIBLE_DRIFT, MIN_SIGMA
from covcal_cli.evaluate.bins import ReliabilityBins
from covcal_cli.evaluate.diagram import draw_diagram
from covcal_cli.evaluate.evaluate import EvaluateSettings, evaluate
from covcal_cli.evaluate.metrics import Metrics
from covcal_cli.files import write_text
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.features import FeatureFile
from covcal_cli.maths.temperature import MIN_ERRORS
from covcal_cli.maths.weights import importance_weights
from reproduction.batch import adapt_in_one_batch
from reproduction.code import FITTING, code_sha256
from reproduction.features import Extracted
from reproduction.figures import shrink
from reproduction.shifts import METHODS
from reproduction.stopwatch import Stopwatch

# Methods without chance: they need no adaptation and no seed.
EXACT = ("none", "temp")
Record = dict[str, Any]


# Of the code as it was loaded.
CODE_SHA256 = code_sha256(*FITTING)


@dataclass(frozen=True)
class Preset:
    """How to adapt: ``covcal adapt --preset NAME --weight-decay X``."""

    name: str
    weight_decay: float | None = None
    batched: int | None = None  # so many seeds as members of one run; None: each on its own

    @property
    def tag(self) -> str:
        """Its name for folders."""
        decay = "" if self.weight_decay is None else f"-wd{self.weight_decay:g}"
        return f"{self.name}{decay}{'' if self.batched is None else '-batched'}"


@dataclass(frozen=True)
class Place:
    """Where the runs of one preset leave their files."""

    folder: Path

    def record(self, shift: str, run: str) -> Path:
        """Return the path of the record of a run."""
        return self.folder / "records" / f"{shift}-{run}.json"

    def weights(self, shift: str, seed: int) -> Path:
        """Return the path of the importance weights of a run."""
        return self.folder / "records" / f"{shift}-seed{seed}-weights.npy"

    def adapted(self, shift: str, seed: int, key: str) -> Path:
        """Return the path of the adapted file of a run."""
        return self.folder / "adapted" / f"{shift}-seed{seed}-{key[:12]}.h5"

    def diagram(self, shift: str) -> Path:
        """Return the path of a shift's reliability diagrams."""
        return self.folder / "figures" / f"{shift}-reliability.png"

    def boxes(self, shift: str) -> Path:
        """Return the path of a shift's box plot of importance weights."""
        return self.folder / "figures" / f"{shift}-weights.png"


def setting_of(extracted: Extracted, preset: Preset, seed: int | None) -> dict[str, Any]:
    """Return everything that a run's numbers depend on, ready for JSON."""
    with FeatureFile(extracted.path) as file:
        n_features = file.require_source().n_features or 0
    asked = AdaptSettings(preset=preset.name, weight_decay=preset.weight_decay)
    settings = asked.training(n_features)
    return {
        "code_sha256": CODE_SHA256,
        "features_sha256": extracted.sha256,
        "seed": seed,
        "batched": preset.batched,
        "adapt": None if seed is None else asdict(settings),
        "rule": {
            "sigma": MIN_SIGMA,
            "drift": MAX_PLAUSIBLE_DRIFT,
            "half_width": MAX_HALF_WIDTH,
            "errors": MIN_ERRORS,
        },
    }


def run_exact(extracted: Extracted, preset: Preset, place: Place) -> Record:
    """Measure none and temp on the features file; they involve no chance."""
    path = place.record(extracted.shift.name, "exact")
    key = _key(setting_of(extracted, preset, None))
    if found := _reusable(path, key):
        return found
    start = time.perf_counter()
    temp = calibrate(extracted.path, CalibrateSettings(method="temp", allow_limit=True))
    seconds = time.perf_counter() - start
    evaluation = evaluate(extracted.path, {"temp": temp})
    record: Record = {
        "key": key,
        "shift": extracted.shift.name,
        "methods": {
            name: _measured(evaluation.metrics[name], None if name == "none" else temp)
            for name in EXACT
        },
        "seconds": {"temp": seconds},
    }
    if extracted.shift.all_rows:
        record["none_on_all_rows"] = _none_on_all_rows(extracted.path)
    return _written(record, path)


def adapt_batch(extracted: Extracted, preset: Preset, place: Place) -> float | None:
    """Adapt all seeds of a batched preset; return the seconds, or None when all runs are done."""
    shift, outputs = extracted.shift.name, []
    done = True
    for seed in range(preset.batched or 0):
        key = _key(setting_of(extracted, preset, seed))
        outputs.append(place.adapted(shift, seed, key))
        done = done and _reusable(place.record(shift, f"seed{seed}"), key) is not None
    if done or all(output.is_file() for output in outputs):
        return None
    return adapt_in_one_batch(
        extracted.path, outputs, preset=preset.name, weight_decay=preset.weight_decay
    )


def run_seed(
    extracted: Extracted, preset: Preset, place: Place, seed: int, *, draw: bool, keep: bool
) -> Record:
    """Adapt, fit and measure with one seed, or return the record of having done so.

    Parameters
    ----------
    draw : bool
        Whether this run also draws the shift's reliability diagrams.
    keep : bool
        Keep the adapted file, from which ``covcal calibrate`` and the others can go on.
    """
    shift = extracted.shift.name
    setting = setting_of(extracted, preset, seed)
    path, key = place.record(shift, f"seed{seed}"), _key(setting)
    done = place.weights(shift, seed).is_file() and (not draw or place.diagram(shift).is_file())
    if done and (found := _reusable(path, key)):
        return found
    adapted = place.adapted(shift, seed, key)
    watch = Stopwatch()
    reused = adapted.is_file()
    if not reused:
        adapt(
            extracted.path,
            adapted,
            AdaptSettings(
                preset=preset.name,
                weight_decay=preset.weight_decay,
                seed=seed,
                device="cpu",
                threads=1,
            ),
            progress=watch,
        )
    calibrations: dict[str, Calibration] = {}
    fitting: dict[str, float] = {}
    for method in (*METHODS[1:], "auto"):
        start = time.perf_counter()
        calibrations[method] = calibrate(
            adapted, CalibrateSettings(method=method, seed=seed, allow_limit=True)
        )
        fitting[method] = time.perf_counter() - start
    evaluation = evaluate(adapted, calibrations)
    measured = {"none": None, **calibrations}
    auto = calibrations["auto"]
    record: Record = {
        "key": key,
        "shift": shift,
        "setting": setting,
        "methods": {
            name: _measured(evaluation.metrics[name], calibration)
            for name, calibration in measured.items()
            if name != "auto"
        },
        "auto": {
            "method_used": auto.method_used,
            "reason": auto.reason,
            **_measured(evaluation.metrics["auto"], auto),
        },
        "seconds": {**({} if reused else watch.seconds()), "temperatures": fitting},
    }
    np.save(place.weights(shift, seed), _source_weights(adapted))
    if draw:
        shown = {name: evaluation.metrics[name] for name in METHODS}
        title = f"{shift}, target test rows, seed {seed}, preset {preset.tag}"
        draw_diagram(shown, place.diagram(shift), title=title, force=True)
        shrink(place.diagram(shift))
    if not keep:
        adapted.unlink()
    return _written(record, path)


def _measured(metrics: Metrics, calibration: Calibration | None) -> Record:
    """Return what a record keeps of one method; metrics are fractions."""
    found: Record = dict(metrics.to_json())
    found["temperature"] = None if calibration is None else calibration.forecaster_temperature
    found["weights"] = None if calibration is None else calibration.weights
    found["warnings"] = [] if calibration is None else list(calibration.warnings)
    return found


def _none_on_all_rows(path: Path) -> Record:
    """Return the uncalibrated error over every target row, of all splits."""
    splits = ("train", "validation", "test")
    parts = [
        evaluate(path, {}, EvaluateSettings(split=split)).metrics["none"].bins for split in splits
    ]
    together = ReliabilityBins(
        np.sum([part.counts for part in parts], axis=0),
        np.sum([part.hits for part in parts], axis=0),
        np.sum([part.confidence_sums for part in parts], axis=0),
    )
    return {"n": together.n, "ece": together.ece(), "over_ece": together.over_ece()}


def _source_weights(adapted: Path) -> np.ndarray[Any, Any]:
    """Return fl+iw+temp's importance weights w of all source validation rows, shape (n,)."""
    with FeatureFile(adapted) as file:
        source, target = file.require_source(), file.require_target()
        found = importance_weights(
            source.aligned_domain_logits(source.rows("validation")),
            target.aligned_domain_logits(target.rows("validation")),
        )
    return found.weights


def _key(setting: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(setting, sort_keys=True).encode()).hexdigest()


def _reusable(path: Path, key: str) -> Record | None:
    if not path.is_file():
        return None
    record: Record = json.loads(path.read_text("utf-8"))
    return record if record["key"] == key else None


def _written(record: Record, path: Path) -> Record:
    write_text(path, json.dumps(record, indent=1) + "\n", force=True)
    return record
