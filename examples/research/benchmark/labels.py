"""Compute true accuracies, and two ideal temperatures that need target labels.

- Oracle temperature: the T with the lowest ECE on the target's test rows.
- True accuracy: the T at which the mean confidence on the target's training and validation rows
  equals the accuracy on these rows. A method that estimates the accuracy chooses this T if the
  estimate is perfect.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from covcal_cli.arrays import Booleans, Float32s, Float64s, Floats, Labels
from covcal_cli.compare.compare import Comparison
from covcal_cli.compare.runs import Record
from covcal_cli.estimators.matched_temperature import match_accuracy
from covcal_cli.evaluate.bins import GroupBins, bin_edges, confidence_block
from covcal_cli.formats.features import FeatureFile
from covcal_cli.labels.target_labels import target_labels
from covcal_cli.maths.odds import confidences

ORACLE, TRUE_ACCURACY = "oracle temperature", "true accuracy"
CEILINGS = (TRUE_ACCURACY, ORACLE)
_POINTS = 401
_RANGE = 3e-3, 3e2


@dataclass(frozen=True)
class Truth:
    """True accuracies and ideal temperatures of one run, computed with target labels."""

    source_accuracy: float  # Accuracy of the classifier on source validation rows.
    # Total variation distance between the class frequencies of source and target.
    prior_drift: float
    accuracy: float  # accuracy on the target's training and validation rows
    test_accuracy: float
    oracle_temperature: float
    oracle_ece: float
    matched_temperature: float  # the T that makes the mean confidence equal to the accuracy
    matched_ece: float


@dataclass(frozen=True)
class Results:
    """Results and true accuracies of all shifts, for one setting of ``covcal adapt``."""

    state: str  # "without-adapt", or the preset of adapt
    comparison: Comparison
    truths: Mapping[str, tuple[Truth, ...]]  # true values, by shift and seed

    def of(self, shifts: Collection[str]) -> "Results":
        """Return the results of the named shifts."""
        return replace(self, comparison=self.comparison.of(shifts))

    def accuracy(self, record: Record) -> float:
        """Return the true accuracy on the target's training and validation rows."""
        return self._by_key[record.key].accuracy

    @cached_property
    def _by_key(self) -> Mapping[str, Truth]:
        return {
            record.key: truth
            for shift, records in self.comparison.records.items()
            for record, truth in zip(records, self.truths[shift], strict=True)
        }

    @cached_property
    def ceilings(self) -> Comparison:
        """The results of the two ideal temperatures, as if the temperatures were methods."""
        records = {
            shift: tuple(
                replace(record, metrics={**record.metrics, **_errors(truth)})
                for record, truth in zip(records, self.truths[shift], strict=True)
            )
            for shift, records in self.comparison.records.items()
        }
        return replace(self.comparison, methods=CEILINGS, records=records)


def _errors(truth: Truth) -> dict[str, dict[str, float | None]]:
    return {ORACLE: {"ece": truth.oracle_ece}, TRUE_ACCURACY: {"ece": truth.matched_ece}}


def read_truth(path: Path, temperatures: Iterable[float]) -> Truth:
    """Compute the true accuracies and both ideal temperatures of a file.

    Parameters
    ----------
    path : Path
        A features or adapted file whose rows are all labelled.
    temperatures : iterable of float
        Temperatures of the compared methods, which the oracle tries in addition to a grid. So no
        method that scales the classifier's logits has a lower ECE than the oracle.
    """
    with FeatureFile(path) as file:
        source, target = file.require_source(), file.require_target()
        validation = source.require_rows("validation")
        source_labels = source.labels(validation)
        source_right = source.logits(validation).argmax(axis=1) == source_labels
        rows = np.sort(np.concatenate([target.rows("train"), target.rows("validation")]))
        labels = target_labels(target, rows)
        logits = target.logits(rows)
        test = target.require_rows("test")
        test_logits = target.logits(test)
        test_right = test_logits.argmax(axis=1) == target_labels(target, test)
        K = len(file.classes)
    right = logits.argmax(axis=1) == labels
    accuracy = float(right.mean())
    matched = match_accuracy(logits, accuracy).temperature
    candidates = [*_grid(test_logits), *temperatures]
    errors = [ece(test_logits, test_right, temperature) for temperature in candidates]
    best = int(np.argmin(errors))
    return Truth(
        source_accuracy=float(source_right.mean()),
        prior_drift=_total_variation(source_labels, labels, K),
        accuracy=accuracy,
        test_accuracy=float(test_right.mean()),
        oracle_temperature=float(candidates[best]),
        oracle_ece=errors[best],
        matched_temperature=matched,
        matched_ece=ece(test_logits, test_right, matched),
    )


def ece(logits: Floats, right: Booleans, temperature: float, labels: Labels | None = None) -> float:
    """Return the ECE of the confidence in the predicted class, as a fraction.

    `labels` are the predicted classes; by default, the argmax of the logits.
    """
    bins = GroupBins(15)
    bins.add(confidence_block(confidences(logits, temperature, labels), right, bin_edges(15)))
    return bins.together().ece()


def _total_variation(first: Labels, second: Labels, K: int) -> float:
    shares = [np.bincount(labels, minlength=K) / len(labels) for labels in (first, second)]
    return 0.5 * float(np.abs(shares[0] - shares[1]).sum())


def _grid(logits: Float32s) -> Float64s:
    """Return a grid of temperatures, scaled to the size of the logits."""
    centred = logits - logits.mean(axis=1, keepdims=True)
    size = float(np.sqrt(np.square(centred, dtype=np.float64).mean())) or 1.0
    low, high = (math.log(size * end) for end in _RANGE)
    return np.asarray(np.exp(np.linspace(low, high, _POINTS)))
