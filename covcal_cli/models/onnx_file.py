"""An ONNX file, read and parsed, and ONNX Runtime started on it or on a part of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from covcal_cli.errors import CovcalError
from covcal_cli.files import require_file
from covcal_cli.models.onnx_external import LFS_POINTER, link_external_data, model_sha256
from covcal_cli.models.onnx_session import CPU, require_standard_operators, start_session

_EXPORT = "export the classifier as an .onnx file"
# What is most often taken for a model: the start of such a file, what it is, and the remedy.
_OTHER_FORMATS = {
    LFS_POINTER: ("a Git LFS pointer", "run git lfs pull"),
    b"<": ("a web page", "download the raw file, not its page"),
    b"PK\x03\x04": ("a zip archive (a torch or Keras file?)", _EXPORT),
    b"\x89HDF": ("an HDF5 file (a Keras model?)", _EXPORT),
    b"\x89PNG": ("a PNG image", _EXPORT),
    b"\x80": ("a Python pickle", _EXPORT),
}


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
        threads: int = 1,
        providers: Sequence[str] = CPU,
        fuse: bool = True,
    ) -> Any:
        """Start ONNX Runtime on the serialised model `data`, which may share external weights.

        See `covcal_cli.models.onnx_session.start_session`.
        """
        return start_session(
            data,
            path=self.path,
            folder=self.folder,
            opset=self.opset,
            threads=threads,
            providers=providers,
            fuse=fuse,
        )

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
    """Read and parse an ONNX file, leaving external weights where they are.

    Raises
    ------
    CovcalError
        If the file is missing, empty, truncated or something else, needs custom operators, or
        external weights are missing.
    """
    require_file(path, remedy=_EXPORT)
    data = path.read_bytes()
    for start, (kind, remedy) in _OTHER_FORMATS.items():
        if data[:64].lstrip().startswith(start):
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
    require_standard_operators(path, model)
    folder, files = link_external_data(path, model)
    sha256 = model_sha256(data, files)
    if folder != path.parent.resolve():
        data = model.SerializeToString()
    return OnnxFile(path, folder, data, model, sha256)
