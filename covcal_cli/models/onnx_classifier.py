"""An ONNX classifier that gives phi(x) and its logits in one pass.

The two tensors become outputs of a copy of the model in memory; the file stays as it is. The first
batch proves the head (``proof.py``), and every later batch is held to the same proof, because a
capped or clipped tail can look like plain logits on a few rows.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from covcal_cli.errors import CovcalError
from covcal_cli.modelinput import ModelInput
from covcal_cli.models import proof
from covcal_cli.models.classifier import Floats, Inputs
from covcal_cli.models.onnx_file import OnnxFile, one_line, read_onnx
from covcal_cli.models.onnx_graph import OnnxGraph
from covcal_cli.models.onnx_head import Head, find_head

_POOLED = "covcal_pooled"
_FEATURES = "covcal_features"
_TAIL_TEXT = {
    "none": "logits",
    "softmax": "softmax(logits)",
    "log_softmax": "log_softmax(logits)",
}


class OnnxClassifier:
    """A classifier in an ONNX file; see `covcal_cli.models.classifier.Classifier`.

    Parameters
    ----------
    path : Path
        The file; external weights lie beside it.
    output : str, optional
        The output that holds the classes, where the model has several.
    threads : int
        Threads within one operation.

    Raises
    ------
    CovcalError
        If the file is no ONNX classifier with one input and one linear head.
    """

    def __init__(self, path: Path, output: str | None = None, threads: int = 1) -> None:
        self._file = read_onnx(path)
        graph = OnnxGraph(self._file)
        self._head = find_head(graph, output)
        self._where = str(path)
        self._threads = threads
        self.name = path.name
        self.sha256 = hashlib.sha256(self._file.data).hexdigest()
        self._input = _only_input(graph)
        self.inputs: tuple[ModelInput, ...] = (self._input,)
        self.fixed_batch = self._input.shape[0]
        self.metadata: Mapping[str, str] = {
            entry.key: entry.value for entry in self._file.model.metadata_props
        }
        self.class_names: tuple[str, ...] | None = None
        self.notes: tuple[str, ...] = ()
        self.n_classes: int = self._head.weight.shape[0]
        self.n_features: int | None = self._head.weight.shape[1]
        self.weight: Floats | None = self._head.weight.astype(np.float32)
        self.bias: Floats | None = self._head.bias.astype(np.float32)
        self.features_tensor: str | None = self._head.features
        self.logits_tensor = self._head.logits
        self.output_name = self._head.outputs[0]
        self.tail: str | None = None
        self.affine_error: float | None = None
        self.exposure_error: float | None = None
        self._outputs = self._exposed_outputs()
        self._session: Any = self._file.session(
            _with_outputs(self._file, self._head, self._outputs), threads=threads
        )

    def run(self, batch: Inputs) -> tuple[Floats, Floats]:
        """Return phi(x) and the logits of a batch.

        Parameters
        ----------
        batch : mapping of str to array, shape (m, ...)
            By input name, in the input's own shape and dtype. Where the model's batch is fixed,
            rows are fed in that number and the last run is padded.

        Returns
        -------
        features : array of float32, shape (m, d)
        logits : array of float32, shape (m, K)
            Before any softmax.

        Raises
        ------
        CovcalError
            If the shapes do not fit, or the proof fails on this batch.
        """
        rows = batch[self._input.name]
        self._require_shape(rows)
        names = self._outputs if self.tail is None else self._wanted()
        arrays = self._run_in_pieces(self._session, names, rows)
        values = dict(zip(names, arrays, strict=True))
        features, logits = self._features(values), self._logits(values, len(rows))
        self._prove(rows, features, logits, values)
        return features.astype(np.float32), logits.astype(np.float32)

    def describe(self) -> str:
        """Return the head and its proof in one line."""
        text = f"{self._head.layer}: phi {self.n_features}, {self.n_classes} classes"
        if self.tail is None or self.affine_error is None:
            return text
        output = _TAIL_TEXT[self.tail]
        return f"{text}, output = {output}, affine error {self.affine_error:.0e}"

    def _exposed_outputs(self) -> list[str]:
        features = _FEATURES if self._head.is_convolution else self._head.features
        return list(dict.fromkeys([features, self._head.logits, *self._head.outputs]))

    def _wanted(self) -> list[str]:
        return list(dict.fromkeys([*self._outputs[:2], self.output_name]))

    def _require_shape(self, batch: NDArray[np.generic]) -> None:
        row, expected = batch.shape[1:], self._input.shape[1:]
        fits = len(row) == len(expected) and all(
            want is None or want == have for want, have in zip(expected, row, strict=True)
        )
        if fits and batch.dtype == self._input.dtype:
            return
        found = ", ".join(map(str, row))
        raise CovcalError(
            f"{self._where} wants {self._input.describe()} as {self._input.name}, and the "
            f"data gives {batch.dtype} [N, {found}]: change the preprocessing or the array"
        )

    def _run_in_pieces(
        self, session: Any, names: list[str], batch: NDArray[np.generic]
    ) -> list[NDArray[Any]]:
        size = self.fixed_batch
        if size is None or len(batch) == size:
            return self._run_once(session, names, batch)
        pieces = []
        for start in range(0, len(batch), size):
            rows = batch[start : start + size]
            # The last row again: a row of zeros might be no valid input.
            padding = np.repeat(rows[-1:], size - len(rows), axis=0)
            arrays = self._run_once(session, names, np.concatenate([rows, padding]))
            pieces.append([array[: len(rows)] for array in arrays])
        return [np.concatenate(arrays) for arrays in zip(*pieces, strict=True)]

    def _run_once(
        self, session: Any, names: list[str], batch: NDArray[np.generic]
    ) -> list[NDArray[Any]]:
        try:
            arrays = session.run(names, {self._input.name: np.ascontiguousarray(batch)})
        except Exception as error:  # ONNX Runtime's exceptions share no other base class
            raise CovcalError(
                f"{self._where} cannot run on [{', '.join(map(str, batch.shape))}] "
                f"({one_line(error)}): change the preprocessing, or --batch 1 if only one row "
                "at a time works"
            ) from error
        for name, array in zip(names, arrays, strict=True):
            if array.ndim == 0 or len(array) != len(batch):
                raise CovcalError(
                    f"{self._where} gives {list(array.shape)} as {name} for {len(batch)} rows: the "
                    "batch size is fixed inside the model; pass --batch 1"
                )
        return list(arrays)

    def _features(self, values: dict[str, NDArray[Any]]) -> NDArray[Any]:
        features = values[self._outputs[0]]
        if features.ndim == 2 and features.shape[1] == self.n_features:
            return features
        raise CovcalError(
            f"{self._where}: {self._head.layer} reads features of shape "
            f"[N, {', '.join(map(str, features.shape[1:]))}], not one vector per row: export a "
            "model that selects or averages them before its last layer"
        )

    def _logits(self, values: dict[str, NDArray[Any]], rows: int) -> NDArray[Any]:
        logits = values[self._head.logits]
        if logits.size == rows * self.n_classes:
            return logits.reshape(rows, self.n_classes)
        follower = f"{self._head.follower} follows" if self._head.follower else "no mean follows"
        raise CovcalError(
            f"{self._where}: {self._head.layer} gives {list(logits.shape[1:])} values per row and "
            f"{follower}, so the logits are not affine in a feature vector: covcal needs a model "
            "whose last layer is linear"
        )

    def _prove(
        self,
        batch: NDArray[np.generic],
        features: NDArray[Any],
        logits: NDArray[Any],
        values: dict[str, NDArray[Any]],
    ) -> None:
        if not np.isfinite(logits.sum(dtype=np.float64)) and not np.isfinite(logits).all():
            return  # the caller knows the name of the row and reports it
        limit = max(proof.tolerance(logits.dtype), proof.tolerance(features.dtype))
        error = proof.affine_error(features, self._head.weight, self._head.bias, logits)
        if error > limit:
            raise CovcalError(
                f"{self._where}: {self._head.layer} does not give {self._head.logits} "
                f"(relative error {error:.1g}), so the logits are not affine in its input: covcal "
                "needs a model whose last layer is linear"
            )
        self.affine_error = max(error, self.affine_error or 0.0)
        if self.tail is None:
            self._recognise(logits, values, limit)
            self._compare_with_unmodified(batch, values, limit)
        else:
            output = values[self.output_name].reshape(logits.shape)
            if proof.tail_error(self.tail, logits, output) > limit:
                raise self._unknown_tail()

    def _recognise(
        self, logits: NDArray[Any], values: dict[str, NDArray[Any]], limit: float
    ) -> None:
        for name in self._head.outputs:
            output = values[name]
            if output.size == logits.size:
                tail = proof.recognise_tail(logits, output.reshape(logits.shape), limit)
                if tail is not None:
                    self.output_name, self.tail = name, tail
                    return
        raise self._unknown_tail()

    def _unknown_tail(self) -> CovcalError:
        return CovcalError(
            f"{self._where}: output {', '.join(self._head.outputs)} is neither the logits of "
            f"{self._head.layer} nor their softmax or log-softmax"
            f"{f' ({self._head.follower} follows them)' if self._head.follower else ''}: export a "
            "model that ends with one of these"
        )

    def _compare_with_unmodified(
        self, batch: NDArray[np.generic], values: dict[str, NDArray[Any]], limit: float
    ) -> None:
        """Prove that exposing the tensors changed nothing: a fused operator might round anew."""
        session = self._file.session(self._file.data, threads=self._threads)
        (original,) = self._run_in_pieces(session, [self.output_name], batch)
        self.exposure_error = proof.relative_error(values[self.output_name], original)
        if self.exposure_error > limit:
            raise CovcalError(
                f"{self._where} gives another output when {self._head.logits} is read as well "
                f"(relative error {self.exposure_error:.1g}): export the model without fused or "
                "quantised operators"
            )


def _only_input(graph: OnnxGraph) -> ModelInput:
    if len(graph.inputs) != 1:
        names = ", ".join(value.name for value in graph.inputs)
        raise CovcalError(
            f"{graph.file.path} has {len(graph.inputs)} inputs ({names}) and covcal feeds one: "
            "export a model with a single input"
        )
    value = graph.inputs[0]
    tensor = value.type.tensor_type
    if not tensor.elem_type or tensor.elem_type == onnx.TensorProto.STRING:
        raise CovcalError(
            f"{graph.file.path}: input {value.name} is not a numeric tensor: export a model that "
            "reads numbers"
        )
    shape = tuple(dim.dim_value if dim.dim_value > 0 else None for dim in tensor.shape.dim)
    if not shape:
        raise CovcalError(
            f"{graph.file.path}: input {value.name} declares no shape: export the model with one"
        )
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return ModelInput(value.name, shape, dtype)


def _with_outputs(file: OnnxFile, head: Head, names: list[str]) -> bytes:
    """Serialise a copy of the model in which `names` are outputs."""
    model = onnx.ModelProto()
    model.CopyFrom(file.model)
    if head.is_convolution:
        model.graph.node.extend(
            [
                helper.make_node("GlobalAveragePool", [head.features], [_POOLED]),
                helper.make_node("Flatten", [_POOLED], [_FEATURES], axis=1),
            ]
        )
    present = {value.name for value in model.graph.output}
    model.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in names if name not in present
    )
    return bytes(model.SerializeToString())
