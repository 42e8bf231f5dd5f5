"""Add a calibrated forecaster to a torch classifier, and check the new file.

The program is traced to a graph of operators. Phi and the logits are values of nodes in this graph.
A `CalibratedModule` joins the graph and a `TorchForecaster`, and is traced again.
"""

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, Signature
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from covcal_cli.arrays import SMALLEST_FLOAT32, AnyArray, Float32s
from covcal_cli.classifiers import proof
from covcal_cli.classifiers.torch.classifier import OpenedTorch, open_program
from covcal_cli.classifiers.torch.program import Program, cause, in_precision, quiet
from covcal_cli.errors import CovcalError
from covcal_cli.export.forecaster import (
    Exporter,
    ExportReport,
    Forecaster,
    Merge,
    StoredRows,
    free_name,
)
from covcal_cli.export.verification import Answers, prove
from covcal_cli.files import atomic_output
from covcal_cli.maths.softmax import ForecasterName

METADATA = "covcal.json"  # The file inside the ``.pt2`` with the metadata.
_CLOSE = 1e-5
# Metadata of nodes that contain file paths of this machine.
_TRACES = ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node", "torch_fn")
Outputs = dict[str, Tensor]


# Find the nodes of a traced program that compute phi and the logits. On the same random inputs,
# these nodes have the same values as phi and the logits of the checked classifier.


@dataclass(frozen=True)
class ValuePlace:
    """A node of the graph, and the function that turns its value into one vector per row."""

    node: str
    view: str  # The name of a function in `VIEWS`.

    def read(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the vectors of the node, (n, width)."""
        return VIEWS[self.view](values[self.node])


VIEWS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda value: value.flatten(1),
    "mean over the last axes": lambda value: value.flatten(2).float().mean(2),
    "mean over the middle axes": lambda value: value.flatten(1, -2).float().mean(1),
    "first token": lambda value: value[:, 0].flatten(1),
    "last token": lambda value: value[:, -1].flatten(1),
}


class ValueReader(fx.Interpreter):
    """An interpreter that copies the values of all nodes, or of the `wanted` nodes."""

    def __init__(self, module: fx.GraphModule, wanted: set[str] | None = None) -> None:
        super().__init__(module, garbage_collect_values=wanted is not None)
        self._wanted = wanted
        self.values: dict[str, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, and copy its value because later nodes may change it."""
        result = super().run_node(n)
        is_wanted = n.op != "get_attr" if self._wanted is None else n.name in self._wanted
        if is_wanted and isinstance(result, Tensor):
            self.values[n.name] = result.clone()
        return result


def find_values(values: Mapping[str, Tensor], expected: Float32s) -> tuple[ValuePlace, ...]:
    """Return the nodes whose concatenated values are `expected`, (n, width).

    Models with several heads have one node per head. Returns no nodes if a node cannot be found.
    """
    nodes: list[ValuePlace] = []
    start, width = 0, expected.shape[1]
    while start < width:
        best = _first_part(values, expected[:, start:])
        if best is None:
            return ()
        part, columns = best
        nodes.append(part)
        start += columns
    return tuple(nodes)


def read_found(places: Sequence[ValuePlace], values: Mapping[str, Tensor]) -> Tensor:
    """Return the concatenated vectors of the given nodes, (n, width)."""
    parts = [part.read(values) for part in places]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _first_part(values: Mapping[str, Tensor], expected: Float32s) -> tuple[ValuePlace, int] | None:
    """Return the node with the most columns like `expected`, and the number of these columns."""
    ranks: list[tuple[int, float, ValuePlace]] = []
    for name, value in values.items():
        for view, vectors in _views(value, *expected.shape):
            columns = vectors.shape[1]
            error = proof.relative_error(to_numpy(vectors.float()), expected[:, :columns])
            if error <= _CLOSE:
                ranks.append((-columns, error, ValuePlace(name, view)))
    if not ranks:
        return None
    columns, _, place = min(ranks, key=lambda rank: rank[:2])
    return place, -columns


def _views(value: Tensor, rows: int, width: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the functions in `VIEWS` whose results have at most `width` columns."""
    if value.ndim < 2 or len(value) != rows or not value.is_floating_point() or not value.numel():
        return
    if value[0].numel() <= width:
        yield "as it is", VIEWS["as it is"](value)
        return
    if value.ndim < 3:
        return
    for view, make in VIEWS.items():
        vectors = make(value)
        if vectors.shape[1] <= width:
            yield view, vectors


def as_graph(program: Program, rows: Sequence[Tensor]) -> fx.GraphModule:
    """Return the program as one graph of operators, which torch.export can trace again."""
    module = program.module
    graph: Any
    if isinstance(module, fx.GraphModule):
        return module
    if isinstance(module, torch.jit.ScriptModule):
        from torch._export.converter import TS2EPConverter

        with _one_attempt(program.where):
            graph = TS2EPConverter(module, tuple(rows), {}).convert().module()
    else:
        graph = trace(program, module, rows).module()
    module_graph: fx.GraphModule = graph
    return module_graph


def trace(program: Program, module: nn.Module, rows: Sequence[Tensor]) -> Any:
    """Return a ``torch.export.ExportedProgram`` of a module with the inputs of `program`.

    Axes of variable size stay variable. File paths of this machine are removed.
    """
    free = tuple(
        {
            axis: torch.export.Dim.AUTO
            for axis, size in enumerate(wanted.shape)
            if size is None and row.shape[axis] > 1
        }
        for wanted, row in zip(program.inputs, rows, strict=True)
    )
    with _one_attempt(program.where):
        exported = torch.export.export(module, tuple(rows), dynamic_shapes=free, strict=False)
    parts = [part for part in exported.graph_module.modules() if isinstance(part, fx.GraphModule)]
    for node in (node for part in parts for node in part.graph.nodes):
        for key in _TRACES:
            node.meta.pop(key, None)
    return exported


def signature_of(program: Program) -> Signature:
    """Return a signature with the names of the program's inputs, for torch.export."""
    names = [wanted.name for wanted in program.inputs]
    if len({*names}) < len(names) or not all(name.isidentifier() for name in names):
        names = [f"input_{number}" for number in range(len(names))]
    return Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names])


