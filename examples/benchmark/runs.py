"""One run: a shift and a seed, every method fitted, measured on the target's test rows.

A finished run leaves a record; the same code on the same files is never run again.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from reproduction.code import FITTING, code_sha256

from benchmark.families import Case
from benchmark.labels import read_truth
from benchmark.prepare import adapted_file, features_file
from covcal_cli.calibrate.calibrate import CalibrateSettings, calibrate
from covcal_cli.calibrate.estimate import estimate
from covcal_cli.calibrate.methods import AUTO, METHODS
from covcal_cli.calibrate.problem import EstimateSettings
from covcal_cli.errors import CovcalError
from covcal_cli.evaluate.evaluate import evaluate
from covcal_cli.files import write_text
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.features import FeatureFile
from covcal_cli.formats.forecaster import NONE

Record = dict[str, Any]
ORACLE, TRUE_ACCURACY = "oracle temperature", "true accuracy"
# What the labels would allow; see `labels`.
CEILINGS = (TRUE_ACCURACY, ORACLE)
_CODE_SHA256 = [
    code_sha256(*FITTING),
    code_sha256("runs.py", "labels.py", folder=Path(__file__).parent),
]


def run_case(
    case: Case, seeds: Sequence[int], folder: Path, *, adapting: bool = True
) -> list[Record]:
    """Run a shift with every seed, or return the records of having done so.

    A file without features is measured as it is, and every file is unless `adapting`.
    """
    return [_run(case, seed, folder, adapting) for seed in seeds]


def _run(case: Case, seed: int, folder: Path, adapting: bool) -> Record:
    measured = features_file(case, seed, folder)
    if adapting:
        measured = adapted_file(measured, seed, folder)
    with FeatureFile(measured) as file:
        setting = [*_CODE_SHA256, file.sha256(), seed, case.family, case.half]
    key = hashlib.sha256(json.dumps(setting).encode()).hexdigest()
    path = folder / records_folder(adapting) / f"{case.shift}-seed{seed}.json"
    if path.is_file():
        found: Record = json.loads(path.read_text("utf-8"))
        if found["key"] == key:
            return found
    record = {
        "key": key,
        "family": case.family,
        "shift": case.shift,
        "seed": seed,
        "half": case.half,
        **measure(measured, seed),
    }
    path.parent.mkdir(exist_ok=True)
    write_text(path, json.dumps(record, indent=1) + "\n", force=True)
    return record


def records_folder(adapting: bool) -> str:
    """Return the name of the folder of records; what was not adapted has one of its own."""
    return "records" if adapting else "records-without-adapt"


def measure(measured: Path, seed: int) -> Record:
    """Fit every method on a file and measure it.

    Returns
    -------
    dict
        ``methods``: by name ``ece`` and ``over_ece`` (fractions), ``temperature``, ``seconds`` and
        ``warnings``, or ``error`` where the method refused the file; ceilings among them.
        ``auto``: what it took and why. ``truth``: what the labels say (see `labels.Truth`).
        ``estimates``: by name accuracy, low, high and trusted.
    """
    fitted: dict[str, Calibration] = {}
    refused: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for name in (*METHODS, AUTO):
        if name == NONE or (name in METHODS and METHODS[name].needs_prior):
            continue
        start = time.perf_counter()
        try:
            fitted[name] = calibrate(
                measured, CalibrateSettings(method=name, seed=seed, allow_limit=True)
            )
        except CovcalError as error:
            refused[name] = str(error)
        seconds[name] = time.perf_counter() - start
    evaluation = evaluate(measured, fitted)
    truth = read_truth(
        measured,
        [1.0]
        + [one.forecaster_temperature for one in fitted.values() if one.forecaster == "original"],
    )
    methods: Record = {
        name: {"ece": metrics.ece, "over_ece": metrics.over_ece, "temperature": 1.0}
        for name, metrics in evaluation.metrics.items()
    }
    for name, one in fitted.items():
        methods[name] |= {
            "temperature": one.forecaster_temperature,
            "seconds": seconds[name],
            "warnings": list(one.warnings),
        }
    methods |= {name: {"error": text} for name, text in refused.items()}
    methods[TRUE_ACCURACY] = {"ece": truth.matched_ece, "temperature": truth.matched_temperature}
    methods[ORACLE] = {"ece": truth.oracle_ece, "temperature": truth.oracle_temperature}
    auto = fitted[AUTO]
    return {
        "n_test": evaluation.n,
        "methods": methods,
        "auto": {
            "method_used": auto.method_used,
            "reason": auto.reason,
            "guards": [asdict(guard) for guard in auto.guards],
        },
        "truth": {
            name: getattr(truth, name)
            for name in ("source_accuracy", "prior_drift", "accuracy", "test_accuracy")
        },
        "estimates": _estimates(measured, seed),
    }


def _estimates(measured: Path, seed: int) -> Record:
    return {
        one.name: {
            "accuracy": one.accuracy,
            "low": one.low,
            "high": one.high,
            "trusted": one.trusted,
        }
        for one in estimate(measured, EstimateSettings(seed=seed)).estimates
    }
