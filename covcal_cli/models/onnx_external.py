"""Weights that an ONNX model keeps in other files, beside it or behind symbolic links.

A download cache keeps every file as a link into a folder of blobs. ONNX Runtime refuses weights
that lie outside the folder that it is given, so it is given the folder of the blobs, and the
model in memory the blobs' own names.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import onnx

from covcal_cli.errors import CovcalError
from covcal_cli.files import sha256_of

LFS_POINTER = b"version https://git-lfs"


def link_external_data(path: Path, model: onnx.ModelProto) -> tuple[Path, dict[str, Path]]:
    """Find the external weights of a model, and make it name them as they lie on the disk.

    Returns the folder that locations are relative to, and the file behind every location as the
    model named it; where weights are links to another folder, the locations are rewritten. A
    location that leads out of the model's folder is refused, and a file that is missing or cut.
    """
    files: dict[str, Path] = {}
    external = external_tensors(model)
    for tensor in external:
        entries = external_entries(tensor)
        location = entries.get("location", "")
        if location not in files:
            files[location] = _existing(path, location, tensor.name)
        # Every tensor must end inside its file.
        end = int(entries.get("offset", "0")) + int(entries.get("length", "0"))
        size = files[location].stat().st_size
        if end > size:
            raise CovcalError(
                f"{path} needs {end} bytes of {location}, which has {size} (it was cut?): copy or "
                "download it again"
            )
    folder = path.parent.resolve()
    if all(file.is_relative_to(folder) for file in files.values()):
        return folder, files
    folder = Path(os.path.commonpath([file.parent for file in files.values()]))
    for tensor in external:
        location = external_entries(tensor)["location"]
        set_location(tensor, files[location].relative_to(folder).as_posix())
    return folder, files


def external_tensors(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Return every tensor of a model, in subgraphs and functions too, that is in another file."""
    return [tensor for tensor in _tensors(model) if tensor.data_location == tensor.EXTERNAL]


def external_entries(tensor: onnx.TensorProto) -> dict[str, str]:
    """Return where an external tensor lies: location and, where given, offset and length."""
    return {entry.key: entry.value for entry in tensor.external_data}


def set_location(tensor: onnx.TensorProto, name: str) -> None:
    """Let an external tensor name another file, with the same values at the same place."""
    for entry in tensor.external_data:
        if entry.key == "location":
            entry.value = name


def external_bytes(tensor: onnx.TensorProto, folder: Path) -> bytes:
    """Return the values of an external tensor; onnx itself would refuse a symbolic link."""
    entries = external_entries(tensor)
    with (folder / entries["location"]).open("rb") as stream:
        stream.seek(int(entries.get("offset", "0")))
        return stream.read(int(entries.get("length", "0")) or -1)


def model_sha256(data: bytes, files: dict[str, Path]) -> str:
    """Return the sha256 that names a model and the external weights that it reads.

    That of the file itself without external weights; otherwise that of the hexadecimal digests of
    the file and of each external file, in the order of the names that the model gives them.
    """
    own = hashlib.sha256(data).hexdigest()
    if not files:
        return own
    digests = [own, *(sha256_of(files[name]) for name in sorted(files))]
    return hashlib.sha256("".join(digests).encode("ascii")).hexdigest()


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        yield from _node_tensors(function.node)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from _graph_tensors(graph)


def _existing(path: Path, location: str, tensor: str) -> Path:
    """Return the file behind a location, its links followed."""
    where = PurePosixPath(location.replace("\\", "/"))
    # A model from elsewhere must not make us read files outside its own folder.
    if not location or where.is_absolute() or ".." in where.parts:
        raise CovcalError(
            f"{path} keeps tensor {tensor!r} in {location!r}, outside its own folder: "
            "save the model again with its weights beside it"
        )
    file = path.parent / location
    if not file.is_file():
        raise CovcalError(
            f"{path} needs {location} beside it (weights such as {tensor!r}): copy that file too"
        )
    with file.open("rb") as stream:
        if stream.read(len(LFS_POINTER)) == LFS_POINTER:
            raise CovcalError(
                f"{file} is a Git LFS pointer, not the weights of {path.name}: run git lfs pull"
            )
    return file.resolve()
