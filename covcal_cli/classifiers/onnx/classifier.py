"""An ONNX classifier: what gives phi(x) and its logits in one pass, opened and then proved.

The tensors of a `Head` become outputs of a copy of the model in memory; the file stays as it is. A
`Reading` makes phi of them, and of the scores the logits that the model's `Tail` follows. The first
batch proves both (``classifiers/proof.py``), and every later batch is held to the same proof,
because a capped or clipped tail can look like plain logits on a few rows. A quantised model is also
run as it came on every batch (`OriginalModel`), because reading inside it can move some rows and
not others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.arrays import (
    AnyArray,
    Float32s,
    Float64s,
    Floats,
    Inputs,
    ModelInput,
)
from covcal_cli.classifiers import proof
from covcal_cli.classifiers.classifier import require_width
from covcal_cli.classifiers.kinds import REMEDY
from covcal_cli.classifiers.onnx.file import CPU, OnnxFile, provider_names, read_onnx
from covcal_cli.classifiers.onnx.graph import OnnxGraph, read_inputs, require_declared_width
from covcal_cli.classifiers.onnx.head import Head, choose_head, with_affine_map
from covcal_cli.classifiers.onnx.layers import LOGITS_ONLY, OVERFLOW, holds_quantised
from covcal_cli.classifiers.onnx.outputs import (
    ClassOutput,
    OwnLabels,
    any_labels,
    class_names,
    read_metadata,
)
from covcal_cli.classifiers.onnx.runner import Runner, exposing
from covcal_cli.classifiers.proof import Proof, notes_on_tail
from covcal_cli.classifiers.settlement import Outputs, without_offset
from covcal_cli.errors import CovcalError
from covcal_cli.files import require_file
from covcal_cli.maths.masks import valid_rows

Token = int | str
_FEW = 16  # rows, enough to tell tokens apart
_MEAN = "mean"


def open_onnx(
    model: str | Path,
    *,
    weights: Path | None = None,
    output: str | None = None,
    phi: str | None = None,
    threads: int = 1,
    providers: Sequence[str] = (),
) -> "OpenedOnnx":
    """Open an ONNX file; see `covcal_cli.classifiers.open.open_classifier`."""
    path = Path(model)
    if weights is not None:
        raise CovcalError(
            f"{path} holds its own weights: give --weights only with a torch model as "
            "module:function"
        )
    require_file(path, remedy=REMEDY)
    names = provider_names(providers)
    return OpenedOnnx(read_onnx(path), output, phi, threads=threads, providers=names)


# From the tensors that hold phi to one vector per row.


def features_of(
    where: str, head: Head, token: Token | None, arrays: list[AnyArray], scores: Floats
) -> Floats:
    """Return phi, shape (m, d), of the tensors that hold it, shapes (m, ...).

    `where` is the model, for errors; `token` which vector of several, where the first batch showed
    it.
    """
    token = token_of(head, arrays, scores) if token is None else token
    phi = None
    if token is not None and head.weight is not None:
        phi = _take(_tokens(arrays[0], head.weight.shape[1]), token)
    else:
        vectors = [vector for array in arrays if (vector := _vectors(array)) is not None]
        phi = np.concatenate(vectors, axis=1) if len(vectors) == len(arrays) else None
    if phi is None or (head.weight is not None and phi.shape[1] != head.weight.shape[1]):
        raise CovcalError(
            f"{where}: {head.layer or head.features[0].name} "
            f"{'reads' if head.layer else 'holds'} features of shape "
            f"[N, {', '.join(map(str, arrays[0].shape[1:]))}], not one vector per row: pass "
            "--phi NAME with a tensor that is one, or --phi none to keep the logits alone"
        )
    return phi


def token_of(head: Head, arrays: list[AnyArray], scores: Floats) -> Token | None:
    """Return which of several vectors of every row the scores come from, or their mean.

    A head may run on every token or position, one of which is then chosen or all averaged. None
    where there is one vector alone, or none of them gives the scores.
    """
    array = arrays[0]
    if len(arrays) > 1 or head.weight is None or head.bias is None:
        return None
    width, whole = head.weight.shape[1], _vectors(array)
    if (whole is not None and whole.shape[1] == width) or array.shape[-1] != width:
        return None
    tokens = _tokens(array, width)
    limit = max(proof.tolerance(array.dtype), proof.tolerance(scores.dtype))
    tried: tuple[Token, ...] = (0, _MEAN, -1, *range(1, tokens.shape[1]))
    for token in tried:
        few, trial = _take(tokens[:_FEW], token), proof.Proof()
        if trial.add(few, head.weight, head.bias, scores[:_FEW], limit, head.step) is None:
            return token
    return None


def _vectors(array: AnyArray) -> Floats | None:
    """Return the rows of an array that has one vector in each, else None."""
    if sum(size != 1 for size in array.shape[1:]) > 1:
        return None
    return _floats(array.reshape(len(array), -1))


def _tokens(array: AnyArray, width: int) -> Floats:
    return _floats(array.reshape(len(array), -1, width))


def _floats(array: AnyArray) -> Floats:
    kind = array.dtype if np.issubdtype(array.dtype, np.floating) else np.dtype(np.float32)
    result: Floats = array.astype(kind, copy=False)
    return result


def _take(tokens: Floats, token: Token) -> Floats:
    if isinstance(token, str):
        return np.asarray(tokens.mean(axis=1, dtype=np.float64), dtype=tokens.dtype)
    return tokens[:, token]


# From the scores in the graph to one logit per class, and from those to the model's output.


class UnknownTailError(CovcalError):
    """The output is not made of the scores in a way that is known."""


@dataclass(frozen=True)
class Tail:
    """What follows the scores of a head: declared by the graph, then seen in the first batch."""

    where: str  # the model, for errors
    head: Head
    n_scores: int  # columns of the scores, 0 if unknown
    outputs: tuple[ClassOutput, ...]  # those that may be compared; one once the kind is known
    kind: str | None = None  # one of `proof.TAILS` or `proof.ARGMAX`; None until it is recognised
    is_double: bool = False  # whether they are float64
    notes: tuple[str, ...] = ()  # what the first batch shows

    def __post_init__(self) -> None:
        if self.n_scores == 0:
            raise CovcalError(
                f"{self.where}: output {self.head.outputs[0].name} declares no number of classes, "
                "and no layer before it tells it: export one probability or logit per class"
            )

    @property
    def is_single(self) -> bool:
        """Whether the model gives one number for two classes."""
        return self.n_scores == 1

    @property
    def n_classes(self) -> int:
        """K."""
        return 2 if self.is_single else self.n_scores

    @property
    def is_bare(self) -> bool:
        """Whether the output itself is all there is: no layer and no squashing operator."""
        head = self.head
        return (
            not head.layer
            and head.follower is None
            and head.logits.tensor == head.outputs[0].tensor
        )

    def seen_in(self, tensor: AnyArray) -> "Tail":
        """Return the tail with what the scores of the first batch show.

        Some boosting models declare one column of probabilities and give two.
        """
        n_scores = self.n_scores
        if self.is_bare and self.is_single and tensor.ndim == 2 and tensor.shape[1]:
            n_scores = tensor.shape[1]
        return replace(self, n_scores=n_scores, is_double=tensor.dtype == np.float64)

    def scores(self, tensor: AnyArray) -> AnyArray:
        """Return the scores as one row per row, shape (m, n_scores)."""
        return self._rows(tensor)

    def logits(self, scores: AnyArray) -> AnyArray:
        """Return one logit per class, shape (m, K)."""
        return proof.two_logits(scores) if self.is_single else scores

    def recognised(self, scores: AnyArray, values: dict[str, AnyArray], limit: float) -> "Tail":
        """Return the tail with the kind that makes an output of the scores, and that output."""
        for output in self.outputs:
            for kind in [proof.ARGMAX] if output.is_label else proof.TAILS:
                if self._makes(kind, output, scores, values, limit):
                    notes = notes_on_tail(kind, is_single=self.is_single)
                    return replace(self, kind=kind, outputs=(output,), notes=(*self.notes, *notes))
        raise self._unknown()

    def hold(self, scores: AnyArray, values: dict[str, AnyArray], limit: float) -> None:
        """Hold a later batch to the kind that was recognised."""
        (output,) = self.outputs
        if not self._makes(str(self.kind), output, scores, values, limit):
            raise self._unknown()

    def _makes(
        self,
        kind: str,
        output: ClassOutput,
        scores: AnyArray,
        values: dict[str, AnyArray],
        limit: float,
    ) -> bool:
        found = values[output.tensor]
        largest = float(np.abs(found).max(initial=0)) or 1.0
        logits, rows = self.logits(scores), found.reshape(len(found), -1)
        # exp(z - log sum exp z) is off by as much as large z are rounded.
        step = self.head.tail_step + proof.rounding(logits)
        allowed = max(limit, proof.tolerance(found.dtype)) + step / largest
        return proof.tail_error(kind, logits, rows) <= allowed

    def _rows(self, tensor: AnyArray) -> AnyArray:
        rows = tensor.reshape(len(tensor), -1) if tensor.size else tensor
        if rows.shape[1:] != (self.n_scores,):
            head = self.head
            follower = f"{head.follower} follows" if head.follower else "no mean follows"
            raise UnknownTailError(
                f"{self.where}: {head.layer or head.logits.name} gives {list(tensor.shape[1:])} "
                f"values per row and {follower}, so the logits are not affine in a feature "
                f"vector: {LOGITS_ONLY}"
            )
        return rows

    def _unknown(self) -> UnknownTailError:
        head = self.head
        names = ", ".join(output.name for output in self.outputs)
        follows = f" ({head.follower} follows them)" if head.follower else ""
        # Who has passed it is here because a later batch is not what the first one was.
        way = "pass --phi none to take the output as it is" if head.features else "export them"
        return UnknownTailError(
            f"{self.where}: output {names} is neither the logits of "
            f"{head.layer or head.logits.name} nor their softmax, log-softmax or sigmoids"
            f"{follows}: {way}, or choose another output with --model-output NAME"
        )


# The model as it came: what reading tensors inside it must not change.


class OriginalModel:
    """The unmodified model and the output that it is compared by."""

    def __init__(
        self, where: str, session: Any, inputs: tuple[ModelInput, ...], output: ClassOutput
    ) -> None:
        self._where, self._output = where, output
        zipped = {output.name: output.zipped} if output.zipped else {}
        self._runner = Runner(where, session, inputs, zipped)

    def difference(self, batch: Inputs, values: Mapping[str, AnyArray]) -> float:
        """Return the relative error of the output among `values` against the model's own."""
        own = self._runner.run([self._output.name], batch)[self._output.name]
        return proof.relative_error(_rows(values[self._output.tensor]), _rows(own))

    def require_same(
        self, batch: Inputs, values: Mapping[str, AnyArray], limit: float, *, has_features: bool
    ) -> None:
        """Require that the output among `values` differs by no more than `limit`."""
        moved = self.difference(batch, values)
        if moved <= limit:
            return
        remedy = "extract from the model before quantisation"
        if has_features:
            remedy = f"pass --phi none to keep its own logits alone, or {remedy}"
        raise CovcalError(
            f"{self._where}: reading tensors inside the quantised model changes its output by "
            f"{moved:.1g} (relative) on some rows, where operators are fused otherwise: {remedy}"
        )

    def require_repeatable(
        self, values: Mapping[str, AnyArray], again: Mapping[str, AnyArray], limit: float
    ) -> None:
        """Require the same output of two runs on the same rows.

        ONNX Runtime leaves dropout out of a model as it came, but not where tensors are read.
        """
        first, second = (_rows(found[self._output.tensor]) for found in (values, again))
        moved = proof.relative_error(second, first)
        if moved > limit:
            raise CovcalError(
                f"{self._where} gives another output for the same rows each time (relative error "
                f"{moved:.1g}): export it in evaluation mode (model.eval()), so that dropout is off"
            )


