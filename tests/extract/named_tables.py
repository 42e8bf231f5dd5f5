"""Tables with named feature columns, and with a column per class, for tests of extract."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from tests.classifiers.onnx.onnx_graphs import Graph, node
from tests.made_rows import write_csv, write_parquet

N = 40
RNG = np.random.default_rng(5)
X = {name: RNG.random((N, 3), dtype=np.float32) for name in ("source", "target")}
Y = {name: x.argmax(axis=1) for name, x in X.items()}
FEATURES = ("age", "height", "weight")
LOGITS = (3 * RNG.normal(size=(N, 3))).astype(np.float32)
ANIMALS = ("cat", "dog", "eel")


def model(folder: Path) -> str:
    """Save a classifier of three columns that is right on every row."""
    constants = {"wk": np.eye(3, dtype=np.float32), "bk": np.zeros(3, np.float32)}
    nodes = [node("Relu", "x", "phi"), node("Gemm", "phi wk bk", "y", transB=1)]
    return Graph(nodes, constants=constants, shape=("N", 3)).save(folder).name


def columns(domain: str, names: tuple[str, ...] = FEATURES) -> dict[str, list[Any]]:
    """Return a table's feature columns in this order of names, and its labels."""
    values = dict(zip(FEATURES, X[domain].T, strict=True))
    return {**{n: values[n].tolist() for n in names}, "label": Y[domain].tolist()}


def save(kind: str, folder: Path, name: str, table: dict[str, Any]) -> str:
    """Save a table as CSV or Parquet, and return its base name."""
    path = folder / f"{name}.{kind}"
    return (write_csv(path, table) if kind == "csv" else write_parquet(path, table)).name


def dataset(folder: Path, name: str, file_name: str = "features.h5") -> NDArray[Any]:
    """Read a dataset of a features file."""
    with h5py.File(folder / file_name) as file:
        return np.asarray(file[name][()])


def outputs(
    order: tuple[int, ...] = (0, 1, 2), prefix: str = "logit", values: Any = LOGITS
) -> dict[str, Any]:
    """Return columns of outputs, in an order of the classes."""
    return {f"{prefix}_{ANIMALS[k]}": values[:, k].tolist() for k in order}
