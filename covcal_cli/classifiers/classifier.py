"""The interface of all classifiers, and the conversion of outputs into logits.

Without a visible softmax or sigmoid, the outputs of a model may be logits or probabilities. covcal
decides after all rows, because a single batch is not enough evidence.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from covcal_cli.arrays import AnyArray, Float32s, Float64s, Floats, Inputs, ModelInput
from covcal_cli.classifiers.proof import FAR, TAIL_TEXT, Proof
from covcal_cli.errors import CovcalError
from covcal_cli.maths.output_form import (
    BELOW,
    DISTRIBUTIONS,
    OutputEvidence,
    log_odds,
    log_probabilities,
)
from covcal_cli.maths.softmax import extremes, to_float32

Results = tuple[Float32s | None, Float32s]  # phi(x), shape (m, d), and outputs, shape (m, K).
# The largest possible value of votes, percentages and 16-bit scores.
_MOST_SHARE = 1 << 16
# PLAIN outputs are used as logits. LOGGED outputs are probabilities: their logarithms are used.
PLAIN, LOGGED = "none", "softmax"
SIGMOID = "sigmoid"  # The output is one sigmoid per label.
_LOGARITHMS = (
    "the model gives probabilities, so covcal uses their logarithms as logits. Probabilities "
    "below 1e-38 count as 1e-38"
)
_NO_HEAD = (
    "the last linear layer gives probabilities, not logits. covcal keeps the inputs of "
    "this layer as features"
)


class Outputs:
    """The form of a classifier's outputs: logits or probabilities.

    If the model gives one number z per row, the outputs are 0 and z.
    """

    def __init__(
        self,
        where: str,  # The name of the model, for messages.
        tail: str | None,  # The function from the logits to the output, if known.
        *,
        is_single: bool,  # Whether the model gives one number per row.
        has_layer: bool,  # Whether a linear layer gives the outputs.
    ) -> None:
        self.tail, self.is_single = tail, is_single
        self._where, self._has_layer = where, has_layer
        self.is_open = tail == PLAIN  # Whether the outputs may be logits or probabilities.
        self.are_independent = False  # Whether rows can have several labels.
        self.notes: tuple[str, ...] = ()  # Notes for the user; empty before `settle`.
        self.warnings: tuple[str, ...] = ()
        self.doubt_on_order: str | None = None  # A warning about the order of the classes.

    def to_float32(self, outputs: AnyArray) -> Float32s:
        """Subtract a large offset from every row of outputs, and return the rows as float32.

        In float32, a number with a large offset has few correct digits. Rows that may be
        probabilities stay unchanged.
        """
        # Logits of independent labels have no common offset.
        if self.are_independent or outputs.dtype in (np.float16, np.float32):
            return outputs.astype(np.float32)
        single = to_float32(outputs)
        if self.is_open:
            # Compare in float64, because float16 cannot represent the limits.
            lows, highs = (values.astype(np.float64) for values in extremes(outputs))
            may_be_shares = (lows >= -BELOW) & (highs <= _MOST_SHARE)
            single[may_be_shares] = outputs[may_be_shares].astype(np.float32)
        return single

    def shown(self, outputs: Floats) -> Floats:
        """Return the outputs with the shape that the model gives."""
        return outputs[:, 1:] if self.is_single else outputs

    def settle(self, evidence: OutputEvidence) -> None:
        """Decide from all rows whether the outputs are logits or probabilities.

        Raises `CovcalError` if the outputs cannot be read as logits or as probabilities.
        """
        if self.are_independent:
            self._settle_labels(evidence)
            return
        if not self.is_open:
            if evidence.form in DISTRIBUTIONS and not self.is_single and self.tail == LOGGED:
                self.warnings = (
                    f"the model seems to apply softmax twice, because {evidence.fact}: export "
                    "the model without the second softmax",
                )
            return
        alone = self.is_single and not self._has_layer
        if alone and evidence.form != "bounded":
            raise CovcalError(
                f"{self._where} gives one number per row, from {evidence.low:g} to "
                f"{evidence.high:g}, with unknown meaning: return one probability or logit "
                "per class"
            )
        if evidence.form == "reversed":
            where = "" if evidence.reversal == "ranks" else "add a last layer to the model: "
            raise CovcalError(f"{self._where}: {evidence.fact}: {where}{evidence.remedy}")
        if evidence.form in DISTRIBUTIONS and evidence.lowest:
            raise CovcalError(
                f"{self._where}: {evidence.fact}: add a layer to the model that turns the "
                "outputs into probabilities (DequantizeLinear for quantised scores)"
            )
        self.doubt_on_order = evidence.doubt_on_order
        if evidence.form not in DISTRIBUTIONS and not alone:
            bounded = (
                f"{evidence.fact}, but covcal reads the outputs as logits. If the outputs are "
                "probabilities, export the model with its logits"
            )
            self.warnings = (
                *((bounded,) if evidence.form == "bounded" else ()),
                *evidence.doubts(),
            )
            return
        self.tail = LOGGED
        self.notes = (_LOGARITHMS, *([_NO_HEAD] if self._has_layer else []))
        self.warnings = (*_readings(evidence), *evidence.doubts())

    def _settle_labels(self, evidence: OutputEvidence) -> None:
        if self.tail not in (PLAIN, SIGMOID) or self.is_single:
            raise CovcalError(
                f"{self._where} gives one label per row, not one sigmoid or logit per label: leave "
                "out --multilabel"
            )
        if self.is_open and evidence.bounded == evidence.rows:
            self.tail = SIGMOID
            self.notes = ("the outputs are probabilities, so their log odds are used as logits",)

    def settle_as_extracted(self, tail: str | None, outputs: Floats) -> None:
        """Read the outputs in the same way as an earlier extraction: as logits or probabilities.

        `tail` is stored in the features file. If `tail` is None, covcal decides from `outputs`.
        """
        evidence = OutputEvidence()
        evidence.add(self.shown(outputs))
        if tail is None:
            self.settle(evidence)
        elif self.is_open and tail == LOGGED and evidence.may_be_distributions:
            self.tail = LOGGED
        elif self.is_open and self.are_independent and evidence.bounded == evidence.rows:
            self.tail = tail

    @property
    def are_logged(self) -> bool:
        """Whether the outputs are probabilities."""
        return self.is_open and self.tail in (LOGGED, SIGMOID)

    def logits(self, outputs: Floats) -> Float32s:
        """Return the logits, shape (m, K), of outputs."""
        logits: Floats = outputs
        if self.are_logged:
            convert = log_odds if self.are_independent else log_probabilities
            logits = convert(self.shown(outputs))
        return logits.astype(np.float32, copy=False)


def without_offset(bias: Float64s) -> Float64s:
    """Remove a large common offset from the bias of the logits, (K,)."""
    is_far = len(bias) > 1 and float(np.abs(bias).max()) > FAR
    return to_float32(bias[None])[0].astype(np.float64) if is_far else bias


def _readings(seen: OutputEvidence) -> tuple[str, ...]:
    if seen.width == 1:
        return (
            f"the model gives one number per row. All {seen.rows} numbers are between 0 and "
            "1, so covcal uses each number as the probability of the second class",
        )
    if seen.form in ("percentages", "shares"):
        return (f"{seen.fact}, so each row is scaled to the sum 1 and used as probabilities",)
    if seen.form == "clipped":
        return (f"{seen.fact}, so each row is scaled to the sum 1",)
    return ()


class OpenedClassifier(Protocol):
    """A trained classifier, opened but not yet checked on a batch."""

    name: str  # Base name of the file.
    sha256: str  # Hash of the file and of its weights in other files.
    inputs: tuple[ModelInput, ...]  # The arrays that the model needs.
    fixed_batch: int | None  # Number of rows in every run; None for any number.
    metadata: Mapping[str, str]  # Metadata in the file, such as class names and preprocessing.
    class_names: tuple[str, ...] | None  # The names of the K classes; None if unknown.
    n_classes: int  # K.
    features_tensor: str | None  # Name of the tensor with the features phi.
    logits_tensor: str  # Name of the tensor with the logits.
    notes: tuple[str, ...]  # Notes for the user.

    def prove(self, batch: Inputs | None, few: int | None = None) -> "Classifier":
        """Check the features phi, the logits and the output on a first batch.

        The unchanged model also runs on the first `few` rows (default: all rows), and the outputs
        are compared. Without a batch, or if a logit is NaN, nothing is checked. Raises
        `CovcalError` if the batch does not fit the model, or if a check fails.
        """
        ...


class Classifier(ABC):
    """A classifier that was checked on a first batch. Usually its logits are phi(x) W^T + b."""

    name: str
    n_classes: int  # K.
    n_features: int | None  # Number of features d; None without features, or before a batch.
    features_tensor: str | None
    logits_tensor: str
    proof: Proof  # The largest errors of the checks so far.
    outputs: Outputs  # Converts outputs of `run` into logits.
    # The features and outputs of the first batch, if the batch was checked.
    first_results: Results | None = None
    notes_on_model: tuple[str, ...] = ()

    @property
    @abstractmethod
    def weight(self) -> Float32s | None:
        """The weights W, (K, d); None if the logits are not linear in the features."""

    @property
    @abstractmethod
    def bias(self) -> Float32s | None:
        """The bias b, shape (K,); None if W is None."""

    @property
    def tail(self) -> str | None:
        """The function from the logits to the output, such as "softmax"; None without a check."""
        return self.outputs.tail

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user."""
        return (*self.notes_on_model, *self.outputs.notes)

    @abstractmethod
    def run(self, batch: Inputs) -> Results:
        """Return features phi(x), (m, d), and outputs, (m, K).

        Without features, phi is None. Raises `CovcalError` if shapes do not fit, or if the check of
        the last layer fails.
        """

    def results(self, features: Floats | None, logits: AnyArray) -> Results:
        """Convert features and outputs to float32."""
        phi = None if features is None else features.astype(np.float32, copy=False)
        return phi, self.outputs.to_float32(logits)

    @abstractmethod
    def describe(self) -> str:
        """Describe the last layer and the largest error of its check in one line."""

    def describe_check(self) -> str:
        """Describe how the output follows from the logits, and the error of the last layer."""
        if self.tail is None:
            return ""
        error = f", largest error of the last layer {self.proof.error:.0e}"
        return f", output = {TAIL_TEXT[self.tail]}{error if self.weight is not None else ''}"