@contextmanager
def _one_attempt(where: str) -> Iterator[None]:
    """Suppress torch's print statements and warnings, and report an exception in one line."""
    try:
        with quiet(logging.WARNING), warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # torch.export raises many kinds of errors.
        raise CovcalError(
            f"{where}: torch.export cannot follow this model ({cause(error)}): export the model "
            "to ONNX and calibrate the ONNX file, or use covcal apply"
        ) from error


# The calibrated forecaster as a module, in float32. ``maths/networks.py`` and ``maths/softmax.py``
# implement the same formulas.


class TorchForecaster(nn.Module):
    """A torch module with the networks, temperatures and offsets of a forecaster."""

    def __init__(self, forecaster: Forecaster) -> None:
        super().__init__()
        self._temperatures = forecaster.scaling.temperatures
        self._of_label = forecaster.scaling.of_label
        offsets = forecaster.scaling.offsets
        self._has_offsets = offsets is not None
        if offsets is not None:
            self.register_buffer("offsets", torch.from_numpy(offsets).float())
        self._names: tuple[str, ...] = ()  # Names of the networks' arrays; empty without networks.
        if forecaster.networks is not None:
            self._output_relu = bool(forecaster.networks["psi/output_relu"][0])
            parts = ("projection/", "psi/", "head/")
            for name, values in forecaster.networks.items():
                if name.startswith(parts) and "relu" not in name:
                    self._names += (name,)
                    self.register_buffer(_buffer(name), torch.from_numpy(values).float())

    def forward(self, features: Tensor | None, logits: Tensor) -> Tensor:
        """Return calibrated probabilities, float32 [n, K], from phi [n, d] and logits [n, K]."""
        of: dict[ForecasterName, Tensor] = {"original": logits.float()}
        if self._names and features is not None:
            of["aligned"] = self._aligned_logits(features.float())
        parts = [self._scaled(of[name], value) for name, value in self._temperatures.items()]
        return parts[0] if len(parts) == 1 else torch.stack(parts).mean(dim=0)

    def _scaled(self, logits: Tensor, temperature: float) -> Tensor:
        shifted = logits - logits.amax(dim=1, keepdim=True)
        scaled = shifted / temperature
        if self._has_offsets:
            scaled = scaled + self.get_buffer("offsets")
        if self._of_label:
            label = shifted.argmax(dim=1, keepdim=True)
            scaled = scaled.scatter_add(1, label, torch.full_like(scaled[:, :1], self._of_label))
        return torch.softmax(scaled, dim=1)

    def _aligned_logits(self, features: Tensor) -> Tensor:
        values = features - self._array("projection/mean")
        if "projection/components" in self._names:
            values = values @ self._array("projection/components")
        values = values / self._array("projection/scale")
        values = self._perceptrons(values, "psi", output_relu=self._output_relu)
        values = self._perceptrons(values, "head", output_relu=False)
        logs = torch.log_softmax(values, dim=2)
        highest = logs.amax(dim=0)
        return highest + (logs - highest).exp().mean(dim=0).log()

    def _perceptrons(self, values: Tensor, name: str, *, output_relu: bool) -> Tensor:
        layers = sum(key.startswith(f"{name}/weight_") for key in self._names)
        for layer in range(layers):
            values = values @ self._array(f"{name}/weight_{layer}")
            values = values + self._array(f"{name}/bias_{layer}")[:, None]
            if layer < layers - 1 or output_relu:
                values = torch.relu(values)
        return values

    def _array(self, name: str) -> Tensor:
        return self.get_buffer(_buffer(name))


