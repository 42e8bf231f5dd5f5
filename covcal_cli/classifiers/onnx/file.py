"""Read an ONNX file with its external weights, and start ONNX Runtime on it."""

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

from covcal_cli.classifiers import LFS_POINTER
from covcal_cli.errors import OUTPUTS_AS_TABLE, CovcalError, one_line, shown
from covcal_cli.files import require_file, sha256_of

_EXPORT = "export the classifier as an .onnx file"
_PICKLE = b"\x80"
# First bytes, name and remedy for files that are not ONNX models.
_OTHER_FORMATS = {
    LFS_POINTER: ("a Git LFS pointer", "run git lfs pull"),
    b"<": ("a web page", "download the file itself, not a web page about it"),
    b"PK\x03\x04": ("a zip archive (a torch or Keras file?)", _EXPORT),
    b"\x89HDF": ("an HDF5 file (a Keras model?)", _EXPORT),
    b"\x89PNG": ("a PNG image", _EXPORT),
    _PICKLE: ("a Python pickle", f"{_EXPORT}, or {OUTPUTS_AS_TABLE}"),
}
_PICKLES = (".pkl", ".pickle", ".joblib", ".sav")
CPU = ("CPUExecutionProvider",)
_FOLDER_OF_WEIGHTS = "session.model_external_initializers_file_folder_path"
_SUFFIX = "ExecutionProvider"
_GPU = ("CUDAExecutionProvider", "TensorrtExecutionProvider")
# By default, tensor cores round float32 to ten bits, which is too imprecise for the checks.
_PROVIDER_OPTIONS = {"CUDAExecutionProvider": {"use_tf32": "0"}}
_NO_TENSOR_CORES = "NVIDIA_TF32_OVERRIDE"  # Switches tensor cores off in TensorRT.
_LOG_FATAL_ONLY = 4  # ONNX Runtime raises errors, so a log would repeat the messages.
_KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training")
_RUNTIME_DOMAINS = ("com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc")


@dataclass(frozen=True)
class OnnxFile:
    """A parsed ONNX file."""

    path: Path
    folder: Path  # The folder with external weights.
    data: bytes  # The model's bytes, with the real paths of linked weights.
    model: onnx.ModelProto  # The parsed model without external weights.
    sha256: str  # Hash of the file and its external weights.

    def session(
        self,
        data: bytes,
        *,
        folder: Path | None = None,
        threads: int = 1,
        providers: Sequence[str] = CPU,
        fuse: bool = True,
    ) -> Any:
        """Start ONNX Runtime on `data`, which is this model or a changed copy.

        By default, external weights are read from `self.folder`. With `fuse=False`, ONNX Runtime
        does not fuse operators, because fusion can change rounding.
        """
        _prepare_gpu(providers)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _LOG_FATAL_ONLY
        if not fuse:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        # A waiting thread that spins would take a core from the image decoder.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if external_tensors(self.model):
            options.add_session_config_entry(_FOLDER_OF_WEIGHTS, _utf8_path(folder or self.folder))
        try:
            session = onnxruntime.InferenceSession(
                data,
                sess_options=options,
                providers=list(providers),
                provider_options=[_PROVIDER_OPTIONS.get(name, {}) for name in providers],
                # With fallback, ONNX Runtime could use another provider, and print to stdout.
                enable_fallback=0,
            )
        except Exception as error:  # ONNX Runtime raises many kinds of errors.
            if set(providers) - set(CPU):
                raise _no_start(providers, one_line(error, 200)) from error
            raise CovcalError(
                f"{self.path}: onnxruntime {onnxruntime.__version__} cannot load the model "
                f"with opset {opset_of(self.model) or 1} ({one_line(error, 200)}): update "
                "onnxruntime, or export the model with an older opset"
            ) from error
        missing = set(providers) - set(session.get_providers())
        if missing:
            raise _no_start(sorted(missing), "a driver or library is missing")
        return session


