"""The inputs of an ONNX model: one tensor or several, each with one row per example."""

import numpy as np
import onnx
from onnx import helper

from covcal_cli.arrays import ModelInput
from covcal_cli.errors import CovcalError
from covcal_cli.models.onnx_graph import OnnxGraph


def read_inputs(graph: OnnxGraph) -> tuple[ModelInput, ...]:
    """Return the inputs of a model."""
    inputs = tuple(_read(graph, value) for value in graph.inputs)
    if not inputs:
        raise CovcalError(f"{graph.file.path} has no input: export the model with one")
    batches = [value.shape[0] if value.shape else 0 for value in inputs]
    common = _common_batch(batches)
    states = [value for value, batch in zip(inputs, batches, strict=True) if batch != common]
    if states:
        described = ", ".join(f"{value.name} {_shape(value)}" for value in inputs)
        names = " and ".join(value.name for value in states)
        raise CovcalError(
            f"{graph.file.path} has {len(inputs)} inputs ({described}), and {names} "
            f"{'holds' if len(states) == 1 else 'hold'} no row per example (a state or a "
            "parameter?): export the model without it, or give its predictions as a table with "
            "--logits"
        )
    return inputs


def require_declared_width(
    graph: OnnxGraph, inputs: tuple[ModelInput, ...], tensor: str, width: int
) -> None:
    """Refuse a model whose head reads an input that declares another number of columns."""
    value = next((value for value in inputs if value.name == tensor), None)
    if value is None or len(value.shape) != 2 or value.shape[1] in (None, width):
        return
    raise CovcalError(
        f"{graph.file.path} declares input {value.name} as {_shape(value)}, but its weights need "
        f"{width} columns, so the declared shape is wrong: export it again with [N, {width}]"
    )


def _read(graph: OnnxGraph, value: onnx.ValueInfoProto) -> ModelInput:
    tensor = value.type.tensor_type
    if not tensor.elem_type or tensor.elem_type == onnx.TensorProto.STRING:
        raise CovcalError(
            f"{graph.file.path}: input {value.name} is not a numeric tensor: export a model that "
            "reads numbers"
        )
    if not tensor.HasField("shape"):
        raise CovcalError(
            f"{graph.file.path}: input {value.name} declares no shape: export the model with one"
        )
    shape = tuple(dim.dim_value if dim.dim_value > 0 else None for dim in tensor.shape.dim)
    if not shape and len(graph.inputs) == 1:
        raise CovcalError(
            f"{graph.file.path}: input {value.name} is a single number, not rows: export a model "
            "that reads one row per example"
        )
    return ModelInput(
        value.name, shape, np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    )


def _common_batch(batches: list[int | None]) -> int | None:
    """Return the number of rows that the inputs agree on: free if any is, else the commonest."""
    if None in batches:
        return None
    return max(dict.fromkeys(batches), key=batches.count)


def _shape(value: ModelInput) -> str:
    if not value.shape:
        return "(a single number)"
    return f"[{', '.join('?' if size is None else str(size) for size in value.shape)}]"
