"""A classifier with scikit-learn's interface whose confidence is recalibrated on a target."""

import copy
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from covcal_cli.arrays import AnyArray, Float64s
from covcal_cli.calibrate.calibrator import Calibrator
from covcal_cli.maths.output_form import log_probabilities

_TRAINED = 2 / 3  # the share of rows that an unfitted classifier is trained on


class CalibratedClassifier:
    """A classifier, and the `Calibrator` of its logits.

    Attributes
    ----------
    estimator_ : object
        The fitted classifier.
    calibrator_ : Calibrator
        The fitted calibrator, with ``temperature_``, ``estimate_`` and ``reason_``.
    classes_ : array, shape (K,)
    """

    def __init__(self, estimator: Any, calibrator: Calibrator | None = None) -> None:
        self.estimator, self.calibrator = estimator, calibrator

    def fit(self, X: Any, y: ArrayLike, X_target: Any = None) -> Self:
        """Calibrate on labelled source rows and unlabelled target rows.

        A fitted classifier (with ``classes_``) is not changed. Then `X` must hold rows that it was
        not trained on. An unfitted classifier is copied, trained on two thirds of the rows, and
        calibrated on the other third.
        """
        labels = np.asarray(y)
        self.calibrator_ = Calibrator(**(self.calibrator or Calibrator()).get_params())
        if hasattr(self.estimator, "classes_"):
            self.estimator_: Any = self.estimator
        else:
            order = np.random.default_rng(self.calibrator_.seed).permutation(len(labels))
            trained, rest = np.split(order, [round(_TRAINED * len(labels))])
            self.estimator_ = copy.deepcopy(self.estimator)
            self.estimator_.fit(_rows(X, trained), labels[trained])
            X, labels = _rows(X, rest), labels[rest]
        self.classes_: AnyArray = np.asarray(self.estimator_.classes_)
        self.calibrator_.fit(
            self._logits(X),
            labels,
            None if X_target is None else self._logits(X_target),
            classes=self.classes_,
        )
        return self

    def predict_proba(self, X: Any) -> Float64s:
        """Return calibrated probabilities, shape (n, K)."""
        return self.calibrator_.predict_proba(self._logits(X))

    def predict(self, X: Any) -> AnyArray:
        """Return the classifier's own labels, shape (n,)."""
        return np.asarray(self.estimator_.predict(X))

    def score(self, X: Any, y: ArrayLike) -> float:
        """Return the accuracy."""
        return float(np.mean(self.predict(X) == np.asarray(y)))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters, as scikit-learn's ``clone`` asks."""
        del deep
        return {"estimator": self.estimator, "calibrator": self.calibrator}

    def set_params(self, **values: Any) -> Self:
        """Change parameters."""
        for name, value in values.items():
            if name not in ("estimator", "calibrator"):
                raise ValueError(f"there is no {name}: set estimator or calibrator")
            setattr(self, name, value)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether `fit` was called."""
        return hasattr(self, "calibrator_")

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags of a classifier; only scikit-learn calls this."""
        return Calibrator().__sklearn_tags__()

    def _logits(self, X: Any) -> Float64s:
        """Return logits: the logarithms of the probabilities, or the decision function."""
        if hasattr(self.estimator_, "predict_proba"):
            return log_probabilities(np.asarray(self.estimator_.predict_proba(X)))
        return np.asarray(self.estimator_.decision_function(X), dtype=np.float64)


def calibrated(estimator: Any, **parameters: Any) -> CalibratedClassifier:
    """Return a classifier that recalibrates `estimator`; `parameters` are those of `Calibrator`.

    ``covcal.calibrated(model).fit(X, y, X_target).predict_proba(X_new)``
    """
    return CalibratedClassifier(estimator, Calibrator(**parameters))


def _rows(X: Any, rows: AnyArray) -> Any:
    """Return some rows of an array or of a data frame."""
    return X.iloc[rows] if hasattr(X, "iloc") else np.asarray(X)[rows]
