"""Calibrate logits in memory, with scikit-learn's conventions.

A features file in memory holds the arrays, so the results are the same as with the commands.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import io
import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import ArrayLike

from covcal_cli.array_arguments import (
    WHOLE,
    array_of,
    class_numbers,
    classes_among,
    columns_like,
    columns_of,
    form_of,
    labels_of,
    logits_of,
    numbers_of,
    require_class_order,
    require_columns,
    require_like_fit,
)
from covcal_cli.arrays import UNKNOWN_LABEL, AnyArray, Float64s, Labels
from covcal_cli.calibrate.calibrate import calibrate_file
from covcal_cli.calibrate.methods import AUTO, METHODS, SOURCE_PRIOR
from covcal_cli.calibrate.problem import CalibrateSettings, Problem
from covcal_cli.errors import ArgumentError, CovcalError, checked_names, in_python, shown
from covcal_cli.estimators.inputs import Estimate
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.features import FEATURES_SCHEMA, SPLITS, FeatureFile
from covcal_cli.maths.odds import confidences
from covcal_cli.maths.output_form import BELOW, log_probabilities
from covcal_cli.maths.softmax import class_major, to_float32
from covcal_cli.maths.source_accuracy import SourceAccuracy
from covcal_cli.maths.temperature import Loss
from covcal_cli.maths.weights import DEFAULT_MAX_WEIGHT

_WHERE = Path("the arrays")
_PRIOR_TOLERANCE = 1e-3
_IN_PYTHON = (
    (" with --classes, and extract again", " with classes"),
    (": extract it together with the source", ": pass target_logits"),
    (": extract the source from class folders, or give y", ": give source_labels"),
    (" with covcal pick", ""),
)
# Limits of the test that detects class votes: maximum number of rows, and significance level.
_FEW, _UNLIKELY = 3, 0.005


class Calibrator:
    """Calibrate a classifier's confidence for a shifted target.

    Parameters
    ----------
    method : str
        ``"auto"``, or a method that needs only logits: ``"none"``, ``"temp"``, ``"label-shift"``,
        ``"cot"``, ``"prior"``, ``"prior+cot"``, ``"consensus"`` or ``"atc"``.
    loss : {"brier", "nll"}
        The loss that the temperature minimises.
    target_prior : str, dict or array of shape (K,)
        Class frequencies on the target: ``"source"``, ``"uniform"``, ``"bbse"`` (estimated), a JSON
        file, a dict with a share per class, or the shares in the order of the logits.
    max_weight : float
        Maximum importance weight, at least 1.
    seed : int
        Random seed for drawing a sample, if there are more rows than a fit uses.
    allow_limit : bool
        Whether a temperature at the end of its range gives a warning instead of an error.

    Attributes
    ----------
    temperature_ : float
        T in softmax(z / T). Methods with a target prior also add class offsets.
    method_ : str
        The method that was used. `reason_` says why.
    estimate_ : Estimate or None
        The estimate of the target accuracy, with ``accuracy``, ``low``, ``high`` and ``trusted``.
        None if there are too few rows.
    classes_ : array, shape (K,)
        The classes in the order of the logits.
    n_features_in_ : int
        Number of logits in a row.
    feature_names_in_ : array of str, shape (K,)
        Columns of the data frame that `fit` read, if any.
    notes_ : tuple of str
        Remarks about the fit. (Warnings are issued as Python warnings.)
    calibration_ : Calibration
        The whole result, as in cal.json.
    """

    @checked_names
    def __init__(
        self,
        method: str = AUTO,
        *,
        loss: Loss = "brier",
        target_prior: str | Mapping[Any, float] | ArrayLike = SOURCE_PRIOR,
        max_weight: float = DEFAULT_MAX_WEIGHT,
        seed: int = 0,
        allow_limit: bool = False,
    ) -> None:
        self.method, self.loss, self.target_prior = method, loss, target_prior
        self.max_weight, self.seed, self.allow_limit = max_weight, seed, allow_limit

    @checked_names
    def fit(
        self,
        source_logits: ArrayLike,
        source_labels: ArrayLike,
        target_logits: ArrayLike | None = None,
        *,
        classes: ArrayLike | None = None,
    ) -> Self:
        """Fit a temperature without target labels.

        Parameters
        ----------
        source_logits : array, shape (n, K), or (n,) with logits of the second of two classes
            Logits (or log probabilities) of labelled rows that were not used for training. Data
            frames and torch tensors are accepted.
        source_labels : array, shape (n,)
            Class numbers 0 to K-1, or class names.
        target_logits : array, shape (m, K) or (m,), optional
            Logits of unlabelled target rows. Without target logits, ``"auto"`` uses ``"temp"``.
        classes : array, shape (K,), optional
            Names of the classes in the order of the logits. By default, the classes are the columns
            of a data frame if every label is a column. Otherwise, the classes are 0 to K-1 for
            numeric labels, and the sorted labels for texts.

        Raises
        ------
        CovcalError
            If there are too few rows, the target prior is invalid, or T is at the end of its range.
            If arrays have different lengths or classes, the error is also a ValueError.
        """
        columns = columns_of(source_logits)
        source = logits_of(source_logits, "source_logits")
        target = source[:0] if target_logits is None else logits_of(target_logits, "target_logits")
        if source.shape[1] != target.shape[1]:
            raise ArgumentError(
                f"source_logits have {source.shape[1]} classes but target_logits have "
                f"{target.shape[1]}"
            )
        require_columns(columns, target_logits, "source_logits")
        labels = labels_of(source_labels, "source_labels", len(source), source_logits)
        labels, names = _numbered(labels, source.shape[1], classes, columns)
        require_class_order(names, target_logits, "target_logits")
        is_single = np.ndim(array_of(source_logits, "source_logits")) == 1
        seen = [form_of(rows[:, 1:] if is_single else rows) for rows in (source, target)]
        orders = [evidence.doubt_on_order for evidence in seen]
        if orders[0] and _is_as_promised(labels, source):
            orders = []
        elif not orders[0] and len(names) == 2:
            orders = []  # all rows may have the same predicted class
        for name, evidence, order in zip_longest(("source_logits", "target_logits"), seen, orders):
            for doubt in (*evidence.doubts(), *([order] if order else [])):
                warnings.warn(f"{name}: {doubt}", stacklevel=3)
        try:
            calibration, estimate = self._fitted(source, labels, target, names)
        except CovcalError as error:
            raise type(error)(_in_python(str(error))) from error
        self.calibration_: Calibration = calibration
        self.estimate_: Estimate | None = estimate
        self.temperature_: float = calibration.forecaster_temperature
        self.method_, self.reason_ = calibration.method_used, _in_python(calibration.reason)
        self.notes_ = tuple(map(_in_python, calibration.notes))
        self.classes_: AnyArray = names
        self.n_features_in_ = 1 if is_single else source.shape[1]
        rows = np.concatenate([source, target])
        share = (np.count_nonzero(rows.min(axis=1) >= 0) + 1) / (len(rows) + 2)
        self._share_and_largest = (1.0, math.inf) if is_single else (share, float(rows.max()))
        if columns and all(isinstance(name, str) for name in columns):
            self.feature_names_in_: AnyArray = np.array(columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        for text in calibration.warnings:
            warnings.warn(_in_python(text), stacklevel=3)
        return self

    def predict_proba(self, logits: ArrayLike) -> Float64s:
        """Return calibrated probabilities, shape (n, K)."""
        rows = self.rows(logits)
        forecast = self.calibration_.scaling.forecast([class_major(rows)])
        probabilities: Float64s = forecast.probabilities.T
        return probabilities

    def predict(self, logits: ArrayLike) -> AnyArray:
        """Return the predicted classes, shape (n,)."""
        numbers = self.rows(logits).argmax(axis=1)
        labels: AnyArray = self.classes_[numbers]
        return labels

    def score(self, logits: ArrayLike, labels: ArrayLike) -> float:
        """Return the accuracy.

        Calibration does not change the accuracy, so pass ``scoring="neg_log_loss"`` to scikit-learn
        for model selection.
        """
        rows = self.rows(logits)
        of_rows = labels_of(labels, "labels", len(rows), logits)
        numbers = class_numbers(of_rows, self.classes_, "labels")
        return float(np.mean(rows.argmax(axis=1) == numbers))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters."""
        del deep
        return {name: getattr(self, name) for name in _parameters()}

    def set_params(self, **values: Any) -> Self:
        """Change parameters."""
        unknown = sorted(set(values) - set(_parameters()))
        if unknown:
            raise ArgumentError(
                f"Calibrator has no parameter {unknown[0]}: use one of {', '.join(_parameters())}"
            )
        for name, value in values.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults, parameters = Calibrator().get_params(), self.get_params()
        changed = [
            f"{name}={value!r}"
            for name, value in parameters.items()
            if value is not defaults[name] and not (np.isscalar(value) and value == defaults[name])
        ]
        return f"Calibrator({', '.join(changed)})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "temperature_")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(),
        )

    def _fitted(
        self, source: Float64s, labels: Labels, target: Float64s, names: AnyArray
    ) -> tuple[Calibration, Estimate | None]:
        prior, shares = _prior(self.target_prior, names)
        settings = CalibrateSettings(
            method=self.method,
            loss=self.loss,
            target_prior=prior,
            prior_shares=shares,
            max_weight=self.max_weight,
            seed=self.seed,
            allow_limit=self.allow_limit,
        )
        self._require_only_logits()
        domains: dict[str, dict[str, AnyArray]] = {
            "source": {"logits": source, "labels": labels},
            "target": {"logits": target},
        }
        with ArrayFile(domains, _texts(names)) as file:
            problem = Problem(file, settings, self.loss)
            calibration = calibrate_file(problem, settings)
            if self.loss != "brier":
                problem = Problem(file, settings)
            lacking = problem.missing_for_estimate
            return calibration, problem.accuracy if lacking is None else None

    def rows(self, logits: ArrayLike) -> Float64s:
        """Check logits, and return them as an array of shape (n, K)."""
        if not hasattr(self, "temperature_"):
            raise _not_fitted("this Calibrator is not fitted yet: call fit first")
        rows = logits_of(logits, "logits")
        names: AnyArray | None = getattr(self, "feature_names_in_", None)
        columns = None if names is None else names.tolist()
        require_like_fit(rows, logits, len(self.classes_), columns, "Calibrator")
        require_class_order(self.classes_, logits, "logits")
        # Class votes can look like logits, so compare few rows with the logits passed to `fit`.
        share, largest = getattr(self, "_share_and_largest", (1.0, math.inf))
        is_unlike = share ** len(rows) < _UNLIKELY or rows.max(axis=1).min() > 2 * largest
        is_few = len(rows) <= _FEW and np.ndim(logits) == 2
        if is_few and is_unlike and rows.min() >= 0 and rows.max() > 0:
            raise ArgumentError(
                "no number in logits is negative, but the logits that were passed to fit had "
                "negative numbers: pass the same output of the classifier"
            )
        return rows

    def _require_only_logits(self) -> None:
        if self.method == AUTO:
            return
        method = METHODS[self.method]
        if method.forecaster != "original" or "importance weights" in method.needs:
            adapt = "" if method.forecaster == "original" else " and adapt"
            raise ArgumentError(
                f"method {method.name} needs more than logits: extract{adapt} a file with "
                "features, and use covcal.calibrate"
            )


