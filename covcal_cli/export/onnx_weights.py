"""Weights that an ONNX file keeps in other files: packed anew into one file beside the output.

One file whatever the original had (some exporters write one per tensor), each tensor at a multiple
of 4096 bytes so that it can be mapped into memory.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import IO

import onnx

from covcal_cli.models.onnx_external import external_entries

_ALIGNMENT = 4096
_BLOCK_BYTES = 1 << 24


def pack_weights(tensors: Iterable[onnx.TensorProto], folder: Path, packed: Path) -> None:
    """Copy the values of `tensors` from `folder` to the file `packed`, and point them there.

    Tensors that shared their values share them again.
    """
    places: dict[tuple[str, int, int], int] = {}
    with packed.open("wb") as output:
        for tensor in tensors:
            entries = external_entries(tensor)
            location, start = entries["location"], int(entries.get("offset", 0))
            length = int(entries.get("length", 0)) or (folder / location).stat().st_size - start
            place = (location, start, length)
            if place not in places:
                output.write(bytes(-output.tell() % _ALIGNMENT))
                places[place] = output.tell()
                _copy(folder / location, start, length, output)
            del tensor.external_data[:]
            for key, value in (
                ("location", packed.name),
                ("offset", str(places[place])),
                ("length", str(length)),
            ):
                tensor.external_data.add(key=key, value=value)


def location_of(tensor: onnx.TensorProto) -> str:
    """Return the name of the file with a tensor's values, relative to the model's folder."""
    return external_entries(tensor)["location"]


def relocate(tensors: Iterable[onnx.TensorProto], name: str) -> None:
    """Point `tensors` to the same places of a file called `name`."""
    for tensor in tensors:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = name


def _copy(path: Path, start: int, length: int, output: IO[bytes]) -> None:
    with path.open("rb") as handle:
        handle.seek(start)
        while length > 0 and (block := handle.read(min(length, _BLOCK_BYTES))):
            output.write(block)
            length -= len(block)
