"""Opening an ONNX file: say what is wrong with it, and start ONNX Runtime on it.

ONNX Runtime answers text, a truncated file, a Git LFS pointer and a folder alike with "Protobuf
parsing failed", so the file is looked at first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from covcal_cli.errors import CovcalError
from covcal_cli.files import require_file
from covcal_cli.models.onnx_external import link_external_data, model_sha256
from covcal_cli.models.onnx_session import CPU, require_standard_operators, start_session

_REMEDY = "export the classifier as an .onnx file"
_LFS_POINTER = b"version https://git-lfs"
_MAGIC = {
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"%PDF": "a PDF document",
    b"PK\x03\x04": "a zip archive (a torch or Keras file?)",
    b"\x89HDF": "an HDF5 file (a Keras model?)",
    b"\x80\x02": "a Python pickle",
    b"\x80\x04": "a Python pickle",
    b"\x1f\x8b": "a gzip archive",
    b"\x93NUMPY": "a NumPy array",
}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class OnnxFile:
    """A parsed ONNX file.

    Attributes
    ----------
    path : Path
        Where it lies.
    folder : Path
        Where its external weights lie.
    data : bytes
        The file as it is, for running the unmodified model; external weights that are links into
        another folder go by their names there.
    model : onnx.ModelProto
        The parsed model, without external weights.
    sha256 : str
        Of the file and its external weights.
    """

    path: Path
    folder: Path
    data: bytes
    model: onnx.ModelProto
    sha256: str

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
        """Version of the standard operators."""
        return max(
            (entry.version for entry in self.model.opset_import if entry.domain in ("", "ai.onnx")),
            default=1,
        )


def read_onnx(path: Path) -> OnnxFile:
    """Read and parse an ONNX file, leaving external weights where they are.

    Raises
    ------
    CovcalError
        If the file is missing, empty, truncated or something else, needs custom operators, or
        external weights are missing.
    """
    require_file(path, remedy=_REMEDY)
    data = path.read_bytes()
    _refuse_other_formats(path, data)
    _refuse_truncated(path, data)
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's DecodeError, from a package without type stubs
        raise CovcalError(f"{path} is not a readable ONNX file: {_REMEDY}") from error
    if not model.graph.node or not model.opset_import:
        raise CovcalError(f"{path} holds no ONNX graph: {_REMEDY}")
    require_standard_operators(path, model)
    folder, files = link_external_data(path, model)
    sha256 = model_sha256(data, files)
    if folder != path.parent.resolve():
        data = model.SerializeToString()
    return OnnxFile(path, folder, data, model, sha256)


def _refuse_other_formats(path: Path, data: bytes) -> None:
    if data.startswith(_LFS_POINTER):
        raise CovcalError(
            f"{path} is a Git LFS pointer ({len(data)} bytes), not the model: run git lfs pull"
        )
    for magic, kind in _MAGIC.items():
        if data.startswith(magic):
            raise CovcalError(f"{path} is {kind}, not an ONNX model: {_REMEDY}")
    start = data[:512].lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html", b"<?xml")):
        raise CovcalError(
            f"{path} is a web page, not an ONNX model: download the raw file, not its page"
        )
    head = data[:512]
    if all(byte >= 32 or byte in b"\t\n\r\f" for byte in head):
        raise CovcalError(f"{path} is a text file, not an ONNX model: {_REMEDY}")


def _refuse_truncated(path: Path, data: bytes) -> None:
    """Walk over the outermost protobuf fields; a cut file ends inside one of them."""
    position = 0
    while position < len(data):
        tag, position = _varint(path, data, position)
        kind = tag & 7
        if kind == _VARINT:
            _, position = _varint(path, data, position)
        elif kind == _BYTES:
            length, position = _varint(path, data, position)
            position += length
        elif kind in (_FIXED64, _FIXED32):
            position += 8 if kind == _FIXED64 else 4
        else:
            raise CovcalError(f"{path} is not an ONNX model: {_REMEDY}")
    if position > len(data):
        raise CovcalError(
            f"{path} is truncated ({len(data)} bytes are left of at least {position}) or not an "
            "ONNX model: copy or download it again"
        )


def _varint(path: Path, data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 70:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
    raise CovcalError(f"{path} is truncated or not an ONNX model: copy or download it again")