class ArrayFile(FeatureFile):
    """A features file in memory, in which all rows are validation rows.

    `domains` maps "source" and "target" to arrays by name. A target without rows is left out.
    """

    def __init__(
        self,
        domains: Mapping[str, Mapping[str, AnyArray]],
        classes: Sequence[str],
        model_sha256: str = "",
    ) -> None:
        handle = h5py.File(io.BytesIO(), "w")
        self._digest = hashlib.sha256()
        for name, arrays in domains.items():
            n = len(arrays["logits"])
            if n == 0 and len(domains) == 2:
                continue
            unknown = np.full(n, UNKNOWN_LABEL, dtype=np.int64)
            content: dict[str, AnyArray] = {
                "logits": to_float32(arrays["logits"]),
                "labels": arrays.get("labels", unknown),
                "split": np.full(n, SPLITS.index("validation"), dtype=np.uint8),
                "ids": np.char.encode(np.arange(n).astype(str), "utf-8"),
            }
            for key, values in ({**arrays, **content}).items():
                handle[f"{name}/{key}"] = values
            if name == "target":
                content["labels"] = unknown
            for values in content.values():
                self._digest.update(values.tobytes())
        handle["classes"] = np.array([text.encode("utf-8") for text in classes])
        attributes = {"model_name": "logits", "model_sha256": model_sha256, "complete": 1}
        handle.attrs.update({"schema": FEATURES_SCHEMA, **attributes})
        super().__init__(_WHERE, handle)

    def __exit__(self, *error: object) -> None:
        self.handle.close()

    def sha256(self) -> str:
        """Return the SHA-256 of the logits and the source labels."""
        return self._digest.hexdigest()


