"""Add a calibrated forecaster to an ONNX classifier, and check the new file."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import external_data_helper, helper, numpy_helper

from covcal_cli.arrays import SMALLEST_FLOAT32, AnyArray, Inputs
from covcal_cli.classifiers import proof
from covcal_cli.classifiers.onnx.classifier import OnnxClassifier, OpenedOnnx
from covcal_cli.classifiers.onnx.file import (
    OnnxFile,
    external_bytes,
    external_entries,
    external_tensors,
    opset_of,
    read_onnx,
    set_location,
)
from covcal_cli.classifiers.onnx.layers import TensorRead
from covcal_cli.errors import CovcalError
from covcal_cli.export.forecaster import (
    Exporter,
    ExportReport,
    Forecaster,
    Merge,
    StoredRows,
    free_name,
)
from covcal_cli.export.verification import Answers, made_batches, no_number, prove
from covcal_cli.files import atomic_output, check_output, moved_together
from covcal_cli.maths.networks import Networks
from covcal_cli.maths.softmax import Scaling, valid_rows

_LEAST_OPSET = 7  # The first opset with broadcasting.
# Before this IR version, stored tensors are also listed as inputs.
_INITIALIZERS_ARE_INPUTS_BELOW = 4
_AXES_ARE_INPUT_FROM = 18  # The first opset in which axes are an input instead of an attribute.
_NEW_OPSET = 13  # Opset for a model without standard operators.
_PAGE = 4096  # Bytes of a memory page; weights at the start of a page can be mapped.
# Input names of a forecaster without the classifier.
_FEATURES, _LOGITS = "features", "logits"


class NodeBuilder:
    """A builder that adds nodes to an ONNX graph.

    Each method adds nodes, and returns the name of the result. The nodes use the opset of the
    model, which must be 7 or later.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph, self._opset = model.graph, opset_of(model)
        self._lists_constants = model.ir_version < _INITIALIZERS_ARE_INPUTS_BELOW
        self._taken = names_in(model.graph)
        self._count = 0

    def node(self, op: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node with one output. By default, the output gets a free name."""
        tensor = output or self._new_name(op)
        name = f"{tensor}_node" if output else tensor
        self.graph.node.append(helper.make_node(op, inputs, [tensor], name=name, **attributes))
        return tensor

    def constant(self, value: AnyArray) -> str:
        """Add a constant."""
        constant_name = self._new_name("constant")
        tensor = numpy_helper.from_array(np.asarray(value, order="C"), constant_name)
        self.graph.initializer.append(tensor)
        if self._lists_constants:
            self.graph.input.append(
                helper.make_tensor_value_info(constant_name, tensor.data_type, tensor.dims)
            )
        return constant_name

    def floats(self, value: AnyArray | Sequence[Sequence[float]] | float) -> str:
        """Add a float32 constant."""
        return self.constant(np.asarray(value, dtype=np.float32))

    def reduced(
        self, op: str, tensor: str, axis: int, *, keepdims: bool = False, output: str | None = None
    ) -> str:
        """Add ReduceMax or ReduceMean over one axis."""
        keep = int(keepdims)
        if self._opset < _AXES_ARE_INPUT_FROM:
            return self.node(op, tensor, output=output, axes=[axis], keepdims=keep)
        axes = self.constant(np.array([axis], dtype=np.int64))
        return self.node(op, tensor, axes, output=output, keepdims=keep)

    def vectors(self, tensor: str, token: int | str | None, width: int | None) -> str:
        """Add nodes that turn a tensor with N rows into one vector per row, [N, width].

        If a row has several vectors, `token` is the index of the used vector, or "mean". With
        `width`, the tensor may have axes of length 1 anywhere, even before the rows.
        """
        if token is None and width is None:
            return self.node("Flatten", tensor, axis=1)
        if token is None:
            return self.node("Reshape", tensor, self.constant(np.array([-1, width])))
        shape = self.constant(np.array([0, -1, width or 0], dtype=np.int64))
        tokens = self.node("Reshape", tensor, shape)
        if token == "mean":
            return self.reduced("ReduceMean", tokens, 1)
        return self.node("Gather", tokens, self.constant(np.array(token, dtype=np.int64)), axis=1)

    def as_float(self, tensor: str) -> str:
        """Add a cast to float32."""
        return self.node("Cast", tensor, to=onnx.TensorProto.FLOAT)

    def _new_name(self, op: str) -> str:
        while True:
            self._count += 1
            name = f"covcal_{self._count}_{op}"
            if name not in self._taken:
                return name


def names_in(graph: onnx.GraphProto) -> set[str]:
    """Return the names of all tensors and nodes of the main graph."""
    names = {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    names |= {tensor.values.name for tensor in graph.sparse_initializer}
    for node in graph.node:
        names.update(node.input, node.output, [node.name])
    return names


# The calibrated forecaster as ONNX nodes, in float32. ``maths/networks.py`` (projection, psi, head)
# and ``maths/softmax.py`` implement the same formulas.


def add_aligned_logits(build: NodeBuilder, features: str, networks: Networks) -> str:
    """Add the networks psi and head, which read phi, float32 [N, d]. Return the logits, [N, K]."""
    values = build.node("Sub", features, build.floats(networks["projection/mean"]))
    if "projection/components" in networks:
        components = build.floats(networks["projection/components"])
        values = build.node("MatMul", values, components)
    values = build.node("Div", values, build.floats(networks["projection/scale"]))
    relu = bool(networks["psi/output_relu"][0])
    values = _add_perceptrons(build, values, networks, "psi", output_relu=relu)
    values = _add_perceptrons(build, values, networks, "head", output_relu=False)
    # The classes must be the last axis, because LogSoftmax joins all later axes before opset 13.
    logs = build.node("LogSoftmax", values, axis=2)
    highest = build.reduced("ReduceMax", logs, 0)
    shares = build.node("Exp", build.node("Sub", logs, highest))
    return build.node("Add", highest, build.node("Log", build.reduced("ReduceMean", shares, 0)))


def add_probabilities(
    build: NodeBuilder,
    logits: str,
    temperature: float,
    scaling: Scaling,
    n_classes: int,
    output: str | None,
) -> str:
    """Add softmax(logits / T + b + a 1[k = f]) for float32 logits [N, K].

    `scaling` has the offsets b and a. The class f is the first class with the largest logit.
    Subtracting the maximum first preserves the digits of large float32 logits.
    """
    highest = build.reduced("ReduceMax", logits, 1, keepdims=True)
    shifted = build.node("Sub", logits, highest)
    scaled = build.node("Div", shifted, build.floats(temperature))
    if scaling.offsets is not None:
        scaled = build.node("Add", scaled, build.floats(scaling.offsets))
    if scaling.of_label:
        own = build.node("Mul", _chosen(build, logits, n_classes), build.floats(scaling.of_label))
        scaled = build.node("Add", scaled, own)
    return build.node("Softmax", scaled, output=output, axis=1)


def add_label_probabilities(
    build: NodeBuilder, logits: str, scalings: Sequence[Scaling], output: str
) -> str:
    """Add the probabilities of several labels, [N, L], each with its own scaling.

    The probability of a label with the logits 0 and z is

        sigmoid(z / T + b_1 - b_0 + s a)

    The sign s is 1 if z > 0, else -1.
    """
    temperatures = [scaling.temperature for scaling in scalings]
    shifts = [0.0 if s.offsets is None else s.offsets[1] - s.offsets[0] for s in scalings]
    own = np.array([[scaling.of_label for scaling in scalings]])
    scaled = build.node("Div", logits, build.floats([temperatures]))
    present = build.as_float(build.node("Greater", logits, build.floats(0.0)))
    moved = build.node("Mul", present, build.floats(2 * own))
    moved = build.node("Add", moved, build.floats(np.array([shifts]) - own))
    return build.node("Sigmoid", build.node("Add", scaled, moved), output=output)


def add_label(build: NodeBuilder, logits: str, output: str) -> str:
    """Add an output with the index of each row's most probable class, int64 [N]."""
    return build.node("ArgMax", logits, output=output, axis=1, keepdims=0)


def _chosen(build: NodeBuilder, logits: str, n_classes: int) -> str:
    """Add a one-hot tensor, [N, K], of the class with the largest logit."""
    label = build.node("ArgMax", logits, axis=1, keepdims=1)
    numbers = build.constant(np.arange(n_classes, dtype=np.int64)[None])
    return build.as_float(build.node("Equal", label, numbers))


def _add_perceptrons(
    build: NodeBuilder, values: str, networks: Networks, name: str, *, output_relu: bool
) -> str:
    """Add M perceptrons with a result of shape [M, N, outputs]."""
    layers = sum(key.startswith(f"{name}/weight_") for key in networks)
    for layer in range(layers):
        weight = build.floats(networks[f"{name}/weight_{layer}"])
        bias = build.floats(networks[f"{name}/bias_{layer}"][:, None])
        values = build.node("Add", build.node("MatMul", values, weight), bias)
        if layer < layers - 1 or output_relu:
            values = build.node("Relu", values)
    return values


class OnnxOriginal:
    """A classifier, opened as in `extract`, and run once on random inputs."""

    def __init__(
        self, file: OnnxFile, model_output: str | None, phi: str | None, *, independent: bool
    ) -> None:
        self.file = file
        opened = OpenedOnnx(file, model_output, phi)
        classifier, self.batch = _proved(opened, str(file.path))
        classifier.outputs.are_independent = independent
        self._features, self.model_outputs = classifier.run(self.batch)
        self.settled = classifier.outputs
        self._reading, self._is_quantised = classifier.reading, classifier.is_quantised
        self._head = self._reading.head
        self.output_names = tuple(value.name for value in file.model.graph.output)
        self.inputs, self.n_classes = opened.inputs, classifier.n_classes
        self.n_features = classifier.n_features
        self.features_tensor = classifier.features_tensor
        self.logits_tensor = classifier.logits_tensor

    def answers(self) -> Answers:
        """Return the model's outputs for the random inputs."""
        outputs = self.file.session(self.file.data).run(list(self.output_names), self.batch)
        tail = self._reading.tail
        return Answers(
            where=str(self.file.path),
            features=self._features,
            logits=self.settled.logits(self.model_outputs),
            outputs=outputs,
            class_outputs=[
                outputs[self.output_names.index(output.name)] for output in self._head.outputs
            ],
            is_rounded=tail.is_double or self.settled.are_logged,
            # ONNX Runtime may fuse a quantised model differently, which changes values by one step.
            output_tolerance=proof.tolerance(np.dtype(np.float16)) if self._is_quantised else 0.0,
        )

    def add_features(self, build: NodeBuilder) -> str:
        """Add nodes that compute phi, float32 [N, d]."""
        # The widths of the parts of phi are not known.
        several = self._reading.token is None and len(self._head.features) > 1
        width = None if several else self.n_features
        parts = []
        for part in self._head.features:
            _append_nodes(build, part)
            # Cast at the end, because ONNX Runtime removes a cast after a float16 operator.
            vectors = build.vectors(part.tensor, self._reading.token, width)
            parts.append(build.as_float(vectors))
        return parts[0] if len(parts) == 1 else build.node("Concat", *parts, axis=1)

    def add_logits(self, build: NodeBuilder) -> tuple[str, str]:
        """Add nodes that compute two tensors, [N, K]: scores for ArgMax, and float32 logits.

        The scores may be float64. In each row, the class with the largest score is predicted.
        """
        _append_nodes(build, self._head.logits)
        tail = self._reading.tail
        width = 1 if tail.is_single else self.n_classes
        scores = build.vectors(self._head.logits.tensor, None, width)
        floats = build.as_float(scores)
        if tail.is_single:
            # A single output for two classes is a probability, or the logit z of the second class.
            total = build.floats(1.0) if self.settled.are_logged else floats
            first = build.node("Sub", total, floats)
            scores = floats = build.node("Concat", first, floats, axis=1)
        label_scores = scores if tail.is_double else floats
        if self.settled.are_logged:
            smallest = build.floats(SMALLEST_FLOAT32)
            shares, floats = floats, build.node("Log", build.node("Max", floats, smallest))
            if self.settled.are_independent:
                rest = build.node("Sub", build.floats(1.0), shares)
                absent = build.node("Log", build.node("Max", rest, smallest))
                floats = build.node("Sub", floats, absent)
        return label_scores, floats

    def write(self, merge: Merge) -> ExportReport:
        """Write the new model if it passes all checks.

        External weights are written to one file ``NAME.data`` beside the new model.
        """
        output, folder = merge.output, self.file.folder
        taken = names_in(self.file.model.graph)
        added = tuple(free_name(name, taken) for name in merge.forecaster.added)
        model = _merged(self, merge, added)
        tensors = external_tensors(model)
        weights = output.with_name(f"{output.name}.data") if tensors else None
        if weights is not None:
            own = {folder / external_entries(tensor)["location"] for tensor in tensors}
            check_output(weights, force=merge.force, inputs=[*merge.inputs, *sorted(own)])
        # Rename both files together, so that the model and its weights always match.
        with moved_together(), ExitStack() as stack:
            whole = stack.enter_context(atomic_output(output, force=merge.force))
            if weights is not None:
                packed = stack.enter_context(atomic_output(weights, force=merge.force))
                _pack_weights(tensors, folder, packed)
            data = model.SerializeToString(deterministic=True)
            whole.write_bytes(data)
            answers = self.answers()
            session = self.file.session(data, folder=whole.parent.absolute())
            merged_outputs = session.run([*self.output_names, *added], self.batch)
            of_stored = partial(_of_stored, self, merge.forecaster)
            agreement = prove(answers, merge, merged_outputs, of_stored)
            if weights is not None:
                for tensor in tensors:  # The checks read the file under its temporary name.
                    set_location(tensor, weights.name)
                whole.write_bytes(model.SerializeToString(deterministic=True))
        return ExportReport(output, self.output_names, added, weights, agreement)


def onnx_exporter(model: Path, *, independent: bool) -> Exporter:
    """Open an ONNX file to which a calibrated forecaster can be added."""
    file = read_onnx(model)
    outputs = [value.name for value in file.model.graph.output]
    return Exporter(file.sha256, outputs, partial(OnnxOriginal, file, independent=independent))


def _append_nodes(build: NodeBuilder, exposed: TensorRead) -> None:
    present = {name for node in build.graph.node for name in node.output}
    build.graph.node.extend(node for node in exposed.nodes if not present.intersection(node.output))


def _proved(opened: OpenedOnnx, where: str) -> tuple[OnnxClassifier, Inputs]:
    """Return the checked classifier, and the first random inputs that the classifier accepts."""
    refusal: CovcalError | None = None
    for batch in made_batches(opened.inputs, opened.fixed_batch):
        try:
            classifier = opened.prove(batch)
            _, logits = classifier.run(batch)
        except CovcalError as error:
            refusal = refusal or error
            continue
        if valid_rows(logits).any():
            return classifier, batch
    raise refusal or no_number(where)


def _merged(original: OnnxOriginal, merge: Merge, added: Sequence[str]) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(original.file.model)
    if opset_of(model) == 0:
        model.opset_import.append(helper.make_opsetid("", _NEW_OPSET))
    if opset_of(model) < _LEAST_OPSET:
        raise CovcalError(
            f"{original.file.path} has opset {opset_of(model)}, but the calibration needs "
            f"{_LEAST_OPSET} or later: convert the model with onnx.version_converter, and extract "
            "again"
        )
    build, forecaster = NodeBuilder(model), merge.forecaster
    features = original.add_features(build) if forecaster.networks is not None else ""
    label_scores, logits = original.add_logits(build)
    _append_forecaster(build, forecaster, features, logits, label_scores, original.n_classes, added)
    model.graph.output.extend(_declared(added, _rows(original), original.n_classes))
    entries = {entry.key: entry.value for entry in model.metadata_props} | dict(merge.metadata)
    del model.metadata_props[:]
    helper.set_model_props(model, entries)
    return model


def _append_forecaster(
    build: NodeBuilder,
    forecaster: Forecaster,
    features: str,
    logits: str,
    label_scores: str,
    classes: int,
    names: Sequence[str],
) -> None:
    if forecaster.of_labels:
        add_label_probabilities(build, logits, forecaster.of_labels, names[0])
        return
    probabilities, label, confidence, *accept = names
    scaling, of = forecaster.scaling, {"original": logits}
    if forecaster.networks is not None:
        of["aligned"] = add_aligned_logits(build, features, forecaster.networks)
    is_mean = len(scaling.temperatures) > 1
    output = None if is_mean else probabilities
    parts = [
        add_probabilities(build, of[name], temperature, scaling, classes, output)
        for name, temperature in scaling.temperatures.items()
    ]
    if is_mean:
        build.node("Mean", *parts, output=probabilities)
    add_label(build, label_scores, label)
    only = build.node("Mul", probabilities, _chosen(build, label_scores, classes))
    build.reduced("ReduceMax", only, 1, output=confidence)
    if forecaster.accept_above is not None:
        threshold = build.floats(forecaster.accept_above)
        build.node("Greater", confidence, threshold, output=accept[0])


def _declared(
    names: Sequence[str], rows: int | str | None, classes: int
) -> list[onnx.ValueInfoProto]:
    types = onnx.TensorProto
    kinds = (types.FLOAT, types.INT64, types.FLOAT, types.BOOL)[: len(names)]
    shapes: list[list[int | str | None]] = [[rows, classes], *([rows] for _ in names[1:])]
    return [
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in zip(names, kinds, shapes, strict=True)
    ]


def _rows(original: OnnxOriginal) -> int | str | None:
    wanted = original.inputs[0].name
    graph = original.file.model.graph
    dims = next(value for value in graph.input if value.name == wanted).type.tensor_type.shape.dim
    return (dims[0].dim_value or dims[0].dim_param or None) if dims else None


def _pack_weights(tensors: Sequence[onnx.TensorProto], folder: Path, packed: Path) -> None:
    for tensor in tensors:
        tensor.raw_data = external_bytes(tensor, folder)
        start = -(-packed.stat().st_size // _PAGE) * _PAGE
        external_data_helper.set_external_data(tensor, packed.name, offset=start)
        external_data_helper.save_external_data(tensor, str(packed.parent))
        tensor.ClearField("raw_data")


def _of_stored(
    original: OnnxOriginal, forecaster: Forecaster, stored: StoredRows
) -> Sequence[AnyArray]:
    source, classes, feeds = original.file.model, original.n_classes, {_LOGITS: stored.logits}
    inputs = [helper.make_tensor_value_info(_LOGITS, onnx.TensorProto.FLOAT, ["N", classes])]
    if stored.features is not None:
        feeds[_FEATURES] = stored.features
        sizes = ["N", original.n_features]
        inputs.append(helper.make_tensor_value_info(_FEATURES, onnx.TensorProto.FLOAT, sizes))
    graph = helper.make_graph([], "forecaster", inputs, _declared(forecaster.added, "N", classes))
    opset = opset_of(source) or _NEW_OPSET
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=source.ir_version
    )
    added = forecaster.added
    _append_forecaster(NodeBuilder(model), forecaster, _FEATURES, _LOGITS, _LOGITS, classes, added)
    outputs: list[AnyArray] = original.file.session(model.SerializeToString()).run(added, feeds)
    return outputs