def batches_of(size: int | None, rows: int) -> Iterator[Any]:
    """Yield the row numbers of each batch.

    A batch has exactly `size` rows, or all rows if `size` is None. The last row is repeated to fill
    a batch, because a model might not accept a row of zeros.
    """
    if size in (None, rows):
        yield slice(None)
        return
    for start in range(0, rows, size or rows):
        yield np.minimum(np.arange(start, start + (size or rows)), rows - 1)


def require_fit(where: str, wanted: ModelInput, array: AnyArray) -> None:
    """Refuse an array that does not have the shape and type of the model's input."""
    if not wanted.takes(array.shape) or array.dtype != wanted.dtype:
        sizes = ", ".join(["N", *map(str, array.shape[1:])])
        raise CovcalError(
            f"{where} expects {wanted.describe()} as {wanted.name}, but the data has "
            f"{array.dtype} [{sizes}]: change the preprocessing or the array"
        )


def require_width(where: str, features: AnyArray | None, width: int | None) -> None:
    """Refuse a batch whose number of features differs from the first batch."""
    if features is not None and width not in (None, features.shape[1]):
        raise CovcalError(
            f"{where} gives {features.shape[1]} features per row on this batch, but {width} on the "
            "first batch: bring all rows to the same size, or choose features of a fixed size "
            "with --phi NAME"
        )