def _is_as_promised(labels: Labels, logits: Float64s) -> bool:
    predictions = logits.argmax(axis=1)
    accuracy = SourceAccuracy(len(labels), int((labels == predictions).sum()), chance=0.0)
    return accuracy.is_as_promised(float(confidences(logits, 1.0).mean()))


def _in_python(text: str) -> str:
    for command, python in _IN_PYTHON:
        text = text.replace(command, python)
    return in_python(text)


def _not_fitted(text: str) -> Exception:
    if "sklearn" in sys.modules:
        from sklearn.exceptions import NotFittedError

        error: Exception = NotFittedError(text)
        return error
    return NotFittedYetError(text)


class NotFittedYetError(ValueError, AttributeError):
    """A calibrator was used before `fit`."""


def _numbered(
    labels: AnyArray, k: int, classes: ArrayLike | None, columns: list[Any] | None
) -> tuple[Labels, AnyArray]:
    """Return the class number of each label, and the names of the classes."""
    class_array = None if classes is None else array_of(classes, "classes")
    names = None if class_array is None else labels_of(class_array, "classes", class_array.size)
    columns = columns_like(labels, columns)
    if names is None:
        names = classes_among(columns, labels)
    if names is None and labels.dtype.kind in "iub":
        names = np.array([False, True]) if labels.dtype.kind == "b" and k == 2 else np.arange(k)
    elif names is None:
        names = np.unique(labels)
        texts = names.tolist()
        are_numbers = all(isinstance(t, str) and WHOLE.fullmatch(t) for t in texts)
        if are_numbers and texts != sorted(texts, key=int):
            raise ArgumentError(
                "source_labels are numbers as texts, so the order of the classes is not "
                "clear: give numbers, or classes in the order of the logits"
            )
    if columns and columns != names.tolist() and set(columns) == set(names.tolist()):
        raise ArgumentError(
            f"classes ({', '.join(map(str, names[:5]))}) are in another order than the "
            "columns of the logits: leave out classes, or give the order of the columns"
        )
    if names.shape != (k,) or len(np.unique(names)) < k:
        raise ArgumentError(
            f"there are {k} logits per row but {len(np.unique(names))} different classes: give "
            "classes in the order of the logits"
        )
    has_classes = classes is not None
    return class_numbers(labels, names, "source_labels", has_classes=has_classes), names


