"""Check an exported model against the original and against NumPy."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from covcal_cli.arrays import AnyArray, Float32s, Inputs, ModelInput
from covcal_cli.errors import CovcalError
from covcal_cli.export.forecaster import Agreement, Merge, StoredRows
from covcal_cli.maths.softmax import valid_rows

ROWS = 16
TOLERANCE = 1e-5  # Maximum allowed difference between two probabilities.
# Sizes for a free axis of the input, such as the side of an image.
_OPEN_SIZES = (32, 224, 8, 64, 128, 256, 299, 384, 512)


@dataclass(frozen=True)
class Answers:
    """The original model's outputs for random inputs."""

    where: str  # The name of the model in messages.
    features: Float32s | None  # Features phi, shape (n, d).
    logits: Float32s  # Shape (n, K).
    outputs: Sequence[Any]  # All outputs of the model.
    class_outputs: Sequence[Any]  # The outputs that have one value per class.
    is_rounded: bool  # Whether rounding may make different scores equal.
    output_tolerance: float  # Maximum relative change of the original outputs.


def prove(
    answers: Answers,
    merge: Merge,
    merged: Sequence[Any],
    of_stored: Callable[[StoredRows], Sequence[AnyArray]],
) -> Agreement:
    """Compare the outputs of an exported model with the original model and with NumPy.

    Raises `CovcalError` if the exported model differs.

    `merged` has the outputs of the exported model: first the original outputs, then the new
    outputs. `of_stored` returns the new outputs for stored rows.
    """
    logits, forecaster, stored = answers.logits, merge.forecaster, merge.stored
    finite = valid_rows(logits)
    if not finite.any():
        raise no_number(answers.where)
    after, added_outputs = merged[: -len(forecaster.added)], merged[-len(forecaster.added) :]
    expected = forecaster.probabilities(answers.features, logits)
    added = [values[finite] for values in added_outputs[:3]]
    errors, label_is_not_top = [_probability_error(added, expected[finite])], 0
    if stored is not None:
        expected = forecaster.probabilities(stored.features, stored.logits)
        errors.append(_probability_error(of_stored(stored)[:3], expected))
        if not forecaster.of_labels:
            own = expected[np.arange(len(expected)), stored.logits.argmax(axis=1)]
            label_is_not_top = int(np.count_nonzero(expected.max(axis=1) > own))
    agreement = Agreement(
        rows=int(finite.sum()),
        stored_rows=0 if stored is None else len(stored.logits),
        output_error=max(map(_difference, answers.outputs, after), default=0.0),
        probability_error=max(errors),
        label_is_not_top=label_is_not_top,
    )
    remedy = "export the classifier again with another exporter or opset"
    if not forecaster.of_labels and not _labels_agree(added_outputs[1], answers):
        raise CovcalError(
            f"{answers.where}: the new model predicts another class on some of {agreement.rows} "
            f"random inputs, so nothing was written: {remedy}"
        )
    if agreement.output_error > answers.output_tolerance:
        raise CovcalError(
            f"{answers.where}: the original outputs change by {agreement.output_error:.1g} "
            f"(relative) in the new model, so nothing was written: {remedy}"
        )
    if forecaster.accept_above is not None and not np.array_equal(
        added_outputs[3], added_outputs[2] > np.float32(forecaster.accept_above)
    ):
        raise CovcalError(
            f"{answers.where}: the new model and the decision file accept different rows, so "
            f"nothing was written: {remedy}"
        )
    if agreement.probability_error > TOLERANCE:
        raise CovcalError(
            f"{answers.where}: the probabilities of the new model differ from the calibration by "
            f"{agreement.probability_error:.1g} (at most {TOLERANCE:.0e} allowed), so nothing "
            "was written: calibrate with another method, or use covcal apply"
        )
    return agreement


