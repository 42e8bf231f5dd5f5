"""The protocol of a classifier, whatever framework it comes from."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from covcal_cli.modelinput import ModelInput

Floats = NDArray[np.float32]
Inputs = Mapping[str, NDArray[Any]]


class Classifier(Protocol):
    """A trained classifier, usually with a linear last layer: logits = phi(x) W^T + b."""

    name: str  # base name of the file
    sha256: str  # of the file and of the weights that it reads from elsewhere
    inputs: tuple[ModelInput, ...]  # what must be fed
    fixed_batch: int | None  # the rows that every run is fed, where the model allows no other
    # What the file says about itself: class names, preprocessing; empty where it says nothing.
    metadata: Mapping[str, str]
    class_names: tuple[str, ...] | None  # of the K classes, where the model holds them
    # What a user should know about how the model was read; the first batch may add some.
    notes: tuple[str, ...]
    n_classes: int  # K
    features_tensor: str | None  # name of phi in the model
    logits_tensor: str  # name of the logits in the model

    @property
    def n_features(self) -> int | None:
        """d; None where features were not asked for, or the first batch must show it."""
        ...

    @property
    def weight(self) -> Floats | None:
        """W, shape (K, d), with any constant scale of the logits folded in.

        None without features, or where the logits are not affine in the tensor that was chosen.
        """
        ...

    @property
    def bias(self) -> Floats | None:
        """The bias b, shape (K,), likewise."""
        ...

    @property
    def tail(self) -> str | None:
        """What turns the logits into the model's output; None before the first batch.

        ``"none"``, ``"softmax"``, ``"log_softmax"``, ``"sigmoid"`` or ``"argmax"``.
        """
        ...

    @property
    def affine_error(self) -> float | None:
        """Ratio of the next two; None without W, or before the first batch."""
        ...

    @property
    def largest_affine_difference(self) -> float:
        """Largest ``|phi W^T + b - logits|`` over all batches so far.

        It and the next can be merged over shards of the rows: the largest of each.
        """
        ...

    @property
    def largest_logit(self) -> float:
        """Largest ``|logit|`` over all batches so far."""
        ...

    def run(self, batch: Inputs) -> tuple[Floats | None, Floats]:
        """Return phi(x), shape (m, d), and the logits, shape (m, K), of arrays by input name."""
        ...

    def describe(self) -> str:
        """Return the head and its proof in one line."""
        ...
