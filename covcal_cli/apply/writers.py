"""Write calibrated rows as CSV, Parquet, NPZ or HDF5.

CSV is written with NumPy. Each line starts as a record of fixed size, and its padding is removed at
the end. This is six times as fast as formatting each number in Python.
"""

import json
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from covcal_cli.arrays import AnyArray, Booleans, Float32s, Labels
from covcal_cli.errors import CovcalError, printable
from covcal_cli.formats.decision import ACCEPT, REVIEW
from covcal_cli.formats.features import APPLIED_SCHEMA
from covcal_cli.formats.writer import HDF5Writer


@dataclass(frozen=True)
class AppliedRows:
    """A block of m calibrated rows."""

    ids: NDArray[np.bytes_]  # UTF-8 bytes of fixed length.
    label_index: Labels  # Number of the predicted class, which calibration never changes.
    confidence: Float32s  # The calibrated probability of the label.
    probabilities: Float32s | None  # Shape (m, K); None for confidences only.
    accept: Booleans | None = None  # Whether rows, (m,), or labels, (m, K), are accepted.
    members: Booleans | None = None  # Prediction sets of the rows, (m, K).
    # The label as UTF-8 bytes, (m,), if it is not one of the classes.
    labels: NDArray[np.bytes_] | None = None

    def __len__(self) -> int:
        return len(self.label_index)


@dataclass(frozen=True)
class Layout:
    """The columns and the number of rows of the output."""

    rows: int  # Number of rows.
    classes: Sequence[str]  # Names, length K.
    id_dtype: np.dtype[Any]
    with_probabilities: bool
    provenance: Mapping[str, str | int | float]  # Names and hashes of the input files.
    with_decision: bool = False
    with_sets: bool = False
    integer_ids: bool = False  # Whether the ids of the input are integers.
    is_multilabel: bool = False  # Whether rows can have several labels.
    label_dtype: np.dtype[Any] | None = None  # NumPy type of labels that are not class names.

    @property
    def answer(self) -> list[str]:
        """Return the names of the label and confidence columns."""
        return [] if self.is_multilabel else ["label", "label_index", "confidence"]

    def columns(self) -> list[str]:
        """Return the column names of a table.

        Columns of probabilities are called ``prob_CLASS``. If a class name occurs twice, the
        columns are called ``prob_0``, ``prob_1`` and so on.
        """
        names: Sequence[str] = self.classes if self.with_probabilities else ()
        if len(set(names)) < len(names):
            names = [str(index) for index in range(len(names))]
        return ["id", *self.answer, *(f"prob_{name}" for name in names), *self.texts]

    @property
    def texts(self) -> list[str]:
        """Return the names of the text columns."""
        if self.is_multilabel:
            return [f"decision_{name}" for name in self.classes if self.with_decision]
        return ["decision"] * self.with_decision + ["set"] * self.with_sets

    def texts_of(self, block: AppliedRows) -> list[list[str]]:
        """Return the decision and the set of each row as text.

        "|" separates the classes of a set.
        """
        texts = []
        if block.accept is not None:
            texts += [
                [ACCEPT if accepted else REVIEW for accepted in column.tolist()]
                for column in np.atleast_2d(block.accept.T)
            ]
        if block.members is not None:
            texts.append(
                [
                    "|".join(self.classes[index] for index in np.flatnonzero(row).tolist())
                    for row in block.members
                ]
            )
        return texts


_GROUP_BYTES = 32 << 20  # Size of a Parquet row group before compression.
_COPY_BYTES = 1 << 20  # Number of bytes to copy at a time.


def _write_csv_file(path: Path, layout: Layout, blocks: Iterable[AppliedRows]) -> None:
    with path.open("wb") as stream:
        write_csv(stream, layout, blocks)


def _write_parquet(path: Path, layout: Layout, blocks: Iterable[AppliedRows]) -> None:
    pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    names = layout.columns()
    of_ids = pyarrow.int64() if layout.integer_ids else pyarrow.string()
    types = [of_ids, *([pyarrow.string(), pyarrow.int64()] if layout.answer else [])]
    types += [pyarrow.float32()] * (len(names) - len(types) - len(layout.texts))
    types += [pyarrow.string()] * len(layout.texts)
    schema = pyarrow.schema(
        list(zip(names, types, strict=True)),
        metadata={"covcal": json.dumps(dict(layout.provenance), sort_keys=True)},
    )
    classes = pyarrow.array(list(layout.classes), pyarrow.string())
    with parquet.ParquetWriter(path, schema, use_dictionary=layout.answer[:1]) as writer:
        for group in _groups(blocks, layout):
            writer.write_table(_arrow_table(pyarrow, schema, classes, group, layout))


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


