"""Run a `Part` of an ONNX graph on chosen numbers, to see how its result depends on them.

`affine_map` reads W and b in this way. It needs no data, so the result does not depend on the first
rows. The proof on data (``classifiers/proof.py``) comes later.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from covcal_cli.arrays import Float64s, Floats
from covcal_cli.classifiers.onnx.graph import OnnxGraph
from covcal_cli.errors import CovcalError

_TYPES: dict[int, np.dtype[np.floating]] = {
    onnx.TensorProto.FLOAT: np.dtype(np.float32),
    onnx.TensorProto.FLOAT16: np.dtype(np.float16),
    onnx.TensorProto.DOUBLE: np.dtype(np.float64),
}
_ROWS = 64
_MOST_FEATURES = 16384
_CLOSE: dict[np.dtype[np.floating], float] = {np.dtype(np.float16): 1e-2}


class Part:
    """The part of a graph from the tensors of `cut`, which are fed, to the tensors of `targets`.

    It is a CovcalError if the targets depend on anything else, or if the part does not run.
    """

    def __init__(self, graph: OnnxGraph, cut: Sequence[str], targets: Sequence[str]) -> None:
        nodes, initializers = graph.part_before(targets, cut)
        self._cut, self._targets = list(cut), list(targets)
        problem: CovcalError | None = None
        for element, dtype in _TYPES.items():
            inputs = [_declared(name, element) for name in cut]
            try:
                data = graph.submodel(nodes, initializers, inputs, self._targets)
                self._session: Any = graph.file.session(data)
            except CovcalError as error:
                problem = problem or error
                continue
            self.dtype = dtype
            return
        raise problem or CovcalError(f"{graph.file.path}: a part of the model does not run")

    def run(self, values: Sequence[Floats]) -> list[Float64s]:
        """Return the targets for values of the cut tensors."""
        fed = {
            name: value.astype(self.dtype) for name, value in zip(self._cut, values, strict=True)
        }
        try:
            arrays = self._session.run(self._targets, fed)
        except Exception as error:  # ONNX Runtime's exceptions share no other base class
            raise CovcalError("a part of the model does not run on random numbers") from error
        return [np.asarray(value, dtype=np.float64) for value in arrays]

    @property
    def close(self) -> float:
        """The relative error that rounding explains."""
        return _CLOSE.get(self.dtype, 1e-4)


def affine_map(
    graph: OnnxGraph, tensor: str, target: str, row: tuple[int, ...]
) -> tuple[Float64s, Float64s] | None:
    """Return W, (K, d), and b, (K,), with ``target = tensor W^T + b``; None if not affine.

    `row` is the shape of one row of `tensor`.
    """
    d = int(np.prod(row))
    if d > _MOST_FEATURES:
        return None
    try:
        part = Part(graph, [tensor], [target])
        points = np.random.default_rng(0).normal(size=(5, d)) * [[1.0], [1.0], [10.0], [100.0], [0]]
        values = _rows(part, points, row)
        # Check that the function is affine: on a line, two points determine the value of a third.
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
    if not weight.any():  # for example trees, which are constant far from their training data
        return None
    # W and b must also give the values far from the unit vectors.
    computed = points @ weight.T + bias
    if not np.abs(computed - values).max() <= part.close * np.abs(values).max():
        return None
    return weight, bias


def _rows(part: Part, points: Float64s, row: tuple[int, ...]) -> Float64s:
    (values,) = part.run([points.reshape(len(points), *row)])
    if values.ndim == 0 or len(values) != len(points):
        raise CovcalError("a part of the model gives another number of rows")
    return values.reshape(len(points), -1)


def _declared(name: str, element: int) -> onnx.ValueInfoProto:
    kind = onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=element))
    return onnx.ValueInfoProto(name=name, type=kind)
