"""The protocol for files of named arrays, which have one row per example."""

import codecs
import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from covcal_cli.arrays import AnyArray, Rows
from covcal_cli.errors import CovcalError, one_line
from covcal_cli.files import read_plain

if TYPE_CHECKING:
    from PIL import Image

T = TypeVar("T")
# The indices of some rows, and the values of each array in these rows.
Piece = tuple[Rows, dict[str, AnyArray]]
WINDOW_BYTES = 4 << 20


@dataclass(frozen=True)
class Entry:
    """The shape, type and metadata of an array."""

    shape: tuple[int, ...]  # The first axis is the rows.
    dtype: np.dtype[Any]  # Kind "U" means texts of any length.
    is_encoded: bool = False  # Whether the values are image files.
    # Names of the classes, or names of the array's columns.
    class_names: tuple[str, ...] | None = None
    is_index: bool = False  # Whether the array is the index of the table.

    @property
    def is_text(self) -> bool:
        """Whether the array has texts."""
        return self.dtype.kind in "SUO"


class MixedColumnError(CovcalError):
    """A column of a file without types has numbers, and a text or another kind of value."""


class Store(Protocol):
    """A file of named arrays."""

    path: Path
    is_table: bool = False  # In a table, columns of numbers are features.
    is_typed: bool = True  # Whether the file format stores the types of columns.
    entries: dict[str, Entry]  # Arrays by name, in file order.
    # Error messages for columns with decimal commas.
    with_commas: Mapping[str, str] = MappingProxyType({})
    notes: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()  # Columns of other types than numbers and texts.

    def whole(self, name: str) -> AnyArray:
        """Return a whole array of labels, ids or groups."""
        rows = np.arange(self.entries[name].shape[0], dtype=np.int64)
        parts = [part[name] for _, part in self.pieces([name], rows, 1 << 14)]
        return np.concatenate(parts) if parts else np.zeros(0, self.entries[name].dtype)

    def texts(self, name: str) -> list[str]:
        """Return a whole array as texts. For an embedded image, the text is its file name."""
        return [str(value) for value in self.whole(name).ravel().tolist()]

    def cut_texts(self, name: str, width: int) -> tuple[NDArray[np.bytes_], int]:
        """Return a column in UTF-8, cut to `width` bytes, and the number of cut texts."""
        return cut_utf8(self.texts(name), self.entries[name].shape[0], width)

    def pieces(self, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        """Yield rows of the named arrays, in parts.

        `rows` are ascending. A part has about `size` rows, or fewer because of the limit
        `WINDOW_BYTES`.
        """
        ...

    def error(self, what: str) -> CovcalError:
        """Return an error that names the file."""
        return CovcalError(f"{self.path}: {what}")

    def place(self, row: int) -> str:
        """Describe the place of a row, such as ``line 12``."""
        return f"row {row}"

    def taken(self, records: Iterator[T], start: int, rows: Rows) -> tuple[list[T], int]:
        """Return the records of ascending `rows`, and the number of the next record.

        `records` yields the records from number `start` on.
        """
        taken: list[T] = []
        stop = int(rows[-1]) + 1
        if len(rows) == stop - int(rows[0]):
            taken.extend(islice(records, int(rows[0]) - start, stop - start))
        else:
            for row in rows.tolist():
                taken.extend(islice(records, row - start, row - start + 1))
                start = row + 1
        if len(taken) < len(rows):
            raise self.error("the file became shorter while covcal read it: copy it again")
        return taken, stop

    @contextmanager
    def readable(self, reason: str, remedy: str, *kinds: type[Exception]) -> Iterator[None]:
        """Raise a `CovcalError` if a file cannot be read, or for an exception in `kinds`."""
        kinds = (OSError, EOFError, zlib.error, *kinds)
        try:
            yield
        except UnicodeDecodeError as error:
            raise self.error(not_text(self.path)) from error
        except kinds as error:
            raise self.error(f"{reason} ({one_line(error)}): {remedy}") from error


_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


def cut_utf8(texts: Iterable[str], n: int, width: int) -> tuple[NDArray[np.bytes_], int]:
    """Return n texts in UTF-8, shape (n,), and the number of cut texts.

    A text of more than `width` bytes is cut, and ends in an ellipsis.
    """
    # Find the longest text first, to save memory.
    if isinstance(texts, list):
        sizes = (len(text if text.isascii() else text.encode("utf-8", "replace")) for text in texts)
        width = min(width, max(1, max(sizes, default=1)))
    values: NDArray[np.bytes_] = np.empty(n, dtype=f"S{width}")
    longest, cut, mark = 1, 0, _ELLIPSIS.encode("utf-8")
    for row, text in enumerate(texts):
        encoded = text.encode("utf-8", "replace")
        if len(encoded) > width:
            cut += 1
            # Drop a partial character at the cut.
            whole = encoded[: width - len(mark)].decode("utf-8", "ignore")
            encoded = whole.encode("utf-8") + mark
        values[row] = encoded
        longest = max(longest, len(encoded))
    return values.astype(f"S{longest}", copy=False), cut


def between(rows: Rows, start: int, stop: int) -> Rows:
    """Return the ascending `rows` with start <= row < stop."""
    first, last = np.searchsorted(rows, (start, stop))
    return rows[first:last]


def windows(rows: Rows, window: int) -> Iterator[tuple[int, int, Rows]]:
    """Yield (start, stop, rows) for each part of the file that contains some of the `rows`."""
    position = 0
    while position < len(rows):
        start = int(rows[position]) // window * window
        last = int(np.searchsorted(rows, start + window))
        yield start, start + window, rows[position:last]
        position = last


def regrouped(pieces: Iterable[Piece], size: int) -> Iterator[Piece]:
    """Regroup the rows of `pieces` into pieces of `size` rows; the last piece may be shorter."""
    waiting: list[Piece] = []
    n_waiting = 0
    for rows, arrays in pieces:
        start = 0
        while start < len(rows):
            taken = min(size - n_waiting, len(rows) - start)
            part = slice(start, start + taken)
            waiting.append((rows[part], {name: array[part] for name, array in arrays.items()}))
            start += taken
            n_waiting += taken
            if n_waiting == size:
                yield _joined(waiting)
                waiting, n_waiting = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(pieces: list[Piece]) -> Piece:
    if len(pieces) == 1:
        return pieces[0]
    rows = np.concatenate([piece[0] for piece in pieces])
    names = pieces[0][1]
    return rows, {name: np.concatenate([piece[1][name] for piece in pieces]) for name in names}


# An image in a table: the bytes of its file, its path, or None.
Encoded = bytes | str | None
_USUAL = ("image", "img")


def is_image_file(content: bytes) -> bool:
    """Return whether Pillow can open the bytes as an image."""
    from PIL import Image, UnidentifiedImageError

    try:
        Image.open(BytesIO(content)).close()
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError):
        return False
    return True


