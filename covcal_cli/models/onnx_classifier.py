"""An ONNX classifier that gives phi(x) and its logits in one pass.

The tensors become outputs of a copy of the model in memory; the file stays as it is. The first
batch proves the head (``proof.py``), and every later batch is held to the same proof, because a
capped or clipped tail can look like plain logits on a few rows. A quantised model is also run as it
came on every batch (``onnx_original.py``), because reading inside it can move some rows and not
others.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.files import require_file
from covcal_cli.modelinput import ModelInput
from covcal_cli.models import proof
from covcal_cli.models.classifier import Floats, Inputs
from covcal_cli.models.kinds import REMEDY
from covcal_cli.models.onnx_features import FeatureReader, Features
from covcal_cli.models.onnx_file import read_onnx
from covcal_cli.models.onnx_graph import OnnxGraph
from covcal_cli.models.onnx_head import Head
from covcal_cli.models.onnx_inputs import read_inputs, require_declared_width
from covcal_cli.models.onnx_metadata import class_names, read_metadata
from covcal_cli.models.onnx_original import OriginalModel
from covcal_cli.models.onnx_outputs import any_labels
from covcal_cli.models.onnx_override import choose_head, with_affine_map
from covcal_cli.models.onnx_own_labels import OwnLabels
from covcal_cli.models.onnx_quantised import OVERFLOW, holds_quantised
from covcal_cli.models.onnx_runner import Runner, exposing
from covcal_cli.models.onnx_session import provider_names
from covcal_cli.models.onnx_tail import Tail, UnknownTailError

Array = NDArray[Any]


def open_onnx(
    model: str | Path,
    *,
    weights: Path | None = None,
    output: str | None = None,
    phi: str | None = None,
    threads: int = 1,
    providers: Sequence[str] = (),
) -> "OnnxClassifier":
    """Open an ONNX file; see `covcal_cli.models.opening.open_classifier`."""
    path = Path(model)
    if weights is not None:
        raise CovcalError(
            f"{path} holds its own weights: give --weights only with a torch model as "
            "module:function"
        )
    require_file(path, remedy=REMEDY)
    return OnnxClassifier(path, output=output, phi=phi, threads=threads, providers=providers)


class OnnxClassifier:
    """A classifier in an ONNX file; see `covcal_cli.models.classifier.Classifier`.

    Parameters
    ----------
    path : Path
        The file; external weights lie beside it.
    output : str, optional
        The output that holds the classes, where the model has several.
    phi : str, optional
        ``"input"``, ``"none"`` or the name of a tensor, instead of the layer that is found.
    threads : int
        Threads within one operation.
    providers : sequence of str
        Execution providers in order of preference; the CPU when empty.

    Raises
    ------
    CovcalError
        If the file is no ONNX classifier with a linear head, and `phi` does not waive one.
    """

    def __init__(
        self,
        path: Path,
        output: str | None = None,
        phi: str | None = None,
        threads: int = 1,
        providers: Sequence[str] = (),
    ) -> None:
        self._where = str(path)
        self._providers, self._threads = provider_names(providers), threads
        self._file = read_onnx(path)
        self._graph = OnnxGraph(self._file)
        self.inputs: tuple[ModelInput, ...] = read_inputs(self._graph)
        self._output, self._phi = output, phi
        self.name = path.name
        self.sha256 = self._file.sha256
        self.fixed_batch = self.inputs[0].shape[0]
        self.metadata: Mapping[str, str] = read_metadata(self._graph)
        self.exposure_error: float | None = None
        self._by_layer = True
        self._use(choose_head(self._graph, output, phi))

    @property
    def head(self) -> Head:
        """Where phi and the logits are in the graph."""
        return self._head

    @property
    def graph(self) -> OnnxGraph:
        """The model's graph."""
        return self._graph

    @property
    def reading(self) -> Tail:
        """How the tensor of the logits is read."""
        return self._tail

    @property
    def token(self) -> int | str | None:
        """Which of several vectors of a row is phi, or their mean; None where there is one."""
        return self._reader.token

    @property
    def n_features(self) -> int | None:
        """d; None without features, or before the first batch where the model does not say."""
        if self._head.weight is not None:
            return int(self._head.weight.shape[1])
        return self._width

    @property
    def weight(self) -> Floats | None:
        """W, shape (K, d), or None."""
        if self._head.weight is None:
            return None
        rows = self._head.weight.astype(np.float32)
        return np.concatenate([np.zeros_like(rows), rows]) if self._tail.is_single else rows

    @property
    def bias(self) -> Floats | None:
        """The bias b, shape (K,), or None."""
        if self._head.bias is None:
            return None
        values = self._head.bias.astype(np.float32)
        return np.concatenate([np.zeros_like(values), values]) if self._tail.is_single else values

    @property
    def tail(self) -> str | None:
        """What turns the logits into the output; None before the first batch has been run."""
        return self._tail.kind

    @property
    def affine_error(self) -> float | None:
        """Ratio of the two numbers below; None without W, or before the first batch."""
        proved = self._tail.kind is not None and self._head.weight is not None
        return self._proof.error if proved else None

    @property
    def largest_affine_difference(self) -> float:
        """Largest ``|phi W^T + b - logits|`` over all batches so far."""
        return self._proof.largest_difference

    @property
    def largest_logit(self) -> float:
        """Largest ``|logit|`` over all batches so far."""
        return self._proof.largest_logit

    def run(self, batch: Inputs) -> tuple[Floats | None, Floats]:
        """Return phi(x) and the logits of a batch.

        Parameters
        ----------
        batch : mapping of str to array, shape (m, ...)
            By input name, in the input's own shape and dtype. Where the model's batch is fixed,
            rows are fed in that number and the last run is padded.

        Returns
        -------
        features : array of float32, shape (m, d), or None
            None where they were not asked for.
        logits : array of float32, shape (m, K)
            Before any softmax.

        Raises
        ------
        CovcalError
            If the shapes do not fit, or the proof fails on this batch.
        """
        try:
            return self._run(batch)
        except UnknownTailError:
            if self._phi is None or not self._by_layer or self.tail is not None:
                raise
        self._by_layer = False
        # With features of the user's choice the logits need not be those of a linear layer.
        self._use(choose_head(self._graph, self._output, self._phi, layer=False))
        return self._run(batch)

    def _run(self, batch: Inputs) -> tuple[Floats | None, Floats]:
        runner = self._runner
        found = self._read(batch)
        # The first batch may show that the model is to be read without fused operators.
        return found if self._runner is runner else self._read(batch)

    def _read(self, batch: Inputs) -> tuple[Floats | None, Floats]:
        values = self._runner.run(self._wanted(), batch)
        scores = self._tail.scores(values[self._head.logits.tensor])
        features = self._features(values, scores)
        logits = self._tail.logits(scores)
        if np.isfinite(logits).all():  # else the caller knows the name of the row and reports it
            self._prove(batch, features, scores, values)
        shown = None if features is None else features.astype(np.float32)
        return shown, logits.astype(np.float32)

    def describe(self) -> str:
        """Return the head and its proof in one line."""
        head = self._head
        phi = f"phi {self.n_features or '?'}" if head.features else "no phi"
        if head.features and not head.layer:
            phi = f"phi {head.features[0].name} {self.n_features or '?'}"
        text = f"{head.layer}: {phi}" if head.layer else phi
        text += f", {self.n_classes} classes"
        if head.features and head.weight is None:
            text += ", no linear head"
        if self.tail is None:
            return text
        text += f", output = {proof.TAIL_TEXT[self.tail]}"
        error = self.affine_error
        return text if error is None else f"{text}, affine error {error:.0e}"

    def _use(self, head: Head) -> None:
        """Take phi and the logits from these tensors from now on."""
        if head.layer and len(head.features) == 1 and head.weight is not None:
            source, width = head.features[0].name, head.weight.shape[1]
            require_declared_width(self._graph, self.inputs, source, width)
        self._head = head
        self._runner = self._start(fuse=True)
        self._probe_chosen_features()
        self._tail = Tail(self._where, self._head, self._declared_scores())
        self.n_classes = self._tail.n_classes
        self.class_names, notes = class_names(self._graph, self.metadata, self.n_classes)
        self.notes: tuple[str, ...] = (*notes, *self._tail.notes)
        names = [value.name for value in head.features]
        self.features_tensor: str | None = " + ".join(names) if names else None
        self.logits_tensor = head.logits.name
        self._reader = FeatureReader(self._where)
        self._proof = proof.AffineProof()
        self._original: OriginalModel | None = None
        others = [output.name for output in head.outputs]
        self._labels = OwnLabels(self._graph, self.class_names, others)

    def _start(self, *, fuse: bool) -> Runner:
        """Start a session on the model with phi and the logits among its outputs."""
        tensors = [*self._head.features, self._head.logits]
        outputs = [value.tensor for value in self._head.outputs]
        data = exposing(self._file.model, tensors, outputs)
        return Runner(self._where, self._session(data, fuse=fuse), self.inputs)

    def _session(self, data: bytes, *, fuse: bool) -> Any:
        return self._file.session(data, threads=self._threads, providers=self._providers, fuse=fuse)

    def _probe_chosen_features(self) -> None:
        """Find W and b of features that the user chose, if the logits are affine in them."""
        self._width: int | None = None
        if self._head.features and self._head.weight is None:
            row = self._runner.row_shape(self._head.features[0].name)
            if row is not None:
                self._learn_width(row)

    def _learn_width(self, row: tuple[int, ...]) -> None:
        self._width = int(np.prod(row))
        self._head = with_affine_map(self._graph, self._head, row)

    def _declared_scores(self) -> int:
        """Return the columns of the logits, 0 where nothing says how many."""
        if self._head.n_scores:
            return self._head.n_scores
        row = self._runner.row_shape(self._head.logits.tensor)
        return int(np.prod(row)) if row else any_labels(self._graph)

    def _wanted(self) -> list[str]:
        tensors = [value.tensor for value in (*self._head.features, self._head.logits)]
        outputs = [value.tensor for value in self._tail.outputs]
        unknown = self._head.features and self._head.weight is None and self._width is None
        chosen = [self._head.features[0].name] if unknown else []
        return list(dict.fromkeys([*tensors, *outputs, *chosen, *self._labels.wanted]))

    def _features(self, values: dict[str, Array], scores: Array) -> Features | None:
        if not self._head.features:
            return None
        arrays = [values[value.tensor] for value in self._head.features]
        if self._head.weight is None and self._width is None:
            self._learn_width(values[self._head.features[0].name].shape[1:])
        return self._reader.rows(self._head, arrays, scores)

    def _prove(
        self, batch: Inputs, features: Features | None, scores: Array, values: dict[str, Array]
    ) -> None:
        head = self._head
        limit = proof.tolerance(values[head.logits.tensor].dtype)
        if features is not None and head.weight is not None and head.bias is not None:
            limit = max(limit, proof.tolerance(features.dtype))
            error = self._proof.add(features, head.weight, head.bias, scores, limit, head.step)
            if error is not None:
                remedy = OVERFLOW if holds_quantised(self._graph) else ""
                raise CovcalError(
                    f"{self._where}: {head.layer or head.features[0].name} does not give "
                    f"{head.logits.name} (relative error {error:.1g}), so the logits are not "
                    f"affine in its input: {remedy}pass --phi none to keep the logits alone, or "
                    "--phi NAME to take another tensor"
                )
        first = self._tail.kind is None
        self._tail.hold(scores, values, limit)
        if first:
            self._compare_with_unmodified(batch, values, limit)
            self.notes = (*self.notes, *self._tail.notes_of_batch)
        elif self._original is not None:
            self._original.require_same(batch, values, limit, has_features=features is not None)
        self.notes += self._labels.note(values, self._tail.logits(scores))

    def _compare_with_unmodified(
        self, batch: Inputs, values: dict[str, Array], limit: float
    ) -> None:
        """Require the same output of the model as it came, on the first batch.

        Reading tensors inside a quantised model can keep operators from being fused, and others
        round differently.
        """
        original = self._unmodified(fuse=True)
        self.exposure_error = original.difference(batch, values)
        if self.exposure_error > limit:
            original.require_repeatable(values, self._runner.run(self._wanted(), batch), limit)
            self._runner, self._proof = self._start(fuse=False), proof.AffineProof()
            values = self._runner.run(self._wanted(), batch)
            self.exposure_error = original.difference(batch, values)
        if self.exposure_error > limit:
            moved, original = self.exposure_error, self._unmodified(fuse=False)
            self.exposure_error = original.difference(batch, values)
            if self.exposure_error > limit:
                raise CovcalError(
                    f"{self._where}: reading tensors inside the model changes its output by "
                    f"{self.exposure_error:.1g} (relative): export the model again without fused "
                    "or optimised operators"
                )
            self.notes += (
                "the model is read without fused operators, which round differently: its output "
                f"moves by up to {moved:.1g} (relative) on the first batch",
            )
        self._original = original if holds_quantised(self._graph) else None

    def _unmodified(self, *, fuse: bool) -> OriginalModel:
        (output,) = self._tail.outputs
        session = self._session(self._file.data, fuse=fuse)
        return OriginalModel(self._where, session, self.inputs, output)
