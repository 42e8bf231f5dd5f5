"""A calibrator of logits in memory, in scikit-learn's conventions, on the mathematics of the files.

The arrays become a features file in memory whose source rows are all validation rows, and whose
target rows likewise; then the very functions behind ``covcal calibrate`` and ``covcal estimate``
run on it, so that the numbers are those of the command line.
"""

import hashlib
import inspect
import io
import warnings
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import ArrayLike

from covcal_cli.arrays import UNKNOWN_LABEL, AnyArray, Float64s, Labels
from covcal_cli.calibrate.calibrate import calibrate_file
from covcal_cli.calibrate.estimate import estimate_file
from covcal_cli.calibrate.methods import AUTO, METHODS, SOURCE_PRIOR
from covcal_cli.calibrate.problem import Problem
from covcal_cli.calibrate.settings import CalibrateSettings
from covcal_cli.estimators.inputs import Estimate
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.features import FEATURES_SCHEMA, SPLITS, FeatureFile
from covcal_cli.maths.masks import valid_rows
from covcal_cli.maths.softmax import class_major
from covcal_cli.maths.temperature import Loss
from covcal_cli.maths.weights import DEFAULT_MAX_WEIGHT

_SHOWS_PROBABILITIES = 8  # rows of logits do not all sum to 1 by chance
_WHERE = Path("the arrays")  # the file, in messages


class Calibrator:
    """A temperature for a classifier's logits, to recalibrate its confidence on a shifted target.

    Parameters
    ----------
    method : str
        ``"auto"``, or one of `covcal_cli.calibrate.methods.METHODS` that needs logits alone.
    loss : {"brier", "nll"}
        What fitted temperatures minimise.
    target_prior : str
        Class frequencies on the target: ``source``, ``uniform``, ``bbse``, or a JSON file.
    max_weight : float
        The largest importance weight, at least 1.
    seed : int
        Chooses rows where there are more than the fits use.
    allow_limit : bool
        Take a temperature at a limit of its search interval, which no data can justify, with a
        warning instead of an error.

    Attributes
    ----------
    temperature_ : float
        T; probabilities are softmax(z / T), plus b in the exponent for methods with a prior.
    method_ : str
        The method in force, and `reason_` why in one sentence.
    estimate_ : Estimate or None
        The accuracy to expect on the target: ``accuracy``, ``low``, ``high``, ``trusted``. None
        where the rows are too few for any.
    classes_ : array, shape (K,)
        The classes in the order of the logits.
    notes_ : tuple of str
        What to know; what to look into is warned of when fitting.
    calibration_ : Calibration
        All that was found, as cal.json holds it.
    """

    def __init__(
        self,
        method: str = AUTO,
        *,
        loss: Loss = "brier",
        target_prior: str = SOURCE_PRIOR,
        max_weight: float = DEFAULT_MAX_WEIGHT,
        seed: int = 0,
        allow_limit: bool = False,
    ) -> None:
        self.method, self.loss, self.target_prior = method, loss, target_prior
        self.max_weight, self.seed, self.allow_limit = max_weight, seed, allow_limit

    def fit(
        self,
        source_logits: ArrayLike,
        source_labels: ArrayLike,
        target_logits: ArrayLike,
        *,
        classes: ArrayLike | None = None,
    ) -> Self:
        """Fit T; no label of the target is asked for.

        Parameters
        ----------
        source_logits : array, shape (n, K), or (n,) for the second of two classes
            Of labelled rows that the classifier was not trained on; or logarithms of probabilities.
        source_labels : array, shape (n,)
            Class numbers 0 to K-1, or names.
        target_logits : array, shape (m, K) or (m,)
        classes : array, shape (K,), optional
            Names of the classes in the order of the logits; by default the sorted names that occur
            among the labels, as scikit-learn orders them.

        Raises
        ------
        ValueError
            If shapes, values or labels do not fit together, or the method needs more than logits.
        CovcalError
            If there are too few rows, the prior cannot be read, or T is at a limit.
        """
        source, target = (
            _logits(source_logits, "source_logits"),
            _logits(target_logits, "target_logits"),
        )
        if source.shape[1] != target.shape[1]:
            raise ValueError(
                f"source_logits have {source.shape[1]} classes and target_logits {target.shape[1]}"
            )
        labels, names = _labels(source_labels, source.shape, classes)
        settings = CalibrateSettings(
            method=self.method,
            loss=self.loss,
            target_prior=self.target_prior,
            max_weight=self.max_weight,
            seed=self.seed,
            allow_limit=self.allow_limit,
        )
        self._require_logits_alone()
        with _ArrayFile(source, labels, target, [str(name) for name in names]) as file:
            problem = Problem(file, settings, self.loss)
            found = calibrate_file(problem, settings)
            if self.loss != "brier":  # which an estimate's T_s always minimises
                problem = Problem(file, settings)
            readable = problem.missing_for_estimate is None
            self.estimate_: Estimate | None = (
                estimate_file(problem).estimates[0] if readable else None
            )
        self.calibration_: Calibration = found
        self.temperature_: float = found.forecaster_temperature
        self.method_, self.reason_ = found.method_used, found.reason
        self.notes_: tuple[str, ...] = found.notes
        self.classes_: AnyArray = names
        for text in found.warnings:
            warnings.warn(text, stacklevel=2)
        return self

    def predict_proba(self, logits: ArrayLike) -> Float64s:
        """Return calibrated probabilities, shape (n, K).

        The largest stays where it was, unless the method corrects for a prior.
        """
        rows = self._rows(logits)
        forecast = self.calibration_.scaling.forecast([class_major(rows)])
        probabilities: Float64s = forecast.probabilities.T
        return probabilities

    def predict(self, logits: ArrayLike) -> AnyArray:
        """Return the classifier's own labels, shape (n,), which no calibration changes."""
        labels: AnyArray = self.classes_[self._rows(logits).argmax(axis=1)]
        return labels

    def _rows(self, logits: ArrayLike) -> Float64s:
        """Return logits as (n, K); refuse them before a fit, or with other classes."""
        if not hasattr(self, "temperature_"):
            raise ValueError("this Calibrator is not fitted yet: call fit first")
        rows = _logits(logits, "logits")
        if rows.shape[1] != len(self.classes_):
            raise ValueError(f"logits have {rows.shape[1]} classes, not {len(self.classes_)}")
        return rows

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return what the calibrator was made with, as scikit-learn's ``clone`` asks."""
        del deep
        return {name: getattr(self, name) for name in _parameters()}

    def set_params(self, **given: Any) -> Self:
        """Change what the calibrator was made with."""
        unknown = sorted(set(given) - set(_parameters()))
        if unknown:
            raise ValueError(f"Calibrator has no {unknown[0]}: it has {', '.join(_parameters())}")
        for name, value in given.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        """Return the call that makes it, without what is as by default."""
        usual = Calibrator().get_params()
        changed = {n: value for n, value in self.get_params().items() if value != usual[n]}
        return f"Calibrator({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether `fit` was called."""
        return hasattr(self, "temperature_")

    def _require_logits_alone(self) -> None:
        if self.method == AUTO:
            return
        method = METHODS[self.method]
        if method.forecaster != "original" or "importance weights" in method.needs:
            raise ValueError(
                f"method {method.name} needs more than logits: extract and adapt files, and use "
                "covcal.calibrate"
            )


