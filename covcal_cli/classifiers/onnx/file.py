"""An ONNX file, read and parsed with its external weights, and ONNX Runtime started on it."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path, PurePosixPath
from typing import Any

import onnx
import onnxruntime

from covcal_cli.classifiers.kinds import LFS_POINTER
from covcal_cli.errors import OUTPUTS_AS_TABLE, CovcalError, one_line, shown
from covcal_cli.files import require_file, sha256_of

_EXPORT = "export the classifier as an .onnx file"
_PICKLE = b"\x80"
# What is most often taken for a model: the start of such a file, what it is, and the remedy.
_OTHER_FORMATS = {
    LFS_POINTER: ("a Git LFS pointer", "run git lfs pull"),
    b"<": ("a web page", "download the raw file, not its page"),
    b"PK\x03\x04": ("a zip archive (a torch or Keras file?)", _EXPORT),
    b"\x89HDF": ("an HDF5 file (a Keras model?)", _EXPORT),
    b"\x89PNG": ("a PNG image", _EXPORT),
    _PICKLE: ("a Python pickle", f"{_EXPORT}, or {OUTPUTS_AS_TABLE}"),
}
_PICKLES = (".pkl", ".pickle", ".joblib", ".sav")  # they may be compressed
CPU = ("CPUExecutionProvider",)
_FOLDER_OF_WEIGHTS = "session.model_external_initializers_file_folder_path"
_SUFFIX = "ExecutionProvider"
_GPU = ("CUDAExecutionProvider", "TensorrtExecutionProvider")
# Tensor cores round float32 products to ten bits by default, which would drown the proof.
_PROVIDER_OPTIONS = {"CUDAExecutionProvider": {"use_tf32": "0"}}
_NO_TENSOR_CORES = "NVIDIA_TF32_OVERRIDE"  # the only way to tell TensorRT
_LOG_FATAL_ONLY = 4  # what goes wrong arrives as an exception; the log would print it twice
_KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training")
_RUNTIME_DOMAINS = ("com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc")


@dataclass(frozen=True)
class OnnxFile:
    """A parsed ONNX file."""

    path: Path
    folder: Path  # where its external weights lie
    # The file as it is, for running the unmodified model; external weights that are links into
    # another folder go by their names there.
    data: bytes
    model: onnx.ModelProto  # without external weights
    sha256: str  # of the file and its external weights

    def session(
        self,
        data: bytes,
        *,
        folder: Path | None = None,
        threads: int = 1,
        providers: Sequence[str] = CPU,
        fuse: bool = True,
    ) -> Any:
        """Start ONNX Runtime on this model, a part of it or one made of it, serialised as `data`.

        `folder` is where its external weights lie, if elsewhere. Without `fuse` no operators are
        fused into others that round differently. Never runs elsewhere than asked.
        """
        _prepare_gpu(providers)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _LOG_FATAL_ONLY
        if not fuse:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        # A spinning thread takes a core from the image decoder and gains nothing here.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if external_tensors(self.model):
            options.add_session_config_entry(_FOLDER_OF_WEIGHTS, _utf8_path(folder or self.folder))
        try:
            session = onnxruntime.InferenceSession(
                data,
                sess_options=options,
                providers=list(providers),
                provider_options=[_PROVIDER_OPTIONS.get(name, {}) for name in providers],
                enable_fallback=0,  # it would go on elsewhere, and say so on stdout
            )
        except Exception as error:  # ONNX Runtime's exceptions share no other base class
            if set(providers) - set(CPU):
                raise _no_start(providers, one_line(error, 200)) from error
            raise CovcalError(
                f"{self.path}: onnxruntime {onnxruntime.__version__} cannot load the model, which "
                f"uses opset {self.opset} ({one_line(error, 200)}): export it again with an older "
                "opset and standard operators, or update onnxruntime"
            ) from error
        missing = set(providers) - set(session.get_providers())
        if missing:
            raise _no_start(sorted(missing), "a driver or library that it needs is missing")
        return session

    @property
    def opset(self) -> int:
        """Version of the standard operators; 1 where the model imports none."""
        return opset_of(self.model) or 1


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of the standard operators; 0 where the model imports none.

    A model of machine learning operators alone needs none.
    """
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    return max(versions, default=0)


def read_onnx(path: Path) -> OnnxFile:
    """Read and parse an ONNX file, leaving external weights where they are."""
    require_file(path, remedy=_EXPORT)
    data = path.read_bytes()
    for start, (kind, remedy) in _OTHER_FORMATS.items():
        is_pickle = start == _PICKLE and path.suffix.lower() in _PICKLES
        if is_pickle or data[:64].lstrip().startswith(start):
            raise CovcalError(f"{path} is {kind}, not an ONNX model: {remedy}")
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's DecodeError, from a package without type stubs
        raise CovcalError(
            f"{path} is truncated or no ONNX model ({len(data)} bytes): copy or download it again, "
            f"or {_EXPORT}"
        ) from error
    if not model.graph.node or not model.opset_import:
        raise CovcalError(f"{path} holds no ONNX graph: {_EXPORT}")
    _require_names(path, model)
    _require_standard_operators(path, model)
    folder, files = link_external_data(path, model)
    sha256 = model_sha256(data, files)
    if folder != path.parent.resolve():
        data = model.SerializeToString()
    return OnnxFile(path, folder, data, model, sha256)


