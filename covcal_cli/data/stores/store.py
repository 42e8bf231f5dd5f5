"""Define the protocol of a file of named arrays with one row per example.

Each format has a module with a class of this protocol. `covcal_cli.data.array_files` feeds models
from such files, and `covcal_cli.data.outputs` reads the outputs of classifiers from them.
"""

import codecs
import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from covcal_cli.arrays import AnyArray, Rows
from covcal_cli.errors import CovcalError
from covcal_cli.files import open_plain

if TYPE_CHECKING:  # tables of numbers are read without Pillow
    from PIL import Image

# Some row numbers, and these rows of each array.
Piece = tuple[Rows, dict[str, AnyArray]]
WINDOW_BYTES = 4 << 20


@dataclass(frozen=True)
class Entry:
    """The shape, type and metadata of one array, known before it is read."""

    shape: tuple[int, ...]  # the first axis is the rows
    dtype: np.dtype[Any]  # kind "U" for texts of any length
    is_encoded: bool = False  # whether its values are image files (`Encoded`)
    # The names of its numbers 0, 1, ..., or of its columns, if the file has them.
    class_names: tuple[str, ...] | None = None
    is_index: bool = False  # whether the file marks it as the index of the table

    @property
    def is_text(self) -> bool:
        """Whether it holds texts."""
        return self.dtype.kind in "SUO"


class Store(Protocol):
    """A file of named arrays."""

    path: Path
    is_table: bool = False  # whether the file is a table, in which columns of numbers are features
    is_typed: bool = True  # whether the file distinguishes texts and numbers
    entries: dict[str, Entry]  # entries by name, in the order of the file
    # The error for each column, by name, whose texts are numbers with a decimal comma.
    with_commas: Mapping[str, str] = MappingProxyType({})
    notes: tuple[str, ...] = ()  # how the file was read, for the user

    def whole(self, name: str) -> AnyArray:
        """Return a whole array of labels, ids or groups; wide arrays are read in pieces."""
        ...

    def texts(self, name: str) -> list[str]:
        """Return a whole array as texts; a list of long texts takes less memory than an array.

        For image files, these are their names, or an empty text.
        """
        return [str(value) for value in self.whole(name).ravel().tolist()]

    def cut_texts(self, name: str, width: int) -> tuple[NDArray[np.bytes_], int]:
        """Return a whole column in UTF-8 of at most `width` bytes, and the number of cut texts."""
        return cut_utf8(self.texts(name), self.entries[name].shape[0], width)

    def pieces(self, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        """Yield the chosen ascending `rows` of the named arrays, some at a time.

        About `size` rows are in memory at a time, or the rows that fit into `WINDOW_BYTES`.
        """
        ...

    def error(self, what: str) -> CovcalError:
        """Return an error with the path of the file before the message."""
        return CovcalError(f"{self.path}: {what}")

    def place(self, row: int) -> str:
        """Return where a row is in the file, for messages: ``line 12``."""
        return f"row {row}"


_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


def cut_utf8(texts: Iterable[str], n: int, width: int) -> tuple[NDArray[np.bytes_], int]:
    """Return n texts in UTF-8, shape (n,), and how many of them were cut.

    A text of more than `width` bytes is cut, and ends in an ellipsis.
    """
    if isinstance(texts, list):  # find the width first, so that no wider array is ever in memory
        sizes = (len(text if text.isascii() else text.encode("utf-8", "replace")) for text in texts)
        width = min(width, max(1, max(sizes, default=1)))
    values: NDArray[np.bytes_] = np.empty(n, dtype=f"S{width}")
    longest, cut, mark = 1, 0, _ELLIPSIS.encode("utf-8")
    for row, text in enumerate(texts):
        encoded = text.encode("utf-8", "replace")
        if len(encoded) > width:
            cut += 1
            # The last character may be cut in half, so it is dropped.
            whole = encoded[: width - len(mark)].decode("utf-8", "ignore")
            encoded = whole.encode("utf-8") + mark
        values[row] = encoded
        longest = max(longest, len(encoded))
    return values.astype(f"S{longest}", copy=False), cut


def windows(rows: Rows, window: int) -> Iterator[tuple[int, int, Rows]]:
    """Yield (start, stop, rows within) of each window of the file that has chosen rows."""
    position = 0
    while position < len(rows):
        start = int(rows[position]) // window * window
        last = int(np.searchsorted(rows, start + window))
        yield start, start + window, rows[position:last]
        position = last


def regrouped(pieces: Iterable[Piece], size: int) -> Iterator[Piece]:
    """Yield the rows of `pieces` again, `size` at a time; the last piece may be shorter."""
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


# Images in a table as the bytes of their files, as Hugging Face datasets save them.

# The bytes of an image file, else its path, else None for no image.
Encoded = bytes | str | None
_USUAL = ("image", "img")


def is_image_file(content: bytes) -> bool:
    """Return whether Pillow recognises the bytes as an image file."""
    from PIL import Image, UnidentifiedImageError

    try:
        Image.open(BytesIO(content)).close()
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError):
        return False
    return True


def image_column(store: Store) -> str | None:
    """Return the column of images, or the column ``image`` if there are several, or None."""
    columns = [name for name, entry in store.entries.items() if entry.is_encoded]
    usual = [name for name in columns if name.lower() in _USUAL]
    if len(columns) > 1 and len(usual) != 1:
        raise CovcalError(
            f"{store.path} has several columns of images ({', '.join(columns)}): rename the column "
            f"to classify to {_USUAL[0]}"
        )
    return next(iter(usual or columns), None)


def image_names(store: Store, column: str) -> list[str] | None:
    """Return the names of the image files of all rows; None if a name is missing or not unique."""
    names = store.texts(column)
    return names if all(names) and len(set(names)) == len(names) else None


def open_encoded(folder: Path, value: Encoded) -> "Image.Image":
    """Open an image; a path is relative to `folder`."""
    from PIL import Image

    if value is None:
        raise ValueError("this row of the table has no image")
    if isinstance(value, bytes):
        return Image.open(BytesIO(value))
    with open_plain(folder / value) as file:
        return Image.open(BytesIO(file.read()))


LONGEST_LINE = 64 << 20  # characters


def is_compressed(path: Path) -> bool:
    """Return whether a file is compressed with gzip, by its name."""
    return path.suffix.lower() == ".gz"


def open_text(path: Path) -> IO[str]:
    """Open a file of UTF-8 or UTF-16 text; its line ends are kept."""
    open_file: Any = gzip.open if is_compressed(path) else open
    with open_file(path, "rb") as file:
        encoding = _encoding(file.read(2))
    text: IO[str] = open_file(path, "rt", encoding=encoding, newline="")
    return text


def short_lines(path: Path, file: IO[str]) -> Iterator[str]:
    """Yield the lines of a file; a compressed line may be far longer than the file."""
    while line := file.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise CovcalError(
                f"{path}: a line has more than {LONGEST_LINE >> 20} million characters: write "
                "one row per line"
            )
        yield line


def _encoding(head: bytes) -> str:
    """Return the encoding of a file by its first two bytes: Excel's "Unicode text" is UTF-16."""
    if head in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    if b"\0" not in head:
        return "utf-8-sig"
    return "utf-16-be" if head.startswith(b"\0") else "utf-16-le"
