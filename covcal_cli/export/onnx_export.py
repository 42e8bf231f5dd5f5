"""An ONNX classifier with a calibrated forecaster merged in, proved before it appears."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import external_data_helper, helper

from covcal_cli.classifiers.onnx.file import (
    external_bytes,
    external_entries,
    external_tensors,
    opset_of,
    read_onnx,
    set_location,
)
from covcal_cli.errors import CovcalError
from covcal_cli.export.forecaster import ADDED, Forecaster, Merge, StoredRows, free_name
from covcal_cli.export.onnx_forecaster import (
    add_aligned_logits,
    add_confidence,
    add_label,
    add_probabilities,
)
from covcal_cli.export.onnx_nodes import LEAST_OPSET, NodeBuilder, names_in
from covcal_cli.export.onnx_original import OnnxOriginal
from covcal_cli.export.proof import Exported, prove
from covcal_cli.files import atomic_output, check_output

_NEW_OPSET = 13  # for models that import no operators of the default domain
_PAGE = 4096  # weights that start at a multiple of it can be mapped into memory
_FEATURES, _LOGITS = "features", "logits"  # inputs of the forecaster alone


class OnnxExporter:
    """An ONNX file on its way to one with a calibrated forecaster in it."""

    def __init__(self, model: Path) -> None:
        self._file = read_onnx(model)
        self.sha256 = self._file.sha256
        self.outputs: Sequence[str] = tuple(value.name for value in self._file.model.graph.output)

    def original(self, output: str | None, phi: str | None) -> OnnxOriginal:
        """Open the classifier as `covcal_cli.classifiers.open.open_classifier` does."""
        return OnnxOriginal(self._file, output, phi)

    def write(self, original: OnnxOriginal, merge: Merge) -> Exported:
        """Write the merged model, whole and proved, or nothing.

        External weights go beside it, to its name with ``.data`` appended.
        """
        output, folder = merge.output, self._file.folder
        added = tuple(free_name(name, names_in(self._file.model.graph)) for name in ADDED)
        model = _merged(original, merge, added)
        tensors = external_tensors(model)
        weights = output.with_name(f"{output.name}.data") if tensors else None
        if weights is not None:
            own = {folder / external_entries(tensor)["location"] for tensor in tensors}
            check_output(weights, force=merge.force, inputs=[*merge.inputs, *sorted(own)])
        with ExitStack() as stack:
            partial = stack.enter_context(atomic_output(output, force=merge.force))
            if weights is not None:
                # Entered last, it appears first: a model is never there without its weights.
                packed = stack.enter_context(atomic_output(weights, force=merge.force))
                _pack_weights(tensors, folder, packed)
            data = model.SerializeToString(deterministic=True)
            partial.write_bytes(data)
            answers = original.answers()
            session = self._file.session(data, folder=partial.parent.absolute())
            found = session.run([*self.outputs, *added], original.batch)
            agreement = prove(
                answers, merge, found, lambda rows: _of_stored(original, merge.forecaster, rows)
            )
            if weights is not None:
                for tensor in tensors:  # the file is renamed when all is done
                    set_location(tensor, weights.name)
                partial.write_bytes(model.SerializeToString(deterministic=True))
        return Exported(output, tuple(self.outputs), added, weights, agreement)


def _merged(original: OnnxOriginal, merge: Merge, added: Sequence[str]) -> onnx.ModelProto:
    """Return a copy of the model with the forecaster after it; its other metadata is kept.

    The forecaster is appended in the model's own opset, since its first nodes (a token, a cast)
    belong to the classifier's tensors.
    """
    model = onnx.ModelProto()
    model.CopyFrom(original.file.model)
    if opset_of(model) == 0:
        model.opset_import.append(helper.make_opsetid("", _NEW_OPSET))
    if opset_of(model) < LEAST_OPSET:
        raise CovcalError(
            f"{original.file.path} has opset {opset_of(model)}, and the calibration needs "
            f"{LEAST_OPSET} or later: convert it with onnx.version_converter, and extract again"
        )
    build, forecaster = NodeBuilder(model), merge.forecaster
    features = original.add_features(build) if forecaster.networks is not None else ""
    judged, logits = original.add_logits(build)
    _append_forecaster(build, forecaster, features, logits, judged, original.n_classes, added)
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
    judged: str,
    classes: int,
    names: Sequence[str],
) -> None:
    probabilities, label, confidence = names
    if forecaster.networks is not None:
        logits = add_aligned_logits(build, features, forecaster.networks)
    add_probabilities(build, logits, forecaster.temperature, probabilities)
    add_label(build, judged, label)
    add_confidence(build, judged, probabilities, classes, confidence)


def _declared(
    names: Sequence[str], rows: int | str | None, classes: int
) -> list[onnx.ValueInfoProto]:
    kinds = (onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.FLOAT)
    shapes: tuple[list[int | str | None], ...] = ([rows, classes], [rows], [rows])
    return [
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in zip(names, kinds, shapes, strict=True)
    ]


def _rows(original: OnnxOriginal) -> int | str | None:
    """Return the number of rows as the model's input declares it: a number, a name or nothing."""
    wanted = original.inputs[0].name
    graph = original.file.model.graph
    dims = next(value for value in graph.input if value.name == wanted).type.tensor_type.shape.dim
    return (dims[0].dim_value or dims[0].dim_param or None) if dims else None


def _pack_weights(tensors: Sequence[onnx.TensorProto], folder: Path, packed: Path) -> None:
    """Copy external weights into one file, tensor by tensor, and point the tensors there."""
    packed.write_bytes(b"")  # a killed run may have left something
    for tensor in tensors:
        tensor.raw_data = external_bytes(tensor, folder)
        start = -(-packed.stat().st_size // _PAGE) * _PAGE
        external_data_helper.set_external_data(tensor, packed.name, offset=start)
        external_data_helper.save_external_data(tensor, str(packed.parent))
        tensor.ClearField("raw_data")


def _of_stored(
    original: OnnxOriginal, forecaster: Forecaster, stored: StoredRows
) -> Sequence[NDArray[Any]]:
    """Run the merged part without the classifier, from phi and logits."""
    source, classes, feeds = original.file.model, original.n_classes, {_LOGITS: stored.logits}
    inputs = [helper.make_tensor_value_info(_LOGITS, onnx.TensorProto.FLOAT, ["N", classes])]
    if stored.features is not None:
        feeds[_FEATURES] = stored.features
        sizes = ["N", original.n_features]
        inputs.append(helper.make_tensor_value_info(_FEATURES, onnx.TensorProto.FLOAT, sizes))
    graph = helper.make_graph([], "forecaster", inputs, _declared(ADDED, "N", classes))
    opset = opset_of(source) or _NEW_OPSET
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=source.ir_version
    )
    _append_forecaster(NodeBuilder(model), forecaster, _FEATURES, _LOGITS, _LOGITS, classes, ADDED)
    found: list[NDArray[Any]] = original.file.session(model.SerializeToString()).run(ADDED, feeds)
    return found