def _rows(values: AnyArray) -> Float64s:
    rows: Float64s = values.reshape(len(values), -1).astype(np.float64)
    return rows


# What is read of a run, and its proof.


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

    def seen_in(self, values: Mapping[str, AnyArray]) -> "Reading":
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

    def read(self, values: Mapping[str, AnyArray]) -> tuple[Floats | None, AnyArray]:
        """Return phi, shape (m, d), and the scores, shape (m, n_scores), of a run."""
        scores = self.tail.scores(values[self.head.logits.tensor])
        if not self.head.features:
            return None, scores
        arrays = self._arrays(values)
        return features_of(self.where, self.head, self.token, arrays, scores), scores

    def prove_affine(
        self,
        found: Proof,
        values: Mapping[str, AnyArray],
        features: Floats | None,
        scores: AnyArray,
    ) -> tuple["Reading", float]:
        """Hold phi W^T + b to the scores.

        Return the reading, without W and b if features that the user chose do not give the scores
        on real rows, and the error that rounding explains elsewhere.
        """
        head = self.head
        limit = proof.tolerance(values[head.logits.tensor].dtype)
        if features is None or head.weight is None or head.bias is None:
            return self, limit
        limit = max(limit, proof.tolerance(features.dtype))
        error = found.add(features, head.weight, head.bias, scores, limit, head.step)
        if error is not None and not head.layer:
            return replace(self, head=replace(head, weight=None, bias=None)), limit
        if error is not None:
            remedy = OVERFLOW if holds_quantised(self.graph) else ""
            raise CovcalError(
                f"{self.where}: {head.layer or head.features[0].name} does not give "
                f"{head.logits.name} (relative error {error:.1g}), so the logits are not "
                f"affine in its input: {remedy}pass --phi none to keep the logits alone, or "
                "--phi NAME to take another tensor"
            )
        return self, limit

    @property
    def where(self) -> str:
        """The model, for errors."""
        return str(self.graph.file.path)

    def _arrays(self, values: Mapping[str, AnyArray]) -> list[AnyArray]:
        return [values[value.tensor] for value in self.head.features]