def made_batches(inputs: Sequence[ModelInput], fixed_batch: int | None) -> Iterator[Inputs]:
    """Yield random inputs of several sizes."""
    is_open = any(size is None for wanted in inputs for size in wanted.shape[1:])
    for size in _OPEN_SIZES if is_open else _OPEN_SIZES[:1]:
        for rows in (ROWS, 1) if fixed_batch is None else (fixed_batch,):
            rng = np.random.default_rng(0)
            yield {wanted.name: _made_rows(rng, wanted, rows, size) for wanted in inputs}


def _made_rows(rng: np.random.Generator, wanted: ModelInput, rows: int, open_size: int) -> AnyArray:
    shape = (rows, *(open_size if size is None else size for size in wanted.shape[1:]))
    values: AnyArray
    if wanted.dtype.kind == "f":
        values = rng.normal(size=shape)
        values[::2] = rng.random(size=values[::2].shape)  # Values in [0, 1], like pixels.
    elif wanted.dtype.itemsize == 1 and wanted.dtype.kind in "iu":
        limits = np.iinfo(wanted.dtype.name)
        values = rng.integers(limits.min, limits.max, size=shape, endpoint=True)
    else:
        # Integers may be token ids or a mask, for which 0 and 1 are valid.
        values = rng.integers(0, 2, size=shape)
        if values.ndim > 1:
            values[..., 0] = 1  # A mask needs at least one token.
    return values.astype(wanted.dtype)


def no_number(where: str) -> CovcalError:
    """Return the error for a model without finite outputs."""
    return CovcalError(f"{where} gives NaN or infinity on every random input: use covcal apply")


def _probability_error(added: Sequence[AnyArray], expected: AnyArray) -> float:
    """Return the largest error of probabilities and confidences; infinite for NaN."""
    probabilities, *rest = added
    if probabilities.shape != expected.shape:
        return float("inf")
    worst = float(np.abs(probabilities - expected).max())
    if rest:
        label, confidence = rest
        if confidence.shape != label.shape:
            return float("inf")
        own = expected[np.arange(len(label)), label]
        worst = max(worst, float(np.abs(confidence - own).max()))
    return worst if np.isfinite(worst) else float("inf")


def _difference(before: Any, after: Any) -> float:
    """Return the largest relative change of an output. Two NaN values count as equal.

    The result is infinite if shapes, types, texts, maps or integers differ.
    """
    if not (isinstance(before, np.ndarray) and isinstance(after, np.ndarray)):
        return 0.0 if before == after else float("inf")
    is_float = before.dtype.kind == "f"
    if before.dtype == after.dtype and np.array_equal(before, after, equal_nan=is_float):
        return 0.0
    if before.shape != after.shape or before.dtype != after.dtype or not is_float:
        return float("inf")
    a, b = before.astype(np.float64), after.astype(np.float64)
    equal = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        error = np.abs(a - b)[~equal].max() / max(np.abs(a[np.isfinite(a)]).max(initial=0.0), 1e-30)
    return float(error) if np.isfinite(error) else float("inf")


def _labels_agree(label: AnyArray, answers: Answers) -> bool:
    """Return whether each label, int64 (n,), is the original's most probable class.

    The class must have the largest logit, and the largest value in each output that has one value
    per class. Rows with NaN or infinity are not compared.
    """
    logits = answers.logits
    if label.dtype != np.int64 or label.shape != logits.shape[:1]:
        return False
    rows = np.flatnonzero(valid_rows(logits))
    labels = label[rows]
    for output in answers.class_outputs:
        if isinstance(output, np.ndarray) and output.size == logits.size:
            values = output.reshape(logits.shape)[rows]
            if not (values[np.arange(len(rows)), labels] == values.max(axis=1)).all():
                return False
    finite = logits[rows]
    # Rounded logits may be equal, so accept every class with the largest logit.
    if answers.is_rounded:
        return bool((finite[np.arange(len(rows)), labels] == finite.max(axis=1)).all())
    return np.array_equal(labels, finite.argmax(axis=1))