def _texts(names: AnyArray) -> list[str]:
    texts = [str(name) for name in names]
    for text in texts:
        if not text.isprintable() and any(0xD800 <= ord(letter) < 0xE000 for letter in text):
            raise ArgumentError(f"class {text!r} is not Unicode text: rename it")
    return texts


def _prior(
    value: str | Mapping[Any, float] | ArrayLike, names: AnyArray
) -> tuple[str, tuple[float, ...] | None]:
    if isinstance(value, str | Path):
        return str(value), None
    if hasattr(value, "to_dict") and hasattr(value, "index"):  # a pandas Series
        by_name: dict[Any, float] = value.to_dict()
        if set(by_name) == set(names.tolist()) or list(by_name) != list(range(len(names))):
            value = by_name
    if isinstance(value, Mapping):
        missing = [name for name in names.tolist() if name not in value]
        unknown = [name for name in value if name not in names.tolist()]
        if missing or unknown:
            text = f"has no share for {missing[0]}" if missing else f"has the class {unknown[0]}"
            raise ArgumentError(f"target_prior {text}: give a share for each of the classes")
        value = [value[name] for name in names.tolist()]
    shares = numbers_of(value, "target_prior")
    if shares.shape != names.shape or not (shares >= 0).all():
        raise ArgumentError(
            f"target_prior must hold a share of at least 0 for each of {len(names)} classes"
        )
    if not abs(shares.sum() - 1) < _PRIOR_TOLERANCE:
        raise ArgumentError(f"target_prior sums to {shares.sum():.6g}, not to 1")
    return "given", tuple((shares / shares.sum()).tolist())