def _arrow_table(
    pyarrow: Any, schema: Any, classes: Any, group: list[AppliedRows], layout: Layout
) -> Any:
    index = np.concatenate([block.label_index for block in group])
    columns = [_arrow_texts(pyarrow, [b.ids for b in group]).cast(schema.field("id").type)]
    if layout.answer:
        confidence = np.concatenate([block.confidence for block in group])
        own = [block.labels for block in group if block.labels is not None]
        labels = _arrow_texts(pyarrow, own) if own else classes.take(pyarrow.array(index))
        columns += [labels, index, confidence]
    parts = [block.probabilities for block in group if block.probabilities is not None]
    if parts:
        columns += list(np.concatenate([part.T for part in parts], axis=1))
    texts = zip(*(layout.texts_of(block) for block in group), strict=True)
    columns += [pyarrow.array(list(chain(*column)), pyarrow.string()) for column in texts]
    return pyarrow.table(columns, schema=schema)


def _arrow_texts(pyarrow: Any, parts: Sequence[NDArray[np.bytes_]]) -> Any:
    values = [value for part in parts for value in part.tolist()]
    return pyarrow.array(values, pyarrow.binary()).cast(pyarrow.string())


def _write_npz(path: Path, layout: Layout, blocks: Iterable[AppliedRows]) -> None:
    """Write an uncompressed archive, one array after the other. Equal rows give equal bytes."""
    dtypes: dict[str, Any] = {"id": layout.id_dtype}
    if layout.label_dtype is not None:
        dtypes["label"] = layout.label_dtype
    if layout.answer:
        dtypes |= {"label_index": np.dtype("<i8"), "confidence": np.dtype("<f4")}
    # The shape of one row for each array.
    widths = dict.fromkeys(dtypes, ()) | {"set": (len(layout.classes),)}
    if layout.is_multilabel:
        widths["accept"] = (len(layout.classes),)
    dtypes |= {"accept": np.dtype("?")} if layout.with_decision else {}
    dtypes |= {"set": np.dtype("?")} if layout.with_sets else {}
    with ExitStack() as stack:
        archive = stack.enter_context(zipfile.ZipFile(path, "w"))
        # Arrays of a zip archive are written one by one, so store small arrays in temporary files.
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
            is_text = dtype.kind == "S"
            text = np.dtype(f"<U{dtype.itemsize}") if is_text else dtype
            with _member(archive, name, text, (layout.rows, *widths.get(name, ()))) as member:
                for values in _kept(waiting[name], dtype):
                    member.write(_raw(_decoded(values, text) if is_text else values, text))
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
    # The date is fixed, because equal rows must give equal bytes.
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
        header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(member, header)
        yield member


def _keep(block: AppliedRows, waiting: dict[str, IO[bytes]]) -> None:
    waiting["id"].write(block.ids.tobytes())
    if block.labels is not None:
        waiting["label"].write(block.labels.tobytes())
    if "confidence" in waiting:
        waiting["label_index"].write(_raw(block.label_index, "<i8"))
        waiting["confidence"].write(_raw(block.confidence, "<f4"))
    if block.accept is not None:
        waiting["accept"].write(_raw(block.accept, "?"))
    if block.members is not None:
        waiting["set"].write(_raw(block.members, "?"))


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
    """Write the datasets of schema ``covcal.applied/1`` (see formats/README.md)."""
    n = layout.rows
    with HDF5Writer(
        path, schema=APPLIED_SCHEMA, classes=layout.classes, attributes=layout.provenance
    ) as writer:
        writer.allocate("id", (n,), layout.id_dtype)
        if layout.label_dtype is not None:
            writer.allocate("label", (n,), layout.label_dtype)
        if layout.answer:
            writer.allocate("label_index", (n,), np.int64)
            writer.allocate("confidence", (n,))
        if layout.with_probabilities:
            writer.allocate("probabilities", (n, len(layout.classes)))
        if layout.with_decision:
            width = (len(layout.classes),) if layout.is_multilabel else ()
            writer.allocate("accept", (n, *width), np.uint8)
        if layout.with_sets:
            writer.allocate("set", (n, len(layout.classes)), np.uint8)
        for block in blocks:
            writer.fill("id", block.ids)
            if block.labels is not None:
                writer.fill("label", block.labels)
            if layout.answer:
                writer.fill("label_index", block.label_index)
                writer.fill("confidence", block.confidence)
            if block.probabilities is not None:
                writer.fill("probabilities", block.probabilities)
            if block.accept is not None:
                writer.fill("accept", block.accept.astype(np.uint8))
            if block.members is not None:
                writer.fill("set", block.members.astype(np.uint8))
        writer.complete()


