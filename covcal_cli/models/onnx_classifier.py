"""An ONNX classifier that gives phi(x) and its logits in one pass.

The tensors become outputs of a copy of the model in memory; the file stays as it is. The first
batch proves the head (``proof.py``), and every later batch is held to the same proof, because a
capped or clipped tail can look like plain logits on a few rows. A quantised model is also run as it
came on every batch (``onnx_original.py``), because reading inside it can move some rows and not
others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.arrays import ModelInput
from covcal_cli.errors import CovcalError
from covcal_cli.files import require_file
from covcal_cli.models import proof
from covcal_cli.models.classifier import Floats, Inputs
from covcal_cli.models.kinds import REMEDY
from covcal_cli.models.onnx_features import Features, Token, features_of, token_of
from covcal_cli.models.onnx_file import CPU, OnnxFile, provider_names, read_onnx
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
from covcal_cli.models.onnx_tail import Tail, UnknownTailError
from covcal_cli.models.proof import Proof

Array = NDArray[Any]


def open_onnx(
    model: str | Path,
    *,
    weights: Path | None = None,
    output: str | None = None,
    phi: str | None = None,
    threads: int = 1,
    providers: Sequence[str] = (),
) -> "OpenedOnnx":
    """Open an ONNX file; see `covcal_cli.models.opening.open_classifier`."""
    path = Path(model)
    if weights is not None:
        raise CovcalError(
            f"{path} holds its own weights: give --weights only with a torch model as "
            "module:function"
        )
    require_file(path, remedy=REMEDY)
    names = provider_names(providers)
    return OpenedOnnx(read_onnx(path), output, phi, threads=threads, providers=names)


@dataclass(frozen=True)
class Reading:
    """How phi and the scores are read of every run: declared, then seen in the first batch."""

    graph: OnnxGraph
    head: Head
    tail: Tail
    runner: Runner
    width: int | None = None  # d; None without features, or where the first batch must show it
    token: Token | None = None  # which of several vectors of a row is phi

    @property
    def wanted(self) -> list[str]:
        """The tensors of a run."""
        head = self.head
        # Its shape is the width that is not declared.
        chosen = [head.features[0].name] if head.features and self.width is None else []
        read = [value.tensor for value in (*head.features, head.logits)]
        compared = [value.tensor for value in self.tail.outputs]
        return [*dict.fromkeys([*read, *compared, *chosen])]

    def seen_in(self, values: Mapping[str, Array]) -> "Reading":
        """Return the reading with what the first batch shows and the graph does not declare."""
        head, width, tensor = self.head, self.width, values[self.head.logits.tensor]
        tail = self.tail.seen_in(tensor)
        if not head.features:
            return replace(self, tail=tail)
        if width is None:
            row = values[head.features[0].name].shape[1:]
            width, head = int(np.prod(row)), with_affine_map(self.graph, head, row)
        token = token_of(head, self._arrays(values), tail.scores(tensor))
        return replace(self, head=head, tail=tail, width=width, token=token)

    def read(self, values: Mapping[str, Array]) -> tuple[Features | None, Array]:
        """Return phi, shape (m, d), and the scores, shape (m, n_scores), of a run."""
        scores = self.tail.scores(values[self.head.logits.tensor])
        if not self.head.features:
            return None, scores
        arrays = self._arrays(values)
        return features_of(self._where, self.head, self.token, arrays, scores), scores

    def prove_affine(
        self, found: Proof, values: Mapping[str, Array], features: Features | None, scores: Array
    ) -> float:
        """Hold phi W^T + b to the scores; return the error that rounding explains elsewhere."""
        head = self.head
        limit = proof.tolerance(values[head.logits.tensor].dtype)
        if features is None or head.weight is None or head.bias is None:
            return limit
        limit = max(limit, proof.tolerance(features.dtype))
        error = found.add(features, head.weight, head.bias, scores, limit, head.step)
        if error is not None:
            remedy = OVERFLOW if holds_quantised(self.graph) else ""
            raise CovcalError(
                f"{self._where}: {head.layer or head.features[0].name} does not give "
                f"{head.logits.name} (relative error {error:.1g}), so the logits are not "
                f"affine in its input: {remedy}pass --phi none to keep the logits alone, or "
                "--phi NAME to take another tensor"
            )
        return limit

    @property
    def _where(self) -> str:
        return str(self.graph.file.path)

    def _arrays(self, values: Mapping[str, Array]) -> list[Array]:
        return [values[value.tensor] for value in self.head.features]


@dataclass(frozen=True)
class _Comparison:
    """The model as it came, and how its tensors are read so that its output does not move."""

    original: OriginalModel
    runner: Runner
    error: float  # relative, of the output
    notes: tuple[str, ...] = ()


class OpenedOnnx:
    """An ONNX file as a classifier; see `covcal_cli.models.classifier.OpenedClassifier`."""

    def __init__(
        self,
        file: OnnxFile,
        output: str | None = None,
        phi: str | None = None,
        *,
        threads: int = 1,
        providers: Sequence[str] = CPU,
    ) -> None:
        self._file, self._graph = file, OnnxGraph(file)
        self._providers, self._threads = providers, threads
        self._output, self._phi = output, phi
        self.inputs: tuple[ModelInput, ...] = read_inputs(self._graph)
        self.name, self.sha256 = file.path.name, file.sha256
        self.fixed_batch = self.inputs[0].shape[0]
        self.metadata: Mapping[str, str] = read_metadata(self._graph)
        self._reading = self._declared(choose_head(self._graph, output, phi))
        self.n_classes = self._reading.tail.n_classes
        self.class_names, self.notes = self._names(self._reading)
        self.features_tensor = _features_tensor(self._reading.head)
        self.logits_tensor = self._reading.head.logits.name

    def prove(self, batch: Inputs | None) -> "OnnxClassifier":
        """Return the classifier, its head proved on a first batch; unproved where there is none."""
        if batch is None:
            return self._classifier(self._reading, self.notes)
        try:
            return self._proved(self._reading, batch)
        except UnknownTailError:
            if self._phi is None:
                raise
        # With features of the user's choice the logits need not be those of a linear layer.
        head = choose_head(self._graph, self._output, self._phi, layer=False)
        return self._proved(self._declared(head), batch)

    def _declared(self, head: Head) -> Reading:
        """Start to read phi and the logits from these tensors."""
        if head.layer and len(head.features) == 1 and head.weight is not None:
            source, width = head.features[0].name, head.weight.shape[1]
            require_declared_width(self._graph, self.inputs, source, width)
        runner = self._start(head, fuse=True)
        known = None if head.weight is None else int(head.weight.shape[1])
        if head.features and known is None:
            # Features that the user chose: are the logits affine in them?
            row = runner.row_shape(head.features[0].name)
            if row is not None:
                known, head = int(np.prod(row)), with_affine_map(self._graph, head, row)
        n_scores = head.n_scores
        if not n_scores:
            row = runner.row_shape(head.logits.tensor)
            n_scores = int(np.prod(row)) if row else any_labels(self._graph)
        tail = Tail(str(self._file.path), head, n_scores, head.outputs)
        return Reading(self._graph, head, tail, runner, known)

    def _names(self, reading: Reading) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
        """Return the names of the classes, and what is to be known of the graph."""
        names, notes = class_names(self._graph, self.metadata, reading.tail.n_classes)
        return names, (*notes, *([proof.ONE_NUMBER] if reading.tail.is_single else []))

    def _proved(self, reading: Reading, batch: Inputs) -> "OnnxClassifier":
        names, notes = self._names(reading)
        others = [output.name for output in reading.head.outputs]
        labels = OwnLabels(self._graph, names, others)
        values = reading.runner.run([*reading.wanted, *labels.wanted], batch)
        reading, found = reading.seen_in(values), Proof()
        features, scores = reading.read(values)
        logits = reading.tail.logits(scores)
        if not np.isfinite(logits).all():
            # The caller knows the name of the row and reports it.
            return self._classifier(reading, notes)
        # The scores are affine in phi, the output is made of them, and reading changed nothing.
        limit = reading.prove_affine(found, values, features, scores)
        tail = reading.tail.recognised(scores, values, limit)
        reading = replace(reading, tail=tail)
        compared = self._compared(reading, batch, values, limit)
        notes = (*notes, *compared.notes, *tail.notes)
        if compared.runner is reading.runner:
            found.remarks += labels.note(values, logits)
            return self._classifier(reading, notes, found, compared, labels)
        # The first rows are read in the same way as all others.
        reading = replace(reading, runner=compared.runner)
        classifier = self._classifier(reading, notes, Proof(), compared, labels)
        classifier.run(batch)
        return classifier

    def _classifier(
        self,
        reading: Reading,
        notes: tuple[str, ...],
        found: Proof | None = None,
        compared: _Comparison | None = None,
        labels: OwnLabels | None = None,
    ) -> "OnnxClassifier":
        return OnnxClassifier(self.name, reading, notes, found or Proof(), compared, labels)

    def _compared(
        self, reading: Reading, batch: Inputs, values: Mapping[str, Array], limit: float
    ) -> _Comparison:
        """Require the same output of the model as it came.

        Reading tensors inside a quantised model can keep operators from being fused, and others
        round differently.
        """
        runner, original = reading.runner, self._unmodified(reading, fuse=True)
        error = original.difference(batch, values)
        if error <= limit:
            return _Comparison(original, runner, error)
        original.require_repeatable(values, runner.run(reading.wanted, batch), limit)
        # Read without fused operators, it may be the fused model still.
        runner = self._start(reading.head, fuse=False)
        values = runner.run(reading.wanted, batch)
        error = original.difference(batch, values)
        if error <= limit:
            return _Comparison(original, runner, error)
        # Or else the model without fused operators, with a note on what that moves.
        moved, original = error, self._unmodified(reading, fuse=False)
        error = original.difference(batch, values)
        if error > limit:
            raise CovcalError(
                f"{self._file.path}: reading tensors inside the model changes its output by "
                f"{error:.1g} (relative): export the model again without fused or optimised "
                "operators"
            )
        note = (
            "the model is read without fused operators, which round differently: its output "
            f"moves by up to {moved:.1g} (relative) on the first batch"
        )
        return _Comparison(original, runner, error, (note,))

    def _unmodified(self, reading: Reading, *, fuse: bool) -> OriginalModel:
        (output,) = reading.tail.outputs
        session = self._session(self._file.data, fuse=fuse)
        return OriginalModel(str(self._file.path), session, self.inputs, output)

    def _start(self, head: Head, *, fuse: bool) -> Runner:
        """Start a session on the model with phi and the logits among its outputs."""
        outputs = [value.tensor for value in head.outputs]
        data = exposing(self._file.model, [*head.features, head.logits], outputs)
        return Runner(str(self._file.path), self._session(data, fuse=fuse), self.inputs)

    def _session(self, data: bytes, *, fuse: bool) -> Any:
        return self._file.session(data, threads=self._threads, providers=self._providers, fuse=fuse)


class OnnxClassifier:
    """An ONNX classifier, proved; see `covcal_cli.models.classifier.Classifier`."""

    def __init__(
        self,
        name: str,
        reading: Reading,
        notes: tuple[str, ...],
        found: Proof,
        compared: _Comparison | None,  # None where there was no batch of numbers
        labels: OwnLabels | None,
    ) -> None:
        head, single = reading.head, reading.tail.is_single
        self.name, self.notes, self.proof, self.reading = name, notes, found, reading
        self.tail, self.n_classes = reading.tail.kind, reading.tail.n_classes
        self.n_features = reading.width
        self.features_tensor, self.logits_tensor = _features_tensor(head), head.logits.name
        self.weight: Floats | None = None
        self.bias: Floats | None = None
        if head.weight is not None and head.bias is not None:
            weight, bias = head.weight.astype(np.float32), head.bias.astype(np.float32)
            # One number z stands for the logits 0 and z.
            self.weight = np.concatenate([np.zeros_like(weight), weight]) if single else weight
            self.bias = np.concatenate([np.zeros_like(bias), bias]) if single else bias
        self.exposure_error = compared.error if compared else None
        self.is_quantised = holds_quantised(reading.graph)
        # The model as it came, which a quantised one is held to on every batch.
        self._original = compared.original if compared and self.is_quantised else None
        self._labels = labels

    def run(self, batch: Inputs) -> tuple[Floats | None, Floats]:
        """Return phi(x) and the logits; a batch that is fixed is filled up with its last row."""
        reading, labels = self.reading, self._labels
        values = reading.runner.run([*reading.wanted, *(labels.wanted if labels else [])], batch)
        features, scores = reading.read(values)
        logits = reading.tail.logits(scores)
        # A row that is no number is reported by the caller, who knows its name.
        if labels is not None and np.isfinite(logits).all():
            limit = reading.prove_affine(self.proof, values, features, scores)
            reading.tail.hold(scores, values, limit)
            if self._original is not None:
                has_features = features is not None
                self._original.require_same(batch, values, limit, has_features=has_features)
            self.proof.remarks += labels.note(values, logits)
        shown = None if features is None else features.astype(np.float32)
        return shown, logits.astype(np.float32)

    def describe(self) -> str:
        """Return the head and its proof in one line."""
        head = self.reading.head
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
        return text if head.weight is None else f"{text}, affine error {self.proof.error:.0e}"


def _features_tensor(head: Head) -> str | None:
    return " + ".join(value.name for value in head.features) or None
