"""Write calibrated rows as CSV, Parquet, NPZ or HDF5.

Each format is a function that writes block after block, and an entry in `FORMATS`. Memory does not
grow with the number of rows.
"""

import json
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from covcal_cli.apply.csv import write_csv
from covcal_cli.apply.rows import AppliedRows, Layout
from covcal_cli.arrays import AnyArray
from covcal_cli.errors import CovcalError
from covcal_cli.formats.features import APPLIED_SCHEMA
from covcal_cli.formats.writer import HDF5Writer

# Size of a row group before compression. Many small groups would make the footer larger than the
# rows.
_GROUP_BYTES = 32 << 20
_COPY_BYTES = 1 << 20  # copied at a time into an NPZ


def _write_csv_file(path: Path, layout: Layout, blocks: Iterable[AppliedRows]) -> None:
    with path.open("wb") as stream:
        write_csv(stream, layout, blocks)


def _write_parquet(path: Path, layout: Layout, blocks: Iterable[AppliedRows]) -> None:
    """Write row groups of some 32 MiB, and the provenance as JSON under ``covcal``."""
    pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    names = layout.columns()
    of_ids = pyarrow.int64() if layout.integer_ids else pyarrow.string()
    types = [of_ids, pyarrow.string(), pyarrow.int64()]
    types += [pyarrow.float32()] * (len(names) - len(types))
    schema = pyarrow.schema(
        list(zip(names, types, strict=True)),
        metadata={"covcal": json.dumps(dict(layout.provenance), sort_keys=True)},
    )
    classes = pyarrow.array(list(layout.classes), pyarrow.string())
    with parquet.ParquetWriter(path, schema, use_dictionary=["label"]) as writer:
        for group in _groups(blocks, layout):
            writer.write_table(_arrow_table(pyarrow, schema, classes, group))


def _groups(blocks: Iterable[AppliedRows], layout: Layout) -> Iterator[list[AppliedRows]]:
    size = max(1, _GROUP_BYTES // (layout.id_dtype.itemsize + 4 * len(layout.columns())))
    group: list[AppliedRows] = []
    for block in blocks:
        group.append(block)
        if sum(map(len, group)) >= size:
            yield group
            group = []
    if group:
        yield group


def _arrow_table(pyarrow: Any, schema: Any, classes: Any, group: list[AppliedRows]) -> Any:
    ids = [value for block in group for value in block.ids.tolist()]
    index = np.concatenate([block.label_index for block in group])
    columns = [
        pyarrow.array(ids, pyarrow.binary()).cast(pyarrow.string()).cast(schema.field("id").type),
        classes.take(pyarrow.array(index)),
        index,
        np.concatenate([block.confidence for block in group]),
    ]
    parts = [block.probabilities for block in group if block.probabilities is not None]
    if parts:
        columns += list(np.concatenate([part.T for part in parts], axis=1))
    return pyarrow.table(columns, schema=schema)


def _write_npz(path: Path, layout: Layout, blocks: Iterable[AppliedRows]) -> None:
    """Write an uncompressed archive, member by member. The same rows give the same bytes.

    Arrays: ``probabilities`` (n, K) f4 unless left out, ``id`` (n,) text, ``label_index`` (n,) i8,
    ``confidence`` (n,) f4, ``classes`` (K,) text, and provenance as arrays without axes.
    """
    dtypes: dict[str, Any] = {
        "id": layout.id_dtype,
        "label_index": np.dtype("<i8"),
        "confidence": np.dtype("<f4"),
    }
    with ExitStack() as stack:
        archive = stack.enter_context(zipfile.ZipFile(path, "w"))
        # A zip archive takes one member at a time, but each block has all fields. So the widest
        # array goes directly into the archive, and the narrow arrays wait in unnamed files.
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
    # This ZipInfo has a fixed date, so that the file does not depend on the time.
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
        header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(member, header)
        yield member


def _keep(block: AppliedRows, waiting: dict[str, IO[bytes]]) -> None:
    waiting["id"].write(block.ids.tobytes())
    waiting["label_index"].write(_raw(block.label_index, "<i8"))
    waiting["confidence"].write(_raw(block.confidence, "<f4"))


def _kept(file: IO[bytes], dtype: np.dtype[Any]) -> Iterator[AnyArray]:
    file.seek(0)
    size = max(1, _COPY_BYTES // dtype.itemsize) * dtype.itemsize
    while raw := file.read(size):
        yield np.frombuffer(raw, dtype=dtype)


def _decoded(ids: NDArray[np.bytes_], text: np.dtype[Any]) -> AnyArray:
    if ids.tobytes().isascii():
        return ids.astype(text)
    return np.char.decode(ids, "utf-8").astype(text)


def _raw(values: Any, dtype: Any) -> bytes:
    return np.ascontiguousarray(values, dtype=dtype).tobytes()


def _write_hdf5(path: Path, layout: Layout, blocks: Iterable[AppliedRows]) -> None:
    """Write datasets as schema ``covcal.applied/1`` has them.

    ``id`` (n,) UTF-8 bytes, ``label_index`` (n,) i8, ``confidence`` (n,) f4, ``probabilities``
    (n, K) f4 unless left out, and ``classes`` (K,); provenance and ``complete`` are root
    attributes.
    """
    n = layout.rows
    with HDF5Writer(
        path, schema=APPLIED_SCHEMA, classes=layout.classes, attributes=layout.provenance
    ) as writer:
        writer.allocate("id", (n,), layout.id_dtype)
        writer.allocate("label_index", (n,), np.int64)
        writer.allocate("confidence", (n,))
        if layout.with_probabilities:
            writer.allocate("probabilities", (n, len(layout.classes)))
        start = 0
        for block in blocks:
            stop = start + len(block)
            writer.fill("id", start, block.ids)
            writer.fill("label_index", start, block.label_index)
            writer.fill("confidence", start, block.confidence)
            if block.probabilities is not None:
                writer.fill("probabilities", start, block.probabilities)
            start = stop
        writer.complete()


Write = Callable[[Path, Layout, Iterable[AppliedRows]], None]
FORMATS: dict[str, Write] = {
    ".csv": _write_csv_file,
    ".parquet": _write_parquet,
    ".npz": _write_npz,
    ".h5": _write_hdf5,
}


def format_of(path: Path) -> Write:
    """Return the writer for a file name; refuse unknown endings and missing packages."""
    write = FORMATS.get(path.suffix.lower())
    if write is None:
        raise CovcalError(f"{path}: name a file that ends in {', '.join(FORMATS)}")
    if write is _write_parquet and find_spec("pyarrow") is None:
        raise CovcalError(
            f"{path} needs pyarrow: pip install pyarrow, or name a .csv, .npz or .h5 file"
        )
    return write
