"""A torch classifier that returns phi(x) and the logits from one run of the program.

`OpenedTorch` finds the last linear layer (the `Head`) from runs on random rows. Without a head, the
output itself (an `Answer`) is used. A `Reading` runs the program on data, records the values in the
last linear layer, and checks every batch (``classifiers/proof.py``).
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from covcal_cli.arrays import Float32s, Float64s, Inputs
from covcal_cli.classifiers import ModelSettings, names_a_function, proof
from covcal_cli.classifiers.classifier import (
    Classifier,
    Outputs,
    Results,
    batches_of,
    require_fit,
    require_width,
    without_offset,
)
from covcal_cli.classifiers.proof import Proof
from covcal_cli.classifiers.torch.factory import open_function
from covcal_cli.classifiers.torch.file import open_file
from covcal_cli.classifiers.torch.head import Answer, Head, RandomRun, find_head
from covcal_cli.classifiers.torch.program import (
    CPU,
    Program,
    device_of,
    may_hold_classes,
    read_answer,
)
from covcal_cli.classifiers.torch.trace import LayerReader, Tap, Trace, open_tap, parameter_names
from covcal_cli.errors import CovcalError
from covcal_cli.maths.softmax import valid_rows


def open_torch(model: str | Path, settings: ModelSettings, threads: int) -> "OpenedTorch":
    """Open a torch model; see `covcal_cli.classifiers.open.open_classifier`.

    Sets torch's number of threads for the whole process.
    """
    device = device_of(settings.providers)
    torch.set_num_threads(threads)
    program = open_program(model, settings.weights, device, trusted=settings.trust_model)
    return OpenedTorch(program, output=settings.model_output, phi=settings.phi)


def open_program(
    model: str | Path, weights: Path | None, device: torch.device = CPU, *, trusted: bool = False
) -> Program:
    """Open a torch file or call ``module:function``, and move the program to `device`."""
    if names_a_function(model):
        program = open_function(str(model), weights)
    elif weights is not None:
        raise CovcalError(
            f"{model} contains its weights: leave out --weights, or pass module:function as the "
            "model"
        )
    else:
        program = open_file(Path(model), device, trusted=trusted)
    for name, value in program.module.state_dict().items():
        if value.is_floating_point() and bool(torch.isnan(value).any()):
            raise CovcalError(
                f"{weights or program.where}: {name} holds NaN, so training may have diverged: "
                "give other weights"
            )
    return program.on(device)


@dataclass(frozen=True)
class Values:
    """The features, logits and output of m rows."""

    features: Float64s | None  # Shape (m, d).
    logits: Float64s  # Shape (m, K).
    output: Float64s  # Shape (m, K).

    @property
    def width(self) -> int | None:
        """The number of features d; None without features."""
        return None if self.features is None else self.features.shape[1]


class Reading:
    """How to compute phi and the logits from a run of a program."""

    def __init__(
        self,
        program: Program,
        source: Head | Answer,  # The layers or the output with the logits.
        output_name: str,  # The output with the classes.
        tap: Tap | None,  # The reader of the features of --phi; None for the layer's input.
        *,
        features: bool,  # Whether to return features.
    ) -> None:
        self.program, self.source, self.output_name = program, source, output_name
        self._tap, self._features = tap, features
        self._names = parameter_names(program.module)
        layers = source.layers if isinstance(source, Head) else ()
        self._keys = {layer.key for layer in layers} | (tap.keys if tap else set())
        self.where = program.where
        values = self.read(program.rows)
        self.n_classes, self.n_features = values.logits.shape[1], values.width
        self.weight: Float32s | None = None
        self.bias: Float32s | None = None
        self.features_tensor: str | None = None
        if values.features is not None:
            if tap is not None:
                self.features_tensor = tap.name
            elif isinstance(source, Head):
                self.features_tensor = source.features
            if isinstance(source, Head) and source.reads(values.features, values.logits):
                self.weight = source.weight.astype(np.float32)
                self.bias = source.bias.astype(np.float32)
        self.logits_tensor = source.layer if isinstance(source, Head) else output_name
        on_tap = [tap.note] if tap and tap.note else []
        self.notes = (*program.notes, *on_tap, *source.notes)
        self.exposure_error(program.rows, values)

    def read(self, rows: Sequence[Tensor]) -> Values:
        """Return the features, logits and output of rows.

        With a fixed batch size, the rows are divided, and the last row is repeated.
        """
        m = len(rows[0])
        pieces = [
            self._read_once([row[places] for row in rows])
            for places in batches_of(self.program.fixed_batch, m)
        ]
        if len(pieces) == 1 and len(pieces[0].logits) == m:
            return pieces[0]
        features = [piece.features for piece in pieces if piece.features is not None]
        return Values(
            np.concatenate(features)[:m] if features else None,
            np.concatenate([piece.logits for piece in pieces])[:m],
            np.concatenate([piece.output for piece in pieces])[:m],
        )

    def output(self, rows: Sequence[Tensor]) -> Float64s:
        """Return the output of one batch."""
        places = next(batches_of(self.program.fixed_batch, len(rows[0])))
        first = [row[places] for row in rows]
        outputs = self.program.run(first)
        n = len(first[0])
        return read_answer(outputs, self.output_name, n, self.program.where)[: len(rows[0])]

    def _read_once(self, rows: Sequence[Tensor]) -> Values:
        n, where = len(rows[0]), self.program.where
        reader = LayerReader(self._keys, self._names)
        with reader.listening(), self._tap.listen() if self._tap else nullcontext():
            outputs = self.program.run(rows)
        output = read_answer(outputs, self.output_name, n, where)
        features: Float64s | None = None
        if isinstance(self.source, Answer):
            logits = self.source.logits(output)
        else:
            values = self.source.read(reader.calls, n)
            if values is None:
                raise CovcalError(
                    f"{where} did not use {self.source.layer} on this batch: give a model "
                    "that uses the same layers for all rows"
                )
            features, logits = values
        if self._tap is not None:
            features = self._tap.read(rows, reader.calls)
        return Values(features if self._features else None, logits, output)

    def rows(self, batch: Inputs) -> list[Tensor]:
        """Return a batch as tensors, in the order of the inputs. Refuse wrong shapes."""
        rows = []
        for wanted in self.program.inputs:
            array = batch[wanted.name]
            require_fit(self.where, wanted, array)
            # torch warns about read-only arrays.
            rows.append(torch.from_numpy(np.require(array, requirements=["C", "W"])))
        return rows

    def exposure_error(self, rows: Sequence[Tensor], values: Values) -> float:
        """Return the relative change of the output if inner values are read."""
        alone = self.output(rows)
        error = proof.relative_error(values.output[: len(alone)], alone)
        if error > self.source.limit:
            raise CovcalError(
                f"{self.where} gives different outputs for the same rows (relative difference "
                f"{error:.1g}): call model.eval() and save the model again"
            )
        return error

    def prove(self, so_far: Proof, values: Values) -> None:
        """Check that phi W^T + b gives the logits, and that the logits give the output."""
        limit = self.source.limit
        if self.weight is not None and self.bias is not None and values.features is not None:
            error = so_far.add(
                values.features, self.weight, self.bias, values.logits, limit, step=0.0
            )
            if error is not None:
                raise CovcalError(
                    f"{self.where}: {self.logits_tensor} is not a linear function of "
                    f"{self.features_tensor} (relative error {error:.1g}): pass --phi none to "
                    "keep only the logits"
                )
        if proof.tail_error(self.source.tail, values.logits, values.output) > limit:
            raise _OtherOutputError(
                f"{self.where}: covcal computes output {self.output_name} as "
                f"{proof.TAIL_TEXT[self.source.tail]} from the logits of {self.logits_tensor}, but "
                "some rows differ: pass --phi none to use the output directly"
            )


class _OtherOutputError(CovcalError):
    """An error about an output that covcal cannot compute from the logits."""


# Operators that change only extreme values, which random rows may not have.
_LIMITS = {"clamp", "clamp_", "clamp_min", "clamp_max", "clip", "hardtanh", "minimum", "maximum"}


class OpenedTorch:
    """A torch program as a classifier; see `covcal_cli.classifiers.classifier.OpenedClassifier`."""

    def __init__(self, program: Program, *, output: str | None, phi: str | None) -> None:
        self._program, self._phi = program, phi
        self.name, self.sha256 = program.name, program.sha256
        self.inputs, self.fixed_batch = program.inputs, program.fixed_batch
        self.metadata: Mapping[str, str] = {}
        self.class_names: tuple[str, ...] | None = None

        run = _random_run(program, output)
        source = _logits_source(run, phi)
        self._output = source.output if isinstance(source, Head) else next(iter(run.choices))
        self._tap = None if phi in (None, "none") else open_tap(str(phi), program, run.trace.calls)
        self._reading = reading = self._read_from(source)
        self.n_classes, self.notes = reading.n_classes, reading.notes
        self.features_tensor = reading.features_tensor
        self.logits_tensor = reading.logits_tensor

    def prove(self, batch: Inputs | None, few: int | None = None) -> "TorchClassifier":
        """Return the classifier, after a check on the first batch if there is one."""
        if batch is None:
            return TorchClassifier(self._reading)
        few = None if self.fixed_batch else few
        try:
            return _proved(self._reading, batch, few)
        except _OtherOutputError:
            if self._phi is None or isinstance(self._reading.source, Answer):
                raise
        # With --phi, the logits need not come from a linear layer.
        output = self._reading.output(self._program.rows)
        return _proved(self._read_from(Answer.of(output, self._program.where)), batch, few)

    def _read_from(self, source: Head | Answer) -> Reading:
        features = self._phi != "none"
        return Reading(self._program, source, self._output, self._tap, features=features)


def _random_run(program: Program, output: str | None) -> RandomRun:
    rows, n = program.rows, len(program.rows[0])
    names = parameter_names(program.module)
    trace = Trace(rows, names)
    with trace.recording():
        choices = may_hold_classes(program.run(rows), output, n, program.where)
    layers = [layer for value in choices.values() for layer in trace.last_layers(value)[0]]
    reader = LayerReader({layer.key for layer in layers}, names)
    with reader.listening():
        outputs = program.run(rows)
    return RandomRun(trace, choices, outputs, reader.calls, n, program.where)


def _logits_source(run: RandomRun, phi: str | None) -> Head | Answer:
    name = next(iter(run.choices))
    answer = read_answer(run.choices, name, run.n, run.where)
    try:
        head = find_head(run)
    except CovcalError:
        if phi is None or len(run.choices) > 1:
            raise
        return Answer.of(answer, run.where)
    # Random rows may not show that the model clips large logits, so the output itself is used.
    plain = phi == "none" and head.tail == "none" and not head.is_single
    _, followers = run.trace.last_layers(run.choices[head.output])
    limited = phi is not None and not _LIMITS.isdisjoint(followers)
    return Answer.of(answer, run.where) if (plain or limited) and head.output == name else head


def _proved(reading: Reading, batch: Inputs, few: int | None) -> "TorchClassifier":
    rows = reading.rows(batch)
    values, so_far = reading.read(rows), Proof()
    # The number of features may depend on the size of the rows.
    reading.n_features = values.width
    if not valid_rows(values.logits).all():
        return TorchClassifier(reading)
    if few is None:
        error = reading.exposure_error(rows, values)
    else:
        first = [array[:few] for array in rows]
        error = reading.exposure_error(first, reading.read(first))
    reading.prove(so_far, values)
    classifier = TorchClassifier(reading, so_far, error)
    classifier.first_results = classifier.results(values.features, values.logits)
    return classifier


class TorchClassifier(Classifier):
    """A checked torch classifier; see `covcal_cli.classifiers.classifier.Classifier`."""

    def __init__(
        self,
        reading: Reading,
        so_far: Proof | None = None,  # The largest errors so far; None if no batch was checked.
        exposure_error: float | None = None,
    ) -> None:
        self.name = reading.program.name
        self.n_classes, self.n_features = reading.n_classes, reading.n_features
        self.features_tensor, self.logits_tensor = reading.features_tensor, reading.logits_tensor
        self.outputs = Outputs(
            reading.where,
            reading.source.tail if so_far else None,
            is_single=reading.source.is_single,
            has_layer=isinstance(reading.source, Head),
        )
        self.proof, self.exposure_error = so_far or Proof(), exposure_error
        self.is_single, self.output_name = reading.source.is_single, reading.output_name
        self._reading, self.notes_on_model = reading, reading.notes

    def run(self, batch: Inputs) -> Results:
        """Return phi(x) and the outputs; see `Classifier.run`."""
        reading = self._reading
        values = reading.read(reading.rows(batch))
        require_width(reading.where, values.features, self.n_features)
        # The caller reports NaN and infinity, because the caller knows the ids of the rows.
        if self.tail is not None and valid_rows(values.logits).all():
            reading.prove(self.proof, values)
        return self.results(values.features, values.logits)

    @property
    def weight(self) -> Float32s | None:
        """The weights W, shape (K, d); see `Classifier.weight`."""
        return None if self.outputs.are_logged else self._reading.weight

    @property
    def bias(self) -> Float32s | None:
        """The bias b, shape (K,); see `Classifier.bias`."""
        source = self._reading.source
        if self.outputs.are_logged or self._reading.bias is None or isinstance(source, Answer):
            return None
        bias = source.bias if self.is_single else without_offset(source.bias)
        return bias.astype(np.float32)

    def describe(self) -> str:
        """Describe the last layer and the largest error of its check in one line."""
        phi = "" if self.n_features is None else f"phi {self.n_features}, "
        text = f"{self.logits_tensor}: {phi}{self.n_classes} classes"
        if self.features_tensor and self.weight is None:
            text += f", phi = {self.features_tensor}"
        return text + self.describe_check()