class _ArrayFile(FeatureFile):
    """A features file that lies in memory."""

    def __init__(
        self, source: Float64s, labels: Labels, target: Float64s, classes: list[str]
    ) -> None:
        handle = h5py.File(io.BytesIO(), "w")
        self._digest = hashlib.sha256()
        unknown = np.full(len(target), UNKNOWN_LABEL, dtype=np.int64)
        for name, logits, known in (("source", source, labels), ("target", target, unknown)):
            content: dict[str, AnyArray] = {
                "logits": logits.astype(np.float32),
                "labels": known,
                "split": np.full(len(logits), SPLITS.index("validation"), dtype=np.uint8),
                "ids": np.char.encode(np.arange(len(logits)).astype(str), "utf-8"),
            }
            for key, values in content.items():
                handle[f"{name}/{key}"] = values
                self._digest.update(values.tobytes())
        handle["classes"] = np.array([text.encode("utf-8") for text in classes])
        handle.attrs.update(
            {"schema": FEATURES_SCHEMA, "model_name": "logits", "model_sha256": "", "complete": 1}
        )
        super().__init__(_WHERE, handle)

    def __exit__(self, *error: object) -> None:
        self.handle.close()

    def sha256(self) -> str:
        """Return the sha256 of the arrays."""
        return self._digest.hexdigest()


def _logits(values: ArrayLike, name: str) -> Float64s:
    """Return logits as (n, K) float64; of one number a row, the logits 0 and z of two classes."""
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim == 1:
        rows = np.stack([np.zeros_like(rows), rows], axis=1)
    if rows.ndim != 2 or rows.shape[1] < 2 or len(rows) == 0:
        raise ValueError(f"{name} must be of shape (n, K) with K of at least 2, not {rows.shape}")
    bad = np.flatnonzero(~valid_rows(rows))
    if len(bad):
        raise ValueError(f"{name}: row {bad[0]} is not finite")
    # Of a few rows it may be chance, and of one number a row the logit 1 looks so.
    sums_to_1 = rows.min() >= 0 and np.allclose(rows.sum(axis=1), 1, atol=1e-3)
    if sums_to_1 and len(rows) >= _SHOWS_PROBABILITIES and np.ndim(values) == 2:
        raise ValueError(f"{name}: every row sums to 1, as probabilities do: give np.log of them")
    return rows


def _labels(
    values: ArrayLike, shape: tuple[int, ...], classes: ArrayLike | None
) -> tuple[Labels, AnyArray]:
    """Return the class number of every row, and the classes in the order of the logits."""
    given, (n, k) = np.asarray(values), shape
    if given.shape != (n,):
        raise ValueError(f"source_labels must be of shape ({n},), not {given.shape}")
    names = None if classes is None else np.asarray(classes)
    if names is None and given.dtype.kind in "iub":
        names = np.arange(k)
    elif names is None:
        names = np.unique(given)
    if names.shape != (k,) or len(np.unique(names)) < k:
        raise ValueError(
            f"there are {k} logits a row and {len(np.unique(names))} classes: give classes, in the "
            "order of the logits"
        )
    order = np.argsort(names)
    places = np.searchsorted(names[order], given).clip(0, k - 1)
    found: Labels = order[places].astype(np.int64)
    strange = np.flatnonzero(names[found] != given)
    if len(strange):
        known = ", ".join(map(str, names[:5])) + (", ..." if k > 5 else "")
        raise ValueError(
            f"source_labels: row {strange[0]} is {given[strange[0]]!s}, which is none of the "
            f"classes {known}: give classes, in the order of the logits"
        )
    return found, names


def _parameters() -> tuple[str, ...]:
    return tuple(inspect.signature(Calibrator).parameters)
