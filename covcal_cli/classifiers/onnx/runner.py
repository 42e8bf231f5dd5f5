"""Run an ONNX model, or a part of its graph."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from covcal_cli.arrays import AnyArray, Float64s, Floats, Inputs, ModelInput
from covcal_cli.classifiers.classifier import batches_of, require_fit
from covcal_cli.classifiers.onnx.graph import OnnxGraph
from covcal_cli.classifiers.onnx.layers import TensorRead
from covcal_cli.errors import CovcalError, one_line

_OUT_OF_TABLE = "out of data bounds"  # Part of ONNX Runtime's message for a wrong embedding index.
_OPSET = 13  # Opset for a model without standard operators.


class Runner:
    """A session of ONNX Runtime."""

    def __init__(
        self,
        where: str,
        session: Any,
        inputs: tuple[ModelInput, ...],
        # Dictionary keys for outputs whose rows are dictionaries.
        zipped: Mapping[str, Sequence[str | int]] | None = None,
    ) -> None:
        self._where, self._session, self._inputs = where, session, inputs
        self._zipped = zipped or {}
        self._names = {value.name for value in inputs}

    def row_shape(self, tensor: str) -> tuple[int, ...] | None:
        """Return the shape of one row of an input or output; None if not declared."""
        shapes: dict[str, list[Any]] = {value.name: list(value.shape) for value in self._inputs}
        shapes |= {value.name: list(value.shape) for value in self._session.get_outputs()}
        row = shapes.get(tensor, [None])[1:]
        return tuple(row) if row and all(isinstance(size, int) for size in row) else None

    def run(self, names: Sequence[str], batch: Inputs) -> dict[str, AnyArray]:
        """Return the tensors `names` for a batch.

        If the model has a fixed batch size, rows are run in parts of this size. Copies of the last
        row fill the last part.
        """
        rows = self._require_fit(batch)
        fed = {value.name: np.ascontiguousarray(batch[value.name]) for value in self._inputs}
        size = self._inputs[0].shape[0]
        wanted = [name for name in names if name not in self._names]
        pieces = []
        for places in batches_of(size, rows):
            part = {name: array[places] for name, array in fed.items()}
            pieces.append(self._run_once(wanted, part, size or rows))
        arrays = pieces[0]
        if len(arrays) and (len(pieces) > 1 or len(arrays[0]) > rows):
            arrays = [np.concatenate(parts)[:rows] for parts in zip(*pieces, strict=True)]
        by_name = dict(zip(wanted, arrays, strict=True))
        return {name: fed[name] if name in self._names else by_name[name] for name in names}

    def _require_fit(self, batch: Inputs) -> int:
        rows = -1
        for value in self._inputs:
            if value.name not in batch:
                names = ", ".join(batch) or "nothing"
                raise CovcalError(
                    f"{self._where} expects {value.describe()} as {value.name}, but the data has "
                    f"{names}: name the arrays like the model's inputs"
                )
            array = batch[value.name]
            require_fit(self._where, value, array)
            if rows not in (-1, len(array)):
                raise CovcalError(
                    f"{self._where} gets {rows} rows of {self._inputs[0].name} but "
                    f"{len(array)} rows of {value.name}: give every input one row per example"
                )
            rows = len(array)
        return rows

    def _run_once(
        self, names: Sequence[str], fed: dict[str, AnyArray], rows: int
    ) -> list[AnyArray]:
        try:
            results = self._session.run(list(names), fed) if names else []
        except Exception as error:  # ONNX Runtime raises many kinds of errors.
            if _OUT_OF_TABLE in str(error):
                raise CovcalError(
                    f"{self._where} does not know a category number in the data "
                    f"({one_line(error, 200)}): number the categories as in training"
                ) from error
            shapes = ", ".join(str(list(array.shape)) for array in fed.values())
            raise CovcalError(
                f"{self._where} cannot run on {shapes} ({one_line(error, 200)}): change the "
                "preprocessing. If the model takes only one row at a time, pass --batch 1"
            ) from error
        arrays = [self._array(name, value) for name, value in zip(names, results, strict=True)]
        # In an output of shape [1, N, K], the second axis is the rows.
        arrays = [
            array[0] if array.ndim == 3 and array.shape[:2] == (1, rows) else array
            for array in arrays
        ]
        for name, array in zip(names, arrays, strict=True):
            if array.ndim == 0 or len(array) != rows:
                raise CovcalError(
                    f"{self._where} gives {list(array.shape)} as {name} for {rows} rows, "
                    "because its batch size is fixed: pass --batch 1"
                )
        return arrays

    def _array(self, name: str, value: Any) -> AnyArray:
        if isinstance(value, list):
            keys = self._zipped.get(name, ())
            return np.array([[row[key] for key in keys] for row in value], dtype=np.float32)
        return np.asarray(value)


def exposing(
    model: onnx.ModelProto, tensors: Sequence[TensorRead], outputs: Sequence[str]
) -> bytes:
    """Return a copy of the model, as bytes, that also outputs `tensors` and `outputs`."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    nodes = {node.output[0]: node for tensor in tensors for node in tensor.nodes}
    copy.graph.node.extend(nodes.values())
    if nodes and not any(entry.domain in ("", "ai.onnx") for entry in copy.opset_import):
        copy.opset_import.append(helper.make_opsetid("", _OPSET))
    present = {value.name for value in (*copy.graph.output, *copy.graph.input)}
    names = dict.fromkeys([*(tensor.tensor for tensor in tensors), *outputs])
    copy.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in names if name not in present
    )
    return bytes(copy.SerializeToString())


