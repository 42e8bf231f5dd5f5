"""The original ONNX classifier: its phi and logits in the graph, and what it gives on made rows.

All that export knows of how ``models`` reads a classifier is here.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.export.agreement import Batch, made_batches
from covcal_cli.export.onnx_nodes import NodeBuilder
from covcal_cli.models import proof
from covcal_cli.models.onnx_classifier import OnnxClassifier
from covcal_cli.models.onnx_file import read_onnx
from covcal_cli.models.onnx_graph import OnnxGraph
from covcal_cli.models.onnx_inputs import read_inputs
from covcal_cli.models.onnx_linear import Exposed
from covcal_cli.models.onnx_override import INPUT
from covcal_cli.models.onnx_runner import exposing

Floats = NDArray[np.float32]
Reading = Literal["logits", "one logit", "probabilities"]

_QUANTISED = ("QLinear", "QuantizeLinear", "DynamicQuantize", "MatMulInteger", "ConvInteger")
_SMALLEST = float(np.finfo(np.float32).tiny)  # extraction takes no logarithm of less
_CLOSE = 1e-3


class OnnxOriginal:
    """A classifier as extraction opened it, run once on made rows.

    Parameters
    ----------
    path : Path
    model_output, phi : str, optional
        As `open_classifier` takes them.

    Attributes
    ----------
    file : OnnxFile
        Read apart from the classifier's, so that its model may be changed.
    kept : tuple of str
        Names of the model's own outputs, in order.
    class_outputs : tuple of str
        Those that hold the classes.
    inputs : tuple of ModelInput
    n_classes : int
    n_features : int or None
    features_tensor : str or None
    logits_tensor : str
        Names of phi and the logits.
    batch : dict of str to array
        The made rows.
    features : array of float32, shape (n, d), or None
        phi of the made rows.
    logits : array of float32, shape (n, K)
        Of the made rows.
    is_rounded : bool
        Whether `logits` may be equal where the model's own scores are not.

    Raises
    ------
    CovcalError
        If the model has no head, or takes no made row.
    """

    def __init__(self, path: Path, model_output: str | None, phi: str | None) -> None:
        self.file = read_onnx(path)
        self.kept = tuple(value.name for value in self.file.model.graph.output)
        names = [value.name for value in read_inputs(OnnxGraph(self.file))]
        classifier = OnnxClassifier(path, model_output, INPUT if [phi] == names else phi)
        self.inputs = classifier.inputs
        # The first rows may show that the logits are elsewhere: the head is asked for afterwards.
        self.batch, self.features, self.logits = _run_made_rows(classifier, path)
        self._head = classifier.head
        self.class_outputs = tuple(entry.name for entry in self._head.outputs)
        self.features_tensor = classifier.features_tensor
        self.logits_tensor = classifier.logits_tensor
        self.n_classes, self.n_features = classifier.n_classes, classifier.n_features
        read = [*self._head.features, self._head.logits]
        values = self._values(read)
        scores = values.pop()
        self._reading = self._reading_of(scores)
        self._tokens = [self._token_of(value) for value in values]
        self.is_rounded = scores.dtype == np.float64 or self._reading == "probabilities"
        self._is_double = scores.dtype == np.float64

    def add_features(self, build: NodeBuilder) -> str:
        """Append what makes phi, float32 [N, d], of the tensors that the head reads."""
        parts = []
        for part, token in zip(self._head.features, self._tokens, strict=True):
            self._append(build, part)
            # The cast comes last: ONNX Runtime leaves out one right behind a float16 operator,
            # and phi would keep digits that extraction did not see.
            vectors = build.vectors(part.tensor, token, self.n_features or 0)
            parts.append(build.as_float(vectors))
        return parts[0] if len(parts) == 1 else build.node("Concat", *parts, axis=1)

    def add_logits(self, build: NodeBuilder) -> tuple[str, str]:
        """Append what makes one score per class, [N, K].

        Returns
        -------
        scores : str
            Whose largest is the label; in double precision where the model's are.
        logits : str
            What a forecaster scales, in float32.
        """
        self._append(build, self._head.logits)
        scores = build.node("Flatten", self._head.logits.tensor, axis=1)
        floats = build.as_float(scores)
        if self._reading == "one logit":
            # One number z for two classes stands for the logits 0 and z.
            floats = build.node("Concat", build.node("Sub", floats, floats), floats, axis=1)
            return floats, floats
        judged = scores if self._is_double else floats
        if self._reading == "logits":
            return judged, floats
        return judged, build.node("Log", build.node("Max", floats, build.number(_SMALLEST)))

    def output_tolerance(self) -> float:
        """Return how much its outputs may move: nothing, but for quantised models a step."""
        operators = (node.op_type for node in self.file.model.graph.node)
        quantised = any(name.startswith(_QUANTISED) for name in operators)
        return proof.tolerance(np.dtype(np.float16)) if quantised else 0.0

    def _append(self, build: NodeBuilder, exposed: Exposed) -> None:
        present = {name for node in build.graph.node for name in node.output}
        build.graph.node.extend(
            node for node in exposed.nodes if not present.intersection(node.output)
        )

    def _values(self, read: Sequence[Exposed]) -> list[NDArray[Any]]:
        """Return tensors of the model on the made rows, as they are."""
        session = self.file.session(exposing(self.file.model, read, []))
        names = [value.tensor for value in read]
        wanted = [name for name in names if name not in self.batch]
        found = dict(zip(wanted, session.run(wanted, self.batch), strict=True)) | self.batch
        return [np.asarray(found[name]) for name in names]

    def _reading_of(self, scores: NDArray[Any]) -> Reading:
        rows = scores.reshape(len(self.logits), -1)
        if rows.shape[1] == 1 < self.n_classes:
            return "one logit"
        return "logits" if _near(rows, self.logits) else "probabilities"

    def _token_of(self, value: NDArray[Any]) -> int | Literal["mean"] | None:
        """Return which of the vectors of a row is phi; None where there is one alone."""
        width = self.n_features
        if self.features is None or sum(size != 1 for size in value.shape[1:]) <= 1:
            return None
        if value[0].size == width:
            return None  # the whole row, such as the model's input
        tokens = value.reshape(len(value), -1, value.shape[-1])
        if value.shape[-1] == width:
            if _near(tokens.mean(axis=1, dtype=np.float64), self.features):
                return "mean"
            for token in (0, *range(1, tokens.shape[1])):
                if _near(tokens[:, token], self.features):
                    return -1 if 0 < token == tokens.shape[1] - 1 else token
        raise CovcalError(
            f"{self.file.path}: what {self.features_tensor} holds of phi cannot be told on made "
            "rows: use covcal apply"
        )


def _near(found: NDArray[Any], expected: NDArray[Any]) -> bool:
    return proof.relative_error(found.astype(np.float64), expected.astype(np.float64)) <= _CLOSE


def _run_made_rows(classifier: OnnxClassifier, path: Path) -> tuple[Batch, Floats | None, Floats]:
    refusal: CovcalError | None = None
    for batch in made_batches(classifier.inputs, classifier.fixed_batch):
        try:
            features, logits = classifier.run(batch)
        except CovcalError as error:
            refusal = refusal or error
            continue
        if np.isfinite(logits).all(axis=1).any():
            return batch, features, logits
    raise refusal or CovcalError(
        f"{path} gives NaN or infinity on every made row, so that the merged model cannot be "
        "checked: use covcal apply"
    )
