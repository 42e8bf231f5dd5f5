"""The public Python API of covcal: functions for files, and classes for arrays.

>>> import covcal_cli.api as covcal

>>> covcal.extract("model.onnx", "source", "target", "features.h5")
>>> calibration = covcal.calibrate("features.h5", covcal.CalibrateSettings(labels=50))
>>> covcal.write_document(calibration, "cal.json", force=True)

>>> calibrator = covcal.Calibrator().fit(source_logits, source_labels, target_logits)
>>> probabilities = calibrator.predict_proba(new_logits)

>>> # Accept rows with an error rate of at most 5 %, tested with the labels of random rows.
>>> decision = covcal.Decision(error=0.05, temperature=calibrator.temperature_)
>>> accept = decision.fit(target_logits, rows, labels).accept(new_logits)

>>> # Check the calibration on later rows. The answer is "holds", "off" or "not known".
>>> watch = covcal.Watch("cal.json", history="watch.jsonl")
>>> print(watch.observe(new_logits, period="2026-11-29").answer)

The names in `__all__` are public, and keep their meaning within a major version. Later versions may
add fields to results. All other names are private and may change. Modules are imported on first
use. A wrong argument raises a `CovcalError`.

Waiting OpenBLAS threads use processor time. For example, `calibrate` took 4.1 instead of 0.9
processor seconds on 2 x 30,000 rows with 64 features. Long fits use one thread if the package
threadpoolctl is installed (scikit-learn installs it). Without this package, set the environment
variable OPENBLAS_NUM_THREADS to 1 before NumPy is imported.

Classes such as `CalibrateSettings` hold the options of a command, and ``covcal calibrate --help``
explains these options. Some arguments and options have different names:

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

    from covcal_cli.adapt.adapt import adapt as adapt
    from covcal_cli.adapt.settings import AdaptSettings as AdaptSettings
    from covcal_cli.apply.apply import ApplySettings as ApplySettings
    from covcal_cli.apply.apply import apply as apply
    from covcal_cli.calibrate.calibrator import Calibrator as Calibrator
    from covcal_cli.calibrate.calibrator import calibrated as calibrated
    from covcal_cli.calibrate.estimate import estimate as estimate
    from covcal_cli.calibrate.problem import CalibrateSettings as CalibrateSettings
    from covcal_cli.calibrate.problem import EstimateSettings as EstimateSettings
    from covcal_cli.compare.compare import compare as compare
    from covcal_cli.compare.runs import CompareSettings as CompareSettings
    from covcal_cli.decide.of_arrays import Decision as Decision
    from covcal_cli.errors import CovcalError as CovcalError
    from covcal_cli.evaluate.diagram import ece as ece
    from covcal_cli.evaluate.diagram import reliability_diagram as reliability_diagram
    from covcal_cli.evaluate.evaluate import EvaluateSettings as EvaluateSettings
    from covcal_cli.evaluate.evaluate import evaluate as evaluate
    from covcal_cli.export.export import export as export
    from covcal_cli.extract.extract import extract as extract
    from covcal_cli.extract.settings import ExtractSettings as ExtractSettings
    from covcal_cli.formats.calibration import Calibration as Calibration
    from covcal_cli.formats.calibration import read_calibration as read_calibration
    from covcal_cli.labels.draws import Draw as Draw
    from covcal_cli.labels.label import label as label
    from covcal_cli.labels.pick import PickSettings as PickSettings
    from covcal_cli.labels.pick import pick as pick
    from covcal_cli.labels.target_labels import random_labels as random_labels
    from covcal_cli.records import write_document as write_document
    from covcal_cli.report.report import report as report
    from covcal_cli.watch.of_arrays import Watch as Watch

# The module of each public name, except `calibrate`.
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
__all__ = sorted([*_HOMES, "calibrate"])


def fit_file(
    path: "str | Path", settings: "CalibrateSettings | None" = None, labels: "Draw | None" = None
) -> "Calibration":
    """Fit a method, with the error messages of the command line."""
    from covcal_cli.calibrate.calibrate import calibrate as fit
    from covcal_cli.calibrate.problem import CalibrateSettings
    from covcal_cli.labels.target_labels import random_labels

    settings = settings or CalibrateSettings()
    if labels is None and not isinstance(settings.labels, str):
        labels = random_labels(path, settings.labels, settings.seed)
    return fit(path, settings, labels)


@checked
def calibrate(
    path: "str | Path", settings: "CalibrateSettings | None" = None, labels: "Draw | None" = None
) -> "Calibration":
    """Fit a method on a features or adapted file.

    By default, the fit uses no target labels except labels from ``covcal label``. With
    ``CalibrateSettings(labels=50)``, the fit uses the labels of 50 random target rows.

    Parameters
    ----------
    path : str or Path
    settings : CalibrateSettings, optional
    labels : Draw, optional
        Labelled target rows for the fit, from `random_labels`.

    Raises
    ------
    CovcalError
        If the method cannot use the file, or the fitted temperature is at a limit of its interval.
    """
    return fit_file(path, settings, labels)


def __getattr__(name: str) -> Any:
    """Import a public function or class on first use."""
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