def provider_names(asked: Sequence[str]) -> tuple[str, ...]:
    """Return the execution providers of ONNX Runtime that `asked` names; the CPU when empty.

    By short names in any case (``cpu``, ``cuda``, ``tensorrt``) or full ones.
    """
    available = {name.lower(): name for name in onnxruntime.get_available_providers()}
    found = []
    for name in asked:
        wanted = name.strip().lower()
        full = available.get(wanted, available.get(wanted + _SUFFIX.lower()))
        if full is None:
            choices = ", ".join(value.removesuffix(_SUFFIX) for value in available.values())
            raise CovcalError(
                f"--providers {name} is not available in onnxruntime {onnxruntime.__version__}: "
                f"choose from {choices}, or install the onnxruntime package that has it "
                "(onnxruntime-gpu for CUDA and TensorRT)"
            )
        found.append(full)
    return tuple(dict.fromkeys(found)) or CPU


def _utf8_path(folder: Path) -> str:
    """Return a folder's path as ONNX Runtime takes it."""
    text = str(folder)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise CovcalError(
            f"{folder} is no UTF-8, and onnxruntime finds no weights there: rename the folder"
        ) from error
    return text


def _require_names(path: Path, model: onnx.ModelProto) -> None:
    """Refuse a damaged model whose names are no texts."""
    graph = model.graph
    try:
        names = [value.name for value in (*graph.input, *graph.output, *graph.initializer)]
        for node in graph.node:
            names += [*node.input, *node.output, node.name, node.op_type, node.domain]
            names += [attribute.name for attribute in node.attribute]
        is_text = all(isinstance(name, str) for name in names)
    except UnicodeDecodeError:
        is_text = False
    if not is_text:
        raise CovcalError(
            f"{path} is damaged (a name in it is no UTF-8): copy or download it again"
        )


def _require_standard_operators(path: Path, model: onnx.ModelProto) -> None:
    """Refuse an operator that ONNX Runtime does not have, or that lacks an input or output."""
    own = {function.domain for function in model.functions}
    versions = {entry.domain: entry.version for entry in model.opset_import}
    for number, node in enumerate(model.graph.node):
        name = repr(node.name or next(iter(node.output), f"number {number}"))
        if node.domain not in {*_KNOWN_DOMAINS, *_RUNTIME_DOMAINS, *own}:
            raise CovcalError(
                f"{path}: node {name} needs the custom operator {node.domain}.{node.op_type}, "
                "which onnxruntime does not have: export the model with standard operators"
            )
        damage = _damage(node, versions)
        if damage:
            raise CovcalError(
                f"{path} is damaged: node {name} ({node.op_type}) {damage}: copy or download it "
                "again, or export it again"
            )


def _damage(node: onnx.NodeProto, versions: Mapping[str, int]) -> str:
    """Return what is wrong with the number of a node's inputs or outputs, empty if nothing is."""
    if not any(node.output):
        return "has no output"
    domain = "" if node.domain == "ai.onnx" else node.domain
    version = versions.get(node.domain, versions.get("ai.onnx" if domain == "" else domain, 0))
    try:
        schema = onnx.defs.get_schema(node.op_type, version, domain)
    except onnx.defs.SchemaError:  # one of ONNX Runtime's own, a function, or a newer version
        return ""
    named = zip(schema.inputs, node.input, strict=False)
    if any(value.option == value.option.Single and not name for value, name in named):
        return "has an input without a name"
    if not schema.min_input <= len(node.input) <= schema.max_input:
        return f"has {len(node.input)} inputs and needs {schema.min_input}"
    return ""


def _no_start(providers: Sequence[str], reason: str) -> CovcalError:
    names = ", ".join(name.removesuffix(_SUFFIX) for name in providers)
    return CovcalError(
        f"onnxruntime {onnxruntime.__version__} cannot compute on {names} ({reason}): install what "
        "it needs (pip install 'onnxruntime-gpu[cuda,cudnn]' for CUDA), or pass --providers cpu"
    )


def _prepare_gpu(providers: Sequence[str]) -> None:
    """Load the CUDA libraries that pip installed, which ONNX Runtime does not look for itself."""
    if not set(providers) & set(_GPU):
        return
    os.environ.setdefault(_NO_TENSOR_CORES, "0")
    onnxruntime.set_default_logger_severity(_LOG_FATAL_ONLY)
    with redirect_stdout(StringIO()):  # it prints what it does not find; stdout carries results
        onnxruntime.preload_dlls()


# Weights that a model keeps in other files, beside it or behind symbolic links.
#
# A download cache keeps every file as a link into a folder of blobs. ONNX Runtime refuses weights
# that lie outside the folder that it is given, so it is given the folder of the blobs, and the
# model in memory the blobs' own names.


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
        places = [entries.get(key, "0") for key in ("offset", "length")]
        if not all(place.isascii() and place.isdecimal() and len(place) < 20 for place in places):
            raise CovcalError(
                f"{path}: {tensor.name} lies at {' and '.join(map(shown, places))} of {location}, "
                "which are no numbers: copy or download the model again"
            )
        end = sum(map(int, places))
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