Write = Callable[[Path, Layout, Iterable[AppliedRows]], None]
FORMATS: dict[str, Write] = {
    ".csv": _write_csv_file,
    ".parquet": _write_parquet,
    ".npz": _write_npz,
    ".h5": _write_hdf5,
}


def format_of(path: Path) -> Write:
    """Return the function that writes files with the ending of `path`.

    Raises `CovcalError` if the ending is unknown or a package is missing.
    """
    write = FORMATS.get(path.suffix.lower())
    if write is None:
        raise CovcalError(f"{path}: name a file that ends in {', '.join(FORMATS)}")
    if write is _write_parquet and find_spec("pyarrow") is None:
        raise CovcalError(
            f"{path} needs pyarrow: pip install pyarrow, or name a .csv, .npz or .h5 file"
        )
    return write


_BLOCK_VALUES = 1 << 14  # Number of values to write at a time.
_SPECIAL = re.compile(rb'[",\n\r]')  # Characters that force quotes around a CSV field.
_UNUSED = b"\xff"
_DIGITS = 9  # Nine digits distinguish all float32 numbers.

# A number in a CSV line, such as ``,0.000123456789`` or ``,1.23456789e-05``, consists of six parts.
_NUMBER = np.dtype(
    [
        ("start", "<u4"),  # A comma, and perhaps "0.0".
        ("zeros", "<u2"),  # Further zeros.
        ("first", "<u2"),  # One digit, and perhaps a decimal point.
        ("middle", "<u4"),  # Four digits.
        ("last", "<u4"),  # Four digits.
        ("exponent", "<u4"),
    ]
)
_FOUR_DIGITS = np.array([b"%04d" % number for number in range(10_000)]).view("<u4")


def _padded(texts: Sequence[bytes], dtype: str) -> AnyArray:
    size = np.dtype(dtype).itemsize
    return np.frombuffer(b"".join(text.ljust(size, _UNUSED) for text in texts), dtype=dtype)


_DECADES = range(39)  # Decade d holds the numbers from 10^-d to 10^(1-d).
_STARTS = _padded([b",", b",0.", *[b",0.0"] * 3, *[b","] * 34], "<u4")
_ZEROS = _padded([b"", b"", b"", b"0", b"00", *[b""] * 34], "<u2")
_FIRST = _padded([b"0.", *[b"0"] * 4, *[b"0."] * 34], "<u2")
_EXPONENTS = _padded([b"e-%02d" % d if d > 4 else b"" for d in _DECADES], "<u4")
_SCALES = np.array([10.0 ** (_DIGITS - 1 + d) for d in _DECADES])
# For a float32 exponent p, `_LOWER` is the decade of 2^p, and `_NEXT` is the end of this decade.
_POWERS = np.arange(256) - 127
_LOWER = np.clip(-np.floor(_POWERS * np.log10(2.0)), 0, 38).astype(np.int64)
_NEXT = np.array([float(f"1e{1 - d}") for d in _LOWER])