def image_column(store: Store) -> str | None:
    """Return the name of the column with images, or None."""
    columns = [name for name, entry in store.entries.items() if entry.is_encoded]
    usual = [name for name in columns if name.lower() in _USUAL]
    if len(columns) > 1 and len(usual) != 1:
        raise CovcalError(
            f"{store.path} has several columns of images ({', '.join(columns)}): give "
            f"the name {_USUAL[0]} to the column that the model classifies"
        )
    return next(iter(usual or columns), None)


def open_encoded(folder: Path, value: Encoded) -> "Image.Image":
    """Open an image, whose path is relative to `folder`."""
    from PIL import Image

    if value is None:
        raise ValueError("this row of the table has no image")
    if isinstance(value, bytes):
        return Image.open(BytesIO(value))
    return open_image(folder / value)


def open_image(path: str | Path) -> "Image.Image":
    """Open an image file."""
    from PIL import Image

    # Pillow reads an image from memory in two thirds of the time that it needs for a file.
    return Image.open(BytesIO(read_plain(path)))


LONGEST_LINE = 64 << 20  # Maximum number of characters in a line.


def is_compressed(path: Path) -> bool:
    """Return whether a file is compressed by gzip, whatever its name."""
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def open_text(path: Path, newline: str = "") -> IO[str]:
    """Open a file of UTF-8 or UTF-16 text without changing line ends."""
    open_file: Any = gzip.open if is_compressed(path) else open
    with open_file(path, "rb") as file:
        encoding = _encoding(file.read(3))
    text: IO[str] = open_file(path, "rt", encoding=encoding, newline=newline)
    return text


def holds_returns(path: Path) -> bool:
    """Return whether a file has a carriage return."""
    with path.open("rb") as file:
        return any(b"\r" in block for block in iter(partial(file.read, WINDOW_BYTES), b""))


def not_text(path: Path) -> str:
    """Return the reason why a file is not readable text, and a remedy."""
    open_file: Any = gzip.open if is_compressed(path) else open
    decoder, line = codecs.getincrementaldecoder("utf-8")(), 1
    with open_file(path, "rb") as file:
        head = file.read(4)
        if head.startswith(b"PK"):
            return "it is a workbook or a ZIP archive, not text: save it as CSV in UTF-8"
        if head == b"PAR1":
            return "it is a Parquet file: give it a name that ends in .parquet"
        if _encoding(head[:3]).startswith("utf-8"):
            file.seek(0)
            while block := file.read(1 << 20):
                try:
                    decoder.decode(block)
                except UnicodeDecodeError as error:
                    line += error.object[: error.start].count(b"\n")
                    return f"line {line} is not UTF-8 or UTF-16 text: save the file as UTF-8"
                line += block.count(b"\n")
    return "it is not UTF-8 or UTF-16 text: save the file as UTF-8"


def short_lines(path: Path, file: IO[str]) -> Iterator[str]:
    """Yield the lines of a file. Refuse a very long line."""
    while line := file.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise CovcalError(
                f"{path}: a line has more than {LONGEST_LINE >> 20} million characters: write "
                "one row per line"
            )
        yield line


def _encoding(head: bytes) -> str:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if b"\0" not in head[:2]:  # Python decodes "utf-8" faster than "utf-8-sig".
        return "utf-8-sig" if head == codecs.BOM_UTF8 else "utf-8"
    return "utf-16-be" if head.startswith(b"\0") else "utf-16-le"
