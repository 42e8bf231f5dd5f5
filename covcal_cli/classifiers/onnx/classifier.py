"""An ONNX classifier that returns phi(x) and the logits from one run of the model.

`OpenedOnnx` finds the last linear layer (the `Head`). A copy of the model also returns the input
and the result of this layer, from which a `Reading` computes phi and the scores. The `Tail` is the
function from the scores to the model's output. Every batch is checked (``classifiers/proof.py``).
If the model is quantised, the unchanged model runs on every batch too, because reading inner
tensors can change the output.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.arrays import AnyArray, Float32s, Float64s, Inputs, ModelInput
from covcal_cli.classifiers import REMEDY, ModelSettings, proof
from covcal_cli.classifiers.classifier import (
    Classifier,
    Outputs,
    Results,
    require_width,
    without_offset,
)
from covcal_cli.classifiers.onnx.file import CPU, OnnxFile, provider_names, read_onnx
from covcal_cli.classifiers.onnx.graph import OnnxGraph, read_inputs, require_declared_width
from covcal_cli.classifiers.onnx.head import Head, choose_head, with_affine_map
from covcal_cli.classifiers.onnx.layers import holds_quantised
from covcal_cli.classifiers.onnx.outputs import ClassOutput, OwnLabels, class_names, zip_labels
from covcal_cli.classifiers.onnx.reading import Reading, Tail, UnknownTailError
from covcal_cli.classifiers.onnx.runner import Runner, exposing
from covcal_cli.classifiers.proof import Proof
from covcal_cli.errors import CovcalError
from covcal_cli.files import require_file
from covcal_cli.maths.softmax import valid_rows


def open_onnx(model: str | Path, settings: ModelSettings, threads: int) -> "OpenedOnnx":
    """Open an ONNX file; see `covcal_cli.classifiers.open.open_classifier`."""
    path = Path(model)
    if settings.weights is not None and path.exists():
        raise CovcalError(
            f"{path} contains its weights: leave out --weights, which is only for module:function"
        )
    require_file(path, remedy=REMEDY)
    providers = provider_names(settings.providers)
    output, phi = settings.model_output, settings.phi
    return OpenedOnnx(read_onnx(path), output, phi, threads=threads, providers=providers)


class OriginalModel:
    """The unchanged model."""

    def __init__(
        self, where: str, session: Any, inputs: tuple[ModelInput, ...], output: ClassOutput
    ) -> None:
        self._where, self._output = where, output
        zipped = {output.name: output.zipped} if output.zipped else {}
        self._runner = Runner(where, session, inputs, zipped)

    def difference(self, batch: Inputs, values: Mapping[str, AnyArray]) -> float:
        """Return the relative difference between the model's outputs for a batch and `values`."""
        own = self._runner.run([self._output.name], batch)[self._output.name]
        return proof.relative_error(_rows(values[self._output.tensor]), _rows(own))

    def require_same(
        self, batch: Inputs, values: Mapping[str, AnyArray], limit: float, *, has_features: bool
    ) -> None:
        """Refuse a model whose outputs differ by more than `limit` (relative)."""
        moved = self.difference(batch, values)
        if moved <= limit:
            return
        remedy = "extract from the model before quantisation"
        if has_features:
            remedy = f"pass --phi none to keep only the logits, or {remedy}"
        raise CovcalError(
            f"{self._where}: reading tensors inside this quantised model changes its output "
            f"by {moved:.1g} (relative): {remedy}"
        )

    def require_repeatable(
        self, values: Mapping[str, AnyArray], again: Mapping[str, AnyArray], limit: float
    ) -> None:
        """Refuse a model whose outputs differ between two runs on the same rows.

        If inner tensors are read, ONNX Runtime may keep dropout active.
        """
        first, second = (_rows(run[self._output.tensor]) for run in (values, again))
        moved = proof.relative_error(second, first)
        if moved > limit:
            raise CovcalError(
                f"{self._where} gives different outputs for the same rows (relative "
                f"difference {moved:.1g}): call model.eval() and export the model again"
            )


def _rows(values: AnyArray) -> Float64s:
    rows: Float64s = values.reshape(len(values), -1).astype(np.float64)
    return rows


@dataclass(frozen=True)
class _Comparison:
    """A copy of a model that also returns inner tensors, and the unchanged model."""

    original: OriginalModel
    runner: Runner
    error: float  # The relative difference between the outputs of the copy and the unchanged model.
    notes: tuple[str, ...] = ()


