"""The proof that an exported model is right: made rows, and what must come out of them.

The reference is covcal's own NumPy mathematics on phi and the logits that the ORIGINAL model gives,
so that the exported model agrees with ``covcal apply`` and ``covcal evaluate``. (That those belong
together is another proof, ``classifiers/proof.py``, which the original has passed.)
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from covcal_cli.arrays import AnyArray, Float32s, Inputs, ModelInput
from covcal_cli.errors import CovcalError
from covcal_cli.export.forecaster import Agreement, Merge, StoredRows
from covcal_cli.maths.masks import valid_rows

ROWS = 16
TOLERANCE = 1e-5  # of probabilities, absolute
# Where a model leaves a size open (an image's sides, a text's length), the first that it takes.
_OPEN_SIZES = (32, 224, 8, 64, 128, 256, 299, 384, 512)


@dataclass(frozen=True)
class Answers:
    """What the original gives on made rows, as extraction reads it and as it prints it."""

    where: str  # the model, for errors
    features: Float32s | None  # phi, shape (n, d)
    logits: Float32s  # shape (n, K)
    outputs: Sequence[Any]  # its own outputs
    shown: Sequence[Any]  # those of them that hold the classes
    # Whether `logits` may be equal where the model's own scores, in float64, are not.
    is_rounded: bool
    output_tolerance: float  # by how much its own outputs may move, relatively


def prove(
    answers: Answers,
    merge: Merge,
    merged: Sequence[Any],
    of_stored: Callable[[StoredRows], Sequence[AnyArray]],
) -> Agreement:
    """Hold an exported model to the original and to NumPy; nothing has been written yet.

    `merged` is what the exported model gives on the same rows: the original outputs, then
    probabilities, label and confidence. `of_stored` gives those three by the merged part alone on
    rows that the calibration was fitted on.
    """
    logits, forecaster, stored = answers.logits, merge.forecaster, merge.stored
    finite = valid_rows(logits)
    if not finite.any():
        raise no_number(answers.where)
    # What was added, against NumPy on what the original gives, and on stored rows.
    *after, probabilities, label, confidence = merged
    expected = forecaster.probabilities(answers.features, logits)
    made = [values[finite] for values in (probabilities, label, confidence)]
    errors = [_probability_error(made, expected[finite])]
    if stored is not None:
        expected = forecaster.probabilities(stored.features, stored.logits)
        errors.append(_probability_error(of_stored(stored), expected))
    found = Agreement(
        rows=int(finite.sum()),
        stored_rows=0 if stored is None else len(stored.logits),
        output_error=max(map(_difference, answers.outputs, after), default=0.0),
        probability_error=max(errors),
    )
    # What was there before must not have moved, nor a label.
    remedy = "export the classifier again with another exporter or opset"
    if not _labels_agree(label, answers):
        raise CovcalError(
            f"{answers.where}: the merged model gives another label on one of {found.rows} made "
            f"rows, so nothing was written: {remedy}"
        )
    if found.output_error > answers.output_tolerance:
        raise CovcalError(
            f"{answers.where}: the model's own outputs change by {found.output_error:.1g} "
            f"(relative) when the calibration is merged in, so nothing was written: {remedy}"
        )
    if found.probability_error > TOLERANCE:
        raise CovcalError(
            f"{answers.where}: the merged probabilities differ by {found.probability_error:.1g} "
            f"from covcal's own, more than {TOLERANCE:.0e}, so nothing was written: calibrate "
            "again with another method, or keep covcal apply"
        )
    return found


def made_batches(inputs: Sequence[ModelInput], fixed_batch: int | None) -> Iterator[Inputs]:
    """Yield batches of seeded rows to try in turn, until the model takes one."""
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
        values[::2] = rng.random(size=values[::2].shape)  # pixels are rather like these
    elif wanted.dtype.itemsize == 1 and wanted.dtype.kind in "iu":
        limits = np.iinfo(wanted.dtype.name)
        values = rng.integers(limits.min, limits.max, size=shape, endpoint=True)
    else:
        # Perhaps numbers of tokens, and a mask: 0 and 1 are in every vocabulary.
        values = rng.integers(0, 2, size=shape)
        if values.ndim > 1:
            values[..., 0] = 1  # no row is masked as a whole
    return values.astype(wanted.dtype)


def no_number(where: str) -> CovcalError:
    """Return what to raise where no made row gives a number."""
    return CovcalError(
        f"{where} gives NaN or infinity on every made row, so that the merged model cannot be "
        "checked: use covcal apply"
    )


def _probability_error(three: Sequence[AnyArray], expected: AnyArray) -> float:
    """Return the largest difference of probabilities (n, K) and confidence (n,) to `expected`.

    Infinite where a value is NaN or a shape is another.
    """
    found, label, confidence = three
    if found.shape != expected.shape or confidence.shape != label.shape:
        return float("inf")
    worst = max(
        float(np.abs(found - expected).max()),
        float(np.abs(confidence - expected[np.arange(len(label)), label]).max()),
    )
    return worst if np.isfinite(worst) else float("inf")


def _difference(before: Any, after: Any) -> float:
    """Return the largest relative difference of one output; NaN equals NaN.

    Outputs that are no arrays of numbers (texts, maps) are equal or infinitely apart.
    """
    if not (isinstance(before, np.ndarray) and isinstance(after, np.ndarray)):
        return 0.0 if before == after else float("inf")
    if before.shape != after.shape or before.dtype != after.dtype:
        return float("inf")
    if np.array_equal(before, after):
        return 0.0
    if before.dtype.kind != "f":
        return float("inf")
    a, b = before.astype(np.float64), after.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    with np.errstate(invalid="ignore"):
        error = np.abs(a - b)[~same].max() / max(np.abs(a[np.isfinite(a)]).max(initial=0.0), 1e-30)
    return float(error) if np.isfinite(error) else float("inf")


def _labels_agree(label: AnyArray, answers: Answers) -> bool:
    """Return whether every label, int64 (n,), is the original model's.

    Rows that are not finite have no label. Where an output has a number per class, that of the
    label must be the largest.
    """
    logits = answers.logits
    if label.dtype != np.int64 or label.shape != logits.shape[:1]:
        return False
    rows = np.flatnonzero(valid_rows(logits))
    chosen = label[rows]
    for output in answers.shown:
        if isinstance(output, np.ndarray) and output.size == logits.size:
            values = output.reshape(logits.shape)[rows]
            if not (values[np.arange(len(rows)), chosen] == values.max(axis=1)).all():
                return False
    kept = logits[rows]
    if answers.is_rounded:  # the first of equal ones may not be the label
        return bool((kept[np.arange(len(rows)), chosen] == kept.max(axis=1)).all())
    return np.array_equal(chosen, kept.argmax(axis=1))
