"""The proof that an exported model is right: made rows, and what must come out of them.

The reference is covcal's own NumPy mathematics on phi and the logits that the ORIGINAL model gives,
so that the exported model agrees with ``covcal apply`` and ``covcal evaluate``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.modelinput import ModelInput

ROWS = 16
TOLERANCE = 1e-5
"""Of probabilities, absolute."""

# Where a model leaves a size open (an image's sides, a text's length), the first that it takes.
_OPEN_SIZES = (32, 224, 8, 64, 128, 256, 299, 384, 512)

Batch = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Agreement:
    """How an exported model compares with the original on made rows.

    Attributes
    ----------
    rows : int
    stored_rows : int
        Real rows on which the merged part alone was compared with NumPy; 0 where there are none.
    output_error : float
        Of the original outputs, relative to the largest value; 0 where they are bit-equal.
    probability_error : float
        Largest absolute difference of the probabilities, and the confidence, to NumPy's.
    """

    rows: int
    stored_rows: int
    output_error: float
    probability_error: float


def made_batches(inputs: Sequence[ModelInput], fixed_batch: int | None) -> Iterator[Batch]:
    """Yield batches of seeded rows to try in turn, until the model takes one."""
    is_open = any(size is None for wanted in inputs for size in wanted.shape[1:])
    for size in _OPEN_SIZES if is_open else _OPEN_SIZES[:1]:
        for rows in (ROWS, 1) if fixed_batch is None else (fixed_batch,):
            rng = np.random.default_rng(0)
            yield {wanted.name: _made_rows(rng, wanted, rows, size) for wanted in inputs}


def _made_rows(
    rng: np.random.Generator, wanted: ModelInput, rows: int, open_size: int
) -> NDArray[Any]:
    shape = (rows, *(open_size if size is None else size for size in wanted.shape[1:]))
    values: NDArray[Any]
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


def probability_error(
    found: NDArray[Any], confidence: NDArray[Any], label: NDArray[Any], expected: NDArray[Any]
) -> float:
    """Return the largest difference of probabilities (n, K) and confidence (n,) to `expected`.

    Infinite where a value is NaN or a shape is another.
    """
    if found.shape != expected.shape or confidence.shape != label.shape:
        return float("inf")
    worst = max(
        float(np.abs(found - expected).max()),
        float(np.abs(confidence - expected[np.arange(len(label)), label]).max()),
    )
    return worst if np.isfinite(worst) else float("inf")


def output_error(before: Sequence[Any], after: Sequence[Any]) -> float:
    """Return the largest relative difference of a model's outputs; NaN equals NaN.

    Outputs that are no arrays of numbers (texts, maps) are equal or infinitely apart.
    """
    return max(map(_difference, before, after), default=0.0)


def _difference(before: Any, after: Any) -> float:
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


def labels_agree(
    label: NDArray[Any], logits: NDArray[np.float32], shown: Sequence[Any], *, rounded: bool
) -> bool:
    """Return whether every label is the original model's.

    Parameters
    ----------
    label : array of int64, shape (n,)
    logits : array of float32, shape (n, K)
        Of the original; rows that are not finite have no label.
    shown : sequence
        The original's own outputs that hold the classes. Where one has a number per class, that of
        the label must be the largest.
    rounded : bool
        Whether the logits are float64 in the model: the first of equal ones may not be its label.
    """
    if label.dtype != np.int64 or label.shape != logits.shape[:1]:
        return False
    rows = np.flatnonzero(np.isfinite(logits).all(axis=1))
    chosen = label[rows]
    for output in shown:
        if isinstance(output, np.ndarray) and output.size == logits.size:
            values = output.reshape(logits.shape)[rows]
            if not (values[np.arange(len(rows)), chosen] == values.max(axis=1)).all():
                return False
    kept = logits[rows]
    if rounded:
        return bool((kept[np.arange(len(rows)), chosen] == kept.max(axis=1)).all())
    return np.array_equal(chosen, kept.argmax(axis=1))


def require_agreement(
    found: Agreement, *, output_tolerance: float, same_labels: bool, where: str
) -> None:
    """Refuse an exported model that is not the original plus the right probabilities.

    Raises
    ------
    CovcalError
        With what differs; nothing has been written yet.
    """
    remedy = "export the classifier again with another exporter or opset"
    if not same_labels:
        raise CovcalError(
            f"{where}: the merged model gives another label on one of {found.rows} made rows, so "
            f"nothing was written: {remedy}"
        )
    if found.output_error > output_tolerance:
        raise CovcalError(
            f"{where}: the model's own outputs change by {found.output_error:.1g} (relative) when "
            f"the calibration is merged in, so nothing was written: {remedy}"
        )
    if found.probability_error > TOLERANCE:
        raise CovcalError(
            f"{where}: the merged probabilities differ by {found.probability_error:.1g} from "
            f"covcal's own, more than {TOLERANCE:.0e}, so nothing was written: calibrate again "
            "with another method, or keep covcal apply"
        )