class OpenedOnnx:
    """An ONNX file as a classifier; see `covcal_cli.classifiers.classifier.OpenedClassifier`."""

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
        self.metadata: Mapping[str, str] = {
            entry.key: entry.value for entry in file.model.metadata_props
        }
        self._reading = self._declared(choose_head(self._graph, output, phi))
        self.n_classes = self._reading.tail.n_classes
        self.class_names, self.notes = self._names(self._reading)
        self.features_tensor = _features_tensor(self._reading.head)
        self.logits_tensor = self._reading.head.logits.name

    def prove(self, batch: Inputs | None, few: int | None = None) -> "OnnxClassifier":
        """Return the classifier, after a check on the first batch if there is one."""
        if batch is None:
            return OnnxClassifier(self._reading, self.notes)
        try:
            return self._proved(self._reading, batch, few)
        except UnknownTailError:
            if self._phi is None:
                raise
        # With --phi, the logits need not come from a linear layer.
        head = choose_head(self._graph, self._output, self._phi, layer=False)
        return self._proved(self._declared(head), batch, few)

    def _declared(self, head: Head) -> Reading:
        if head.layer and len(head.features) == 1 and head.weight is not None:
            source, width = head.features[0].name, head.weight.shape[1]
            require_declared_width(self._graph, self.inputs, source, width)
        runner = self._start(head, fuse=True)
        width = None if head.weight is None else int(head.weight.shape[1])
        if head.features and width is None:
            row = runner.row_shape(head.features[0].name)
            if row is not None:
                width, head = int(np.prod(row)), with_affine_map(self._graph, head, row)
        n_scores = head.n_scores
        if not n_scores:
            row = runner.row_shape(head.logits.tensor)
            of_labels = max((len(zip_labels(node)) for node in self._graph.nodes), default=0)
            n_scores = int(np.prod(row)) if row else of_labels
        tail = Tail(str(self._file.path), head, n_scores, head.outputs)
        return Reading(self._graph, head, tail, runner, width)

    def _names(self, reading: Reading) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
        names, notes = class_names(self._graph, self.metadata, reading.tail.n_classes)
        is_logit = reading.tail.is_single and not reading.tail.is_bare
        return names, (*notes, *([proof.ONE_NUMBER] if is_logit else []))

    def _proved(self, reading: Reading, batch: Inputs, few: int | None) -> "OnnxClassifier":
        names, notes = self._names(reading)
        labels = OwnLabels(self._graph, names, [output.name for output in reading.head.outputs])
        values = reading.runner.run([*reading.tensors, *labels.tensors], batch)
        reading, so_far = reading.with_first_batch(values), Proof()
        features, scores = reading.read(values)
        logits = reading.tail.logits(scores)
        if not valid_rows(logits).all():
            # The caller reports NaN and infinity, because the caller knows the ids of the rows.
            return OnnxClassifier(reading, notes)
        limit = reading.rounding(values, features)
        reading = reading.proved_affine(so_far, features, scores, limit)
        tail = reading.tail.recognised(scores, values, limit)
        reading = replace(reading, tail=tail)
        compared = self._compared(reading, batch, values, limit, few)
        notes = (*notes, *compared.notes, *tail.notes)
        if compared.runner is reading.runner:
            so_far.remarks += labels.note(values, logits)
            classifier = OnnxClassifier(reading, notes, so_far, compared, labels)
            classifier.first_results = classifier.results(features, tail.logits(scores))
            return classifier
        reading = replace(reading, runner=compared.runner)
        classifier = OnnxClassifier(reading, notes, Proof(), compared, labels)
        classifier.first_results = classifier.run(batch)
        return classifier

    def _compared(
        self,
        reading: Reading,
        batch: Inputs,
        values: Mapping[str, AnyArray],
        limit: float,
        few: int | None,
    ) -> _Comparison:
        runner, original = reading.runner, self._unmodified(reading, fuse=True)
        # Compare all outputs of a quantised model, because rounding may change any row. A fixed
        # batch size does not allow fewer rows.
        if few is not None and self.fixed_batch is None and not holds_quantised(self._graph):
            first = {name: array[:few] for name, array in batch.items()}
            error = original.difference(first, runner.run(reading.tensors, first))
            if error <= limit:
                return _Comparison(original, runner, error)
        error = original.difference(batch, values)
        if error <= limit:
            return _Comparison(original, runner, error)
        original.require_repeatable(values, runner.run(reading.tensors, batch), limit)
        runner = self._start(reading.head, fuse=False)  # Try again without fused operators.
        values = runner.run(reading.tensors, batch)
        error = original.difference(batch, values)
        if error <= limit:
            return _Comparison(original, runner, error)
        # If the outputs still differ, run the unchanged model without fused operators too.
        moved, original = error, self._unmodified(reading, fuse=False)
        error = original.difference(batch, values)
        if error > limit:
            raise CovcalError(
                f"{self._file.path}: reading tensors inside this model changes its output by "
                f"{error:.1g} (relative): export the model again without fused operators"
            )
        note = (
            "without fused operators, rounding changes the model's output by up to "
            f"{moved:.1g} (relative)"
        )
        return _Comparison(original, runner, error, (note,))

    def _unmodified(self, reading: Reading, *, fuse: bool) -> OriginalModel:
        (output,) = reading.tail.outputs
        session = self._session(self._file.data, fuse=fuse)
        return OriginalModel(str(self._file.path), session, self.inputs, output)

    def _start(self, head: Head, *, fuse: bool) -> Runner:
        outputs = [value.tensor for value in head.outputs]
        data = exposing(self._file.model, [*head.features, head.logits], outputs)
        return Runner(str(self._file.path), self._session(data, fuse=fuse), self.inputs)

    def _session(self, data: bytes, *, fuse: bool) -> Any:
        return self._file.session(data, threads=self._threads, providers=self._providers, fuse=fuse)


