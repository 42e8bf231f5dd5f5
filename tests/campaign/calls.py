"""Calls of the Python API with arguments of every wrong type, shape and value.

    python -m tests.campaign.calls --count 2000 --seed 0

A call may succeed, or raise a `CovcalError` whose message a terminal can show. It may not raise
anything else, hang, or print a warning of a library.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import covcal_cli.api as covcal
from tests.campaign.bench import answer, prepare, warm
from tests.campaign.fuzz import LONGEST, UNSEEN

Arguments = Mapping[str, Any]

ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1, 7, 0.5, 1.5, float("nan"), float("inf"), -1e308, 10**30, 1 + 2j,
    "", "x", "\x00", "\ud800", "a\nb\x1b[31m", "a" * 5000, b"x", "features.h5", "cal.json", "none",
    Path("missing"), Path(), Path("/dev/null"), [], (), {}, set(), [None], ["x"], [[1], [2, 3]],
    {"x": 1}, {0: None}, {"x": object()}, object(), Exception, print, np.int64(3),
    np.float32(0.5), np.bool_(True), date(2020, 1, 1), range(3), iter([1, 2]), np.zeros(0),
    np.zeros((3, 3)), "auto", "all",
)  # fmt: skip
N, K = 60, 3
_RNG = np.random.default_rng(0)
LOGITS = 2 * _RNG.normal(size=(N, K))
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
LABELS = (_RNG.random((N, 1)) > PROBABILITIES.cumsum(axis=1)).sum(axis=1).clip(0, K - 1)


def odd_arrays(values: Any) -> list[Any]:
    """Return arrays like `values` that are damaged in type, shape or content."""
    values = np.asarray(values)
    holed = values.astype(float)
    holed.flat[1] = np.nan
    return [
        values.astype(complex), values.astype(str), values.astype(object), values.astype("S8"),
        values.astype(bool), values.astype(np.float16), values.astype(np.uint64), holed,
        np.where(np.isnan(holed), np.inf, holed), np.where(np.isnan(holed), 1e300, holed),
        -holed, holed * 1e300, values[None], values[..., None], values[:0], values[:1], values[:-1],
        np.tile(values, (2,) * values.ndim), values.tolist(), values.T, np.zeros_like(values),
        np.full(values.shape, None), np.full(values.shape, "\ud800"), values.astype("m8[s]"),
        values.astype("M8[s]"), np.array(values.tolist(), dtype=[("a", float)]),
        np.ma.masked_less(values, 0.5), np.asarray(5), memoryview(values.tobytes()),
        {"a": values}, iter(values), [[1], [2, 3]], np.rec.array([(1, "a")]),
    ]  # fmt: skip


def base_calls() -> dict[str, tuple[Callable[..., Any], Arguments]]:
    """Return a valid call of every public function and class, by name."""
    settings = covcal.CalibrateSettings(method="temp")
    features, document = "features.h5", "cal.json"
    calibrator = covcal.Calibrator("temp")
    arrays = {"source_logits": LOGITS, "source_labels": LABELS, "target_logits": LOGITS}
    judged = {"probabilities": PROBABILITIES, "labels": LABELS, "bins": 15, "classes": [0, 1, 2]}

    def predicted(method: str, **arguments: Any) -> Any:
        return getattr(calibrator.fit(**arrays), method)(**arguments)

    def fitted(classes: Any = None, **arguments: Any) -> Any:
        made = covcal.Calibrator(**arguments)
        return made.fit(**arrays, classes=classes).predict_proba(LOGITS)

    def wrapped(**arguments: Any) -> Any:
        return (
            covcal.calibrated(_Nearest(), method="temp")
            .fit(LOGITS, X_target=LOGITS, **arguments)
            .predict_proba(LOGITS)
        )

    def decided(**arguments: Any) -> Any:
        names = ("error", "coverage", "certainty", "temperature")
        decision = covcal.Decision(**{name: arguments.pop(name) for name in names})
        return decision.fit(**arguments).sets(LOGITS)

    def watched(**arguments: Any) -> Any:
        own = ("tolerance", "every", "false_alarms", "stable")
        watch = covcal.Watch(document, **{name: arguments.pop(name) for name in own})
        return watch.observe(**arguments)

    def read(**arguments: Any) -> Any:
        return covcal.evaluate(features, {"temp": covcal.read_calibration(document)}, **arguments)

    return {
        "AdaptSettings": (covcal.AdaptSettings, {"preset": "default", "members": 1, "seed": 0,
            "weight_decay": None, "device": "auto", "threads": 1}),
        "ApplySettings": (lambda **fields: covcal.apply(features, document, "out.csv",
            covcal.ApplySettings(**fields)), {"domain": "target", "split": "all",
            "confidence_only": False, "allow_other_preprocessing": False}),
        "CalibrateSettings": (lambda **fields: covcal.calibrate(features,
            covcal.CalibrateSettings(**fields)), {"method": "temp", "loss": "brier", "seed": 0,
            "max_weight": 20.0, "labels": "auto", "target_prior": "source", "prior_shares": None,
            "allow_limit": False}),
        "CompareSettings": (covcal.CompareSettings, {"methods": ("temp",), "seeds": 1,
            "metric": "ece", "adapt": None, "jobs": 1}),
        "EstimateSettings": (lambda **fields: covcal.estimate(features,
            covcal.EstimateSettings(**fields)), {"max_weight": 20.0, "labels": "auto", "seed": 0,
            "target_prior": "source", "prior_shares": None}),
        "EvaluateSettings": (lambda **fields: read(settings=covcal.EvaluateSettings(**fields)),
            {"split": "test", "bins": 15, "predictions": "original", "by": None, "resamples": 0,
            "level": 0.95, "seed": 0, "metrics": ("ece",), "grouped_by": (),
            "allow_other_preprocessing": False}),
        "ExtractSettings": (lambda **fields: covcal.extract("model.onnx", "source.npz",
            "target.npz", "out.h5", covcal.ExtractSettings(**fields)), {"preprocess": None,
            "classes": None, "fractions": None, "seed": 0, "batch": 64, "threads": 1,
            "trust_model": False, "weights": None, "model_output": None, "phi": None,
            "providers": (), "outputs": None, "skip_unreadable": True}),
        "PickSettings": (lambda **fields: covcal.pick(features, None,
            covcal.PickSettings(**fields)), {"rows": 10, "seed": 0, "splits": ("validation",)}),
        "Calibrator": (fitted, {"method": "temp", "loss": "brier", "target_prior": "source",
            "max_weight": 20.0, "seed": 0, "allow_limit": False, "classes": None}),
        "Calibrator.fit": (lambda **data: covcal.Calibrator("temp").fit(**data), arrays),
        "Calibrator.predict_proba": (lambda **data: predicted("predict_proba", **data),
            {"logits": LOGITS}),
        "Calibrator.score": (lambda **data: predicted("score", **data),
            {"logits": LOGITS, "labels": LABELS}),
        "calibrated": (wrapped, {"y": LABELS}),
        "Decision": (decided, {"error": 0.2, "coverage": 0.9, "certainty": 0.9, "temperature": 2.0,
            "logits": LOGITS, "rows": np.arange(30), "labels": LABELS[:30], "estimate": None}),
        "Watch": (watched, {"logits": LOGITS, "features": None, "labels": LABELS, "period": "w1",
            "join": False, "force": False, "tolerance": 0.05, "every": "week", "stable": 8,
            "false_alarms": 0.05}),
        "ece": (covcal.ece, judged),
        "reliability_diagram": (covcal.reliability_diagram, judged | {"path": None, "title": "x",
            "force": False}),
        "random_labels": (covcal.random_labels, {"path": features, "n": 20, "seed": 0}),
        "read_calibration": (covcal.read_calibration, {"path": document}),
        "write_document": (covcal.write_document, {"content": {"a": 1}, "path": "out.json",
            "force": False}),
        "apply": (covcal.apply, {"path": features, "document": document, "output": "out.csv",
            "settings": covcal.ApplySettings(), "networks": None, "decision": None, "force": False,
            "progress": None}),
        "calibrate": (covcal.calibrate, {"path": features, "settings": settings, "labels": None}),
        "compare": (covcal.compare, {"paths": [features], "folder": "out",
            "settings": covcal.CompareSettings(methods=("temp",), seeds=1, adapt=None),
            "progress": None}),
        "estimate": (covcal.estimate, {"path": features, "settings": covcal.EstimateSettings()}),
        "evaluate": (covcal.evaluate, {"path": features, "calibrations": {},
            "settings": covcal.EvaluateSettings(), "documents": (), "networks": None,
            "earlier": {}}),
        "export": (covcal.export, {"model": "model.onnx", "document": "f.json",
            "output": "out.onnx", "weights": None, "networks": None, "decision": None,
            "model_output": None, "trust_model": False, "force": False}),
        "extract": (covcal.extract, {"model": "model.onnx", "source": "source.npz",
            "target": "target.npz", "output": "out.h5", "settings": covcal.ExtractSettings(),
            "force": False, "resume": False, "beside": None, "progress": None}),
        "label": (covcal.label, {"path": features, "sheets": ["sheet.csv"], "output": "out.h5",
            "partial": False, "resolve": None, "force": False}),
        "pick": (covcal.pick, {"path": features, "output": "out.csv",
            "settings": covcal.PickSettings(rows=10), "calibration": None, "networks": None,
            "earlier": (), "images": None, "page": None, "decision": None, "force": False,
            "progress": None}),
        "report": (covcal.report, {"path": features, "documents": [document],
            "output": "out.html", "settings": covcal.EvaluateSettings(), "names": (),
            "networks": None, "force": False}),
    }  # fmt: skip


class _Nearest:
    """A classifier whose logits are its inputs."""

    classes_ = np.arange(K)

    def decision_function(self, X: Any) -> Any:
        return np.asarray(X, dtype=float)

    def predict(self, X: Any) -> Any:
        return np.asarray(X, dtype=float).argmax(axis=1)


def calls(count: int, seed: int, only: Sequence[str] = ()) -> Counter[str]:
    """Make some `count` calls with one wrong argument each; print counts, and return the faults."""
    start, faults = time.monotonic(), Counter[str]()
    with tempfile.TemporaryDirectory() as made:
        seeds, folder = Path(made) / "seeds", Path(made) / "case"
        prepare(seeds)
        for name in ("source", "target", "run", "covcal-compare"):  # no call reads these folders
            shutil.rmtree(seeds / name)
        warm(("calibrate", "features.h5", "-o", "warm.json"), seeds)
        (seeds / "warm.json").unlink()
        bases = {name: base for name, base in base_calls().items() if not only or name in only}
        for name, (function, arguments) in bases.items():
            counts: Counter[str] = Counter()
            for number in range(-(-count // len(bases))):
                rng = random.Random(f"{seed} {name} {number}")
                changed = dict(arguments)
                victim = rng.choice(list(arguments))
                usual = arguments[victim]
                is_array = isinstance(usual, np.ndarray)
                choices = odd_arrays(usual) if is_array and rng.random() < 0.8 else list(ODD)
                place = rng.randrange(len(choices))
                changed[victim] = choices[place]
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(seeds, folder, copy_function=os.link)
                said = answer(lambda f=function, a=changed: _outcome(f, a, folder))  # type: ignore[misc]
                counts["calls"] += 1
                counts[said if said in ("ok", "refused") else "faults"] += 1
                if said not in ("ok", "refused"):
                    faults[name] += 1
                    print(f"{name} {number}: {victim}={choices[place]!r:.80}: {said}", flush=True)
            print(f"{name}: {dict(counts)}", flush=True)
    print(f"{faults.total()} faults, {time.monotonic() - start:.0f} s (seed {seed})")
    return faults


def _outcome(function: Callable[..., Any], arguments: Arguments, folder: Path) -> str:
    """Be the child: make a call, and return how it ended."""
    os.chdir(folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            function(**arguments)
        except covcal.CovcalError as error:
            text = str(error)
            wrong = UNSEEN.search(text) or "\n" in text or len(text) > LONGEST
            return f"a message that no terminal shows: {text!r}" if wrong else "refused"
        except BaseException as error:
            return f"{type(error).__name__}: {error}"[:300]
    library = [str(item.message) for item in caught if item.category is not UserWarning]
    return f"a warning of a library: {library[0]}"[:300] if library else "ok"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign as the command line says; 1 if there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", default=[], help="a name of the API")
    asked = parser.parse_args(arguments)
    return int(calls(asked.count, asked.seed, asked.only).total() > 0)


if __name__ == "__main__":
    sys.exit(main())