_TYPES: dict[int, np.dtype[np.floating]] = {
    onnx.TensorProto.FLOAT: np.dtype(np.float32),
    onnx.TensorProto.FLOAT16: np.dtype(np.float16),
    onnx.TensorProto.DOUBLE: np.dtype(np.float64),
}
_ROWS = 64
_MOST_FEATURES = 16384
_CLOSE: dict[np.dtype[np.floating], float] = {np.dtype(np.float16): 1e-2}


class Part:
    """The part of a graph that computes the tensors `targets` from the tensors `cut`.

    Raises `CovcalError` if `cut` is not enough, or if ONNX Runtime cannot run this part.
    """

    def __init__(self, graph: OnnxGraph, cut: Sequence[str], targets: Sequence[str]) -> None:
        nodes, initializers = graph.part_before(targets, cut)
        self._cut, self._targets = list(cut), list(targets)
        problem: CovcalError | None = None
        for element, dtype in _TYPES.items():
            kind = onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=element))
            inputs = [onnx.ValueInfoProto(name=name, type=kind) for name in cut]
            try:
                data = graph.submodel(nodes, initializers, inputs, self._targets)
                self._session: Any = graph.file.session(data)
            except CovcalError as error:
                problem = problem or error
                continue
            self.dtype = dtype
            return
        raise problem or CovcalError(
            f"{graph.file.path}: onnxruntime cannot run a part of the model"
        )

    def run(self, values: Sequence[Floats]) -> list[Float64s]:
        """Return the values of the tensors `targets` for given values of the tensors `cut`."""
        fed = {
            name: value.astype(self.dtype) for name, value in zip(self._cut, values, strict=True)
        }
        try:
            arrays = self._session.run(self._targets, fed)
        except Exception as error:  # ONNX Runtime raises many kinds of errors.
            raise CovcalError("a part of the model failed on random numbers") from error
        return [np.asarray(value, dtype=np.float64) for value in arrays]

    @property
    def close(self) -> float:
        """The maximum relative rounding error."""
        return _CLOSE.get(self.dtype, 1e-4)


def affine_map(
    graph: OnnxGraph, tensor: str, target: str, row: tuple[int, ...]
) -> tuple[Float64s, Float64s] | None:
    """Return W, (K, d), and b, (K,), of ``target = tensor W^T + b``, or None.

    `row` is the shape of a row of `tensor`.
    """
    d = int(np.prod(row))
    if d > _MOST_FEATURES:
        return None
    try:
        part = Part(graph, [tensor], [target])
        points = np.random.default_rng(0).normal(size=(5, d)) * [[1.0], [1.0], [10.0], [100.0], [0]]
        values = _rows(part, points, row)
        # An affine function is linear between any two points.
        middle = _rows(part, 0.25 * points[:2] + 0.75 * points[2:4], row)
        expected = 0.25 * values[:2] + 0.75 * values[2:4]
        if not np.abs(middle - expected).max() <= part.close * max(np.abs(values).max(), 1e-30):
            return None
        # The origin gives b, and each unit vector gives a column of W.
        bias = values[4]
        blocks = [
            _rows(part, np.eye(d)[start : start + _ROWS], row) - bias
            for start in range(0, d, _ROWS)
        ]
    except CovcalError:
        return None
    weight = np.concatenate(blocks).T
    # Random points may be far from the training data, where decision trees are constant.
    if not weight.any():
        return None
    computed = points @ weight.T + bias
    if not np.abs(computed - values).max() <= part.close * np.abs(values).max():
        return None
    return weight, bias


def _rows(part: Part, points: Float64s, row: tuple[int, ...]) -> Float64s:
    (values,) = part.run([points.reshape(len(points), *row)])
    if values.ndim == 0 or len(values) != len(points):
        raise CovcalError("a part of the model changes the number of rows")
    return values.reshape(len(points), -1)