class OnnxClassifier(Classifier):
    """A checked ONNX classifier; see `covcal_cli.classifiers.classifier.Classifier`."""

    def __init__(
        self,
        reading: Reading,
        notes: tuple[str, ...],
        # The last three arguments are None if no batch was checked.
        so_far: Proof | None = None,
        compared: _Comparison | None = None,
        labels: OwnLabels | None = None,
    ) -> None:
        head, self._is_single = reading.head, reading.tail.is_single
        self.name, self.reading = reading.graph.file.path.name, reading
        self.notes_on_model = notes
        self.proof = so_far or Proof()
        self.n_classes = reading.tail.n_classes
        self.outputs = Outputs(
            str(reading.graph.file.path),
            reading.tail.kind,
            is_single=self._is_single,
            has_layer=not reading.tail.is_bare,
        )
        self.n_features = reading.width
        self.features_tensor, self.logits_tensor = _features_tensor(head), head.logits.name
        self.exposure_error = compared.error if compared else None
        self.is_quantised = holds_quantised(reading.graph)
        self._original = compared.original if compared and self.is_quantised else None
        self._labels = labels

    def run(self, batch: Inputs) -> Results:
        """Return phi(x) and the outputs; see `Classifier.run`."""
        reading, labels = self.reading, self._labels
        tensors = [*reading.tensors, *(labels.tensors if labels else [])]
        values = reading.runner.run(tensors, batch)
        features, scores = reading.read(values)
        require_width(reading.where, features, self.n_features)
        logits = reading.tail.logits(scores)
        if labels is not None and valid_rows(logits).all():
            limit = reading.rounding(values, features)
            reading = reading.proved_affine(self.proof, features, scores, limit)
            self.reading = reading
            reading.tail.check(scores, values, limit)
            if self._original is not None:
                has_features = features is not None
                self._original.require_same(batch, values, limit, has_features=has_features)
            self.proof.remarks += labels.note(values, logits)
        return self.results(features, logits)

    @property
    def weight(self) -> Float32s | None:
        """The weights W, shape (K, d); see `Classifier.weight`."""
        return self._head_array(self.reading.head.weight)

    @property
    def bias(self) -> Float32s | None:
        """The bias b, shape (K,); see `Classifier.bias`."""
        bias = self.reading.head.bias
        return self._head_array(None if bias is None else without_offset(bias))

    def _head_array(self, values: Float64s | None) -> Float32s | None:
        if values is None or self.outputs.are_logged:
            return None
        floats = values.astype(np.float32)
        # A single output z stands for the logits 0 and z.
        return np.concatenate([np.zeros_like(floats), floats]) if self._is_single else floats

    def describe(self) -> str:
        """Describe the last layer and the largest error of its check in one line."""
        head = self.reading.head
        phi = f"phi {self.n_features or '?'}" if head.features else "no phi"
        if head.features and not head.layer:
            phi = f"phi {head.features[0].name} {self.n_features or '?'}"
        text = f"{head.layer}: {phi}" if head.layer else phi
        text += f", {self.n_classes} classes"
        if head.features and self.weight is None:
            text += ", no linear head"
        return text + self.describe_check()


def _features_tensor(head: Head) -> str | None:
    return " + ".join(value.name for value in head.features) or None