def _buffer(name: str) -> str:
    return name.replace("/", "_")


class CalibratedModule(nn.Module):
    """The graph of a classifier, and a forecaster that reads phi and the logits from the graph."""

    def __init__(
        self,
        classifier: fx.GraphModule,
        signature: Signature,  # The signature of `forward`, with the names of the inputs.
        kept: tuple[str, ...],  # Names of the classifier's outputs.
        *,
        features: tuple[ValuePlace, ...],  # The nodes with phi; empty if phi is not needed.
        logits: tuple[ValuePlace, ...],  # The nodes with the logits.
        is_single: bool,  # Whether `logits` has a single column, the logit z of the second class.
        are_logged: bool,  # Whether the logits are logarithms of probabilities.
        forecaster: Forecaster,
        added: tuple[str, ...],  # Names of the new outputs.
    ) -> None:
        super().__init__()
        self.classifier, self.forecaster = classifier, TorchForecaster(forecaster)
        self._kept, self._added, self._accept_above = kept, added, forecaster.accept_above
        self._features, self._logits = features, logits
        self._is_single, self._are_logged = is_single, are_logged

        def forward(*rows: Tensor) -> Outputs:
            return self._answer(*rows)

        # torch.export reads the names of the inputs from this attribute.
        forward.__dict__["__signature__"] = signature
        self.forward = forward

    def _answer(self, *rows: Tensor) -> Outputs:
        wanted = {place.node for place in (*self._features, *self._logits)}
        reader = ValueReader(self.classifier, wanted)
        answer = tree_leaves(reader.run(*rows))
        tensors = (value for value in answer if isinstance(value, Tensor))
        outputs = dict(zip(self._kept, tensors, strict=True))
        # The label is the most probable class by the classifier's own logits.
        logits = read_found(self._logits, reader.values)
        if self._is_single:
            other = 1 - logits if self._are_logged else torch.zeros_like(logits)
            logits = torch.cat([other, logits], dim=1)
        label = logits.argmax(dim=1)
        if self._are_logged:
            logits = logits.float().clamp_min(SMALLEST_FLOAT32).log()
        features = read_found(self._features, reader.values) if self._features else None
        probabilities = self.forecaster(features, logits)
        confidence = probabilities.gather(1, label[:, None])[:, 0]
        values = [probabilities, label, confidence]
        if self._accept_above is not None:
            values.append(confidence > self._accept_above)
        return outputs | dict(zip(self._added, values, strict=True))


