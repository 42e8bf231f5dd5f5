"""The protocols of a classifier, opened, then proved, and what every kind refuses of a batch."""

from collections.abc import Mapping
from typing import Protocol

from covcal_cli.arrays import AnyArray, Float32s, Inputs, ModelInput
from covcal_cli.classifiers.proof import Proof
from covcal_cli.classifiers.settlement import Outputs
from covcal_cli.errors import CovcalError


class OpenedClassifier(Protocol):
    """A trained classifier as it declares itself, before any row has been run."""

    name: str  # base name of the file
    sha256: str  # of the file and of the weights that it reads from elsewhere
    inputs: tuple[ModelInput, ...]  # what must be fed
    fixed_batch: int | None  # the rows that every run is fed, where the model allows no other
    # What the file says about itself: class names, preprocessing; empty where it says nothing.
    metadata: Mapping[str, str]
    class_names: tuple[str, ...] | None  # of the K classes, where the model holds them
    n_classes: int  # K, as declared
    features_tensor: str | None  # name of phi in the model
    logits_tensor: str  # name of the logits in the model
    notes: tuple[str, ...]  # what a user should know of the model so far

    def prove(self, batch: Inputs | None) -> "Classifier":
        """Return the classifier proved on a first batch.

        Without a batch, or where its logits are not all numbers, nothing is proved.

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
    n_features: int | None  # d; None without features, or where no batch has shown it
    features_tensor: str | None
    logits_tensor: str
    proof: Proof  # grows with every batch
    outputs: Outputs  # what `run` returns beside phi, and what it is taken for

    @property
    def weight(self) -> Float32s | None:
        """W, shape (K, d), with any constant scale of the logits folded in.

        None without features, or where the logits are not affine in the tensor that was chosen.
        """
        ...

    @property
    def bias(self) -> Float32s | None:
        """The bias b, shape (K,); None where there is no W."""
        ...

    @property
    def tail(self) -> str | None:
        """What turns the logits into the model's output.

        "none", "softmax", "log_softmax", "sigmoid" or "argmax"; None where nothing was proved.
        """
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about how the model is read."""
        ...

    def run(self, batch: Inputs) -> tuple[Float32s | None, Float32s]:
        """Return phi(x), shape (m, d), and the outputs, shape (m, K), before any softmax.

        phi is None where it was not asked for. `outputs` makes logits of the outputs.

        Raises
        ------
        CovcalError
            If the shapes do not fit, or the proof fails on this batch.
        """
        ...

    def describe(self) -> str:
        """Return the head and its proof in one line."""
        ...


def require_fit(where: str, wanted: ModelInput, array: AnyArray) -> None:
    """Refuse an array of another shape or type than an input of the model `where` declares."""
    fits = len(array.shape) == len(wanted.shape) and all(
        want in (None, have) for want, have in zip(wanted.shape[1:], array.shape[1:], strict=True)
    )
    if not fits or array.dtype != wanted.dtype:
        found = ", ".join(["N", *map(str, array.shape[1:])])
        raise CovcalError(
            f"{where} wants {wanted.describe()} as {wanted.name}, and the data gives "
            f"{array.dtype} [{found}]: change the preprocessing or the array"
        )


def require_width(where: str, features: AnyArray | None, width: int | None) -> None:
    """Refuse features of another width than before: a free size of the input may be part of it."""
    if features is not None and width not in (None, features.shape[1]):
        raise CovcalError(
            f"{where} gives {features.shape[1]} features per row on this batch and {width} on the "
            "first, as its rows have another size: bring all rows to one size, or pass --phi NAME "
            "for features that do not depend on it"
        )
