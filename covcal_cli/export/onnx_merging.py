"""Merges a calibrated forecaster into the graph of an ONNX classifier."""

from collections.abc import Mapping

import onnx
from onnx import helper

from covcal_cli.errors import CovcalError
from covcal_cli.export.merged import ADDED, Forecaster, free_name
from covcal_cli.export.onnx_forecaster import (
    add_aligned_logits,
    add_confidence,
    add_label,
    add_probabilities,
)
from covcal_cli.export.onnx_nodes import LEAST_OPSET, NEW_OPSET, NodeBuilder, names_in, opset_of
from covcal_cli.export.onnx_original import OnnxOriginal

FEATURES, LOGITS = "features", "logits"
"""Inputs of `forecaster_alone`."""


def merge(original: OnnxOriginal, forecaster: Forecaster, metadata: Mapping[str, str]) -> list[str]:
    """Append the forecaster to ``original.file.model``; return the names of the new outputs.

    Other metadata of the model is kept.

    Raises
    ------
    CovcalError
        If the model's opset is too old.
    """
    model = original.file.model
    opset = opset_of(model)
    if opset == 0:
        opset = NEW_OPSET
        model.opset_import.append(helper.make_opsetid("", opset))
    if opset < LEAST_OPSET:
        raise CovcalError(
            f"{original.file.path} has opset {opset}, and the calibration needs {LEAST_OPSET} or "
            "later: convert it with onnx.version_converter, and extract again"
        )
    added = [free_name(name, names_in(model.graph)) for name in ADDED]
    build = NodeBuilder(model, opset)
    features = None
    if forecaster.networks is not None:
        features = original.add_features(build)
    judged, logits = original.add_logits(build)
    classes = original.n_classes
    _append(build, forecaster, features, logits, judged, classes, added)
    model.graph.output.extend(_declared(added, _rows(original), classes))
    entries = {entry.key: entry.value for entry in model.metadata_props} | dict(metadata)
    del model.metadata_props[:]
    for key, value in entries.items():
        model.metadata_props.add(key=key, value=value)
    return added


def forecaster_alone(original: OnnxOriginal, forecaster: Forecaster) -> bytes:
    """Return a model of the forecaster without the classifier, from phi and logits, serialised."""
    source, classes = original.file.model, original.n_classes
    inputs = [helper.make_tensor_value_info(LOGITS, onnx.TensorProto.FLOAT, ["N", classes])]
    if forecaster.networks is not None:
        width = original.n_features
        inputs.append(helper.make_tensor_value_info(FEATURES, onnx.TensorProto.FLOAT, ["N", width]))
    graph = helper.make_graph([], "forecaster", inputs, _declared(list(ADDED), "N", classes))
    model = helper.make_model(
        graph, opset_imports=list(source.opset_import), ir_version=source.ir_version
    )
    build = NodeBuilder(model, opset_of(source))
    _append(build, forecaster, FEATURES, LOGITS, LOGITS, classes, list(ADDED))
    return bytes(model.SerializeToString())


def _append(
    build: NodeBuilder,
    forecaster: Forecaster,
    features: str | None,
    logits: str,
    judged: str,
    classes: int,
    names: list[str],
) -> None:
    probabilities, label, confidence = names
    if forecaster.networks is not None and features is not None:
        logits = add_aligned_logits(build, features, forecaster.networks)
    add_probabilities(build, logits, forecaster.temperature, probabilities)
    add_label(build, judged, label)
    add_confidence(build, judged, probabilities, classes, confidence)


def _declared(names: list[str], rows: int | str | None, classes: int) -> list[onnx.ValueInfoProto]:
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