class TorchOriginal:
    """A torch classifier, opened as in `extract`, and run once on random inputs."""

    def __init__(self, program: Program, model_output: str | None, phi: str | None) -> None:
        self.program = program
        opened = OpenedTorch(program, output=model_output, phi=phi)
        self.rows = in_precision(program.module, program.rows)
        batch = {
            wanted.name: row.numpy().astype(wanted.dtype, copy=False)
            for wanted, row in zip(program.inputs, program.rows, strict=True)
        }
        classifier = opened.prove(batch)
        self.features, self.model_outputs = classifier.run(batch)
        self.settled = classifier.outputs
        self.features_tensor = classifier.features_tensor
        self.logits_tensor = classifier.logits_tensor
        self.n_features, self._class_output = classifier.n_features, classifier.output_name
        self.outputs = program.run(program.rows)

    def answers(self) -> Answers:
        """Return the model's outputs for the random inputs."""
        tensor = self.outputs[self._class_output]
        output = to_numpy(tensor)
        return Answers(
            where=self.program.where,
            features=self.features,
            logits=self.settled.logits(self.model_outputs),
            outputs=[to_numpy(value) for value in self.outputs.values()],
            class_outputs=[output],
            is_rounded=output.dtype == np.float64 or self.settled.are_logged,
            # Tracing splits operators such as attention, which changes rounding.
            output_tolerance=proof.tolerance(
                np.dtype(np.float16 if tensor.itemsize == 2 else "f4")
            ),
        )

    def write(self, merge: Merge) -> ExportReport:
        """Write the new model if it passes all checks."""
        program, rows, outputs = self.program, self.rows, tuple(self.outputs)
        added = tuple(free_name(name, {*outputs}) for name in merge.forecaster.added)
        graph = as_graph(program, rows)
        with torch.inference_mode():
            reader = ValueReader(graph)
            reader.run(*(row.clone() for row in rows))
        # A single output for two classes is the second logit.
        settled = self.settled
        logits = _find(program, reader.values, settled.shown(self.model_outputs), "logits")
        features: tuple[ValuePlace, ...] = ()
        if merge.forecaster.networks is not None and self.features is not None:
            features = _find(program, reader.values, self.features, "features")
        module = CalibratedModule(
            graph,
            signature_of(program),
            outputs,
            features=features,
            logits=logits,
            is_single=settled.is_single,
            are_logged=settled.are_logged,
            forecaster=merge.forecaster,
            added=added,
        )
        exported = trace(program, module, rows)
        with atomic_output(merge.output, force=merge.force) as whole:
            content = json.dumps(dict(merge.metadata), indent=2, ensure_ascii=False)
            # On a full disk, torch would end the process, so write the file without torch.
            packed = BytesIO()
            torch.export.save(exported, packed, extra_files={METADATA: content})
            whole.write_bytes(packed.getbuffer())
            packed.close()
            with torch.inference_mode():
                with whole.open("rb") as handle:
                    merged = torch.export.load(handle).module()
                answer: dict[str, Tensor] = merged(*(row.clone() for row in rows))
            if program.fixed_batch is None:
                _require_free_batch(program, merged, rows)
            merged_outputs = [to_numpy(answer[name]) for name in (*outputs, *added)]
            of_stored = partial(_of_stored, merge.forecaster)
            agreement = prove(self.answers(), merge, merged_outputs, of_stored)
        return ExportReport(merge.output, outputs, added, None, agreement)


def torch_exporter(model: str | Path, weights: Path | None, *, trusted: bool) -> Exporter:
    """Open a torch program to which a calibrated forecaster can be added."""
    program = open_program(model, weights, trusted=trusted)
    outputs = list(program.run(program.rows))
    return Exporter(program.sha256, outputs, partial(TorchOriginal, program))


def _find(
    program: Program, values: Mapping[str, Tensor], expected: Float32s, what: str
) -> tuple[ValuePlace, ...]:
    nodes = find_values(values, expected)
    if not nodes:
        raise CovcalError(
            f"{program.where}: the traced program does not have the {what} that were extracted: "
            "export the model to ONNX and calibrate the ONNX file, or use covcal apply"
        )
    return nodes


def _require_free_batch(program: Program, merged: Any, rows: tuple[Tensor, ...]) -> None:
    for count in (1, len(rows[0]) + 3):
        batch = [row[:1].expand(count, *row.shape[1:]).clone() for row in rows]
        try:
            with torch.inference_mode():
                merged(*batch)
        except Exception as error:
            raise CovcalError(
                f"{program.where}: torch.export allows only batches of {len(rows[0])} rows for "
                "this model: export the model to ONNX and calibrate the ONNX file, or use covcal "
                "apply"
            ) from error


def _of_stored(forecaster: Forecaster, stored: StoredRows) -> Sequence[AnyArray]:
    features = None if stored.features is None else torch.from_numpy(stored.features)
    with torch.inference_mode():
        probabilities = TorchForecaster(forecaster)(
            features, torch.from_numpy(stored.logits)
        ).numpy()
    label = stored.logits.argmax(axis=1)
    return probabilities, label, probabilities[np.arange(len(label)), label]


def to_numpy(value: Tensor) -> AnyArray:
    """Return a tensor as an array; bfloat16 becomes float32."""
    detached = value.detach()
    return (detached.float() if detached.dtype == torch.bfloat16 else detached).numpy()
