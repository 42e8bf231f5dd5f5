"""A torch classifier that gives phi(x) and its logits in one pass.

TorchScript, torch.export programs and modules from a function are read alike: while the program
runs, the calls of its last linear layers are kept. A run on made rows finds them; every batch of
data is held to the same proof (``proof.py``).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from covcal_cli.errors import CovcalError
from covcal_cli.models import proof
from covcal_cli.models.classifier import Floats, Inputs
from covcal_cli.models.kinds import names_a_function
from covcal_cli.models.torch_device import CPU, device_of
from covcal_cli.models.torch_factory import open_function
from covcal_cli.models.torch_file import open_file
from covcal_cli.models.torch_head import Head, Probe, find_head
from covcal_cli.models.torch_layers import parameter_names
from covcal_cli.models.torch_outputs import Answer, may_hold_classes, read_answer
from covcal_cli.models.torch_phi import open_tap
from covcal_cli.models.torch_program import Program
from covcal_cli.models.torch_reader import ProgramReader, Values
from covcal_cli.models.torch_trace import LayerReader, Trace


def open_torch(
    model: str | Path,
    *,
    weights: Path | None = None,
    output: str | None = None,
    phi: str | None = None,
    threads: int = 1,
    providers: Sequence[str] = (),
) -> "TorchClassifier":
    """Open a TorchScript or torch.export file, or the module that a function returns.

    Parameters
    ----------
    model : str or Path
        A file, or ``module:function``.
    weights : Path, optional
        Weights for the module that the function returns; read without running anything in them.
    output : str, optional
        Key, field or index of the output that holds the classes, where there are several.
    phi : str, optional
        ``"none"``, ``"input"``, or the path of a module: its output, or with ``.input`` after it
        what it reads.
    threads : int
        Threads within one operation. Torch has one such number per process; it is set here.
    providers : sequence of str
        ``cpu`` or ``cuda``, in order of preference; the CPU when empty.

    Raises
    ------
    CovcalError
        If the model cannot be opened, does not run, or has no linear head while `phi` is None.
    """
    device = device_of(providers)
    torch.set_num_threads(threads)
    return TorchClassifier(open_program(model, weights, device), output=output, phi=phi)


def open_program(model: str | Path, weights: Path | None, device: torch.device = CPU) -> Program:
    """Open a torch file, or make the module of ``module:function``; nothing is sought in it yet.

    Weights are read, and inputs found, on the CPU; then the module is moved to `device`.

    Raises
    ------
    CovcalError
        If it cannot be opened, or `weights` are given for a file, which holds its own.
    """
    if names_a_function(model):
        return open_function(str(model), weights).on(device)
    if weights is not None:
        raise CovcalError(
            f"{model} holds its own weights: drop --weights, or pass module:function as the model"
        )
    return open_file(Path(model), device)


class _OtherOutputError(CovcalError):
    """The output does not follow from the layers that it followed from before."""


class TorchClassifier:
    """A torch program as a classifier; see `covcal_cli.models.classifier.Classifier`.

    Parameters
    ----------
    program : Program
        What runs.
    output, phi : str, optional
        As in `open_torch`.

    Attributes
    ----------
    is_single : bool
        Whether the program gives one number z per row, read as the logits 0 and z of two classes.
    """

    def __init__(self, program: Program, *, output: str | None, phi: str | None) -> None:
        self._where = program.where
        self.name = program.name
        self.sha256 = program.sha256
        self.inputs = program.inputs
        self.fixed_batch = program.fixed_batch
        self.metadata: Mapping[str, str] = {}
        self.class_names: tuple[str, ...] | None = None
        self.tail: str | None = None
        self.exposure_error: float | None = None
        self._proof = proof.AffineProof()

        probe = _probe(program, output)
        source = _logits_source(probe, phi)
        self.output_name = source.output if isinstance(source, Head) else next(iter(probe.choices))
        self._program, self._phi = program, phi
        self._tap = (
            None if phi in (None, "none") else open_tap(str(phi), program, probe.trace.calls)
        )
        self._use(source)

    def _use(self, source: Head | Answer) -> None:
        """Take the logits from a head, or from the output itself, from now on."""
        program, tap, features = self._program, self._tap, self._phi != "none"
        self._source = source
        self._reader = ProgramReader(program, source, self.output_name, tap, features=features)
        values = self._reader.read(program.rows)
        self._require_repeatable(program.rows, values)

        self.n_classes: int = values.logits.shape[1]
        self.n_features: int | None = None
        self.weight: Floats | None = None
        self.bias: Floats | None = None
        self.features_tensor: str | None = None
        self.logits_tensor = source.layer if isinstance(source, Head) else self.output_name
        if values.features is not None:
            self.n_features = values.features.shape[1]
            if tap is not None:
                self.features_tensor = tap.name
            elif isinstance(source, Head):
                self.features_tensor = source.features
            if isinstance(source, Head) and source.reads(values.features, values.logits):
                self.weight = source.weight.astype(np.float32)
                self.bias = source.bias.astype(np.float32)
        self.is_single = isinstance(source, Head) and source.fit.is_single
        tapped = [tap.note] if tap and tap.note else []
        self.notes: tuple[str, ...] = (*program.notes, *tapped, *source.notes)

    @property
    def affine_error(self) -> float | None:
        """Largest affine error over all batches so far, relative to the largest logit."""
        return None if self.tail is None or self.weight is None else self._proof.error

    @property
    def largest_affine_difference(self) -> float:
        """Largest ``|phi W^T + b - logits|`` so far."""
        return self._proof.largest_difference

    @property
    def largest_logit(self) -> float:
        """Largest ``|logit|`` so far."""
        return self._proof.largest_logit

    def run(self, batch: Inputs) -> tuple[Floats | None, Floats]:
        """Return phi(x) and the logits of a batch.

        Parameters
        ----------
        batch : mapping of str to array, shape (m, ...)
            By input name. Where the program's batch is fixed, rows are fed in that number and the
            last run is padded.

        Returns
        -------
        features : array of float32, shape (m, d), or None
        logits : array of float32, shape (m, K)
            Before any softmax.

        Raises
        ------
        CovcalError
            If the shapes do not fit, or the proof fails on this batch.
        """
        try:
            return self._run(batch)
        except _OtherOutputError:
            if self._phi is None or self.tail is not None or isinstance(self._source, Answer):
                raise
        # With features of the user's choice the logits need not be those of a linear layer.
        self._use(self._reader.answer(self._program.rows))
        return self._run(batch)

    def _run(self, batch: Inputs) -> tuple[Floats | None, Floats]:
        rows = [self._checked(batch, index) for index in range(len(self.inputs))]
        values = self._reader.read(rows)
        if np.isfinite(values.logits).all():  # else the caller, who knows the row, reports it
            if self.tail is None:
                self._require_repeatable(rows, values)
            self._prove(values)
        features = None if values.features is None else values.features.astype(np.float32)
        return features, values.logits.astype(np.float32)

    def describe(self) -> str:
        """Return the head and its proof in one line."""
        phi = "" if self.n_features is None else f"phi {self.n_features}, "
        parts = [f"{self.logits_tensor}: {phi}{self.n_classes} classes"]
        if self.features_tensor and self.weight is None:
            parts.append(f"phi = {self.features_tensor}")
        if self.tail is not None:
            parts.append(f"output = {proof.TAIL_TEXT[self.tail]}")
        if self.affine_error is not None:
            parts.append(f"affine error {self.affine_error:.0e}")
        return ", ".join(parts)

    def _checked(self, batch: Inputs, index: int) -> Tensor:
        wanted = self.inputs[index]
        rows = batch[wanted.name]
        fits = len(rows.shape) == len(wanted.shape) and all(
            want in (None, have)
            for want, have in zip(wanted.shape[1:], rows.shape[1:], strict=True)
        )
        if not fits or rows.dtype != wanted.dtype:
            found = ", ".join(map(str, rows.shape[1:]))
            raise CovcalError(
                f"{self._where} wants {wanted.describe()} as {wanted.name}, and the data gives "
                f"{rows.dtype} [N, {found}]: change the preprocessing or the array"
            )
        # Torch warns of arrays that it could not write to.
        return torch.from_numpy(np.require(rows, requirements=["C", "W"]))

    def _prove(self, values: Values) -> None:
        limit = self._source.limit
        if self.weight is not None and self.bias is not None and values.features is not None:
            error = self._proof.add(
                values.features, self.weight, self.bias, values.logits, limit, step=0.0
            )
            if error is not None:
                raise CovcalError(
                    f"{self._where}: {self.logits_tensor} is not affine in {self.features_tensor} "
                    f"(relative error {error:.1g}): pass --phi none for the logits alone"
                )
        if proof.tail_error(self._source.tail, values.logits, values.output) > limit:
            raise _OtherOutputError(
                f"{self._where}: output {self.output_name} is not the "
                f"{proof.TAIL_TEXT[self._source.tail]} of {self.logits_tensor} on every batch: "
                "pass --phi none to take the output as it is, or return the logits themselves"
            )
        self.tail = self._source.tail

    def _require_repeatable(self, rows: Sequence[Tensor], values: Values) -> None:
        """Prove that reading changed nothing, and that the program has no dice."""
        alone = self._reader.output(rows)
        self.exposure_error = proof.relative_error(values.output[: len(alone)], alone)
        if self.exposure_error > self._source.limit:
            raise CovcalError(
                f"{self._where} gives another output for the same rows each time (relative error "
                f"{self.exposure_error:.1g}): call model.eval() before saving it, so that dropout "
                "is off"
            )


def _probe(program: Program, output: str | None) -> Probe:
    """Run a program twice on its made rows: to see how it works, and to read its last layers."""
    rows, n = program.rows, len(program.rows[0])
    names = parameter_names(program.module)
    trace = Trace(rows, names)
    with trace.recording():
        choices = may_hold_classes(program.run(rows), output, n, program.where)
    layers = [layer for value in choices.values() for layer in trace.last_layers(value)[0]]
    reader = LayerReader({layer.key for layer in layers}, names)
    with reader.listening():
        outputs = program.run(rows)
    return Probe(trace, choices, outputs, reader.calls, n, program.where)


def _logits_source(probe: Probe, phi: str | None) -> Head | Answer:
    """Return the head, or the output itself where there is none and ``--phi`` does without."""
    name = next(iter(probe.choices))
    answer = read_answer(probe.choices, name, probe.n, probe.where)
    try:
        head = find_head(probe)
    except CovcalError:
        if phi is None or len(probe.choices) > 1:
            raise
        return Answer.of(answer, probe.where)
    # What made rows show as plain logits may be capped where they are large.
    plain = phi == "none" and head.tail == "none" and not head.fit.is_single
    return Answer.of(answer, probe.where) if plain and head.output == name else head
