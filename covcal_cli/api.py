"""The public Python API of covcal: its commands on files, and classes on arrays.

    import covcal_cli.api as covcal

    covcal.extract("model.onnx", "source", "target", "features.h5")
    calibration = covcal.calibrate("features.h5", covcal.CalibrateSettings(labels=50))
    covcal.write_document(calibration, "cal.json", force=True)

    calibrator = covcal.Calibrator().fit(source_logits, source_labels, target_logits)
    probabilities = calibrator.predict_proba(new_logits)

    # Accept rows so that at most 5 % of them are wrong. Labels of random rows prove this limit.
    decision = covcal.Decision(error=0.05, temperature=calibrator.temperature_)
    accept = decision.fit(target_logits, rows, labels).accept(new_logits)

    # Judge later rows, as covcal watch does: "holds", "off" or "not known".
    watch = covcal.Watch("cal.json", history="watch.jsonl")
    print(watch.observe(new_logits, period="2026-11-29").answer)

The names in `__all__` are public, and keep their meaning within a major version. Results may get
more fields. All other names are private and may change. A module is loaded when one of its names is
first used. A wrong argument raises a `CovcalError`.

Set the environment variable OPENBLAS_NUM_THREADS to 1 before NumPy is imported, as the command
``covcal`` does. Otherwise, waiting threads of OpenBLAS take processor time: `calibrate` of 2 x
30,000 rows with 64 features took 4.1 processor seconds instead of 0.9.

Classes such as `CalibrateSettings` hold the options of a command, and ``covcal calibrate --help``
explains these options. Some options have another name:

- `allow_limit` is ``--force`` of calibrate.
- `resamples` and `level` are ``--bootstrap`` and ``--confidence`` of evaluate.
- `outputs` is ``--logits``, ``--probabilities`` or ``--confidence`` of extract.
"""

from importlib import import_module
from inspect import isfunction
from typing import TYPE_CHECKING, Any

from covcal_cli.errors import checked

if TYPE_CHECKING:
    from pathlib import Path

    from covcal_cli.adapt.adapt import adapt
    from covcal_cli.adapt.settings import AdaptSettings
    from covcal_cli.apply.apply import ApplySettings, apply
    from covcal_cli.calibrate.calibrator import Calibrator, calibrated
    from covcal_cli.calibrate.estimate import estimate
    from covcal_cli.calibrate.problem import CalibrateSettings, EstimateSettings
    from covcal_cli.compare.compare import compare
    from covcal_cli.compare.runs import CompareSettings
    from covcal_cli.decide.of_arrays import Decision
    from covcal_cli.errors import CovcalError
    from covcal_cli.evaluate.diagram import ece, reliability_diagram
    from covcal_cli.evaluate.evaluate import EvaluateSettings, evaluate
    from covcal_cli.export.export import export
    from covcal_cli.extract.extract import extract
    from covcal_cli.extract.settings import ExtractSettings
    from covcal_cli.formats.calibration import Calibration, read_calibration
    from covcal_cli.labels.draws import Draw
    from covcal_cli.labels.label import label
    from covcal_cli.labels.pick import PickSettings, pick
    from covcal_cli.labels.target_labels import random_labels
    from covcal_cli.records import write_document
    from covcal_cli.report.report import report
    from covcal_cli.watch.of_arrays import Watch

__all__ = [
    "AdaptSettings",
    "ApplySettings",
    "CalibrateSettings",
    "Calibration",
    "Calibrator",
    "CompareSettings",
    "CovcalError",
    "Decision",
    "Draw",
    "EstimateSettings",
    "EvaluateSettings",
    "ExtractSettings",
    "PickSettings",
    "Watch",
    "adapt",
    "apply",
    "calibrate",
    "calibrated",
    "compare",
    "ece",
    "estimate",
    "evaluate",
    "export",
    "extract",
    "label",
    "pick",
    "random_labels",
    "read_calibration",
    "reliability_diagram",
    "report",
    "write_document",
]

_HOMES = {
    "AdaptSettings": "adapt.settings",
    "ApplySettings": "apply.apply",
    "CalibrateSettings": "calibrate.problem",
    "Calibration": "formats.calibration",
    "Calibrator": "calibrate.calibrator",
    "CompareSettings": "compare.runs",
    "CovcalError": "errors",
    "Decision": "decide.of_arrays",
    "Draw": "labels.draws",
    "EstimateSettings": "calibrate.problem",
    "EvaluateSettings": "evaluate.evaluate",
    "ExtractSettings": "extract.settings",
    "PickSettings": "labels.pick",
    "Watch": "watch.of_arrays",
    "adapt": "adapt.adapt",
    "apply": "apply.apply",
    "calibrated": "calibrate.calibrator",
    "compare": "compare.compare",
    "ece": "evaluate.diagram",
    "estimate": "calibrate.estimate",
    "evaluate": "evaluate.evaluate",
    "export": "export.export",
    "extract": "extract.extract",
    "label": "labels.label",
    "pick": "labels.pick",
    "random_labels": "labels.target_labels",
    "read_calibration": "formats.calibration",
    "reliability_diagram": "evaluate.diagram",
    "report": "report.report",
    "write_document": "records",
}


def fit_file(
    path: "str | Path",
    settings: "CalibrateSettings | None" = None,
    labels: "Draw | None" = None,
) -> "Calibration":
    """Fit a method. Errors name command line options."""
    from covcal_cli.calibrate.calibrate import calibrate as fit
    from covcal_cli.calibrate.problem import CalibrateSettings
    from covcal_cli.labels.target_labels import random_labels

    settings = settings or CalibrateSettings()
    if labels is None and not isinstance(settings.labels, str):
        labels = random_labels(path, settings.labels, settings.seed)
    return fit(path, settings, labels)


@checked
def calibrate(
    path: "str | Path",
    settings: "CalibrateSettings | None" = None,
    labels: "Draw | None" = None,
) -> "Calibration":
    """Fit a method on a features or adapted file.

    No target labels are read, except labels from ``covcal label``. ``CalibrateSettings(labels=50)``
    reads 50 target labels.

    Parameters
    ----------
    path : str or Path
    settings : CalibrateSettings, optional
    labels : Draw, optional
        Labelled target rows for the fit, from `random_labels`.

    Raises
    ------
    CovcalError
        If the method cannot use the file, or T is at a limit of its interval.
    """
    return fit_file(path, settings, labels)


def __getattr__(name: str) -> Any:
    """Load a public name from its module when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"covcal's API has no {name!r}: it has {', '.join(__all__)}")
    value = getattr(import_module(f"covcal_cli.{_HOMES[name]}"), name)
    if isfunction(value):
        value = checked(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
