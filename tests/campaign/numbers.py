"""What a file says, read without covcal, and the numbers of what a command has written."""

import csv
import io
import json
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from covcal_cli.records import parsed_json

Arrays = dict[str, Any]
Said = Mapping[str, Any]

_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
# Digests, sizes, and that a file is another.
_OF_BYTES = re.compile(
    r"\b[0-9a-f]{8,}\b|[\d.]+ ([kMG]B|bytes)|[^<>\n]* has changed since [^<>\n]*"
)
_ROW_OF_FILE = re.compile(r"<tr>((?!</tr>).)*sha256((?!</tr>).)*</tr>\s*", re.DOTALL)
_WORDS = frozenset(("label", "id"))  # columns that may hold texts


class DamagedError(Exception):
    """No reader could make anything of a file, or no row of it makes sense."""


def hdf5_arrays(content: bytes) -> tuple[Arrays, Arrays]:
    """Return the datasets of an HDF5 file and its attributes."""
    with h5py.File(io.BytesIO(content)) as file:
        return dict(_datasets(file, "")), dict(file.attrs)


def _datasets(group: h5py.Group, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield every dataset by each of its names; h5py's own visit gives one name of several."""
    for name in group:
        entry = group[name]
        if isinstance(entry, h5py.Dataset):
            yield f"{prefix}{name}", entry[()]
        else:
            yield from _datasets(entry, f"{prefix}{name}/")


def npz_arrays(content: bytes) -> Arrays:
    """Return the arrays of an .npz file."""
    with np.load(io.BytesIO(content)) as data:
        return dict(data)


def safetensors_arrays(content: bytes) -> Arrays:
    """Return the tensors of a .safetensors file."""
    import safetensors.numpy as safetensors

    return dict(safetensors.load(content))


def pth_arrays(content: bytes) -> Arrays:
    """Return the tensors of a torch file of weights, whose checksums must be right."""
    import torch

    zip_members(content)
    read = torch.load(io.BytesIO(content), weights_only=True)
    return {name: tensor.numpy() for name, tensor in read.items()}


def zip_members(content: bytes) -> Arrays:
    """Return the members of a zip file by name; an error for a wrong checksum."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = archive.namelist()
        if len(set(names)) < len(names):
            raise DamagedError("a member twice")
        return {name: archive.read(name) for name in names}


def _covcal_file(content: bytes) -> Said:
    arrays, attributes = hdf5_arrays(content)
    if attributes.get("complete") != 1:
        raise DamagedError("not complete")
    for name, values in arrays.items():
        domain, _, kind = name.partition("/")
        _require_numbers(values, masks=kind in ("logits", "aligned_logits"))
        classes = arrays["classes"]
        if kind == "labels" and not ((values >= -1) & (values < len(classes))).all():
            raise DamagedError("no such class")
        if kind == "split" and (values > 2).any():
            raise DamagedError("no such split")
        rows = values.shape[1] if kind.startswith("aligned_") else len(values)
        if kind and domain != "head" and rows != len(arrays[f"{domain}/labels"]):
            raise DamagedError("rows differ")
    return arrays | {f"@{name}": value for name, value in attributes.items()}


def _rows(arrays: Arrays) -> Said:
    if len({len(values) for values in arrays.values()}) > 1:
        raise DamagedError("rows differ")
    return _tensors(arrays)


def _tensors(arrays: Arrays) -> Said:
    for values in arrays.values():
        _require_numbers(values)
    return arrays


def _require_numbers(values: Any, *, masks: bool = False) -> None:
    kind = np.asarray(values).dtype.kind
    if masks and kind == "f":  # -inf rules a class out
        values = np.where(np.isneginf(values), 0, values)
    if kind in "cOV" or (kind == "f" and not np.isfinite(values).all()):
        raise DamagedError("no numbers")


def _table(content: bytes) -> Said:
    rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True))
    rows = [row for row in rows if row]
    header = rows[0]
    columns: Arrays = {}
    for name, *cells in zip(*rows, strict=True):
        is_word = name in _WORDS or name.startswith("label_")  # a missing label is no damage
        if not is_word and not all(map(_NUMBER.fullmatch, cells)):
            raise DamagedError("no number")
        is_logit = name.startswith("logit")  # its distance from the others of its row counts
        kind = np.float64 if is_logit else np.float32
        columns[name] = cells if is_word else np.array(cells, dtype=kind)
        if not is_word:
            _require_numbers(columns[name], masks=is_logit)
    if len(columns) < len(header):
        raise DamagedError("a column twice")
    return columns | {"order": header}


def _parquet(content: bytes) -> Said:
    import pyarrow.parquet

    columns: Arrays = pyarrow.parquet.read_table(io.BytesIO(content)).to_pydict()
    for name, values in columns.items():
        if name not in _WORDS:
            columns[name] = np.array(values, dtype=np.float32)
            _require_numbers(columns[name], masks=name.startswith("logit"))
    return columns


def _json_lines(content: bytes) -> list[Any]:
    lines = content.decode("utf-8-sig").split("\n")
    return [json.loads(line) for line in lines if line.strip()]


def _shard(content: bytes) -> Said:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        found = ((member.name, archive.extractfile(member)) for member in archive)
        return {name.partition(".")[0]: m.read() for name, m in found if m and ".png" in name}


READERS: Mapping[str, Callable[[bytes], Said]] = {
    "covcal": _covcal_file,
    "h5": lambda content: _rows(hdf5_arrays(content)[0]),
    "npz": lambda content: _rows(npz_arrays(content)),
    "npy": lambda content: _rows({"x": np.load(io.BytesIO(content))}),
    "csv": _table,
    "parquet": _parquet,
    "json": lambda content: {"value": parsed_json(content.decode("utf-8"))},
    "json lines": lambda content: {"rows": _json_lines(content)},
    "json list": lambda content: {"rows": json.loads(content.decode("utf-8-sig"))},
    "lines": lambda content: {"lines": content.decode("utf-8-sig").split("\n")},
    "safetensors": lambda content: _tensors(safetensors_arrays(content)),
    "pth": lambda content: _tensors(pth_arrays(content)),
    "zip": zip_members,
    "tar": _shard,
}


def written(out: str, output: Path | None) -> Any:
    """Return the numbers that a command has printed or written, without digests and sizes."""
    if output is None:
        return _OF_BYTES.sub("", out)
    content = output.read_bytes()
    if output.suffix == ".h5":
        return hdf5_arrays(content)[0]
    if output.suffix == ".npz":
        arrays = npz_arrays(content)
        # A single text is the provenance.
        texts = (name for name, values in arrays.items() if values.ndim == 0)
        return arrays | {name: _OF_BYTES.sub("", str(arrays[name])) for name in texts}
    if output.suffix == ".onnx":
        import onnx

        graph = onnx.load_from_string(content).graph
        return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    return _OF_BYTES.sub("", _ROW_OF_FILE.sub("", content.decode("utf-8")))


def equal(a: Any, b: Any) -> bool:
    """Return whether two values say the same, in whatever order and types of array."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        a, b = np.asarray(a), np.asarray(b)
        texts = a.dtype.kind in "SUO" or b.dtype.kind in "SUO"
        return bool(a.shape == b.shape and np.array_equal(a, b, equal_nan=not texts))
    return bool(a == b)


def other_rows(output: Arrays, expected: Arrays, unchanged: set[str]) -> str:
    """Return the id of an unchanged target row with other numbers than expected; none: empty."""
    rows = [
        {
            identity.decode(): logits
            for identity, logits in zip(
                found["target/ids"].tolist(), found["target/logits"], strict=True
            )
        }
        for found in (output, expected)
    ]
    for name in rows[0].keys() & rows[1].keys() & unchanged:
        if not np.array_equal(rows[0][name], rows[1][name]):
            return str(name)
    return ""