def metadata_of(path: Path) -> dict[str, str]:
    """Return the metadata of an ONNX model; empty for other files."""
    try:
        model = onnx.load_model(path, load_external_data=False)
    except Exception:  # protobuf raises DecodeError, which has no type stubs.
        return {}
    return {entry.key: entry.value for entry in model.metadata_props}


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of the standard operators; 0 if the model has none."""
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    return max(versions, default=0)


def read_onnx(path: Path) -> OnnxFile:
    """Read an ONNX file without its external weights."""
    require_file(path, remedy=_EXPORT)
    data = path.read_bytes()
    for start, (kind, remedy) in _OTHER_FORMATS.items():
        is_pickle = start == _PICKLE and path.suffix.lower() in _PICKLES
        if is_pickle or data[:64].lstrip().startswith(start):
            raise CovcalError(f"{path} is {kind}, not an ONNX model: {remedy}")
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf raises DecodeError, which has no type stubs.
        raise CovcalError(
            f"{path} is cut short or is not an ONNX model ({len(data)} bytes): copy or download "
            f"it again, or {_EXPORT}"
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
    """Return the full names of the execution providers; by default, the CPU provider."""
    available = {name.lower(): name for name in onnxruntime.get_available_providers()}
    names = []
    for name in asked:
        wanted = name.strip().lower()
        full = available.get(wanted, available.get(wanted + _SUFFIX.lower()))
        if full is None:
            choices = ", ".join(value.removesuffix(_SUFFIX) for value in available.values())
            raise CovcalError(
                f"--providers {name} is not available in onnxruntime "
                f"{onnxruntime.__version__}: choose from {choices}, or install onnxruntime-gpu"
            )
        names.append(full)
    return tuple(dict.fromkeys(names)) or CPU


def _utf8_path(folder: Path) -> str:
    text = str(folder)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise CovcalError(
            f"the name of the folder {folder} is not UTF-8, so onnxruntime finds no weights "
            "there: rename the folder"
        ) from error
    return text


def _require_names(path: Path, model: onnx.ModelProto) -> None:
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
            f"{path} is damaged (a name in it is not UTF-8): copy or download it again"
        )


def _require_standard_operators(path: Path, model: onnx.ModelProto) -> None:
    """Refuse unknown operators, and nodes without a required input or output."""
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
                f"{path} is damaged: node {name} ({node.op_type}) {damage}: copy or download "
                "it again, or export it again"
            )


def _damage(node: onnx.NodeProto, versions: Mapping[str, int]) -> str:
    if not any(node.output):
        return "has no output"
    domain = "" if node.domain == "ai.onnx" else node.domain
    version = versions.get(node.domain, versions.get("ai.onnx" if domain == "" else domain, 0))
    try:
        schema = onnx.defs.get_schema(node.op_type, version, domain)
    # The package onnx does not know all operators of ONNX Runtime.
    except onnx.defs.SchemaError:
        return ""
    named = zip(schema.inputs, node.input, strict=False)
    if any(value.option == value.option.Single and not name for value, name in named):
        return "has an input without a name"
    if not schema.min_input <= len(node.input) <= schema.max_input:
        return f"has {len(node.input)} inputs but needs {schema.min_input}"
    return ""


def _no_start(providers: Sequence[str], reason: str) -> CovcalError:
    names = ", ".join(name.removesuffix(_SUFFIX) for name in providers)
    return CovcalError(
        f"onnxruntime {onnxruntime.__version__} cannot compute on {names} ({reason}): pass "
        "--providers cpu, or run pip install 'onnxruntime-gpu[cuda,cudnn]'"
    )


def _prepare_gpu(providers: Sequence[str]) -> None:
    """Load the CUDA libraries that pip installed, because ONNX Runtime does not find them."""
    if not set(providers) & set(_GPU):
        return
    os.environ.setdefault(_NO_TENSOR_CORES, "0")
    onnxruntime.set_default_logger_severity(_LOG_FATAL_ONLY)
    # The package `onnxruntime` prints the names of missing libraries to stdout.
    with redirect_stdout(StringIO()):
        onnxruntime.preload_dlls()


# A model may have external weights, which ONNX Runtime reads from one folder. In a download cache,
# weight files are links.


def link_external_data(path: Path, model: onnx.ModelProto) -> tuple[Path, dict[str, Path]]:
    """Find the files with a model's external weights, and follow links.

    Returns the folder with the weights, and the path for each file name in the model. Raises
    `CovcalError` if a file is missing, too short, or outside the model's folder.
    """
    files: dict[str, Path] = {}
    external = external_tensors(model)
    for tensor in external:
        entries = external_entries(tensor)
        location = entries.get("location", "")
        if location not in files:
            files[location] = _existing(path, location, tensor.name)
        places = [entries.get(key, "0") for key in ("offset", "length")]
        if not all(place.isascii() and place.isdecimal() and len(place) < 20 for place in places):
            raise CovcalError(
                f"{path}: the offset and length of {tensor.name} in {location} are not "
                f"numbers ({' and '.join(map(shown, places))}): copy or download the model "
                "again"
            )
        end = sum(map(int, places))
        size = files[location].stat().st_size
        if end > size:
            raise CovcalError(
                f"{path} needs {end} bytes of {location}, but that file has {size} bytes: "
                "copy or download it again"
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
    """Return the tensors of a model and of its subgraphs whose values are in other files."""
    return [tensor for tensor in _tensors(model) if tensor.data_location == tensor.EXTERNAL]


def external_entries(tensor: onnx.TensorProto) -> dict[str, str]:
    """Return the ``location``, ``offset`` and ``length`` of an external tensor."""
    return {entry.key: entry.value for entry in tensor.external_data}


def set_location(tensor: onnx.TensorProto, name: str) -> None:
    """Change the file name of an external tensor."""
    for entry in tensor.external_data:
        if entry.key == "location":
            entry.value = name


def external_bytes(tensor: onnx.TensorProto, folder: Path) -> bytes:
    """Return the bytes of an external tensor."""
    entries = external_entries(tensor)
    with (folder / entries["location"]).open("rb") as stream:
        stream.seek(int(entries.get("offset", "0")))
        return stream.read(int(entries.get("length", "0")) or -1)


def model_sha256(data: bytes, files: dict[str, Path]) -> str:
    """Return the sha256 of a model and its external weights."""
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
    where = PurePosixPath(location.replace("\\", "/"))
    # For safety, a model must not name files outside its folder.
    if not location or where.is_absolute() or ".." in where.parts:
        raise CovcalError(
            f"{path} keeps the weights {tensor!r} in {location!r}, outside its own folder: "
            "save the model again with its weights in the same folder"
        )
    file = path.parent / location
    if not file.is_file():
        raise CovcalError(
            f"{path} needs the file {location} with weights such as {tensor!r}: copy "
            f"{location} to the folder of the model"
        )
    with file.open("rb") as stream:
        if stream.read(len(LFS_POINTER)) == LFS_POINTER:
            raise CovcalError(
                f"{file} is a Git LFS pointer, not the weights of {path.name}: run git lfs pull"
            )
    return file.resolve()
