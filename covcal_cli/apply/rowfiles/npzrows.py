"""Calibrated rows as an uncompressed NPZ file, written member by member.

A zip archive takes one member at a time, while rows come with all their fields. So the widest
array, the probabilities, goes straight to the archive, and the narrow ones wait in unnamed files.

Arrays: ``probabilities`` (n, K) f4 unless left out, ``id`` (n,) text, ``label_index`` (n,) i8,
``confidence`` (n,) f4, ``classes`` (K,) text, and provenance as arrays without axes.
"""

import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from covcal_cli.apply.rowfiles.appliedrows import AppliedRows, Layout

_COPY_BYTES = 1 << 20


def write_npz(path: Path, layout: Layout, blocks: Iterable[AppliedRows]) -> None:
    """Write the archive; the same rows give the same bytes."""
    dtypes: dict[str, Any] = {
        "id": layout.id_dtype,
        "label_index": np.dtype("<i8"),
        "confidence": np.dtype("<f4"),
    }
    with ExitStack() as stack:
        archive = stack.enter_context(zipfile.ZipFile(path, "w"))
        waiting: dict[str, IO[bytes]] = {
            name: stack.enter_context(tempfile.TemporaryFile(dir=path.parent)) for name in dtypes
        }
        if layout.with_probabilities:
            shape = (layout.rows, len(layout.classes))
            with _member(archive, "probabilities", np.dtype("<f4"), shape) as member:
                for block in blocks:
                    member.write(_raw(block.probabilities, "<f4"))
                    _keep(block, waiting)
        else:
            for block in blocks:
                _keep(block, waiting)
        for name, dtype in dtypes.items():
            text = np.dtype(f"<U{dtype.itemsize}") if name == "id" else dtype
            with _member(archive, name, text, (layout.rows,)) as member:
                for values in _kept(waiting[name], dtype):
                    member.write(_raw(_decoded(values, text) if name == "id" else values, text))
        whole = {"classes": np.array(layout.classes)} | {
            name: np.array(value) for name, value in layout.provenance.items()
        }
        for name, values in whole.items():
            with _member(archive, name, values.dtype, values.shape) as member:
                member.write(_raw(values, values.dtype))


@contextmanager
def _member(
    archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> Iterator[IO[bytes]]:
    # A ZipInfo of one's own has a fixed date, so that no time enters the file.
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
        header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(member, header)
        yield member


def _keep(block: AppliedRows, waiting: dict[str, IO[bytes]]) -> None:
    waiting["id"].write(block.ids.tobytes())
    waiting["label_index"].write(_raw(block.label_index, "<i8"))
    waiting["confidence"].write(_raw(block.confidence, "<f4"))


def _kept(file: IO[bytes], dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    file.seek(0)
    size = max(1, _COPY_BYTES // dtype.itemsize) * dtype.itemsize
    while raw := file.read(size):
        yield np.frombuffer(raw, dtype=dtype)


def _decoded(ids: NDArray[np.bytes_], text: np.dtype[Any]) -> NDArray[Any]:
    if ids.tobytes().isascii():
        return ids.astype(text)
    return np.char.decode(ids, "utf-8").astype(text)


def _raw(values: Any, dtype: Any) -> bytes:
    return np.ascontiguousarray(values, dtype=dtype).tobytes()
