"""The protocols of an opened and of a proved classifier, and checks of batches for every kind."""

from collections.abc import Mapping
from typing import Protocol

from covcal_cli.arrays import AnyArray, Float32s, Inputs, ModelInput
from covcal_cli.classifiers.proof import Proof
from covcal_cli.classifiers.settlement import Outputs
from covcal_cli.errors import CovcalError


class OpenedClassifier(Protocol):
    """A trained classifier as its file declares it, before any row has been run."""

    name: str  # base name of the file
    sha256: str  # hash of the file and of its weights in other files
    inputs: tuple[ModelInput, ...]  # the arrays to feed
    fixed_batch: int | None  # the number of rows per run, if the model allows only one
    # The facts that the file states about itself, such as class names and preprocessing.
    metadata: Mapping[str, str]
    class_names: tuple[str, ...] | None  # the names of the K classes, if the model holds them
    n_classes: int  # K, as declared
    features_tensor: str | None  # name of phi in the model
    logits_tensor: str  # name of the logits in the model
    notes: tuple[str, ...]  # notes for the user

    def prove(self, batch: Inputs | None) -> "Classifier":
        """Return the classifier, proved on a first batch.

        Nothing is proved without a batch, or if some logits are not numbers.

        Raises
        ------
        CovcalError
            If the batch does not fit, or the proof fails.
        """
        ...


class Classifier(Protocol):
    """A classifier whose first batch has been run, usually with logits = phi(x) W^T + b."""

    name: str
    n_classes: int  # K
    n_features: int | None  # d; None without features, or before a batch shows it
    features_tensor: str | None
    logits_tensor: str
    proof: Proof  # grows with every batch
    outputs: Outputs  # how the outputs that `run` returns become logits

    @property
    def weight(self) -> Float32s | None:
        """W, shape (K, d), with any constant scale of the logits folded in.

        None without features, or if the logits are not affine in the chosen features.
        """
        ...

    @property
    def bias(self) -> Float32s | None:
        """The bias b, shape (K,); None without W."""
        ...

    @property
    def tail(self) -> str | None:
        """The function that turns the logits into the model's output.

        "none", "softmax", "log_softmax", "sigmoid" or "argmax"; None if nothing was proved.
        """
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user on how the model is read."""
        ...

    def run(self, batch: Inputs) -> tuple[Float32s | None, Float32s]:
        """Return phi(x), shape (m, d), and the outputs, shape (m, K), before any softmax.

        phi is None if the user wants no features. `outputs` turns the outputs into logits.

        Raises
        ------
        CovcalError
            If the shapes do not fit, or the proof fails on this batch.
        """
        ...

    def describe(self) -> str:
        """Return the last layer and its proof in one line."""
        ...


def require_fit(where: str, wanted: ModelInput, array: AnyArray) -> None:
    """Refuse an array whose shape or type differs from the declared input of model `where`."""
    fits = len(array.shape) == len(wanted.shape) and all(
        want in (None, have) for want, have in zip(wanted.shape[1:], array.shape[1:], strict=True)
    )
    if not fits or array.dtype != wanted.dtype:
        sizes = ", ".join(["N", *map(str, array.shape[1:])])
        raise CovcalError(
            f"{where} wants {wanted.describe()} as {wanted.name}, and the data gives "
            f"{array.dtype} [{sizes}]: change the preprocessing or the array"
        )


def require_width(where: str, features: AnyArray | None, width: int | None) -> None:
    """Refuse features of another width than before, which a free size of the input can cause."""
    if features is not None and width not in (None, features.shape[1]):
        raise CovcalError(
            f"{where} gives {features.shape[1]} features per row on this batch and {width} on the "
            "first, because its rows have another size: bring all rows to one size, or pass "
            "--phi NAME for features that do not depend on the size"
        )