@dataclass(frozen=True)
class _Comparison:
    """The model as it came, and how its tensors are read so that its output does not move."""

    original: OriginalModel
    runner: Runner
    error: float  # relative, of the output
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
        self.metadata: Mapping[str, str] = read_metadata(self._graph)
        self._reading = self._declared(choose_head(self._graph, output, phi))
        self.n_classes = self._reading.tail.n_classes
        self.class_names, self.notes = self._names(self._reading)
        self.features_tensor = _features_tensor(self._reading.head)
        self.logits_tensor = self._reading.head.logits.name

    def prove(self, batch: Inputs | None) -> "OnnxClassifier":
        """Return the classifier, its head proved on a first batch; unproved where there is none."""
        if batch is None:
            return OnnxClassifier(self._reading, self.notes)
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
            # Floats that the user chose: are the logits affine in them?
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
        is_known = reading.tail.is_single and not reading.tail.is_bare
        return names, (*notes, *([proof.ONE_NUMBER] if is_known else []))

    def _proved(self, reading: Reading, batch: Inputs) -> "OnnxClassifier":
        names, notes = self._names(reading)
        others = [output.name for output in reading.head.outputs]
        labels = OwnLabels(self._graph, names, others)
        values = reading.runner.run([*reading.wanted, *labels.wanted], batch)
        reading, found = reading.seen_in(values), Proof()
        features, scores = reading.read(values)
        logits = reading.tail.logits(scores)
        if not valid_rows(logits).all():
            # The caller knows the name of the row and reports it.
            return OnnxClassifier(reading, notes)
        # The scores are affine in phi, the output is made of them, and reading changed nothing.
        reading, limit = reading.prove_affine(found, values, features, scores)
        tail = reading.tail.recognised(scores, values, limit)
        reading = replace(reading, tail=tail)
        compared = self._compared(reading, batch, values, limit)
        notes = (*notes, *compared.notes, *tail.notes)
        if compared.runner is reading.runner:
            found.remarks += labels.note(values, logits)
            return OnnxClassifier(reading, notes, found, compared, labels)
        # The first rows are read in the same way as all others.
        reading = replace(reading, runner=compared.runner)
        classifier = OnnxClassifier(reading, notes, Proof(), compared, labels)
        classifier.run(batch)
        return classifier

    def _compared(
        self, reading: Reading, batch: Inputs, values: Mapping[str, AnyArray], limit: float
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
    """An ONNX classifier, proved; see `covcal_cli.classifiers.classifier.Classifier`."""

    def __init__(
        self,
        reading: Reading,
        notes: tuple[str, ...],
        # None where there was no batch of numbers
        found: Proof | None = None,
        compared: _Comparison | None = None,
        labels: OwnLabels | None = None,
    ) -> None:
        head, self._is_single = reading.head, reading.tail.is_single
        self.name, self._notes, self.reading = reading.graph.file.path.name, notes, reading
        self.proof = found or Proof()
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
        # The model as it came, which a quantised one is held to on every batch.
        self._original = compared.original if compared and self.is_quantised else None
        self._labels = labels

    def run(self, batch: Inputs) -> tuple[Float32s | None, Float32s]:
        """Return phi(x) and the outputs; a batch that is fixed is filled up with its last row."""
        reading, labels = self.reading, self._labels
        values = reading.runner.run([*reading.wanted, *(labels.wanted if labels else [])], batch)
        features, scores = reading.read(values)
        require_width(reading.where, features, self.n_features)
        logits = reading.tail.logits(scores)
        # A row that is no number is reported by the caller, who knows its name.
        if labels is not None and valid_rows(logits).all():
            reading, limit = reading.prove_affine(self.proof, values, features, scores)
            self.reading = reading
            reading.tail.hold(scores, values, limit)
            if self._original is not None:
                has_features = features is not None
                self._original.require_same(batch, values, limit, has_features=has_features)
            self.proof.remarks += labels.note(values, logits)
        shown = None if features is None else features.astype(np.float32)
        return shown, self.outputs.to_float32(logits)

    @property
    def tail(self) -> str | None:
        """What turns the logits into the model's output."""
        return self.outputs.tail

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about how the model is read."""
        return (*self._notes, *self.outputs.notes)

    @property
    def weight(self) -> Float32s | None:
        """W, shape (K, d)."""
        return self._head_array(self.reading.head.weight)

    @property
    def bias(self) -> Float32s | None:
        """The bias b, shape (K,), without a common offset that float32 has no digits for."""
        bias = self.reading.head.bias
        return self._head_array(None if bias is None else without_offset(bias))

    def _head_array(self, values: Float64s | None) -> Float32s | None:
        if values is None or self.outputs.are_logged:
            return None
        floats = values.astype(np.float32)
        # One number z stands for the logits 0 and z.
        return np.concatenate([np.zeros_like(floats), floats]) if self._is_single else floats

    def describe(self) -> str:
        """Return the head and its proof in one line."""
        head = self.reading.head
        phi = f"phi {self.n_features or '?'}" if head.features else "no phi"
        if head.features and not head.layer:
            phi = f"phi {head.features[0].name} {self.n_features or '?'}"
        text = f"{head.layer}: {phi}" if head.layer else phi
        text += f", {self.n_classes} classes"
        if head.features and self.weight is None:
            text += ", no linear head"
        if self.tail is None:
            return text
        text += f", output = {proof.TAIL_TEXT[self.tail]}"
        return (
            text
            if self.weight is None
            else f"{text}, last layer reproduced to {self.proof.error:.0e}"
        )


def _features_tensor(head: Head) -> str | None:
    return " + ".join(value.name for value in head.features) or None