def _parameters() -> tuple[str, ...]:
    return tuple(inspect.signature(Calibrator).parameters)


_TRAINED = 2 / 3
# minimum share of rows for which predict and decision_function agree
_SAME = 0.5


class CalibratedClassifier:
    """A classifier with calibrated probabilities.

    Attributes
    ----------
    estimator_ : object
        The fitted classifier.
    calibrator_ : Calibrator
        The fitted calibrator.
    classes_ : array, shape (K,)
    """

    def __init__(self, estimator: Any, calibrator: Calibrator | None = None) -> None:
        self.estimator, self.calibrator = estimator, calibrator

    def fit(self, X: Any, y: ArrayLike, X_target: Any = None) -> Self:
        """Calibrate on labelled source rows and unlabelled target rows.

        A fitted classifier (with ``classes_``) is not trained again, so `X` must not contain its
        training rows. For an unfitted classifier, a copy is trained on two thirds of the rows, and
        calibrated on the other rows.
        """
        if not (hasattr(X, "shape") or hasattr(X, "__len__")):
            raise ArgumentError(f"X must be an array or a list of rows, not {type(X).__name__}")
        if not isinstance(self.calibrator, Calibrator | None):
            raise ArgumentError(f"calibrator must be a Calibrator, not {shown(self.calibrator)}")
        X = X.tocsr() if hasattr(X, "tocsr") else X
        labels = labels_of(y, "y", X.shape[0] if hasattr(X, "shape") else len(X), X)
        self.calibrator_ = Calibrator(**(self.calibrator or Calibrator()).get_params())
        self.estimator_: Any = self.estimator
        is_object = not isinstance(self.estimator, type)
        self._columns = _feature_names(self.estimator)
        # An unfitted CatBoost classifier has an empty attribute classes_.
        if is_object and hasattr(self.estimator, "fit") and not _n_classes(self.estimator):
            self._columns = columns_of(X)
            order = np.random.default_rng(self.calibrator_.seed).permutation(len(labels))
            trained, rest = np.split(order, [round(_TRAINED * len(labels))])
            # Every class needs training rows.
            is_new = ~np.isin(labels[rest], labels[trained])
            trained, rest = np.concatenate([trained, rest[is_new]]), rest[~is_new]
            if not len(rest):
                raise ArgumentError(
                    f"X has only {len(labels)} rows: give more rows, or a fitted classifier"
                )
            self.estimator_ = copy.deepcopy(self.estimator)
            self.estimator_.fit(_rows(X, trained), labels[trained])
            X, labels = _rows(X, rest), labels[rest]
        names = ("predict_proba", "decision_function")
        gives_outputs = any(hasattr(self.estimator_, name) for name in names)
        if not (is_object and _n_classes(self.estimator_) and gives_outputs):
            raise ArgumentError(
                "estimator must be a classifier with predict_proba or decision_function, not "
                f"{shown(self.estimator)}"
            )
        self.classes_: AnyArray = np.asarray(self.estimator_.classes_)
        logits = self._logits(X)
        if not hasattr(self.estimator_, "predict_proba"):
            numbers = logits.argmax(axis=1) if logits.ndim == 2 else (logits > 0).astype(int)
            same = np.asarray(self.estimator_.predict(X)) == self.classes_.take(
                numbers, mode="clip"
            )
            if np.mean(same) < _SAME:
                raise ArgumentError(
                    f"decision_function and predict of {shown(self.estimator)} differ in "
                    f"{np.sum(~same)} of {len(same)} rows: give a classifier with one number "
                    "per class (for SVC, decision_function_shape='ovr')"
                )
        self._require_order(X)
        self._require_order(X_target)
        self.calibrator_.fit(
            logits,
            labels,
            None if X_target is None else self._logits(X_target),
            classes=self.classes_,
        )
        return self

    def __repr__(self) -> str:
        return f"CalibratedClassifier({self.estimator!r}, {self.calibrator!r})"

    def predict_proba(self, X: Any) -> Float64s:
        """Return calibrated probabilities, shape (n, K)."""
        self._require_fitted()
        self._require_order(X)
        return self.calibrator_.predict_proba(self._logits(X))

    def predict(self, X: Any) -> AnyArray:
        """Return the predicted classes, shape (n,)."""
        self._require_fitted()
        self._require_order(X)
        labels = np.asarray(self.estimator_.predict(X))
        # For more than two classes, CatBoost returns shape (n, 1).
        return labels.reshape(len(labels)) if labels.size == len(labels) else labels

    def score(self, X: Any, y: ArrayLike) -> float:
        """Return the accuracy."""
        predicted = self.predict(X)
        return float(np.mean(predicted == labels_of(y, "y", len(predicted), X)))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters. With `deep`, include nested parameters (``estimator__C``)."""
        parameters = {"estimator": self.estimator, "calibrator": self.calibrator}
        inner = {
            f"{name}__{key}": value
            for name, part in parameters.items()
            if deep and hasattr(part, "get_params")
            for key, value in part.get_params().items()
        }
        return parameters | inner

    def set_params(self, **values: Any) -> Self:
        """Change parameters, such as ``calibrator__method``."""
        parts = ("estimator", "calibrator")
        for name, value in sorted(values.items()):
            part, _, inner = name.partition("__")
            if part not in parts or (inner and not hasattr(getattr(self, part), "set_params")):
                raise ArgumentError(
                    f"there is no parameter {name}: set estimator, calibrator, or a name such "
                    "as calibrator__method"
                )
            if inner:
                getattr(self, part).set_params(**{inner: value})
            else:
                setattr(self, part, value)
        return self

    @property
    def n_features_in_(self) -> int:
        """Number of features of the classifier."""
        return int(self.estimator_.n_features_in_)

    @property
    def feature_names_in_(self) -> AnyArray:
        """Names of the classifier's features."""
        return np.asarray(self.estimator_.feature_names_in_)

    def _require_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise _not_fitted("this classifier is not calibrated yet: call fit first")

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "calibrator_")

    def __sklearn_tags__(self) -> Any:
        return Calibrator().__sklearn_tags__()

    def _require_order(self, X: Any) -> None:
        columns, expected = columns_of(X), self._columns
        if columns is None or expected is None or columns == expected:
            return
        if {*map(str, columns)} == {*map(str, expected)}:
            in_order = X.select(expected) if hasattr(X, "select") else X[expected]
            if not np.array_equal(self._logits(X), self._logits(in_order)):
                require_columns(expected, X, "the rows that were passed to fit")

    def _logits(self, X: Any) -> Float64s:
        are_shares = hasattr(self.estimator_, "predict_proba")
        name = "predict_proba" if are_shares else "decision_function"
        outputs = getattr(self.estimator_, name)(X)
        require_class_order(self.classes_, outputs, name)
        values = numbers_of(outputs, name)
        if not are_shares:
            return values
        if values.ndim != 2:
            raise ArgumentError(f"predict_proba must return shape (n, K), not {values.shape}")
        if (wrong := values < -BELOW).any():
            raise ArgumentError(
                f"predict_proba returned {values[wrong][0]:.6g}, which is not a probability: give "
                "a classifier that returns probabilities"
            )
        return log_probabilities(values)


def calibrated(estimator: Any, **parameters: Any) -> CalibratedClassifier:
    """Wrap a classifier so that its probabilities are calibrated.

    ``covcal.calibrated(model).fit(X, y, X_target).predict_proba(X_new)``

    `parameters` are passed to `Calibrator`. For fitted and unfitted classifiers, see
    `CalibratedClassifier.fit`.
    """
    return CalibratedClassifier(estimator, Calibrator(**parameters))


def _n_classes(estimator: Any) -> int:
    classes = getattr(estimator, "classes_", None)
    return 0 if classes is None else len(classes)


def _feature_names(estimator: Any) -> list[Any] | None:
    names = getattr(estimator, "feature_names_in_", None)
    return None if names is None else list(names)


def _rows(X: Any, rows: AnyArray) -> Any:
    if hasattr(X, "iloc"):
        return X.iloc[rows]
    return X[rows] if hasattr(X, "get_columns") or hasattr(X, "tocsr") else array_of(X, "X")[rows]