def write_csv(
    stream: IO[bytes],
    layout: Layout,
    blocks: Iterable[AppliedRows],
    *,
    displayed: Callable[[bytes], bytes] | None = None,
) -> None:
    """Write CSV (RFC 4180, UTF-8, line feeds): a header, and a line per row.

    Numbers have nine significant digits. `displayed` makes names and ids safe for a terminal.
    """
    show = displayed or bytes
    names = [_quoted(show(name.encode())) for name in layout.classes]
    labels = _bytes_of(np.array([b",%b,%d" % (name, index) for index, name in enumerate(names)]))
    columns = (_quoted(show(name.encode())) for name in layout.columns())
    stream.write(b",".join(columns) + b"\n")
    size = max(1, _BLOCK_VALUES // len(layout.columns()))
    for block in blocks:
        columns_of_text = layout.texts_of(block)
        for start in range(0, len(block), size):
            rows = slice(start, start + size)
            ids = _quoted_ids(block.ids[rows], displayed)
            values = block.confidence[rows, None][:, : len(layout.answer)]
            if block.probabilities is not None:
                values = np.concatenate([values, block.probabilities[rows]], axis=1)
            texts = [
                np.array([b"," + _quoted(show(text.encode())) for text in column[rows]])
                for column in columns_of_text
            ]
            of_rows = labels[block.label_index[rows]][:, : None if layout.answer else 0]
            if block.labels is not None:
                pairs = zip(block.labels[rows].tolist(), block.label_index[rows], strict=True)
                of_rows = _bytes_of(np.array([b",%b,%d" % (_quoted(show(t)), i) for t, i in pairs]))
            lines = _lines(
                _bytes_of(ids),
                of_rows,
                values,
                [_bytes_of(column) for column in texts],
            )
            stream.write(lines)


def for_screens(text: bytes) -> bytes:
    """Replace characters that could control a terminal; see `covcal_cli.errors.printable`."""
    if text.isascii() and text.decode("ascii").isprintable():
        return text
    return printable(text.decode("utf-8", errors="replace")).encode("utf-8")


def _quoted(text: bytes) -> bytes:
    return b'"' + text.replace(b'"', b'""') + b'"' if _SPECIAL.search(text) else text


def _quoted_ids(
    ids: NDArray[np.bytes_], displayed: Callable[[bytes], bytes] | None
) -> NDArray[np.bytes_]:
    if displayed is not None:
        ids = np.array(list(map(displayed, ids.tolist())))
    return np.array(list(map(_quoted, ids.tolist()))) if _SPECIAL.search(ids.tobytes()) else ids


def _lines(
    ids: AnyArray, labels: AnyArray, values: Float32s, texts: Sequence[AnyArray] = ()
) -> bytes:
    line = [
        ("id", "u1", ids.shape[1]),
        ("label", "u1", labels.shape[1]),
        ("numbers", _NUMBER, values.shape[1]),
        *((f"text{i}", "u1", text.shape[1]) for i, text in enumerate(texts)),
        ("end", "u1"),
    ]
    lines = np.empty(len(ids), dtype=np.dtype(line))
    lines["id"], lines["label"], lines["end"] = ids, labels, ord("\n")
    for i, text in enumerate(texts):
        lines[f"text{i}"] = text
    _fill(lines["numbers"], values)
    return lines.tobytes().translate(None, _UNUSED)


def _bytes_of(texts: NDArray[np.bytes_]) -> AnyArray:
    """Return texts as bytes, (m, width), padded with `_UNUSED`."""
    width = texts.dtype.itemsize
    codes = np.ascontiguousarray(texts).view(np.uint8).reshape(len(texts), width)
    if codes[:, -1].all():  # All texts have the same length.
        return codes
    behind = np.arange(width) >= np.char.str_len(texts)[:, None]
    return np.where(behind, np.uint8(_UNUSED[0]), codes)


def _fill(numbers: NDArray[Any], values: Float32s) -> None:
    exponents = (values.view(np.uint32) >> 23).astype(np.int64) & 255
    exact = values.astype(np.float64)
    decades = _LOWER.take(exponents) - (exact >= _NEXT.take(exponents))
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = exact * _SCALES.take(decades)
        rounded = np.rint(scaled)
        digits = rounded.astype(np.uint32)
    upper = digits // np.uint32(10_000)
    first = upper // np.uint32(10_000)
    numbers["start"], numbers["zeros"] = _STARTS.take(decades), _ZEROS.take(decades)
    numbers["first"] = _FIRST.take(decades) + first.astype(np.uint16)
    numbers["middle"] = _FOUR_DIGITS.take(np.minimum(upper - first * np.uint32(10_000), 9999))
    numbers["last"] = _FOUR_DIGITS.take(digits - upper * np.uint32(10_000))
    numbers["exponent"] = _EXPONENTS.take(decades)
    # Format a number separately if it is near a rounding tie, above 1, or subnormal.
    usual: Booleans = (np.abs(np.abs(scaled - rounded) - 0.5) > 1e-6) & (first > 0) & (first < 10)
    usual &= (exponents > 0) & (exact < 2) & (exact > 0)
    for place in zip(*np.nonzero(~usual), strict=True):
        text = b"0" if exact[place] == 0 else b"%#.9g" % exact[place]
        numbers[place] = np.frombuffer((b"," + text).ljust(_NUMBER.itemsize, _UNUSED), _NUMBER)[0]
